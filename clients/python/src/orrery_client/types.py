"""Types of the API. `clients/generate` makes them from `clients/openapi.json`."""

from __future__ import annotations

from typing import Any, Literal, Optional, Union

from typing_extensions import NotRequired, TypeAlias, TypedDict


class IndexLinks(TypedDict):
    health: str
    ready: str
    openapi: str


class Health(TypedDict):
    """
    The process is running.
    """

    status: str
    """
    `healthy`
    """
    version: str


class Ready(TypedDict):
    """
    The service accepts work.
    """

    status: str
    """
    `ready`
    """
    version: str
    paused: NotRequired[Optional[bool]]
    """
    Set while the work of a restored backup waits for `orrery resume`.
    """
    warnings: NotRequired[list[str]]
    """
    Conditions that need the operator's attention, such as a nearly full disk.
    """


OutputType: TypeAlias = Literal["string", "array", "object", "number", "boolean", "image", "audio", "video", "file"]


CostType: TypeAlias = Literal["fixed", "usage_based"]
"""
How the cost is determined.
"""


RouterModelSource: TypeAlias = Literal["local", "upstream"]
"""
Where a model runs.
"""


RouterModelKind: TypeAlias = Literal["chat", "embeddings"]
"""
The kind of a model.
"""


class RouterModelPricing(TypedDict):
    """
    A price in US dollars, including this service's platform fee.
    """

    per_answer: Optional[float]
    per_second: Optional[float]
    per_million_input_tokens: Optional[float]
    per_million_output_tokens: Optional[float]


class PredictionAccepted(TypedDict):
    """
    A prediction that was created, is still running, or was cancelled.
    """

    status: Literal["success", "cancelled"]
    message: str
    predictionID: str
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class PredictionEnded(TypedDict):
    """
    A prediction that has ended.
    """

    status: Literal["success", "failed", "cancelled"]
    message: str
    predictionID: str
    output: Any
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
    A warning for each unknown field of the request. Absent if there are none
    """


PredictionStatus: TypeAlias = Literal["created", "processing", "success", "error", "cancelled"]


ErrorClassification: TypeAlias = Literal["content_moderation", "execution_timeout", "invalid_user_input", "invalid_model_config", "provider_auth", "provider_error", "provider_rate_limit", "provider_unavailable", "internal_error", "unknown"]


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


class PredictionUrls(TypedDict):
    """
    The URLs to read and to cancel a prediction.
    """

    get: str
    cancel: str


AttemptStatus: TypeAlias = Literal["processing", "success", "error", "cancelled"]


WorkflowStatus: TypeAlias = Literal["active", "archived", "deleted"]


class WorkflowVersion(TypedDict):
    """
    A version of a workflow.
    """

    version_id: str
    slug: str
    """
    The workflow's slug.
    """
    locked: bool
    production: bool
    allowed_to_share: bool
    """
    Whether other organizations may run this version. Shared versions are unlisted, but not
    private.
    """
    trigger_count: int
    status: WorkflowStatus
    created_at: NotRequired[Optional[str]]
    """
    Absent in the response to a create.
    """
    updated_at: NotRequired[Optional[str]]
    """
    Absent in the response to a create.
    """
    definition: NotRequired[Any]
    """
    The definition, with credentials masked. Only present when a single version is read.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class WorkflowVersionList(TypedDict):
    """
    The versions of a workflow, oldest first.
    """

    versions: list[WorkflowVersion]
    total_count: int


SummaryStatus: TypeAlias = Literal["running", "completed", "failed", "cancelled"]
"""
The status of an execution in a list. Waiting executions count as running.
"""


ScheduleOverlap: TypeAlias = Literal["skip", "queue", "cancel_other", "allow"]


class ScheduleRun(TypedDict):
    """
    The outcome of the last firing.
    """

    scheduled_for: str
    """
    The scheduled time, without jitter.
    """
    at: str
    execution_id: Optional[str]
    status: str
    """
    The status of the execution, or `skipped` because of the overlap rule, `missed` because it
    was too late, or `refused` because it could not start.
    """
    error: NotRequired[Optional[str]]
    """
    Why the firing was refused.
    """


ExecutionStatus: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled"]


class BulkRefused(TypedDict):
    """
    An invalid input, for which no execution was created.
    """

    status: ExecutionStatus
    message: str


class BulkJobAccepted(TypedDict):
    """
    An accepted bulk job.
    """

    job_id: str
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


BulkJobAction: TypeAlias = Literal["cancel", "redrive", "pause", "resume", "delete"]


BulkJobStatus: TypeAlias = Literal["running", "completed", "cancelled"]


ExecutionSource: TypeAlias = Literal["api", "dashboard", "agent", "schedule", "workflow"]


StepStatus: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled", "skipped"]


