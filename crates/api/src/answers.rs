//! Receives the events for which steps wait (`docs/spec/steps.md`, "Events"): from clients, with an
//! API key or the step's link, or from the page that the link opens.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue, REFERRER_POLICY,
};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};

use super::body::validation_error;
use super::context::Grant;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::{Context, access};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, Id as _, MemberId};
use orrery_domain::member::MemberRole;
use orrery_domain::secret::is_name;
use orrery_domain::step::EventSource;
use orrery_engine as engine;
use orrery_http::request::parse_value;
use orrery_http::{Response, content, media_type, response};
use orrery_records::members;
use orrery_schema::Patience;
use orrery_wire::answer::{Accepted, Event};
use orrery_wire::request::{self, MismatchKind};
use orrery_workflows::Compiled;

/// Maximum number of schema fields with a control on the page.
const CONTROLS_MAX: usize = 50;
const FORM: &str = "application/x-www-form-urlencoded";
const NO_PAYLOAD: &str = "payload field is required, as in {\"payload\": {\"approved\": true}}";
/// The field of a form for a schema without any property that has a control.
const ACKNOWLEDGED: &str = "acknowledged";
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'";

const ACCEPTED: ResponseDoc =
    ResponseDoc::json::<Accepted<'static>>(202, "The event was accepted and is durable");
const MISSING: ResponseDoc = ResponseDoc::error(404, "Execution not found");
const ANSWERED: ResponseDoc =
    ResponseDoc::error(409, "The event was already sent, or the execution has ended");

pub(crate) const SEND: Doc = Doc {
    request: Some(RequestDoc::json::<Event>()),
    responses: &[ACCEPTED, MISSING, ANSWERED],
    description: "Sends the event that a `wait` step waits for; `payload` becomes the step's \
                  output and must match the event's `schema`, if it has one. An event that arrives \
                  before its step waits is stored. The first event with a name is accepted and \
                  durable; every further event with that name returns 409. An invalid body returns \
                  400 and leaves the step waiting.",
    ..Doc::new("executions", "send_event", "Send an event to a waiting step, now or in advance")
};

pub(crate) const SEND_BY_LINK: Doc = Doc {
    summary: "Send an event to a waiting step, with an API key or the token of its link",
    description: "Sends the event that a `wait` step waits for, with an API key or with the \
                  `token` of the step's `resume_url`. `payload` becomes the step's output and must \
                  match the event's `schema`, if it has one. The first event with a name is \
                  accepted and durable; every further event with that name returns 409. An invalid \
                  event returns 400 and leaves the step waiting. With the link, form data from the \
                  page that `GET` on this path returns is accepted, too, and the response is a \
                  page.",
    responses: &[
        ACCEPTED,
        ResponseDoc::raw(200, "text/html", "The page's form was accepted"),
        ResponseDoc::error(403, "The member who created the link may no longer answer"),
        MISSING,
        ANSWERED,
    ],
    ..SEND
};

/// `POST /executions/{execution}/events/{name}`
pub(crate) async fn send(mut context: Context) -> Result<Response, crate::Error> {
    check_role_of_link(&context).await?;
    let bytes = context.request.body().await?;
    if !(context.is_by_link() && is_form(&context.request.headers, &bytes)) {
        let (execution, name) = target(&context).await?;
        let payload = of_json(&bytes)?;
        let compiled = compiled(&context, &execution).await?;
        answer(&context, &execution, &name, &compiled, payload).await?;
        let body = Accepted { execution_id: execution.id, event: &name, accepted: true };
        return Ok(response::json(StatusCode::ACCEPTED, &body));
    }
    let (execution, name) = target(&context).await?;
    let compiled = compiled(&context, &execution).await?;
    let schema = compiled.plan.event(&name).and_then(|(_, event)| event.schema.as_ref());
    let taken = match of_form(schema, &bytes) {
        Ok(payload) => answer(&context, &execution, &name, &compiled, payload).await,
        Err(error) => Err(error),
    };
    match taken {
        Ok(()) => Ok(html(StatusCode::OK, "Answered", "<p>Your answer was recorded.</p>")),
        Err(error) if error.status == StatusCode::BAD_REQUEST => {
            let sent = fields_of(&bytes);
            let form = form(&workflow_name(&context, &execution).await?, &name, &compiled, &sent);
            Ok(html(error.status, &name, &format!("{}{form}", alert(&error.message))))
        }
        Err(error) if error.status == StatusCode::CONFLICT => {
            Ok(html(error.status, "Not accepted", &alert(&error.message)))
        }
        Err(error) => Err(error),
    }
}

