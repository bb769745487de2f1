//! The words that the routes reserve: names that a resource in a path cannot be addressed by.

use std::collections::BTreeSet;

use super::{ROUTES, Route};

/// Returns the literal path segments that other routes have in the position of this parameter. A
/// resource that has one of these names cannot be addressed by its name.
#[must_use]
pub fn words_beside(parameter: &str) -> BTreeSet<&'static str> {
    let place = format!("{{{parameter}}}");
    let mut words = BTreeSet::new();
    for named in ROUTES {
        let parts: Vec<&str> = named.path.split('/').collect();
        let Some(at) = parts.iter().position(|part| *part == place) else { continue };
        let share_a_host =
            |other: &&Route| other.hosts.iter().any(|host| named.hosts.contains(host));
        for other in ROUTES.iter().filter(share_a_host) {
            let others: Vec<&str> = other.path.split('/').collect();
            if others.get(..at) == parts.get(..at)
                && let Some(word) = others.get(at).filter(|word| !word.starts_with('{'))
            {
                words.insert(*word);
            }
        }
    }
    words
}
