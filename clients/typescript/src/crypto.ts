// The Web Crypto API, which Node 18 has in a module only.

export async function webCrypto(): Promise<Crypto> {
  return globalThis.crypto ?? ((await import("node:crypto")).webcrypto as unknown as Crypto);
}
