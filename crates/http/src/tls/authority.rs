//! The box's own certificate authority, and the listeners' certificate that it issues.
//!
//! Clients install the authority once, so it is never replaced while its key exists. The
//! authority's certificate is reissued with the same name and key if it is lost or about to expire,
//! if it has no name constraints (as in former releases), or if it does not permit a configured
//! name. The machine's host name does not cause a reissue, because it may change whenever a
//! container starts; it is left out of the listeners' certificate instead. Clients do not install
//! the listeners' certificate, so it is recreated whenever it does not fit.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls_pki_types::{CertificateDer, DnsName};
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::time::ASN1Time;

use super::pair::{self, Pair};
use super::{Error, constraints};
use orrery_domain::hex::hex;
use orrery_domain::time::Timestamp;
use orrery_runtime as runtime;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Lifetime of the authority's certificate.
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(20 * 365);
/// Remaining lifetime at which the authority's certificate is reissued: longer than the lifetime of
/// a listeners' certificate, so that the authority's certificate outlives each listeners'
/// certificate, and long enough to distribute the new certificate to clients while the old one is
/// valid.
const AUTHORITY_OVERLAP: Duration = DAY.saturating_mul(2 * 365);
/// Lifetime of a listeners' certificate: Apple's systems reject certificates valid for more than
/// 825 days, or for more than 398 days if they regard the authority as public.
const LIFE: Duration = DAY.saturating_mul(397);
/// Remaining lifetime at which a listeners' certificate is renewed.
const RENEW_BEFORE: Duration = DAY.saturating_mul(30);
/// Tolerance for clients' clocks that are slow.
const CLOCK_SKEW: Duration = DAY;
/// 2025-01-01T00:00:00Z. A clock that shows an earlier time has not been set yet (boards without a
/// battery start in 1970). The authority is valid from this date, so that it stays valid even if
/// the clock was ahead when the authority was created.
const EARLIEST: Timestamp = Timestamp::from_micros(1_735_689_600_000_000);
/// Maximum number of names in one certificate, which is sent in each full handshake: the
/// configuration's limit plus room for the box's own names.
const NAMES_MAX: usize = 300;

const FOLDER_MODE: u32 = 0o700;
pub(super) const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o600;

/// Paths of the authority and the certificate.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// The authority's certificate, for clients.
    pub(super) authority: PathBuf,
    authority_key: PathBuf,
    /// The listeners' certificate.
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            authority: path.join("ca.pem"),
            authority_key: path.join("ca.key"),
            certificate: path.join("server.pem"),
            key: path.join("server.key"),
            path,
        }
    }
}

/// The names of the certificate, in canonical form.
#[derive(Debug)]
pub(super) struct Names {
    /// The names that every box has, and the configured names.
    asked: BTreeSet<String>,
    /// The machine's host name; included only if the authority already permits it or is being
    /// reissued anyway.
    machine: Option<String>,
}

impl Names {
    fn all(&self) -> BTreeSet<String> {
        self.asked.iter().chain(&self.machine).cloned().collect()
    }

    /// Returns the configured names, and the machine's host name if the authority permits it.
    fn permitted(&self, authority: &X509Certificate<'_>) -> BTreeSet<String> {
        let mut names = self.all();
        names.retain(|name| self.asked.contains(name) || constraints::permits(authority, name));
        names
    }
}

/// Returns the names that every box has, the machine's host name, and `more`.
pub(super) fn all_names(more: &[String]) -> Result<Names, Error> {
    let mut names = BTreeSet::new();
    for name in ["localhost", "127.0.0.1", "::1"] {
        names.insert(name.to_owned());
    }
    for name in more {
        names.insert(canonical(name).ok_or_else(|| Error::Name { name: name.clone() })?);
    }
    if names.len() > NAMES_MAX {
        return Err(Error::Names { count: names.len(), most: NAMES_MAX });
    }
    // A host name that is invalid in certificates is left out: clients do not connect to it.
    Ok(Names { asked: names, machine: canonical(&machine_name()) })
}

