// The client: a thin layer over the generated types.

import createClient, { type Client } from "openapi-fetch";

import { webCrypto } from "./crypto.js";
import { ApiError, ExecutionFailed, PredictionFailed, WaitTimeout } from "./errors.js";
import type { paths } from "./schema.js";
import { type Event, type Retries, type Timeouts, Transport } from "./transport.js";
import type {
  EventAccepted,
  Execution,
  ExecutionAccepted,
  ExecutionCancelled,
  File,
  Model,
  NewPrediction,
  Prediction,
  PredictionAccepted,
  Trigger,
  Workflow,
  WorkflowDefinition,
} from "./types.js";

export interface Options {
  /** The base host. */
  url?: string;
  /** An API key. */
  key?: string | undefined;
  timeouts?: Partial<Timeouts>;
  retries?: Partial<Retries>;
  fetch?: typeof fetch;
}

export interface Waiting {
  /** Throws `WaitTimeout` if the work has not ended by then. Without it, waits for ever. */
  timeoutMs?: number;
  signal?: AbortSignal;
}

export interface Once {
  /** For 24 hours, the same key and body have the same result. By default, each call has a key of its own. */
  idempotencyKey?: string;
}

type Body = Omit<NewPrediction, "model" | "input" | "version"> & { version?: string };
type Inputs = Record<string, unknown>;

const FINAL = new Set(["success", "error", "completed", "failed", "cancelled"]);
/** What the service holds a response for, in seconds, at most. */
const PREDICTION_HOLD_S = 60;
const EXECUTION_HOLD_S = 30;
const PAGE = 100;

/** The client of one service. */
export class Orrery {
  readonly url: string;
  /** Every route with its types, such as `api.GET("/v1/limits")`. Errors are thrown, so `data` is always there. */
  readonly api: Client<paths>;
  readonly models: Models;
  readonly predictions: Predictions;
  readonly workflows: Workflows;
  readonly files: Files;
  /** @internal */
  readonly transport: Transport;
  /** @internal A link carries its own authorization, and may lead elsewhere: the key is sent to the service only. */
  readonly key: Record<string, string>;

  constructor({ url = "http://127.0.0.1:8080", key, timeouts, retries, fetch = globalThis.fetch }: Options = {}) {
    this.url = url.replace(/\/+$/, "");
    this.key = key ? { "X-API-Key": key } : {};
    this.transport = new Transport(
      { responseMs: 60_000, streamMs: 45_000, ...timeouts },
      { attempts: 5, firstDelayMs: 500, maxDelayMs: 30_000, ...retries },
      (input, init) => fetch(input, init),
    );
    this.api = createClient<paths>({
      baseUrl: this.url,
      headers: this.key,
      fetch: (request) => this.transport.send(() => request.clone()),
    });
    this.models = new Models(this);
    this.predictions = new Predictions(this);
    this.workflows = new Workflows(this);
    this.files = new Files(this);
  }

  /** @internal */
  follow(path: string, signal?: AbortSignal): AsyncGenerator<Event, void, undefined> {
    const make = (lastId: string | undefined) => {
      const resumed = given({ "Last-Event-ID": lastId });
      return new Request(this.url + path, { headers: { ...this.key, Accept: "text/event-stream", ...resumed } });
    };
    return this.transport.follow(make, signal);
  }

  /** @internal Long polls until the status is final; `name` is the parameter that holds the response. */
  async wait<State extends Prediction | Execution>(path: string, name: string, longestS: number, waiting: Waiting): Promise<State> {
    const deadline = Date.now() + (waiting.timeoutMs ?? Infinity);
    for (;;) {
      const leftS = Math.max(deadline - Date.now(), 0) / 1000;
      const holdS = Math.min(longestS, Math.ceil(leftS));
      const make = () => new Request(`${this.url}${path}?${name}=${holdS}`, { headers: this.key });
      const response = await this.transport.send(make, { holdMs: 1000 * holdS, signal: waiting.signal });
      const state = (await response.json()) as State;
      if (FINAL.has(state.status)) return state;
      if (Date.now() >= deadline) throw new WaitTimeout(state);
    }
  }
}

/** The catalog. */
class Models {
  constructor(private readonly client: Orrery) {}

  /** A page of the models, by slug; `name` is a part of the slug or the title. */
  async list(query: { name?: string; limit?: number; offset?: number } = {}): Promise<Model[]> {
    const { data } = await this.client.api.GET("/v1/models", { params: { query: { ...query, format: "catalog" } } });
    return data as Model[];
  }

  /** A model with the schema of its input. */
  async get(slug: string): Promise<Model> {
    const path = { slug };
    const { data } = await this.client.api.GET("/v1/models/{slug}", { params: { path, query: { format: "catalog" } } });
    return data as Model;
  }
}

/** Runs of one model. */
class Predictions {
  constructor(private readonly client: Orrery) {}

  /** Creates a prediction, once, even if the request is repeated. Its id is `predictionID`. */
  async create(model: string, input: Inputs, { idempotencyKey, ...more }: Body & Once = {}): Promise<PredictionAccepted> {
    const { data } = await this.client.api.POST("/v1/prediction", {
      params: { header: await onceOnly(idempotencyKey) },
      body: { version: "0.0.1", ...more, model, input },
    });
    return data!;
  }

