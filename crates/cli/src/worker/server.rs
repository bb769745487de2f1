//! The routes of a service that a worker calls.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Request, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls_pki_types::CertificateDer;
use serde::Serialize;
use serde_json::Value;
use url::Url;

use orrery_config::secret;
use orrery_http::client::{Builder, Client, Limits, Overflow};
use orrery_wire::worker::Job;

/// Maximum size of a response, in bytes: an input and its envelope.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// Time limit of a request, in addition to the time for which the service delays the response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for sending an output.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(300);
/// The characters of a slug that must be escaped in a path.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_');

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The worker no longer has the job.
    #[error("{0}")]
    Lost(String),
    /// The service refused the request, and would refuse it again.
    #[error("{message}")]
    Refused { message: String },
    /// The service did not respond, or cannot serve the request now.
    #[error("{0}")]
    Unavailable(String),
}

/// The client for the service's worker routes; clones share its connections.
#[derive(Debug, Clone)]
pub(super) struct Server {
    client: Client,
    /// The URL of the base host, without a trailing slash.
    url: Arc<str>,
    authorization: HeaderValue,
    /// The worker's name, escaped for a query.
    name: Arc<str>,
}

impl Server {
    /// Creates the client of a service; `authorities` are trusted in addition to the public
    /// authorities.
    ///
    /// # Errors
    /// Fails if the key cannot be read.
    pub(super) fn new(
        url: &Url,
        key_file: &Path,
        name: &str,
        authorities: Vec<CertificateDer<'static>>,
    ) -> anyhow::Result<Self> {
        let key = secret::from_file(key_file).map_err(anyhow::Error::msg)?;
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", key.expose()))?;
        authorization.set_sensitive(true);
        let name = utf8_percent_encode(name, NON_ALPHANUMERIC).to_string().into();
        let url = url.as_str().trim_end_matches('/').into();
        let client = Builder::new(None).trust(authorities).build();
        Ok(Self { client, url, authorization, name })
    }

    /// Waits for a job of a model.
    pub(super) async fn claim(&self, slug: &str, wait: Duration) -> Result<Option<Job>, Error> {
        let (slug, name) = (utf8_percent_encode(slug, IN_PATH), &self.name);
        let path = format!("/v1/workers/{slug}/claim?wait={}&worker={name}", wait.as_secs());
        let (status, body) = self.post(&path, Bytes::new(), wait + TIMEOUT).await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let job = serde_json::from_slice(&body);
        job.map(Some).map_err(|error| {
            Error::Unavailable(format!("the service sent something other than a job: {error}"))
        })
    }

    /// Reports about a job; `what` is the last segment of the route.
    pub(super) async fn report(
        &self,
        job: &Job,
        what: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<(), Error> {
        let path = format!("/v1/workers/jobs/{}/{what}", job.job_id);
        let body = serde_json::to_vec(body).map_err(|error| {
            let message = format!("the report cannot be written as JSON: {error}");
            Error::Refused { message }
        })?;
        let limit = if what == "complete" { OUTPUT_TIMEOUT } else { TIMEOUT };
        self.post(&path, body.into(), limit).await.map(|_empty| ())
    }

    async fn post(
        &self,
        path: &str,
        body: Bytes,
        total: Duration,
    ) -> Result<(StatusCode, Bytes), Error> {
        let request = Request::post(format!("{}{path}", self.url))
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| Error::Refused { message: error.to_string() })?;
        let limits = Limits { total, answer_bytes: ANSWER_MAX, overflow: Overflow::Fail };
        let answer = self.client.send(request, &limits).await;
        let answer = answer.map_err(|error| Error::Unavailable(error.detail()))?;
        let status = answer.status;
        if status.is_success() {
            return Ok((status, answer.body));
        }
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let said = body.get("error").and_then(Value::as_str).unwrap_or("no reason given");
        let message = format!("{status}: {said}");
        Err(match status {
            StatusCode::CONFLICT => Error::Lost(message),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                Error::Unavailable(message)
            }
            _ if status.is_client_error() => Error::Refused { message },
            _ => Error::Unavailable(message),
        })
    }
}
