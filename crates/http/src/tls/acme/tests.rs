//! Tests without an authority: when orders are due, what is stored, and the answers to challenges.
//! `tests/operate/acme.rs` orders certificates from a real authority.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, crypto};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

use super::super::{Certificates, Source};
use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn options(folder: &TempDir) -> Options {
    Options {
        directory: "https://ca.example/directory".to_owned(),
        directory_ca: None,
        contact: Vec::new(),
        domains: vec!["box.example".to_owned()],
        cache: folder.path().join("acme"),
    }
}

fn made(folder: &TempDir) -> Certificates {
    Certificates::acme(options(folder), folder.path(), &[], NOW).unwrap()
}

fn acme(certificates: &Certificates) -> &Acme {
    let Source::Acme(acme) = &certificates.shared.source else { panic!("not by ACME") };
    acme
}

/// Returns a certificate for `name` with its key, in the form in which the authority issues it.
fn issued(name: &str, from: Timestamp, until: Timestamp) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let date = |time: Timestamp| {
        x509_parser::time::ASN1Time::from_timestamp(time.unix_seconds()).unwrap().to_datetime()
    };
    (params.not_before, params.not_after) = (date(from), date(until));
    format!("{}{}", key.serialize_pem(), params.self_signed(&key).unwrap().pem())
}

fn failure(at: Timestamp, is_refusal: bool) -> Failure {
    let domains = vec!["box.example".to_owned()];
    let next = at.plus(DAY);
    Failure { reason: "no".to_owned(), at, next, attempts: 1, is_refusal, domains }
}

#[tokio::test]
async fn order_is_due_after_two_thirds_of_the_life() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = made(&folder);
    let acme = acme(&certificates);
    assert_eq!(acme.next_order(NOW, false), NOW, "there is no certificate");
    let pem = issued("box.example", NOW, NOW.plus(90 * DAY));
    assert_eq!(acme.store(pem.clone(), NOW).await.unwrap(), NOW.plus(90 * DAY));
    assert_eq!(acme.next_order(NOW, false), NOW.plus(60 * DAY));
    assert_eq!(acme.next_order(NOW, true), NOW.plus(60 * DAY), "a reload orders nothing");
    let mode = fs::metadata(&acme.cache.certificate).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mode = fs::metadata(folder.path().join("acme")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // Another start, with another name that the stored certificate does not have.
    let mut other = options(&folder);
    other.domains.push("other.example".to_owned());
    let other = Certificates::acme(other, folder.path(), &[], NOW).unwrap();
    assert_eq!(self::acme(&other).next_order(NOW, false), NOW);
    // The certificate from another directory is not used.
    let mut other = options(&folder);
    other.directory = "https://other.example/directory".to_owned();
    let other = Certificates::acme(other, folder.path(), &[], NOW).unwrap();
    assert_eq!(self::acme(&other).next_order(NOW, false), NOW);
}

#[tokio::test]
async fn issued_certificate_that_does_not_fit_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = made(&folder);
    let acme = acme(&certificates);
    let good = issued("box.example", NOW, NOW.plus(90 * DAY));
    acme.store(good, NOW).await.unwrap();
    let kept = fs::read(&acme.cache.certificate).unwrap();
    for (pem, expected) in [
        (issued("bank.example", NOW, NOW.plus(DAY)), "it is for bank.example"),
        (issued("box.example", NOW, NOW.plus(Duration::from_secs(9))), "check the machine's clock"),
        (issued("box.example", NOW.plus(DAY), NOW.plus(2 * DAY)), "check the machine's clock"),
        ("no certificate".to_owned(), "holds no certificate"),
    ] {
        let error = acme.store(pem, NOW).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(fs::read(&acme.cache.certificate).unwrap(), kept, "{expected}");
    }
}

#[tokio::test]
async fn failed_order_is_repeated_after_a_restart_not_sooner() {
    let folder = tempfile::tempdir().unwrap();
    acme(&made(&folder)).cache.write_failure(&failure(NOW, true)).unwrap();
    let certificates = made(&folder);
    let acme = acme(&certificates);
    assert_eq!(acme.next_order(NOW, false), NOW.plus(DAY));
    assert_eq!(acme.next_order(NOW, true), NOW.plus(RELOAD_PAUSE));
    let before = NOW.before(DAY).unwrap();
    assert_eq!(acme.next_order(before, false), before, "the clock was ahead");
    acme.cache.write_failure(&failure(NOW, false)).unwrap();
    assert_eq!(acme.next_order(NOW, true), NOW, "a reload does not wait for an authority");
    let mut other = failure(NOW, true);
    other.domains = vec!["other.example".to_owned()];
    acme.cache.write_failure(&other).unwrap();
    assert_eq!(acme.next_order(NOW, false), NOW, "the names changed");
    let pem = issued("box.example", NOW, NOW.plus(90 * DAY));
    acme.store(pem, NOW).await.unwrap();
    assert_eq!(status(&options(&folder)).failure, None);
}