class StepAttempt(TypedDict):
    """
    An attempt of a step.
    """

    number: int
    model: NotRequired[str]
    """
    The model that ran. Absent for an HTTP request.
    """
    status: AttemptStatus
    error: Optional[str]
    error_classification: Optional[ErrorClassification]
    started_at: str
    completed_at: Optional[str]


EventSource: TypeAlias = Literal["api", "link", "default"]


class ExecutionMetrics(TypedDict):
    """
    Cost in US dollars and durations in seconds.
    """

    cost: float
    queue_time: Optional[float]
    run_time: Optional[float]


class ExecutionCancelled(TypedDict):
    """
    A cancelled execution.
    """

    execution_id: str
    status: ExecutionStatus


class EventAccepted(TypedDict):
    """
    An accepted event.
    """

    execution_id: str
    event: str
    accepted: bool
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class ExecutionPause(TypedDict):
    """
    A paused or resumed execution.
    """

    execution_id: str
    status: ExecutionStatus
    paused: bool


class Category(TypedDict):
    """
    A category for workflows.
    """

    slug: str
    label: str
    description: str
    is_default: bool
    created_at: str
    updated_at: str


HistoryRowType: TypeAlias = Literal["prediction", "workflow", "chat", "decision", "agent"]
"""
The type of a row.
"""


HistoryRowStatus: TypeAlias = Union[PredictionStatus, ExecutionStatus]
"""
The status of a row. The values depend on its type.
"""


HistoryChatOperation: TypeAlias = Literal["chat", "embeddings"]
"""
The type of the call.
"""


class HistoryDecision(TypedDict):
    """
    A decisions request.
    """

    method: str
    """
    `logprobs`, or `votes` if at least one question was answered by sampling.
    """
    upstream: bool
    """
    Whether the upstream handled the request, rather than a local model.
    """
    questions: int
    calls: int
    """
    The number of answers that the model gave.
    """
    input_tokens: int
    output_tokens: int
    tokens_estimated: bool
    """
    Whether the token counts are estimated because the model did not report them.
    """
    priced: bool
    """
    Whether the model has a price. Without one, the request is free.
    """


class HistoryExchange(TypedDict):
    """
    An exchange of the agent.
    """

    session_id: str
    input_tokens: int
    """
    Prompt tokens of the agent's model.
    """
    output_tokens: int
    tokens_estimated: bool
    """
    Whether the token counts are estimated because the model did not report them.
    """


class ModelAnswerUsage(TypedDict):
    """
    Tokens used by an answer, and their cost.
    """

    prompt_tokens: Optional[int]
    total_tokens: Optional[int]
    cost: float
    """
    The cost in US dollars. 0 if the model has no price.
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
    When the list was last fetched. Null if it never was.
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
    output_tokens: int
    cost: float
    """
    The cost in US dollars. 0 if the model has no price.
    """


WebhookEvent: TypeAlias = Literal["prediction.started", "prediction.completed", "prediction.failed", "workflow.started", "workflow.completed", "workflow.failed", "endpoint.test"]


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
    status: DeliveryStatus


class Replayed(TypedDict):
    """
    An accepted replay.
    """

    count: int
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class TestDelivery(TypedDict):
    """
    The receiver's response to a sample delivery.
    """

    url: str
    status: DeliveryAttemptStatus
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
    A warning for each unknown field of the request. Absent if there are none
    """


WebhookSignature: TypeAlias = Literal["v1", "v1a"]


WebhookDisabledReason: TypeAlias = Literal["request", "failures"]


class WebhookEndpoint(TypedDict):
    """
    A webhook endpoint, without its secret.
    """

    id: str
    name: Optional[str]
    url: str
    events: list[WebhookEvent]
    """
    The events that the endpoint receives. Empty for all.
    """
    models: list[str]
    """
    The models whose predictions the endpoint receives events for. Empty for all.
    """
    workflow_ids: list[str]
    """
    The workflows whose executions the endpoint receives events for. Empty for all.
    """
    signature: WebhookSignature
    public_key: NotRequired[Optional[str]]
    """
    The public key that verifies `v1a` signatures.
    """
    disabled: bool
    disabled_at: Optional[str]
    disabled_reason: Optional[WebhookDisabledReason]
    failing_since: Optional[str]
    """
    When the first attempt failed since the last success. Null if the latest attempt succeeded.
    """
    previous_secret_until: Optional[str]
    """
    Until when the previous secret also signs.
    """
    created_at: str
    updated_at: str
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


UploadHeaders = TypedDict(
    "UploadHeaders",
    {
        "Content-Type": str
    },
)


FileSource: TypeAlias = Literal["upload", "output"]


FileStatus: TypeAlias = Literal["ready", "pending"]
"""
Whether the content has been uploaded.
"""


