//! Rerank answers: servers differ in their forms, and clients get one.

use std::cmp::Ordering;
use std::collections::HashSet;

use bytes::Bytes;
use serde::Deserialize;

use super::error::Failure;
use super::request::Request;
use orrery_domain::raw_object::RawObject;
use orrery_runners::openai::failure::misunderstood;
use orrery_wire::completions::{DocumentObject, RerankResult};

/// A result as servers send it.
#[derive(Debug, Deserialize)]
struct Given {
    index: usize,
    relevance_score: Option<f64>,
    /// The name in other servers.
    score: Option<f64>,
}

/// Returns the answer of the model `name` with its results in the common form: the most relevant
/// first, at most as many as requested, with the documents of the request if it wants them.
///
/// # Errors
/// [`Failure`] for a result that does not belong to a document of the request.
pub(crate) fn in_common_form(
    name: &str,
    request: &Request,
    mut answer: RawObject,
) -> Result<(RawObject, Bytes), Failure> {
    let wrong = |what: &str| misunderstood(name, &format!("its answer has {what}"));
    let given: Option<Vec<Given>> = answer.value("results").or_else(|| answer.value("data"));
    let given = given.ok_or_else(|| wrong("no list of results"))?;
    let wanted = request.rerank();
    let mut seen = HashSet::new();
    let mut results = Vec::with_capacity(given.len());
    for Given { index, relevance_score, score } in given {
        let score = relevance_score.or(score).filter(|score| score.is_finite());
        let relevance_score = score.ok_or_else(|| wrong("a result without a score"))?;
        if index >= wanted.documents || !seen.insert(index) {
            return Err(wrong(&format!("a result for document {index}, which was not sent")));
        }
        results.push(RerankResult { index, relevance_score, document: None });
    }
    results.sort_by(|one, other| {
        let order = other.relevance_score.partial_cmp(&one.relevance_score);
        order.unwrap_or(Ordering::Equal)
    });
    results.truncate(wanted.top_n);
    if wanted.returns_documents {
        let documents = request.documents();
        for result in &mut results {
            let text = documents.get(result.index).cloned();
            result.document = text.map(|text| DocumentObject { text });
        }
    }
    answer.remove("data");
    let written = answer.set("results", &results).and_then(|()| answer.text());
    let text =
        written.map_err(|error| wrong(&format!("results that cannot be written: {error}")))?;
    Ok((answer, text.into()))
}

/// Returns an answer that is only a list of results as an object; `None` for any other.
pub(crate) fn object_of(text: &[u8]) -> Option<Vec<u8>> {
    let list = text.trim_ascii();
    list.starts_with(b"[").then(|| [b"{\"results\":", list, b"}"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::chat::Operation;

    fn request(more: &str) -> Request {
        let body =
            format!(r#"{{"model":"m","query":"q","documents":["a",{{"text":"b"}},"c"]{more}}}"#);
        Request::read(Operation::Rerank, body.as_bytes()).unwrap()
    }

    fn common(more: &str, answer: &str) -> Result<String, String> {
        let answer = object_of(answer.as_bytes()).unwrap_or_else(|| answer.as_bytes().to_vec());
        let answer: RawObject = serde_json::from_slice(&answer).unwrap();
        match in_common_form("m", &request(more), answer) {
            Ok((_, text)) => Ok(String::from_utf8(text.to_vec()).unwrap()),
            Err(failure) => Err(failure.message),
        }
    }

    #[test]
    fn rerank_answers_of_all_servers_get_one_form() {
        let sorted =
            r#"{"results":[{"index":2,"relevance_score":0.9},{"index":0,"relevance_score":-1.5}]}"#;
        for answer in [
            r#"{"results":[{"index":0,"relevance_score":-1.5},{"index":2,"relevance_score":0.9}]}"#,
            r#"{"data":[{"index":2,"relevance_score":0.9,"document":"c"},{"index":0,"score":-1.5}]}"#,
            r#" [{"index":0,"score":-1.5},{"index":2,"score":0.9}] "#,
        ] {
            assert_eq!(common("", answer).unwrap(), sorted, "{answer}");
        }
        let top = common(r#","top_n":1,"return_documents":true"#, sorted).unwrap();
        let expected = r#"{"results":[{"index":2,"relevance_score":0.9,"document":{"text":"c"}}]}"#;
        assert_eq!(top, expected);
        let usage = common("", r#"{"usage":{"total_tokens":7},"results":[]}"#).unwrap();
        assert_eq!(usage, r#"{"usage":{"total_tokens":7},"results":[]}"#);
    }

    #[test]
    fn rerank_answer_with_unsent_documents_is_refused() {
        for (answer, what) in [
            (r#"[{"index":3,"score":1}]"#, "document 3, which was not sent"),
            (r#"[{"index":1,"score":1},{"index":1,"score":2}]"#, "document 1, which"),
            (r#"[{"index":1}]"#, "without a score"),
            (r#"{"results":[{"score":1}]}"#, "no list of results"),
        ] {
            let message = common("", answer).unwrap_err();
            assert!(message.contains(what), "{message}");
        }
    }
}
