// The service that `clients/test` has started, and servers to fake its failures and receive its webhooks.

import { createServer } from "node:http";

import { Orrery } from "orrery-client";

export const URL = process.env.ORRERY_URL;
export const KEY = process.env.ORRERY_API_KEY;
export const client = () => new Orrery({ url: URL, key: KEY });

export const unique = (name) => `${name}-${Math.random().toString(36).slice(2)}`;

export async function until(condition) {
  const deadline = Date.now() + 60_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error("it did not happen");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/**
 * A server that answers with the given responses in turn: `[status, body, headers]`, or null for a connection that is
 * lost after the request was read.
 */
export async function fake(t) {
  const received = [];
  const answers = [];
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    received.push({ method: request.method, url: request.url, headers: request.headers, body: Buffer.concat(parts) });
    const answer = answers.length ? answers.shift() : [204, ""];
    if (!answer) return request.socket.destroy();
    const [status, body, headers = {}] = answer;
    response.writeHead(status, { Connection: "close", ...headers });
    response.end(typeof body === "string" ? body : JSON.stringify(body));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${server.address().port}`;
  const next = async () => {
    await until(() => received.length);
    return received.shift();
  };
  const client = new Orrery({ url, key: "smk_fake", retries: { attempts: 3, firstDelayMs: 10 } });
  return { url, received, next, client, will: (...more) => answers.push(...more), forget: () => answers.splice(0) };
}
