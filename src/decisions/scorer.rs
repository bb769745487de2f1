//! What answers questions about a state: the seam for models of any kind.
//!
//! A scorer is made for one state, which it may read once for all questions, and scores the labels of
//! a question as the next token behind it. A model's server is one (`server`); a model that runs in a
//! process of this service is another one, and nothing else of a request depends on which it is.

use std::pin::Pin;

use super::prompt::Order;
use super::request::Question;
use crate::chat::Failure;

/// What a score, or a vote, comes to.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Answers questions about one state.
pub trait Scorer: Send + Sync {
    /// The log-probabilities of the labels of the question's options as the next token, in the order in
    /// which `order` shows them; `None` where the model does not give them.
    fn score<'a>(&'a self, question: &'a Question, order: Order)
    -> Answering<'a, Option<Vec<f64>>>;

    /// The place of the option that the model names in its `sample`th answer, in the question's own
    /// order; `None` where it names none.
    fn vote<'a>(&'a self, question: &'a Question, sample: u32) -> Answering<'a, Option<usize>>;
}
