//! Messages: the JSON of webhooks, signed as Standard Webhooks requires, and the text and headers
//! for ntfy (`docs/monitoring.md`, "Alerts").

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request};
use serde::Serialize;
use url::Url;

use super::ledger::{Alert, Due, Event, Severity};
use super::{Format, Target};
use orrery_domain::ids::AlertId;
use orrery_domain::signature;
use orrery_domain::time::Timestamp;
use orrery_wire::Time;

const AGENT: &str = concat!("orrery/", env!("CARGO_PKG_VERSION"));
/// Maximum length of the text of an ntfy message, in bytes; ntfy turns longer ones into files.
const NTFY_TEXT_MAX: usize = 4000;
/// Maximum length of a message's title, in bytes.
const TITLE_MAX: usize = 200;
/// Bytes of text in one encoded word, which may have at most 75 characters.
const WORD_BYTES: usize = 42;

/// The body of a webhook.
#[derive(Debug, Serialize)]
pub(super) struct Message {
    #[serde(skip)]
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// When the event happened.
    timestamp: Time,
    data: Data,
}

#[derive(Debug, Serialize)]
struct Data {
    id: AlertId,
    /// The base URL of the service that sends the alert.
    service: String,
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<String>,
    severity: Severity,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
    since: Time,
}

impl Message {
    pub(super) fn of(alert: &Alert, due: Due, service: &str) -> Self {
        let kind = match due.event {
            Event::Raised => "alert.raised",
            Event::Worsened => "alert.worsened",
            Event::Mended => "alert.mended",
            Event::Noticed => "alert.notice",
        };
        let data = Data {
            id: alert.id,
            service: service.to_owned(),
            subject: alert.subject.clone(),
            about: alert.about.clone(),
            severity: alert.severity,
            detail: alert.detail.clone(),
            fix: alert.fix.clone().filter(|_| due.event != Event::Mended),
            since: alert.since.into(),
        };
        Self { id: format!("{}.{kind}", alert.id), kind, timestamp: due.at.into(), data }
    }

    /// Creates a test message.
    pub(super) fn test(id: AlertId, service: &str, now: Timestamp) -> Self {
        let data = Data {
            id,
            service: service.to_owned(),
            subject: "test".to_owned(),
            about: None,
            severity: Severity::Warning,
            detail: "This is a test of alerts: nothing is wrong.".to_owned(),
            fix: None,
            since: now.into(),
        };
        Self { id: format!("{id}.alert.test"), kind: "alert.test", timestamp: now.into(), data }
    }

    /// Returns the request that sends the message. Webhooks are signed at `now`.
    ///
    /// # Errors
    /// Returns a message without the URL or the secret if the request cannot be built.
    pub(super) fn request(
        &self,
        target: &Target,
        now: Timestamp,
    ) -> Result<Request<Bytes>, String> {
        let uri = target.url.expose().parse();
        let uri = uri.map_err(|_invalid| "alerts.url cannot be used in a request".to_owned())?;
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let body = match target.format {
            Format::Webhook => {
                let body = serde_json::to_vec(self).map_err(|error| error.to_string())?;
                self.sign(headers, &body, target, now)?;
                body
            }
            Format::Ntfy => self.ntfy(headers)?.into_bytes(),
        };
        *request.body_mut() = Bytes::from(body);
        Ok(request)
    }

    fn sign(
        &self,
        headers: &mut HeaderMap,
        body: &[u8],
        target: &Target,
        now: Timestamp,
    ) -> Result<(), String> {
        let seconds = now.unix_seconds();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        set(headers, "webhook-id", &self.id)?;
        set(headers, "webhook-timestamp", &seconds.to_string())?;
        if let Some(secret) = &target.secret {
            let signed = signature::sign_standard(secret.expose(), &self.id, seconds, body);
            set(headers, "webhook-signature", &signed)?;
        }
        Ok(())
    }

