//! Servers that accept a job at once and whose job state the runner then polls. The first response
//! contains the job's ID, and the run ends when the server reports that the job has ended.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::Value;

use super::{ANSWER_MAX, HttpRunner, excerpt, failure_of, pointer};
use crate::Job;
use orrery_config::reader::{Parsed, Section};
use orrery_config::values::{self, problem};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::condition::Condition;
use orrery_domain::input_template::{self, Named};
use orrery_domain::reference::{Field, Root, Scope};
use orrery_domain::template::Template;
use orrery_domain::url_template::UrlTemplate;
use orrery_http::client::{Client, Limits, Overflow, Response};
use orrery_http::trace_context;
use orrery_runtime::Tasks;

/// Default time between two requests for the job's state.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_MIN: Duration = Duration::from_millis(100);
const EVERY_MAX: Duration = Duration::from_secs(3600);
/// Number of consecutive failed requests for the job's state after which the run fails.
const UNANSWERED_MAX: u32 = 5;
/// Timeout of a request for the job's state, and of the request that cancels a job.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the job's ID, as JSON.
const ID_BYTES_MAX: usize = 4096;
/// The name under which URLs refer to the job's ID.
const ID: &str = "id";
/// A server, to check the URLs of a manifest.
const A_SERVER: &str = "http://server";

/// How to poll a job: the table `[runner.poll]`.
#[derive(Debug, PartialEq)]
pub(super) struct Poll {
    /// A JSON pointer to the job's ID in the first response.
    id: String,
    url: JobUrl,
    every: Duration,
    until: Rule,
    failed_when: Option<Rule>,
    /// JSON pointers that refer to the last response.
    pub(super) output: Option<String>,
    error: Option<String>,
    cancel: Option<(Method, JobUrl)>,
}

/// A condition on a response. A reference such as `$.status` refers to a field of the response.
#[derive(Debug)]
struct Rule {
    written: Value,
    condition: Condition,
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

/// A URL with `{{id}}`, or a path on the server that accepted the job.
#[derive(Debug, PartialEq)]
struct JobUrl(String);

/// The response to which the references in a condition refer.
struct Answer<'a>(&'a Value);

impl Scope for Answer<'_> {
    fn inputs(&self) -> &Value {
        self.0.get("inputs").unwrap_or(&Value::Null)
    }

    fn execution_id(&self) -> String {
        let id = self.0.pointer("/execution/id").and_then(Value::as_str);
        id.unwrap_or_default().to_owned()
    }

    fn item(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    fn step(&self, _id: &str, _field: Field) -> Option<Cow<'_, Value>> {
        None
    }
}

impl Poll {
    /// Reads the table `[runner.poll]`.
    pub(super) fn read(section: &mut Section<'_>) -> Option<Self> {
        let id = section.required("id", pointer);
        let url = section.required("url", JobUrl::read);
        let every = section.get("every", EVERY, values::duration(EVERY_MIN..=EVERY_MAX));
        let until = section.required("until", Rule::read);
        let failed_when = section.optional("failed_when", Rule::read);
        let output = section.optional("output", pointer);
        let error = section.optional("error", pointer);
        let cancel = section.optional("cancel", cancel);
        let (id, url, until) = (id?, url?, until?);
        Some(Self { id, url, every, until, failed_when, output, error, cancel })
    }
}

impl Rule {
    fn read(value: &values::Value<'_>) -> Parsed<Self> {
        let written = values::json(value)?;
        let condition = Condition::parse(&written).map_err(|error| {
            let place = values::within(value, &error.place);
            problem(place, format!("the condition {}", error.message))
        })?;
        Ok(Self { written, condition })
    }
}

impl JobUrl {
    fn read(value: &values::Value<'_>) -> Parsed<Self> {
        let text = values::string(value)?;
        if !text.contains("{{") {
            return Err(problem(value, "must contain {{id}}, the ID of the job".to_owned()));
        }
        Self::parse(text).map_err(|why| problem(value, why))
    }

    fn parse(text: String) -> Result<Self, String> {
        if text.starts_with("//") {
            return Err("must be a URL, or a path that begins with one slash".to_owned());
        }
        let url = Self(text);
        let template = url.template(A_SERVER)?;
        let is_id = |root: &Root| matches!(root, Root::Name(name) if name == ID);
        let references = template.references();
        let other = references.iter().find(|one| !is_id(one.root()) || !one.path().is_empty());
        if let Some(other) = other {
            return Err(format!("{other} is not {{{{id}}}}, the only reference allowed here"));
        }
        url.of_job(A_SERVER, &Value::from("1"))?;
        Ok(url)
    }

    /// Returns the template of the URL. `server` is any URL of the server.
    fn template(&self, server: &str) -> Result<Template, String> {
        let text = match self.0.strip_prefix('/') {
            None => self.0.clone(),
            Some(path) => {
                let server = url::Url::parse(server).map_err(|error| error.to_string())?;
                let origin = server.join("/").map_err(|error| error.to_string())?;
                format!("{origin}{path}")
            }
        };
        Template::parse(&text.into()).map_err(|error| error.to_string())
    }

