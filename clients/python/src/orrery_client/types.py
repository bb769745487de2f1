"""Types of the API. `clients/generate` makes them from `clients/openapi.json`."""

from __future__ import annotations

from typing import Any, Literal, Optional, Union

from typing_extensions import NotRequired, TypeAlias, TypedDict


class IndexLinks(TypedDict):
    """
    The URLs of a host's general routes.
    """

    health: str
    """
    The URL of `GET /health`.
    """
    ready: str
    """
    The URL of `GET /ready`.
    """
    openapi: str
    """
    The URL of `GET /openapi.json`.
    """


class Health(TypedDict):
    """
    The process is running.
    """

    status: Literal["healthy"]
    """
    Always `healthy`.
    """
    version: str
    """
    The version of the program.
    """


class Ready(TypedDict):
    """
    The service accepts work.
    """

    status: Literal["ready"]
    """
    Always `ready`.
    """
    version: str
    """
    The version of the program.
    """
    paused: NotRequired[Optional[bool]]
    """
    Set while the work of a restored backup waits for `orrery resume`.
    """
    warnings: NotRequired[list[str]]
    """
    Conditions that need the operator's attention, such as a nearly full disk.
    """


OutputType: TypeAlias = Literal["string", "array", "object", "number", "boolean", "image", "audio", "video", "file"]
"""
The type of a model's output. For `image`, `audio`, `video` and `file`, the output is the URL of a file, or an array of URLs.
"""


CostType: TypeAlias = Literal["fixed", "usage_based"]
"""
How the cost is determined.
"""


RouterModelSource: TypeAlias = Literal["local", "upstream"]
"""
Where a model runs.
"""


RouterModelKind: TypeAlias = Literal["chat", "embeddings", "completions", "rerank", "transcriptions", "speech", "images"]
"""
The kind of a model.
"""


class RouterModelPricing(TypedDict):
    """
    A price in US dollars, including this service's platform fee.
    """

    per_answer: Optional[float]
    """
    The price per answer.
    """
    per_second: Optional[float]
    """
    The price per second of run time.
    """
    per_million_input_tokens: Optional[float]
    """
    The price per million tokens of the prompt.
    """
    per_million_output_tokens: Optional[float]
    """
    The price per million tokens of the answer.
    """
    per_million_cached_input_tokens: NotRequired[Optional[float]]
    """
    The price per million prompt tokens that the model read from its cache. Absent if cached
    tokens cost the same as other input tokens.
    """
    per_million_reasoning_tokens: NotRequired[Optional[float]]
    """
    The price per million reasoning tokens. Absent if reasoning tokens cost the same as other
    output tokens.
    """
    per_audio_minute: NotRequired[Optional[float]]
    """
    The price per minute of audio that is transcribed or translated.
    """
    per_million_characters: NotRequired[Optional[float]]
    """
    The price per million characters of text that are read aloud.
    """
    per_image: NotRequired[Optional[float]]
    """
    The price per image.
    """


class MessageModel(TypedDict):
    """
    A model that Anthropic's clients can call.
    """

    type: Literal["model"]
    """
    Always `model`.
    """
    id: str
    """
    The value to use for `model` in requests.
    """
    display_name: str
    """
    The same as the ID.
    """
    created_at: str
    """
    When the model was created. The start of 1970 if unknown.
    """


class ModelLoadState(TypedDict):
    """
    The state of a server that this service starts for a model.
    """

    state: Literal["unloaded", "loading", "ready", "draining", "failed"]
    """
    `unloaded`, `loading`, `ready`, `draining` (it stops once its requests have ended) or
    `failed`.
    """
    since: str
    """
    Since when the server has been in this state.
    """
    reason: Optional[str]
    """
    Why the server did not start, or how it last exited.
    """
    memory: Optional[int]
    """
    The memory that the server takes of its group, in bytes. Null without a group.
    """
    in_flight: int
    """
    The number of requests in flight.
    """


class PredictionAccepted(TypedDict):
    """
    A prediction that was created, is still running, or was cancelled.
    """

    status: Literal["success", "cancelled"]
    """
    `success` if the prediction was created, `cancelled` if it was cancelled.
    """
    message: str
    """
    A message for people.
    """
    predictionID: str
    """
    The ID of the prediction.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class PredictionEnded(TypedDict):
    """
    A prediction that has ended.
    """

    status: Literal["success", "failed", "cancelled"]
    """
    How the prediction ended.
    """
    message: str
    """
    A message for people.
    """
    predictionID: str
    """
    The ID of the prediction.
    """
    output: Any
    """
    The output. Null if there is none.
    """
    output_error: NotRequired[Optional[str]]
    """
    Why the output is missing or damaged on disk.
    """
    error: str
    """
    Why the prediction failed. Empty otherwise.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


PredictionStatus: TypeAlias = Literal["created", "processing", "success", "error", "cancelled"]
"""
The status of a prediction.
"""


ErrorClassification: TypeAlias = Literal["content_moderation", "execution_timeout", "invalid_user_input", "invalid_model_config", "provider_auth", "provider_error", "provider_rate_limit", "provider_unavailable", "internal_error", "unknown"]
"""
The class of an error: who or what caused it.
"""


class PredictionMetrics(TypedDict):
    """
    Durations in seconds and cost in US dollars.
    """

    predict_time: Optional[float]
    """
    Seconds from the first attempt to the end.
    """
    queue_time: Optional[float]
    """
    Seconds from the creation to the first attempt.
    """
    cost: float
    """
    The cost so far, in US dollars.
    """
    cached: NotRequired[Optional[bool]]
    """
    True if the output comes from the result cache of the model. Absent otherwise.
    """


class PredictionUrls(TypedDict):
    """
    The URLs to read and to cancel a prediction.
    """

    get: str
    """
    The URL of this prediction.
    """
    cancel: str
    """
    The URL to cancel this prediction with a POST.
    """


AttemptStatus: TypeAlias = Literal["processing", "success", "error", "cancelled"]
"""
The status of an attempt.
"""


StepStatus: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled", "skipped"]
"""
The status of a step. The last four are final.
"""


class WorkerJob(TypedDict):
    """
    A job that is leased to the worker.
    """

    job_id: str
    """
    The ID of the job, for the reports about it.
    """
    attempt: int
    """
    The attempt number of this lease: 1 for the job's first lease, and one more for each later
    lease. Each report contains this number.
    """
    input: Any
    """
    The input, which is valid under the request schema of the model.
    """
    lease_seconds: int
    """
    The lease time: the job goes to another worker if this worker sends no report for this many
    seconds.
    """


WorkflowStatus: TypeAlias = Literal["active", "archived", "deleted"]
"""
The status of a workflow. An archived workflow cannot be triggered.
"""


class WorkflowVersion(TypedDict):
    """
    A version of a workflow.
    """

    version_id: str
    """
    The ID of the version, unique within the workflow.
    """
    slug: str
    """
    The workflow's slug.
    """
    locked: bool
    """
    Whether the version is locked. A locked version can run, but not be changed.
    """
    production: bool
    """
    A flag for clients. The service does not use it.
    """
    allowed_to_share: bool
    """
    Whether other organizations may run this version. Shared versions are unlisted, but not
    private.
    """
    trigger_count: int
    """
    How often the version was triggered.
    """
    status: WorkflowStatus
    """
    The status of the version.
    """
    created_at: NotRequired[Optional[str]]
    """
    Absent in the response to a creation request.
    """
    updated_at: NotRequired[Optional[str]]
    """
    Absent in the response to a creation request.
    """
    definition: NotRequired[Any]
    """
    The definition, with credentials masked. Only present when a single version is read.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class WorkflowVersionList(TypedDict):
    """
    The versions of a workflow, oldest first.
    """

    versions: list[WorkflowVersion]
    """
    The versions, oldest first.
    """
    total_count: int
    """
    The number of versions.
    """


SummaryStatus: TypeAlias = Literal["running", "completed", "failed", "cancelled"]
"""
The status of an execution in a list. Waiting executions count as running.
"""


WaitsFor: TypeAlias = Literal["event", "paused"]
"""
What an execution needs to continue: an event (`event`) or a resume request (`paused`).
"""


ScheduleOverlap: TypeAlias = Literal["skip", "queue", "cancel_other", "allow"]
"""
What to do if a schedule fires while its previous run is unfinished: skip the new run, queue it until the previous one ends, cancel the previous one, or run both.
"""


class ScheduleRun(TypedDict):
    """
    The outcome of the last firing.
    """

    scheduled_for: str
    """
    The scheduled time, without jitter.
    """
    at: str
    """
    When the firing was processed.
    """
    execution_id: Optional[str]
    """
    The execution that the firing started. Null if the firing started no execution.
    """
    status: Literal["created", "processing", "success", "error", "cancelled", "queued", "running", "completed", "failed", "deleted", "skipped", "missed", "refused"]
    """
    The status of the execution, or `deleted` if the execution is no longer stored. A firing
    that started no execution is `skipped` because of the overlap rule, `missed` because it was
    too late, or `refused` because it could not start.
    """
    error: NotRequired[Optional[str]]
    """
    Why the firing was refused.
    """


ExecutionStatus: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled"]
"""
The status of a workflow execution.
"""


class BulkRefused(TypedDict):
    """
    An invalid input, for which no execution was created.
    """

    status: ExecutionStatus
    """
    Always `failed`.
    """
    message: str
    """
    Why the input is invalid.
    """


class BulkJobAccepted(TypedDict):
    """
    An accepted bulk job.
    """

    job_id: str
    """
    The ID of the job.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


BulkJobAction: TypeAlias = Literal["cancel", "redrive", "pause", "resume", "delete"]
"""
What a bulk job does with each execution.
"""


BulkJobStatus: TypeAlias = Literal["running", "completed", "cancelled"]
"""
The status of a bulk job.
"""


ExecutionSource: TypeAlias = Literal["api", "dashboard", "agent", "schedule", "workflow"]
"""
What started an execution: an API key, a member in the dashboard, the agent, a schedule, or a step of a workflow.
"""


class StepAttempt(TypedDict):
    """
    An attempt of a step.
    """

    number: int
    """
    The number of the attempt, starting at 1.
    """
    model: NotRequired[str]
    """
    The model that ran. Absent for an HTTP request.
    """
    status: AttemptStatus
    """
    The status of the attempt.
    """
    error: Optional[str]
    """
    Why the attempt failed.
    """
    error_classification: Optional[ErrorClassification]
    """
    The class of the error.
    """
    started_at: str
    """
    When the attempt started.
    """
    completed_at: Optional[str]
    """
    When the attempt ended. Null until then.
    """


EventSource: TypeAlias = Literal["api", "link", "default"]
"""
Who sent an event: a client with an API key, a person with the step's link, or nobody, so that the default applied.
"""


class ExecutionMetrics(TypedDict):
    """
    Cost in US dollars and durations in seconds.
    """

    cost: float
    """
    The cost so far, in US dollars.
    """
    queue_time: Optional[float]
    """
    Seconds from the creation to the start. Null until the start.
    """
    run_time: Optional[float]
    """
    Seconds from the start to the end. Null until the end.
    """


class ExecutionCancelled(TypedDict):
    """
    A cancelled execution.
    """

    execution_id: str
    """
    The ID of the execution.
    """
    status: ExecutionStatus
    """
    Always `cancelled`.
    """


class EventAccepted(TypedDict):
    """
    An accepted event.
    """

    execution_id: str
    """
    The execution that received the event.
    """
    event: str
    """
    The name of the event.
    """
    accepted: bool
    """
    Always true.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class ExecutionPause(TypedDict):
    """
    A paused or resumed execution.
    """

    execution_id: str
    """
    The ID of the execution.
    """
    status: ExecutionStatus
    """
    The status of the execution, which a pause does not change.
    """
    paused: bool
    """
    Whether the execution is paused.
    """


class Category(TypedDict):
    """
    A category for workflows.
    """

    slug: str
    """
    The slug of the category, to use in `categories`.
    """
    label: str
    """
    The name of the category.
    """
    description: str
    """
    What belongs to the category.
    """
    is_default: bool
    """
    Always true: every organization has the same categories.
    """
    created_at: str
    """
    When the category was created.
    """
    updated_at: str
    """
    When the category was last changed.
    """


HistoryRowType: TypeAlias = Literal["prediction", "workflow", "chat", "decision", "agent"]
"""
The type of a row.
"""


HistoryRowStatus: TypeAlias = Union[PredictionStatus, ExecutionStatus]
"""
The status of a row. The values depend on its type.
"""


HistoryChatOperation: TypeAlias = Literal["chat", "embeddings", "completions", "rerank", "transcriptions", "translations", "speech", "images", "image_edits"]
"""
The type of the call.
"""


class HistoryDecision(TypedDict):
    """
    A decisions request.
    """

    method: Literal["logprobs", "votes"]
    """
    `logprobs`, or `votes` if at least one question was answered by sampling.
    """
    upstream: bool
    """
    Whether the upstream handled the request, rather than a local model.
    """
    questions: int
    """
    The number of questions.
    """
    calls: int
    """
    The number of answers that the model gave.
    """
    input_tokens: int
    """
    Tokens that the model read.
    """
    output_tokens: int
    """
    Tokens that the model wrote.
    """
    tokens_estimated: bool
    """
    Whether the token counts are estimated because the model did not report them.
    """
    priced: bool
    """
    Whether the model has a price. Otherwise, the request is free.
    """


class HistoryExchange(TypedDict):
    """
    An exchange of the agent.
    """

    session_id: str
    """
    The session that the exchange belongs to.
    """
    input_tokens: int
    """
    Prompt tokens of the agent's model.
    """
    output_tokens: int
    """
    Tokens that the agent's model wrote.
    """
    tokens_estimated: bool
    """
    Whether the token counts are estimated because the model did not report them.
    """


class ModelAnswerUsage(TypedDict):
    """
    Tokens used by an answer, and their cost.
    """

    prompt_tokens: Optional[int]
    """
    Tokens of the prompt.
    """
    total_tokens: Optional[int]
    """
    Tokens of the prompt and the answer.
    """
    cost: float
    """
    The cost in US dollars. 0 if the model has no price.
    """


class ChatChunkUsage(TypedDict):
    """
    Tokens used by a streamed answer. Models may add other fields.
    """

    prompt_tokens: NotRequired[Optional[int]]
    """
    Tokens of the prompt.
    """
    total_tokens: NotRequired[Optional[int]]
    """
    Tokens of the prompt and the answer.
    """
    cost: NotRequired[Optional[float]]
    """
    The cost in US dollars. Only in the usage event.
    """


class OpenAiErrorBody(TypedDict):
    """
    The details of an error.
    """

    message: str
    """
    A message for people.
    """
    type: str
    """
    The kind of error, which depends on the status.
    """
    param: Optional[str]
    """
    The request field that is invalid.
    """
    code: Optional[str]
    """
    A specific error code for programs.
    """


StreamEnd: TypeAlias = Literal["[DONE]"]
"""
The text that ends a stream.
"""


class TextCompletionChunkChoice(TypedDict):
    """
    The next part of a choice. Models may add other fields.
    """

    index: NotRequired[Optional[int]]
    """
    The number of the choice, starting at 0.
    """
    text: NotRequired[Optional[str]]
    """
    The new part of the text.
    """
    finish_reason: NotRequired[Optional[str]]
    """
    Why the choice has ended, such as `stop` or `length`. Null until then.
    """


class RerankDocumentObject(TypedDict):
    """
    An object with the text of a document.
    """

    text: str
    """
    The text of the document.
    """


class MediaUsage(TypedDict):
    """
    What a call for audio or images used. Models add other fields, such as `seconds` or
    `input_tokens`.
    """

    cost: float
    """
    The cost in US dollars.
    """


class MediaPart(TypedDict):
    """
    A part of a streamed transcript or image, in the form of the model.
    """

    type: NotRequired[Optional[str]]
    """
    The type of the event, such as `transcript.text.delta`.
    """


class AnswerImage(TypedDict):
    """
    An image. Models may add other fields.
    """

    url: NotRequired[Optional[str]]
    """
    The URL of the file, which can be read without a key.
    """
    b64_json: NotRequired[Optional[str]]
    """
    The bytes in base64.
    """


ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
"""
The status of a response.
"""


class ResponseError(TypedDict):
    """
    Why a response failed.
    """

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    """
    A code for programs.
    """
    message: str
    """
    A message for people.
    """


class ResponseIncompleteDetails(TypedDict):
    """
    Why a response is incomplete.
    """

    reason: Literal["max_output_tokens", "content_filter"]
    """
    The reason.
    """


ResponseItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
"""
Whether an item is complete.
"""


ResponseRole: TypeAlias = Literal["user", "system", "developer", "assistant"]
"""
The author of a message.
"""


ResponseImageDetail: TypeAlias = Literal["low", "high", "auto", "original"]
"""
The resolution in which the model sees an image.
"""


class ResponseInputDetails(TypedDict):
    """
    Details of the prompt's tokens.
    """

    cached_tokens: int
    """
    Tokens that were read from a cache.
    """
    cache_write_tokens: int
    """
    Always 0.
    """


class ResponseOutputDetails(TypedDict):
    """
    Details of the answer's tokens.
    """

    reasoning_tokens: int
    """
    Tokens of reasoning.
    """


ResponseEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
"""
The effort of reasoning.
"""


ResponseVerbosity: TypeAlias = Literal["low", "medium", "high"]
"""
How detailed a text is.
"""


ResponseToolMode: TypeAlias = Literal["none", "auto", "required"]
"""
How many tools the model calls.
"""


class ResponseNamedFunction(TypedDict):
    """
    A function that the model must call.
    """

    type: Literal["function"]
    """
    Always `function`.
    """
    name: str
    """
    The name of the function.
    """


class ResponseAllowedTools(TypedDict):
    """
    The tools that the model may call: the others are not passed on.
    """

    type: Literal["allowed_tools"]
    """
    Always `allowed_tools`.
    """
    mode: ResponseToolMode
    """
    Whether the model must call one of them.
    """
    tools: list[ResponseNamedFunction]
    """
    The functions.
    """


ResponseTruncation: TypeAlias = Literal["auto", "disabled"]
"""
What happens to a conversation that does not fit the model's context.
"""


class DeletedResponse(TypedDict):
    """
    A response that was deleted.
    """

    id: str
    """
    The ID of the response.
    """
    object: Literal["response"]
    """
    Always `response`.
    """
    deleted: Literal[True]
    """
    Always true.
    """


MessageStopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
"""
Why an answer ended.
"""


class MessageUsage(TypedDict):
    """
    The tokens of a call, and their cost.
    """

    input_tokens: int
    """
    Tokens of the prompt that were not read from a cache.
    """
    output_tokens: int
    """
    Tokens of the answer.
    """
    cache_creation_input_tokens: int
    """
    Always 0.
    """
    cache_read_input_tokens: int
    """
    Tokens of the prompt that were read from a cache.
    """
    cost: NotRequired[Optional[float]]
    """
    The cost in US dollars. Absent at the start of a stream.
    """


class MessageEnd(TypedDict):
    """
    Why an answer ended.
    """

    stop_reason: MessageStopReason
    """
    Why the answer ended.
    """
    stop_sequence: Optional[str]
    """
    The stop sequence at which the answer ended, if the model's server reports it.
    """


class AnthropicErrorBody(TypedDict):
    """
    The details of an error.
    """

    type: str
    """
    The kind of error, which depends on the status.
    """
    message: str
    """
    A message for people.
    """


class MessageTokens(TypedDict):
    """
    The number of tokens in a prompt.
    """

    input_tokens: int
    """
    The number of tokens in the prompt.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class RouterUpstream(TypedDict):
    """
    How current the upstream's model list is.
    """

    stale: bool
    """
    Whether the last attempt to fetch the list failed.
    """
    fetched_at: Optional[str]
    """
    When the list was last fetched. Null if the list was never fetched.
    """
    error: Optional[str]
    """
    Why the last attempt to fetch the list failed.
    """


class DecisionsUsage(TypedDict):
    """
    Tokens used by the answers, and their cost.
    """

    input_tokens: int
    """
    Tokens that the model read.
    """
    output_tokens: int
    """
    Tokens that the model wrote.
    """
    cost: float
    """
    The cost in US dollars. 0 if the model has no price.
    """


WebhookEvent: TypeAlias = Literal["prediction.started", "prediction.completed", "prediction.failed", "workflow.started", "workflow.completed", "workflow.failed", "endpoint.test"]
"""
An event that webhook endpoints are notified of. `started` means accepted.
"""


DeliveryStatus: TypeAlias = Literal["pending", "delivering", "delivered", "failed"]
"""
The status of a delivery: waiting for its first or next attempt, in flight, or ended.
"""


DeliveryAttemptStatus: TypeAlias = Literal["SUCCESS", "FAILED", "PENDING"]
"""
The outcome of a delivery attempt.
"""


class Redelivered(TypedDict):
    """
    An accepted redelivery.
    """

    delivery_id: str
    """
    The ID of the delivery, which does not change.
    """
    status: DeliveryStatus
    """
    The status of the delivery.
    """


class Replayed(TypedDict):
    """
    An accepted replay.
    """

    count: int
    """
    The number of deliveries that are sent again.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class TestDelivery(TypedDict):
    """
    The receiver's response to a sample delivery.
    """

    url: str
    """
    The URL that the sample was sent to.
    """
    status: DeliveryAttemptStatus
    """
    Whether the receiver accepted the sample.
    """
    status_code: Optional[int]
    """
    The HTTP status that the receiver returned.
    """
    response: Optional[str]
    """
    The first 4 KiB of the receiver's response.
    """
    error_message: Optional[str]
    """
    Why the delivery failed.
    """
    duration_ms: Optional[int]
    """
    How long the attempt took, in milliseconds.
    """
    request: str
    """
    The payload as it was sent.
    """
    headers: dict[str, Any]
    """
    The headers by name. Secrets are masked.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


