//! Checks that the certificate is valid and matches its key, and that API keys do not cross a
//! network unencrypted.

use std::path::Path;

use crate::listeners::acme_options;
use orrery_api::{Finding, Verdict};
use orrery_config::{Acme, Config, TlsMode};
use orrery_domain::time::Timestamp;
use orrery_http::tls;
use orrery_http::tls::acme;

pub(super) fn findings(config: &Config, now: Timestamp) -> Vec<Finding> {
    let encrypted = config
        .hosts
        .named()
        .iter()
        .flat_map(|(_, host)| host.listen.clone())
        .chain(config.hosts.ollama.listen.iter().copied())
        .any(|address| config.tls.encrypts(&address));
    match &config.tls.mode {
        TlsMode::Files { certificate, private_key } => {
            vec![certificate_of(certificate, private_key, now)]
        }
        TlsMode::Acme(acme) => by_acme(acme, now),
        TlsMode::Off => {
            let open = config
                .hosts
                .named()
                .iter()
                .flat_map(|(_, host)| host.listen.clone())
                .chain(config.hosts.ollama.listen.iter().copied())
                .find(|address| !address.ip().to_canonical().is_loopback());
            vec![match open {
                Some(address) => {
                    let detail = format!("off: keys cross the network unencrypted on {address}");
                    Finding::new("tls", Verdict::Warning, detail)
                }
                None => Finding::new("tls", Verdict::Good, "off, on loopback addresses only"),
            }]
        }
        TlsMode::Auto | TlsMode::SelfSigned if encrypted => {
            let folder = config.data_dir.join("tls");
            let certificate = folder.join("server.pem");
            let key = folder.join("server.key");
            if certificate.exists() {
                return vec![certificate_of(&certificate, &key, now)];
            }
            vec![Finding::new(
                "tls",
                Verdict::Good,
                "a certificate will be created at the first start",
            )]
        }
        TlsMode::Auto | TlsMode::SelfSigned => {
            vec![Finding::new("tls", Verdict::Good, "plain HTTP, on loopback addresses only")]
        }
    }
}

/// Reports the state of the ACME certificate, and why the last order failed.
fn by_acme(config: &Acme, now: Timestamp) -> Vec<Finding> {
    let options = acme_options(config);
    let mut found = Vec::new();
    if let Some(Err(error)) = config.directory_ca.as_deref().map(tls::authorities) {
        found.push(Finding::fault("tls", format!("tls.acme.directory_ca: {error}")));
    }
    let acme::Status { certificate, failure } = acme::status(&options);
    let has_certificate = certificate.exists();
    if let Some(failure) = failure {
        let acme::Failure { reason, at, next, attempts, is_refusal, .. } = failure;
        let served = if has_certificate { "the last one" } else { "a self-signed one" };
        let detail = format!(
            "no new certificate from {}: {reason} ({at}, attempt {attempts}); the service serves \
             {served}, and orders again at {next}",
            options.directory
        );
        // This is only a warning, because the service starts and works without the certificate.
        found.push(Finding::warning("tls", detail).mended_by(match is_refusal {
            true => "forward port 443 of each name to this service; then orrery reload",
            false => "make the directory reachable for this machine; then orrery reload",
        }));
    }
    if has_certificate {
        found.push(certificate_of(&certificate, &certificate, now));
    } else if found.is_empty() {
        let names = options.domains.join(", ");
        let detail = format!("a certificate for {names} will be ordered at {}", options.directory);
        found.push(Finding::good("tls", detail));
    }
    found
}

/// Reports whether a certificate and its key match and are currently valid.
fn certificate_of(certificate: &Path, key: &Path, now: Timestamp) -> Finding {
    let summary = match tls::inspect(certificate, key, now) {
        Ok(summary) => summary,
        Err(error) => return Finding::fault("tls", error.to_string()),
    };
    let Some(concern) = summary.concerns.first() else {
        let names = summary.names.join(", ");
        return Finding::good("tls", format!("for {names}, until {}", summary.not_after));
    };
    let refused = summary.concerns.iter().any(|concern| concern.is_refused());
    let verdict = if refused { Verdict::Fault } else { Verdict::Warning };
    let shown = certificate.display();
    Finding::new("tls", verdict, format!("{shown}: the certificate {concern}"))
        .mended_by("renew it; the service loads the new one automatically")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_warns_about_plain_http_on_a_network() {
        let mut config = Config::defaults();
        let now = Timestamp::from_micros(0);
        assert_eq!(findings(&config, now)[0].verdict, Verdict::Good);
        config.tls.mode = TlsMode::Off;
        assert_eq!(findings(&config, now)[0].verdict, Verdict::Good);
        config.hosts.agent.listen = vec!["0.0.0.0:8446".parse().unwrap()];
        let found = findings(&config, now).remove(0);
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.detail.contains("0.0.0.0:8446"), "{}", found.detail);
    }
}