    /// Returns the URL of a job.
    fn of_job(&self, server: &str, id: &Value) -> Result<String, String> {
        let template = self.template(server)?;
        if let Some(Value::String(url)) = template.constant() {
            let parsed = url::Url::parse(url).ok().filter(|url| url.has_host());
            return parsed.map(String::from).ok_or_else(|| "must be a URL or a path".to_owned());
        }
        let url = UrlTemplate::of(&template).ok_or("must be a URL or a path")?;
        let url = url.map_err(|error| error.to_string())?;
        let id = Named { name: ID, value: id };
        url.resolve(&id, ID_BYTES_MAX).map(String::from).map_err(|error| error.to_string())
    }
}

/// Reads the request that cancels a job, such as `DELETE /jobs/{{id}}`.
fn cancel(value: &values::Value<'_>) -> Parsed<(Method, JobUrl)> {
    let text = values::string(value)?;
    let wrong = || values::wrong(value, "a method and a URL such as \"DELETE /jobs/{{id}}\"");
    let (method, url) = text.split_once(' ').ok_or_else(wrong)?;
    let method = method.to_uppercase().parse().map_err(|_invalid| wrong())?;
    if url.contains(' ') {
        return Err(wrong());
    }
    let url = JobUrl::parse(url.to_owned()).map_err(|why| problem(value, why))?;
    Ok((method, url))
}

/// Sends the request that cancels the job when this value is dropped, unless the job has ended.
struct Cancelling {
    client: Client,
    request: Option<Request<Bytes>>,
}

impl Drop for Cancelling {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        // Without a runtime, the process is exiting.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let client = self.client.clone();
        Tasks::attend(async move {
            // Nothing can be cancelled if the server is unreachable.
            let _answer = client.send(request, &limits()).await;
        });
    }
}

const fn limits() -> Limits {
    Limits { total: ANSWER_TIMEOUT, answer_bytes: ANSWER_MAX, overflow: Overflow::Fail }
}

impl HttpRunner {
    /// Polls the job whose ID is in the response `accepted`, until the job has ended. `server` is the URL of the
    /// server that accepted the job. Returns the last response.
    pub(super) async fn follow(
        &self,
        poll: &Poll,
        job: &Job,
        accepted: &Response,
        server: &str,
    ) -> Result<Value, crate::Error> {
        self.check_status(accepted).await?;
        let wrong = |answer: &Value, what: &str| {
            self.unexpected_response(answer.to_string().as_bytes(), what)
        };
        let named = self.json(accepted).await?;
        let id = named.pointer(&poll.id).filter(|id| id.is_string() || id.is_number());
        let id = id.ok_or_else(|| wrong(&named, &format!("gave an answer without {}", poll.id)))?;
        let server = input_template::fill_url(server, &job.input)
            .map_err(|error| self.unmade(ErrorClass::InvalidUserInput, &error.to_string()))?;
        let url_of = |url: &JobUrl| {
            let filled = url.of_job(&server, id);
            filled.map_err(|why| wrong(&named, &format!("gave an ID whose URL {why}")))
        };
        let url = url_of(&poll.url)?;
        let mut cancelling = Cancelling { client: self.client.clone(), request: None };
        if let Some((method, url)) = &poll.cancel {
            cancelling.request = Some(self.of_job(method.clone(), &url_of(url)?, job)?);
        }
        let mut unanswered = 0;
        loop {
            tokio::time::sleep(poll.every).await;
            let answer = match self.ask(&url, job).await {
                Ok(answer) => answer,
                Err(failure) => {
                    unanswered += 1;
                    if unanswered >= UNANSWERED_MAX || !is_temporary(failure.class) {
                        return Err(failure.into());
                    }
                    continue;
                }
            };
            unanswered = 0;
            let holds = |rule: &Rule| {
                let holds = rule.condition.holds(&Answer(&answer));
                holds.map_err(|error| wrong(&answer, &format!("gave a state in which {error}")))
            };
            if let Some(rule) = &poll.failed_when
                && holds(rule)?
            {
                cancelling.request = None;
                let said = poll.error.as_ref().and_then(|pointer| answer.pointer(pointer));
                let said = said.unwrap_or(&answer);
                let said = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
                let what = format!("its job failed: {}", excerpt(said.as_bytes()));
                return Err(self.model.failure(ErrorClass::ProviderError, &what).into());
            }
            if holds(&poll.until)? {
                cancelling.request = None;
                return Ok(answer);
            }
        }
    }

    /// Requests the state of a job.
    async fn ask(&self, url: &str, job: &Job) -> Result<Value, Failure> {
        let request = self.of_job(Method::GET, url, job)?;
        let answer = self.client.send_when_able(request, &limits()).await;
        let answer = answer.map_err(|error| failure_of(&self.model.name, &error))?;
        self.check_status(&answer).await.map_err(|error| error.failure)?;
        self.json(&answer).await
    }

    /// Returns a request about a job.
    fn of_job(&self, method: Method, url: &str, job: &Job) -> Result<Request<Bytes>, Failure> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in &self.options.headers {
            request = request.header(name, value);
        }
        if let Some(headers) = request.headers_mut() {
            trace_context::pass_on(headers, &job.trace);
        }
        request
            .body(Bytes::new())
            .map_err(|error| self.unmade(ErrorClass::InvalidModelConfig, &error.to_string()))
    }
}

/// Returns whether the next request for the job's state may succeed after an error of this class.
const fn is_temporary(class: ErrorClass) -> bool {
    matches!(
        class,
        ErrorClass::ProviderUnavailable
            | ErrorClass::ProviderRateLimit
            | ErrorClass::ExecutionTimeout
    )
}
