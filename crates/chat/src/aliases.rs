//! Aliases: model IDs that some clients always send, and the models that these IDs stand for.
//!
//! An alias never hides a model: it applies only to IDs that are neither in the catalog nor in the
//! upstream's list. An alias stands for a model, never for another alias.

use std::collections::HashMap;
use std::sync::Arc;

use super::request::Form;
use super::route::{Named, Target};
use super::service::{Chat, Inner};
use orrery_domain::chat::Operation;

/// The aliases of the configuration.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    exact: HashMap<String, String>,
    /// The text before and after the `*`, and the model. The longest pattern is first.
    patterns: Vec<(String, String, String)>,
}

impl Aliases {
    /// Prepares aliases for [`Aliases::find`].
    pub(super) fn of(aliases: &[(String, String)]) -> Self {
        let mut all = Self::default();
        for (alias, model) in aliases {
            match alias.split_once('*') {
                Some((start, end)) => {
                    all.patterns.push((start.to_owned(), end.to_owned(), model.clone()));
                }
                None => {
                    all.exact.insert(alias.clone(), model.clone());
                }
            }
        }
        // Patterns of the same length are sorted by their text, regardless of their order in the
        // file.
        all.patterns.sort_by(|one, other| {
            let length = |(start, end, _): &(String, String, String)| start.len() + end.len();
            length(other).cmp(&length(one)).then_with(|| one.cmp(other))
        });
        all
    }

    /// Returns the model that an ID stands for.
    pub(super) fn find(&self, id: &str) -> Option<&str> {
        let by_pattern = || {
            let fits = |(start, end, _): &&(String, String, String)| {
                id.strip_prefix(&**start).is_some_and(|rest| rest.ends_with(&**end))
            };
            self.patterns.iter().find(fits).map(|(.., model)| model)
        };
        self.exact.get(id).or_else(by_pattern).map(String::as_str)
    }
}

impl Inner {
    /// Returns the model that an ID stands for; `None` if it is the ID of a model or of the agent,
    /// or no alias.
    async fn alias(self: &Arc<Self>, id: &str) -> Option<&str> {
        let model = self.aliases.find(id)?;
        let is_local = self.catalog.get(id).is_some() || self.catalog.unserved(id).is_some();
        if is_local || id == self.options.agent_id || self.is_listed(id).await {
            return None;
        }
        Some(model)
    }
}

impl Inner {
    /// Returns an ID of a request, with the model that it stands for.
    pub(super) async fn named(self: &Arc<Self>, id: &str) -> Named {
        let alias_of = self.alias(id).await.map(str::to_owned);
        Named { asked: id.to_owned(), alias_of }
    }
}

impl Chat {
    /// Returns whether this service itself runs the model with this ID or alias.
    pub async fn is_own(&self, id: &str) -> bool {
        let named = self.inner.named(id).await;
        let found = self.inner.find(&named, Operation::Chat, Form::Chat).unwrap_or_default();
        found.first().is_some_and(|found| matches!(found.target, Target::Process(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_prefer_exact_ids_and_longer_patterns() {
        let list = [
            ("claude-*", "wide"),
            ("claude-opus-*", "opus"),
            ("*-haiku", "haiku"),
            ("a*a", "both"),
            ("claude-opus-4", "exact"),
        ];
        let list = list.map(|(alias, model)| (alias.to_owned(), model.to_owned()));
        let aliases = Aliases::of(&list);
        for (id, model) in [
            ("claude-opus-4", Some("exact")),
            ("claude-opus-5", Some("opus")),
            ("claude-opus-", Some("opus")),
            ("claude-sonnet", Some("wide")),
            ("claude-haiku", Some("wide")),
            ("my-haiku", Some("haiku")),
            ("a", None),
            ("aa", Some("both")),
            ("claude", None),
            ("", None),
        ] {
            assert_eq!(aliases.find(id), model, "{id}");
        }
        assert_eq!(Aliases::of(&[("*".to_owned(), "any".to_owned())]).find("x"), Some("any"));
    }
}
