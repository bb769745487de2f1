//! The welcome text of a start on a terminal. The text shows the URLs and folders, and explains how
//! to make a first prediction.
//!
//! This module only renders the text: it reads no files and prints nothing. The text contains the
//! API key, so it is written to the terminal and never to a log.

use std::path::Path;

use orrery_domain::bytes::gigabytes;
use orrery_domain::model::VERSION;

/// The built-in model for the first prediction, with a valid input.
const MODEL: &str = "text-sentiment";
const INPUT: &str = r#"{"text":"First light: what a beautiful night!"}"#;

/// The data of the welcome text.
#[derive(Debug, Clone)]
pub(super) struct Welcome<'a> {
    pub(super) version: &'a str,
    /// Each host's name and its public URL, and those of the metrics.
    pub(super) hosts: &'a [(&'a str, &'a str)],
    pub(super) data_dir: &'a Path,
    /// The API key, if a first start has created one.
    pub(super) key: Option<&'a str>,
    /// The link at which the Owner sets up the dashboard, until an Owner exists.
    pub(super) setup_link: Option<&'a str>,
    /// The self-signed certificate authority that clients must trust, if TLS uses one.
    pub(super) authority: Option<&'a Path>,
    /// The size of the file that a first start has allocated as a reserve, and the free space below
    /// which new work is rejected, both in bytes.
    pub(super) disk: Option<(u64, u64)>,
    pub(super) in_colour: bool,
}

/// Renders the text, with an empty line before and after it.
pub(super) fn render(welcome: &Welcome<'_>) -> String {
    let paint = Paint { on: welcome.in_colour };
    let mut text = String::from("\n");
    line(&mut text, &format!("{} {}", paint.bold("Orrery"), paint.faint(welcome.version)));
    text.push('\n');
    let data = welcome.data_dir.display().to_string();
    let width = welcome.hosts.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(9);
    let url_width = welcome.hosts.iter().map(|(_, url)| url.len()).max().unwrap_or(0);
    for (name, url) in welcome.hosts {
        let padding = " ".repeat(url_width - url.len());
        let purpose = paint.faint(purpose_of(name));
        line(&mut text, &format!("{name:width$}  {}{padding}  {purpose}", paint.accent(url)));
    }
    line(&mut text, &format!("{:width$}  {data}", "data"));
    text.push('\n');
    if let Some(link) = welcome.setup_link {
        line(&mut text, &paint.bold("Set up the dashboard (this link works once, for a day):"));
        line(&mut text, &format!("  {}", paint.accent(link)));
        text.push('\n');
    }
    match (welcome.key, welcome.hosts.first()) {
        (Some(key), Some((_, base))) => first_prediction(&mut text, welcome, key, base, paint),
        _ => line(&mut text, "Another key: orrery key create --name NAME"),
    }
    text.push('\n');
    if let Some((ballast, reserve)) = welcome.disk {
        line(
            &mut text,
            &format!(
                "New work is rejected when less than {} of the disk is free (limits.disk_reserve). The file\n  \
                 ballast holds {} of that: it is deleted when the disk is full, to finish running work.",
                gigabytes(reserve),
                gigabytes(ballast),
            ),
        );
    }
    line(&mut text, "All commands, from another terminal in this folder: orrery --help");
    line(&mut text, &paint.faint("Ctrl-C stops it; unfinished work resumes at the next start."));
    text.push('\n');
    text
}

/// Returns what the host with this name serves.
fn purpose_of(host: &str) -> &'static str {
    match host {
        "base" => "models, chat, files, workflows, webhooks",
        "workflows" => "workflows only",
        "flows" => "workflows in their legacy format",
        "agent" => "chat with the agent",
        "dashboard" => "open it in a browser",
        "metrics" => "for Prometheus",
        _ => "",
    }
}

fn first_prediction(text: &mut String, welcome: &Welcome<'_>, key: &str, base: &str, paint: Paint) {
    let trust = welcome
        .authority
        .map_or(String::new(), |path| format!(" --cacert {}", quoted(&path.display().to_string())));
    let header = quoted(&format!("X-API-Key: {key}"));
    let body = quoted(&format!(r#"{{"model":"{MODEL}","version":"{VERSION}","input":{INPUT}}}"#));
    line(text, &format!("{} shown only once:", paint.bold("Your API key,")));
    line(text, &format!("  {}", paint.accent(key)));
    text.push('\n');
    line(text, &paint.bold("Make a prediction:"));
    line(text, &format!("  curl -sS{trust} {base}/v1/prediction/run -H {header} -d {body}"));
}

fn line(text: &mut String, content: &str) {
    text.push_str("  ");
    text.push_str(content);
    text.push('\n');
}

/// Quotes a shell word.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[derive(Debug, Clone, Copy)]
struct Paint {
    on: bool,
}

impl Paint {
    fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }
    fn faint(self, text: &str) -> String {
        self.wrap("2", text)
    }
    fn accent(self, text: &str) -> String {
        self.wrap("36", text)
    }
    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [(&str, &str); 6] = [
        ("base", "http://127.0.0.1:8080"),
        ("workflows", "http://127.0.0.1:8081"),
        ("flows", "http://127.0.0.1:8082"),
        ("agent", "http://127.0.0.1:8083"),
        ("dashboard", "http://127.0.0.1:8084"),
        ("metrics", "http://127.0.0.1:9464/metrics"),
    ];

    fn welcome() -> Welcome<'static> {
        Welcome {
            version: "0.1.0",
            hosts: &HOSTS,
            data_dir: Path::new("./orrery-data"),
            key: Some("smk_EXAMPLE"),
            setup_link: Some("http://127.0.0.1:8084/setup#TOKEN"),
            authority: None,
            disk: Some((256 << 20, 2 << 30)),
            in_colour: false,
        }
    }

    #[test]
    fn welcome_on_first_start_shows_hosts_key_and_examples() {
        insta::assert_snapshot!(render(&welcome()));
    }

    #[test]
    fn welcome_on_later_start_shows_no_key() {
        insta::assert_snapshot!(render(&Welcome {
            key: None,
            setup_link: None,
            disk: None,
            ..welcome()
        }));
    }

    #[test]
    fn welcome_quotes_ca_path_for_curl() {
        let text = render(&Welcome { authority: Some(Path::new("/o'r/ca.pem")), ..welcome() });
        assert_eq!(text.matches(r"curl -sS --cacert '/o'\''r/ca.pem' http").count(), 1, "{text}");
        assert_eq!(text.matches(r"--cacert '/o'\''r/ca.pem'").count(), 1, "{text}");
    }

    #[test]
    fn welcome_colours_change_only_escape_codes() {
        let coloured = render(&Welcome { in_colour: true, ..welcome() });
        let mut plain = coloured;
        for code in ["\u{1b}[1m", "\u{1b}[2m", "\u{1b}[36m", "\u{1b}[0m"] {
            assert!(plain.contains(code));
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, render(&welcome()));
    }
}
