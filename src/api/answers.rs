//! Answers to steps that wait for events: by a key, or by the step's link, in a request or from the page
//! that the link shows (`docs/spec/steps.md`, "Events").

use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};

use super::Context;
use super::body::{self, validation_error};
use super::doc::{Doc, RequestDoc, ResponseDoc};
use crate::domain::execution::Execution;
use crate::domain::ids::ExecutionId;
use crate::domain::secret::is_name;
use crate::domain::step::EventSource;
use crate::engine;
use crate::http::{self, Response, response};
use crate::schema::Patience;
use crate::wire::answer::{Accepted, Event};
use crate::workflows::Compiled;

/// Fields of a schema that the page has a control for.
const CONTROLS_MAX: usize = 50;
const FORM: &str = "application/x-www-form-urlencoded";
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'";

const ACCEPTED: ResponseDoc =
    ResponseDoc::json::<Accepted<'static>>(202, "It is the one answer, and durable");
const MISSING: ResponseDoc = ResponseDoc::error(404, "There is no such execution");
const ANSWERED: ResponseDoc =
    ResponseDoc::error(409, "The event has been answered, or the execution has ended");

pub const SEND: Doc = Doc {
    request: Some(RequestDoc::optional_json::<Event>()),
    responses: &[ACCEPTED, MISSING, ANSWERED],
    ..Doc::new("executions", "send_event", "Send an event that a step waits for, now or later")
};

pub const SEND_BY_LINK: Doc = Doc {
    summary: "Send an event that a step waits for, with a key or the token of its link",
    responses: &[
        ACCEPTED,
        ResponseDoc::raw(200, "text/html", "The form of the page was taken"),
        MISSING,
        ANSWERED,
    ],
    ..SEND
};

/// `POST /executions/{execution}/events/{name}`
pub async fn send(mut context: Context) -> Result<Response, http::Error> {
    let bytes = context.request.body().await?;
    let is_form = context.request.headers.get(CONTENT_TYPE).is_some_and(|kind| {
        kind.to_str().is_ok_and(|kind| kind.split(';').next().unwrap_or_default().trim() == FORM)
    });
    let (execution, name) = target(&context).await?;
    let services = &context.services;
    let run = execution.workflow().ok_or(engine::Error::NotFound)?;
    let compiled = services.workflows.compiled(run.revision).await?;
    let payload = if is_form {
        let schema = compiled.plan.event(&name).and_then(|(_, event)| event.schema.as_ref());
        of_form(schema, &bytes)
    } else {
        body::parse(&bytes)?.take("payload").unwrap_or_default()
    };
    let payload = match compiled.events.get(&name) {
        None => payload,
        Some(schema) => {
            let checked = schema.check_off_thread(payload, Patience::Request).await;
            checked.map_err(validation_error)?
        }
    };
    let source = if context.is_by_link() { EventSource::Link } else { EventSource::Api };
    let payload = to_raw_value(&payload).map_err(http::Error::internal)?;
    let (organization, id) = (execution.organization, execution.id);
    services.engine.send_event(organization, id, name.clone(), payload, source).await?;
    if is_form {
        return Ok(html(StatusCode::OK, "Answered", "<p>Your answer was taken.</p>"));
    }
    let body = Accepted { execution_id: id, event: &name, accepted: true };
    Ok(response::json(StatusCode::ACCEPTED, &body))
}

pub const PAGE: Doc = Doc {
    responses: &[ResponseDoc::raw(200, "text/html", "A form that sends the event"), MISSING],
    ..Doc::new("executions", "event_page", "The page on which a person answers a step that waits")
};

/// `GET /executions/{execution}/events/{name}`
pub async fn page(context: Context) -> Result<Response, http::Error> {
    let (execution, name) = target(&context).await?;
    if execution.status.is_final() {
        let ended = "<p>This execution has ended. Nothing waits for your answer.</p>";
        return Ok(html(StatusCode::OK, "Ended", ended));
    }
    let services = &context.services;
    let run = execution.workflow().ok_or(engine::Error::NotFound)?;
    let compiled = services.workflows.compiled(run.revision).await?;
    let workflow = services.workflows.by_id(run.workflow).await?;
    let form = form(&workflow.name, &name, &compiled);
    Ok(html(StatusCode::OK, &name, &form))
}

/// The execution and the event that the path names.
async fn target(context: &Context) -> Result<(Execution, String), http::Error> {
    let organization = context.organization()?;
    let missing = || http::Error::from(engine::Error::NotFound);
    let id: ExecutionId = context.request.param("execution").parse().map_err(|_no_id| missing())?;
    let execution = context.services.engine.get(organization, id).await?;
    if execution.workflow().is_none() {
        return Err(missing());
    }
    let name = context.request.param("name");
    if !is_name(name) {
        let message = "an event's name must have 1 to 64 characters of a-z A-Z 0-9 _ -";
        return Err(http::Error::bad_request(message));
    }
    Ok((execution, name.to_owned()))
}

/// The properties of a schema that the page has controls for: those with a plain type.
fn controls(schema: &Value) -> Vec<(&String, &str, &Value)> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let plain = properties.into_iter().flatten().filter_map(|(name, property)| {
        let kind = property.get("type")?.as_str()?;
        ["string", "number", "integer", "boolean"].contains(&kind).then_some((name, kind, property))
    });
    plain.take(CONTROLS_MAX).collect()
}