  /** Creates a prediction, waits for it, and returns it. Throws `PredictionFailed` unless it succeeds. */
  async run(model: string, input: Inputs, { timeoutMs, signal, ...more }: Body & Once & Waiting = {}): Promise<Prediction> {
    const { predictionID } = await this.create(model, input, more);
    const prediction = await this.wait(predictionID, given({ timeoutMs, signal }));
    if (prediction.status !== "success") throw new PredictionFailed(prediction);
    return prediction;
  }

  /** The prediction as it is now. */
  async get(id: string): Promise<Prediction> {
    const { data } = await this.client.api.GET("/v1/prediction/{id}", { params: { path: { id } } });
    return data!;
  }

  /** Waits until the prediction ends, however it ends. */
  wait(id: string, waiting: Waiting = {}): Promise<Prediction> {
    return this.client.wait(`/v1/prediction/${encodeURIComponent(id)}`, "wait", PREDICTION_HOLD_S, waiting);
  }

  /** The prediction's events: `status`, `log`, `output`, `reset`, and finally `end` with the prediction. */
  stream(id: string, signal?: AbortSignal): AsyncGenerator<Event, void, undefined> {
    return this.client.follow(`/v1/prediction/${encodeURIComponent(id)}/events`, signal);
  }

  /** Cancels the prediction, also repeatedly. Throws `ApiError` with status 409 if it has ended otherwise. */
  async cancel(id: string): Promise<PredictionAccepted> {
    const { data } = await this.client.api.POST("/v1/prediction/{id}/cancel", { params: { path: { id } } });
    return data!;
  }
}

/** Workflows and their executions. A workflow is named by its slug or its id. */
class Workflows {
  constructor(private readonly client: Orrery) {}

  /** A workflow with its versions. */
  async get(workflow: string): Promise<Workflow> {
    const { data } = await this.client.api.GET("/v1/workflows/{workflow}", { params: { path: { workflow } } });
    return data!;
  }

  /**
   * Makes the definition the latest version of the workflow with this name or slug. Creates a missing workflow, adds
   * a version (`v` and the next number) if the definition differs from the latest, and changes nothing otherwise.
   */
  async push(name: string, definition: WorkflowDefinition, { description }: { description?: string } = {}): Promise<Workflow> {
    const { api } = this.client;
    const id = await this.find(name);
    if (id === undefined) {
      const params = { header: await onceOnly() };
      const { data } = await api.POST("/v1/workflows", { params, body: given({ name, definition, description }) });
      return data!;
    }
    for (;;) {
      const workflow = await this.get(id);
      const params = { path: { workflow: id, version: workflow.latest_version_id } };
      const { data, response } = await api.GET("/v1/workflows/{workflow}/versions/{version}", { params });
      if (isEqual(data!.definition, definition)) return workflow;
      const version = newVersion(workflow.versions.map((one) => one.version_id));
      const header = { "If-Match": response.headers.get("etag") ?? "" };
      try {
        const put = { params: { path: { workflow: id, version }, header }, body: { definition } };
        await api.PUT("/v1/workflows/{workflow}/versions/{version}", put);
      } catch (error) {
        // Somebody else, or an attempt whose response was lost, has changed the workflow: read it again.
        if (!(error instanceof ApiError && error.status === 412)) throw error;
      }
    }
  }

  /** The id of the workflow with this slug, or else with this name. */
  private async find(name: string): Promise<string | undefined> {
    let byName: string | undefined;
    for (let offset = 0, total = 1; offset < total; offset += PAGE) {
      const params = { query: { keyword: name, limit: PAGE, offset } };
      const { data } = await this.client.api.GET("/v1/workflows", { params });
      total = data!.total_count;
      const bySlug = data!.workflows.find((one) => one.slug === name);
      if (bySlug) return bySlug.workflow_id;
      byName ??= data!.workflows.find((one) => one.name === name)?.workflow_id;
    }
    return byName;
  }

  /** Starts an execution, once, even if the request is repeated. Its id is `execution_id`. */
  async trigger(workflow: string, inputs: Inputs = {}, more: Omit<Trigger, "inputs"> & Once = {}): Promise<ExecutionAccepted> {
    const { idempotencyKey, ...body } = more;
    const params = { path: { workflow }, header: await onceOnly(idempotencyKey) };
    const { data } = await this.client.api.POST("/v1/workflows/{workflow}/trigger", { params, body: { ...body, inputs } });
    return data!;
  }

  /** Triggers the workflow, waits, and returns the execution. Throws `ExecutionFailed` unless it completes. */
  async run(workflow: string, inputs: Inputs = {}, more: Omit<Trigger, "inputs"> & Once & Waiting = {}): Promise<Execution> {
    const { timeoutMs, signal, ...trigger } = more;
    const { execution_id } = await this.trigger(workflow, inputs, trigger);
    const execution = await this.wait(execution_id, given({ timeoutMs, signal }));
    if (execution.status !== "completed") throw new ExecutionFailed(execution);
    return execution;
  }

