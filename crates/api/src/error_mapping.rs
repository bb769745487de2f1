//! Maps the errors of the lower layers to HTTP. No other module maps errors to HTTP.

use std::borrow::Cow;
use std::time::Duration;

use hyper::StatusCode;

use crate::Error;
use orrery_agent as agent;
use orrery_batches as batches;
use orrery_catalog::pull;
use orrery_chat as chat;
use orrery_chat::decisions;
use orrery_domain::ids::ExecutionId;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_engine as engine;
use orrery_http::error::OpenAi;
use orrery_records::accounts;
use orrery_records::chains;
use orrery_records::files;
use orrery_records::idempotency;
use orrery_records::key_policies::Refused;
use orrery_records::members;
use orrery_records::schedules;
use orrery_records::secrets;
use orrery_responses as responses;
use orrery_storage as storage;
use orrery_webhooks::EndpointError;
use orrery_wire::error::{Quota, Unpaid};
use orrery_workflows as workflows;

/// Retry delay for a full queue. The time until a queue has room depends on the model.
const QUEUE_RETRY: Duration = Duration::from_secs(5);
/// Retry delay for a key with too many requests in flight, which end at an unknown time.
const PARALLEL_RETRY: Duration = Duration::from_secs(1);
/// Retry delay for an exhausted storage quota. By then, some files may have expired.
const STORAGE_RETRY: Duration = Duration::from_secs(60);
/// Retry delay for too many pending uploads. By then, the pending uploads have expired.
const UPLOADS_RETRY: Duration = Duration::from_secs(15 * 60);

impl From<storage::Error> for Error {
    fn from(error: storage::Error) -> Self {
        match error {
            storage::Error::Unavailable { .. } | storage::Error::Full => {
                storage_unavailable().with_source(error)
            }
            storage::Error::Conflict { .. } => {
                Self::conflict("it was changed concurrently; try again").with_source(error)
            }
            storage::Error::Locked { .. }
            | storage::Error::Malformed(_)
            | storage::Error::Gone { .. }
            | storage::Error::Payload { .. }
            | storage::Error::Folder { .. }
            | storage::Error::NewerFormat { .. }
            | storage::Error::NotDurable
            | storage::Error::Misfit { .. }
            | storage::Error::Damaged { .. } => Self::internal(error),
        }
    }
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::QueueFull { .. } => {
                Self::too_many("queue is full", QUEUE_RETRY).with_source(error)
            }
            engine::Error::TooManyQueued { .. } => Self::too_many(error.to_string(), QUEUE_RETRY),
            engine::Error::OverQuota { quota, used } => {
                let message = format!("{error}: delete some, or wait until they expire");
                Self::status(StatusCode::PAYLOAD_TOO_LARGE, message)
                    .with_details(Quota { quota_bytes: quota, used_bytes: used })
            }
            engine::Error::Unpaid { balance, reserved, needed } => {
                Self::status(StatusCode::PAYMENT_REQUIRED, "payment required").with_details(
                    Unpaid {
                        balance_usd: balance.dollars(),
                        reserved_usd: reserved.dollars(),
                        needed_usd: needed.dollars(),
                    },
                )
            }
            engine::Error::OverBudget(over) => {
                Self::status(StatusCode::PAYMENT_REQUIRED, over.to_string())
            }
            engine::Error::Refused(refused) => refused.into(),
            engine::Error::Failing { .. } => Self::unavailable(error.to_string()),
            engine::Error::NotFound => Self::not_found("execution not found"),
            engine::Error::AlreadyEnded(_)
            | engine::Error::NotRedrivable
            | engine::Error::AlreadyAnswered(_)
            | engine::Error::TooManyEvents(_)
            | engine::Error::TooManyJobs(_)
            | engine::Error::NotEnded => Self::conflict(error.to_string()),
            engine::Error::HeldBack => Self::unavailable(error.to_string()),
            engine::Error::Forgotten => Self::status(StatusCode::GONE, error.to_string()),
            engine::Error::Storage(error) => error.into(),
            engine::Error::Stopping => {
                Self::unavailable("the service is shutting down; try again in a moment")
            }
        }
    }
}

