//! The common interface of decisions to all kinds of models.
//!
//! A scorer is created for one state, which the scorer may read once for all questions. The scorer
//! scores the labels of a question as the model's next token. One implementation uses a model's
//! server (`server`), the other a local model process; the rest of a request does not depend on
//! which implementation is used.

use std::pin::Pin;

use super::prompt::Order;
use super::request::Question;
use crate::Failure;

/// The future of a scoring call or a vote.
pub(super) type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Answers questions about one state.
pub(super) trait Scorer: Send + Sync {
    /// Returns the log-probabilities of the labels as the next token, in the order in which `order`
    /// shows the options; `None` if the model does not return log-probabilities.
    fn score<'a>(&'a self, question: &'a Question, order: Order)
    -> Answering<'a, Option<Vec<f64>>>;

    /// Returns the index, in the question's own order, of the option that the model names in its
    /// `sample`th answer; `None` if the answer names no option.
    fn vote<'a>(&'a self, question: &'a Question, sample: u32) -> Answering<'a, Option<usize>>;
}