/// Checks that a member who created the link of the request may still answer.
async fn check_role_of_link(context: &Context) -> Result<(), crate::Error> {
    if !context.is_by_link() {
        return Ok(());
    }
    let Grant { organization, key, .. } = context.grant()?;
    match context.services.members.member(organization, MemberId::from(key.bytes())).await {
        Ok(member) => access::check_role(&member, MemberRole::Operator),
        // The link was created with an API key.
        Err(members::Error::NoMember) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a body contains the fields of the page's form. Some clients declare every body
/// as a form, so JSON is recognized by its opening brace, which a form would encode.
fn is_form(headers: &HeaderMap, body: &[u8]) -> bool {
    media_type::of(headers).is_some_and(|kind| kind.is(FORM))
        && !body.trim_ascii_start().starts_with(b"{")
}

/// Returns the payload of a JSON body. Other fields are rejected, because an event cannot be
/// withdrawn.
fn of_json(body: &[u8]) -> Result<Value, crate::Error> {
    let read = request::read::<Event>(parse_value(body)?);
    let event = read.map_err(|mismatch| match mismatch.kind {
        MismatchKind::Missing => crate::Error::bad_request(NO_PAYLOAD),
        MismatchKind::Unknown | MismatchKind::Invalid => mismatch.into(),
    })?;
    Ok(event.payload)
}

/// Validates a payload and sends it to the step.
async fn answer(
    context: &Context,
    execution: &Execution,
    name: &str,
    compiled: &Compiled,
    payload: Value,
) -> Result<(), crate::Error> {
    let payload = match compiled.events.get(name) {
        None => payload,
        Some(schema) => {
            let checked = schema.check_off_thread(payload, Patience::Request).await;
            checked.map_err(validation_error)?
        }
    };
    let source = if context.is_by_link() { EventSource::Link } else { EventSource::Api };
    let payload = to_raw_value(&payload).map_err(crate::Error::internal)?;
    let (organization, id) = (execution.organization, execution.id);
    let engine = &context.services.engine;
    engine.send_event(organization, id, name.to_owned(), payload, source).await?;
    Ok(())
}

async fn compiled(context: &Context, execution: &Execution) -> Result<Arc<Compiled>, crate::Error> {
    let run = execution.workflow().ok_or(engine::Error::NotFound)?;
    Ok(context.services.workflows.compiled(run.revision).await?)
}

async fn workflow_name(context: &Context, execution: &Execution) -> Result<String, crate::Error> {
    let run = execution.workflow().ok_or(engine::Error::NotFound)?;
    Ok(context.services.workflows.by_id(run.workflow).await?.name.clone())
}

pub(crate) const PAGE: Doc = Doc {
    responses: &[ResponseDoc::raw(200, "text/html", "A form that sends the event"), MISSING],
    description: "Returns an HTML page with a form for the event's fields, for the person who \
                  opens the step's `resume_url`. The page sends its form to `POST` on the same \
                  path. If the event can no longer be answered, the page says so.",
    ..Doc::new("executions", "event_page", "Show a page with a form to answer a waiting step")
};

/// `GET /executions/{execution}/events/{name}`
pub(crate) async fn page(context: Context) -> Result<Response, crate::Error> {
    let (execution, name) = target(&context).await?;
    if execution.status.is_final() {
        let ended = "<p>This execution has ended. It no longer needs your answer.</p>";
        return Ok(html(StatusCode::OK, "Ended", ended));
    }
    let compiled = compiled(&context, &execution).await?;
    let form = form(&workflow_name(&context, &execution).await?, &name, &compiled, &[]);
    Ok(html(StatusCode::OK, &name, &form))
}

/// Returns the execution and the event in the path.
async fn target(context: &Context) -> Result<(Execution, String), crate::Error> {
    let organization = context.organization()?;
    let missing = || crate::Error::from(engine::Error::NotFound);
    let id: ExecutionId = context.request.param("execution").parse().map_err(|_no_id| missing())?;
    let execution = context.services.engine.get(organization, id).await?;
    if execution.workflow().is_none() {
        return Err(missing());
    }
    let name = context.request.param("name");
    if !is_name(name) {
        let message = "an event's name must have 1 to 64 characters of a-z A-Z 0-9 _ -";
        return Err(crate::Error::bad_request(message));
    }
    Ok((execution, name.to_owned()))
}

/// Returns the schema properties with a primitive type, which have a control on the page.
fn controls(schema: &Value) -> Vec<(&String, &str, &Value)> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let plain = properties.into_iter().flatten().filter_map(|(name, property)| {
        let kind = property.get("type")?.as_str()?;
        ["string", "number", "integer", "boolean"].contains(&kind).then_some((name, kind, property))
    });
    plain.take(CONTROLS_MAX).collect()
}

fn fields_of(body: &[u8]) -> Vec<(String, String)> {
    form_urlencoded::parse(body).into_owned().collect()
}

/// Returns the last value of a form field. A checked box sends its value after the value of the
/// hidden field with the same name.
fn sent_value<'s>(sent: &'s [(String, String)], name: &str) -> Option<&'s str> {
    sent.iter().rev().find(|(held, _)| held == name).map(|(_, value)| value.as_str())
}