WebhookSignature: TypeAlias = Literal["v1", "v1a"]
"""
`v1` signs with HMAC-SHA256 and a shared secret, `v1a` with Ed25519 and a key pair.
"""


WebhookDisabledReason: TypeAlias = Literal["request", "failures"]
"""
Why an endpoint is disabled: on request, or because its deliveries kept failing.
"""


class WebhookEndpoint(TypedDict):
    """
    A webhook endpoint, without its secret.
    """

    id: str
    """
    The ID of the endpoint.
    """
    name: Optional[str]
    """
    The name of the endpoint. Null if the endpoint has no name.
    """
    url: str
    """
    The URL that receives the events.
    """
    events: list[WebhookEvent]
    """
    The events that the endpoint receives. An empty list means all events.
    """
    models: list[str]
    """
    The models whose predictions the endpoint receives events for. An empty list means all
    models.
    """
    workflow_ids: list[str]
    """
    The workflows whose executions the endpoint receives events for. An empty list means all
    workflows.
    """
    signature: WebhookSignature
    """
    The signature scheme.
    """
    public_key: NotRequired[Optional[str]]
    """
    The public key that verifies `v1a` signatures.
    """
    send_plain_secret: bool
    """
    Whether deliveries also carry the secret itself, in `X-Webhook-Secret`.
    """
    disabled: bool
    """
    Whether the endpoint is disabled: it receives no events.
    """
    disabled_at: Optional[str]
    """
    When the endpoint was disabled. Null if the endpoint is enabled.
    """
    disabled_reason: Optional[WebhookDisabledReason]
    """
    Why the endpoint was disabled. Null if the endpoint is enabled.
    """
    failing_since: Optional[str]
    """
    When the first attempt failed since the last success. Null if the latest attempt succeeded.
    """
    previous_secret_until: Optional[str]
    """
    The time until which the previous secret also signs deliveries.
    """
    created_at: str
    """
    When the endpoint was created.
    """
    updated_at: str
    """
    When the endpoint was last changed.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


UploadHeaders = TypedDict(
    "UploadHeaders",
    {
        "Content-Type": str
    },
)


FileSource: TypeAlias = Literal["upload", "output"]
"""
Whether a file was uploaded, or is the output of a model.
"""


FileStatus: TypeAlias = Literal["ready", "pending", "processed"]
"""
Whether the content has been uploaded. A file with a purpose is `processed` instead of `ready`,
as in OpenAI's API.
"""


class FileUrl(TypedDict):
    """
    The URL of an uploaded file.
    """

    url: str
    """
    A URL for the content, which works without an API key until the file is deleted.
    """


BatchEndpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/completions"]
"""
The route that answers the lines of a batch.
"""


class BatchError(TypedDict):
    """
    An error in the input file.
    """

    code: str
    """
    A stable name of the error.
    """
    message: str
    """
    What is wrong.
    """
    line: Optional[int]
    """
    The number of the line, from 1. Null if the error concerns the whole file.
    """
    param: Optional[str]
    """
    The invalid field of the line. Null if the error concerns the whole line.
    """


BatchWindow: TypeAlias = Literal["24h"]
"""
The time in which the lines of a batch are answered.
"""


BatchStatus: TypeAlias = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
"""
The status of a batch.
"""


class BatchCounts(TypedDict):
    """
    Numbers of lines.
    """

    total: int
    """
    The number of all lines. 0 until they have been counted.
    """
    completed: int
    """
    The lines with an answer.
    """
    failed: int
    """
    The lines with an error.
    """


ClientMetadata: TypeAlias = dict[str, str]
"""
Key-value pairs of the client.
"""


class FileUsage(TypedDict):
    """
    The number and total size of an organization's files.
    """

    count: int
    """
    The number of files.
    """
    bytes: int
    """
    The total size of the files, in bytes.
    """


class Secret(TypedDict):
    """
    A named secret, without its value.
    """

    name: str
    """
    The name of the secret.
    """
    created_at: str
    """
    When the secret was created.
    """
    updated_at: str
    """
    When the value was last set.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


KeyScope: TypeAlias = Literal["predict", "chat", "workflow.run", "workflow.write", "files", "read", "secrets", "worker"]
"""
A group of operations that an API key may be restricted to.
"""


class Limit(TypedDict):
    """
    A limit and its usage.
    """

    limit: Optional[int]
    """
    The limit. Null if there is none.
    """
    used: Optional[int]
    """
    The current usage. Null if the usage is not counted.
    """


class Budget(TypedDict):
    """
    A budget and the amount spent.
    """

    limit: Optional[float]
    """
    The budget in US dollars. Null if no budget is set.
    """
    used: float
    """
    The charges of the current period in US dollars.
    """


class UsageGroup(TypedDict):
    """
    The usage of one group. A field such as `day` or `model` is present only if the report is
    grouped by it.
    """

    day: NotRequired[Optional[str]]
    """
    The day in UTC, such as `2026-11-30`.
    """
    month: NotRequired[Optional[str]]
    """
    The calendar month in UTC, such as `2026-11`.
    """
    key_id: NotRequired[Optional[str]]
    """
    The ID of the key, which may have been deleted. Null for work that was started in the
    dashboard.
    """
    key: NotRequired[Optional[str]]
    """
    The name of the key, or `dashboard` for work that was started in the dashboard. Null if the
    name is unknown.
    """
    member: NotRequired[Optional[str]]
    """
    The creator of the key: the email address of a member, or the name of the operator. Null if
    the creator is unknown.
    """
    tag: NotRequired[Optional[str]]
    """
    A tag of the key. Null for keys without tags. A key with several tags counts in several
    groups.
    """
    model: NotRequired[Optional[str]]
    """
    The model that answered. If a month has too many models, those beyond the limit are combined
    as `(other models)`.
    """
    requests: int
    """
    Ended model calls, successful or not: predictions, chat calls, decisions, exchanges with the
    agent, lines of batches, and model steps of workflows.
    """
    input_tokens: int
    """
    Tokens of prompts.
    """
    output_tokens: int
    """
    Tokens of answers.
    """
    cost_usd: float
    """
    The charges in US dollars.
    """


class Balance(TypedDict):
    """
    The organization's balance.
    """

    balance_usd: float
    """
    The balance in US dollars.
    """


ReplicateStatus: TypeAlias = Literal["starting", "processing", "succeeded", "failed", "canceled"]
"""
The status of a prediction.
"""


class ReplicateMetrics(TypedDict):
    """
    Durations in seconds.
    """

    predict_time: NotRequired[Optional[float]]
    """
    Seconds from the start of the first attempt to the end of the prediction. Absent until the
    prediction has ended.
    """
    total_time: NotRequired[Optional[float]]
    """
    Seconds from the creation to the end of the prediction. Absent until the prediction has
    ended.
    """


class ReplicateUrls(TypedDict):
    """
    The URLs of a prediction.
    """

    get: str
    """
    The URL of this prediction.
    """
    cancel: str
    """
    The URL to cancel this prediction with a POST.
    """
    stream: str
    """
    The URL of the event stream, which works without an API key for a day.
    """


ReplicateDoneReason: TypeAlias = Literal["canceled", "error"]
"""
Why a prediction ended without success.
"""


class ReplicateVersion(TypedDict):
    """
    A version of a model.
    """

    id: str
    """
    The ID of the version, which is unique among all models.
    """
    created_at: str
    """
    When the service was started.
    """
    cog_version: str
    """
    The version of Cog whose schema format `openapi_schema` has.
    """
    openapi_schema: dict[str, Any]
    """
    An OpenAPI document with the schemas `Input` and `Output`.
    """


class ReplicatePageOfReplicateVersion(TypedDict):
    """
    A page of a list.
    """

    previous: Optional[str]
    """
    The URL of the previous page. Null on the first page.
    """
    next: Optional[str]
    """
    The URL of the next page. Null on the last page.
    """
    results: list[ReplicateVersion]
    """
    The items of this page.
    """


class ReplicateFileUrls(TypedDict):
    """
    The URLs of a file.
    """

    get: str
    """
    The URL of the content, which works without an API key and as a model's input.
    """


class ReplicateAccount(TypedDict):
    """
    The organization of the API key.
    """

    type: Literal["organization"]
    """
    Always `organization`.
    """
    username: str
    """
    The name of the organization.
    """
    name: str
    """
    The name of the organization.
    """


class ReplicateWebhookSecret(TypedDict):
    """
    The secret that signs webhooks.
    """

    key: str
    """
    The secret in the form of Standard Webhooks, `whsec_` and Base64.
    """


class PredictionWebhook(TypedDict):
    """
    The body of a prediction's webhook (`docs/spec/predictions.md`, "Webhook body").
    """

    execution_id: str
    """
    The ID of the prediction.
    """
    exec_id: str
    """
    The same as `execution_id`.
    """
    flow_id: Optional[str]
    """
    Always null, because a prediction belongs to no workflow.
    """
    status: ExecutionStatus
    """
    Whether the prediction completed or failed.
    """
    output: Any
    """
    The output. Null if the prediction failed.
    """
    error: str
    """
    The name of the error. Empty if there is none.
    """
    error_cause: Optional[str]
    """
    The cause of the error. Null if there is none.
    """
    started_at: str
    """
    When the prediction started.
    """
    metrics: PredictionMetrics
    """
    Cost and durations.
    """
    test: NotRequired[Optional[bool]]
    """
    Set in test deliveries.
    """


class WebhookStarted(TypedDict):
    """
    The data of an event for an accepted execution.
    """

    execution_id: str
    """
    The ID of the prediction or execution.
    """
    model: NotRequired[Optional[str]]
    """
    The model. Absent for workflows.
    """
    workflow_id: NotRequired[Optional[str]]
    """
    The workflow. Absent for predictions.
    """
    version_id: NotRequired[Optional[str]]
    """
    The version of the workflow. Absent for predictions.
    """
    status: Literal["created", "queued"]
    """
    The first status of a prediction (`created`) or an execution (`queued`).
    """
    source: ExecutionSource
    """
    What started the execution.
    """
    created_at: str
    """
    When the execution was created.
    """


class WebhookTest(TypedDict):
    """
    The data of a test event.
    """

    message: str
    """
    A message for people.
    """


class Error(TypedDict):
    """
    An error.
    """

    error: str
    """
    A message for people.
    """
    status: NotRequired[Optional[int]]
    """
    The HTTP status. Absent for an invalid API key and an unknown model.
    """
    details: NotRequired[Any]
    """
    More information, such as every violation of a schema.
    """


class AnthropicError(TypedDict):
    """
    An error in Anthropic's format.
    """

    type: Literal["error"]
    """
    Always `error`.
    """
    error: AnthropicErrorBody
    """
    The details of the error.
    """
    request_id: str
    """
    The ID of the request.
    """


class ReplicateInvalidField(TypedDict):
    """
    A field of the input that does not match the schema.
    """

    field: str
    """
    The field as a JSON pointer.
    """
    description: str
    """
    What is wrong with the field.
    """


class WebhookPredictionStarted(TypedDict):
    """
    The body of the event `prediction.started`.
    """

    type: Literal["prediction.started"]
    """
    Always `prediction.started`.
    """
    timestamp: str
    """
    When the event happened.
    """
    data: WebhookStarted
    """
    The prediction or execution that the event is about.
    """


class WebhookPredictionCompleted(TypedDict):
    """
    The body of the event `prediction.completed`.
    """

    type: Literal["prediction.completed"]
    """
    Always `prediction.completed`.
    """
    timestamp: str
    """
    When the event happened.
    """
    data: PredictionWebhook
    """
    The prediction or execution that the event is about.
    """


class WebhookPredictionFailed(TypedDict):
    """
    The body of the event `prediction.failed`.
    """

    type: Literal["prediction.failed"]
    """
    Always `prediction.failed`.
    """
    timestamp: str
    """
    When the event happened.
    """
    data: PredictionWebhook
    """
    The prediction or execution that the event is about.
    """


class WebhookWorkflowStarted(TypedDict):
    """
    The body of the event `workflow.started`.
    """

    type: Literal["workflow.started"]
    """
    Always `workflow.started`.
    """
    timestamp: str
    """
    When the event happened.
    """
    data: WebhookStarted
    """
    The prediction or execution that the event is about.
    """


class WebhookEndpointTest(TypedDict):
    """
    The body of the event `endpoint.test`.
    """

    type: Literal["endpoint.test"]
    """
    Always `endpoint.test`.
    """
    timestamp: str
    """
    When the event happened.
    """
    data: WebhookTest
    """
    The prediction or execution that the event is about.
    """


class NewPrediction(TypedDict):
    """
    A prediction to create.
    """

    model: str
    """
    The slug of the model.
    """
    version: str
    """
    Any string, which is stored with the prediction.
    """
    input: dict[str, Any]
    """
    The model's input. Must match the model's `request_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the prediction ends. An empty string means no webhook.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhook also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    service's `webhooks.send_plain_secret`. Null means the default.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The name of a fallback chain of this model.
    """


class WorkerHeartbeat(TypedDict, closed=True):
    """
    A report that only extends the lease.
    """

    attempt: int
    """
    The attempt number that the claim returned.
    """


class WorkerLog(TypedDict, closed=True):
    """
    Text that the model has logged.
    """

    attempt: int
    """
    The attempt number that the claim returned.
    """
    log: str
    """
    The text, of one or several lines.
    """


class WorkerPart(TypedDict, closed=True):
    """
    A part of the output.
    """

    attempt: int
    """
    The attempt number that the claim returned.
    """
    output: Any
    """
    The part. All parts together are the output or its beginning.
    """


class WorkerFailure(TypedDict, closed=True):
    """
    The error of a job.
    """

    attempt: int
    """
    The attempt number that the claim returned.
    """
    error: str
    """
    The error message, which the client that started the run also sees.
    """
    classification: NotRequired[Optional[ErrorClassification]]
    """
    The class of the error; by default `provider_error`.
    """


Name: TypeAlias = str
"""
The name of the workflow, from which its slug is derived.
"""


Tag: TypeAlias = str


WorkflowHeaders: TypeAlias = dict[str, Union[str, float, bool]]
"""
Header fields.
"""


WorkflowQueryParams: TypeAlias = dict[str, Union[str, float, bool, list[Union[str, float, bool]]]]
"""
Query parameters.
"""


class WorkflowConditionComparison(TypedDict, closed=True):
    """
    Compares two values.
    """

    expression: str
    """
    The value: `{{step.output}}` or `$.step.output`.
    """
    operator: Literal["equals", "not_equals", "greater_than", "less_than", "greater_than_or_equal", "less_than_or_equal", "contains", "matches", "string_matches", "in", "not_in"]
    """
    The comparison operator.
    """
    value: Any
    """
    The value to compare the expression with.
    """


class WorkflowConditionPresence(TypedDict, closed=True):
    """
    Tests whether a value exists.
    """

    expression: str
    """
    The value: `{{step.output}}` or `$.step.output`.
    """
    operator: Literal["exists", "not_exists", "is_null", "is_not_null"]
    """
    The comparison operator.
    """


class WorkflowRetry(TypedDict, closed=True):
    """
    The retries of a step.
    """

    max_attempts: NotRequired[Optional[int]]
    """
    The maximum number of attempts, including the first.
    """
    initial_delay_seconds: NotRequired[Optional[float]]
    """
    The delay before the second attempt.
    """
    backoff_multiplier: NotRequired[Optional[float]]
    """
    The factor by which each further delay grows.
    """
    max_delay_seconds: NotRequired[Optional[float]]
    """
    The longest delay.
    """
    retry_on: NotRequired[Optional[list[Literal["content_moderation", "execution_timeout", "invalid_user_input", "invalid_model_config", "provider_auth", "provider_error", "provider_rate_limit", "provider_unavailable", "internal_error", "unknown"]]]]
    """
    The classes of errors that are retried; by default the transient ones.
    """


Name1: TypeAlias = Any
"""
The name of the workflow. The slug does not change.
"""


class WorkflowChange(TypedDict):
    """
    Changes to a workflow. Omitted fields keep their value.
    """

    name: NotRequired[Name1]
    """
    The name of the workflow. The slug does not change.
    """
    description: NotRequired[Optional[str]]
    """
    The description of the workflow.
    """
    categories: NotRequired[Optional[list[str]]]
    """
    The slugs of the workflow's categories.
    """
    tags: NotRequired[Optional[list[Tag]]]
    """
    Tags to filter by, at most three.
    """
    locked: NotRequired[Optional[bool]]
    """
    Whether the workflow is locked. A locked workflow can run, but not be changed.
    """
    production: NotRequired[Optional[bool]]
    """
    A flag for clients. The service does not use it.
    """
    status: NotRequired[Optional[WorkflowStatus]]
    """
    An `archived` workflow refuses triggers; `active` accepts them again.
    """


class BulkTrigger(TypedDict):
    """
    A bulk trigger of a workflow. An invalid entry fails without affecting the others.
    """

    version_id: NotRequired[Optional[str]]
    """
    The version to run. Defaults to the latest.
    """
    inputs: list[Any]
    """
    The inputs, one entry for each execution. Each must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each execution ends. An empty string means no webhook.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Defaults to the
    service's `webhooks.send_plain_secret`. Null means the default.
    """


class BulkVersionTrigger(TypedDict):
    """
    A bulk trigger of the version in the path.
    """

    inputs: list[Any]
    """
    The inputs, one entry for each execution. Each must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each execution ends. An empty string means no webhook.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Defaults to the
    service's `webhooks.send_plain_secret`. Null means the default.
    """


BulkJobFilter = TypedDict(
    "BulkJobFilter",
    {
        "model": NotRequired[Optional[str]],
        "status": NotRequired[Optional[str]],
        "type": NotRequired[Optional[str]],
        "workflow_id": NotRequired[Optional[str]],
        "workflow_execution_id": NotRequired[Optional[str]],
        "error_classification": NotRequired[Optional[str]],
        "from": NotRequired[Optional[str]],
        "to": NotRequired[Optional[str]],
    },
    closed=True,
)


class EventToSend(TypedDict, closed=True):
    """
    An event for a waiting step.
    """

    payload: Any
    """
    The output of the step. Must match the event's `schema`, if it has one.
    """


Model1: TypeAlias = str
"""
The slug of a local chat model, or a model ID exactly as the upstream lists it.
"""


Model2: TypeAlias = str


class ChatStreamOptions(TypedDict):
    """
    Options for a streamed answer.
    """

    include_usage: NotRequired[Optional[bool]]
    """
    Whether the stream ends with a usage event, which includes the cost.
    """


OneTextOrSeveral: TypeAlias = Union[str, list[str]]
"""
One string, or several.
"""


Model3: TypeAlias = str
"""
The slug of a local embedding model, or a model ID exactly as the upstream lists it.
"""


EmbeddingsInputItem: TypeAlias = int


EmbeddingsInput: TypeAlias = Union[
    str,
    list[str],
    list[EmbeddingsInputItem],
    list[list[int]],
]
"""
The input to embed: a string, up to 2048 strings, or arrays of tokens.
"""


Model4: TypeAlias = str
"""
The slug of a local model of the kind `completions` or the runner `llm`, or a model ID exactly
as the upstream lists it.
"""


TextCompletionPromptItem: TypeAlias = int


TextCompletionPrompt: TypeAlias = Union[
    str,
    list[str],
    list[TextCompletionPromptItem],
    list[list[int]],
]
"""
The text to continue: a string, up to 128 strings, or arrays of tokens.
"""


Model5: TypeAlias = str
"""
The slug of a local model of the kind `rerank`, or a model ID exactly as the upstream lists
it.
"""


RerankDocument: TypeAlias = Union[str, RerankDocumentObject]
"""
A document: its text, or an object with its text.
"""


Model6: TypeAlias = str
"""
The slug of a local model of the kind `transcriptions`, or a model ID exactly as the
upstream lists it.
"""


TranscriptFormat: TypeAlias = Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]
"""
The format of a transcript.
"""


TimestampGranularity: TypeAlias = Literal["word", "segment"]
"""
What has times in a verbose transcript.
"""


class TranslationForm(TypedDict):
    """
    An audio file to translate into English. Other fields are passed to the model unchanged.
    """

    file: bytes
    """
    The audio, with a filename.
    """
    model: Model6
    """
    The slug of a local model of the kind `transcriptions`, or a model ID exactly as the
    upstream lists it.
    """
    prompt: NotRequired[Optional[str]]
    """
    English text that precedes the audio, or hints about its words.
    """
    response_format: NotRequired[Optional[TranscriptFormat]]
    """
    The format of the answer. Defaults to `json`.
    """
    temperature: NotRequired[Optional[float]]
    """
    The sampling temperature.
    """


Model8: TypeAlias = str
"""
The slug of a local model of the kind `speech`, or a model ID exactly as the upstream lists
it.
"""


class SpeechCustomVoice(TypedDict):
    """
    A voice by its ID.
    """

    id: str
    """
    The ID of the voice.
    """


SpeechStreamFormat: TypeAlias = Literal["audio", "sse"]
"""
The form of speech.
"""


Model9: TypeAlias = str
"""
The slug of a local model of the kind `images`, or a model ID exactly as the upstream lists
it.
"""


ImageFormat: TypeAlias = Literal["url", "b64_json"]
"""
The form of the images of an answer.
"""


ImageEditForm = TypedDict(
    "ImageEditForm",
    {
        "image": NotRequired[Optional[bytes]],
        "image[]": NotRequired[Optional[list[bytes]]],
        "mask": NotRequired[Optional[bytes]],
        "model": Model9,
        "prompt": str,
        "n": NotRequired[Optional[int]],
        "size": NotRequired[Optional[str]],
        "response_format": NotRequired[Optional[ImageFormat]],
        "stream": NotRequired[Optional[bool]],
    },
)


Model11: TypeAlias = str
"""
The slug of a local chat model, an alias of the configuration, or a model ID of the
upstream.
"""


