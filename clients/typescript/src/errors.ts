// What the client throws. Every error is an `OrreryError`.

import type { Execution, Prediction } from "./types.js";

/** Every error of this package. */
export class OrreryError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The service rejected a request. Rely on `status`, not on the message. */
export class ApiError extends OrreryError {
  constructor(
    readonly status: number,
    readonly reason: string,
    /** What to change, if the service says so. */
    readonly hint: string | undefined,
    /** More information, such as every violation of a schema. */
    readonly details: unknown,
    /** The request in the service's log. */
    readonly requestId: string | undefined,
  ) {
    super(`${status}: ${reason}${hint ? ` (${hint})` : ""}`);
  }

  /** The error of an unsuccessful response. */
  static async of(response: Response): Promise<ApiError> {
    const text = await response.text();
    let body: { error?: unknown; details?: unknown };
    try {
      body = Object(JSON.parse(text));
    } catch {
      body = { error: text.trim().slice(0, 300) };
    }
    // Chat and embeddings answer in OpenAI's form.
    const isOpenAi = typeof body.error === "object" && body.error !== null;
    const reason = isOpenAi ? (body.error as { message?: unknown }).message : body.error;
    const details = isOpenAi ? body.error : body.details;
    const hint = response.headers.get("x-error-hint") ?? (details as { hint?: string } | null | undefined)?.hint;
    const requestId = response.headers.get("x-request-id") ?? undefined;
    return new ApiError(response.status, String(reason || response.statusText), hint, details, requestId);
  }
}

/** No response: the connection failed, or a named timeout has passed. */
export class NotConnected extends OrreryError {}

/** The work has not ended in the time given to `wait`. It continues; `last` is its state. */
export class WaitTimeout extends OrreryError {
  constructor(readonly last: Prediction | Execution) {
    super(`still ${last.status}; it continues, and can be waited for again`);
  }
}

/** The prediction that `run` waited for failed or was cancelled. */
export class PredictionFailed extends OrreryError {
  constructor(readonly prediction: Prediction) {
    super(`${prediction.error_classification ?? prediction.status}: ${prediction.error ?? "the prediction was cancelled"}`);
  }
}

/** The execution that `run` waited for failed or was cancelled. */
export class ExecutionFailed extends OrreryError {
  constructor(readonly execution: Execution) {
    super(`${execution.error ?? execution.status}: ${execution.error_cause ?? "the execution was cancelled"}`);
  }
}

/** A webhook that cannot be trusted. Answer it with 401. */
export class WebhookError extends OrreryError {}