  /** The execution as it is now. */
  async execution(id: string): Promise<Execution> {
    const params = { path: { execution: id }, query: { timeout: 0 } };
    const { data } = await this.client.api.GET("/v1/workflows/executions/{execution}", { params });
    return data!;
  }

  /** Waits until the execution ends, however it ends. */
  wait(id: string, waiting: Waiting = {}): Promise<Execution> {
    return this.client.wait(`/v1/workflows/executions/${encodeURIComponent(id)}`, "timeout", EXECUTION_HOLD_S, waiting);
  }

  /** The execution's events: `status`, `step`, `wait`, `pause`, `resume`, `reset`, and finally `end` with it. */
  follow(id: string, signal?: AbortSignal): AsyncGenerator<Event, void, undefined> {
    return this.client.follow(`/v1/workflows/executions/${encodeURIComponent(id)}/events`, signal);
  }

  /** Sends the event that a step waits for, such as an approval. Only one is accepted: never repeated by itself. */
  async sendEvent(id: string, name: string, payload: unknown): Promise<EventAccepted> {
    const params = { path: { execution: id, name } };
    const { data } = await this.client.api.POST("/v1/workflows/executions/{execution}/events/{name}", { params, body: { payload } });
    return data as EventAccepted;
  }

  /** Cancels the execution. Throws `ApiError` with status 409 if it has ended. */
  async cancel(id: string): Promise<ExecutionCancelled> {
    const params = { path: { execution: id } };
    const { data } = await this.client.api.POST("/v1/workflows/executions/{execution}/cancel", { params });
    return data!;
  }

  /** Starts a new execution from a failed or cancelled one, which reuses the outputs of its completed steps. */
  async redrive(id: string, { idempotencyKey }: Once = {}): Promise<ExecutionAccepted> {
    const params = { path: { execution: id }, header: await onceOnly(idempotencyKey) };
    const { data } = await this.client.api.POST("/v1/workflows/executions/{execution}/redrive", { params, body: {} });
    return data!;
  }
}

/** Inputs and outputs that are files. */
class Files {
  constructor(private readonly client: Orrery) {}

  /** Uploads a file, in Node for example `await fs.openAsBlob(path)`. Its `url` can be the input of a model. */
  async upload(
    content: Blob | Uint8Array<ArrayBuffer>,
    options: { filename?: string; contentType?: string; expiresInSeconds?: number } = {},
  ): Promise<File> {
    const { contentType, expiresInSeconds } = options;
    const blob = content instanceof Blob && !contentType ? content : new Blob([content], given({ type: contentType }));
    const form = new FormData();
    form.set("file", blob, options.filename ?? (content as { name?: string }).name ?? "file");
    if (expiresInSeconds !== undefined) form.set("expires_in_seconds", String(expiresInSeconds));
    const make = () => new Request(`${this.client.url}/v1/files`, { method: "POST", headers: this.client.key, body: form });
    return (await (await this.client.transport.send(make)).json()) as File;
  }

  /** The file's record. */
  async get(id: string): Promise<File> {
    const { data } = await this.client.api.GET("/v1/files/{id}", { params: { path: { id } } });
    return data!;
  }

  /** The bytes of a file, by its id or by a URL such as the output of a prediction. */
  async download(file: string, signal?: AbortSignal): Promise<Blob> {
    const isLink = file.includes("://");
    const url = isLink ? file : `${this.client.url}/v1/files/${encodeURIComponent(file)}/content`;
    const make = () => new Request(url, { headers: isLink ? {} : this.client.key });
    return (await this.client.transport.send(make, { isStream: true, signal })).blob();
  }

  /** Deletes the file, also repeatedly. Its URL stops working at once. */
  async delete(id: string): Promise<void> {
    await this.client.api.DELETE("/v1/files/{id}", { params: { path: { id } } });
  }
}

async function onceOnly(key?: string): Promise<{ "Idempotency-Key": string }> {
  // Pages without TLS have no `randomUUID`.
  const random = (await webCrypto()).getRandomValues(new Uint32Array(4));
  return { "Idempotency-Key": key ?? [...random].map((one) => one.toString(36)).join("-") };
}

/** The fields that are not undefined. */
function given<Fields extends object>(fields: Fields): { [Name in keyof Fields]: Exclude<Fields[Name], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}

/** `v` and the number after the highest. */
function newVersion(existing: string[]): string {
  const numbers = existing.map((name) => Number(/^v(\d+)$/.exec(name)?.[1] ?? 0));
  return `v${Math.max(0, ...numbers) + 1}`;
}

/** Whether two JSON values are equal; the order of fields does not count. */
function isEqual(a: unknown, b: unknown): boolean {
  if (typeof a !== "object" || typeof b !== "object" || !a || !b) return a === b;
  const [left, right] = [Object.entries(a), Object.entries(b).filter(([, value]) => value !== undefined)];
  const isSame = left.length === right.length && Array.isArray(a) === Array.isArray(b);
  return isSame && left.every(([name, value]) => isEqual(value, (b as Inputs)[name]));
}