ResponseInputRole: TypeAlias = Literal["user", "system", "developer"]
"""
The author of a message to the model.
"""


class ResponseInputCall(TypedDict):
    """
    A call of a function by the model.
    """

    type: Literal["function_call"]
    """
    Always `function_call`.
    """
    call_id: str
    """
    The ID of the call, to which its output refers.
    """
    name: str
    """
    The name of the function.
    """
    arguments: str
    """
    The arguments as JSON text.
    """
    id: NotRequired[Optional[str]]
    """
    The ID of the item.
    """


class ResponseItemReference(TypedDict):
    """
    An item of a stored response, by its ID.
    """

    type: Literal["item_reference"]
    """
    Always `item_reference`.
    """
    id: str
    """
    The ID of the item.
    """


class ResponseInputCompaction(TypedDict):
    """
    The summary of a conversation, as `POST /v1/responses/compact` returns it.
    """

    type: Literal["compaction"]
    """
    Always `compaction`.
    """
    encrypted_content: str
    """
    The content, exactly as it was returned.
    """
    id: NotRequired[Optional[str]]
    """
    The ID of the item.
    """


class ResponseInputReasoningConfig(TypedDict):
    """
    How much the model reasons.
    """

    effort: NotRequired[Optional[ResponseEffort]]
    """
    The effort. Without it, the model decides.
    """
    summary: NotRequired[Optional[str]]
    """
    Accepted and ignored: the answer contains the reasoning itself.
    """


Model12: TypeAlias = str
"""
The model that summarizes the conversation: the slug of a local chat model, an alias of the
configuration, or a model ID of the upstream.
"""


Model14: TypeAlias = str
"""
The slug of a local chat model, an alias from the configuration, or a model ID of the
upstream.
"""


MessageImageType: TypeAlias = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
"""
The type of an image.
"""


class MessageCitations(TypedDict):
    """
    Whether the answer cites a document.
    """

    enabled: NotRequired[Optional[Literal[False]]]
    """
    Only false is supported.
    """


MessageToolKind: TypeAlias = Literal["custom"]
"""
The kind of a tool.
"""


class MessageMetadata(TypedDict):
    """
    Data about a request.
    """

    user_id: NotRequired[Optional[str]]
    """
    An ID of the end user, which is passed on as `user`.
    """


MessageThinkingDisplay: TypeAlias = Literal["summarized", "omitted"]
"""
Whether the answer contains the reasoning.
"""


MessageEffort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]
"""
The effort of the reasoning.
"""


Model16: TypeAlias = str
"""
A configured alias, the slug of a local chat model, or a model ID of the upstream.
"""


Questions: TypeAlias = str


class DecisionsSides(TypedDict, closed=True):
    """
    The criteria for the answers yes and no.
    """

    true: NotRequired[Optional[str]]
    """
    The criteria for the answer yes.
    """
    false: NotRequired[Optional[str]]
    """
    The criteria for the answer no.
    """


ReplayStatus: TypeAlias = Literal["failed"]
"""
The status of deliveries that can be replayed.
"""


class NewTestDelivery(TypedDict):
    """
    A webhook URL to test.
    """

    url: str
    """
    The URL to send the sample delivery to.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the delivery.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the delivery also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    service's `webhooks.send_plain_secret`. Null means the default.
    """


Model17: TypeAlias = str


WebhookSubscription: TypeAlias = Literal["prediction.started", "prediction.completed", "prediction.failed", "workflow.started", "workflow.completed", "workflow.failed"]
"""
An event that a webhook endpoint can subscribe to.
"""


class WebhookEndpointChange(TypedDict, closed=True):
    """
    Changes to a webhook endpoint. Omitted fields keep their value. The URL is required for a new
    endpoint.
    """

    url: NotRequired[Optional[str]]
    """
    The URL that receives the events.
    """
    name: NotRequired[Optional[str]]
    """
    A name, unique within the organization. An empty string means no name.
    """
    events: NotRequired[Optional[list[WebhookSubscription]]]
    """
    The events to receive. Omit or leave empty to receive all events.
    """
    models: NotRequired[Optional[list[Model17]]]
    """
    Only events for predictions of these models. Omit or leave empty for all models.
    """
    workflow_ids: NotRequired[Optional[list[str]]]
    """
    Only events for executions of these workflows. Omit or leave empty for all workflows.
    """
    signature: NotRequired[Optional[WebhookSignature]]
    """
    The signature scheme, which cannot be changed later. Defaults to `v1`.
    """
    send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether deliveries also carry the secret itself, in `X-Webhook-Secret`, for receivers that
    compare it. Defaults to false. Only with the signature `v1`.
    """
    disabled: NotRequired[Optional[bool]]
    """
    Whether the endpoint is disabled: it receives no events.
    """


class RotateWebhookEndpoint(TypedDict, closed=True):
    """
    A rotation of the secret.
    """

    grace_seconds: NotRequired[Optional[int]]
    """
    How long the previous secret also signs deliveries, in seconds. Defaults to 86400.
    """


class NewUpload(TypedDict):
    """
    A presigned upload to create.
    """

    content_type: str
    """
    The content type, such as `image/png`.
    """
    filename: NotRequired[Optional[str]]
    """
    The name of the file.
    """
    size: NotRequired[Optional[int]]
    """
    The size in bytes. An upload of any other size is rejected.
    """
    sha256: NotRequired[Optional[str]]
    """
    The SHA-256 hash, as 64 hexadecimal digits. An upload with any other hash is rejected.
    """
    file_type: NotRequired[Optional[str]]
    """
    Accepted and ignored.
    """
    expires_in_seconds: NotRequired[Optional[int]]
    """
    How long the file is kept.
    """


class FileForm(TypedDict):
    """
    A form with a file.
    """

    file: bytes
    """
    The content, with a content type and a filename.
    """
    purpose: NotRequired[Optional[str]]
    """
    What the file is for, such as `batch`. Any text.
    """
    expires_in_seconds: NotRequired[Optional[int]]
    """
    How long the file is kept.
    """


class BatchRequest(TypedDict):
    """
    A batch to create.
    """

    input_file_id: str
    """
    The ID of the file with the requests: JSON lines with `custom_id`, `method`, `url` and
    `body`.
    """
    endpoint: BatchEndpoint
    """
    The route that answers the lines.
    """
    completion_window: BatchWindow
    """
    The time in which the lines are answered.
    """
    metadata: NotRequired[Optional[ClientMetadata]]
    """
    Key-value pairs that are returned with the batch.
    """


class SecretValue(TypedDict, closed=True):
    """
    A secret value to store.
    """

    value: str
    """
    The value: 1 to 32768 bytes of text without NUL. The value is never returned.
    """


ReplicateWebhookEvent: TypeAlias = Literal["start", "output", "logs", "completed"]
"""
An event of a prediction.
"""


class ReplicateNewRun(TypedDict):
    """
    A prediction to create with the model in the path.
    """

    input: dict[str, Any]
    """
    The model's input. Must match `components.schemas.Input` of the version's schema.
    """
    webhook: NotRequired[Optional[str]]
    """
    The URL to notify of the events in `webhook_events_filter`. An empty string means no
    webhook.
    """
    webhook_completed: NotRequired[Optional[str]]
    """
    An older field for a webhook: the URL to notify only of the end of the prediction. Ignored
    if `webhook` is set.
    """
    webhook_events_filter: NotRequired[Optional[list[ReplicateWebhookEvent]]]
    """
    The events of which the webhook is notified. Defaults to `output` and `completed`.
    """
    stream: NotRequired[Optional[bool]]
    """
    Accepted and ignored, because every prediction can be streamed.
    """


class ReplicateFileForm(TypedDict):
    """
    A form with a file.
    """

    content: bytes
    """
    The content, with a content type and a filename.
    """
    metadata: NotRequired[Optional[str]]
    """
    A JSON object that the record of the file contains.
    """


class CreatedEvent(TypedDict):
    """
    `status`: the prediction or the execution was created.
    """

    status: Literal["created", "queued"]
    """
    The first status: `created` for a prediction, `queued` for an execution.
    """
    at: str
    """
    When the prediction or the execution was created.
    """


class AttemptEvent(TypedDict):
    """
    `status`: an attempt has started.
    """

    status: Literal["processing"]
    """
    Always `processing`.
    """
    model: str
    """
    The model that runs.
    """
    attempt: int
    """
    The number of the attempt, starting at 1.
    """
    at: str
    """
    When the attempt started.
    """


class LogEvent(TypedDict):
    """
    `log`: a line of the model's log output.
    """

    text: str
    """
    The line.
    """
    attempt: NotRequired[Optional[int]]
    """
    The attempt that wrote the line. Absent for lines of earlier attempts.
    """


class OutputEvent(TypedDict):
    """
    `output`: a part of the output, as the model produces it.
    """

    part: Any
    """
    The part.
    """
    attempt: NotRequired[Optional[int]]
    """
    The attempt that produced the part.
    """


class ResetEvent(TypedDict, closed=True):
    """
    `reset`: the client's last event is from another stream, or events have been dropped. The
    stream restarts from the beginning.
    """


class WaitingForLane(TypedDict):
    """
    The execution's turn in the workflow's lane.
    """

    reason: Literal["lane"]
    """
    Always `lane`.
    """
    position: NotRequired[Optional[int]]
    """
    The position in the lane, starting at 1. Absent beyond the part of the lane that is held
    in memory.
    """
    running: int
    """
    The organization's running executions of the workflow.
    """


class WaitingForModel(TypedDict):
    """
    A slot of a model, which other organizations may hold.
    """

    reason: Literal["model"]
    """
    Always `model`.
    """
    step_id: str
    """
    The step that waits.
    """
    model: str
    """
    The slug of the model.
    """
    running: int
    """
    The organization's running calls of the model.
    """
    queued: int
    """
    The organization's queued calls of the model, as far as they are held in memory.
    """


class WaitingForTimer(TypedDict):
    """
    The end of a `wait` step.
    """

    reason: Literal["timer"]
    """
    Always `timer`.
    """
    step_id: str
    """
    The step that waits.
    """
    until: str
    """
    When the wait ends.
    """


class WaitingForEvent(TypedDict):
    """
    An event, sent with an API key or through `resume_url`.
    """

    reason: Literal["event"]
    """
    Always `event`.
    """
    step_id: str
    """
    The step that waits.
    """
    event: str
    """
    The name of the event.
    """
    until: str
    """
    When the step times out.
    """
    resume_url: str
    """
    A URL with a form that sends the event. No API key is needed.
    """


class WaitingForRetry(TypedDict):
    """
    The next attempt of a step.
    """

    reason: Literal["retry"]
    """
    Always `retry`.
    """
    step_id: str
    """
    The step that is retried.
    """
    at: str
    """
    When the next attempt starts.
    """
    attempt: int
    """
    The number of the next attempt, starting at 1.
    """


class WaitingForStep(TypedDict):
    """
    A running step.
    """

    reason: Literal["step"]
    """
    Always `step`.
    """
    step_id: str
    """
    The running step.
    """
    attempt: int
    """
    The number of the running attempt, starting at 1.
    """


class WaitingForWorkflow(TypedDict):
    """
    The execution that a `workflow` step has started.
    """

    reason: Literal["workflow"]
    """
    Always `workflow`.
    """
    step_id: str
    """
    The step that waits.
    """
    execution_id: str
    """
    The execution that the step has started.
    """


class WaitingForPaused(TypedDict):
    """
    A resume request, after a person or a step with `on_exhausted` paused the execution.
    """

    reason: Literal["paused"]
    """
    Always `paused`.
    """
    by: str
    """
    The API key, the member or the step that paused the execution.
    """
    since: str
    """
    When the execution was paused.
    """


class WaitingForService(TypedDict):
    """
    The next retry after an internal error of the service.
    """

    reason: Literal["service"]
    """
    Always `service`.
    """
    cause: str
    """
    The kind of internal error.
    """
    failures: int
    """
    The number of consecutive internal errors.
    """
    at: str
    """
    When the service retries.
    """


class StatusEvent(TypedDict):
    """
    `status`: the workflow execution has started.
    """

    status: Literal["queued", "running"]
    """
    The status of the execution.
    """
    at: str
    """
    When the execution started.
    """


class WaitEvent(TypedDict):
    """
    `wait`: a step waits for a time or an event.
    """

    step_id: str
    """
    The ID of the step.
    """
    items: NotRequired[list[int]]
    """
    The item's index in each enclosing `map`, outermost first.
    """
    until: str
    """
    When the wait ends, or the step times out.
    """


class PauseEvent(TypedDict):
    """
    `pause`: the execution was paused.
    """

    by: str
    """
    The API key, the member or the step that paused the execution.
    """
    at: str
    """
    When the execution was paused.
    """


class ResumeEvent(TypedDict):
    """
    `resume`: the execution was resumed.
    """

    at: str
    """
    When the execution was resumed.
    """


class ResponseItemFunctionCall(TypedDict):
    """
    A call of a function.
    """

    type: Literal["function_call"]
    """
    Always `function_call`.
    """
    id: str
    """
    The ID of the item.
    """
    status: ResponseItemStatus
    """
    Whether the item is complete.
    """
    call_id: str
    """
    The ID of the call, to which its output refers.
    """
    name: str
    """
    The name of the function.
    """
    arguments: str
    """
    The arguments as JSON text.
    """


class ResponseItemCompaction(TypedDict):
    """
    The summary of a conversation.
    """

    type: Literal["compaction"]
    """
    Always `compaction`.
    """
    id: str
    """
    The ID of the item.
    """
    encrypted_content: str
    """
    The summary, to be returned with the item in the input of a later request. It is not
    encrypted.
    """


class ResponsePartInputText(TypedDict):
    """
    A text to the model.
    """

    type: Literal["input_text"]
    """
    Always `input_text`.
    """
    text: str
    """
    The text.
    """


class ResponsePartInputImage(TypedDict):
    """
    An image.
    """

    type: Literal["input_image"]
    """
    Always `input_image`.
    """
    image_url: str
    """
    The address of the image, or the image itself as a data URL.
    """
    detail: ResponseImageDetail
    """
    The resolution in which the model sees the image.
    """


class ResponsePartOutputText(TypedDict):
    """
    A text of the model.
    """

    type: Literal["output_text"]
    """
    Always `output_text`.
    """
    text: str
    """
    The text.
    """
    annotations: list[Any]
    """
    Always empty.
    """
    logprobs: list[Any]
    """
    Always empty.
    """


class ResponsePartRefusal(TypedDict):
    """
    A refusal of the model.
    """

    type: Literal["refusal"]
    """
    Always `refusal`.
    """
    refusal: str
    """
    The text of the refusal.
    """


class ResponsePartReasoningText(TypedDict):
    """
    Reasoning of the model.
    """

    type: Literal["reasoning_text"]
    """
    Always `reasoning_text`.
    """
    text: str
    """
    The text.
    """


class ResponseReasoningPartReasoningText(TypedDict):
    """
    A text.
    """

    type: Literal["reasoning_text"]
    """
    Always `reasoning_text`.
    """
    text: str
    """
    The text.
    """


class ResponseFormatText(TypedDict):
    """
    Any text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """


class ResponseFormatJsonObject(TypedDict):
    """
    Any JSON object.
    """

    type: Literal["json_object"]
    """
    Always `json_object`.
    """


class ResponseFormatJsonSchema(TypedDict):
    """
    JSON that matches a schema.
    """

    type: Literal["json_schema"]
    """
    Always `json_schema`.
    """
    name: str
    """
    The name of the format.
    """
    description: Optional[str]
    """
    What the format is for.
    """
    schema: dict[str, Any]
    """
    The JSON Schema.
    """
    strict: bool
    """
    Whether the text must match the schema exactly.
    """


class ResponseStreamEventResponseOutputTextDelta(TypedDict):
    """
    A text continues.
    """

    type: Literal["response.output_text.delta"]
    """
    Always `response.output_text.delta`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    delta: str
    """
    The next piece of the text.
    """
    logprobs: list[Any]
    """
    Always empty.
    """


class ResponseStreamEventResponseOutputTextDone(TypedDict):
    """
    A text is complete.
    """

    type: Literal["response.output_text.done"]
    """
    Always `response.output_text.done`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    text: str
    """
    The text.
    """
    logprobs: list[Any]
    """
    Always empty.
    """


class ResponseStreamEventResponseRefusalDelta(TypedDict):
    """
    A refusal continues.
    """

    type: Literal["response.refusal.delta"]
    """
    Always `response.refusal.delta`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    delta: str
    """
    The next piece of the refusal.
    """


class ResponseStreamEventResponseRefusalDone(TypedDict):
    """
    A refusal is complete.
    """

    type: Literal["response.refusal.done"]
    """
    Always `response.refusal.done`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    refusal: str
    """
    The refusal.
    """


class ResponseStreamEventResponseReasoningTextDelta(TypedDict):
    """
    Reasoning continues.
    """

    type: Literal["response.reasoning_text.delta"]
    """
    Always `response.reasoning_text.delta`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    delta: str
    """
    The next piece of the reasoning.
    """


class ResponseStreamEventResponseReasoningTextDone(TypedDict):
    """
    Reasoning is complete.
    """

    type: Literal["response.reasoning_text.done"]
    """
    Always `response.reasoning_text.done`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    text: str
    """
    The reasoning.
    """


class ResponseStreamEventResponseFunctionCallArgumentsDelta(TypedDict):
    """
    The arguments of a call continue.
    """

    type: Literal["response.function_call_arguments.delta"]
    """
    Always `response.function_call_arguments.delta`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item.
    """
    delta: str
    """
    The next piece of the arguments.
    """


class ResponseStreamEventResponseFunctionCallArgumentsDone(TypedDict):
    """
    The arguments of a call are complete.
    """

    type: Literal["response.function_call_arguments.done"]
    """
    Always `response.function_call_arguments.done`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item.
    """
    name: str
    """
    The name of the function.
    """
    arguments: str
    """
    The arguments as JSON text.
    """


class ResponseStreamEventError(TypedDict):
    """
    The stream broke. `response.failed` follows.
    """

    type: Literal["error"]
    """
    Always `error`.
    """
    code: str
    """
    A code for programs.
    """
    message: str
    """
    A message for people.
    """
    param: Optional[str]
    """
    Always null.
    """


class MessageAnswerBlockText(TypedDict):
    """
    A block of text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """
    text: str
    """
    The text.
    """


class MessageAnswerBlockToolUse(TypedDict):
    """
    A tool call.
    """

    type: Literal["tool_use"]
    """
    Always `tool_use`.
    """
    id: str
    """
    The ID of the call.
    """
    name: str
    """
    The name of the tool.
    """
    input: dict[str, Any]
    """
    The arguments.
    """


class MessageAnswerBlockThinking(TypedDict):
    """
    The model's reasoning.
    """

    type: Literal["thinking"]
    """
    Always `thinking`.
    """
    thinking: str
    """
    The text of the reasoning.
    """
    signature: str
    """
    The name of the field in which the model expects its reasoning. Clients return it with
    the block.
    """


class MessageStreamEventContentBlockStop(TypedDict):
    """
    A block ends.
    """

    type: Literal["content_block_stop"]
    """
    Always `content_block_stop`.
    """
    index: int
    """
    The number of the block.
    """


class MessageStreamEventMessageDelta(TypedDict):
    """
    The answer is complete.
    """

    type: Literal["message_delta"]
    """
    Always `message_delta`.
    """
    delta: MessageEnd
    """
    Why the answer ended.
    """
    usage: MessageUsage
    """
    The tokens of the call, and their cost.
    """


class MessageStreamEventMessageStop(TypedDict):
    """
    The last event.
    """

    type: Literal["message_stop"]
    """
    Always `message_stop`.
    """


class MessageStreamEventPing(TypedDict):
    """
    Sent while there are no other events.
    """

    type: Literal["ping"]
    """
    Always `ping`.
    """


class MessageStreamEventError(TypedDict):
    """
    The stream failed. This is the last event.
    """

    type: Literal["error"]
    """
    Always `error`.
    """
    error: AnthropicErrorBody
    """
    The details of the error.
    """
    request_id: str
    """
    The ID of the request.
    """


class MessageBlockDeltaTextDelta(TypedDict):
    """
    The next part of a text.
    """

    type: Literal["text_delta"]
    """
    Always `text_delta`.
    """
    text: str
    """
    The text.
    """


class MessageBlockDeltaInputJsonDelta(TypedDict):
    """
    A part of a tool call's arguments.
    """

    type: Literal["input_json_delta"]
    """
    Always `input_json_delta`.
    """
    partial_json: str
    """
    A part of the JSON text.
    """


class MessageBlockDeltaThinkingDelta(TypedDict):
    """
    The next part of the reasoning.
    """

    type: Literal["thinking_delta"]
    """
    Always `thinking_delta`.
    """
    thinking: str
    """
    The text.
    """


class MessageBlockDeltaSignatureDelta(TypedDict):
    """
    The signature of a reasoning block.
    """

    type: Literal["signature_delta"]
    """
    Always `signature_delta`.
    """
    signature: str
    """
    The signature.
    """


class DecisionsAnswerOul(TypedDict):
    """
    The answer to a yes-or-no question.
    """

    type: Literal["oul"]
    """
    Always `oul`.
    """
    oul: float
    """
    The probability of yes.
    """


class DecisionsAnswerNoul(TypedDict):
    """
    The answer to a question of the type `noul`.
    """

    type: Literal["noul"]
    """
    Always `noul`.
    """
    noul: float
    """
    The probability of yes.
    """


class DecisionsAnswerChoice(TypedDict):
    """
    The answer to a choice.
    """

    type: Literal["choice"]
    """
    Always `choice`.
    """
    choice: str
    """
    The most likely option.
    """
    confidence: float
    """
    The probability of the most likely option.
    """
    probabilities: dict[str, float]
    """
    The probability of each option. The probabilities add up to 1.
    """


class DecisionsAnswerScore(TypedDict):
    """
    The answer to a rating.
    """

    type: Literal["score"]
    """
    Always `score`.
    """
    score: float
    """
    The expected level, counted from 0.
    """
    confidence: float
    """
    The probability of the most likely level.
    """
    probabilities: dict[str, float]
    """
    The probability of each level. The probabilities add up to 1.
    """
    legend: dict[str, str]
    """
    The description of each level.
    """


ReplicateTextEvent: TypeAlias = str
"""
`output` and `logs`: a part of the text.
"""


class ReplicateErrorEvent(TypedDict):
    """
    `error`: the reason why the stream ends without the whole output.
    """

    detail: str
    """
    A message for people.
    """


class ReplicateDoneEvent(TypedDict):
    """
    `done`: the prediction has ended.
    """

    reason: NotRequired[Optional[ReplicateDoneReason]]
    """
    Absent if the prediction has succeeded.
    """


class WorkflowStepPass(TypedDict, closed=True):
    """
    Computes a value.
    """

    type: Literal["pass"]
    """
    Always `pass`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    result: NotRequired[Any]
    """
    The value, with references resolved.
    """


