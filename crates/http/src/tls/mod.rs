//! TLS for the listeners: the box's own certificate, the operator's files, or a certificate from
//! ACME, reloaded while connections are served.
//!
//! A certificate that cannot be served never replaces a working certificate: a broken file is
//! logged, and the previous certificate stays in use. An expired certificate is still served, with
//! a log line, because only the clients can decide whether to accept it. Other modules decide which
//! listeners are encrypted.

pub mod acme;
mod authority;
mod constraints;
mod pair;

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, crypto};
use rustls_pki_types::CertificateDer;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;

use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, NoRandomness, Tasks};

use acme::{Acme, Challenges};
use authority::{Folder, Names};
use pair::Pair;
pub use pair::{Concern, Summary};

/// Interval of the checks for changed files and due renewals.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Protocols for ALPN (RFC 7301), the preferred protocol first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The reason why a certificate cannot be served. Messages name the file, but never show the
/// contents of a key file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {error}{}", path.display(), hint(error))]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}; the service's user must own the folder", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("{} is not a file, or is larger than {most} bytes", path.display())]
    NotAFile { path: PathBuf, most: u64 },
    #[error("{} is not well-formed PEM: copy the complete file again", path.display())]
    Pem { path: PathBuf },
    #[error(
        "{} holds no certificate: expected PEM with -----BEGIN CERTIFICATE-----, the server's own \
         certificate first, followed by the certificates of its authorities",
        path.display()
    )]
    NoCertificate { path: PathBuf },
    #[error("{} holds no private key: expected PEM with -----BEGIN PRIVATE KEY-----", path.display())]
    NoKey { path: PathBuf },
    #[error(
        "the private key in {path} is encrypted, and the service cannot ask for its passphrase \
         at startup: decrypt it with openssl pkey -in {path} -out NEW_FILE",
        path = path.display()
    )]
    EncryptedKey { path: PathBuf },
    #[error("the certificate in {} cannot be served: {reason}", path.display())]
    Certificate { path: PathBuf, reason: String },
    #[error(
        "the private key in {} cannot be used: {reason}; supported keys are RSA with at least 2048 \
         bits, ECDSA on P-256 or P-384, and Ed25519",
        path.display()
    )]
    Key { path: PathBuf, reason: String },
    #[error(
        "the private key in {} does not belong to the first certificate in {}: use a key and a \
         certificate that were issued together, and put the server's own certificate first",
        key.display(), certificate.display()
    )]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error(
        "a new certificate is due, but {}, which must sign it, is missing: put it back, or delete \
         {} to create a new authority, which every client must then trust",
        key.display(), certificate.display()
    )]
    NoAuthorityKey { certificate: PathBuf, key: PathBuf },
    #[error(
        "{name:?} is not a valid name for a certificate: expected a host name or an IP address"
    )]
    Name { name: String },
    #[error("{count} names for one certificate: at most {most}")]
    Names { count: usize, most: usize },
    #[error("the certificate cannot be made: {0}")]
    Make(rcgen::Error),
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self::Make(error)
    }
}

/// Returns a hint for a file that cannot be read, if the remedy is known.
fn hint(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return "; the service's user must be able to read it and to enter its folder";
    }
    ""
}

/// Returns the host name that the kernel has for this machine.
#[must_use]
pub fn machine_name() -> String {
    authority::machine_name()
}

/// The listeners' certificate. Clones share the same state: a reload applies to all clones, from
/// the next handshake on.
#[derive(Clone)]
pub struct Certificates {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    current: Arc<Current>,
    acceptor: TlsAcceptor,
    /// The result of the last check. Locked while files are read and written, so that reloads do
    /// not overlap.
    looked: Mutex<Looked>,
}

/// The source of the certificate.
#[derive(Debug)]
enum Source {
    SelfMade { folder: Folder, names: Names },
    Files { certificate: PathBuf, key: PathBuf },
    Acme(Box<Acme>),
}

/// The certificate for the next handshake, regardless of the server name that the client requests.
#[derive(Debug)]
struct Current {
    certified: ArcSwap<CertifiedKey>,
    /// The answers to ACME challenges.
    challenges: Challenges,
}

impl ResolvesServerCert for Current {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if acme::is_challenge(&hello) {
            return self.challenges.answer(&hello);
        }
        Some(self.certified.load_full())
    }
}

/// Result of the last check of the files.
#[derive(Debug)]
struct Looked {
    stamps: [Option<Stamp>; 2],
    /// The served pair.
    pair: Pair,
    /// The logged reason why the files' current contents are not served.
    failure: Option<String>,
    /// Concerns already logged about the served certificate.
    concerns: Vec<Concern>,
}

