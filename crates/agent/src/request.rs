//! Parses requests to the agent, in OpenAI's format or as a single message.

use serde_json::{Map, Value};

use orrery_domain::agent::{Behavior, Mode, Question, Turn};
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::json_object::JsonObject;

/// Maximum length of a session name, in characters.
const SESSION_CHARS_MAX: usize = 128;
/// Maximum bytes of a prompt, including the earlier turns that the client sends.
const PROMPT_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of earlier turns that a client may send.
const TURNS_MAX: usize = 100;
/// Maximum number of images in one prompt, and maximum characters of each URL.
const IMAGES_MAX: usize = 4;
const URL_CHARS_MAX: usize = 4096;

/// A valid request.
#[derive(Debug)]
pub struct Request {
    /// The name of the session; `None` for a new one.
    pub session: Option<String>,
    pub question: Question,
    pub mode: Mode,
    pub behavior: Behavior,
    pub is_stream: bool,
}

impl Request {
    /// Parses OpenAI's format: the last message is the prompt. Earlier messages are used only
    /// without a session name, because a session has its own memory of them. `header` is the
    /// session named in the header; `streams` is the default of `stream`.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub fn of_completion(
        fields: JsonObject,
        header: Option<&str>,
        streams: bool,
    ) -> Result<Self, InvalidRequest> {
        let mut fields = fields;
        let messages =
            fields.list("messages")?.ok_or_else(|| InvalidRequest::missing("messages"))?;
        let mut images = Vec::new();
        let (last, earlier) =
            messages.split_last().ok_or_else(|| wrong("messages must not be empty"))?;
        let (role, prompt) = said(last, &mut images)?;
        if role != "user" {
            return Err(wrong("the last of messages must have the role user"));
        }
        let mut request = Self::read(fields, (header, streams), prompt, images)?;
        if request.session.is_none() {
            if earlier.len() > TURNS_MAX {
                return Err(wrong(&format!("messages must have at most {} items", TURNS_MAX + 1)));
            }
            let turns = earlier.iter().map(|message| {
                let (role, text) = said(message, &mut Vec::new())?;
                Ok(Turn { is_client: role != "assistant", text })
            });
            request.question.turns = turns.collect::<Result<_, InvalidRequest>>()?;
        }
        request.check_size("messages")
    }

    /// Parses the single-message format.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub fn of_message(fields: JsonObject, header: Option<&str>) -> Result<Self, InvalidRequest> {
        let mut fields = fields;
        let message = fields.text("message")?.ok_or_else(|| InvalidRequest::missing("message"))?;
        Self::read(fields, (header, true), message, Vec::new())?.check_size("message")
    }

    fn read(
        mut fields: JsonObject,
        (header, streams): (Option<&str>, bool),
        prompt: String,
        mut image_urls: Vec<String>,
    ) -> Result<Self, InvalidRequest> {
        if prompt.trim().is_empty() {
            return Err(InvalidRequest::whole("the prompt must not be empty"));
        }
        let session = fields.text("session_id")?.or_else(|| header.map(str::to_owned));
        if let Some(name) = &session {
            check_session_name(name)?;
        }
        image_urls.extend(fields.texts("image_urls", IMAGES_MAX)?.unwrap_or_default());
        check_images(&image_urls)?;
        Ok(Self {
            session,
            mode: one_of(&mut fields, "mode", &Mode::ALL)?,
            behavior: one_of(&mut fields, "behavior", &Behavior::ALL)?,
            is_stream: fields.flag("stream")?.unwrap_or(streams),
            question: Question { prompt, image_urls, turns: Vec::new() },
        })
    }

    fn check_size(self, field: &'static str) -> Result<Self, InvalidRequest> {
        let question = &self.question;
        let turns: usize = question.turns.iter().map(|turn| turn.text.len()).sum();
        if question.prompt.len().saturating_add(turns) > PROMPT_BYTES_MAX {
            let message = format!("the prompt must have at most {PROMPT_BYTES_MAX} bytes");
            let code = "context_length_exceeded";
            return Err(InvalidRequest { code, ..InvalidRequest::field(field, message) });
        }
        Ok(self)
    }
}

/// Validates the name of a session.
///
/// # Errors
/// [`InvalidRequest`]
pub fn check_session_name(name: &str) -> Result<(), InvalidRequest> {
    if name.is_empty() {
        return Err(InvalidRequest::missing("session_id"));
    }
    if name.chars().nth(SESSION_CHARS_MAX).is_some() || name.chars().any(char::is_control) {
        let message = format!(
            "session_id must have at most {SESSION_CHARS_MAX} characters and no control characters"
        );
        return Err(InvalidRequest::field("session_id", message));
    }
    Ok(())
}

fn check_images(urls: &[String]) -> Result<(), InvalidRequest> {
    if urls.len() > IMAGES_MAX {
        let message = format!("image_urls must have at most {IMAGES_MAX} items");
        return Err(InvalidRequest::field("image_urls", message));
    }
    let is_good = |url: &String| {
        let is_web = url.starts_with("https://") || url.starts_with("http://");
        is_web && url.chars().nth(URL_CHARS_MAX).is_none() && !url.chars().any(char::is_control)
    };
    if urls.iter().all(is_good) {
        return Ok(());
    }
    let message =
        format!("image_urls must be http or https URLs of at most {URL_CHARS_MAX} characters");
    Err(InvalidRequest::field("image_urls", message))
}

