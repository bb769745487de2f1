//! Stored workflows and their versions, and the rules for their names.
//!
//! A definition is immutable: updating a version creates a new revision, to which the version then
//! points. An execution keeps the revision that was current when it was accepted.

use serde::{Deserialize, Serialize};

use super::ids::{OrganizationId, RevisionId, WorkflowId};
use super::time::Timestamp;

/// Maximum length of a name, in characters.
pub const NAME_MAX: usize = 200;
/// Maximum length of a description, in characters.
pub const DESCRIPTION_MAX: usize = 4000;
/// Maximum number of categories per workflow.
pub const CATEGORIES_MAX: usize = 20;
/// Maximum number of tags per workflow (`docs/spec/hosts.md`, "Limits").
pub const TAGS_MAX: usize = 3;
/// Maximum length of a tag, in characters.
pub const TAG_MAX: usize = 50;
/// Maximum number of versions per workflow.
pub const VERSIONS_MAX: usize = 200;
/// Maximum length of a version id, in bytes.
pub const VERSION_ID_MAX: usize = 64;
/// The version id of a new workflow.
pub const FIRST_VERSION: &str = "v1";
/// Maximum length of a slug derived from a name, in bytes, not counting the number that makes the
/// slug unique.
const SLUG_MAX: usize = 60;

/// The status of a workflow or a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Active,
    Archived,
    Deleted,
}

/// A workflow with all of its versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    pub id: WorkflowId,
    pub organization: OrganizationId,
    /// The slug, which is unique within the organization until the workflow is deleted.
    pub slug: String,
    pub name: String,
    pub description: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    pub locked: bool,
    pub production: bool,
    pub status: Status,
    /// The id of the default version.
    pub latest: String,
    /// The versions, oldest first; at least one.
    pub versions: Vec<Version>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A version of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub id: String,
    pub revision: RevisionId,
    pub locked: bool,
    pub production: bool,
    /// Whether other organizations may run the version. The version is then unlisted, but not
    /// private.
    pub allowed_to_share: bool,
    pub status: Status,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Status {
    /// All statuses.
    pub const ALL: [Self; 3] = [Self::Active, Self::Archived, Self::Deleted];

    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Archived => "archived",
            Self::Deleted => "deleted",
        }
    }

    /// Parses the name of a status.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

impl Workflow {
    /// Returns the version with this id.
    #[must_use]
    pub fn version(&self, id: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.id == id)
    }
}

#[cfg(any(test, feature = "test-support"))]
impl Workflow {
    /// Returns a workflow without versions, for tests.
    pub fn sample(id: WorkflowId) -> Self {
        Self {
            id,
            organization: OrganizationId::from([1; 16]),
            slug: String::new(),
            name: String::new(),
            description: String::new(),
            categories: Vec::new(),
            tags: Vec::new(),
            locked: false,
            production: false,
            status: Status::Active,
            latest: String::new(),
            versions: Vec::new(),
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
        }
    }
}

/// Returns whether `id` is a valid version id: 1 to 64 characters of `A-Za-z0-9._-`.
#[must_use]
pub fn is_version_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=VERSION_ID_MAX).contains(&id.len()) && id.bytes().all(is_allowed)
}

/// Derives a slug from a name, before it is made unique: lower-case letters and digits, other
/// scripts transliterated to Latin, hyphens for everything else. Never empty, and never in the form
/// of an id.
#[must_use]
pub fn slug_of(name: &str) -> String {
    let mut slug = String::new();
    for c in name.chars().flat_map(in_latin) {
        if slug.len() >= SLUG_MAX {
            break;
        }
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() || slug.parse::<WorkflowId>().is_ok() {
        return format!("workflow-{slug}").trim_end_matches('-').to_owned();
    }
    slug.to_owned()
}

/// Transliterates a character to Latin. A letter yields only letters and the space after a
/// syllable; deunicode's marks for silent letters and glottal stops are dropped.
fn in_latin(c: char) -> impl Iterator<Item = char> {
    let is_letter = c.is_alphabetic();
    let text = deunicode::deunicode_char(c).unwrap_or(if is_letter { "" } else { "-" });
    text.chars().filter(move |one| !is_letter || one.is_ascii_alphanumeric() || *one == ' ')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn workflow_slug_is_derived_from_name() {
        for (name, slug) in [
            ("My Flow", "my-flow"),
            ("  Ärger & Co. 2 ", "arger-co-2"),
            ("Straße", "strasse"),
            ("Żółć", "zolc"),
            ("Привет, мир", "privet-mir"),
            ("日本語の流れ 2", "ri-ben-yu-noliu-re-2"),
            ("قراءة الفواتير", "qr-lfwtyr"),
            ("تحليل الصور", "thlyl-lswr"),
            ("קריאת חשבוניות", "qryt-khshbvnyvt"),
            ("Ανάγνωση τιμολογίων", "anagnose-timologion"),
            ("Счёт-фактура №5", "schiot-faktura-no5"),
            ("청구서 읽기", "ceongguseo-ilggi"),
            ("चालान पढ़ें", "caalaan-pddh-en"),
            ("อ่านใบแจ้งหนี้", "aanaibaecchnghnii"),
            ("🧾 Invoices 🎉", "receipt-invoices-tada"),
            ("🧾", "receipt"),
            ("---", "workflow"),
            ("日本", "ri-ben"),
            ("\u{200b}\u{e000}", "workflow"),
            (
                "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
                "workflow-0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
            ),
        ] {
            assert_eq!(slug_of(name), slug, "{name}");
        }
    }

    #[test]
    fn workflow_version_id_is_validated() {
        for (id, is_good) in
            [("v1", true), ("1.0_b-2", true), ("", false), ("a b", false), ("ä", false)]
        {
            assert_eq!(is_version_id(id), is_good, "{id}");
        }
        assert!(is_version_id(&"v".repeat(64)) && !is_version_id(&"v".repeat(65)));
    }

    proptest! {
        #[test]
        fn workflow_slug_of_any_name_is_well_formed(name in "\\PC{0,80}") {
            let slug = slug_of(&name);
            prop_assert!(!slug.is_empty() && slug.len() <= 80 && slug.parse::<WorkflowId>().is_err());
            prop_assert!(slug.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            prop_assert!(!slug.starts_with('-') && !slug.ends_with('-') && !slug.contains("--"));
        }
    }
}
