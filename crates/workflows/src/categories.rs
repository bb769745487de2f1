//! The default categories of every store (`docs/spec/workflows.md`, "Categories").

use orrery_domain::time::Timestamp;

/// A category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Category {
    pub slug: &'static str,
    pub label: &'static str,
    pub description: &'static str,
}

const fn category(slug: &'static str, label: &'static str, description: &'static str) -> Category {
    Category { slug, label, description }
}

/// All categories.
pub const CATEGORIES: [Category; 6] = [
    category("general", "General", "Workflows for any purpose"),
    category("image", "Image", "Workflows that make or change images"),
    category("video", "Video", "Workflows that make or change videos"),
    category("audio", "Audio", "Workflows that make, change or read sound and speech"),
    category("text", "Text", "Workflows that write, change or read text"),
    category("automation", "Automation", "Workflows that connect services"),
];

impl Category {
    /// Returns the creation time of every category in every store: the time of the first release.
    #[must_use]
    pub const fn created_at() -> Timestamp {
        // 2026-11-20T00:00:00Z
        Timestamp::from_micros(1_795_132_800_000_000)
    }

    /// Returns whether a category with this slug exists.
    #[must_use]
    pub fn exists(slug: &str) -> bool {
        CATEGORIES.iter().any(|category| category.slug == slug)
    }
}