fn one_of<T: Copy + Default>(
    fields: &mut JsonObject,
    field: &'static str,
    known: &[(&'static str, T)],
) -> Result<T, InvalidRequest> {
    let Some(word) = fields.text(field)? else { return Ok(T::default()) };
    let found = known.iter().find(|(name, _)| *name == word);
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let wrong =
        || InvalidRequest::field(field, format!("{field} must be one of {}", names.join(", ")));
    Ok(found.ok_or_else(wrong)?.1)
}

fn wrong(message: &str) -> InvalidRequest {
    InvalidRequest::field("messages", message)
}

/// Returns the role and the text of a message, and appends its images to `images`.
fn said(message: &Value, images: &mut Vec<String>) -> Result<(String, String), InvalidRequest> {
    let message = message.as_object().ok_or_else(|| wrong("messages must have objects only"))?;
    let role = message.get("role").and_then(Value::as_str);
    let role = role.ok_or_else(|| wrong("each of messages must have a role"))?.to_owned();
    let text = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(Value::as_object).map(|part| text_of(part, images));
            texts.collect::<Vec<_>>().join("")
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(wrong("the content of messages must be a string or an array of parts"));
        }
    };
    Ok((role, text))
}

fn text_of(part: &Map<String, Value>, images: &mut Vec<String>) -> String {
    let image = part.get("image_url");
    let url = image.and_then(|image| image.get("url").unwrap_or(image).as_str());
    // One image more than the maximum is enough to reject the request.
    if let Some(url) = url.filter(|_| images.len() <= IMAGES_MAX) {
        images.push(url.to_owned());
    }
    part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> JsonObject {
        let Value::Object(fields) = value else { panic!("an object") };
        fields.into()
    }

    fn completion(value: Value) -> Result<Request, String> {
        Request::of_completion(object(value), None, true).map_err(|error| error.to_string())
    }

    #[test]
    fn agent_request_takes_the_last_message_and_its_images() {
        let parts = json!([
            {"type": "text", "text": "what is "},
            {"type": "text", "text": "this?"},
            {"type": "image_url", "image_url": {"url": "https://h/a.png"}},
        ]);
        let messages = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": parts},
        ]);
        let request = completion(json!({"messages": messages})).unwrap();
        assert_eq!(request.question.prompt, "what is this?");
        assert_eq!(request.question.image_urls, ["https://h/a.png"]);
        let turns: Vec<(bool, &str)> =
            request.question.turns.iter().map(|turn| (turn.is_client, &*turn.text)).collect();
        assert_eq!(turns, [(true, "hi"), (false, "hello")]);
        assert!(request.is_stream && request.session.is_none());
        let named = completion(json!({"messages": messages, "session_id": "s"})).unwrap();
        assert!(named.question.turns.is_empty(), "the session remembers them");
    }

    #[test]
    fn agent_request_error_names_the_invalid_field() {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        let images = |count: usize| vec!["https://h/a.png?".to_owned(); count];
        let with = |field: &str, value: Value| json!({"messages": [{"role": "user", "content": "hi"}], field: value});
        for (body, expected) in [
            (json!({}), "messages is required"),
            (json!({"messages": []}), "messages must not be empty"),
            (json!({"messages": [1]}), "messages must have objects only"),
            (json!({"messages": [{"role": "assistant"}]}), "must have the role user"),
            (json!({"messages": user(json!(" "))}), "the prompt must not be empty"),
            (json!({"messages": user(json!(7))}), "must be a string or an array of parts"),
            (json!({"messages": user(json!("x".repeat(PROMPT_BYTES_MAX + 1)))}), "at most 262144"),
            (with("mode", json!("fast")), "mode must be one of max, eco"),
            (with("behavior", json!("do")), "behavior must be one of agent, plan, ask"),
            (with("session_id", json!("x".repeat(10_000))), "at most 128 characters"),
            (with("session_id", json!("a\nb")), "no control characters"),
            (with("session_id", json!("")), "session_id is required"),
            (with("session_id", json!(1)), "session_id must be a string"),
            (with("image_urls", json!(images(5))), "image_urls must have at most 4 items"),
            (with("image_urls", json!(["ftp://h/a"])), "http or https URLs"),
            (with("stream", json!("no")), "stream must be true or false"),
        ] {
            let error = completion(body).unwrap_err();
            assert!(error.contains(expected), "{error} does not contain {expected}");
        }
        let message = |value| Request::of_message(object(value), None).map_err(|e| e.to_string());
        assert_eq!(message(json!({})).unwrap_err(), "message is required");
        assert_eq!(message(json!({"message": "hi"})).unwrap().question.prompt, "hi");
    }

    #[test]
    fn agent_request_prefers_the_session_of_the_body() {
        let of = |body: Value| Request::of_message(object(body), Some("header")).unwrap().session;
        assert_eq!(of(json!({"message": "m"})).as_deref(), Some("header"));
        assert_eq!(of(json!({"message": "m", "session_id": "body"})).as_deref(), Some("body"));
    }
}