class FileUrl(TypedDict):
    """
    The URL of an uploaded file.
    """

    url: str
    """
    A URL for the content that needs no API key. It works until the file is deleted.
    """


class FileUsage(TypedDict):
    """
    The number and total size of an organization's files.
    """

    count: int
    bytes: int


class Secret(TypedDict):
    """
    A named secret, without its value.
    """

    name: str
    created_at: str
    updated_at: str
    """
    When the value was last set.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
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
    The current usage. Null if it is not counted.
    """


class Balance(TypedDict):
    """
    The organization's balance.
    """

    balance_usd: float
    """
    The balance in US dollars.
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
    Any string. It is stored with the prediction.
    """
    input: dict[str, Any]
    """
    The model's input. Must match the model's `request_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the prediction ends. An empty string for none.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The name of a fallback chain of this model.
    """


Name: TypeAlias = str


Tag: TypeAlias = str


class WorkflowDefinition(TypedDict):
    """
    What a workflow does. `domain::definition` compiles it and reports all of its problems.
    """

    steps: list[dict[str, Any]]
    """
    The steps. A step starts as soon as all the steps it refers to have ended.
    """
    input_schema: NotRequired[Optional[dict[str, Any]]]
    """
    The JSON Schema of the inputs.
    """
    metadata: NotRequired[Optional[dict[str, Any]]]
    """
    `output_mapping`, and any other data that belongs to the definition.
    """
    version: NotRequired[Optional[str]]


Name1: TypeAlias = Any


class WorkflowChange(TypedDict):
    """
    Changes to a workflow. Omitted fields keep their value.
    """

    name: NotRequired[Name1]
    description: NotRequired[Optional[str]]
    categories: NotRequired[Optional[list[str]]]
    """
    The slugs of the workflow's categories.
    """
    tags: NotRequired[Optional[list[Tag]]]
    locked: NotRequired[Optional[bool]]
    production: NotRequired[Optional[bool]]
    status: NotRequired[Optional[WorkflowStatus]]


class NewVersion(TypedDict):
    """
    A version to create or update. The base host takes the version's ID from the path.
    """

    version_id: NotRequired[Optional[str]]
    """
    The version's ID. If present, it must match the path.
    """
    definition: WorkflowDefinition
    locked: NotRequired[Optional[bool]]
    production: NotRequired[Optional[bool]]
    allowed_to_share: NotRequired[Optional[bool]]
    """
    Whether other organizations may run this version. If omitted, the setting does not change.
    """


class NewWorkflowSchedule(TypedDict, closed=True):
    """
    A workflow's schedule to create.
    """

    cron: str
    """
    A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    """
    inputs: NotRequired[Optional[dict[str, Any]]]
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
    A display name; an empty string for none. It does not have to be unique.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, after the service was down. Of several missed
    firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and skipped firings are not
    made up.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string for no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string for no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string for none. If an update changes
    it, the secret is kept.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string for no signature.
    """


class WorkflowSchedule(TypedDict, closed=True):
    """
    Changes to a workflow's schedule. Omitted fields keep their value.
    """

    cron: NotRequired[Optional[str]]
    """
    A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    """
    inputs: NotRequired[Optional[dict[str, Any]]]
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
    A display name; an empty string for none. It does not have to be unique.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, after the service was down. Of several missed
    firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and skipped firings are not
    made up.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string for no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string for no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string for none. If an update changes
    it, the secret is kept.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string for no signature.
    """


class Trigger(TypedDict):
    """
    A workflow trigger.
    """

    version_id: NotRequired[Optional[str]]
    """
    The version to run. Defaults to the latest.
    """
    inputs: NotRequired[Optional[dict[str, Any]]]
    """
    The inputs. Must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the execution ends. An empty string for none.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
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
    The URL to notify when each execution ends. An empty string for none.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks.
    """


class VersionTrigger(TypedDict):
    """
    A trigger of the version in the path.
    """

    inputs: NotRequired[Optional[dict[str, Any]]]
    """
    The inputs. Must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the execution ends. An empty string for none.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
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
    The URL to notify when each execution ends. An empty string for none.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks.
    """


class PublicTrigger(TypedDict):
    """
    A trigger of a shared version.
    """

    api_key: NotRequired[Optional[str]]
    """
    The caller's API key, as an alternative to a header.
    """
    inputs: NotRequired[Optional[dict[str, Any]]]
    """
    The inputs. Must match the version's `input_schema`.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when the execution ends. An empty string for none.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhook.
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


ChatMessageContent: TypeAlias = Union[str, list[dict[str, Any]]]
"""
The content of a message, as text or as a list of parts.
"""


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


Model2: TypeAlias = str
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


Model3: TypeAlias = str
"""
A configured alias, the slug of a local chat model, or a model ID of the upstream.
"""


Questions: TypeAlias = str


DecisionsState: TypeAlias = Union[str, dict[str, Any], list[Any]]
"""
The state that questions are about: text or JSON.
"""


class DecisionsSides(TypedDict, closed=True):
    """
    Descriptions of what makes the answer yes and what makes it no.
    """

    true: NotRequired[Optional[str]]
    false: NotRequired[Optional[str]]


ReplayStatus: TypeAlias = Literal["failed"]
"""
The status of deliveries that can be replayed.
"""


class NewTestDelivery(TypedDict):
    """
    A webhook URL to test.
    """

    url: str
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the delivery.
    """