class WorkflowAuthBasic(TypedDict, closed=True):
    """
    Basic authentication.
    """

    type: Literal["basic"]
    """
    Always `basic`.
    """
    username: str
    """
    The user name.
    """
    password: str
    """
    The password.
    """


class WorkflowAuthBearer(TypedDict, closed=True):
    """
    A bearer token.
    """

    type: Literal["bearer"]
    """
    Always `bearer`.
    """
    token: str
    """
    The token.
    """


WorkflowAuthApiKey = TypedDict(
    "WorkflowAuthApiKey",
    {
        "type": Literal["api_key"],
        "value": str,
        "name": NotRequired[Optional[str]],
        "in": NotRequired[Optional[Literal["header", "query"]]],
    },
    closed=True,
)


class ResponseInputPartInputText(TypedDict):
    """
    A text.
    """

    type: Literal["input_text"]
    """
    Always `input_text`.
    """
    text: str
    """
    The text.
    """


class ResponseInputPartInputImage(TypedDict):
    """
    An image.
    """

    type: Literal["input_image"]
    """
    Always `input_image`.
    """
    image_url: str
    """
    The address of the image, or the image itself as a data URL.
    """
    detail: NotRequired[Optional[ResponseImageDetail]]
    """
    The resolution in which the model sees the image.
    """


class ResponseAnswerPartOutputText(TypedDict):
    """
    A text.
    """

    type: Literal["output_text"]
    """
    Always `output_text`.
    """
    text: str
    """
    The text.
    """


class ResponseAnswerPartInputText(TypedDict):
    """
    A text.
    """

    type: Literal["input_text"]
    """
    Always `input_text`.
    """
    text: str
    """
    The text.
    """


class ResponseAnswerPartRefusal(TypedDict):
    """
    A refusal.
    """

    type: Literal["refusal"]
    """
    Always `refusal`.
    """
    refusal: str
    """
    The text of the refusal.
    """


class ResponseInputFormatText(TypedDict):
    """
    Any text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """


class ResponseInputFormatJsonObject(TypedDict):
    """
    Any JSON object.
    """

    type: Literal["json_object"]
    """
    Always `json_object`.
    """


class ResponseInputFormatJsonSchema(TypedDict):
    """
    JSON that matches a schema.
    """

    type: Literal["json_schema"]
    """
    Always `json_schema`.
    """
    name: str
    """
    The name of the format.
    """
    schema: dict[str, Any]
    """
    The JSON Schema.
    """
    description: NotRequired[Optional[str]]
    """
    What the format is for.
    """
    strict: NotRequired[Optional[bool]]
    """
    Whether the text must match the schema exactly.
    """


class MessageUserBlockText(TypedDict):
    """
    A block of text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """
    text: str
    """
    The text.
    """


class MessageImageSourceBase64(TypedDict):
    """
    An image in the request.
    """

    type: Literal["base64"]
    """
    Always `base64`.
    """
    media_type: MessageImageType
    """
    The type of the image.
    """
    data: str
    """
    The image in base64.
    """


class MessageImageSourceUrl(TypedDict):
    """
    An image on a web server, from which the model's server loads it.
    """

    type: Literal["url"]
    """
    Always `url`.
    """
    url: str
    """
    The address.
    """


class MessageDocumentSourceText(TypedDict):
    """
    Plain text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """
    data: str
    """
    The text.
    """


class MessagePlainBlockText(TypedDict):
    """
    A block of text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """
    text: str
    """
    The text.
    """


class MessageAssistantBlockText(TypedDict):
    """
    A block of text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """
    text: str
    """
    The text.
    """


class MessageAssistantBlockToolUse(TypedDict):
    """
    A tool call.
    """

    type: Literal["tool_use"]
    """
    Always `tool_use`.
    """
    id: str
    """
    The ID of the call.
    """
    name: str
    """
    The name of the tool.
    """
    input: dict[str, Any]
    """
    The arguments.
    """


class MessageAssistantBlockThinking(TypedDict):
    """
    Reasoning from an earlier answer, which is passed back to the model.
    """

    type: Literal["thinking"]
    """
    Always `thinking`.
    """
    thinking: str
    """
    The text of the reasoning.
    """
    signature: NotRequired[Optional[str]]
    """
    The `signature` of the answer.
    """


class MessageSystemBlockText(TypedDict):
    """
    A block of text.
    """

    type: Literal["text"]
    """
    Always `text`.
    """
    text: str
    """
    The text.
    """


class MessageToolChoiceAuto(TypedDict):
    """
    The model decides.
    """

    type: Literal["auto"]
    """
    Always `auto`.
    """
    disable_parallel_tool_use: NotRequired[Optional[bool]]
    """
    Whether the model calls at most one tool.
    """


class MessageToolChoiceAny(TypedDict):
    """
    The model calls at least one tool.
    """

    type: Literal["any"]
    """
    Always `any`.
    """
    disable_parallel_tool_use: NotRequired[Optional[bool]]
    """
    Whether the model calls at most one tool.
    """


class MessageToolChoiceTool(TypedDict):
    """
    The model calls this tool.
    """

    type: Literal["tool"]
    """
    Always `tool`.
    """
    name: str
    """
    The name of the tool.
    """
    disable_parallel_tool_use: NotRequired[Optional[bool]]
    """
    Whether the model calls at most one tool.
    """


class MessageToolChoiceNone(TypedDict):
    """
    The model calls no tool.
    """

    type: Literal["none"]
    """
    Always `none`.
    """


class MessageThinkingEnabled(TypedDict):
    """
    The model reasons. The budget selects the effort: below 4096 `low`, below 16,384 `medium`,
    else `high`.
    """

    type: Literal["enabled"]
    """
    Always `enabled`.
    """
    budget_tokens: int
    """
    The number of tokens for reasoning.
    """
    display: NotRequired[Optional[MessageThinkingDisplay]]
    """
    `omitted` leaves the reasoning out of the answer.
    """


class MessageThinkingAdaptive(TypedDict):
    """
    The model reasons as much as it needs, with the effort of `output_config`.
    """

    type: Literal["adaptive"]
    """
    Always `adaptive`.
    """
    display: NotRequired[Optional[MessageThinkingDisplay]]
    """
    `omitted` leaves the reasoning out of the answer.
    """


class MessageThinkingDisabled(TypedDict):
    """
    The model does not reason, if the model supports this.
    """

    type: Literal["disabled"]
    """
    Always `disabled`.
    """


class MessageOutputFormatJsonSchema(TypedDict):
    """
    JSON that matches a schema.
    """

    type: Literal["json_schema"]
    """
    Always `json_schema`.
    """
    schema: dict[str, Any]
    """
    The JSON Schema.
    """


class DecisionsQuestionOul(TypedDict, closed=True):
    """
    A yes-or-no question. The answer is the probability of yes.
    """

    type: Literal["oul"]
    """
    Always `oul`.
    """
    instructions: str
    """
    The question, in words that the model understands.
    """
    criteria: NotRequired[Optional[DecisionsSides]]
    """
    The criteria for the answers yes and no.
    """


class DecisionsQuestionNoul(TypedDict, closed=True):
    """
    The same as `oul`, but the answer has the type `noul`.
    """

    type: Literal["noul"]
    """
    Always `noul`.
    """
    instructions: str
    """
    The question, in words that the model understands.
    """
    criteria: NotRequired[Optional[DecisionsSides]]
    """
    The criteria for the answers yes and no.
    """


Criteria: TypeAlias = str


class DecisionsQuestionChoice(TypedDict, closed=True):
    """
    A choice among 2 to 26 options, each with a description or null.
    """

    type: Literal["choice"]
    """
    Always `choice`.
    """
    instructions: str
    """
    The question, in words that the model understands.
    """
    criteria: dict[Criteria, Optional[str]]
    """
    The options by name, each with guidance or null.
    """


Criterion: TypeAlias = str


class DecisionsQuestionScore(TypedDict, closed=True):
    """
    A rating on a scale. Each level has a description, lowest level first.
    """

    type: Literal["score"]
    """
    Always `score`.
    """
    instructions: str
    """
    The question, in words that the model understands.
    """
    criteria: list[Criterion]
    """
    The levels, lowest first.
    """


class JsonObject(TypedDict):
    """
    An object with arbitrary fields.
    """


class Index(TypedDict):
    """
    Information about the host.
    """

    name: Literal["orrery"]
    """
    Always `orrery`.
    """
    version: str
    """
    The version of the program.
    """
    role: Literal["base", "workflows", "flows", "agent", "dashboard"]
    """
    The role of the host.
    """
    links: IndexLinks
    """
    The URLs of the host's general routes.
    """


class ModelCost(TypedDict):
    """
    The cost of a run.
    """

    currency: Literal["USD"]
    """
    Always `USD`.
    """
    type: CostType
    """
    Whether the price is fixed.
    """
    amount: Optional[float]
    """
    The price in US dollars. Null unless the price is fixed.
    """
    unit: Optional[str]
    """
    Always `execution`. Null unless the price is fixed.
    """
    estimate: str
    """
    The estimate as text for display.
    """
    description: str
    """
    A note about the estimate.
    """


class RouterModel(TypedDict):
    """
    A model that can be called.
    """

    id: str
    """
    The value to use for `model` in requests.
    """
    object: Literal["model"]
    """
    Always `model`.
    """
    created: int
    """
    When the model was created, in Unix seconds. 0 if unknown.
    """
    owned_by: str
    """
    The owner of the model, as reported by its source.
    """
    source: RouterModelSource
    """
    Where the model runs.
    """
    kind: Optional[RouterModelKind]
    """
    What the model is for. Null if the upstream does not report the kind.
    """
    context_length: NotRequired[Optional[int]]
    """
    The maximum number of tokens in a prompt and its answer. Absent if unknown.
    """
    status: Literal["ok", "failing"]
    """
    Either `ok`, or `failing` while the model does not respond.
    """
    pricing: Optional[RouterModelPricing]
    """
    The price. Null if calls are free.
    """


class MessageModels(TypedDict):
    """
    The models that Anthropic's clients can call, all in one page.
    """

    data: list[MessageModel]
    """
    Local models by slug, then the agent, then the models that the upstream lists.
    """
    has_more: bool
    """
    Always false.
    """
    first_id: Optional[str]
    """
    The ID of the first model. Null if there is none.
    """
    last_id: Optional[str]
    """
    The ID of the last model. Null if there is none.
    """


class PredictionAttempt(TypedDict):
    """
    An attempt of a prediction.
    """

    model: str
    """
    The model that ran.
    """
    status: AttemptStatus
    """
    The status of the attempt.
    """
    error: Optional[str]
    """
    Why the attempt failed.
    """
    error_classification: Optional[ErrorClassification]
    """
    The class of the error.
    """
    started_at: str
    """
    When the attempt started.
    """
    completed_at: Optional[str]
    """
    When the attempt ended. Null until then.
    """


class StepEvent(TypedDict):
    """
    `step`: a step, or an attempt of a step, has started or ended.
    """

    step_id: str
    """
    The ID of the step.
    """
    items: NotRequired[list[int]]
    """
    The item's index in each enclosing `map`, outermost first.
    """
    status: StepStatus
    """
    The status of the step.
    """
    attempt: NotRequired[Optional[int]]
    """
    The number of the attempt, starting at 1.
    """
    execution_id: NotRequired[Optional[str]]
    """
    The execution that a `workflow` step has started.
    """
    at: str
    """
    When the step or the attempt started or ended.
    """
    until: NotRequired[Optional[str]]
    """
    When the next attempt starts, or when the step times out.
    """
    output: NotRequired[Any]
    """
    The output of a completed step.
    """
    omitted: NotRequired[Optional[bool]]
    """
    Set if the output is too large for an event.
    """
    error: NotRequired[Optional[str]]
    """
    The name of the error.
    """
    error_cause: NotRequired[Optional[str]]
    """
    The cause of the error.
    """


class Workflow(TypedDict):
    """
    A workflow with its versions.
    """

    workflow_id: str
    """
    The ID of the workflow.
    """
    slug: str
    """
    The slug, which can replace the ID in paths.
    """
    name: str
    """
    The name of the workflow.
    """
    description: str
    """
    The description of the workflow.
    """
    categories: list[str]
    """
    The slugs of the workflow's categories.
    """
    tags: list[str]
    """
    The tags of the workflow.
    """
    locked: bool
    """
    Whether the workflow is locked. A locked workflow can run, but not be changed.
    """
    production: bool
    """
    A flag for clients. The service does not use it.
    """
    latest_version_id: str
    """
    The version that runs if a trigger does not name a version.
    """
    status: WorkflowStatus
    """
    The status of the workflow.
    """
    trigger_count: int
    """
    How often the workflow was triggered.
    """
    created_at: str
    """
    When the workflow was created.
    """
    updated_at: str
    """
    When the workflow was last changed.
    """
    versions: list[WorkflowVersion]
    """
    The versions, oldest first.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class WorkflowList(TypedDict):
    """
    A page of workflows.
    """

    workflows: list[Workflow]
    """
    The workflows of the page.
    """
    offset: int
    """
    The `offset` for the next page: the requested offset plus the length of this page.
    """
    total_count: int
    """
    The number of matching workflows.
    """


class ExecutionSummary(TypedDict):
    """
    An execution, as lists show it.
    """

    execution_id: str
    """
    The ID of the execution.
    """
    flow_id: str
    """
    The workflow's ID.
    """
    flow_name: str
    """
    The workflow's name.
    """
    version_id: str
    """
    The version of the workflow that runs.
    """
    status: SummaryStatus
    """
    The status of the execution.
    """
    waiting_for: NotRequired[Optional[WaitsFor]]
    """
    What the execution needs to continue: an event (`event`) or a resume request (`paused`).
    """
    started_at: str
    """
    When the execution started. Until then, when the execution was created.
    """
    ended_at: Optional[str]
    """
    When the execution ended. Null until then.
    """
    created_at: str
    """
    When the execution was created.
    """
    updated_at: str
    """
    When the execution last started or ended.
    """


class Schedule(TypedDict):
    """
    A schedule.
    """

    schedule_id: str
    """
    The ID of the schedule.
    """
    name: Optional[str]
    """
    The display name. Null if there is none.
    """
    workflow_id: NotRequired[Optional[str]]
    """
    The workflow. Only for workflow schedules.
    """
    version_id: Optional[str]
    """
    The workflow version that runs. Null means the latest version. Only for workflow schedules.
    """
    model: NotRequired[Optional[str]]
    """
    The model's slug. Only for model schedules.
    """
    version: NotRequired[Optional[str]]
    """
    The model's version, as in a prediction. Only for model schedules.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain that is used. Only for model schedules.
    """
    cron: str
    """
    The cron expression.
    """
    timezone: str
    """
    The IANA time zone in which the cron expression applies.
    """
    inputs: Any
    """
    The inputs of the workflow, or the input of the model.
    """
    overlap: ScheduleOverlap
    """
    What happens if the previous run has not ended when the schedule fires.
    """
    catch_up_seconds: int
    """
    How late a firing may run, in seconds.
    """
    jitter_seconds: int
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: bool
    """
    Whether the schedule is paused. A paused schedule does not fire.
    """
    starts_at: Optional[str]
    """
    The time before which the schedule does not fire. Null means no limit.
    """
    ends_at: Optional[str]
    """
    The time after which the schedule does not fire. Null means no limit.
    """
    webhook_url: Optional[str]
    """
    The URL that is notified when each run ends. Null if there is no webhook.
    """
    webhook_send_plain_secret: Optional[bool]
    """
    Whether the webhooks also carry their secret. Null means the service's default.
    """
    next_runs: list[str]
    """
    The next ten firings, without jitter. Empty while the schedule is paused.
    """
    waiting: int
    """
    The number of firings that wait for the previous run to end.
    """
    last_run: Optional[ScheduleRun]
    """
    The outcome of the last firing. Null if the schedule has not fired.
    """
    created_at: str
    """
    When the schedule was created.
    """
    updated_at: str
    """
    When the schedule was last changed.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class Schedules(TypedDict):
    """
    A page of schedules.
    """

    schedules: list[Schedule]
    """
    The schedules, oldest first.
    """
    total_count: int
    """
    The number of schedules.
    """
    offset: int
    """
    The requested offset.
    """
    limit: int
    """
    The requested page size.
    """