#[test]
fn delay_doubles_up_to_its_limit() {
    for (is_refusal, first) in [(true, REFUSED_DELAY), (false, UNREACHABLE_DELAY)] {
        for (attempts, expected) in
            [(1, first), (2, first * 2), (4, first * 8), (30, DELAY_MAX), (u32::MAX, DELAY_MAX)]
        {
            let delay = delay(attempts, is_refusal);
            assert!(delay >= expected && delay <= expected * 5 / 4, "{attempts}: {delay:?}");
        }
    }
}

#[test]
fn failure_has_reason_and_time_of_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = made(&folder);
    let acme = acme(&certificates);
    let refused = || order::Error::Invalid("box.example: no\u{1b}[2J".repeat(1000));
    acme.failed(&refused(), Some(Duration::from_secs(7200)), NOW);
    acme.failed(&refused(), Some(DAY * 365), NOW);
    let failure = status(&options(&folder)).failure.unwrap();
    assert_eq!(failure.attempts, 2);
    assert_eq!(failure.next, NOW.plus(DAY), "`Retry-After` is limited");
    assert_eq!(failure.reason.chars().count(), 1000);
    assert!(!failure.reason.contains('\u{1b}'));
    let mode = fs::metadata(acme.cache.certificate.with_file_name("failure.json"));
    assert_eq!(mode.unwrap().permissions().mode() & 0o777, 0o600);
}

/// Accepts and records every certificate, like an authority that validates a name.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Connects and offers these protocols; returns the certificate that the server presents.
async fn presented(
    certificates: &Certificates,
    name: &str,
    protocols: &[&[u8]],
) -> Option<Vec<u8>> {
    let provider = Arc::new(crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let (client, server) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let (connected, _accepted) =
        tokio::join!(connector.connect(name, client), certificates.acceptor().accept(server));
    let connected = connected.ok()?;
    Some(connected.get_ref().1.peer_certificates()?.first()?.to_vec())
}

#[tokio::test]
async fn challenge_is_answered_only_during_an_order_and_only_to_challenges() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = made(&folder);
    let acme = acme(&certificates);
    let challenge: &[&[u8]] = &[CHALLENGE_PROTOCOL];
    assert_eq!(presented(&certificates, "box.example", challenge).await, None);
    acme.cache.challenges.insert("box.example", &[7; 32]).unwrap();
    let answer = presented(&certificates, "BOX.example", challenge).await.unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&answer).unwrap();
    let identifier = parsed.extensions().iter().find(|extension| extension.critical).unwrap();
    assert!(identifier.value.ends_with(&[7; 32]));
    assert_eq!(presented(&certificates, "other.example", challenge).await, None);
    let usual = certificates.looked().pair.certified.cert[0].to_vec();
    for protocols in [&[b"h2".as_slice()][..], &[], &[CHALLENGE_PROTOCOL, b"h2"]] {
        let served = presented(&certificates, "box.example", protocols).await;
        assert_eq!(served.as_ref(), Some(&usual), "{protocols:?}");
    }
    acme.cache.challenges.clear();
    assert_eq!(presented(&certificates, "box.example", challenge).await, None);
}

#[tokio::test]
async fn certificate_without_acme_answers_no_challenge() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::self_signed(folder.path(), &[], NOW).unwrap();
    assert_eq!(presented(&certificates, "localhost", &[CHALLENGE_PROTOCOL]).await, None);
}

#[test]
fn unreadable_certificate_is_replaced_by_the_self_signed_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = acme(&made(&folder)).cache.certificate.clone();
    fs::write(&path, "torn").unwrap();
    let certificates = made(&folder);
    assert!(certificates.looked().pair.names.contains(&"localhost".to_owned()));
    assert_eq!(acme(&certificates).next_order(NOW, false), NOW);
    let error = certificates.reload(NOW).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
}