Model4: TypeAlias = str


class NewWebhookEndpoint(TypedDict, closed=True):
    """
    A webhook endpoint to create.
    """

    url: str
    name: NotRequired[Optional[str]]
    """
    A name, unique within the organization. An empty string for none.
    """
    events: NotRequired[Optional[list[Literal["prediction.started", "prediction.completed", "prediction.failed", "workflow.started", "workflow.completed", "workflow.failed"]]]]
    """
    The events to receive. Omit or leave empty for all.
    """
    models: NotRequired[Optional[list[Model4]]]
    workflow_ids: NotRequired[Optional[list[str]]]
    signature: NotRequired[Optional[WebhookSignature]]
    """
    The signature scheme. Defaults to `v1`. It cannot be changed later.
    """
    disabled: NotRequired[Optional[bool]]


class WebhookEndpointChange(TypedDict, closed=True):
    """
    Changes to a webhook endpoint. Omitted fields keep their value. The URL is required for a new
    endpoint.
    """

    url: NotRequired[Optional[str]]
    name: NotRequired[Optional[str]]
    """
    A name, unique within the organization. An empty string for none.
    """
    events: NotRequired[Optional[list[Literal["prediction.started", "prediction.completed", "prediction.failed", "workflow.started", "workflow.completed", "workflow.failed"]]]]
    """
    The events to receive. Omit or leave empty for all.
    """
    models: NotRequired[Optional[list[Model4]]]
    workflow_ids: NotRequired[Optional[list[str]]]
    signature: NotRequired[Optional[WebhookSignature]]
    """
    The signature scheme. Defaults to `v1`. It cannot be changed later.
    """
    disabled: NotRequired[Optional[bool]]


class RotateWebhookEndpoint(TypedDict, closed=True):
    """
    A rotation of the secret.
    """

    grace_seconds: NotRequired[Optional[int]]
    """
    How long the previous secret also signs, in seconds. Defaults to 86400.
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
    expires_in_seconds: NotRequired[Optional[int]]
    """
    How long the file is kept.
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
    input: NotRequired[Optional[dict[str, Any]]]
    """
    The model's input, which must match its request schema. At most 48 KiB.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use; an empty string for none.
    """
    timezone: NotRequired[Optional[str]]
    """
    An IANA time zone name. Defaults to UTC.
    """
    name: NotRequired[Optional[str]]
    """
    A display name; an empty string for none. It does not have to be unique.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, after the service was down. Of several missed
    firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and skipped firings are not
    made up.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string for no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string for no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string for none. If an update changes
    it, the secret is kept.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string for no signature.
    """