/// Identifies a version of a file. The stamp includes the inode's change time, because a copy may
/// preserve an old modification time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Returns `None` if the file's metadata cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Checks a certificate and its key before they are served: whether the two match, the
/// certificate's names and validity, and anything that clients may reject.
///
/// # Errors
/// [`Error`] if they cannot be served.
pub fn inspect(certificate: &Path, key: &Path, now: Timestamp) -> Result<Summary, Error> {
    Ok(pair::read(certificate, key)?.summary(now))
}

/// Reads the certificates of authorities from a PEM file.
///
/// # Errors
/// [`Error`] if the file has no certificate.
pub fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    pair::chain(path)
}

impl Certificates {
    /// Returns a certificate from this box's own authority. The certificate and the authority are
    /// stored in `dir/tls` and created if missing. The certificate is valid for `localhost`,
    /// 127.0.0.1, ::1, this machine's host name, and `names` (host names, including wildcards such
    /// as `*.box.lan`, and IP addresses). The authority's name constraints permit only these names:
    /// until the authority expires, clients need a new authority certificate only when a name is
    /// added to `names`.
    ///
    /// Reads and writes files; only one process at a time may use a `dir`.
    ///
    /// # Errors
    /// [`Error`] if a name is invalid, or the folder cannot be read or written.
    pub fn self_signed(dir: &Path, names: &[String], now: Timestamp) -> Result<Self, Error> {
        let names = authority::all_names(names)?;
        let source = Source::SelfMade { folder: Folder::new(dir.join("tls")), names };
        let pair = source.load(now)?;
        Self::serving(source, pair)
    }

    /// Reads the operator's certificate chain and private key from PEM files.
    ///
    /// # Errors
    /// [`Error`] if the files cannot be served.
    pub fn files(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let pair = pair::read(certificate, key)?;
        let certificate = certificate.to_path_buf();
        let key = key.to_path_buf();
        Self::serving(Source::Files { certificate, key }, pair)
    }

    /// Returns the stored ACME certificate for `options`. Until there is one, returns the
    /// self-signed certificate for `names`, as [`Certificates::self_signed`] does.
    /// [`Certificates::watch`] orders and renews certificates.
    ///
    /// # Errors
    /// [`Error`] if a name is invalid, or a folder cannot be read or written.
    pub fn acme(
        options: acme::Options,
        dir: &Path,
        names: &[String],
        now: Timestamp,
    ) -> Result<Self, Error> {
        let fallback = (Folder::new(dir.join("tls")), authority::all_names(names)?);
        let acme = Acme::new(options, fallback)?;
        let pair = acme.load_first(now)?;
        Self::serving(Source::Acme(Box::new(acme)), pair)
    }