/// Returns the payload of a form, built from the fields for the schema's properties or, without a
/// schema, from the button and the comment.
///
/// # Errors
/// 400 if the form has none of the page's fields and therefore contains no answer.
fn of_form(schema: Option<&Value>, body: &[u8]) -> Result<Value, crate::Error> {
    let sent = fields_of(body);
    let mut payload = Map::new();
    let Some(schema) = schema else {
        let approved = match sent_value(&sent, "approved") {
            Some("true") => true,
            Some("false") => false,
            _ => return Err(crate::Error::bad_request("approved must be true or false")),
        };
        payload.insert("approved".to_owned(), approved.into());
        if let Some(comment) = sent_value(&sent, "comment").filter(|comment| !comment.is_empty()) {
            payload.insert("comment".to_owned(), comment.into());
        }
        return Ok(payload.into());
    };
    let controls = controls(schema);
    let is_known = |name: &str| match controls.as_slice() {
        [] => name == ACKNOWLEDGED,
        controls => controls.iter().any(|(known, _, _)| *known == name),
    };
    if !sent.iter().any(|(name, _)| is_known(name)) {
        return Err(crate::Error::bad_request("the form has no field of this page"));
    }
    for (name, kind, _) in controls {
        // A value that cannot be parsed stays a string, which the schema then rejects.
        let read = match (kind, sent_value(&sent, name)) {
            (_, None | Some("")) => None,
            ("string", Some(text)) => Some(text.into()),
            ("boolean", Some(text)) => {
                Some(text.parse().map_or_else(|_no_flag| text.into(), Value::Bool))
            }
            (_, Some(text)) => match content::parse(text.as_bytes()) {
                Err(error @ content::Error::Number(_)) => {
                    return Err(crate::Error::bad_request(format!("{name}: {error}")));
                }
                read => Some(read.unwrap_or_else(|_no_number| text.into())),
            },
        };
        payload.extend(read.map(|read| (name.clone(), read)));
    }
    Ok(payload.into())
}

/// Returns the form for an event, filled with the values that the user has already sent.
fn form(workflow: &str, name: &str, compiled: &Compiled, sent: &[(String, String)]) -> String {
    let event = compiled.plan.event(name).map(|(_, event)| event);
    let mut form = format!(
        "<p>The workflow <b>{}</b> waits for <b>{}</b>.</p><form method=\"post\">",
        escaped(workflow),
        escaped(name)
    );
    match event.and_then(|event| event.schema.as_ref()) {
        None => {
            let comment = escaped(sent_value(sent, "comment").unwrap_or_default());
            form.push_str("<label>Comment<textarea name=\"comment\" maxlength=\"10000\">");
            form.push_str(&comment);
            form.push_str(
                "</textarea></label>\
                 <button name=\"approved\" value=\"true\">Approve</button> \
                 <button name=\"approved\" value=\"false\">Reject</button>",
            );
        }
        Some(schema) => {
            let controls = controls(schema);
            for (name, kind, property) in &controls {
                form.push_str(&control(name, kind, property, sent_value(sent, name)));
            }
            if controls.is_empty() {
                form.push_str(&hidden(ACKNOWLEDGED, "true"));
            }
            form.push_str("<button>Send</button>");
        }
    }
    form.push_str("</form>");
    form
}

fn hidden(name: &str, value: &str) -> String {
    format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">")
}