class ScheduleChange(TypedDict, closed=True):
    """
    Changes to a schedule of a workflow or a model. Omitted fields keep their value. The fields of
    the other kind are refused.
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
    input: NotRequired[Optional[dict[str, Any]]]
    """
    The model's input, which must match its request schema. At most 48 KiB.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use; an empty string for none.
    """
    inputs: NotRequired[Optional[dict[str, Any]]]
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
    A display name; an empty string for none. It does not have to be unique.
    """
    overlap: NotRequired[Optional[ScheduleOverlap]]
    """
    What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    """
    catch_up_seconds: NotRequired[Optional[int]]
    """
    How late a firing may run, in seconds, after the service was down. Of several missed
    firings, only the last one runs. Defaults to 3600.
    """
    jitter_seconds: NotRequired[Optional[int]]
    """
    The maximum random delay of each firing, in seconds.
    """
    paused: NotRequired[Optional[bool]]
    """
    Whether the schedule is paused. A paused schedule does not fire, and skipped firings are not
    made up.
    """
    starts_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time before which the schedule does not fire. An empty string for no limit.
    """
    ends_at: NotRequired[Union[Optional[str], Literal[""]]]
    """
    The time after which the schedule does not fire. An empty string for no limit.
    """
    webhook_url: NotRequired[Optional[str]]
    """
    The URL to notify when each run ends. Null or an empty string for none. If an update changes
    it, the secret is kept.
    """
    webhook_secret: NotRequired[Optional[str]]
    """
    The secret that signs the webhooks. An empty string for no signature.
    """


class SecretValue(TypedDict, closed=True):
    """
    A secret value to store.
    """

    value: str
    """
    The value: 1 to 32768 bytes of text without NUL. It is never returned.
    """


class WaitingForLane(TypedDict):
    """
    Its turn in the workflow's lane.
    """

    reason: Literal["lane"]
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
    step_id: str
    model: str
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
    step_id: str
    until: str


class WaitingForEvent(TypedDict):
    """
    An event, sent with an API key or through `resume_url`.
    """

    reason: Literal["event"]
    step_id: str
    event: str
    until: str
    resume_url: str


class WaitingForRetry(TypedDict):
    """
    The next attempt of a step.
    """

    reason: Literal["retry"]
    step_id: str
    at: str
    attempt: int


class WaitingForStep(TypedDict):
    """
    A running step.
    """

    reason: Literal["step"]
    step_id: str
    attempt: int


class WaitingForWorkflow(TypedDict):
    """
    The execution that a `workflow` step has started.
    """

    reason: Literal["workflow"]
    step_id: str
    execution_id: str


class WaitingForPaused(TypedDict):
    """
    A resume, after a person or a step with `on_exhausted` paused the execution.
    """

    reason: Literal["paused"]
    by: str
    since: str


class WaitingForService(TypedDict):
    """
    The next retry after an internal error of the service.
    """

    reason: Literal["service"]
    cause: str
    failures: int
    at: str


class DecisionsAnswerOul(TypedDict):
    type: Literal["oul"]
    oul: float
    """
    The probability of yes.
    """


class DecisionsAnswerNoul(TypedDict):
    type: Literal["noul"]
    noul: float
    """
    The probability of yes.
    """


class DecisionsAnswerChoice(TypedDict):
    type: Literal["choice"]
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
    The probability of each option. They add up to 1.
    """


class DecisionsAnswerScore(TypedDict):
    type: Literal["score"]
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
    The probability of each level. They add up to 1.
    """
    legend: dict[str, str]
    """
    The description of each level.
    """


class DecisionsQuestionOul(TypedDict, closed=True):
    """
    A yes-or-no question. The answer is the probability of yes.
    """

    type: Literal["oul"]
    instructions: str
    criteria: NotRequired[Optional[DecisionsSides]]


class DecisionsQuestionNoul(TypedDict, closed=True):
    """
    An alias of `oul`.
    """

    type: Literal["noul"]
    instructions: str
    criteria: NotRequired[Optional[DecisionsSides]]


Criteria: TypeAlias = str


class DecisionsQuestionChoice(TypedDict, closed=True):
    """
    A choice between 2 to 26 options, each with a description or null.
    """

    type: Literal["choice"]
    instructions: str
    criteria: dict[Criteria, Optional[str]]


Criterion: TypeAlias = str


class DecisionsQuestionScore(TypedDict, closed=True):
    """
    A rating on a scale. Each level has a description, lowest level first.
    """

    type: Literal["score"]
    instructions: str
    criteria: list[Criterion]


class Index(TypedDict):
    """
    Information about the host.
    """

    name: str
    version: str
    role: str
    """
    The host's role.
    """
    links: IndexLinks


class ModelCost(TypedDict):
    """
    The cost of a run.
    """

    currency: str
    """
    Always `USD`.
    """
    type: CostType
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


class RouterModel(TypedDict):
    """
    A model that can be called.
    """

    id: str
    """
    The value to use for `model` in requests.
    """
    object: str
    """
    Always `model`.
    """
    created: int
    """
    When the model was created, in Unix seconds. 0 if unknown.
    """
    owned_by: str
    source: RouterModelSource
    kind: Optional[RouterModelKind]
    """
    What the model is for. Null if the upstream does not say.
    """
    context_length: NotRequired[Optional[int]]
    """
    The maximum number of tokens in a prompt and its answer. Absent if unknown.
    """
    status: str
    """
    Either `ok`, or `failing` while the model does not respond.
    """
    pricing: Optional[RouterModelPricing]
    """
    The price. Null if calls are free.
    """


class PredictionAttempt(TypedDict):
    """
    An attempt of a prediction.
    """

    model: str
    status: AttemptStatus
    error: Optional[str]
    error_classification: Optional[ErrorClassification]
    started_at: str
    completed_at: Optional[str]


class Workflow(TypedDict):
    """
    A workflow with its versions.
    """

    workflow_id: str
    slug: str
    """
    The slug, which can replace the ID in paths.
    """
    name: str
    description: str
    categories: list[str]
    """
    The slugs of the workflow's categories.
    """
    tags: list[str]
    locked: bool
    production: bool
    latest_version_id: str
    """
    The version that runs if a trigger names none.
    """
    status: WorkflowStatus
    trigger_count: int
    created_at: str
    updated_at: str
    versions: list[WorkflowVersion]
    """
    The versions, oldest first.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class WorkflowList(TypedDict):
    """
    A page of workflows.
    """

    workflows: list[Workflow]
    offset: int
    """
    The `offset` for the next page: the requested offset plus the length of this page.
    """
    total_count: int


