// Turns functions into models: an HTTP server that the runner `http` calls. Needs only Node.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";

/** Throw it for an input that cannot be processed: the prediction fails as `invalid_user_input`. */
export class InvalidInput extends Error {}

/** Throw it if the model cannot run now: the prediction fails as `provider_unavailable`, which retries cover. */
export class Unavailable extends Error {}

export interface Context {
  /** The same if the run is repeated after a crash: use it so that an effect happens once. */
  idempotencyKey: string;
  requestId: string | undefined;
  /** Aborted when nobody waits for the output any more: the prediction was cancelled or timed out. */
  signal: AbortSignal;
}

/**
 * A model. A returned `Blob` or `Uint8Array` is a file, of a model whose `output_type` is image, audio, video or file.
 * Its input fits the `request_schema` of the manifest.
 */
export type ModelFunction = (input: any, context: Context) => unknown;

const BODY_BYTES_MAX = 64 * 1024 * 1024;

/**
 * Serves each function at `/` and its name, until SIGTERM: then runs that have begun end first.
 * `GET /health` is 200 while it runs.
 */
export async function serve(models: Record<string, ModelFunction>, { port = 5000, host = "127.0.0.1" } = {}): Promise<Server> {
  const table = new Map(Object.entries(models));
  const server: Server = createServer((request, response) => {
    const isHealth = request.url === "/health" && request.method === "GET";
    const answered = isHealth ? Promise.resolve(json(200, { models: [...table.keys()] })) : outcome(table, request, response);
    void answered.then(({ status, type, body }) => {
      // A server that stops closes its connections.
      const last = server.listening ? {} : { Connection: "close" };
      response.writeHead(status, { "Content-Type": type, ...last }).end(body);
    });
  });
  // Orrery keeps connections open, and does not repeat a request whose connection closes.
  server.keepAliveTimeout = 0;
  await new Promise<void>((resolve, reject) => server.once("error", reject).listen(port, host, resolve));
  const stop = () => {
    server.close();
    server.closeIdleConnections();
  };
  process.once("SIGTERM", stop);
  server.once("close", () => process.off("SIGTERM", stop));
  return server;
}

interface Answer {
  status: number;
  type: string;
  body: string | Uint8Array;
}

function json(status: number, value: unknown): Answer {
  return { status, type: "application/json", body: JSON.stringify(value ?? null) };
}

/** The answer of a model. Its status decides how a failure is classified. */
async function outcome(models: Map<string, ModelFunction>, request: IncomingMessage, response: ServerResponse): Promise<Answer> {
  const cancelled = new AbortController();
  response.once("close", () => response.writableFinished || cancelled.abort(new Error("the prediction was cancelled")));
  try {
    const input = parsed(await read(request));
    const model = models.get((request.url ?? "/").slice(1));
    // Not 404, which Orrery takes for an invalid input.
    if (!model) return json(501, { error: `no model at ${request.url}: there are ${[...models.keys()].join(", ")}` });
    const { "idempotency-key": key = "", "x-request-id": requestId } = request.headers;
    const context = { idempotencyKey: String(key), requestId: requestId?.toString(), signal: cancelled.signal };
    const output = await model(input, context);
    if (output instanceof Uint8Array) return { status: 200, type: "application/octet-stream", body: output };
    if (!(output instanceof Blob)) return json(200, output);
    return { status: 200, type: output.type || "application/octet-stream", body: new Uint8Array(await output.arrayBuffer()) };
  } catch (error) {
    if (error instanceof InvalidInput) return json(400, { error: error.message });
    if (error instanceof Unavailable) return json(503, { error: error.message });
    if (!cancelled.signal.aborted) console.error(error);
    return json(500, { error: String(error) });
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new InvalidInput(`the body is not valid JSON: ${(error as Error).message}`);
  }
}

async function read(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    size += part.length;
    if (size > BODY_BYTES_MAX) throw new InvalidInput(`the body has more than ${BODY_BYTES_MAX} bytes`);
    parts.push(part);
  }
  return Buffer.concat(parts).toString();
}