class ExecutionAccepted(TypedDict):
    """
    An accepted execution.
    """

    execution_id: str
    """
    The ID of the execution.
    """
    status: ExecutionStatus
    """
    Always `queued`.
    """
    started_at: str
    """
    When the execution was accepted.
    """
    redriven_from: NotRequired[Optional[str]]
    """
    The failed execution whose completed steps this execution reuses.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


BulkEntry: TypeAlias = Union[ExecutionAccepted, BulkRefused]
"""
The result for one input.
"""


class BulkJob(TypedDict):
    """
    A bulk job and its progress.
    """

    job_id: str
    """
    The ID of the job.
    """
    action: BulkJobAction
    """
    What the job does with each execution.
    """
    status: BulkJobStatus
    """
    Whether the job is running.
    """
    total: Optional[int]
    """
    The number of executions to process. Null until the executions have been counted.
    """
    done: int
    """
    The number of executions that were processed.
    """
    failed: int
    """
    The number of executions on which the action failed, such as cancelling an execution that
    has ended.
    """
    started_at: str
    """
    When the job was started.
    """
    completed_at: Optional[str]
    """
    When the job ended. Null while the job is running.
    """


class StepMetadata(TypedDict):
    """
    More information about a step.
    """

    model: NotRequired[Optional[str]]
    """
    The model that ran.
    """
    prediction_id: NotRequired[Optional[str]]
    """
    The prediction that ran this step, once it has ended.
    """
    execution_id: NotRequired[Optional[str]]
    """
    The execution that a `workflow` step has started.
    """
    elapsed_seconds: NotRequired[Optional[float]]
    """
    Seconds from the start to the end of the step.
    """
    status_code: NotRequired[Optional[int]]
    """
    The HTTP status of the response to the step's request.
    """
    event_source: NotRequired[Optional[EventSource]]
    """
    Who sent the event that the step waited for.
    """
    fallback_used: NotRequired[Optional[bool]]
    """
    True if the step's fallback ran.
    """
    primary_error: NotRequired[Optional[str]]
    """
    Why the step itself failed, if a fallback was used.
    """
    logs: NotRequired[Optional[str]]
    """
    Log output of the step's model.
    """
    omitted: NotRequired[Optional[bool]]
    """
    Set if the input or output is omitted because it is too large.
    """


WaitingFor: TypeAlias = Union[
    WaitingForLane,
    WaitingForModel,
    WaitingForTimer,
    WaitingForEvent,
    WaitingForRetry,
    WaitingForStep,
    WaitingForWorkflow,
    WaitingForPaused,
    WaitingForService,
]
"""
Something that an unfinished execution waits for.
"""


class CategoryList(TypedDict):
    """
    All categories.
    """

    categories: list[Category]
    """
    The categories.
    """


class HistoryChatCall(TypedDict):
    """
    A call of the chat router.
    """

    operation: HistoryChatOperation
    """
    What was called.
    """
    upstream: bool
    """
    Whether the upstream handled the call, rather than a local model.
    """
    stream: bool
    """
    Whether the answer was streamed.
    """
    input_tokens: int
    """
    Tokens of the prompt.
    """
    output_tokens: int
    """
    Tokens of the answer.
    """
    cached_input_tokens: NotRequired[Optional[int]]
    """
    Prompt tokens that the model read from its cache. Absent if there are none.
    """
    reasoning_tokens: NotRequired[Optional[int]]
    """
    Reasoning tokens in the answer. Absent if there are none.
    """
    tokens_estimated: bool
    """
    Whether the token counts are estimated because the model did not report them.
    """
    audio_seconds: NotRequired[Optional[float]]
    """
    Seconds of audio that were transcribed. Absent for other operations.
    """
    characters: NotRequired[Optional[int]]
    """
    Characters of text that were read aloud. Absent for other operations.
    """
    images: NotRequired[Optional[int]]
    """
    The number of images that were made. Absent for other operations.
    """
    priced: bool
    """
    Whether the model has a price. Otherwise, the call is free.
    """
    cached: NotRequired[Optional[bool]]
    """
    True if the answer comes from the result cache of the model. Absent otherwise.
    """
    first_byte_time: Optional[float]
    """
    Seconds from the request to the first byte of the answer.
    """


class ModelAnswer(TypedDict):
    """
    The model's answer in OpenAI's format, with the cost in `usage`.
    """

    usage: ModelAnswerUsage
    """
    Tokens used by the answer, and their cost.
    """


class ChatChunkChoice(TypedDict):
    """
    The next part of a choice. Models may add other fields.
    """

    index: NotRequired[Optional[int]]
    """
    The number of the choice, starting at 0.
    """
    delta: NotRequired[Optional[JsonObject]]
    """
    The new parts of the message, such as `role`, `content` and `tool_calls`.
    """
    finish_reason: NotRequired[Optional[str]]
    """
    Why the choice has ended, such as `stop` or `length`. Null until then.
    """


class OpenAiError(TypedDict):
    """
    An error in OpenAI's format.
    """

    error: OpenAiErrorBody
    """
    The details of the error.
    """


class TextCompletionChunk(TypedDict):
    """
    A part of a streamed text completion. Models may add other fields.
    """

    choices: list[TextCompletionChunkChoice]
    """
    The next parts of the choices. Empty in the usage event.
    """
    usage: NotRequired[Optional[ChatChunkUsage]]
    """
    Tokens used by the answer. Only in the usage event, unless the model sends it earlier.
    """


class RerankResult(TypedDict):
    """
    The relevance of a document.
    """

    index: int
    """
    The position of the document in the request, starting at 0.
    """
    relevance_score: float
    """
    The relevance, on the scale of the model.
    """
    document: NotRequired[Optional[RerankDocumentObject]]
    """
    The document, if the request wants it.
    """


class Transcript(TypedDict):
    """
    A transcript or translation. Models may add other fields.
    """

    text: str
    """
    The text.
    """
    usage: NotRequired[Optional[MediaUsage]]
    """
    What was used, and its cost.
    """


MediaStreamEvent: TypeAlias = Union[MediaPart, OpenAiError, StreamEnd]
"""
The data of an event of a streamed transcript or image. The model's events are forwarded byte
for byte. A stream that breaks ends with an error.
"""


class ImageAnswer(TypedDict):
    """
    The answer with images. Models may add other fields.
    """

    data: list[AnswerImage]
    """
    The images.
    """
    usage: NotRequired[Optional[MediaUsage]]
    """
    What was used, and its cost.
    """


ResponsePart: TypeAlias = Union[
    ResponsePartInputText,
    ResponsePartInputImage,
    ResponsePartOutputText,
    ResponsePartRefusal,
    ResponsePartReasoningText,
]
"""
A part of a message.
"""


ResponseCallOutput: TypeAlias = Union[str, list[ResponsePart]]
"""
The output of a function.
"""


ResponseReasoningPart: TypeAlias = ResponseReasoningPartReasoningText
"""
A part of reasoning.
"""


class ResponseUsage(TypedDict):
    """
    The tokens of a call, and their cost.
    """

    input_tokens: int
    """
    Tokens of the prompt.
    """
    input_tokens_details: ResponseInputDetails
    """
    Details of the prompt's tokens.
    """
    output_tokens: int
    """
    Tokens of the answer.
    """
    output_tokens_details: ResponseOutputDetails
    """
    Details of the answer's tokens.
    """
    total_tokens: int
    """
    Tokens of the prompt and the answer.
    """
    cost: float
    """
    The cost in US dollars. 0 if the model has no price.
    """


class ResponseReasoning(TypedDict):
    """
    How much the model reasons.
    """

    effort: Optional[ResponseEffort]
    """
    The effort. Null if the model decides.
    """
    summary: Optional[str]
    """
    Always null.
    """


ResponseFormat: TypeAlias = Union[
    ResponseFormatText,
    ResponseFormatJsonObject,
    ResponseFormatJsonSchema,
]
"""
The format of the text.
"""


ResponseToolChoice: TypeAlias = Union[
    ResponseToolMode,
    ResponseNamedFunction,
    ResponseAllowedTools,
]
"""
Whether the model calls tools.
"""


class ResponseTool(TypedDict):
    """
    A function that the model may call.
    """

    type: Literal["function"]
    """
    Always `function`.
    """
    name: str
    """
    The name of the function.
    """
    description: Optional[str]
    """
    What the function does.
    """
    parameters: Optional[JsonObject]
    """
    The JSON Schema of the arguments.
    """
    strict: Optional[bool]
    """
    Whether the arguments must match the schema exactly.
    """


class ResponseStreamEvent8(ResponseStreamEventResponseOutputTextDelta):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent9(ResponseStreamEventResponseOutputTextDone):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent10(ResponseStreamEventResponseRefusalDelta):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent11(ResponseStreamEventResponseRefusalDone):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent12(ResponseStreamEventResponseReasoningTextDelta):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent13(ResponseStreamEventResponseReasoningTextDone):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent14(ResponseStreamEventResponseFunctionCallArgumentsDelta):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent15(ResponseStreamEventResponseFunctionCallArgumentsDone):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent18(ResponseStreamEventError):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


MessageAnswerBlock: TypeAlias = Union[
    MessageAnswerBlockText,
    MessageAnswerBlockToolUse,
    MessageAnswerBlockThinking,
]
"""
A block of an answer.
"""


MessageBlockDelta: TypeAlias = Union[
    MessageBlockDeltaTextDelta,
    MessageBlockDeltaInputJsonDelta,
    MessageBlockDeltaThinkingDelta,
    MessageBlockDeltaSignatureDelta,
]
"""
The next part of a block.
"""


class RouterModelCatalog(TypedDict):
    """
    All models that can be called.
    """

    object: Literal["list"]
    """
    Always `list`.
    """
    data: list[RouterModel]
    """
    Local models by slug, then the models of the upstream.
    """
    upstream: Optional[RouterUpstream]
    """
    The status of the upstream's model list. Null if there is no upstream.
    """


DecisionsAnswer: TypeAlias = Union[
    DecisionsAnswerOul,
    DecisionsAnswerNoul,
    DecisionsAnswerChoice,
    DecisionsAnswerScore,
]
"""
An answer, with the same type as its question.
"""


class DeliveryAttempt(TypedDict):
    """
    A delivery attempt.
    """

    number: int
    """
    The number of the attempt, starting at 1.
    """
    status: DeliveryAttemptStatus
    """
    The outcome of the attempt.
    """
    status_code: Optional[int]
    """
    The HTTP status that the receiver returned.
    """
    response: Optional[str]
    """
    The first 4 KiB of the receiver's response.
    """
    error_message: Optional[str]
    """
    Why the attempt failed.
    """
    duration_ms: Optional[int]
    """
    How long the attempt took, in milliseconds. Null while the attempt is in flight.
    """
    redelivery: bool
    """
    Whether a redelivery triggered this attempt.
    """
    created_at: Optional[str]
    """
    When the attempt was made. Null while the attempt is in flight.
    """


class WebhookEndpointWithSecret(TypedDict):
    """
    A webhook endpoint with a new secret. No other responses contain the secret.
    """

    id: str
    """
    The ID of the endpoint.
    """
    name: Optional[str]
    """
    The name of the endpoint. Null if the endpoint has no name.
    """
    url: str
    """
    The URL that receives the events.
    """
    events: list[WebhookEvent]
    """
    The events that the endpoint receives. An empty list means all events.
    """
    models: list[str]
    """
    The models whose predictions the endpoint receives events for. An empty list means all
    models.
    """
    workflow_ids: list[str]
    """
    The workflows whose executions the endpoint receives events for. An empty list means all
    workflows.
    """
    signature: WebhookSignature
    """
    The signature scheme.
    """
    public_key: NotRequired[Optional[str]]
    """
    The public key that verifies `v1a` signatures.
    """
    send_plain_secret: bool
    """
    Whether deliveries also carry the secret itself, in `X-Webhook-Secret`.
    """
    disabled: bool
    """
    Whether the endpoint is disabled: it receives no events.
    """
    disabled_at: Optional[str]
    """
    When the endpoint was disabled. Null if the endpoint is enabled.
    """
    disabled_reason: Optional[WebhookDisabledReason]
    """
    Why the endpoint was disabled. Null if the endpoint is enabled.
    """
    failing_since: Optional[str]
    """
    When the first attempt failed since the last success. Null if the latest attempt succeeded.
    """
    previous_secret_until: Optional[str]
    """
    The time until which the previous secret also signs deliveries.
    """
    created_at: str
    """
    When the endpoint was created.
    """
    updated_at: str
    """
    When the endpoint was last changed.
    """
    secret: NotRequired[Optional[str]]
    """
    The signing secret: `whsec_` and base64. Absent for `v1a` signatures, whose private key
    never leaves the service.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class WebhookEndpointList(TypedDict):
    """
    The webhook endpoints of an organization.
    """

    webhook_endpoints: list[WebhookEndpoint]
    """
    The endpoints, oldest first.
    """


class UploadAnnounced(TypedDict):
    """
    A presigned upload.
    """

    id: str
    """
    The ID of the upload, and later of the file.
    """
    presigned_url: str
    """
    The URL to upload the content to with `PUT`. No API key is needed.
    """
    public_url: str
    """
    The URL of the content after the upload. No API key is needed.
    """
    expires_at: str
    """
    When the upload URL expires.
    """
    required_headers: UploadHeaders
    """
    The headers that the upload must have.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class File(TypedDict):
    """
    A file, or a pending presigned upload.
    """

    id: str
    """
    The ID of the file.
    """
    filename: Optional[str]
    """
    The name that the file was uploaded with.
    """
    content_type: str
    """
    The content type.
    """
    size: Optional[int]
    """
    The size in bytes.
    """
    sha256: Optional[str]
    """
    The SHA-256 hash, as 64 hexadecimal digits.
    """
    source: FileSource
    """
    Whether the file was uploaded or produced by a model.
    """
    object: str
    """
    The object type for OpenAI's clients: always `file`.
    """
    bytes: Optional[int]
    """
    The size in bytes, for OpenAI's clients.
    """
    purpose: NotRequired[Optional[str]]
    """
    What the file is for, as given with the upload, or `batch_output`.
    """
    execution_id: NotRequired[Optional[str]]
    """
    The execution that produced this file as an output.
    """
    created_at: str
    """
    When the file or the upload was created.
    """
    expires_at: str
    """
    When the file is deleted. For a pending upload, when the upload URL expires.
    """
    url: str
    """
    A URL for the content, which works without an API key.
    """
    status: FileStatus
    """
    Whether the content has been uploaded.
    """


class BatchErrors(TypedDict):
    """
    A list of errors.
    """

    object: str
    """
    The object type: always `list`.
    """
    data: list[BatchError]
    """
    The errors, at most 100.
    """


class FileList(TypedDict):
    """
    A page of files, newest first.
    """

    files: list[File]
    """
    The files, newest first.
    """
    object: NotRequired[str]
    """
    The object type: always `list`.
    """
    data: NotRequired[list[File]]
    """
    The files, newest first.
    """
    has_more: bool
    """
    Whether there is another page.
    """
    next_cursor: Optional[str]
    """
    The `cursor` for the next page.
    """


class Secrets(TypedDict):
    """
    The named secrets of an organization.
    """

    secrets: list[Secret]
    """
    The secrets, sorted by name.
    """


class KeyInfo(TypedDict):
    """
    The API key of a request.
    """

    key_id: str
    """
    The ID of the key.
    """
    name: str
    """
    The name of the key.
    """
    expires_at: Optional[str]
    """
    When the key expires. Null if the key never expires.
    """
    models: Optional[list[str]]
    """
    The slugs and IDs of the models that the key may use. Null for all models.
    """
    scopes: Optional[list[KeyScope]]
    """
    What the key may do. Null for everything except work as a worker.
    """
    spend: float
    """
    The charges in the current period of the budget, in US dollars; without a period, all
    charges of the key.
    """
    max_budget: Optional[float]
    """
    The maximum charges in a period, in US dollars. Null for no maximum.
    """
    budget_duration: Optional[str]
    """
    The period of the budget. Null for the lifetime of the key.
    """
    budget_reset_at: Optional[str]
    """
    When the next period of the budget begins. Null without a period.
    """
    rpm_limit: Optional[int]
    """
    The maximum number of requests per minute. Null for no maximum.
    """
    tpm_limit: Optional[int]
    """
    The maximum number of tokens per minute. Null for no maximum.
    """
    max_parallel_requests: Optional[int]
    """
    The maximum number of requests in flight. Null for no maximum.
    """
    tags: list[str]
    """
    Tags for grouping keys.
    """
    metadata: Optional[JsonObject]
    """
    Data of the operator about the key. Null if there is none.
    """
    blocked: bool
    """
    Whether all requests with the key are refused.
    """


class Limits(TypedDict):
    """
    An organization's limits and their usage.
    """

    requests_per_second: Limit
    """
    Requests per second, over all keys of the organization.
    """
    running: Limit
    """
    Running executions.
    """
    queued: Limit
    """
    Unfinished executions that are not running.
    """
    storage_bytes: Limit
    """
    Total size of files in bytes.
    """
    monthly_budget_usd: Budget
    """
    The budget of the current calendar month (UTC) and the charges in it.
    """


class UsageReport(TypedDict):
    """
    The usage of an organization, by group.
    """

    data: list[UsageGroup]
    """
    The groups, sorted by their fields.
    """


class ReplicatePrediction(TypedDict):
    """
    A prediction, as Replicate's API and its webhooks show it.
    """

    id: str
    """
    The ID of the prediction.
    """
    model: str
    """
    The requested model, as `owner/name`.
    """
    version: str
    """
    The ID of the model's version.
    """
    status: ReplicateStatus
    """
    The status of the prediction.
    """
    input: Any
    """
    The input, with the defaults of the model's schema filled in. Null if the input is hidden
    or no longer stored.
    """
    output: Any
    """
    The output. Null until the prediction has succeeded, except in updates of a webhook.
    """
    logs: str
    """
    The log output of all attempts.
    """
    error: Optional[str]
    """
    Why the prediction failed. Null otherwise.
    """
    metrics: ReplicateMetrics
    """
    Durations in seconds.
    """
    source: Literal["api"]
    """
    Always `api`.
    """
    data_removed: bool
    """
    Whether the input is no longer stored.
    """
    created_at: str
    """
    When the prediction was created.
    """
    started_at: Optional[str]
    """
    When the first attempt started. Null until then.
    """
    completed_at: Optional[str]
    """
    When the prediction ended. Null until then.
    """
    urls: ReplicateUrls
    """
    URLs of this prediction.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class ReplicatePageOfReplicatePrediction(TypedDict):
    """
    A page of a list.
    """

    previous: Optional[str]
    """
    The URL of the previous page. Null on the first page.
    """
    next: Optional[str]
    """
    The URL of the next page. Null on the last page.
    """
    results: list[ReplicatePrediction]
    """
    The items of this page.
    """


ReplicateEvent: TypeAlias = Union[
    ReplicateTextEvent,
    ReplicateErrorEvent,
    ReplicateDoneEvent,
]
"""
The data of an event in the stream of a prediction: text for `output` and `logs`, JSON for
`error` and `done`.
"""


class ReplicateModel(TypedDict):
    """
    A model.
    """

    url: str
    """
    The URL of the model in the service's own API.
    """
    owner: str
    """
    The part of the slug before the first `/`, or `local`.
    """
    name: str
    """
    The part of the slug after the first `/`, or the whole slug if it contains no `/`.
    """
    description: str
    """
    A description for people.
    """
    visibility: Literal["private"]
    """
    Always `private`: the models belong to this service.
    """
    run_count: Literal[0]
    """
    Always 0: this API does not count the runs of a model.
    """
    latest_version: ReplicateVersion
    """
    The model's only version.
    """


class ReplicateFile(TypedDict):
    """
    An uploaded file, or an output of a model.
    """

    id: str
    """
    The ID of the file.
    """
    name: str
    """
    The name of the file.
    """
    content_type: str
    """
    The content type.
    """
    size: int
    """
    The size in bytes.
    """
    etag: str
    """
    The SHA-256 hash, as 64 hexadecimal digits.
    """
    checksums: dict[str, str]
    """
    Hashes of the content by algorithm.
    """
    metadata: dict[str, Any]
    """
    The metadata that the file was uploaded with.
    """
    created_at: str
    """
    When the file was created.
    """
    expires_at: str
    """
    When the file is deleted.
    """
    urls: ReplicateFileUrls
    """
    URLs of this file.
    """


class ReplicatePageOfReplicateFile(TypedDict):
    """
    A page of a list.
    """

    previous: Optional[str]
    """
    The URL of the previous page. Null on the first page.
    """
    next: Optional[str]
    """
    The URL of the next page. Null on the last page.
    """
    results: list[ReplicateFile]
    """
    The items of this page.
    """


class ReplicateError(TypedDict):
    """
    An error (RFC 9457).
    """

    title: str
    """
    The meaning of the status.
    """
    detail: str
    """
    A message for people.
    """
    status: int
    """
    The HTTP status.
    """
    invalid_fields: NotRequired[list[ReplicateInvalidField]]
    """
    The fields of the input that do not match the schema. Absent for other errors.
    """


class WorkerOutput(TypedDict, closed=True):
    """
    The output of a job.
    """

    attempt: int
    """
    The attempt number that the claim returned.
    """
    output: Any
    """
    The whole output. A file is a `data:` URI.
    """
    metrics: NotRequired[Optional[JsonObject]]
    """
    The usage of the run: `input_tokens`, `output_tokens`, and `cost` in US dollars. Other
    fields have no effect unless the manifest's `cost.report` refers to them.
    """


class WorkflowModelFallback(TypedDict, closed=True):
    """
    The model that runs if the step's model fails.
    """

    enabled: NotRequired[Optional[bool]]
    """
    If false, the fallback is not used.
    """
    model: NotRequired[Optional[str]]
    """
    The slug of the model.
    """
    version: NotRequired[Any]
    """
    Accepted and ignored.
    """
    params: NotRequired[Optional[JsonObject]]
    """
    The inputs of the model.
    """


WorkflowAuth: TypeAlias = Union[
    WorkflowAuthBasic,
    WorkflowAuthBearer,
    WorkflowAuthApiKey,
]
"""
The credentials of a request.
"""


class WorkflowHttpFallback(TypedDict, closed=True):
    """
    The request that is sent if the step's request fails.
    """

    method: NotRequired[Optional[str]]
    """
    The method, in any letter case; by default GET.
    """
    url: str
    """
    The URL. References cannot change its host or the number of its path segments.
    """
    headers: NotRequired[Optional[WorkflowHeaders]]
    """
    The header fields.
    """
    query_params: NotRequired[Optional[WorkflowQueryParams]]
    """
    The query parameters.
    """
    body: NotRequired[Any]
    """
    JSON, or a string that is sent unchanged.
    """
    enabled: NotRequired[Optional[bool]]
    """
    If false, the fallback is not used.
    """


WorkflowConditionAnd = TypedDict(
    "WorkflowConditionAnd",
    {
        "and": list[JsonObject]
    },
    closed=True,
)


WorkflowConditionOr = TypedDict(
    "WorkflowConditionOr",
    {
        "or": list[JsonObject]
    },
    closed=True,
)


WorkflowConditionNot = TypedDict(
    "WorkflowConditionNot",
    {
        "not": JsonObject
    },
    closed=True,
)


class WorkflowBranch(TypedDict, closed=True):
    """
    A branch.
    """

    steps: NotRequired[Optional[list[JsonObject]]]
    """
    The steps.
    """


