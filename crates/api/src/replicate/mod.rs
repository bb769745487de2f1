//! Replicate's API below `/replicate/v1` (`docs/spec/replicate.md`, "Predictions"): a translation
//! of predictions, files and models to the paths, statuses and errors that Replicate's clients
//! expect. Both APIs create and return the same stored predictions and files.

pub(crate) mod account;
pub(crate) mod files;
pub(crate) mod models;
pub(crate) mod predictions;
pub(crate) mod stream;

use super::doc::{Doc, ErrorForm, Kind, Param, ResponseDoc};
use super::{Context, Role, Services, cursor};
use orrery_domain::ids::Id;

/// The tag of all operations.
const TAG: &str = "replicate";
/// Maximum number of previous pages to which `previous` leads back. Beyond that, `previous` is the
/// URL of the first page.
const TRAIL_MAX: usize = 64;

const CURSOR: Param =
    Param::new("cursor", Kind::Text, "The start of the page, as in `next` and `previous`");

const NO_FILE: ResponseDoc = ResponseDoc::error(404, "File not found");
const NO_MODEL: ResponseDoc = ResponseDoc::error(404, "Model or version not found");
const NO_PREDICTION: ResponseDoc = ResponseDoc::error(404, "Prediction not found");

/// Documents a route of Replicate's API.
const fn doc(id: &'static str, summary: &'static str) -> Doc {
    Doc { errors: ErrorForm::Replicate, ..Doc::new(TAG, id, summary) }
}

/// Returns the URL of a path below `/replicate/v1`.
fn url_of(services: &Services, path: &str) -> String {
    [services.url_of(Role::Base), "/replicate/v1/", path].concat()
}

/// A page of a list whose pages begin after an ID.
struct Position<T> {
    /// The list with its filters, as signed in cursors.
    asked: String,
    /// The URL of the first page.
    first: String,
    /// The IDs after which the previous pages and this page begin, in this order; empty for the
    /// first page.
    trail: Vec<T>,
}

impl<T: Id> Position<T> {
    /// Reads the position from the query.
    ///
    /// # Errors
    /// 400 for an invalid cursor.
    fn read(context: &Context, asked: String, first: String) -> Result<Self, crate::Error> {
        let trail = cursor::read_all(context, &asked)?;
        Ok(Self { asked, first, trail })
    }

    /// Returns the ID after which the page begins.
    fn after(&self) -> Option<T> {
        self.trail.last().copied()
    }

    /// Returns the URL of the previous page.
    fn previous(&self, services: &Services) -> Option<String> {
        let (_this, before) = self.trail.split_last()?;
        Some(self.url(services, before))
    }

    /// Returns the URL of the next page, which begins after `more_after`.
    fn next(&self, services: &Services, more_after: Option<T>) -> Option<String> {
        let mut trail = self.trail.clone();
        trail.push(more_after?);
        let surplus = trail.len().saturating_sub(TRAIL_MAX);
        trail.drain(..surplus);
        Some(self.url(services, &trail))
    }

    fn url(&self, services: &Services, trail: &[T]) -> String {
        if trail.is_empty() {
            return self.first.clone();
        }
        let joint = if self.first.contains('?') { '&' } else { '?' };
        let cursor = cursor::behind_all(services, &self.asked, trail);
        format!("{}{joint}cursor={cursor}", self.first)
    }
}