impl From<pull::Refused> for Error {
    fn from(refused: pull::Refused) -> Self {
        let message = refused.to_string();
        match refused {
            pull::Refused::Unknown(_) | pull::Refused::Stale { .. } => Self::conflict(message),
            pull::Refused::Polls => Self::too_many(message, PARALLEL_RETRY),
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::Blocked | Refused::Scope(_) | Refused::Model(_) => {
                Self::status(StatusCode::FORBIDDEN, message)
            }
            Refused::Requests { wait, .. } | Refused::Tokens { wait, .. } => {
                Self::too_many(message, wait)
            }
            Refused::Parallel(_) => Self::too_many(message, PARALLEL_RETRY),
            Refused::TooManyTokens { .. } => Self::bad_request(message),
        }
    }
}

impl From<EndpointError> for Error {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::NotFound => Self::not_found(error.to_string()),
            EndpointError::InvalidName => Self::bad_request(error.to_string()),
            EndpointError::NameTaken(_) | EndpointError::TooMany => {
                Self::conflict(error.to_string())
            }
            EndpointError::Secret(_) => Self::internal(error),
            EndpointError::Storage(error) => error.into(),
        }
    }
}

impl From<accounts::Error> for Error {
    fn from(error: accounts::Error) -> Self {
        match error {
            accounts::Error::InvalidName
            | accounts::Error::InvalidKeyName
            | accounts::Error::Policy(_)
            | accounts::Error::Grace
            | accounts::Error::InvalidExpiry => Self::bad_request(error.to_string()),
            accounts::Error::Exists(_) | accounts::Error::DefaultStays => {
                Self::conflict(error.to_string())
            }
            accounts::Error::NoOrganization(_) | accounts::Error::NoKey => {
                Self::not_found(error.to_string())
            }
            accounts::Error::Randomness(_) => Self::internal(error),
            accounts::Error::Storage(error) => error.into(),
        }
    }
}

impl From<members::Error> for Error {
    fn from(error: members::Error) -> Self {
        use members::Error as Of;
        let message = error.to_string();
        match error {
            Of::WrongPassword => Self::status(StatusCode::UNAUTHORIZED, message),
            Of::CodeNeeded => of_code(message, "required"),
            Of::WrongCode => of_code(message, "wrong"),
            Of::HasSecondFactor | Of::NoSecondFactor | Of::NoPassword | Of::RoleFromGroups => {
                Self::conflict(message)
            }
            Of::TooManyAttempts(wait) => Self::too_many(message, wait),
            Of::Busy => Self::busy(message),
            Of::InvalidName => of_field("name", message),
            Of::InvalidEmail => of_field("email", message),
            Of::PasswordLength => of_field("password", message),
            Of::OneOwner => of_field("role", message),
            Of::EmailTaken | Of::TooManyMembers | Of::TooManyInvitations | Of::OwnerStays => {
                Self::conflict(message)
            }
            Of::NoMember | Of::NoInvitation | Of::NoSession => Self::not_found(message),
            Of::LinkUnknown | Of::LinkUsed | Of::LinkWithdrawn | Of::LinkExpired => {
                Self::status(StatusCode::GONE, message)
            }
            Of::Hash(_) | Of::Randomness(_) | Of::Seal(_) => Self::internal(error),
            Of::Storage(error) => error.into(),
        }
    }
}

/// Returns a 401 whose details tell whether a code of the second factor is missing or wrong.
fn of_code(message: String, code: &str) -> Error {
    Error::status(StatusCode::UNAUTHORIZED, message).with_details(serde_json::json!({"code": code}))
}

/// Returns a 400 that names the form field.
fn of_field(field: &str, message: String) -> Error {
    Error::bad_request(message.clone())
        .with_details(serde_json::json!([{"path": format!("/{field}"), "message": message}]))
}

impl From<chains::Error> for Error {
    fn from(error: chains::Error) -> Self {
        match error {
            chains::Error::InvalidName | chains::Error::Invalid(_) => {
                Self::bad_request(error.to_string())
            }
            chains::Error::Exists { .. } | chains::Error::TooMany => {
                Self::conflict(error.to_string())
            }
            chains::Error::NotFound { .. } => Self::not_found(error.to_string()),
            chains::Error::ValidationUnavailable(unavailable) => {
                super::body::validation_unavailable(unavailable)
            }
            chains::Error::Storage(error) => error.into(),
        }
    }
}

impl From<schedules::Error> for Error {
    fn from(error: schedules::Error) -> Self {
        match error {
            schedules::Error::Calendar(_)
            | schedules::Error::NeverFires
            | schedules::Error::NoDate
            | schedules::Error::Refused(_) => Self::bad_request(error.to_string()),
            schedules::Error::Busy => Self::unavailable(error.to_string()),
            schedules::Error::NotFound => Self::not_found(error.to_string()),
            schedules::Error::TooMany => Self::conflict(error.to_string()),
            schedules::Error::Storage(error) => error.into(),
        }
    }
}

