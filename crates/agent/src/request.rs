//! Converts requests to the agent, in OpenAI's format or as a single message.

use serde_json::{Map, Value};

use orrery_domain::agent::{Behavior, Mode, Question, Turn};
use orrery_domain::invalid_request::InvalidRequest;
use orrery_wire::agent::{
    CompletionRequest, IMAGE_URL_CHARS_MAX, IMAGES_MAX, MessageRequest, Options, SESSION_CHARS_MAX,
    TURNS_MAX,
};
use orrery_wire::chat::{Message, MessageContent};
use orrery_wire::pattern::WEB_URL;

/// Maximum bytes of a prompt, including the earlier turns that the client sends.
const PROMPT_BYTES_MAX: usize = 256 * 1024;

/// A valid request.
#[derive(Debug)]
pub struct Request {
    /// The name of the session; `None` for a new session.
    pub session: Option<String>,
    pub question: Question,
    pub mode: Mode,
    pub behavior: Behavior,
    pub is_stream: bool,
}

impl Request {
    /// Converts OpenAI's format: the last message is the prompt. Earlier messages are ignored if
    /// the request names a session, because the session already contains them. `header` is the
    /// session named in the header; `streams` is the default value of `stream`.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub fn of_completion(
        body: CompletionRequest,
        header: Option<&str>,
        streams: bool,
    ) -> Result<Self, InvalidRequest> {
        let CompletionRequest { messages, options } = body;
        let mut images = Vec::new();
        let (last, earlier) =
            messages.split_last().ok_or_else(|| wrong("messages must not be empty"))?;
        if last.role != "user" {
            return Err(wrong("the last of messages must have the role user"));
        }
        let prompt = text_of(last, &mut images);
        let mut request = Self::of(options, header, streams, prompt, images)?;
        if request.session.is_none() {
            if earlier.len() > TURNS_MAX {
                return Err(wrong(&format!("messages must have at most {} items", TURNS_MAX + 1)));
            }
            let turn = |message: &Message| Turn {
                is_client: message.role != "assistant",
                text: text_of(message, &mut Vec::new()),
            };
            request.question.turns = earlier.iter().map(turn).collect();
        }
        request.check_size("messages")
    }

    /// Converts the single-message format.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub fn of_message(body: MessageRequest, header: Option<&str>) -> Result<Self, InvalidRequest> {
        let MessageRequest { message, options } = body;
        Self::of(options, header, true, message, Vec::new())?.check_size("message")
    }

    fn of(
        options: Options,
        header: Option<&str>,
        streams: bool,
        prompt: String,
        mut image_urls: Vec<String>,
    ) -> Result<Self, InvalidRequest> {
        if prompt.trim().is_empty() {
            return Err(InvalidRequest::whole("the prompt must not be empty"));
        }
        let session = options.session_id.or_else(|| header.map(str::to_owned));
        if let Some(name) = &session {
            check_session_name(name)?;
        }
        image_urls.extend(options.image_urls.unwrap_or_default());
        check_images(&image_urls)?;
        Ok(Self {
            session,
            mode: options.mode.unwrap_or_default(),
            behavior: options.behavior.unwrap_or_default(),
            is_stream: options.stream.unwrap_or(streams),
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

/// Checks the images of the prompt and of the options together.
fn check_images(urls: &[String]) -> Result<(), InvalidRequest> {
    if urls.len() > IMAGES_MAX {
        let message = format!("image_urls must have at most {IMAGES_MAX} items");
        return Err(InvalidRequest::field("image_urls", message));
    }
    let is_good = |url: &String| {
        let is_long = url.chars().nth(IMAGE_URL_CHARS_MAX).is_some();
        WEB_URL.accepts(url) && !is_long && !url.chars().any(char::is_control)
    };
    if urls.iter().all(is_good) {
        return Ok(());
    }
    let most = IMAGE_URL_CHARS_MAX;
    let message = format!("image_urls must be http or https URLs of at most {most} characters");
    Err(InvalidRequest::field("image_urls", message))
}

fn wrong(message: &str) -> InvalidRequest {
    InvalidRequest::field("messages", message)
}

/// Returns the text of a message, and appends its images to `images`.
fn text_of(message: &Message, images: &mut Vec<String>) -> String {
    match &message.content {
        None => String::new(),
        Some(MessageContent::Text(text)) => text.clone(),
        Some(MessageContent::Parts(parts)) => {
            parts.iter().map(|part| text_of_part(part, images)).collect()
        }
    }
}

fn text_of_part(part: &Map<String, Value>, images: &mut Vec<String>) -> String {
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
    use orrery_wire::request;
    use serde_json::json;

    use super::*;

    fn completion(value: Value) -> Result<Request, String> {
        let body = request::read(value).map_err(|mismatch| mismatch.to_string())?;
        Request::of_completion(body, None, true).map_err(|error| error.to_string())
    }

    fn message(value: Value, header: Option<&str>) -> Result<Request, String> {
        let body = request::read(value).map_err(|mismatch| mismatch.to_string())?;
        Request::of_message(body, header).map_err(|error| error.to_string())
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
            (json!({"messages": [1]}), "messages[0] must be an object"),
            (json!({"messages": [{"role": "assistant"}]}), "must have the role user"),
            (json!({"messages": user(json!(" "))}), "the prompt must not be empty"),
            (json!({"messages": user(json!(7))}), "must be a string or an array of objects"),
            (json!({"messages": user(json!("x".repeat(PROMPT_BYTES_MAX + 1)))}), "at most 262144"),
            (with("mode", json!("fast")), "mode must be one of max, eco"),
            (with("behavior", json!("do")), "behavior must be one of agent, plan, ask"),
            (with("session_id", json!("x".repeat(10_000))), "at most 128 characters"),
            (with("session_id", json!("a\nb")), "must not contain control characters"),
            (with("session_id", json!("")), "session_id must not be empty"),
            (with("session_id", json!(1)), "session_id must be a string"),
            (with("image_urls", json!(images(5))), "image_urls must have at most 4 items"),
            (
                with("image_urls", json!(["ftp://h/a"])),
                "image_urls[0] must be an absolute http or https",
            ),
            (with("stream", json!("no")), "stream must be true or false"),
        ] {
            let error = completion(body).unwrap_err();
            assert!(error.contains(expected), "{error} does not contain {expected}");
        }
        assert_eq!(message(json!({}), None).unwrap_err(), "message is required");
        assert_eq!(message(json!({"message": "hi"}), None).unwrap().question.prompt, "hi");
    }

    #[test]
    fn agent_request_prefers_the_session_of_the_body() {
        let of = |body: Value| message(body, Some("header")).unwrap().session;
        assert_eq!(of(json!({"message": "m"})).as_deref(), Some("header"));
        assert_eq!(of(json!({"message": "m", "session_id": "body"})).as_deref(), Some("body"));
    }
}