fn control(name: &str, kind: &str, property: &Value, sent: Option<&str>) -> String {
    let label = property.get("title").and_then(Value::as_str).unwrap_or(name);
    let (label, name) = (escaped(label), escaped(name));
    let held = escaped(sent.unwrap_or_default());
    let choices = property.get("enum").and_then(Value::as_array);
    let input = match (kind, choices) {
        // Browsers send nothing for an unchecked box, so a hidden field sends `false`.
        ("boolean", _) => {
            let checked = if sent == Some("true") { " checked" } else { "" };
            let box_of = format!("type=\"checkbox\" name=\"{name}\" value=\"true\"{checked}");
            format!("{}<input {box_of}>", hidden(&name, "false"))
        }
        (_, Some(choices)) => {
            let option = |choice: &Value| {
                let text = choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
                let selected = if sent == Some(text.as_str()) { " selected" } else { "" };
                format!("<option{selected}>{}</option>", escaped(&text))
            };
            let options = choices.iter().map(option).collect::<String>();
            format!("<select name=\"{name}\">{options}</select>")
        }
        ("string", None) => format!("<textarea name=\"{name}\">{held}</textarea>"),
        _ => format!("<input name=\"{name}\" inputmode=\"decimal\" value=\"{held}\">"),
    };
    format!("<label>{label}{input}</label>")
}

/// Returns an error message that screen readers announce at once.
fn alert(message: &str) -> String {
    format!("<p role=\"alert\"><b>{}</b></p>", escaped(message))
}

/// Escapes text for HTML, including quoted attributes.
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

/// Returns a page that runs no script and loads nothing.
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
    // The URL contains the token.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answer_form_is_parsed_by_its_schema() {
        let schema = json!({"properties": {
            "amount": {"type": "number"}, "ok": {"type": "boolean"}, "note": {"type": "string"},
            "many": {"type": "array"}, "count": {"type": "integer"},
        }});
        let sent = b"amount=1.5&ok=false&ok=true&note=a+%3Cb%3E&many=1&count=two&other=1";
        let payload = json!({"amount": 1.5, "ok": true, "note": "a <b>", "count": "two"});
        let read = |schema: Option<&Value>, body: &[u8]| {
            of_form(schema, body).map_err(|error| error.status.as_u16())
        };
        assert_eq!(read(Some(&schema), sent), Ok(payload));
        assert_eq!(read(Some(&schema), b"ok=false&note="), Ok(json!({"ok": false})));
        assert_eq!(read(Some(&schema), b"ok=yes"), Ok(json!({"ok": "yes"})));
        assert_eq!(read(None, b"approved=true&comment="), Ok(json!({"approved": true})));
        let rejected = json!({"approved": false, "comment": "no"});
        assert_eq!(read(None, b"comment=no&approved=false"), Ok(rejected));
        for body in [&b""[..], b"other=1", b"{\"payload\":1}", b"comment=no", b"approved="] {
            assert_eq!(read(None, body), Err(400));
        }
        for body in [
            &b""[..],
            b"other=1",
            b"many=1",
            b"count=123456789012345678901234567890",
            b"amount=-99999999999999999999",
        ] {
            assert_eq!(read(Some(&schema), body), Err(400));
        }
        let bare = json!({"type": "object"});
        assert_eq!(read(Some(&bare), b"acknowledged=true"), Ok(json!({})));
        assert_eq!(read(Some(&bare), b""), Err(400));
    }

    #[test]
    fn answer_requires_only_a_payload() {
        for (body, read) in [
            (&b"{\"payload\": null}"[..], Some(Value::Null)),
            (b" {\"payload\": false}", Some(json!(false))),
            (b"", None),
            (b" \n", None),
            (b"{}", None),
            (b"{\"approved\": true}", None),
            (b"{\"payload\": 1, \"approved\": true}", None),
            (b"{\"Payload\": 1}", None),
            (b"[1]", None),
            (b"payload=1", None),
        ] {
            assert_eq!(of_json(body).ok(), read);
        }
    }

    #[test]
    fn answer_page_escapes_its_content() {
        let property = json!({"title": "<script>", "enum": ["\"'&"], "type": "string"});
        let shown = control("a\"b", "string", &property, None);
        assert_eq!(
            shown,
            "<label>&lt;script&gt;<select name=\"a&quot;b\"><option>&quot;&#39;&amp;</option>\
             </select></label>"
        );
    }
}