class ExecutionSummary(TypedDict):
    """
    An execution, as lists show it.
    """

    execution_id: str
    flow_id: str
    """
    The workflow's ID.
    """
    flow_name: str
    """
    The workflow's name.
    """
    version_id: str
    status: SummaryStatus
    waiting_for: NotRequired[Optional[str]]
    """
    What the execution needs to continue: an event (`event`) or a resume (`paused`).
    """
    started_at: str
    ended_at: Optional[str]
    created_at: str
    updated_at: str


class Schedule(TypedDict):
    """
    A schedule.
    """

    schedule_id: str
    name: Optional[str]
    workflow_id: NotRequired[Optional[str]]
    """
    The workflow. Only for workflow schedules.
    """
    version_id: Optional[str]
    """
    The workflow version that runs. Null for the latest. Only for workflow schedules.
    """
    model: NotRequired[Optional[str]]
    """
    The model's slug. Only for model schedules.
    """
    version: NotRequired[Optional[str]]
    fallback_selector: NotRequired[Optional[str]]
    cron: str
    timezone: str
    inputs: Any
    overlap: ScheduleOverlap
    catch_up_seconds: int
    jitter_seconds: int
    paused: bool
    starts_at: Optional[str]
    ends_at: Optional[str]
    webhook_url: Optional[str]
    next_runs: list[str]
    """
    The next ten firings, without jitter. Empty while the schedule is paused.
    """
    waiting: int
    """
    The number of firings that wait for the previous run to end.
    """
    last_run: Optional[ScheduleRun]
    created_at: str
    updated_at: str
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
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
    offset: int
    limit: int


class ExecutionAccepted(TypedDict):
    """
    An accepted execution.
    """

    execution_id: str
    status: ExecutionStatus
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
    A warning for each unknown field of the request. Absent if there are none
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
    action: BulkJobAction
    status: BulkJobStatus
    total: Optional[int]
    """
    The number of executions to process. Null until they have been counted.
    """
    done: int
    failed: int
    """
    The number of executions on which the action failed, such as a cancel of one that has ended.
    """
    started_at: str
    completed_at: Optional[str]


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
    status_code: NotRequired[Optional[int]]
    """
    The HTTP status of the response to the step's request.
    """
    event_source: NotRequired[Optional[EventSource]]
    """
    Who sent the event that the step waited for.
    """
    fallback_used: NotRequired[Optional[bool]]
    primary_error: NotRequired[Optional[str]]
    """
    Why the step itself failed, if a fallback was used.
    """
    logs: NotRequired[Optional[str]]
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


class HistoryChatCall(TypedDict):
    """
    A call of the chat router.
    """

    operation: HistoryChatOperation
    upstream: bool
    """
    Whether the upstream handled the call, rather than a local model.
    """
    stream: bool
    input_tokens: int
    output_tokens: int
    tokens_estimated: bool
    """
    Whether the token counts are estimated because the model did not report them.
    """
    priced: bool
    """
    Whether the model has a price. Without one, the call is free.
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


class RouterModelCatalog(TypedDict):
    """
    All models that can be called.
    """

    object: str
    """
    Always `list`.
    """
    data: list[RouterModel]
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
    redelivery: bool
    """
    Whether a redelivery triggered this attempt.
    """
    created_at: Optional[str]
    """
    When the attempt was made. Null while it is in flight.
    """


class WebhookEndpointWithSecret(TypedDict):
    """
    A webhook endpoint with a new secret. No other responses contain the secret.
    """

    id: str
    name: Optional[str]
    url: str
    events: list[WebhookEvent]
    """
    The events that the endpoint receives. Empty for all.
    """
    models: list[str]
    """
    The models whose predictions the endpoint receives events for. Empty for all.
    """
    workflow_ids: list[str]
    """
    The workflows whose executions the endpoint receives events for. Empty for all.
    """
    signature: WebhookSignature
    public_key: NotRequired[Optional[str]]
    """
    The public key that verifies `v1a` signatures.
    """
    disabled: bool
    disabled_at: Optional[str]
    disabled_reason: Optional[WebhookDisabledReason]
    failing_since: Optional[str]
    """
    When the first attempt failed since the last success. Null if the latest attempt succeeded.
    """
    previous_secret_until: Optional[str]
    """
    Until when the previous secret also signs.
    """
    created_at: str
    updated_at: str
    secret: NotRequired[Optional[str]]
    """
    The signing secret: `whsec_` and base64. Absent for `v1a` signatures, whose private key
    never leaves the service.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class WebhookEndpointList(TypedDict):
    webhook_endpoints: list[WebhookEndpoint]
    """
    The endpoints, oldest first.
    """


