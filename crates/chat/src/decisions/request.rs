//! Converts the body of a decision request. Unknown fields are rejected with their path.

use serde_json::Map;

use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::raw_object::RawObject;
use orrery_wire::decision::{self as wire, Sides};
use orrery_wire::request;

/// Maximum size of one question in bytes.
const QUESTION_BYTES_MAX: usize = 64 * 1024;

/// A valid request.
#[derive(Debug)]
pub(super) struct Request {
    pub model: String,
    /// The text for the model: a string as is, other JSON as the client wrote it.
    pub state: String,
    /// At least one question.
    pub questions: Vec<Question>,
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub name: String,
    pub kind: Kind,
    pub instructions: String,
    /// At least two options: yes and no, the choices, or the levels from lowest to highest.
    pub options: Vec<Choice>,
}

/// The types of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Oul,
    Noul,
    Choice,
    Score,
}

/// A possible answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub name: String,
    pub guidance: Option<String>,
}

impl Request {
    /// Parses and validates a body.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub(super) fn read(body: &[u8]) -> Result<Self, InvalidRequest> {
        let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let fields: RawObject =
            serde_json::from_slice(body).map_err(|error| InvalidRequest::body(body, &error))?;
        let mut known = Map::new();
        for (name, text) in fields.fields() {
            let value = serde_json::from_str(text).map_err(|error| {
                InvalidRequest::field(name.to_owned(), format!("{name} cannot be read: {error}"))
            })?;
            known.insert(name.to_owned(), value);
        }
        let body: wire::Request = request::read(known.into())?;
        let questions: RawObject = fields.value("questions").unwrap_or_default();
        if let Some((name, _)) = questions.fields().find(|(_, it)| it.len() > QUESTION_BYTES_MAX) {
            let path = format!("questions.{name}");
            let message = format!("{path} must have at most {QUESTION_BYTES_MAX} bytes");
            return Err(InvalidRequest::field(path, message));
        }
        // The model reads a state in JSON as the client wrote it.
        let state = match body.state {
            wire::State::Text(text) => text,
            wire::State::Object(_) | wire::State::List(_) => {
                fields.get("state").unwrap_or_default().to_owned()
            }
        };
        let questions = body.questions.into_iter().map(|(name, one)| Question::of(name, one));
        Ok(Self { model: body.model, state, questions: questions.collect() })
    }
}

impl Question {
    fn of(name: String, question: wire::Question) -> Self {
        let (kind, instructions, options) = match question {
            wire::Question::Oul { instructions, criteria } => {
                (Kind::Oul, instructions, Choice::sides(criteria))
            }
            wire::Question::Noul { instructions, criteria } => {
                (Kind::Noul, instructions, Choice::sides(criteria))
            }
            wire::Question::Choice { instructions, criteria } => {
                let choice = |(name, guidance)| Choice { name, guidance };
                (Kind::Choice, instructions, criteria.into_iter().map(choice).collect())
            }
            wire::Question::Score { instructions, criteria } => {
                let level = |name| Choice { name, guidance: None };
                (Kind::Score, instructions, criteria.into_iter().map(level).collect())
            }
        };
        Self { name, kind, instructions, options }
    }
}

impl Choice {
    /// Returns the options yes and no.
    fn sides(sides: Option<Sides>) -> Vec<Self> {
        let (yes, no) = sides.map_or((None, None), |sides| (sides.r#true, sides.r#false));
        let side = |name: &str, guidance| Self { name: name.to_owned(), guidance };
        vec![side("yes", yes), side("no", no)]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<Request, String> {
        Request::read(body.to_string().as_bytes())
            .map_err(|error| format!("{}: {}", error.param.unwrap_or_default(), error.message))
    }

    /// Returns an object with this number of fields.
    fn many(count: usize) -> Value {
        let names = (0..count).map(|number| (format!("q{number}"), json!({})));
        Value::Object(names.collect())
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
        for (body, expected) in [
            (json!({}), "model: model is required"),
            (json!({"model": 1}), "model: model must be a string"),
            (json!({"model": "a\u{7}"}), "model: model must not contain control characters"),
            (json!({"model": "m"}), "state: state is required"),
            (
                json!({"model": "m", "state": 7}),
                "state: state must be a string, an object or an array",
            ),
            (json!({"model": "m", "state": ""}), "questions: questions is required"),
            (json!({"model": "m", "state": "", "questions": []}), "questions: questions must be"),
            (
                json!({"model": "m", "state": "", "questions": {}}),
                "questions must have 1 to 256 fields",
            ),
            (
                json!({"model": "m", "state": "", "questions": many(257)}),
                "questions must have 1 to 256 fields",
            ),
            (
                json!({"model": "m", "state": "", "questions": {"q": {"type": "oul", "instructions": "?"}},
                    "temperature": 1}),
                "temperature: unknown field temperature: expected one of model, state, questions",
            ),
            (
                json!({"model": "m", "state": "", "questions": {" ": {}}}),
                "questions: questions must have field names that each",
            ),
        ] {
            let error = read(&body).unwrap_err();
            assert!(error.contains(expected), "{error} does not contain {expected}");
        }
        for garbage in ["[]", "{", "nul"] {
            assert!(Request::read(garbage.as_bytes()).is_err());
        }
    }

    #[test]
    fn decision_request_error_names_the_invalid_question() {
        for (body, expected) in [
            (one(json!(1)), "questions.q: questions.q must be an object"),
            (
                one(json!({"type": "oul", "instructions": "y".repeat(65536)})),
                "questions.q must have at most 65536 bytes",
            ),
            (one(json!({})), "questions.q.type: questions.q.type is required"),
            (one(json!({"type": "bool"})), "must be one of oul, noul, choice, score"),
            (
                one(json!({"type": "oul", "instructions": " "})),
                "questions.q.instructions is required",
            ),
            (
                one(json!({"type": "oul", "instructions": "?", "option": 1})),
                "questions.q.option: unknown field questions.q.option: expected one of",
            ),
            (
                one(json!({"type": "oul", "instructions": "?", "criteria": {"yes": ""}})),
                "unknown field questions.q.criteria.yes: expected one of true, false",
            ),
            (
                one(json!({"type": "choice", "instructions": "?"})),
                "questions.q.criteria is required",
            ),
            (
                one(json!({"type": "choice", "instructions": "?", "criteria": {"a": null}})),
                "questions.q.criteria must have 2 to 26 fields",
            ),
            (
                one(json!({"type": "choice", "instructions": "?", "criteria": {"a": 1, "b": 2}})),
                "questions.q.criteria.a must be a string",
            ),
            (
                one(json!({"type": "choice", "instructions": "?", "criteria": many(27)})),
                "questions.q.criteria must have 2 to 26 fields",
            ),
            (
                one(json!({"type": "score", "instructions": "?", "criteria": ["a", null]})),
                "questions.q.criteria[1] is required",
            ),
            (
                one(json!({"type": "score", "instructions": "?", "criteria": vec!["a"; 27]})),
                "questions.q.criteria must have 2 to 26 items",
            ),
        ] {
            let error = read(&body).unwrap_err();
            assert!(error.contains(expected), "{error} does not contain {expected}");
        }
    }
}
