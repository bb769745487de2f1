//! Parses the body of a decision request. Unknown fields are rejected with their path.

use serde_json::{Map, Value};

use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::json_object::{JsonObject, Mismatch};
use orrery_domain::raw_object::RawObject;

/// Maximum number of questions in one request.
pub const QUESTIONS_MAX: usize = 256;
/// Maximum size of one question in bytes.
const QUESTION_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of options of one question, each labelled with one letter.
pub const OPTIONS_MAX: usize = 26;
/// Maximum length of the name of a model, a question or an option, in characters.
const NAME_CHARS_MAX: usize = 256;
/// The fields of a request.
const FIELDS: [&str; 3] = ["model", "state", "questions"];

/// A valid request.
#[derive(Debug)]
pub struct Request {
    pub model: String,
    /// The text for the model: a string as is, other JSON as the client wrote it.
    pub state: String,
    /// At least one question.
    pub questions: Vec<Question>,
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub name: String,
    pub kind: Kind,
    pub instructions: String,
    /// At least two options: yes and no, the choices, or the levels from lowest to highest.
    pub options: Vec<Choice>,
}

/// The types of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Oul,
    Noul,
    Choice,
    Score,
}

/// A possible answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub name: String,
    pub guidance: Option<String>,
}

impl Request {
    /// Parses and validates a body.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub fn read(body: &[u8]) -> Result<Self, InvalidRequest> {
        let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let fields: RawObject =
            serde_json::from_slice(body).map_err(|error| InvalidRequest::body(body, &error))?;
        if let Some(unknown) = fields.names().find(|name| !FIELDS.contains(name)) {
            return Err(unknown_field("", unknown, &FIELDS));
        }
        let model = text_of(&fields, "model")?.filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| InvalidRequest::missing("model"))?;
        check_name("model", &model)?;
        let state = fields.get("state").ok_or_else(|| InvalidRequest::missing("state"))?;
        let state = match state.as_bytes().first() {
            Some(b'"') => text_of(&fields, "state")?.unwrap_or_default(),
            Some(b'{' | b'[') => state.to_owned(),
            _ => return Err(wrong("state", "must be a string, an object or an array")),
        };
        let questions =
            fields.get("questions").ok_or_else(|| InvalidRequest::missing("questions"))?;
        let what = format!("must be an object of 1 to {QUESTIONS_MAX} questions");
        let questions: RawObject =
            serde_json::from_str(questions).map_err(|_other| wrong("questions", &what))?;
        if !(1..=QUESTIONS_MAX).contains(&questions.names().count()) {
            return Err(wrong("questions", &what));
        }
        let read = |name: &str| read_question(name, questions.get(name).unwrap_or("null"));
        let questions = questions.names().map(read).collect::<Result<_, _>>()?;
        Ok(Self { model, state, questions })
    }
}

/// Returns a string field, if it is present.
fn text_of(fields: &RawObject, name: &str) -> Result<Option<String>, InvalidRequest> {
    let Some(text) = fields.get(name) else { return Ok(None) };
    let text = serde_json::from_str(text).map_err(|_other| wrong(name, "must be a string"));
    text.map(Some)
}

fn check_name(path: &str, name: &str) -> Result<(), InvalidRequest> {
    if is_name(name) { Ok(()) } else { Err(wrong(path, &name_rule())) }
}

fn is_name(name: &str) -> bool {
    !name.trim().is_empty()
        && name.chars().nth(NAME_CHARS_MAX).is_none()
        && !name.chars().any(char::is_control)
}

fn name_rule() -> String {
    format!("must have 1 to {NAME_CHARS_MAX} characters and no control characters")
}

/// Builds the error for an invalid field. The message begins with the field's path.
fn wrong(path: &str, what: &str) -> InvalidRequest {
    InvalidRequest::field(path.to_owned(), format!("{path} {what}"))
}

/// Builds the error for a mismatch below `path`.
fn mismatched(path: &str, mismatch: &Mismatch) -> InvalidRequest {
    wrong(&format!("{path}.{}", mismatch.field), &mismatch.message)
}

fn unknown_field(path: &str, field: &str, known: &[&str]) -> InvalidRequest {
    let shown: String = field.chars().take(NAME_CHARS_MAX).collect();
    let dot = if path.is_empty() { "" } else { "." };
    let what = format!("is unknown; the fields here are {}", known.join(", "));
    wrong(&format!("{path}{dot}{shown}"), &what)
}