/// Returns the certificate in the folder if it fits; otherwise issues a new certificate, from a new
/// authority if there is no authority.
pub(super) fn provide(folder: &Folder, names: &Names, now: Timestamp) -> Result<Pair, Error> {
    let now = now.max(EARLIEST);
    make(&folder.path)?;
    let authority = authority(folder, names, now)?;
    let permitted = names.permitted(&pair::parse(&authority, &folder.authority)?);
    let reason = match pair::read(&folder.certificate, &folder.key) {
        Ok(pair) => match misfit(&pair, folder, &authority, &permitted, now)? {
            None => return Ok(pair),
            Some(reason) => reason.to_owned(),
        },
        Err(Error::Read { path, error }) if error.kind() == io::ErrorKind::NotFound => {
            let is_first = path == folder.certificate;
            if is_first { "there is none yet" } else { "its private key is missing" }.to_owned()
        }
        Err(error) => error.to_string(),
    };
    issue(folder, &authority, &permitted, now)?;
    if let Some(machine) = names.machine.as_ref().filter(|machine| !permitted.contains(*machine)) {
        tracing::warn!(
            %machine,
            "certificate omits the machine's host name, which the authority does not \
             permit: to include it, add it to `tls.names` and give clients the new authority"
        );
    }
    let certificate = folder.certificate.display();
    tracing::info!(%certificate, %reason, "certificate issued");
    pair::read(&folder.certificate, &folder.key)
}

/// Returns whether a new certificate is due.
pub(super) fn is_due(pair: &Pair, now: Timestamp) -> bool {
    let now = now.max(EARLIEST);
    now < pair.not_before || now.plus(RENEW_BEFORE) >= pair.not_after
}

/// Returns the reason why the certificate must no longer be served; `None` if it is valid.
fn misfit(
    pair: &Pair,
    folder: &Folder,
    authority: &CertificateDer<'_>,
    names: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Option<&'static str>, Error> {
    if is_due(pair, now) {
        return Ok(Some("the previous one expires soon, or is not valid yet"));
    }
    if !pair.names.iter().eq(names) {
        return Ok(Some("the names changed"));
    }
    let Some(own) = pair.certified.cert.first() else { return Ok(Some("there was none")) };
    let own = pair::parse(own, &folder.certificate)?;
    let authority = pair::parse(authority, &folder.authority)?;
    let is_issued = own.issuer().as_raw() == authority.subject().as_raw()
        && own.verify_signature(Some(authority.public_key())).is_ok();
    Ok((!is_issued).then_some("the authority changed"))
}

/// Returns the authority's certificate. Creates a new certificate if the existing certificate is
/// missing, is about to expire, has no constraints, or does not permit a name.
fn authority(
    folder: &Folder,
    names: &Names,
    now: Timestamp,
) -> Result<CertificateDer<'static>, Error> {
    let path = &folder.authority;
    let chain = match pair::chain(path) {
        Err(Error::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
        Ok(chain) => Some(chain),
    };
    if let Some(kept) = chain.and_then(|chain| chain.into_iter().next()) {
        let reason = {
            let parsed = pair::parse(&kept, path)?;
            match outdated(folder, &parsed, names, now)? {
                None => return Ok(kept),
                Some(reason) => reason,
            }
        };
        tracing::warn!(path = %path.display(), "authority certificate reissued: {reason}");
    }
    make_authority(folder, names, now)
}