/// The payload that a form means: by the schema's properties, or the button and a comment.
fn of_form(schema: Option<&Value>, body: &[u8]) -> Value {
    let sent: Vec<(String, String)> = form_urlencoded::parse(body).into_owned().collect();
    let value = |name: &str| sent.iter().find(|(held, _)| held == name).map(|(_, value)| value);
    let mut payload = Map::new();
    let Some(schema) = schema else {
        payload.insert(
            "approved".to_owned(),
            (value("approved").map(String::as_str) == Some("true")).into(),
        );
        if let Some(comment) = value("comment").filter(|comment| !comment.is_empty()) {
            payload.insert("comment".to_owned(), comment.as_str().into());
        }
        return payload.into();
    };
    for (name, kind, _) in controls(schema) {
        let value = value(name);
        let read = match (kind, value) {
            ("boolean", value) => Some(Value::Bool(value.is_some_and(|value| value == "true"))),
            (_, None) => None,
            ("string", Some(text)) => Some(text.as_str().into()).filter(|_| !text.is_empty()),
            // The schema refuses what is not a number.
            (_, Some(text)) if text.is_empty() => None,
            (_, Some(text)) => {
                Some(serde_json::from_str(text).unwrap_or_else(|_no_number| text.as_str().into()))
            }
        };
        payload.extend(read.map(|read| (name.clone(), read)));
    }
    payload.into()
}

/// The form for an event.
fn form(workflow: &str, name: &str, compiled: &Compiled) -> String {
    let event = compiled.plan.event(name).map(|(_, event)| event);
    let mut form = format!(
        "<p>The workflow <b>{}</b> waits for <b>{}</b>.</p><form method=\"post\">",
        escaped(workflow),
        escaped(name)
    );
    match event.and_then(|event| event.schema.as_ref()) {
        None => form.push_str(
            "<label>Comment<textarea name=\"comment\" maxlength=\"10000\"></textarea></label>\
             <button name=\"approved\" value=\"true\">Approve</button> \
             <button name=\"approved\" value=\"false\">Reject</button>",
        ),
        Some(schema) => {
            for (name, kind, property) in controls(schema) {
                form.push_str(&control(name, kind, property));
            }
            form.push_str("<button>Send</button>");
        }
    }
    form.push_str("</form>");
    form
}

fn control(name: &str, kind: &str, property: &Value) -> String {
    let label = property.get("title").and_then(Value::as_str).unwrap_or(name);
    let (label, name) = (escaped(label), escaped(name));
    let choices = property.get("enum").and_then(Value::as_array);
    let input = match (kind, choices) {
        ("boolean", _) => format!("<input type=\"checkbox\" name=\"{name}\" value=\"true\">"),
        (_, Some(choices)) => {
            let text = |choice: &Value| match choice.as_str() {
                Some(text) => escaped(text),
                None => escaped(&choice.to_string()),
            };
            let options = choices.iter().map(|choice| format!("<option>{}</option>", text(choice)));
            format!("<select name=\"{name}\">{}</select>", options.collect::<String>())
        }
        ("string", None) => format!("<textarea name=\"{name}\"></textarea>"),
        _ => format!("<input name=\"{name}\" inputmode=\"decimal\">"),
    };
    format!("<label>{label}{input}</label>")
}

/// Text within HTML, also within an attribute's quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A page that runs no script and loads nothing.
fn html(status: StatusCode, title: &str, content: &str) -> Response {
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\
         <style>body{{font:1rem/1.5 system-ui;max-width:36rem;margin:3rem auto;padding:0 1rem}}\
         label{{display:block;margin:1rem 0}}textarea{{display:block;width:100%;min-height:5rem}}</style>\
         <h1>{}</h1>{content}</html>",
        escaped(title),
        escaped(title)
    );
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    let mut page = response::with_type(status, kind, text.into());
    let headers = page.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // The address has the token in it.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answer_form_is_read_by_its_schema() {
        let schema = json!({"properties": {
            "amount": {"type": "number"}, "ok": {"type": "boolean"}, "note": {"type": "string"},
            "many": {"type": "array"}, "count": {"type": "integer"},
        }});
        let sent = b"amount=1.5&ok=true&note=a+%3Cb%3E&many=1&count=two&other=1";
        let payload = json!({"amount": 1.5, "ok": true, "note": "a <b>", "count": "two"});
        assert_eq!(of_form(Some(&schema), sent), payload);
        assert_eq!(of_form(Some(&schema), b""), json!({"ok": false}));
        assert_eq!(of_form(None, b"approved=true&comment="), json!({"approved": true}));
        let rejected = json!({"approved": false, "comment": "no"});
        assert_eq!(of_form(None, b"comment=no&approved=false"), rejected);
    }

    #[test]
    fn answer_page_escapes_what_it_shows() {
        let property = json!({"title": "<script>", "enum": ["\"'&"], "type": "string"});
        let shown = control("a\"b", "string", &property);
        assert_eq!(
            shown,
            "<label>&lt;script&gt;<select name=\"a&quot;b\"><option>&quot;&#39;&amp;</option>\
             </select></label>"
        );
    }
}
