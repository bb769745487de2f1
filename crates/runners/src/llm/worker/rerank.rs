//! Rerank requests: the model reads the query with each document, and rates the document's
//! relevance.

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde::Deserialize;
use serde_json::{Value, json};

use super::prompt::Sizes;
use super::request::Refusal;

/// Limits of one request: the number of documents, and the total number of tokens.
const DOCUMENTS_MAX: usize = 2048;
const TOKENS_MAX: usize = 300_000;
/// The metadata that contains the prompt of a reranker.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

/// The fields of a request. The service sorts the results and limits their number.
#[derive(Debug, Deserialize)]
struct Request {
    query: String,
    documents: Vec<String>,
}

/// Parses a request. Returns the tokens of the query with each document.
///
/// # Errors
/// The fault in the request.
pub(super) fn read(
    body: &[u8],
    model: &LlamaModel,
    sizes: Sizes,
    room: usize,
) -> Result<Vec<Vec<LlamaToken>>, Refusal> {
    let request: Request = serde_json::from_slice(body).map_err(|error| {
        Refusal::because(400, format!("the request must have `query` and `documents`: {error}"))
    })?;
    let Request { query, documents } = request;
    if documents.is_empty() {
        return Err(Refusal::of("documents", "documents must not be empty"));
    }
    if documents.len() > DOCUMENTS_MAX {
        let message = format!("documents may have at most {DOCUMENTS_MAX} texts");
        return Err(Refusal::of("documents", message));
    }
    let template = model.meta_val_str(TEMPLATE).ok();
    sizes.check_words("query", &query)?;
    let mut inputs = Vec::with_capacity(documents.len());
    let mut total = 0_usize;
    for document in &documents {
        let least = sizes.least_tokens(&query).saturating_add(sizes.least_tokens(document));
        if least > room {
            return Err(too_long(least, room));
        }
        sizes.check_words("documents", document)?;
        let tokens = match &template {
            Some(template) => templated(model, template, &query, document),
            None => separated(model, &query, document),
        };
        if tokens.is_empty() {
            return Err(Refusal::of("documents", "the query and a document are empty"));
        }
        if tokens.len() > room {
            return Err(too_long(tokens.len(), room));
        }
        total = total.saturating_add(tokens.len());
        if total > TOKENS_MAX {
            let message =
                format!("the query with each document may have at most {TOKENS_MAX} tokens in all");
            return Err(Refusal::of("documents", message));
        }
        inputs.push(tokens);
    }
    Ok(inputs)
}

/// Fills in the prompt of a model. Control tokens are recognized in the prompt itself only, not in
/// the texts of the request.
fn templated(model: &LlamaModel, template: &str, query: &str, document: &str) -> Vec<LlamaToken> {
    let vocabulary = model.vocab();
    let mut tokens = Vec::new();
    let mut rest = template;
    loop {
        let next = [(QUERY, query), (DOCUMENT, document)]
            .into_iter()
            .filter_map(|(name, text)| Some((rest.find(name)?, name, text)))
            .min_by_key(|(at, ..)| *at);
        let is_first = tokens.is_empty();
        let Some((at, name, text)) = next else {
            tokens.extend(vocabulary.tokenize(rest.as_bytes(), is_first, true));
            return tokens;
        };
        let (before, after) = rest.split_at(at);
        tokens.extend(vocabulary.tokenize(before.as_bytes(), is_first, true));
        tokens.extend(vocabulary.tokenize(text.as_bytes(), false, false));
        rest = after.strip_prefix(name).unwrap_or(after);
    }
}

/// Joins the query and a document as encoders were trained: BOS, query, EOS, SEP, document, EOS,
/// without the control tokens that the vocabulary does not use.
fn separated(model: &LlamaModel, query: &str, document: &str) -> Vec<LlamaToken> {
    let vocabulary = model.vocab();
    let separator = vocabulary.sep();
    let end = if vocabulary.eos().0 < 0 { separator } else { vocabulary.eos() };
    let mut tokens = Vec::new();
    let mut put = |token: LlamaToken, is_used: bool| {
        if is_used && token.0 >= 0 {
            tokens.push(token);
        }
    };
    put(vocabulary.bos(), vocabulary.should_add_bos());
    vocabulary.tokenize(query.as_bytes(), false, false).into_iter().for_each(|it| put(it, true));
    put(end, vocabulary.should_add_eos());
    put(separator, vocabulary.should_add_sep());
    vocabulary.tokenize(document.as_bytes(), false, false).into_iter().for_each(|it| put(it, true));
    put(end, vocabulary.should_add_eos());
    tokens
}

fn too_long(tokens: usize, room: usize) -> Refusal {
    let message = format!(
        "the query and a document have {tokens} tokens or more, but this model's context has {room}: \
         send shorter texts, or give the model a larger context"
    );
    Refusal { code: Some("context_length_exceeded"), ..Refusal::of("documents", message) }
}

/// Converts the outputs of a model to a relevance from 0 to 1. The outputs of a classifier are
/// probabilities, and the first is the relevance; a single output is a logit.
fn relevance(outputs: &[f32]) -> f64 {
    match outputs {
        [logit] => 1.0 / (1.0 + (-f64::from(*logit)).exp()),
        [first, ..] => f64::from(*first),
        [] => 0.0,
    }
}

/// Builds the response to a request.
#[must_use]
pub(super) fn answer(name: &str, outputs: &[Vec<f32>], tokens: usize) -> Value {
    let results: Vec<Value> = outputs
        .iter()
        .enumerate()
        .map(|(index, outputs)| json!({"index": index, "relevance_score": relevance(outputs)}))
        .collect();
    json!({
        "model": name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })
}
