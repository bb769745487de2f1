//! The interface between decisions and models of any kind.
//!
//! A scorer is created for one state, which it may read once for all questions, and scores the
//! labels of a question as the next token. One implementation uses a model's server (`server`);
//! another uses a local model process; nothing else of a request depends on the choice.

use std::pin::Pin;

use super::prompt::Order;
use super::request::Question;
use crate::Failure;

/// The future of a score or a vote.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Answers questions about one state.
pub trait Scorer: Send + Sync {
    /// The log-probabilities of the labels of the question's options as the next token, in the
    /// order in which `order` shows them; `None` if the model does not return them.
    fn score<'a>(&'a self, question: &'a Question, order: Order)
    -> Answering<'a, Option<Vec<f64>>>;

    /// The index of the option that the model names in its `sample`th answer, in the question's own
    /// order; `None` if it names none.
    fn vote<'a>(&'a self, question: &'a Question, sample: u32) -> Answering<'a, Option<usize>>;
}
