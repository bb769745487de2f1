//! The section `[alerts]`: the receiver of the doctor's findings.

use std::path::Path;
use std::time::Duration;

use super::Secret;
use super::reader::{Parsed, Section};
use super::values::{self, Value, duration, one_of, problem};
use orrery_domain::signature::is_standard_secret;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Messages about the doctor's findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alerts {
    /// The receiver; with `None`, alerts are off.
    pub url: Option<Secret>,
    /// The Standard Webhooks secret that signs messages.
    pub secret: Option<Secret>,
    pub format: AlertFormat,
    /// Interval of the checks.
    pub every: Duration,
}

/// Format of alerts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertFormat {
    Webhook,
    Ntfy,
}

impl AlertFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Webhook, Self::Ntfy];

    /// Returns the format's name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Ntfy => "ntfy",
        }
    }
}

/// Reads the section. A secret's path is resolved against `folder`.
pub(super) fn alerts(section: &mut Section<'_>, folder: &Path) -> Alerts {
    let url = section.optional("url", |value| receiver(value, folder));
    let secret = section.optional("secret", |value| secret(value, folder));
    let format =
        section.get("format", AlertFormat::Webhook, one_of(&AlertFormat::ALL, AlertFormat::as_str));
    if section.span("secret").is_some() {
        let effect = "`alerts.secret` has no effect";
        if section.span("url").is_none() {
            section.error("secret", format!("{effect} without `url`"));
        } else if format == AlertFormat::Ntfy {
            section.error("secret", format!("{effect} with `format = \"ntfy\"`"));
        }
    }
    Alerts {
        url,
        secret,
        format,
        every: section.get("every", 300 * SECOND, duration(SECOND..=DAY)),
    }
}

/// Parses the URL of the receiver, which may have credentials. Errors do not repeat the URL,
/// because its path may be a secret.
fn receiver(value: &Value<'_>, folder: &Path) -> Parsed<Secret> {
    let text = values::secret(folder)(value)?;
    let is_good = |url: &url::Url| {
        matches!(url.scheme(), "http" | "https")
            && url.host().is_some()
            && url.port() != Some(0)
            && url.fragment().is_none()
    };
    let url = url::Url::parse(text.expose()).ok().filter(is_good);
    let url = url.ok_or_else(|| {
        let message = "expected an http or https URL such as \"https://hooks.example/orrery\"";
        problem(value, message.to_owned())
    })?;
    Ok(Secret::from(String::from(url)))
}

/// Parses a Standard Webhooks secret. Errors do not repeat the secret.
fn secret(value: &Value<'_>, folder: &Path) -> Parsed<Secret> {
    let secret = values::secret(folder)(value)?;
    if is_standard_secret(secret.expose()) {
        return Ok(secret);
    }
    let message = "expected \"whsec_\" and the base64 of 24 to 64 random bytes";
    Err(problem(value, message.to_owned()))
}
