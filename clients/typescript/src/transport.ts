// Requests: time limits, the decision to retry, and server-sent events.

import { ApiError, NotConnected } from "./errors.js";

/** Time limits. */
export interface Timeouts {
  /** Until a response arrives, in addition to the time for which the service holds it. */
  responseMs: number;
  /** Until the next part of a stream arrives, which the service sends every 15 seconds; then it is resumed. */
  streamMs: number;
}

/** When and how often a request is repeated that had no effect, or that has the same effect once more. */
export interface Retries {
  /** In all. 1 means no retry. */
  attempts: number;
  /** Before the second attempt; doubled before each further one, ±25 %. */
  firstDelayMs: number;
  /** The longest delay, also the longest `Retry-After` that is waited for. */
  maxDelayMs: number;
}

/** A server-sent event, such as `status`, `output` or `end`. After a `reset`, discard all earlier events. */
export interface Event {
  type: string;
  data: any;
  id?: string;
}

interface Sending {
  /** How long the service may hold the response. */
  holdMs?: number;
  isStream?: boolean;
  signal?: AbortSignal | undefined;
}

const REPEATABLE = new Set(["GET", "HEAD", "PUT", "DELETE"]);
/** Nothing was created, whatever the method. */
const REFUSED = new Set([429, 503]);
/** A proxy lost the response: the request may have had an effect. */
const LOST = new Set([502, 504]);
/** Errors before a request is sent, as Node names them. Browsers do not tell. */
const UNSENT = new Set(["ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);

export class Transport {
  constructor(
    readonly timeouts: Timeouts,
    readonly retries: Retries,
    private readonly fetch: typeof globalThis.fetch,
  ) {}

  /** Sends a request, repeats it where that is safe, and returns a successful response. */
  async send(make: () => Request, sending: Sending = {}): Promise<Response> {
    for (let attempt = 1; ; attempt++) {
      const request = make();
      const isRepeatable = REPEATABLE.has(request.method) || request.headers.has("idempotency-key");
      let failure: Error;
      let isRetried: boolean;
      let retryAfter: string | null = null;
      try {
        const response = await this.once(request, sending);
        if (response.ok) return response;
        failure = await ApiError.of(response);
        retryAfter = response.headers.get("retry-after");
        // The first attempt, whose response was lost, is still in progress.
        const isInProgress = response.status === 409 && request.headers.has("idempotency-key") && attempt > 1;
        isRetried = REFUSED.has(response.status) || isInProgress || (LOST.has(response.status) && isRepeatable);
      } catch (error) {
        sending.signal?.throwIfAborted();
        failure = new NotConnected(`${request.method} ${new URL(request.url).pathname}: ${reasonOf(error)}`, { cause: error });
        isRetried = isRepeatable || UNSENT.has(codeOf(error));
      }
      const delayMs = isRetried ? this.delayMs(attempt, retryAfter) : undefined;
      if (delayMs === undefined) throw failure;
      await sleep(delayMs, sending.signal);
    }
  }

  /** The delay until the attempt after this one (from 1); undefined means that there is none. */
  delayMs(attempt: number, retryAfter: string | null = null): number | undefined {
    const { attempts, firstDelayMs, maxDelayMs } = this.retries;
    if (attempt >= attempts) return undefined;
    const delay = Math.min(firstDelayMs * 2 ** (attempt - 1), maxDelayMs) * (0.75 + Math.random() / 2);
    const wanted = 1000 * (Number(retryAfter) || 0);
    return wanted > maxDelayMs ? undefined : Math.max(delay, wanted);
  }

  private async once(request: Request, { holdMs = 0, isStream = false, signal }: Sending): Promise<Response> {
    const timeout = new AbortController();
    const limitMs = this.timeouts.responseMs + holdMs;
    const timer = setTimeout(() => timeout.abort(new Error(`no response within ${limitMs} ms`)), limitMs);
    try {
      const signals = signal ? [timeout.signal, signal] : [timeout.signal];
      const response = await this.fetch(request, { signal: AbortSignal.any(signals) });
      // The time limit of a stream is that of each part.
      if (isStream && response.ok) return response;
      const body = response.status === 204 || response.status === 304 ? null : await response.blob();
      return new Response(body, response);
    } finally {
      clearTimeout(timer);
    }
  }

  /** The events of a stream, which is resumed after a lost connection, until `end`. */
  async *follow(make: (lastId: string | undefined) => Request, signal?: AbortSignal): AsyncGenerator<Event, void, undefined> {
    let lastId: string | undefined;
    let lost = 0;
    for (;;) {
      const response = await this.send(() => make(lastId), { isStream: true, signal });
      // The client has received `end`.
      if (response.status === 204 || !response.body) return;
      let cause: unknown;
      try {
        for await (const event of events(parts(response.body, this.timeouts.streamMs), lastId)) {
          lost = 0;
          lastId = event.id;
          yield event;
          if (event.type === "end") return;
        }
      } catch (error) {
        signal?.throwIfAborted();
        cause = error;
      }
      const delayMs = this.delayMs(++lost);
      if (delayMs === undefined) throw new NotConnected("the stream ended before the work did", { cause });
      await sleep(delayMs, signal);
    }
  }
}

/** Parses server-sent events. An incomplete event at the end is dropped: it arrives again. */
async function* events(text: AsyncIterable<string>, lastId: string | undefined): AsyncGenerator<Event, void, undefined> {
  let rest = "";
  let type = "message";
  let data: string[] = [];
  let id = lastId;
  for await (const part of text) {
    const lines = (rest + part).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
      const at = line.indexOf(":");
      const [name, value] = at < 0 ? [line, ""] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
      if (name === "event") type = value;
      else if (name === "data") data.push(value);
      else if (name === "id") id = value;
      else if (line === "" && data.length) {
        yield { type, data: JSON.parse(data.join("\n")), ...(id === undefined ? {} : { id }) };
        [type, data] = ["message", []];
      }
    }
  }
}

/** The parts of a body as text; throws if none arrives for a time. Cancels the body when the loop is left. */
async function* parts(body: ReadableStream<Uint8Array>, idleMs: number): AsyncGenerator<string, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const idle = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new Error(`nothing arrived for ${idleMs} ms`)), idleMs);
      });
      const { done, value } = await Promise.race([reader.read(), idle]).finally(() => clearTimeout(timer));
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function codeOf(error: unknown): string {
  return String((error as { cause?: { code?: unknown } } | null)?.cause?.code ?? "");
}

function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? `${message}: ${cause.message || codeOf(error)}` : message;
}

/** Waits; rejects when the signal is aborted. */
async function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}
