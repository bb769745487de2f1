//! Secrets in manifests: `${file:/path}` and `${env:NAME}` inside a string are replaced by what
//! stands there. A [`Secret`] prints as dots, so that no log and no error shows it.

use std::fmt;
use std::fs;

/// Text that may hold a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself. Not for logs or errors.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A reference that cannot be replaced. Names the file or variable, never its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the file {0} cannot be read: {1}")]
    File(String, String),
    #[error("the environment variable {0} is not set")]
    Environment(String),
    #[error("${{{0}}} is neither ${{file:…}} nor ${{env:…}}")]
    Unknown(String),
}

/// `text` with every reference replaced; a trailing newline of a file does not count.
///
/// # Errors
/// [`Error`] names the reference.
pub fn expand(text: &str) -> Result<Secret, Error> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("${") {
        expanded.push_str(before);
        let Some((reference, after)) = behind.split_once('}') else {
            return Err(Error::Unknown(behind.chars().take(20).collect()));
        };
        expanded.push_str(&look_up(reference)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(Secret(expanded))
}

fn look_up(reference: &str) -> Result<String, Error> {
    match reference.split_once(':') {
        Some(("file", path)) => {
            let text = fs::read_to_string(path)
                .map_err(|error| Error::File(path.to_owned(), error.to_string()))?;
            Ok(text.trim_end_matches(['\r', '\n']).to_owned())
        }
        Some(("env", name)) => {
            std::env::var(name).map_err(|_unset| Error::Environment(name.to_owned()))
        }
        Some(_) | None => Err(Error::Unknown(reference.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "s3cret\n").unwrap();
        let secret = expand(&format!("Bearer ${{file:{}}}!", path.display())).unwrap();
        assert_eq!(secret.reveal(), "Bearer s3cret!");
        assert!(!format!("{secret:?}").contains("s3cret"));
        assert_eq!(expand("plain $ text").unwrap().reveal(), "plain $ text");
        for bad in ["${file:/no/such/file}", "${env:ORRERY_TEST_UNSET}", "${x:y}", "${open"] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