    fn serving(source: Source, pair: Pair) -> Result<Self, Error> {
        let mut protocols = PROTOCOLS.to_vec();
        let mut challenges = Challenges::default();
        if let Source::Acme(acme) = &source {
            protocols.push(acme::CHALLENGE_PROTOCOL);
            challenges = acme.cache.challenges.clone();
        }
        let certified = ArcSwap::new(Arc::clone(&pair.certified));
        let current = Arc::new(Current { certified, challenges });
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&current, &protocols)?));
        // Without stamps, the first check reads the files again, so the first check cannot miss an
        // earlier change.
        let looked = Looked { stamps: [None, None], pair, failure: None, concerns: Vec::new() };
        let shared = Shared { source, current, acceptor, looked: Mutex::new(looked) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the TLS acceptor, which serves the current certificate at each handshake: TLS 1.2
    /// and 1.3, `h2` and `http/1.1`. All acceptors share their session tickets.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        self.shared.acceptor.clone()
    }

    /// Returns the path of the authority's certificate, for clients to install; `None` if the
    /// certificate is not self-signed.
    #[must_use]
    pub fn ca_path(&self) -> Option<&Path> {
        match &self.shared.source {
            Source::SelfMade { folder, .. } => Some(&folder.authority),
            Source::Files { .. } | Source::Acme(_) => None,
        }
    }

    /// Reloads the files, renews a self-signed certificate that is due, and retries a failed ACME
    /// order. Reads and writes files, so it must be called on a blocking thread. Returns a
    /// description of the certificate if it has changed.
    ///
    /// # Errors
    /// [`Error`] if the files cannot be served. The error is already logged, and the previous
    /// certificate stays in use.
    pub fn reload(&self, now: Timestamp) -> Result<Option<String>, Error> {
        if let Source::Acme(acme) = &self.shared.source {
            acme.wake();
        }
        self.refresh(&mut self.looked(), now)
    }

    /// Runs until the service stops. Reloads when a file has changed, when a self-signed
    /// certificate is due, and after a failed reload; logs concerns about the certificate; orders
    /// ACME certificates when they are due. Calls `changed` with each new certificate.
    pub fn watch(
        &self,
        tasks: &Tasks,
        clock: &Clock,
        changed: impl Fn(String) + Send + Sync + 'static,
    ) {
        self.order(tasks, clock);
        let certificates = self.clone();
        let clock = clock.clone();
        let stopping = tasks.clone();
        tasks.spawn(async move {
            let mut polls = tokio::time::interval(POLL_EVERY);
            polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = stopping.stopping() => return,
                    _ = polls.tick() => {}
                }
                let polled = certificates.clone();
                let now = clock.now();
                match tokio::task::spawn_blocking(move || polled.poll(now)).await {
                    Ok(other) => other.into_iter().for_each(&changed),
                    Err(error) => {
                        tracing::error!(%error, "cannot check certificate");
                    }
                }
            }
        });
    }

    fn order(&self, tasks: &Tasks, clock: &Clock) {
        let certificates = self.clone();
        let (stopping, clock) = (tasks.clone(), clock.clone());
        tasks.spawn(async move {
            if let Source::Acme(acme) = &certificates.shared.source {
                acme.run(&stopping, &clock).await;
            }
        });
    }

    /// Runs one check of [`Certificates::watch`]. Returns a description of the certificate if it
    /// has changed.
    fn poll(&self, now: Timestamp) -> Option<String> {
        let mut looked = self.looked();
        let source = &self.shared.source;
        let is_due = looked.failure.is_some()
            || source.stamps() != looked.stamps
            || source.is_due(&looked.pair, now);
        // The error is already logged.
        let other = is_due.then(|| self.refresh(&mut looked, now).ok().flatten()).flatten();
        let summary = looked.pair.summary(now);
        metrics::gauge!("orrery_certificate_expiry_timestamp_seconds")
            .set(summary.not_after.since(Timestamp::from_micros(0)).as_secs_f64());
        let concerns = summary.concerns;
        for concern in concerns.iter().filter(|concern| !looked.concerns.contains(concern)) {
            let certificate = source.certificate().display();
            tracing::warn!(%certificate, "the certificate {concern}");
        }
        looked.concerns = concerns;
        other
    }

    fn refresh(&self, looked: &mut Looked, now: Timestamp) -> Result<Option<String>, Error> {
        let source = &self.shared.source;
        // The stamps are taken before the files are read, so the next check detects any change made
        // while they are read.
        looked.stamps = source.stamps();
        let certificate = source.certificate().display();
        match source.load(now) {
            Ok(pair) => {
                let names = pair.names.join(", ");
                let until = pair.not_after;
                let is_other = pair.certified.cert != looked.pair.certified.cert;
                if is_other || looked.failure.is_some() {
                    tracing::info!(%certificate, %names, %until, "serving certificate");
                }
                let other = is_other.then(|| format!("{certificate}, until {until}, for {names}"));
                self.shared.current.certified.store(Arc::clone(&pair.certified));
                looked.pair = pair;
                looked.failure = None;
                Ok(other)
            }
            Err(error) => {
                let text = error.to_string();
                if looked.failure.as_ref() != Some(&text) {
                    tracing::warn!(%certificate, %error, "cannot load certificate: previous one stays in use");
                }
                looked.failure = Some(text);
                Err(error)
            }
        }
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        // The next check repairs any state that a panic may have left.
        self.shared.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("source", &self.shared.source).finish_non_exhaustive()
    }
}

impl Source {
    fn load(&self, now: Timestamp) -> Result<Pair, Error> {
        match self {
            Self::SelfMade { folder, names } => authority::provide(folder, names, now),
            Self::Files { certificate, key } => pair::read(certificate, key),
            Self::Acme(acme) => acme.load(now),
        }
    }

    fn certificate(&self) -> &Path {
        match self {
            Self::SelfMade { folder, .. } => &folder.certificate,
            Self::Files { certificate, .. } => certificate,
            Self::Acme(acme) => &acme.cache.certificate,
        }
    }

    fn stamps(&self) -> [Option<Stamp>; 2] {
        let (certificate, key) = match self {
            Self::SelfMade { folder, .. } => (&folder.certificate, &folder.key),
            Self::Files { certificate, key } => (certificate, key),
            Self::Acme(acme) => (&acme.cache.certificate, &acme.fallback.0.certificate),
        };
        [Stamp::of(certificate), Stamp::of(key)]
    }

    /// Returns whether a new certificate is due although no file has changed.
    fn is_due(&self, pair: &Pair, now: Timestamp) -> bool {
        match self {
            Self::SelfMade { .. } => authority::is_due(pair, now),
            Self::Files { .. } => false,
            Self::Acme(acme) => acme.is_fallback_due(pair, now),
        }
    }
}

fn server_config(current: &Arc<Current>, protocols: &[&[u8]]) -> Result<ServerConfig, Error> {
    let provider = Arc::new(crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(Error::Setup)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::<Current>::clone(current));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // A returning client presents its session ticket, so the server does not store state for each
    // client.
    config.ticketer = crypto::ring::Ticketer::new().map_err(Error::Setup)?;
    Ok(config)
}

#[cfg(test)]
mod tests;