fn read_question(name: &str, question: &str) -> Result<Question, InvalidRequest> {
    if !is_name(name) {
        let message = format!("a question's name {}", name_rule());
        return Err(InvalidRequest::field("questions", message));
    }
    let path = format!("questions.{name}");
    if question.len() > QUESTION_BYTES_MAX {
        let what = format!("must have at most {QUESTION_BYTES_MAX} bytes");
        return Err(wrong(&path, &what));
    }
    let fields: Map<String, Value> =
        serde_json::from_str(question).map_err(|_other| wrong(&path, "must be an object"))?;
    let mut fields = JsonObject::from(fields);
    let mismatch = |mismatch| mismatched(&path, &mismatch);
    let kind = match fields.text("type").map_err(mismatch)?.as_deref() {
        Some("oul") => Kind::Oul,
        Some("noul") => Kind::Noul,
        Some("choice") => Kind::Choice,
        Some("score") => Kind::Score,
        None => return Err(InvalidRequest::missing(format!("{path}.type"))),
        Some(_) => {
            let what = "must be one of oul, noul, choice, score";
            return Err(wrong(&format!("{path}.type"), what));
        }
    };
    let instructions = fields.text("instructions").map_err(mismatch)?;
    let instructions = instructions.filter(|text| !text.trim().is_empty());
    let instructions =
        instructions.ok_or_else(|| InvalidRequest::missing(format!("{path}.instructions")))?;
    let criteria = fields.take("criteria");
    if let Some(unknown) = fields.unread().next() {
        return Err(unknown_field(&path, unknown, fields.known()));
    }
    let options = read_options(kind, criteria, &format!("{path}.criteria"))?;
    Ok(Question { name: name.to_owned(), kind, instructions, options })
}

/// Reads the options from the criteria of a question.
fn read_options(
    kind: Kind,
    criteria: Option<Value>,
    path: &str,
) -> Result<Vec<Choice>, InvalidRequest> {
    let (options, what) = match (kind, criteria) {
        (Kind::Oul | Kind::Noul, criteria) => return read_sides(criteria, path),
        (_, None) => return Err(InvalidRequest::missing(path.to_owned())),
        (Kind::Choice, Some(Value::Object(options))) => {
            let read = options.into_iter().map(|(name, guidance)| {
                check_name(path, &name)?;
                let guidance = guidance_of(guidance, &format!("{path}.{name}"))?;
                Ok(Choice { name, guidance })
            });
            (read.collect::<Result<Vec<_>, InvalidRequest>>()?, "options")
        }
        (Kind::Choice, Some(_)) => {
            return Err(wrong(path, "must be an object of options"));
        }
        (Kind::Score, Some(Value::Array(levels))) => {
            let read = levels.into_iter().enumerate().map(|(level, guidance)| {
                let path = format!("{path}[{level}]");
                let guidance = guidance_of(guidance, &path)?;
                let guidance = guidance.filter(|text| !text.trim().is_empty());
                let name = guidance.ok_or_else(|| InvalidRequest::missing(path))?;
                Ok(Choice { name, guidance: None })
            });
            (read.collect::<Result<Vec<_>, InvalidRequest>>()?, "levels")
        }
        (Kind::Score, Some(_)) => {
            return Err(wrong(path, "must be an array of levels, the lowest first"));
        }
    };
    if (2..=OPTIONS_MAX).contains(&options.len()) {
        return Ok(options);
    }
    Err(wrong(path, &format!("must have 2 to {OPTIONS_MAX} {what}")))
}

fn read_sides(criteria: Option<Value>, path: &str) -> Result<Vec<Choice>, InvalidRequest> {
    let mut fields = match criteria {
        None => JsonObject::default(),
        Some(Value::Object(fields)) => JsonObject::from(fields),
        Some(_) => return Err(wrong(path, "must be an object")),
    };
    let mut side = |field: &'static str, name: &str| {
        let guidance = fields.text(field).map_err(|mismatch| mismatched(path, &mismatch))?;
        Ok::<_, InvalidRequest>(Choice { name: name.to_owned(), guidance })
    };
    let sides = vec![side("true", "yes")?, side("false", "no")?];
    match fields.unread().next() {
        Some(unknown) => Err(unknown_field(path, unknown, fields.known())),
        None => Ok(sides),
    }
}