class UploadAnnounced(TypedDict):
    """
    A presigned upload.
    """

    id: str
    presigned_url: str
    """
    The URL to upload the content to with `PUT`. It needs no API key.
    """
    public_url: str
    """
    The URL of the content after the upload. It needs no API key.
    """
    expires_at: str
    """
    When the upload URL expires.
    """
    required_headers: UploadHeaders
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class File(TypedDict):
    """
    A file, or a pending presigned upload.
    """

    id: str
    filename: Optional[str]
    content_type: str
    size: Optional[int]
    """
    The size in bytes.
    """
    sha256: Optional[str]
    """
    The SHA-256 hash, as 64 hexadecimal digits.
    """
    source: FileSource
    execution_id: NotRequired[Optional[str]]
    """
    The execution that produced this file as an output.
    """
    created_at: str
    expires_at: str
    """
    When the file is deleted. For a pending upload, when the upload URL expires.
    """
    url: str
    """
    A URL for the content that needs no API key.
    """
    status: FileStatus


class FileList(TypedDict):
    """
    A page of files, newest first.
    """

    files: list[File]
    has_more: bool
    next_cursor: Optional[str]
    """
    The `cursor` for the next page.
    """


class Secrets(TypedDict):
    secrets: list[Secret]


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


class OpenAiError(TypedDict):
    """
    An error in OpenAI's format.
    """

    error: OpenAiErrorBody


class NewWorkflow(TypedDict):
    """
    A workflow to create. On the base host, the description is optional.
    """

    name: Name
    description: NotRequired[Optional[str]]
    categories: NotRequired[Optional[list[str]]]
    """
    The slugs of the workflow's categories.
    """
    tags: NotRequired[Optional[list[Tag]]]
    locked: NotRequired[Optional[bool]]
    production: NotRequired[Optional[bool]]
    definition: WorkflowDefinition


class BulkJobRequest(TypedDict, closed=True):
    """
    A bulk job to start.
    """

    action: BulkJobAction
    filter: NotRequired[BulkJobFilter]
    """
    Which executions to process. Omitted fields match all.
    """
    limit: NotRequired[Optional[int]]
    """
    The maximum number of executions, newest first. Defaults to 100000.
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


class EmbeddingsRequest(TypedDict):
    """
    Embeddings to create. Fields that are not listed here are passed to the model unchanged.
    """

    model: Model2
    """
    The slug of a local embedding model, or a model ID exactly as the upstream lists it.
    """
    input: EmbeddingsInput
    dimensions: NotRequired[Optional[int]]
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use for a local model. Defaults to the first enabled chain by name.
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


class Model(TypedDict):
    """
    A model. All keys are always present.
    """

    title: str
    slug: str
    version: str
    """
    Always `0.0.1`. Deprecated.
    """
    output_type: OutputType
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

    object: str
    """
    Always `list`.
    """
    data: list[RouterModel]
    """
    Local models by slug, then the agent, then the models that the upstream lists.
    """


ModelDetail: TypeAlias = Union[Model, RouterModel]
"""
A model, in the catalog's format or in OpenAI's.
"""


class Prediction(TypedDict):
    """
    A prediction.
    """

    id: str
    model: str
    """
    The requested model.
    """
    status: PredictionStatus
    input: Any
    """
    The input, with the defaults of the model's schema filled in. Null if it is hidden.
    """
    input_error: NotRequired[Optional[str]]
    """
    Why the input is missing or damaged on disk.
    """
    output: Any
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
    metrics: PredictionMetrics
    urls: PredictionUrls
    created_at: str
    started_at: Optional[str]
    completed_at: Optional[str]
    attempts: list[PredictionAttempt]
    """
    The attempts in order, including those of fallback models.
    """


class ExecutionList(TypedDict):
    """
    A page of a workflow's executions.
    """

    executions: list[ExecutionSummary]
    total_count: int
    limit: NotRequired[Optional[int]]
    """
    On the base host only.
    """
    offset: NotRequired[Optional[int]]
    """
    On the workflows host only.
    """


class BulkAccepted(TypedDict):
    """
    The result of a bulk trigger.
    """

    bulk_id: str
    executions: list[BulkEntry]
    """
    One result for each input, in the order of the inputs.
    """
    warnings: NotRequired[list[str]]
    """
    A warning for each unknown field of the request. Absent if there are none
    """


class ExecutionStep(TypedDict):
    """
    A step of an execution.
    """

    step_id: str
    name: NotRequired[Optional[str]]
    type: str
    """
    The type of the step, such as `model` or `http`.
    """
    status: StepStatus
    output: Any
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
    The step's input with all references resolved. Null if it is hidden.
    """
    input_error: NotRequired[Optional[str]]
    """
    Why the input is missing or damaged on disk.
    """
    started_at: Optional[str]
    completed_at: Optional[str]
    attempts: list[StepAttempt]
    metadata: StepMetadata
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
    type: HistoryRowType
    model: Optional[str]
    """
    The model that ran or is running. Null for workflows.
    """
    requested_model: Optional[str]
    """
    The requested model.
    """
    workflow_id: Optional[str]
    workflow_name: Optional[str]
    version_id: Optional[str]
    workflow_execution_id: Optional[str]
    """
    For a step's prediction, the workflow execution. For a sub-workflow, the parent execution.
    """
    bulk_id: Optional[str]
    status: HistoryRowStatus
    waiting_for: NotRequired[Optional[str]]
    """
    What the workflow execution needs to continue: an event (`event`) or a resume (`paused`).
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
    execution_cost: float
    """
    The cost in US dollars.
    """
    run_time: Optional[float]
    """
    The run time in seconds.
    """
    created_at: str
    started_at: Optional[str]
    completed_at: Optional[str]
    output: Optional[str]
    """
    The output as JSON text. Null if the page has no room for it.
    """
    output_error: NotRequired[Optional[str]]
    """
    Why the output is missing or damaged on disk.
    """
    api_key_id: Optional[str]
    """
    The API key that started the execution. Null if it was started in the dashboard.
    """
    source: ExecutionSource
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
    limit: int
    has_more: bool
    next_cursor: Optional[str]
    """
    The `cursor` for the next page.
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


