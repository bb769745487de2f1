//! What a route needs from an API key that is restricted: its scope, and a place in the key's
//! limits.
//!
//! A key can always read and cancel what it created, even without the scope `read`.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};

use super::access::Principal;
use super::{Route, Services};
use orrery_domain::ids::{BatchId, ExecutionId, FileId, KeyId, OrganizationId};
use orrery_domain::key_policy::Scope;
use orrery_http::body::Held;
use orrery_http::{Request, Response};
use orrery_records::key_policies::{Entry, InFlight, Refused};
use orrery_responses as responses;

/// What a route needs from a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Any key, or no key.
    Nothing,
    Predict,
    Chat,
    Run,
    /// Running workflows, and reading all executions.
    RunAll,
    Write,
    Upload,
    Read,
    Secrets,
    /// The scope `worker`. Only keys that list this scope have it: keys without a list of scopes,
    /// sessions and the operator do not.
    Work,
    /// `read`, or a key that created the resource in the path.
    Own,
    /// The scope and `read`, or a key that created the resource in the path.
    PredictOwn,
    ChatOwn,
    RunOwn,
    UploadOwn,
}

impl Needs {
    /// Returns the scopes that a key needs, and whether a key without them may act on what it
    /// created.
    #[must_use]
    pub const fn scopes(self) -> (&'static [Scope], bool) {
        match self {
            Self::Nothing => (&[], false),
            Self::Predict => (&[Scope::Predict], false),
            Self::Chat => (&[Scope::Chat], false),
            Self::Run => (&[Scope::WorkflowRun], false),
            Self::RunAll => (&[Scope::WorkflowRun, Scope::Read], false),
            Self::Write => (&[Scope::WorkflowWrite], false),
            Self::Upload => (&[Scope::Files], false),
            Self::Read => (&[Scope::Read], false),
            Self::Secrets => (&[Scope::Secrets], false),
            Self::Work => (&[Scope::Worker], false),
            Self::Own => (&[Scope::Read], true),
            Self::PredictOwn => (&[Scope::Predict, Scope::Read], true),
            Self::ChatOwn => (&[Scope::Chat, Scope::Read], true),
            Self::RunOwn => (&[Scope::WorkflowRun, Scope::Read], true),
            Self::UploadOwn => (&[Scope::Files, Scope::Read], true),
        }
    }

    /// Returns whether requests count toward the key's rates: those that start work.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        matches!(self, Self::Predict | Self::Chat | Self::Run)
    }
}

/// A request that is admitted by the limits of its key. The request is in flight until this value
/// is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    entry: Arc<Entry>,
    in_flight: Option<InFlight>,
}

impl Admitted {
    /// Adds the rates that are left to an answer, which counts as in flight until it has been sent,
    /// and to a 429.
    pub(crate) fn end(
        self,
        answer: Result<Response, crate::Error>,
    ) -> Result<Response, crate::Error> {
        let Some(in_flight) = self.in_flight else { return answer };
        match answer {
            Ok(mut answer) => {
                let headers = answer.headers_mut();
                headers.reserve(REQUEST_RATE.len() + TOKEN_RATE.len());
                headers.extend(rate_headers(&self.entry));
                Ok(answer.map(|body| Held::new(body, in_flight).boxed()))
            }
            Err(error) if error.status == StatusCode::TOO_MANY_REQUESTS => {
                Err(with_rates(error, &self.entry))
            }
            Err(error) => Err(error),
        }
    }
}

/// Checks what a restricted key may do, and counts the request toward its limits.
///
/// # Errors
/// 403 for a blocked key or a missing scope; 429 with `Retry-After` and the rates that are left; 503
/// when the store cannot be read.
pub(crate) async fn admit(
    services: &Services,
    route: &Route,
    request: &Request,
    principal: &Principal,
) -> Result<Option<Admitted>, crate::Error> {
    let restricted = if let Principal::Caller(caller) = principal {
        services.accounts.policies().of(caller.key).map(|entry| (caller, entry))
    } else {
        None
    };
    let Some((caller, entry)) = restricted else {
        let is_refused = route.needs == Needs::Work;
        return if is_refused { Err(Refused::Scope(Scope::Worker).into()) } else { Ok(None) };
    };
    if entry.policy.blocked {
        return Err(Refused::Blocked.into());
    }
    let (scopes, own_suffices) = route.needs.scopes();
    let missing = scopes.iter().find(|scope| !entry.policy.may(**scope));
    if let Some(missing) = missing {
        let is_own = own_suffices
            && creator_of(services, route, request, caller.organization).await? == Some(caller.key);
        if !is_own {
            return Err(Refused::Scope(*missing).into());
        }
    }
    if !route.needs.is_metered() {
        return Ok(Some(Admitted { entry, in_flight: None }));
    }
    match entry.begin() {
        Ok(in_flight) => Ok(Some(Admitted { entry, in_flight: Some(in_flight) })),
        Err(refused) => Err(with_rates(refused.into(), &entry)),
    }
}