/// Returns the reason why the authority's certificate must be reissued, and the consequence for
/// clients.
fn outdated(
    folder: &Folder,
    authority: &X509Certificate<'_>,
    names: &Names,
    now: Timestamp,
) -> Result<Option<String>, Error> {
    if now.plus(AUTHORITY_OVERLAP).unix_seconds() >= authority.validity().not_after.timestamp() {
        return Ok(Some("it expires soon: give clients the new file in time".to_owned()));
    }
    // An authority that this box did not create, or whose key is missing, is left unchanged. If an
    // authority without a key does not permit a name, issuing the certificate fails.
    let key = match authority_key(folder) {
        Err(Error::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        key => key?,
    };
    let mark = mark(&key);
    let is_own = |name: &str| name == mark;
    if !authority.subject().iter_common_name().any(|name| name.as_str().is_ok_and(is_own)) {
        return Ok(None);
    }
    if !constraints::has_any(authority) {
        let reason = "clients that have the former file trust it for every name of the network. \
                      They keep working; give them the new file, which is valid only for the names \
                      of this machine";
        return Ok(Some(reason.to_owned()));
    }
    let new = names.asked.iter().find(|name| !constraints::permits(authority, name));
    Ok(new.map(|name| {
        format!(
            "it did not permit the name {name}. Clients that have the former file refuse this \
             machine until they get the new file"
        )
    }))
}

/// Writes an authority with the existing key, or with a new key if there is no key.
fn make_authority(
    folder: &Folder,
    names: &Names,
    now: Timestamp,
) -> Result<CertificateDer<'static>, Error> {
    let key = match authority_key(folder) {
        Ok(key) => key,
        Err(Error::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            let key = KeyPair::generate()?;
            // The key is written first: a certificate whose key is lost could never sign anything.
            write(&folder.authority_key, key.serialize_pem().as_bytes(), KEY_MODE)?;
            key
        }
        Err(error) => return Err(error),
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = authority_name(&key);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.name_constraints = Some(constraints::permitting(&names.all()));
    params.serial_number = Some(serial_number()?);
    params.not_before = asn1(EARLIEST)?.to_datetime();
    params.not_after = asn1(now.plus(AUTHORITY_LIFE))?.to_datetime();
    let certificate = params.self_signed(&key)?;
    write(&folder.authority, certificate.pem().as_bytes(), CERTIFICATE_MODE)?;
    let path = folder.authority.display();
    tracing::info!(%path, "certificate authority written: give this file to clients");
    Ok(certificate.into())
}

/// Issues a certificate for the listeners, with its own key.
fn issue(
    folder: &Folder,
    authority: &CertificateDer<'_>,
    names: &BTreeSet<String>,
    now: Timestamp,
) -> Result<(), Error> {
    let issuer = Issuer::from_ca_cert_der(authority, signer(folder)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Orrery");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(serial_number()?);
    params.not_before = asn1(before(now, CLOCK_SKEW))?.to_datetime();
    params.not_after = asn1(now.plus(LIFE))?.to_datetime();
    let issued = params.signed_by(&key, &issuer)?;
    // If the process is killed between the two writes, the pair does not match, and the next start
    // recreates the pair.
    write(&folder.key, key.serialize_pem().as_bytes(), KEY_MODE)?;
    write(&folder.certificate, issued.pem().as_bytes(), CERTIFICATE_MODE)
}

/// Returns the authority's key, if it matches the authority's certificate.
fn signer(folder: &Folder) -> Result<KeyPair, Error> {
    let certificate = folder.authority.clone();
    let key = folder.authority_key.clone();
    match pair::read(&certificate, &key) {
        Ok(_fits) => authority_key(folder),
        Err(Error::Read { path, error })
            if path == key && error.kind() == io::ErrorKind::NotFound =>
        {
            Err(Error::NoAuthorityKey { certificate, key })
        }
        Err(error) => Err(error),
    }
}

fn authority_key(folder: &Folder) -> Result<KeyPair, Error> {
    let path = &folder.authority_key;
    let text = pair::bytes_of(path)?;
    KeyPair::from_pem(&String::from_utf8_lossy(&text))
        .map_err(|error| Error::Key { path: path.clone(), reason: error.to_string() })
}

/// Returns a name derived from the key: different boxes have different names, and the name stays
/// the same when the box's host name changes.
pub(super) fn authority_name(key: &KeyPair) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Orrery");
    name.push(DnType::CommonName, mark(key));
    name
}

fn mark(key: &KeyPair) -> String {
    let digest = Sha256::digest(key.public_key_raw());
    format!("Orrery authority {}", hex(digest.iter().take(4)))
}

/// Returns a random serial number, because clients may reject two certificates from one authority
/// that have the same number.
fn serial_number() -> Result<SerialNumber, Error> {
    Ok(SerialNumber::from_slice(&runtime::random_bytes::<16>()?))
}

fn before(moment: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(moment.micros().saturating_sub(micros))
}

fn asn1(moment: Timestamp) -> Result<ASN1Time, Error> {
    ASN1Time::from_timestamp(moment.unix_seconds())
        .map_err(|_out_of_range| Error::Make(rcgen::Error::Time))
}

/// Returns the canonical form of a name; `None` if the name is invalid.
fn canonical(name: &str) -> Option<String> {
    // A name may be the host of a URL, in which IPv6 addresses are written in brackets.
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let plain = name.strip_prefix("*.").unwrap_or(&name);
    DnsName::try_from(plain).ok()?;
    Some(name)
}

/// Returns the host name that the kernel has for this machine.
pub(super) fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Creates the folder, or makes an existing folder private.
pub(super) fn make(folder: &Path) -> Result<(), Error> {
    let make = || {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        if fs::metadata(folder)?.permissions().mode() & 0o777 != FOLDER_MODE {
            fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?;
        }
        folder.parent().map_or(Ok(()), sync)
    };
    make().map_err(|error| Error::Write { path: folder.to_path_buf(), error })
}

/// Writes a file durably and atomically.
pub(super) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let half = path.with_added_extension("half");
    let write = || {
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(KEY_MODE).open(&half)?;
        // Also corrects the mode of an existing incomplete file, regardless of the umask.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&half, path)?;
        path.parent().map_or(Ok(()), sync)
    };
    write().map_err(|error| Error::Write { path: path.to_path_buf(), error })
}

/// Makes renames in a folder durable.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}
