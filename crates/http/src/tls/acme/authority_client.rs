//! The connection to the authority: the service's own client, with its time and size limits, sends
//! the requests of the ACME library. Only `https` URLs are called, even if the authority returns
//! others.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::header::RETRY_AFTER;
use hyper::{Request, StatusCode};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};

use super::super::pair;
use super::{Error, Options};
use crate::client::{self, Builder, Client, Limits, Overflow};
use crate::places::Share;

/// Limits for one exchange. The largest response is a certificate chain.
const LIMITS: Limits =
    Limits { total: Duration::from_secs(30), answer_bytes: 256 * 1024, overflow: Overflow::Fail };

/// Sends requests to the authority; clones share its last `Retry-After`.
#[derive(Debug, Clone)]
pub(super) struct AuthorityClient {
    client: Client,
    retry_after: Arc<Mutex<Option<Duration>>>,
}

/// The authority did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unreachable(String);

impl AuthorityClient {
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        let mut builder = Builder::new(None);
        if let Some(path) = &options.directory_ca {
            builder = builder.trust(pair::chain(path)?);
        }
        let client = builder.build().with_share(Share::Deliveries);
        Ok(Self { client, retry_after: Arc::default() })
    }

    /// Returns the wait before the next attempt that the authority requested, if any.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(
        self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Result<BytesResponse, instant_acme::Error> {
        let (head, body) = request.into_parts();
        let url = head.uri.clone();
        if url.scheme_str() != Some("https") {
            return Err(other(format!("the authority named {url}, which is not an https URL")));
        }
        let Ok(body) = body.collect().await;
        let request = Request::from_parts(head, body.to_bytes());
        let answer = self.client.send(request, &LIMITS).await.map_err(|error| match error {
            client::Error::Connection(_)
            | client::Error::Timeout { .. }
            | client::Error::Protocol { .. } => {
                let unreachable = Unreachable(format!("{url}: {}", error.detail()));
                instant_acme::Error::Other(Box::new(unreachable))
            }
            client::Error::TooLarge { .. } | client::Error::Content(_) => {
                other(format!("{url}: {}", error.detail()))
            }
        })?;
        let status = answer.status;
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let seconds = seconds.and_then(|text| text.trim().parse().ok());
            *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) =
                seconds.map(Duration::from_secs);
        }
        let is_problem = || serde_json::from_slice::<serde_json::Value>(&answer.body).is_ok();
        if (status.is_client_error() || status.is_server_error()) && !is_problem() {
            return Err(other(format!("{url}: status {status} without an explanation")));
        }
        let mut response = hyper::Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = answer.headers;
        let (parts, ()) = response.into_parts();
        Ok(BytesResponse { parts, body: Box::new(answer.body) })
    }
}

fn other(reason: String) -> instant_acme::Error {
    instant_acme::Error::Other(reason.into())
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}