class WorkflowEvent(TypedDict, closed=True):
    """
    The event that a step waits for.
    """

    name: str
    """
    The name of the event.
    """
    schema: NotRequired[Optional[JsonObject]]
    """
    The JSON Schema of the event's payload.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    default: NotRequired[Any]
    """
    The output on a timeout.
    """


class NewWorkflowSchedule(TypedDict, closed=True):
    """
    A workflow's schedule to create.
    """

    cron: str
    """
    A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    """
    inputs: NotRequired[Optional[JsonObject]]
    """
    The workflow's inputs, which must match the version's `input_schema`. At most 48 KiB.
    """
    version_id: NotRequired[Optional[str]]
    """
    The workflow version to run. Omit or leave empty to run the version that is latest when the
    schedule fires.
    """
    timezone: NotRequired[Optional[str]]
    """
    An IANA time zone name. Defaults to UTC.
    """
    name: NotRequired[Optional[str]]
    """
    A display name, which does not have to be unique. An empty string means no name.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, for example after the service was down. Of several
    missed firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and the firings that it
    skips are not made up for later.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string means no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string means no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string means no webhook. An update
    that changes the URL keeps the secret.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string means no signature.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Null means the
    service's `webhooks.send_plain_secret`. An update that changes the URL keeps this setting.
    """


class WorkflowSchedule(TypedDict, closed=True):
    """
    Changes to a workflow's schedule. Omitted fields keep their value.
    """

    cron: NotRequired[Optional[str]]
    """
    A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    """
    inputs: NotRequired[Optional[JsonObject]]
    """
    The workflow's inputs, which must match the version's `input_schema`. At most 48 KiB.
    """
    version_id: NotRequired[Optional[str]]
    """
    The workflow version to run. Omit or leave empty to run the version that is latest when the
    schedule fires.
    """
    timezone: NotRequired[Optional[str]]
    """
    An IANA time zone name. Defaults to UTC.
    """
    name: NotRequired[Optional[str]]
    """
    A display name, which does not have to be unique. An empty string means no name.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, for example after the service was down. Of several
    missed firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and the firings that it
    skips are not made up for later.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string means no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string means no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string means no webhook. An update
    that changes the URL keeps the secret.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string means no signature.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Null means the
    service's `webhooks.send_plain_secret`. An update that changes the URL keeps this setting.
    """


class Trigger(TypedDict):
    """
    A workflow trigger.
    """

    version_id: NotRequired[Optional[str]]
    """
    The version to run. Defaults to the latest.
    """
    inputs: NotRequired[Optional[JsonObject]]
    """
    The inputs. Must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the execution ends. An empty string means no webhook.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhook also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    service's `webhooks.send_plain_secret`. Null means the default.
    """


class VersionTrigger(TypedDict):
    """
    A trigger of the version in the path.
    """

    inputs: NotRequired[Optional[JsonObject]]
    """
    The inputs. Must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the execution ends. An empty string means no webhook.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhook also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    service's `webhooks.send_plain_secret`. Null means the default.
    """


class PublicTrigger(TypedDict):
    """
    A trigger of a shared version.
    """

    api_key: NotRequired[Optional[str]]
    """
    The caller's API key, as an alternative to a header.
    """
    inputs: NotRequired[Optional[JsonObject]]
    """
    The inputs. Must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the execution ends. An empty string means no webhook.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhook also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    service's `webhooks.send_plain_secret`. Null means the default.
    """


class BulkJobRequest(TypedDict, closed=True):
    """
    A bulk job to start.
    """

    action: BulkJobAction
    """
    What to do with each execution.
    """
    filter: NotRequired[BulkJobFilter]
    """
    Which executions to process. Omitted fields match all.
    """
    limit: NotRequired[Optional[int]]
    """
    The maximum number of executions, newest first. Defaults to 100000.
    """


ChatMessageContent: TypeAlias = Union[str, list[JsonObject]]
"""
The content of a message, as text or as a list of parts.
"""


class EmbeddingsRequest(TypedDict):
    """
    Embeddings to create. Fields that are not listed here are passed to the model unchanged.
    """

    model: Model3
    """
    The slug of a local embedding model, or a model ID exactly as the upstream lists it.
    """
    input: EmbeddingsInput
    """
    The text or texts to embed.
    """
    dimensions: NotRequired[Optional[int]]
    """
    The number of dimensions of each embedding, if the model supports a choice.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    """


class TextCompletionRequest(TypedDict):
    """
    A text completion to create. Fields that are not listed here are passed to the model unchanged.
    """

    model: Model4
    """
    The slug of a local model of the kind `completions` or the runner `llm`, or a model ID exactly
    as the upstream lists it.
    """
    prompt: TextCompletionPrompt
    """
    The text or texts to continue.
    """
    suffix: NotRequired[Optional[str]]
    """
    The text after the completion, for models that fill in the middle.
    """
    echo: NotRequired[Optional[bool]]
    """
    Whether the answer begins with the prompt.
    """
    stream: NotRequired[Optional[bool]]
    """
    Whether to stream the answer as server-sent events.
    """
    stream_options: NotRequired[Optional[ChatStreamOptions]]
    """
    Options for a streamed answer.
    """
    temperature: NotRequired[Optional[float]]
    """
    The sampling temperature. Higher values make the answer more random.
    """
    top_p: NotRequired[Optional[float]]
    """
    Sample only from the most likely tokens whose probabilities add up to this value.
    """
    presence_penalty: NotRequired[Optional[float]]
    """
    Positive values make tokens that already occur in the text less likely.
    """
    frequency_penalty: NotRequired[Optional[float]]
    """
    Positive values make tokens less likely the more often they occur in the text.
    """
    stop: NotRequired[Optional[OneTextOrSeveral]]
    """
    The string at which the model stops, or up to 64 such strings.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    """
    n: NotRequired[Optional[int]]
    """
    The number of answers to each prompt. At most 128 answers in total.
    """
    best_of: NotRequired[Optional[int]]
    """
    The number of answers to each prompt of which the model's server returns the best `n`.
    """
    logprobs: NotRequired[Optional[int]]
    """
    The number of most likely tokens to report at each position.
    """
    max_tokens: NotRequired[Optional[int]]
    """
    The maximum number of tokens per answer. -1 means limited only by the context length.
    """


class RerankRequest(TypedDict):
    """
    Documents to sort by their relevance to a query. Fields that are not listed here are passed to
    the model unchanged.
    """

    model: Model5
    """
    The slug of a local model of the kind `rerank`, or a model ID exactly as the upstream lists
    it.
    """
    query: str
    """
    The text to which the documents may be relevant.
    """
    documents: list[RerankDocument]
    """
    The documents.
    """
    top_n: NotRequired[Optional[int]]
    """
    The maximum number of results. Defaults to the number of documents.
    """
    return_documents: NotRequired[Optional[bool]]
    """
    Whether the results have their documents.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    """


TranscriptionForm = TypedDict(
    "TranscriptionForm",
    {
        "file": bytes,
        "model": Model6,
        "language": NotRequired[Optional[str]],
        "prompt": NotRequired[Optional[str]],
        "response_format": NotRequired[Optional[TranscriptFormat]],
        "temperature": NotRequired[Optional[float]],
        "timestamp_granularities[]": NotRequired[Optional[list[TimestampGranularity]]],
        "stream": NotRequired[Optional[bool]],
    },
)


SpeechVoice: TypeAlias = Union[str, SpeechCustomVoice]
"""
A voice: its name, or an object with its ID.
"""


class ImageRequest(TypedDict):
    """
    Images to make. Fields that are not listed here are passed to the model unchanged.
    """

    model: Model9
    """
    The slug of a local model of the kind `images`, or a model ID exactly as the upstream lists
    it.
    """
    prompt: str
    """
    What the images show.
    """
    n: NotRequired[Optional[int]]
    """
    The number of images.
    """
    size: NotRequired[Optional[str]]
    """
    The size, such as `1024x1024`.
    """
    response_format: NotRequired[Optional[ImageFormat]]
    """
    Whether the answer has URLs of files of this service, or the bytes in base64, which is the
    default.
    """
    stream: NotRequired[Optional[bool]]
    """
    Whether to stream the images as server-sent events.
    """


ResponseInputPart: TypeAlias = Union[
    ResponseInputPartInputText,
    ResponseInputPartInputImage,
]
"""
A part of a message to the model, or of the output of a function.
"""


ResponseAnswerPart: TypeAlias = Union[
    ResponseAnswerPartOutputText,
    ResponseAnswerPartInputText,
    ResponseAnswerPartRefusal,
]
"""
A part of a message of the model.
"""


class ResponseInputReasoning(TypedDict):
    """
    Reasoning. It is returned to the model that wrote it, if it has `encrypted_content`.
    """

    type: Literal["reasoning"]
    """
    Always `reasoning`.
    """
    content: NotRequired[Optional[list[ResponseReasoningPart]]]
    """
    The text of the reasoning.
    """
    encrypted_content: NotRequired[Optional[str]]
    """
    The `encrypted_content` of the answer.
    """
    id: NotRequired[Optional[str]]
    """
    The ID of the item.
    """


class ResponseInputTool(TypedDict):
    """
    A function that the model may call.
    """

    type: Literal["function"]
    """
    Always `function`: other tools of OpenAI do not exist here.
    """
    name: str
    """
    The name of the function.
    """
    description: NotRequired[Optional[str]]
    """
    What the function does.
    """
    parameters: NotRequired[Optional[JsonObject]]
    """
    The JSON Schema of the arguments.
    """
    strict: NotRequired[Optional[bool]]
    """
    Whether the arguments must match the schema exactly.
    """


ResponseInputFormat: TypeAlias = Union[
    ResponseInputFormatText,
    ResponseInputFormatJsonObject,
    ResponseInputFormatJsonSchema,
]
"""
The format of the text.
"""


MessageImageSource: TypeAlias = Union[MessageImageSourceBase64, MessageImageSourceUrl]
"""
Where an image is.
"""


MessageAssistantBlock: TypeAlias = Union[
    MessageAssistantBlockText,
    MessageAssistantBlockToolUse,
    MessageAssistantBlockThinking,
]
"""
A block of a model's message.
"""


MessageSystemBlock: TypeAlias = MessageSystemBlockText
"""
A block of the system prompt.
"""


class MessageTool(TypedDict):
    """
    A function that the model may call.
    """

    type: NotRequired[Optional[MessageToolKind]]
    """
    Only `custom`, which is the default. Tools that Anthropic's servers run are not available.
    """
    name: str
    """
    The name of the function.
    """
    description: NotRequired[Optional[str]]
    """
    What the function does.
    """
    input_schema: dict[str, Any]
    """
    The JSON Schema of the arguments.
    """
    strict: NotRequired[Optional[bool]]
    """
    Whether the arguments must match the schema exactly.
    """


MessageToolChoice: TypeAlias = Union[
    MessageToolChoiceAuto,
    MessageToolChoiceAny,
    MessageToolChoiceTool,
    MessageToolChoiceNone,
]
"""
Whether the model calls tools.
"""


MessageThinking: TypeAlias = Union[
    MessageThinkingEnabled,
    MessageThinkingAdaptive,
    MessageThinkingDisabled,
]
"""
Whether the model reasons before it answers.
"""


MessageOutputFormat: TypeAlias = MessageOutputFormatJsonSchema
"""
The format of the answer.
"""


DecisionsState: TypeAlias = Union[str, JsonObject, list[Any]]
"""
The state that questions are about: text or JSON.
"""


DecisionsQuestion: TypeAlias = Union[
    DecisionsQuestionOul,
    DecisionsQuestionNoul,
    DecisionsQuestionChoice,
    DecisionsQuestionScore,
]
"""
A question.
"""


Replay = TypedDict(
    "Replay",
    {
        "from": str,
        "to": str,
        "status": NotRequired[Optional[ReplayStatus]],
    },
)


class NewWebhookEndpoint(TypedDict, closed=True):
    """
    A webhook endpoint to create.
    """

    url: str
    """
    The URL that receives the events.
    """
    name: NotRequired[Optional[str]]
    """
    A name, unique within the organization. An empty string means no name.
    """
    events: NotRequired[Optional[list[WebhookSubscription]]]
    """
    The events to receive. Omit or leave empty to receive all events.
    """
    models: NotRequired[Optional[list[Model17]]]
    """
    Only events for predictions of these models. Omit or leave empty for all models.
    """
    workflow_ids: NotRequired[Optional[list[str]]]
    """
    Only events for executions of these workflows. Omit or leave empty for all workflows.
    """
    signature: NotRequired[Optional[WebhookSignature]]
    """
    The signature scheme, which cannot be changed later. Defaults to `v1`.
    """
    send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether deliveries also carry the secret itself, in `X-Webhook-Secret`, for receivers that
    compare it. Defaults to false. Only with the signature `v1`.
    """
    disabled: NotRequired[Optional[bool]]
    """
    Whether the endpoint is disabled: it receives no events.
    """


class NewModelSchedule(TypedDict, closed=True):
    """
    A model's schedule to create.
    """

    cron: str
    """
    A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    """
    model: str
    """
    The model's slug.
    """
    version: str
    """
    The model's version, as in a prediction.
    """
    input: NotRequired[Optional[JsonObject]]
    """
    The model's input, which must match its request schema. At most 48 KiB.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use. An empty string means that no chain is selected.
    """
    timezone: NotRequired[Optional[str]]
    """
    An IANA time zone name. Defaults to UTC.
    """
    name: NotRequired[Optional[str]]
    """
    A display name, which does not have to be unique. An empty string means no name.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, for example after the service was down. Of several
    missed firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and the firings that it
    skips are not made up for later.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string means no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string means no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string means no webhook. An update
    that changes the URL keeps the secret.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string means no signature.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Null means the
    service's `webhooks.send_plain_secret`. An update that changes the URL keeps this setting.
    """


class ScheduleChange(TypedDict, closed=True):
    """
    Changes to a schedule of a workflow or a model. Omitted fields keep their value. Fields that
    apply only to the other kind of schedule are refused.
    """

    cron: NotRequired[Optional[str]]
    """
    A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    Required for a new schedule.
    """
    model: NotRequired[Optional[str]]
    """
    The model's slug. Only for the schedule of a model.
    """
    version: NotRequired[Optional[str]]
    """
    The model's version, as in a prediction. Only for the schedule of a model.
    """
    input: NotRequired[Optional[JsonObject]]
    """
    The model's input, which must match its request schema. At most 48 KiB.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use. An empty string means that no chain is selected.
    """
    inputs: NotRequired[Optional[JsonObject]]
    """
    The workflow's inputs, which must match the version's `input_schema`. At most 48 KiB.
    """
    version_id: NotRequired[Optional[str]]
    """
    The workflow version to run. Omit or leave empty to run the version that is latest when the
    schedule fires.
    """
    timezone: NotRequired[Optional[str]]
    """
    An IANA time zone name. Defaults to UTC.
    """
    name: NotRequired[Optional[str]]
    """
    A display name, which does not have to be unique. An empty string means no name.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, for example after the service was down. Of several
    missed firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and the firings that it
    skips are not made up for later.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string means no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string means no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string means no webhook. An update
    that changes the URL keeps the secret.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string means no signature.
    """
    webhook_send_plain_secret: NotRequired[Optional[bool]]
    """
    Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Null means the
    service's `webhooks.send_plain_secret`. An update that changes the URL keeps this setting.
    """


class ReplicateNewPrediction(TypedDict):
    """
    A prediction to create with a version.
    """

    version: str
    """
    The ID of a version, `owner/name`, or `owner/name:id`.
    """
    input: dict[str, Any]
    """
    The model's input. Must match `components.schemas.Input` of the version's schema.
    """
    webhook: NotRequired[Optional[str]]
    """
    The URL to notify of the events in `webhook_events_filter`. An empty string means no
    webhook.
    """
    webhook_completed: NotRequired[Optional[str]]
    """
    An older field for a webhook: the URL to notify only of the end of the prediction. Ignored
    if `webhook` is set.
    """
    webhook_events_filter: NotRequired[Optional[list[ReplicateWebhookEvent]]]
    """
    The events of which the webhook is notified. Defaults to `output` and `completed`.
    """
    stream: NotRequired[Optional[bool]]
    """
    Accepted and ignored, because every prediction can be streamed.
    """


class ResponseItemMessage(TypedDict):
    """
    A message.
    """

    type: Literal["message"]
    """
    Always `message`.
    """
    id: str
    """
    The ID of the item.
    """
    status: ResponseItemStatus
    """
    Whether the item is complete.
    """
    role: ResponseRole
    """
    The author's role.
    """
    content: list[ResponsePart]
    """
    The parts of the message.
    """


class ResponseItemFunctionCallOutput(TypedDict):
    """
    The output of a function.
    """

    type: Literal["function_call_output"]
    """
    Always `function_call_output`.
    """
    id: str
    """
    The ID of the item.
    """
    status: ResponseItemStatus
    """
    Whether the item is complete.
    """
    call_id: str
    """
    The `call_id` of the call.
    """
    output: ResponseCallOutput
    """
    The output.
    """


class ResponseItemReasoning(TypedDict):
    """
    The model's reasoning.
    """

    type: Literal["reasoning"]
    """
    Always `reasoning`.
    """
    id: str
    """
    The ID of the item.
    """
    status: ResponseItemStatus
    """
    Whether the item is complete.
    """
    summary: list[ResponseReasoningPart]
    """
    Always empty.
    """
    content: list[ResponseReasoningPart]
    """
    The text of the reasoning.
    """
    encrypted_content: NotRequired[Optional[str]]
    """
    To be returned with the item: names the field in which the model expects its reasoning.
    """


class ResponseStreamEventResponseContentPartAdded(TypedDict):
    """
    A part of an item begins.
    """

    type: Literal["response.content_part.added"]
    """
    Always `response.content_part.added`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    part: ResponsePart
    """
    The part without text.
    """


class ResponseStreamEventResponseContentPartDone(TypedDict):
    """
    A part of an item is complete.
    """

    type: Literal["response.content_part.done"]
    """
    Always `response.content_part.done`.
    """
    item_id: str
    """
    The ID of the item.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    content_index: int
    """
    The number of the part within the item, starting at 0.
    """
    part: ResponsePart
    """
    The part.
    """


class MessageStreamEventContentBlockStart(TypedDict):
    """
    A block begins.
    """

    type: Literal["content_block_start"]
    """
    Always `content_block_start`.
    """
    index: int
    """
    The number of the block, starting at 0.
    """
    content_block: MessageAnswerBlock
    """
    The block without content.
    """


class MessageStreamEventContentBlockDelta(TypedDict):
    """
    A block continues.
    """

    type: Literal["content_block_delta"]
    """
    Always `content_block_delta`.
    """
    index: int
    """
    The number of the block.
    """
    delta: MessageBlockDelta
    """
    The next part of the block.
    """


class WorkflowStepModel(TypedDict, closed=True):
    """
    Runs a model of the catalog.
    """

    type: Literal["model"]
    """
    Always `model`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    retry: NotRequired[Optional[WorkflowRetry]]
    """
    The retries after errors.
    """
    on_exhausted: NotRequired[Optional[Literal["fail", "pause"]]]
    """
    What happens after the last attempt; by default the step fails.
    """
    model: str
    """
    The slug of the model.
    """
    version: NotRequired[Any]
    """
    Accepted and ignored.
    """
    params: NotRequired[Optional[JsonObject]]
    """
    The inputs of the model.
    """
    fallback: NotRequired[Optional[WorkflowModelFallback]]
    """
    The replacement that runs if the step fails.
    """


class WorkflowStepHttp(TypedDict, closed=True):
    """
    Sends an HTTP request.
    """

    type: Literal["http"]
    """
    Always `http`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    retry: NotRequired[Optional[WorkflowRetry]]
    """
    The retries after errors.
    """
    on_exhausted: NotRequired[Optional[Literal["fail", "pause"]]]
    """
    What happens after the last attempt; by default the step fails.
    """
    method: NotRequired[Optional[str]]
    """
    The method, in any letter case; by default GET.
    """
    url: str
    """
    The URL. References cannot change its host or the number of its path segments.
    """
    headers: NotRequired[Optional[WorkflowHeaders]]
    """
    The header fields.
    """
    query_params: NotRequired[Optional[WorkflowQueryParams]]
    """
    The query parameters.
    """
    body: NotRequired[Any]
    """
    JSON, or a string that is sent unchanged.
    """
    timeout: NotRequired[Optional[float]]
    """
    The same as `timeout_seconds`.
    """
    auth: NotRequired[Optional[WorkflowAuth]]
    """
    The credentials.
    """
    fail_when: NotRequired[Optional[Union[Literal["connection_error"], Literal["non_2xx"], list[int]]]]
    """
    The responses that fail the step.
    """
    fallback: NotRequired[Optional[WorkflowHttpFallback]]
    """
    The replacement that runs if the step fails.
    """


class Branch(TypedDict, closed=True):
    """
    A branch.
    """

    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    steps: list[JsonObject]
    """
    The steps.
    """


class WorkflowStepParallel(TypedDict, closed=True):
    """
    Runs branches at the same time.
    """

    type: Literal["parallel"]
    """
    Always `parallel`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    branches: list[Branch]
    """
    The branches, which run at the same time.
    """


class WorkflowStepMap(TypedDict, closed=True):
    """
    Runs steps for each item of an array.
    """

    type: Literal["map"]
    """
    Always `map`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    items: Union[list[Any], str]
    """
    An array, or a reference to an array.
    """
    item_name: NotRequired[Optional[str]]
    """
    The name of the item in references; by default `item`.
    """
    max_concurrency: NotRequired[Optional[int]]
    """
    The number of items that run at the same time.
    """
    output: NotRequired[Any]
    """
    The output of each item.
    """
    steps: list[JsonObject]
    """
    The steps.
    """


class WorkflowStepWait(TypedDict, closed=True):
    """
    Waits for a time or an event. Needs exactly one of seconds, until and event.
    """

    type: Literal["wait"]
    """
    Always `wait`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    seconds: NotRequired[Optional[Union[float, str]]]
    """
    The time to wait, or a reference to the time.
    """
    until: NotRequired[Optional[str]]
    """
    An RFC 3339 time, or a reference to such a time.
    """
    event: NotRequired[Optional[WorkflowEvent]]
    """
    The event to wait for.
    """


class WorkflowStepWorkflow(TypedDict, closed=True):
    """
    Runs another workflow.
    """

    type: Literal["workflow"]
    """
    Always `workflow`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    retry: NotRequired[Optional[WorkflowRetry]]
    """
    The retries after errors.
    """
    on_exhausted: NotRequired[Optional[Literal["fail", "pause"]]]
    """
    What happens after the last attempt; by default the step fails.
    """
    workflow: str
    """
    The ID or the slug of the workflow.
    """
    version_id: NotRequired[Optional[str]]
    """
    The version; by default the latest one.
    """
    inputs: NotRequired[Optional[JsonObject]]
    """
    The inputs of the workflow.
    """
    wait: NotRequired[Optional[bool]]
    """
    If false, the step ends when the workflow has started.
    """


class MessageUserBlockImage(TypedDict):
    """
    An image.
    """

    type: Literal["image"]
    """
    Always `image`.
    """
    source: MessageImageSource
    """
    Where the image is.
    """


class MessagePlainBlockImage(TypedDict):
    """
    An image.
    """

    type: Literal["image"]
    """
    Always `image`.
    """
    source: MessageImageSource
    """
    Where the image is.
    """


class Model(TypedDict):
    """
    A model. All keys are always present.
    """

    title: str
    """
    The title of the model.
    """
    slug: str
    """
    The slug of the model, to use as `model` in predictions.
    """
    version: str
    """
    Always `0.0.1`. Deprecated.
    """
    output_type: OutputType
    """
    The type of the output.
    """
    request_schema: Any
    """
    The JSON Schema of the model's input.
    """
    cost: Optional[ModelCost]
    """
    The estimated cost. Null if unknown.
    """


class RouterModels(TypedDict):
    """
    The models that can be called, in OpenAI's format.
    """

    object: Literal["list"]
    """
    Always `list`.
    """
    data: list[RouterModel]
    """
    Local models by slug, then the agent, then the models that the upstream lists.
    """


ModelDetail: TypeAlias = Union[Model, RouterModel, MessageModel]
"""
A model, in the catalog's, OpenAI's or Anthropic's format.
"""