/// Adds the rates that a key has left to an error.
fn with_rates(error: crate::Error, entry: &Entry) -> crate::Error {
    rate_headers(entry).fold(error, |error, (name, value)| error.with_header(name, value))
}

/// The paths of files in Replicate's API.
const REPLICATE_FILES: &str = "/replicate/v1/files/";

/// Returns the key that created the resource in the path.
async fn creator_of(
    services: &Services,
    route: &Route,
    request: &Request,
    organization: OrganizationId,
) -> Result<Option<KeyId>, crate::Error> {
    let named = ["execution", "task", "batch", "id"];
    let text = named.into_iter().map(|name| request.param(name)).find(|text| !text.is_empty());
    let text = text.unwrap_or_default();
    if route.path.starts_with("/v1/batches/") {
        let Ok(id) = text.parse::<BatchId>() else { return Ok(None) };
        let found = services.batches.get(organization, id).await;
        return Ok(found.ok().map(|progress| progress.batch.key));
    }
    if ["/v1/files/", REPLICATE_FILES].iter().any(|place| route.path.starts_with(place)) {
        let Ok(id) = text.parse::<FileId>() else { return Ok(None) };
        let found = services.files.find(organization, id).await?;
        return Ok(found.and_then(|(file, _)| file.key));
    }
    let id = text.parse::<ExecutionId>().ok().or_else(|| responses::id_of(text));
    let Some(id) = id else { return Ok(None) };
    match services.engine.get(organization, id).await {
        Ok(execution) => Ok(Some(execution.key)),
        Err(orrery_engine::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The headers with a limit, the remaining part of the limit, and the time until the full limit is
/// available again.
const REQUEST_RATE: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKEN_RATE: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Returns the headers with the rates that a key has left.
fn rate_headers(entry: &Entry) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let (requests, tokens) = entry.left();
    let rates = [(REQUEST_RATE, requests), (TOKEN_RATE, tokens)].into_iter();
    rates.filter_map(|(names, left)| Some((names, left?))).flat_map(|(names, left)| {
        let reset = HeaderValue::try_from(reset_text(left.reset));
        let reset = reset.unwrap_or(const { HeaderValue::from_static("0ms") });
        names.into_iter().zip([left.limit.into(), left.remaining.into(), reset])
    })
}

/// Formats a time as OpenAI's API does: `6m0s`, `1.5s`, `20ms`.
fn reset_text(reset: Duration) -> String {
    let millis = reset.as_millis();
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, seconds) = (millis / 60_000, reset.as_secs_f64() % 60.0);
    let seconds = (seconds * 1000.0).round() / 1000.0;
    if minutes > 0 { format!("{minutes}m{seconds}s") } else { format!("{seconds}s") }
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;
    use crate::{Access, ROUTES};

    #[test]
    fn routes_for_keys_state_what_a_key_needs() {
        for route in ROUTES {
            let takes_keys = matches!(
                route.access,
                Access::Key | Access::BodyKey | Access::LocalKey | Access::MaybeKey | Access::Link
            );
            if !takes_keys {
                assert_eq!(route.needs, Needs::Nothing, "{} takes no API keys", route.path);
            }
            if route.access == Access::Key && route.needs == Needs::Nothing {
                let is_harmless = route.method == Method::GET || route.path == "/mcp";
                assert!(is_harmless, "{} {} needs no scope", route.method, route.path);
            }
        }
    }

    #[test]
    fn reset_times_read_like_those_of_open_ai() {
        for (millis, text) in
            [(0, "0ms"), (20, "20ms"), (1500, "1.5s"), (60_000, "1m0s"), (90_250, "1m30.25s")]
        {
            assert_eq!(reset_text(Duration::from_millis(millis)), text);
        }
    }
}
