// Checks of webhooks that arrive, by Standard Webhooks, with the Web Crypto API.

import { webCrypto } from "./crypto.js";
import { WebhookError } from "./errors.js";

const TOLERANCE_S = 300;

/**
 * Returns the JSON of a genuine delivery, and throws `WebhookError` for any other.
 *
 * `body` is what was received, byte for byte. A delivery whose timestamp is more than `toleranceS` seconds away is
 * rejected, so that an old one cannot be replayed later. Deliveries arrive at least once: ignore a `webhook-id` that
 * was handled before.
 */
export async function verifyWebhook(
  body: Uint8Array | string,
  headers: Headers | Record<string, string | string[] | undefined>,
  secret: string,
  { toleranceS = TOLERANCE_S }: { toleranceS?: number } = {},
): Promise<any> {
  const [id, timestamp, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map((name) => header(headers, name));
  if (!/^\d+$/.test(timestamp!)) throw new WebhookError("webhook-timestamp is not a number of seconds");
  const text = typeof body === "string" ? body : new TextDecoder().decode(body);
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const head = new TextEncoder().encode(`${id}.${timestamp}.`);
  const signed = new Uint8Array(head.length + bytes.length);
  signed.set(head);
  signed.set(bytes, head.length);
  const { subtle } = await webCrypto();
  const key = await subtle.importKey("raw", keyOf(secret), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
  // While a secret is rotated, there is a signature with each of the two.
  const candidates = signatures!.split(" ").filter((one) => one.startsWith("v1,"));
  // `verify` compares in constant time.
  const verified = await Promise.all(candidates.map((one) => subtle.verify("HMAC", key, decoded(one.slice(3)), signed)));
  if (!verified.includes(true)) throw new WebhookError("no signature matches the secret and the body");
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > toleranceS) throw new WebhookError("the timestamp is too old or in the future");
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new WebhookError("the body is not valid JSON", { cause: error });
  }
}

function header(headers: Headers | Record<string, string | string[] | undefined>, name: string): string {
  const found = headers instanceof Headers ? headers.get(name) : Object.entries(headers).find(([one]) => one.toLowerCase() === name)?.[1];
  if (typeof found !== "string") throw new WebhookError(`the header ${name} is missing: was the webhook requested with a secret?`);
  return found;
}

/** The bytes of the base64 after `whsec_`, or those of a secret in another form. */
function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  const bytes = secret.startsWith("whsec_") ? decoded(secret.slice("whsec_".length)) : new Uint8Array();
  return bytes.length ? bytes : new TextEncoder().encode(secret);
}

/** The bytes of base64; none if it is invalid. */
function decoded(base64: string): Uint8Array<ArrayBuffer> {
  try {
    const text = atob(base64);
    return Uint8Array.from(btoa(text) === base64 ? text : "", (one) => one.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}