class Prediction(TypedDict):
    """
    A prediction.
    """

    id: str
    """
    The ID of the prediction.
    """
    model: str
    """
    The requested model.
    """
    status: PredictionStatus
    """
    The status of the prediction.
    """
    input: Any
    """
    The input, with the defaults of the model's schema filled in. Null if the input is hidden.
    """
    input_error: NotRequired[Optional[str]]
    """
    Why the input is missing or damaged on disk.
    """
    output: Any
    """
    The output. Null until the prediction has succeeded.
    """
    output_error: NotRequired[Optional[str]]
    """
    Why the output is missing or damaged on disk.
    """
    logs: Optional[str]
    """
    Log output of the attempts. While the prediction is queued, its position.
    """
    error: Optional[str]
    """
    Why the prediction failed.
    """
    error_classification: Optional[ErrorClassification]
    """
    The class of the error.
    """
    metrics: PredictionMetrics
    """
    Cost and durations.
    """
    urls: PredictionUrls
    """
    URLs of this prediction.
    """
    created_at: str
    """
    When the prediction was created.
    """
    started_at: Optional[str]
    """
    When the first attempt started. Null until then.
    """
    completed_at: Optional[str]
    """
    When the prediction ended. Null until then.
    """
    attempts: list[PredictionAttempt]
    """
    The attempts in order, including those of fallback models.
    """


PredictionEvent: TypeAlias = Union[
    CreatedEvent,
    AttemptEvent,
    LogEvent,
    OutputEvent,
    ResetEvent,
    Prediction,
]
"""
The data of an event in the stream of a prediction. The schema of each event begins with the event's name; the data of `end` is the whole of a prediction.
"""


class ExecutionList(TypedDict):
    """
    A page of a workflow's executions.
    """

    executions: list[ExecutionSummary]
    """
    The executions, newest first.
    """
    total_count: int
    """
    The number of matching executions.
    """
    limit: NotRequired[Optional[int]]
    """
    Only on the base host.
    """
    offset: NotRequired[Optional[int]]
    """
    Only on the workflows host.
    """


class BulkAccepted(TypedDict):
    """
    The result of a bulk trigger.
    """

    bulk_id: str
    """
    The ID of the bulk trigger, which selects its executions in lists.
    """
    executions: list[BulkEntry]
    """
    One result for each input, in the order of the inputs.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class ExecutionStep(TypedDict):
    """
    A step of an execution.
    """

    step_id: str
    """
    The ID of the step in the definition.
    """
    name: NotRequired[Optional[str]]
    """
    The name of the step, if the definition has one.
    """
    type: Literal["model", "http", "parallel", "choice", "map", "wait", "pass", "workflow"]
    """
    The type of the step, such as `model` or `http`.
    """
    status: StepStatus
    """
    The status of the step.
    """
    output: Any
    """
    The output. Null until the step has completed.
    """
    output_error: NotRequired[Optional[str]]
    """
    Why the output is missing or damaged on disk.
    """
    primary: Any
    """
    The first element if the output is an array, else the whole output.
    """
    input: Any
    """
    The step's input with all references resolved. Null if the input is hidden.
    """
    input_error: NotRequired[Optional[str]]
    """
    Why the input is missing or damaged on disk.
    """
    started_at: Optional[str]
    """
    When the step started. Null until then.
    """
    completed_at: Optional[str]
    """
    When the step ended. Null until then.
    """
    attempts: list[StepAttempt]
    """
    The attempts in order. Empty for steps that make no attempts.
    """
    metadata: StepMetadata
    """
    More information about the step.
    """
    error: NotRequired[Optional[str]]
    """
    The name of the error.
    """
    error_cause: NotRequired[Optional[str]]
    """
    The cause of the error.
    """


class HistoryRow(TypedDict):
    """
    An execution in the history.
    """

    id: str
    """
    The ID of the execution.
    """
    type: HistoryRowType
    """
    What was run.
    """
    model: Optional[str]
    """
    The model that ran or is running. Null for workflows.
    """
    requested_model: Optional[str]
    """
    The requested model.
    """
    workflow_id: Optional[str]
    """
    The workflow. Null for rows that belong to no workflow.
    """
    workflow_name: Optional[str]
    """
    The name of the workflow.
    """
    version_id: Optional[str]
    """
    The version of the workflow.
    """
    workflow_execution_id: Optional[str]
    """
    For a step's prediction, the workflow execution. For a sub-workflow, the parent execution.
    """
    bulk_id: Optional[str]
    """
    The bulk trigger that started the execution.
    """
    status: HistoryRowStatus
    """
    The status. The values depend on the type.
    """
    waiting_for: NotRequired[Optional[WaitsFor]]
    """
    What the execution needs to continue: an event (`event`) or a resume request (`paused`).
    """
    error: Optional[str]
    """
    The name of the error.
    """
    error_cause: Optional[str]
    """
    The cause of the error.
    """
    error_classification: Optional[ErrorClassification]
    """
    The class of the error.
    """
    execution_cost: float
    """
    The cost in US dollars.
    """
    run_time: Optional[float]
    """
    The run time in seconds.
    """
    created_at: str
    """
    When the execution was created.
    """
    started_at: Optional[str]
    """
    When the execution started. Null until then.
    """
    completed_at: Optional[str]
    """
    When the execution ended. Null until then.
    """
    output: Optional[str]
    """
    The output as JSON text. Null if the output would make the page too large.
    """
    output_error: NotRequired[Optional[str]]
    """
    Why the output is missing or damaged on disk.
    """
    api_key_id: Optional[str]
    """
    The API key that started the execution. Null if the execution was started in the dashboard.
    """
    source: ExecutionSource
    """
    What started the execution.
    """
    schedule_id: NotRequired[Optional[str]]
    """
    The schedule that started the execution.
    """
    chat: NotRequired[Optional[HistoryChatCall]]
    """
    Usage of a chat call. Absent in rows of other types.
    """
    decision: NotRequired[Optional[HistoryDecision]]
    """
    Usage of a decisions request. Absent in rows of other types.
    """
    agent: NotRequired[Optional[HistoryExchange]]
    """
    Usage of an exchange of the agent. Absent in rows of other types.
    """


class HistoryPage(TypedDict):
    """
    A page by cursor.
    """

    executions: list[HistoryRow]
    """
    The rows, newest first.
    """
    limit: int
    """
    The requested page size.
    """
    has_more: bool
    """
    Whether there is another page.
    """
    next_cursor: Optional[str]
    """
    The `cursor` for the next page.
    """


class ChatCompletionChunk(TypedDict):
    """
    A part of a streamed answer. Models may add other fields.
    """

    choices: list[ChatChunkChoice]
    """
    The next parts of the choices. Empty in the usage event.
    """
    usage: NotRequired[Optional[ChatChunkUsage]]
    """
    Tokens used by the answer. Only in the usage event, unless the model sends it earlier.
    """


TextStreamEvent: TypeAlias = Union[TextCompletionChunk, OpenAiError, StreamEnd]
"""
The data of an event of a streamed text completion. The model's chunks are forwarded byte for
byte, with the cost in `usage`. `[DONE]` is the last event; a stream that breaks ends with an
error instead.
"""


class RerankAnswer(TypedDict):
    """
    The answer to a rerank request. Models may add other fields.
    """

    results: list[RerankResult]
    """
    The documents by their relevance, the most relevant first.
    """
    usage: ChatChunkUsage
    """
    Tokens used, and their cost.
    """


ResponseItem: TypeAlias = Union[
    ResponseItemMessage,
    ResponseItemFunctionCall,
    ResponseItemFunctionCallOutput,
    ResponseItemReasoning,
    ResponseItemCompaction,
]
"""
An item of an input or an answer.
"""


class ResponseText(TypedDict):
    """
    The form of the text.
    """

    format: ResponseFormat
    """
    The format of the text.
    """
    verbosity: ResponseVerbosity
    """
    How detailed the text is.
    """


class ResponseStreamEvent6(ResponseStreamEventResponseContentPartAdded):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent7(ResponseStreamEventResponseContentPartDone):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseCompaction(TypedDict):
    """
    A conversation that was compacted.
    """

    id: str
    """
    The ID of the compaction. It is not stored.
    """
    object: Literal["response.compaction"]
    """
    Always `response.compaction`.
    """
    created_at: int
    """
    When it was created, in seconds since 1970.
    """
    output: list[ResponseItem]
    """
    One item of type `compaction`, which replaces the conversation in later requests.
    """
    usage: ResponseUsage
    """
    The tokens of the call that summarized the conversation, and their cost.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class ResponseItems(TypedDict):
    """
    A page of items.
    """

    object: Literal["list"]
    """
    Always `list`.
    """
    data: list[ResponseItem]
    """
    The items.
    """
    first_id: Optional[str]
    """
    The ID of the first item. Null if there is none.
    """
    last_id: Optional[str]
    """
    The ID of the last item. Null if there is none.
    """
    has_more: bool
    """
    Whether more items follow.
    """


