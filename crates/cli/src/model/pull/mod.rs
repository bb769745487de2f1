//! `orrery model pull`: downloads model files into the models folder.
//!
//! ```text
//! source     what to pull: a file at a URL, or files of a repository on a hub or in a folder
//! quant      which files of a repository: quantizations, parts, image encoders
//! web        requests: redirects, credentials, errors
//! download   one file: resume, check, rename
//! ```
//!
//! A file gets its name only after it is complete and its digest is correct; until then it is
//! `NAME.part`. Nothing is downloaded except by this command.

mod download;
mod quant;
mod source;
mod web;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use serde::Serialize;

use self::download::{Downloader, Pulled};
use self::source::{HUB, Source};
use self::web::Web;
use crate::Shape;
use crate::output::{self, Output};
use crate::place::of_service_unless;
use orrery_config::{Config, secret};
use orrery_domain::hex::hex;

/// Download a model file into the models folder
///
/// The same command resumes an interrupted download. The file gets its name only after its SHA-256
/// has been compared with the one that the source states.
#[derive(Debug, clap::Args)]
pub(crate) struct Pull {
    /// hf:OWNER/REPO, hf:OWNER/REPO:QUANTIZATION or hf:OWNER/REPO:FILE for files from Hugging Face,
    /// or the URL of a file
    #[arg(value_name = "SOURCE", value_parser = Source::parse)]
    source: Source,
    /// The folder to write to [default: the models folder]
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// The SHA-256 of the file, if the source does not state it
    #[arg(long, value_name = "HEX")]
    sha256: Option<Digest>,
    /// A mirror of Hugging Face, or a folder with files named OWNER/REPO/FILE
    #[arg(long, value_name = "URL_OR_FOLDER", env = "HF_ENDPOINT", default_value = HUB)]
    endpoint: String,
    /// A file with an access token, which is sent only to the host of the source
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
}

/// A SHA-256 digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Digest([u8; 32]);

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.as_bytes();
        let mut bytes = [0; 32];
        let wrong = || "write the 64 hexadecimal digits that sha256sum prints".to_owned();
        if digits.len() != 2 * bytes.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_unreachable| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_no_digits| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// The files of one command.
#[derive(Debug, Serialize)]
struct Report {
    /// The quantization of the model file, if its name states it.
    quantization: Option<String>,
    files: Vec<Pulled>,
}

pub(super) async fn run(asked: Pull, file: Option<&Path>) -> anyhow::Result<()> {
    let config = of_service_unless(asked.into.is_some(), file)?;
    let folder = asked.into.clone().unwrap_or_else(|| config.models_dir.clone());
    let endpoint = Some(asked.endpoint.as_str()).filter(|text| !text.is_empty()).unwrap_or(HUB);
    let web = web(&asked, endpoint, &config)?;
    let mut plan = asked.source.plan(endpoint, &web).await?;
    if let Some(digest) = asked.sha256 {
        if plan.is_split() {
            bail!("--sha256 is for one file, but this model has several");
        }
        let Some(first) = plan.files.first_mut() else { bail!("there is nothing to pull") };
        if first.sha256.is_some_and(|known| known != digest) {
            bail!("the source states another SHA-256 than --sha256: the file has changed");
        }
        first.sha256 = Some(digest);
    }
    plan.notes.iter().for_each(|note| output::note(note));
    fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be created", folder.display()))?;
    let reserve = config.limits.disk_reserve;
    let page = plan.page.as_deref();
    let downloader = Downloader { web: &web, folder: &folder, page, reserve };
    let mut files = Vec::new();
    for file in &plan.files {
        files.push(Box::pin(downloader.pull(file)).await?);
    }
    let report = Report { quantization: plan.quantization.clone(), files };
    if Output::new(asked.shape.json).is_json() {
        return output::json(&report);
    }
    for pulled in &report.files {
        if !pulled.is_verified {
            let name = pulled.file.display();
            output::note(&format!(
                "warning: {name} was not verified, because the source states no SHA-256; its own is \
                 {}",
                pulled.sha256
            ));
        }
        output::line(&pulled.file.display().to_string())?;
    }
    let is_served = asked.into.is_none();
    if let Some(next) = plan.next_step(is_served, report.files.first()) {
        output::note(&next);
    }
    Ok(())
}

/// Returns the client for the requests. The token goes to the host of the source alone. Hosts that
/// the source names in redirects are subject to the rules in `[egress]`.
fn web(asked: &Pull, endpoint: &str, config: &Config) -> anyhow::Result<Web> {
    let url = match &asked.source {
        Source::File(url) => url,
        Source::Repository { .. } => endpoint,
    };
    let token = asked.token_file.as_deref().map(secret::from_file).transpose();
    let token = token.map_err(anyhow::Error::msg).context("--token-file cannot be used")?;
    if token.is_some() && url.starts_with("http://") {
        output::note("warning: the token is sent unencrypted, because the URL begins with http://");
    }
    Ok(Web::new(url, token, orrery_app::policy(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_read_and_printed_in_hexadecimal() {
        let text = "0123456789abcdef".repeat(4);
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        assert_eq!(text.to_uppercase().parse::<Digest>().unwrap().to_string(), text);
        for wrong in ["", "0123", &"xy".repeat(32), &"é".repeat(32), &"+1".repeat(32)] {
            assert!(wrong.parse::<Digest>().unwrap_err().contains("64 hexadecimal digits"));
        }
    }
}