    /// Sets the headers for ntfy, and returns the text.
    fn ntfy(&self, headers: &mut HeaderMap) -> Result<String, String> {
        let Data { subject, about, severity, detail, fix, service, .. } = &self.data;
        let (word, priority, tag) = match (self.kind, severity) {
            ("alert.mended", _) => ("Mended", "low", "white_check_mark"),
            ("alert.test", _) => ("Test", "default", "bell"),
            (_, Severity::Error) => ("Error", "high", "rotating_light"),
            (_, Severity::Warning) => ("Warning", "default", "warning"),
        };
        let host = Url::parse(service).ok().and_then(|url| Some(url.host_str()?.to_owned()));
        let host = host.map(|host| format!(" on {host}")).unwrap_or_default();
        let title = format!("{word}{host}: {subject}");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        set(headers, "title", &header_text(cut(&title, TITLE_MAX)))?;
        set(headers, "priority", priority)?;
        set(headers, "tags", tag)?;
        let about = about.iter().filter(|about| !detail.contains(about.as_str()));
        let mut text: String = about.map(|about| format!("{about}: ")).collect();
        text.push_str(detail);
        if let Some(fix) = fix {
            text.push_str(&format!("\nFix: {fix}"));
        }
        Ok(cut(&text, NTFY_TEXT_MAX).to_owned())
    }
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<(), String> {
    let value = HeaderValue::from_str(value);
    let value = value.map_err(|_invalid| format!("the header {name} has an invalid value"))?;
    headers.insert(HeaderName::from_static(name), value);
    Ok(())
}

/// Returns a text as a header value: unchanged if possible, otherwise as encoded words (RFC 2047),
/// which ntfy decodes.
fn header_text(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
    if is_plain && !text.contains("=?") {
        return text.to_owned();
    }
    let mut words = Vec::new();
    let text: String = text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.floor_char_boundary(WORD_BYTES));
        words.push(format!("=?UTF-8?B?{}?=", STANDARD.encode(word)));
        rest = after;
    }
    words.join(" ")
}

/// Returns the beginning of a text.
fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use orrery_config::Secret;
    use orrery_wire::service::Finding;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn target(format: Format) -> Target {
        let url = Secret::from("http://box.lan/topic".to_owned());
        Target { url, secret: Some(Secret::from(SECRET.to_owned())), format }
    }

    fn raised(finding: Finding) -> Message {
        let mut ledger = Ledger::default();
        let now = Timestamp::from_micros(1_795_167_000_000_000);
        ledger.observe(&[finding], true, now);
        let (alert, due) = ledger.begin().unwrap();
        Message::of(&alert, due, "https://box.lan:8443")
    }

    fn text(headers: &HeaderMap, name: &str) -> String {
        headers[name].to_str().unwrap().to_owned()
    }

    #[test]
    fn webhook_is_signed_json() {
        let message = raised(Finding::fault("disk", "2 GB are free").mended_by("orrery compact"));
        let now = Timestamp::from_micros(1_795_167_060_000_000);
        let request = message.request(&target(Format::Webhook), now).unwrap();
        let body: serde_json::Value = serde_json::from_slice(request.body()).unwrap();
        let id = body["data"]["id"].as_str().unwrap().to_owned();
        assert_eq!(
            body,
            serde_json::json!({
                "type": "alert.raised",
                "timestamp": "2026-11-20T09:30:00.000Z",
                "data": {
                    "id": id, "service": "https://box.lan:8443", "subject": "disk",
                    "severity": "error", "detail": "2 GB are free", "fix": "orrery compact",
                    "since": "2026-11-20T09:30:00.000Z",
                },
            })
        );
        let headers = request.headers();
        let message_id = text(headers, "webhook-id");
        assert_eq!(message_id, format!("{id}.alert.raised"));
        let seconds: i64 = text(headers, "webhook-timestamp").parse().unwrap();
        let signed = text(headers, "webhook-signature");
        assert_eq!(seconds, 1_795_167_060);
        let body = request.body();
        assert!(signature::verify_standard(SECRET, &message_id, seconds, body, &signed));
    }

    #[test]
    fn ntfy_message_is_text_with_headers() {
        let finding = Finding::fault("model", "bad slug").about("/etc/m.toml").mended_by("edit it");
        let request = raised(finding).request(&target(Format::Ntfy), Timestamp::default()).unwrap();
        assert_eq!(&request.body()[..], b"/etc/m.toml: bad slug\nFix: edit it");
        let headers = request.headers();
        assert_eq!(text(headers, "title"), "Error on box.lan: model");
        assert_eq!(text(headers, "priority"), "high");
        assert_eq!(text(headers, "tags"), "rotating_light");
        assert!(!headers.contains_key("webhook-signature"));
    }

    #[test]
    fn title_is_a_valid_header_for_any_text() {
        let expect = [
            ("disk", "disk"),
            ("a\r\nX-Evil: 1", "=?UTF-8?B?YSAgWC1FdmlsOiAx?="),
            ("größe", "=?UTF-8?B?Z3LDtsOfZQ==?="),
            ("=?UTF-8?Q?x?=", "=?UTF-8?B?PT9VVEYtOD9RP3g/PQ==?="),
        ];
        for (title, expected) in expect {
            assert_eq!(header_text(title), expected, "{title:?}");
        }
        let long = header_text(cut(&"ü€".repeat(500), TITLE_MAX));
        assert!(long.split(' ').all(|word| word.len() <= 75), "{long}");
        assert!(HeaderValue::from_str(&long).is_ok());
        let subject = "\u{0}\u{7f}\n💥".repeat(300);
        let message = raised(Finding::warning(&subject, "d".repeat(9000)).mended_by("f"));
        let request = message.request(&target(Format::Ntfy), Timestamp::default()).unwrap();
        assert!(request.body().len() <= NTFY_TEXT_MAX);
    }
}