class Delivery(TypedDict):
    """
    A webhook delivery with its attempts.
    """

    delivery_id: str
    execution_id: str
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
    status: DeliveryStatus
    request: Optional[str]
    """
    The payload as it is sent. Null if it is no longer stored, or too large for a list.
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
    next_attempt_at: Optional[str]
    """
    When the next attempt is made. While the receiver's circuit is open, not before its probe.
    """
    redeliverable: bool
    """
    Whether a redelivery would be accepted now.
    """
    attempts: NotRequired[Optional[list[DeliveryAttempt]]]
    """
    The attempts, oldest first. Absent in lists.
    """


class ChatCompletionRequest(TypedDict):
    """
    A chat completion to create. Fields that are not listed here are passed to the model unchanged.
    """

    model: Model1
    """
    The slug of a local chat model, or a model ID exactly as the upstream lists it.
    """
    messages: list[ChatMessage]
    stream: NotRequired[Optional[bool]]
    """
    Whether to stream the answer as server-sent events.
    """
    stream_options: NotRequired[Optional[ChatStreamOptions]]
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
    temperature: NotRequired[Optional[float]]
    top_p: NotRequired[Optional[float]]
    presence_penalty: NotRequired[Optional[float]]
    frequency_penalty: NotRequired[Optional[float]]
    top_logprobs: NotRequired[Optional[int]]
    stop: NotRequired[Optional[OneTextOrSeveral]]
    """
    Where the model stops: a string, or up to 64 of them.
    """
    fallback_selector: NotRequired[Optional[str]]
    """
    The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    """


class DecisionsRequest(TypedDict, closed=True):
    """
    Typed questions about a state.
    """

    model: Model3
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


ModelList: TypeAlias = Union[list[Model], RouterModels]
"""
The list of models: the catalog, or the models that OpenAI's clients can call.
"""


class Execution(TypedDict):
    """
    A workflow execution, as the API returns it and as its webhook carries it
    (`docs/spec/workflows.md`, "Execution detail").
    """

    execution_id: str
    workflow_id: str
    version_id: str
    bulk_id: NotRequired[Optional[str]]
    """
    The bulk trigger that started this execution.
    """
    redriven_from: NotRequired[Optional[str]]
    """
    The failed execution whose completed steps this execution reuses.
    """
    status: ExecutionStatus
    source: ExecutionSource
    schedule_id: NotRequired[Optional[str]]
    """
    The schedule that started this execution.
    """
    parent_execution_id: NotRequired[Optional[str]]
    """
    The execution whose step started this execution.
    """
    parent_step_id: NotRequired[Optional[str]]
    created_at: str
    started_at: str
    """
    When the execution started. Until then, when it was created.
    """
    completed_at: Optional[str]
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
    metrics: ExecutionMetrics
    waiting_for: NotRequired[Optional[list[WaitingFor]]]
    """
    What the execution waits for. Absent after it has ended.
    """


class HistoryPageByOffset(TypedDict):
    """
    A page by offset.
    """

    executions: list[HistoryRow]
    total_count: int
    """
    The number of matching rows, up to 1000.
    """
    total_capped: bool
    """
    Whether there are more rows than were counted.
    """
    offset: int
    limit: int


class DeliveryList(TypedDict):
    """
    A page of deliveries, newest first.
    """

    webhooks: list[Delivery]
    limit: int
    offset: int
    total_count: int