impl From<secrets::Error> for Error {
    fn from(error: secrets::Error) -> Self {
        match error {
            secrets::Error::InvalidName => Self::bad_request(error.to_string()),
            secrets::Error::InvalidValue => of_field("value", error.to_string()),
            secrets::Error::NotFound(_) => Self::not_found(error.to_string()),
            secrets::Error::TooMany => Self::conflict(error.to_string()),
            secrets::Error::Storage(error) => error.into(),
        }
    }
}

impl From<InvalidRequest> for Error {
    fn from(invalid: InvalidRequest) -> Self {
        let InvalidRequest { message, param, code } = invalid;
        let param = param.map(Cow::into_owned);
        let open_ai = OpenAi { kind: None, param, code: Some(code.to_owned()) };
        Self::bad_request(message).with_open_ai(open_ai)
    }
}

impl From<chat::Error> for Error {
    fn from(error: chat::Error) -> Self {
        let coded = |code: &str, param: Option<&str>| OpenAi {
            kind: None,
            param: param.map(str::to_owned),
            code: Some(code.to_owned()),
        };
        match error {
            chat::Error::Invalid(invalid) => invalid.into(),
            chat::Error::NoModel { .. } => Self::not_found(error.to_string())
                .with_open_ai(coded("model_not_found", Some("model"))),
            chat::Error::Unserved { .. } => Self::unavailable(error.to_string())
                .with_open_ai(coded("model_unavailable", Some("model"))),
            chat::Error::TokensUsedUp { retry_after, .. }
            | chat::Error::TokensReserved { retry_after, .. } => {
                Self::too_many(error.to_string(), retry_after)
                    .with_open_ai(coded("tokens_per_day", None))
            }
            chat::Error::Failed { execution, failure } => failed(execution, failure),
            chat::Error::Engine(error) => error.into(),
            chat::Error::Chains(error) => error.into(),
            chat::Error::Files(error) => error.into(),
        }
    }
}

/// When a client may try again to create a batch.
const BATCH_RETRY: Duration = Duration::from_secs(60);

impl From<batches::Error> for Error {
    fn from(error: batches::Error) -> Self {
        let message = error.to_string();
        match error {
            batches::Error::NotFound => super::batches::missing(),
            batches::Error::NoFile(_) | batches::Error::TooLarge { .. } => {
                let param = Some("input_file_id".to_owned());
                Self::bad_request(message).with_open_ai(OpenAi { param, ..OpenAi::default() })
            }
            batches::Error::TooMany => Self::too_many(message, BATCH_RETRY),
            batches::Error::Ended(_) => Self::conflict(message),
            batches::Error::Files(error) => error.into(),
            batches::Error::Storage(error) => error.into(),
        }
    }
}

impl From<responses::Error> for Error {
    fn from(error: responses::Error) -> Self {
        let coded = |param: &str, code: &str| OpenAi {
            kind: None,
            param: Some(param.to_owned()),
            code: Some(code.to_owned()),
        };
        let previous = "previous_response_id";
        match error {
            responses::Error::NoResponse { .. } => Self::not_found(error.to_string())
                .with_open_ai(coded(previous, "previous_response_not_found")),
            responses::Error::NoItem { .. } => {
                Self::not_found(error.to_string()).with_open_ai(coded("input", "item_not_found"))
            }
            responses::Error::NotEnded { .. } => Self::bad_request(error.to_string())
                .with_open_ai(coded(previous, "previous_response_not_ended")),
            responses::Error::TooDeep | responses::Error::TooLarge => {
                Self::bad_request(error.to_string())
                    .with_open_ai(coded(previous, "context_length_exceeded"))
            }
            responses::Error::Foreign => Self::bad_request(error.to_string())
                .with_open_ai(coded(previous, "unsupported_items")),
            responses::Error::Busy => Self::busy(error.to_string()),
            responses::Error::Storage(error) => error.into(),
        }
    }
}

impl From<agent::Error> for Error {
    fn from(error: agent::Error) -> Self {
        match error {
            agent::Error::Invalid(invalid) => invalid.into(),
            agent::Error::NoModel => Self::unavailable(error.to_string()),
            agent::Error::SessionBusy { .. } => Self::conflict(error.to_string()),
            agent::Error::NotFound => Self::not_found(error.to_string()),
            agent::Error::Engine(error) => error.into(),
        }
    }
}

