// Client of Orrery. `orrery-client/worker` turns functions into models, in Node.

export { Orrery, type Once, type Options, type Waiting } from "./client.js";
export { ApiError, ExecutionFailed, NotConnected, OrreryError, PredictionFailed, WaitTimeout, WebhookError } from "./errors.js";
export type { Event, Retries, Timeouts } from "./transport.js";
export type * from "./types.js";
export { verifyWebhook } from "./webhooks.js";