/// Reads a string or null.
fn guidance_of(value: Value, path: &str) -> Result<Option<String>, InvalidRequest> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(wrong(path, "must be a string"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<Request, String> {
        Request::read(body.to_string().as_bytes())
            .map_err(|error| format!("{}: {}", error.param.unwrap_or_default(), error.message))
    }

    fn one(question: Value) -> Value {
        json!({"model": "m", "state": "s", "questions": {"q": question}})
    }

    #[test]
    fn decision_request_keeps_a_json_state_as_written() {
        let body = r#"{"model":"m","state":{"x": 1.0000000000000000001},"questions":{"q":{"type":"oul","instructions":"?"}}}"#;
        let request = Request::read(body.as_bytes()).unwrap();
        assert_eq!(request.state, r#"{"x": 1.0000000000000000001}"#);
        let text = read(&json!({"model": "m", "state": "a\n", "questions": {"q": {
            "type": "noul", "instructions": "?"}}}));
        assert_eq!(text.unwrap().state, "a\n");
    }

    #[test]
    fn decision_request_options_follow_from_the_type() {
        let options = |question: Value| {
            let request = read(&one(question)).unwrap();
            let options = request.questions[0].options.clone();
            options.into_iter().map(|o| (o.name, o.guidance)).collect::<Vec<_>>()
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            options(json!({"type": "oul", "instructions": "?", "criteria": {"true": "hot"}})),
            [("yes".to_owned(), text("hot")), ("no".to_owned(), None)]
        );
        assert_eq!(
            options(
                json!({"type": "choice", "instructions": "?", "criteria": {"b": null, "a": "x"}})
            ),
            [("b".to_owned(), None), ("a".to_owned(), text("x"))],
            "in the order of the request"
        );
        assert_eq!(
            options(json!({"type": "score", "instructions": "?", "criteria": ["low", "high"]})),
            [("low".to_owned(), None), ("high".to_owned(), None)]
        );
    }

    #[test]
    fn decision_request_error_names_the_invalid_field() {
        let many = |count: usize| {
            let names = (0..count).map(|number| (format!("q{number}"), json!({})));
            Value::Object(names.collect())
        };
        for (body, expected) in [
            (json!({}), "model: model is required"),
            (json!({"model": 1}), "model: model must be a string"),
            (json!({"model": "a\u{7}"}), "model: model must have 1 to 256 characters"),
            (json!({"model": "m"}), "state: state is required"),
            (json!({"model": "m", "state": 7}), "state: state must be a string, an object"),
            (json!({"model": "m", "state": ""}), "questions: questions is required"),
            (json!({"model": "m", "state": "", "questions": []}), "questions: questions must be"),
            (json!({"model": "m", "state": "", "questions": {}}), "questions: questions must be"),
            (json!({"model": "m", "state": "", "questions": many(257)}), "of 1 to 256 questions"),
            (json!({"model": "m", "temperature": 1}), "temperature: temperature is unknown; the"),
            (
                json!({"model": "m", "state": "", "questions": {" ": {}}}),
                "questions: a question's name",
            ),
            (one(json!(1)), "questions.q: questions.q must be an object"),
            (one(json!({"x": "y".repeat(65536)})), "questions.q must have at most 65536 bytes"),
            (one(json!({})), "questions.q.type: questions.q.type is required"),
            (one(json!({"type": "bool"})), "must be one of oul, noul, choice, score"),
            (
                one(json!({"type": "oul", "instructions": " "})),
                "questions.q.instructions is required",
            ),
            (
                one(json!({"type": "oul", "instructions": "?", "option": 1})),
                "questions.q.option: questions.q.option is unknown; the fields here are type, \
                 instructions, criteria",
            ),
            (
                one(json!({"type": "oul", "instructions": "?", "criteria": {"yes": ""}})),
                "questions.q.criteria.yes is unknown; the fields here are true, false",
            ),
            (
                one(json!({"type": "choice", "instructions": "?"})),
                "questions.q.criteria is required",
            ),
            (
                one(json!({"type": "choice", "instructions": "?", "criteria": {"a": null}})),
                "questions.q.criteria must have 2 to 26 options",
            ),
            (
                one(json!({"type": "choice", "instructions": "?", "criteria": {"a": 1, "b": 2}})),
                "questions.q.criteria.a must be a string",
            ),
            (
                one(json!({"type": "choice", "instructions": "?", "criteria": many(27)})),
                "must be a string",
            ),
            (
                one(json!({"type": "score", "instructions": "?", "criteria": ["a", null]})),
                "questions.q.criteria[1] is required",
            ),
            (
                one(json!({"type": "score", "instructions": "?", "criteria": vec!["a"; 27]})),
                "questions.q.criteria must have 2 to 26 levels",
            ),
        ] {
            let error = read(&body).unwrap_err();
            assert!(error.contains(expected), "{error} does not contain {expected}");
        }
        for garbage in ["[]", "{", "nul"] {
            assert!(Request::read(garbage.as_bytes()).is_err());
        }
    }
}