impl From<decisions::Error> for Error {
    fn from(error: decisions::Error) -> Self {
        match error {
            decisions::Error::Invalid(invalid) => invalid.into(),
            decisions::Error::Chat(error) => error.into(),
            decisions::Error::Failed { execution, question, mut failure } => {
                // The parameter names of the model's API do not exist in a decision request.
                failure.said.param = question.map(|name| format!("questions.{name}"));
                failed(execution, failure)
            }
        }
    }
}

/// Returns the error for a failed model call, with the call's ID in the history.
fn failed(execution: ExecutionId, failure: chat::Failure) -> Error {
    let status = StatusCode::from_u16(failure.status);
    let status = status.unwrap_or(StatusCode::BAD_GATEWAY);
    let chat::Said { kind, param, code, headers, .. } = *failure.said;
    let open_ai = OpenAi { kind, param, code };
    let mut refused = Error::status(status, failure.message).with_open_ai(open_ai);
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
    for (name, value) in headers.chain(super::chat::execution_header(execution)) {
        refused = refused.with_header(name, value);
    }
    refused
}

impl From<workflows::Error> for Error {
    fn from(error: workflows::Error) -> Self {
        match error {
            workflows::Error::Invalid { ref message, ref problems } => {
                let refused = Self::bad_request(message.clone());
                if problems.is_empty() { refused } else { refused.with_details(problems) }
            }
            workflows::Error::NotFound { ref near } => {
                Self::not_found(error.to_string()).with_near(near.clone())
            }
            workflows::Error::NoVersion => Self::not_found(error.to_string()),
            workflows::Error::VersionLocked | workflows::Error::Locked => {
                Self::status(StatusCode::FORBIDDEN, error.to_string())
            }
            workflows::Error::Changed => {
                Self::status(StatusCode::PRECONDITION_FAILED, error.to_string())
            }
            workflows::Error::ValidationUnavailable(unavailable) => {
                super::body::validation_unavailable(unavailable)
            }
            workflows::Error::TooMany(_) => Self::conflict(error.to_string()),
            workflows::Error::Storage(error) => error.into(),
        }
    }
}

impl From<files::Error> for Error {
    fn from(error: files::Error) -> Self {
        match error {
            files::Error::TooLarge { limit } => {
                let message = format!("the file is larger than {limit} bytes");
                Self::status(StatusCode::PAYLOAD_TOO_LARGE, message)
            }
            files::Error::Invalid(sentence) => {
                Self::unprocessable(format!("the file was not stored: {sentence}"))
            }
            files::Error::Damaged(_) => {
                Self::status(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
            files::Error::Disk(_) => storage_unavailable().with_source(error),
            files::Error::Storage(error) => error.into(),
        }
    }
}

impl From<files::Refusal> for Error {
    fn from(refusal: files::Refusal) -> Self {
        match refusal {
            files::Refusal::OverQuota { quota, used } => {
                let message = format!("{refusal}: delete some first");
                Self::status(StatusCode::PAYLOAD_TOO_LARGE, message)
                    .with_details(Quota { quota_bytes: quota, used_bytes: used })
            }
            files::Refusal::OverLimit { limit, used } => {
                let message = format!("{refusal}: delete some, or wait until they expire");
                Self::too_many(message, STORAGE_RETRY)
                    .with_details(Quota { quota_bytes: limit, used_bytes: used })
            }
            files::Refusal::TooMany(_) => {
                Self::too_many(refusal.to_string(), UPLOADS_RETRY).with_source(refusal)
            }
            files::Refusal::NotFound => Self::not_found(refusal.to_string()),
            files::Refusal::Done => Self::conflict(refusal.to_string()),
            files::Refusal::Expired => Self::status(StatusCode::GONE, refusal.to_string()),
            files::Refusal::Failed(error) => error.into(),
        }
    }
}

impl From<idempotency::InvalidKey> for Error {
    fn from(error: idempotency::InvalidKey) -> Self {
        Self::bad_request(error.to_string())
    }
}

/// Returns the error for a full or failing disk. No resource was created, and no acknowledged data
/// is lost.
fn storage_unavailable() -> Error {
    Error::unavailable("the disk is full or failing: nothing was stored; free some space")
}