class MessageAnswer(TypedDict):
    """
    An answer in Anthropic's format.
    """

    id: str
    """
    The ID of the answer.
    """
    type: Literal["message"]
    """
    Always `message`.
    """
    role: Literal["assistant"]
    """
    Always `assistant`.
    """
    model: str
    """
    The `model` of the request.
    """
    content: list[MessageAnswerBlock]
    """
    The blocks of the answer.
    """
    stop_reason: Optional[MessageStopReason]
    """
    Why the answer ended. Null at the start of a stream.
    """
    stop_sequence: Optional[str]
    """
    The stop sequence at which the answer ended, if the model's server reports it.
    """
    usage: MessageUsage
    """
    The tokens of the call, and their cost.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class Decisions(TypedDict):
    """
    The answers to the questions.
    """

    answers: dict[str, DecisionsAnswer]
    """
    The answers by question name, in the order of the questions.
    """
    usage: DecisionsUsage
    """
    Tokens used by the answers, and their cost.
    """


class Delivery(TypedDict):
    """
    A webhook delivery with its attempts.
    """

    delivery_id: str
    """
    The ID of the delivery, which is the same for all attempts.
    """
    execution_id: str
    """
    The execution that the delivery is about.
    """
    execution_type: Optional[HistoryRowType]
    """
    The type of the execution. Null if the execution is no longer stored.
    """
    endpoint_id: NotRequired[Optional[str]]
    """
    The webhook endpoint that receives this delivery. Absent if the request named its own
    webhook URL.
    """
    event: NotRequired[Optional[WebhookEvent]]
    """
    The event that the endpoint is notified of.
    """
    url: str
    """
    The URL that the delivery is sent to.
    """
    status: DeliveryStatus
    """
    Whether the delivery is waiting, in flight, or has ended.
    """
    request: Optional[str]
    """
    The payload as it is sent. Null if the payload is no longer stored, or is too large for a
    list.
    """
    headers: dict[str, Any]
    """
    The headers by name. Secrets, and values that are computed for each attempt, are masked.
    """
    source: ExecutionSource
    """
    What started the execution.
    """
    created_at: str
    """
    When the delivery was created.
    """
    next_attempt_at: Optional[str]
    """
    When the next attempt is made. While the receiver's circuit is open, this is not before the
    circuit's next probe.
    """
    redeliverable: bool
    """
    Whether a redelivery would be accepted now.
    """
    attempts: NotRequired[Optional[list[DeliveryAttempt]]]
    """
    The attempts, oldest first. Absent in lists.
    """


class Batch(TypedDict):
    """
    A batch and its progress. Times are in seconds since 1970.
    """

    id: str
    """
    The ID of the batch: `batch_` and 32 hexadecimal digits.
    """
    object: str
    """
    The object type: always `batch`.
    """
    endpoint: BatchEndpoint
    """
    The route that answers the lines.
    """
    errors: Optional[BatchErrors]
    """
    The errors in the input file. Null if there are none.
    """
    input_file_id: str
    """
    The ID of the file with the requests.
    """
    completion_window: BatchWindow
    """
    The time in which the lines are answered.
    """
    status: BatchStatus
    """
    The status of the batch.
    """
    output_file_id: Optional[str]
    """
    The ID of the file with the answers. Null until the batch has ended, or if there are no
    answers.
    """
    error_file_id: Optional[str]
    """
    The ID of the file with the errors. Null until the batch has ended, or if there are no
    errors.
    """
    created_at: int
    """
    When the batch was created.
    """
    in_progress_at: Optional[int]
    """
    When the check of the input file ended.
    """
    expires_at: int
    """
    The time at which unanswered lines expire.
    """
    finalizing_at: Optional[int]
    """
    When all lines were answered or had expired.
    """
    completed_at: Optional[int]
    """
    When the batch was completed.
    """
    failed_at: Optional[int]
    """
    When the batch failed.
    """
    expired_at: Optional[int]
    """
    When the batch ended with expired lines.
    """
    cancelling_at: Optional[int]
    """
    When the cancellation was requested.
    """
    cancelled_at: Optional[int]
    """
    When the batch ended after its cancellation.
    """
    request_counts: BatchCounts
    """
    The number of lines.
    """
    metadata: Optional[ClientMetadata]
    """
    The key-value pairs of the request. Null if there are none.
    """


class BatchList(TypedDict):
    """
    A page of batches, newest first.
    """

    object: str
    """
    The object type: always `list`.
    """
    data: list[Batch]
    """
    The batches, newest first.
    """
    first_id: Optional[str]
    """
    The ID of the first batch. Null if the page is empty.
    """
    last_id: Optional[str]
    """
    The ID of the last batch, which is `after` of the next page. Null if the page is empty.
    """
    has_more: bool
    """
    Whether there is another page.
    """


class ReplicatePageOfReplicateModel(TypedDict):
    """
    A page of a list.
    """

    previous: Optional[str]
    """
    The URL of the previous page. Null on the first page.
    """
    next: Optional[str]
    """
    The URL of the next page. Null on the last page.
    """
    results: list[ReplicateModel]
    """
    The items of this page.
    """


WorkflowCondition: TypeAlias = Union[
    WorkflowConditionAnd,
    WorkflowConditionOr,
    WorkflowConditionNot,
    WorkflowConditionComparison,
    WorkflowConditionPresence,
]
"""
A condition.
"""


class ChatMessage(TypedDict):
    """
    A message of the conversation.
    """

    role: str
    """
    The author's role: `system`, `user`, `assistant`, `tool`, or another role that the model
    supports.
    """
    content: NotRequired[Optional[ChatMessageContent]]
    """
    The content, as text or as a list of parts.
    """


class SpeechRequest(TypedDict):
    """
    A text to read aloud. Fields that are not listed here are passed to the model unchanged.
    """

    model: Model8
    """
    The slug of a local model of the kind `speech`, or a model ID exactly as the upstream lists
    it.
    """
    input: str
    """
    The text to read aloud.
    """
    voice: NotRequired[Optional[SpeechVoice]]
    """
    The name of the voice, or an object with its `id`, as the model knows it.
    """
    response_format: NotRequired[Optional[str]]
    """
    The format of the audio, such as `mp3`, `opus`, `aac`, `flac`, `wav` or `pcm`.
    """
    speed: NotRequired[Optional[float]]
    """
    The speed, where 1 is normal.
    """
    instructions: NotRequired[Optional[str]]
    """
    How to speak, for models that take instructions.
    """
    stream_format: NotRequired[Optional[SpeechStreamFormat]]
    """
    Whether the answer is the audio itself, which is the default, or server-sent events.
    """


ResponseInputContent: TypeAlias = Union[str, list[ResponseInputPart]]
"""
The content of a message to the model, or the output of a function.
"""


ResponseAnswerContent: TypeAlias = Union[str, list[ResponseAnswerPart]]
"""
The content of a message of the model.
"""


class ResponseInputCallOutput(TypedDict):
    """
    The output of a function.
    """

    type: Literal["function_call_output"]
    """
    Always `function_call_output`.
    """
    call_id: str
    """
    The `call_id` of the call.
    """
    output: ResponseInputContent
    """
    The output, as text or as parts.
    """
    id: NotRequired[Optional[str]]
    """
    The ID of the item.
    """


class ResponseInputText(TypedDict):
    """
    The form of the text.
    """

    format: NotRequired[Optional[ResponseInputFormat]]
    """
    The format of the text.
    """
    verbosity: NotRequired[Optional[ResponseVerbosity]]
    """
    How detailed the text is.
    """


MessagePlainBlock: TypeAlias = Union[MessagePlainBlockText, MessagePlainBlockImage]
"""
A block of a tool's result, or of a document.
"""


MessageAssistantContent: TypeAlias = Union[str, list[MessageAssistantBlock]]
"""
The content of a model's message.
"""


MessageSystem: TypeAlias = Union[str, list[MessageSystemBlock]]
"""
The system prompt, as text or as blocks.
"""


class MessageOutputConfig(TypedDict):
    """
    The format of the answer, and the reasoning effort.
    """

    effort: NotRequired[Optional[MessageEffort]]
    """
    The effort of the reasoning, if `thinking` is on. Levels above `high` count as `high`.
    """
    format: NotRequired[Optional[MessageOutputFormat]]
    """
    The format of the answer.
    """


class DecisionsRequest(TypedDict, closed=True):
    """
    Typed questions about a state.
    """

    model: Model16
    """
    A configured alias, the slug of a local chat model, or a model ID of the upstream.
    """
    state: DecisionsState
    """
    The state that the questions are about.
    """
    questions: dict[Questions, DecisionsQuestion]
    """
    The questions by name, up to 256. A name has up to 256 characters.
    """


class ResponseStreamEventResponseOutputItemAdded(TypedDict):
    """
    An item begins.
    """

    type: Literal["response.output_item.added"]
    """
    Always `response.output_item.added`.
    """
    output_index: int
    """
    The number of the item, starting at 0.
    """
    item: ResponseItem
    """
    The item without content.
    """


class ResponseStreamEventResponseOutputItemDone(TypedDict):
    """
    An item is complete.
    """

    type: Literal["response.output_item.done"]
    """
    Always `response.output_item.done`.
    """
    output_index: int
    """
    The number of the item.
    """
    item: ResponseItem
    """
    The item.
    """


class MessageStreamEventMessageStart(TypedDict):
    """
    The first event. The input tokens are an estimate; the last usage has the exact number.
    """

    type: Literal["message_start"]
    """
    Always `message_start`.
    """
    message: MessageAnswer
    """
    The answer without content.
    """


class WorkflowStepChoice(TypedDict, closed=True):
    """
    Runs one of two branches.
    """

    type: Literal["choice"]
    """
    Always `choice`.
    """
    step_id: NotRequired[Optional[str]]
    """
    The name of the step in references. Required, unless `id` is set.
    """
    id: NotRequired[Optional[str]]
    """
    The same as `step_id`.
    """
    name: NotRequired[Optional[str]]
    """
    A display name.
    """
    depends_on: NotRequired[Optional[list[str]]]
    """
    Steps that must end before this step starts, in addition to the steps that it refers to.
    """
    continue_on_error: NotRequired[Optional[bool]]
    """
    If true, the workflow continues if the step fails.
    """
    timeout_seconds: NotRequired[Optional[float]]
    """
    The time limit.
    """
    condition: WorkflowCondition
    """
    The condition that chooses the branch.
    """
    condition_met_branch: WorkflowBranch
    """
    The branch that runs if the condition is true.
    """
    default_branch: NotRequired[Optional[WorkflowBranch]]
    """
    The branch that runs if the condition is false.
    """


class MessageInputAssistant(TypedDict):
    """
    An earlier answer from the model.
    """

    role: Literal["assistant"]
    """
    Always `assistant`.
    """
    content: MessageAssistantContent
    """
    The content, as text or as blocks.
    """


ModelList: TypeAlias = Union[list[Model], RouterModels, MessageModels]
"""
The list of models: the catalog, or the models that OpenAI's or Anthropic's clients can call.
"""


class Execution(TypedDict):
    """
    A workflow execution, as the API returns it and as its webhook carries it
    (`docs/spec/workflows.md`, "Execution detail").
    """

    execution_id: str
    """
    The ID of the execution.
    """
    workflow_id: str
    """
    The workflow.
    """
    version_id: str
    """
    The version of the workflow that runs.
    """
    bulk_id: NotRequired[Optional[str]]
    """
    The bulk trigger that started this execution.
    """
    redriven_from: NotRequired[Optional[str]]
    """
    The failed execution whose completed steps this execution reuses.
    """
    status: ExecutionStatus
    """
    The status of the execution.
    """
    source: ExecutionSource
    """
    What started the execution.
    """
    schedule_id: NotRequired[Optional[str]]
    """
    The schedule that started this execution.
    """
    parent_execution_id: NotRequired[Optional[str]]
    """
    The execution whose step started this execution.
    """
    parent_step_id: NotRequired[Optional[str]]
    """
    The step of the parent execution that started this execution.
    """
    created_at: str
    """
    When the execution was created.
    """
    started_at: str
    """
    When the execution started. Until then, when the execution was created.
    """
    completed_at: Optional[str]
    """
    When the execution ended. Null until then.
    """
    inputs: Any
    """
    The inputs, with the defaults of the workflow's schema filled in.
    """
    inputs_error: NotRequired[Optional[str]]
    """
    Why the inputs are missing or damaged on disk.
    """
    step_outputs: dict[str, ExecutionStep]
    """
    The steps by ID, in the order of the definition.
    """
    output: Any
    """
    The output. Null until the execution has completed.
    """
    output_error: NotRequired[Optional[str]]
    """
    Why the output is missing or damaged on disk.
    """
    error: Optional[str]
    """
    The name of the error.
    """
    error_cause: Optional[str]
    """
    The cause of the error.
    """
    error_classification: Optional[ErrorClassification]
    """
    The class of the error.
    """
    metrics: ExecutionMetrics
    """
    Cost and durations.
    """
    waiting_for: NotRequired[Optional[list[WaitingFor]]]
    """
    What the execution waits for. Absent after the execution has ended.
    """


ExecutionEvent: TypeAlias = Union[
    CreatedEvent,
    StatusEvent,
    StepEvent,
    WaitEvent,
    PauseEvent,
    ResumeEvent,
    ResetEvent,
    Execution,
]
"""
The data of an event in the stream of a workflow execution. The schema of each event begins with the event's name; the data of `end` is the whole of a workflow execution.
"""


class HistoryPageByOffset(TypedDict):
    """
    A page by offset.
    """

    executions: list[HistoryRow]
    """
    The rows, newest first.
    """
    total_count: int
    """
    The number of matching rows, up to 1000.
    """
    total_capped: bool
    """
    Whether there are more rows than were counted.
    """
    offset: int
    """
    The requested offset.
    """
    limit: int
    """
    The requested page size.
    """


ChatStreamEvent: TypeAlias = Union[ChatCompletionChunk, OpenAiError, StreamEnd]
"""
The data of an event in a streamed answer. The model's chunks are forwarded byte for byte, with
the cost in `usage`. `[DONE]` is the last event; a stream that breaks ends with an error
instead.
"""


class Response(TypedDict):
    """
    A response in OpenAI's format.
    """

    id: str
    """
    The ID of the response.
    """
    object: Literal["response"]
    """
    Always `response`.
    """
    created_at: int
    """
    When the request came, in Unix seconds.
    """
    completed_at: Optional[int]
    """
    When the response was complete, in Unix seconds. Null if it is not.
    """
    status: ResponseStatus
    """
    The status of the response.
    """
    error: Optional[ResponseError]
    """
    Why the response failed. Null unless it did.
    """
    incomplete_details: Optional[ResponseIncompleteDetails]
    """
    Why the response is incomplete. Null unless it is.
    """
    output: list[ResponseItem]
    """
    The items of the answer.
    """
    usage: Optional[ResponseUsage]
    """
    The tokens of the call, and their cost. Null until the end.
    """
    model: str
    """
    The `model` of the request.
    """
    background: bool
    """
    Whether the response is created in the background.
    """
    instructions: Optional[str]
    """
    Instructions that precede the conversation.
    """
    max_output_tokens: Optional[int]
    """
    The maximum number of tokens of the answer.
    """
    max_tool_calls: Optional[int]
    """
    Always null.
    """
    metadata: dict[str, str]
    """
    Names and values of the client.
    """
    parallel_tool_calls: bool
    """
    Whether the model may call several tools at once.
    """
    previous_response_id: Optional[str]
    """
    The response that this one continues.
    """
    prompt_cache_key: Optional[str]
    """
    The `prompt_cache_key` of the request.
    """
    reasoning: ResponseReasoning
    """
    How much the model reasons.
    """
    safety_identifier: Optional[str]
    """
    An ID of the end user.
    """
    service_tier: Literal["default"]
    """
    Always `default`.
    """
    store: bool
    """
    Whether the response is stored.
    """
    temperature: float
    """
    The sampling temperature, 1 if the request has none.
    """
    text: ResponseText
    """
    The form of the text.
    """
    tool_choice: ResponseToolChoice
    """
    Whether the model calls tools.
    """
    tools: list[ResponseTool]
    """
    The functions that the model may call.
    """
    top_logprobs: int
    """
    Always 0.
    """
    top_p: float
    """
    The share of the most likely tokens, 1 if the request has none.
    """
    presence_penalty: float
    """
    Always 0.
    """
    frequency_penalty: float
    """
    Always 0.
    """
    truncation: ResponseTruncation
    """
    The `truncation` of the request.
    """
    user: Optional[str]
    """
    An ID of the end user.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none.
    """


class ResponseStreamEvent4(ResponseStreamEventResponseOutputItemAdded):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent5(ResponseStreamEventResponseOutputItemDone):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


MessageStreamEvent: TypeAlias = Union[
    MessageStreamEventMessageStart,
    MessageStreamEventContentBlockStart,
    MessageStreamEventContentBlockDelta,
    MessageStreamEventContentBlockStop,
    MessageStreamEventMessageDelta,
    MessageStreamEventMessageStop,
    MessageStreamEventPing,
    MessageStreamEventError,
]
"""
The data of an event in a streamed answer.
"""


class DeliveryList(TypedDict):
    """
    A page of deliveries, newest first.
    """

    webhooks: list[Delivery]
    """
    The deliveries, newest first.
    """
    limit: int
    """
    The requested page size.
    """
    offset: int
    """
    The requested offset.
    """
    total_count: int
    """
    The number of matching deliveries.
    """


class WebhookWorkflowCompleted(TypedDict):
    """
    The body of the event `workflow.completed`.
    """

    type: Literal["workflow.completed"]
    """
    Always `workflow.completed`.
    """
    timestamp: str
    """
    When the event happened.
    """
    data: Execution
    """
    The prediction or execution that the event is about.
    """


class WebhookWorkflowFailed(TypedDict):
    """
    The body of the event `workflow.failed`.
    """

    type: Literal["workflow.failed"]
    """
    Always `workflow.failed`.
    """
    timestamp: str
    """
    When the event happened.
    """
    data: Execution
    """
    The prediction or execution that the event is about.
    """


WorkflowStep: TypeAlias = Union[
    WorkflowStepModel,
    WorkflowStepHttp,
    WorkflowStepParallel,
    WorkflowStepChoice,
    WorkflowStepMap,
    WorkflowStepWait,
    WorkflowStepPass,
    WorkflowStepWorkflow,
]
"""
One step, by its `type`.
"""


class ChatCompletionRequest(TypedDict):
    """
    A chat completion to create. Fields that are not listed here are passed to the model unchanged.
    """

    model: Model1
    """
    The slug of a local chat model, or a model ID exactly as the upstream lists it.
    """
    models: NotRequired[Optional[list[Model2]]]
    """
    Model IDs to try in this order if `model` fails before its answer begins.
    """
    messages: list[ChatMessage]
    """
    The conversation, oldest message first.
    """
    stream: NotRequired[Optional[bool]]
    """
    Whether to stream the answer as server-sent events.
    """
    stream_options: NotRequired[Optional[ChatStreamOptions]]
    """
    Options for a streamed answer.
    """
    temperature: NotRequired[Optional[float]]
    """
    The sampling temperature. Higher values make the answer more random.
    """
    top_p: NotRequired[Optional[float]]
    """
    Sample only from the most likely tokens whose probabilities add up to this value.
    """
    presence_penalty: NotRequired[Optional[float]]
    """
    Positive values make tokens that already occur in the text less likely.
    """
    frequency_penalty: NotRequired[Optional[float]]
    """
    Positive values make tokens less likely the more often they occur in the text.
    """
    stop: NotRequired[Optional[OneTextOrSeveral]]
    """
    The string at which the model stops, or up to 64 such strings.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    """
    n: NotRequired[Optional[int]]
    """
    The number of answers to generate.
    """
    max_tokens: NotRequired[Optional[int]]
    """
    The older name of `max_completion_tokens`.
    """
    max_completion_tokens: NotRequired[Optional[int]]
    """
    The maximum number of tokens per answer. -1 means limited only by the context length.
    """
    top_logprobs: NotRequired[Optional[int]]
    """
    The number of most likely tokens to report at each position.
    """


class ResponseInputMessage(TypedDict):
    """
    A message to the model.
    """

    type: NotRequired[Literal["message"]]
    """
    Always `message`, which is the default.
    """
    role: ResponseInputRole
    """
    The author's role.
    """
    content: ResponseInputContent
    """
    The content, as text or as parts.
    """
    id: NotRequired[Optional[str]]
    """
    The ID of the item.
    """


class ResponseInputAnswer(TypedDict):
    """
    A message of the model.
    """

    type: NotRequired[Literal["message"]]
    """
    Always `message`, which is the default.
    """
    role: Literal["assistant"]
    """
    Always `assistant`.
    """
    content: ResponseAnswerContent
    """
    The content, as text or as parts.
    """
    id: NotRequired[Optional[str]]
    """
    The ID of the item.
    """


MessageResultContent: TypeAlias = Union[str, list[MessagePlainBlock]]
"""
The result of a tool.
"""


class ResponseStreamEventResponseCreated(TypedDict):
    """
    The first event.
    """

    type: Literal["response.created"]
    """
    Always `response.created`.
    """
    response: Response
    """
    The response without output.
    """


class ResponseStreamEventResponseQueued(TypedDict):
    """
    The response waits, in the background.
    """

    type: Literal["response.queued"]
    """
    Always `response.queued`.
    """
    response: Response
    """
    The response without output.
    """


class ResponseStreamEventResponseInProgress(TypedDict):
    """
    The model is asked.
    """

    type: Literal["response.in_progress"]
    """
    Always `response.in_progress`.
    """
    response: Response
    """
    The response without output.
    """


class ResponseStreamEventResponseCompleted(TypedDict):
    """
    The response is complete. It is the last event.
    """

    type: Literal["response.completed"]
    """
    Always `response.completed`.
    """
    response: Response
    """
    The response.
    """


class ResponseStreamEventResponseIncomplete(TypedDict):
    """
    The response was cut off. It is the last event.
    """

    type: Literal["response.incomplete"]
    """
    Always `response.incomplete`.
    """
    response: Response
    """
    The response.
    """


class ResponseStreamEventResponseFailed(TypedDict):
    """
    The response failed. It is the last event.
    """

    type: Literal["response.failed"]
    """
    Always `response.failed`.
    """
    response: Response
    """
    The response, with the complete items.
    """


class MessageUserBlockToolResult(TypedDict):
    """
    The result of a tool that the model called.
    """

    type: Literal["tool_result"]
    """
    Always `tool_result`.
    """
    tool_use_id: str
    """
    The `id` of the `tool_use` block.
    """
    content: NotRequired[Optional[MessageResultContent]]
    """
    The result, as text or as blocks.
    """
    is_error: NotRequired[Optional[bool]]
    """
    Whether the tool failed.
    """


class MessageDocumentSourceContent(TypedDict):
    """
    Text, or blocks.
    """

    type: Literal["content"]
    """
    Always `content`.
    """
    content: MessageResultContent
    """
    The content.
    """


class ResponseStreamEvent1(ResponseStreamEventResponseCreated):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent2(ResponseStreamEventResponseQueued):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent3(ResponseStreamEventResponseInProgress):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent16(ResponseStreamEventResponseCompleted):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent17(ResponseStreamEventResponseIncomplete):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


class ResponseStreamEvent19(ResponseStreamEventResponseFailed):
    """
    An event of a streamed response, with its number.
    """

    sequence_number: int
    """
    The number of the event, starting at 0.
    """


ResponseStreamEvent: TypeAlias = Union[
    ResponseStreamEvent1,
    ResponseStreamEvent2,
    ResponseStreamEvent3,
    ResponseStreamEvent4,
    ResponseStreamEvent5,
    ResponseStreamEvent6,
    ResponseStreamEvent7,
    ResponseStreamEvent8,
    ResponseStreamEvent9,
    ResponseStreamEvent10,
    ResponseStreamEvent11,
    ResponseStreamEvent12,
    ResponseStreamEvent13,
    ResponseStreamEvent14,
    ResponseStreamEvent15,
    ResponseStreamEvent16,
    ResponseStreamEvent17,
    ResponseStreamEvent18,
    ResponseStreamEvent19,
]
"""
An event of a streamed response, with its number.
"""


class WorkflowDefinition(TypedDict, closed=True):
    """
    What a workflow does. A value with a reference such as `{{inputs.name}}` is resolved when its
    step starts.
    """

    steps: list[WorkflowStep]
    """
    The steps. A step starts as soon as all the steps it refers to have ended.
    """
    input_schema: NotRequired[Optional[JsonObject]]
    """
    The JSON Schema of the inputs.
    """
    metadata: NotRequired[Optional[JsonObject]]
    """
    `output_mapping`, and any other data that belongs to the definition.
    """
    version: NotRequired[Optional[str]]
    """
    A label for clients. The service does not use it.
    """


class NewVersion(TypedDict):
    """
    A version to create or update. The base host takes the version's ID from the path.
    """

    version_id: NotRequired[Optional[str]]
    """
    The version's ID. If present, it must match the path.
    """
    definition: WorkflowDefinition
    """
    What the workflow does.
    """
    locked: NotRequired[Optional[bool]]
    """
    Whether the version is locked. A locked version can run, but not be changed.
    """
    production: NotRequired[Optional[bool]]
    """
    A flag for clients. The service does not use it.
    """
    allowed_to_share: NotRequired[Optional[bool]]
    """
    Whether other organizations may run this version. If omitted, the setting does not change.
    """


ResponseInputItem: TypeAlias = Union[
    ResponseInputMessage,
    ResponseInputAnswer,
    ResponseInputCall,
    ResponseInputCallOutput,
    ResponseInputReasoning,
    ResponseItemReference,
    ResponseInputCompaction,
]
"""
An item of the input.
"""


MessageDocumentSource: TypeAlias = Union[
    MessageDocumentSourceText,
    MessageDocumentSourceContent,
]
"""
The text of a document. Other kinds of documents, such as PDF, are not supported.
"""


class MessageUserBlockDocument(TypedDict):
    """
    A text document.
    """

    type: Literal["document"]
    """
    Always `document`.
    """
    source: MessageDocumentSource
    """
    The text of the document.
    """
    title: NotRequired[Optional[str]]
    """
    The title of the document.
    """
    context: NotRequired[Optional[str]]
    """
    What the model should know about the document.
    """
    citations: NotRequired[Optional[MessageCitations]]
    """
    Whether the answer cites the document. Citations are not supported.
    """


class NewWorkflow(TypedDict):
    """
    A workflow to create. On the base host, the description is optional.
    """

    name: Name
    """
    The name of the workflow, from which its slug is derived.
    """
    description: NotRequired[Optional[str]]
    """
    The description of the workflow.
    """
    categories: NotRequired[Optional[list[str]]]
    """
    The slugs of the workflow's categories.
    """
    tags: NotRequired[Optional[list[Tag]]]
    """
    Tags to filter by, at most three.
    """
    locked: NotRequired[Optional[bool]]
    """
    Whether the workflow is locked. A locked workflow can run, but not be changed.
    """
    production: NotRequired[Optional[bool]]
    """
    A flag for clients. The service does not use it.
    """
    definition: WorkflowDefinition
    """
    What the workflow does.
    """


ResponseInput: TypeAlias = Union[str, list[ResponseInputItem]]
"""
The input of a response.
"""


class ResponseCompactRequest1(TypedDict):
    """
    A conversation to compact.
    """

    model: Model12
    """
    The model that summarizes the conversation: the slug of a local chat model, an alias of the
    configuration, or a model ID of the upstream.
    """
    input: Optional[ResponseInput]
    """
    Not null.
    """
    previous_response_id: NotRequired[Optional[str]]
    """
    The stored response whose conversation precedes the input.
    """
    instructions: NotRequired[Optional[str]]
    """
    Instructions that apply to the conversation.
    """
    prompt_cache_key: NotRequired[Optional[str]]
    """
    Accepted and ignored.
    """


class ResponseCompactRequest2(TypedDict):
    """
    A conversation to compact.
    """

    model: Model12
    """
    The model that summarizes the conversation: the slug of a local chat model, an alias of the
    configuration, or a model ID of the upstream.
    """
    input: NotRequired[Optional[ResponseInput]]
    """
    The message of the user as text, or a list of items, oldest first. Required unless
    `previous_response_id` is given.
    """
    previous_response_id: Optional[str]
    """
    Not null.
    """
    instructions: NotRequired[Optional[str]]
    """
    Instructions that apply to the conversation.
    """
    prompt_cache_key: NotRequired[Optional[str]]
    """
    Accepted and ignored.
    """


ResponseCompactRequest: TypeAlias = Union[
    ResponseCompactRequest1,
    ResponseCompactRequest2,
]
"""
A conversation to compact.
"""


MessageUserBlock: TypeAlias = Union[
    MessageUserBlockText,
    MessageUserBlockImage,
    MessageUserBlockDocument,
    MessageUserBlockToolResult,
]
"""
A block of a user's message.
"""


class ResponseRequest(TypedDict):
    """
    A response to create.
    """

    model: Model11
    """
    The slug of a local chat model, an alias of the configuration, or a model ID of the
    upstream.
    """
    input: ResponseInput
    """
    The message of the user as text, or a list of items, oldest first.
    """
    instructions: NotRequired[Optional[str]]
    """
    Instructions that precede the conversation. Those of the previous response do not count.
    """
    tools: NotRequired[Optional[list[ResponseInputTool]]]
    """
    The functions that the model may call.
    """
    tool_choice: NotRequired[Optional[ResponseToolChoice]]
    """
    Whether the model calls tools. Defaults to `auto`.
    """
    parallel_tool_calls: NotRequired[Optional[bool]]
    """
    Whether the model may call several tools at once. Defaults to true.
    """
    text: NotRequired[Optional[ResponseInputText]]
    """
    The form of the text.
    """
    reasoning: NotRequired[Optional[ResponseInputReasoningConfig]]
    """
    How much the model reasons.
    """
    max_output_tokens: NotRequired[Optional[int]]
    """
    The maximum number of tokens of the answer, including reasoning.
    """
    temperature: NotRequired[Optional[float]]
    """
    The sampling temperature. Higher values make the answer more random.
    """
    top_p: NotRequired[Optional[float]]
    """
    Sample only from the most likely tokens whose probabilities add up to this value.
    """
    truncation: NotRequired[Optional[ResponseTruncation]]
    """
    Returned with the response. The service never drops items: a conversation that does not fit
    the model's context returns 400.
    """
    include: NotRequired[Optional[list[str]]]
    """
    What the answer also contains. `reasoning.encrypted_content` repeats the reasoning in a form
    that clients return; other values are ignored.
    """
    metadata: NotRequired[Optional[ClientMetadata]]
    """
    Names and values of the client, which are returned with the response.
    """
    store: NotRequired[Optional[bool]]
    """
    Whether to keep the response, so that it can be read and continued. Defaults to true.
    """
    previous_response_id: NotRequired[Optional[str]]
    """
    The stored response that this one continues.
    """
    background: NotRequired[Optional[bool]]
    """
    Whether to answer at once, and to create the response in the background.
    """
    stream: NotRequired[Optional[bool]]
    """
    Whether to stream the answer as server-sent events.
    """
    stream_options: NotRequired[Optional[JsonObject]]
    """
    Accepted and ignored.
    """
    user: NotRequired[Optional[str]]
    """
    An ID of the end user, which is passed on.
    """
    safety_identifier: NotRequired[Optional[str]]
    """
    An ID of the end user, which is passed on as `user` if that is absent.
    """
    prompt_cache_key: NotRequired[Optional[str]]
    """
    Returned with the response: the servers of models cache prompts by themselves.
    """
    service_tier: NotRequired[Optional[str]]
    """
    Accepted and ignored.
    """


MessageUserContent: TypeAlias = Union[str, list[MessageUserBlock]]
"""
The content of a user's message.
"""


class MessageInputUser(TypedDict):
    """
    A message from the user, or the results of tools.
    """

    role: Literal["user"]
    """
    Always `user`.
    """
    content: MessageUserContent
    """
    The content, as text or as blocks.
    """


MessageInput: TypeAlias = Union[MessageInputUser, MessageInputAssistant]
"""
A message of the conversation.
"""


class MessageTokensRequest(TypedDict):
    """
    A prompt whose tokens are counted. The prompt has the same fields as a message to create.
    """

    model: Model14
    """
    The slug of a local chat model, an alias from the configuration, or a model ID of the
    upstream.
    """
    messages: list[MessageInput]
    """
    The conversation, oldest message first.
    """
    system: NotRequired[Optional[MessageSystem]]
    """
    Instructions that precede the conversation.
    """
    tools: NotRequired[Optional[list[MessageTool]]]
    """
    The functions that the model may call.
    """
    tool_choice: NotRequired[Optional[MessageToolChoice]]
    """
    Whether the model calls tools. Defaults to `auto`.
    """
    thinking: NotRequired[Optional[MessageThinking]]
    """
    Whether the model reasons before it answers.
    """
    output_config: NotRequired[Optional[MessageOutputConfig]]
    """
    The format of the answer, and the reasoning effort.
    """
    output_format: NotRequired[Optional[MessageOutputFormat]]
    """
    The former name of `output_config.format`.
    """
    cache_control: NotRequired[Optional[JsonObject]]
    """
    Accepted and ignored.
    """


class MessageRequest(TypedDict):
    """
    A message to create.
    """

    model: Model14
    """
    The slug of a local chat model, an alias from the configuration, or a model ID of the
    upstream.
    """
    max_tokens: int
    """
    The maximum number of tokens in the answer.
    """
    messages: list[MessageInput]
    """
    The conversation, oldest message first.
    """
    system: NotRequired[Optional[MessageSystem]]
    """
    Instructions that precede the conversation.
    """
    tools: NotRequired[Optional[list[MessageTool]]]
    """
    The functions that the model may call.
    """
    tool_choice: NotRequired[Optional[MessageToolChoice]]
    """
    Whether the model calls tools. Defaults to `auto`.
    """
    stop_sequences: NotRequired[Optional[list[str]]]
    """
    Strings at which the model stops.
    """
    temperature: NotRequired[Optional[float]]
    """
    The sampling temperature. Higher values make the answer more random.
    """
    top_p: NotRequired[Optional[float]]
    """
    Sample only from the most likely tokens whose probabilities add up to this value.
    """
    top_k: NotRequired[Optional[int]]
    """
    Sample only from this many of the most likely tokens.
    """
    stream: NotRequired[Optional[bool]]
    """
    Whether to stream the answer as server-sent events.
    """
    metadata: NotRequired[Optional[MessageMetadata]]
    """
    Data about the request.
    """
    thinking: NotRequired[Optional[MessageThinking]]
    """
    Whether the model reasons before it answers. If omitted, the answer has no `thinking`
    blocks.
    """
    output_config: NotRequired[Optional[MessageOutputConfig]]
    """
    The format of the answer, and the reasoning effort.
    """
    output_format: NotRequired[Optional[MessageOutputFormat]]
    """
    The former name of `output_config.format`.
    """
    cache_control: NotRequired[Optional[JsonObject]]
    """
    Accepted and ignored: model servers cache prompts automatically.
    """
    service_tier: NotRequired[Optional[str]]
    """
    Accepted and ignored.
    """
