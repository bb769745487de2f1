//! The box's own certificate authority, and the certificate that it issues to the listeners.
//!
//! Clients are given the authority once. So it is never replaced while its key is there: a
//! certificate of it that is lost, or near its end, is written again under the same name and key.
//! The same happens when it permits any name, as those of former releases do, and when it does not
//! permit a name that the configuration asks for. The machine's own host name alone, which may change
//! with every start of a container, is left out of the listeners' certificate instead.
//! The listeners' certificate is for nobody to keep: it is created again whenever it does not fit.

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
use crate::domain::time::Timestamp;
use crate::runtime;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the authority holds.
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(20 * 365);
/// The authority's certificate is written again when so much is left: more than the life of a
/// listeners' certificate, so that none outlives it, and time for clients to be given the new one
/// while the old still holds.
const AUTHORITY_OVERLAP: Duration = DAY.saturating_mul(2 * 365);
/// How long a listeners' certificate holds: Apple's systems refuse more than 825 days, and 398
/// where they take an authority for a public one.
const LIFE: Duration = DAY.saturating_mul(397);
/// A listeners' certificate is renewed when so much is left.
const RENEW_BEFORE: Duration = DAY.saturating_mul(30);
/// How far a client's clock may be behind.
const CLOCK_SKEW: Duration = DAY;
/// 2025-01-01T00:00:00Z. A clock before it has not been set yet (boards without a battery start in
/// 1970). The authority holds from then on, so that a clock that was ahead when it was made does
/// no harm either.
const EARLIEST: Timestamp = Timestamp::from_micros(1_735_689_600_000_000);
/// Names in one certificate, which is sent whole in each full handshake: as many as the configuration
/// takes, and room for the hosts' own.
const NAMES_MAX: usize = 300;

const FOLDER_MODE: u32 = 0o700;
const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o600;

/// Where the authority and the certificate are kept.
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

/// The names that the certificate is for, each in the one form that a certificate carries.
#[derive(Debug)]
pub(super) struct Names {
    /// Those that every box has, and those that are asked for.
    asked: BTreeSet<String>,
    /// The machine's own; only where the authority permits it already, or is written anyway.
    machine: Option<String>,
}

impl Names {
    fn all(&self) -> BTreeSet<String> {
        self.asked.iter().chain(&self.machine).cloned().collect()
    }

    /// Those that are asked for, and the machine's own if the authority may vouch for it.
    fn permitted(&self, authority: &X509Certificate<'_>) -> BTreeSet<String> {
        let mut names = self.all();
        names.retain(|name| self.asked.contains(name) || constraints::permits(authority, name));
        names
    }
}

/// The names of every box, the machine's own, and `more`.
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
    // A host name that no certificate can carry is none that a client connects to.
    Ok(Names { asked: names, machine: canonical(&machine_name()) })
}

/// The certificate in the folder, if it fits; otherwise a new one, of a new authority if there is
/// none.
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
        Err(error) => error.to_string(),
    };
    issue(folder, &authority, &permitted, now)?;
    if let Some(machine) = names.machine.as_ref().filter(|machine| !permitted.contains(*machine)) {
        tracing::warn!(
            %machine,
            "the certificate is not for the machine's host name, which the authority does not \
             permit: to have it, add it to `tls.names`, and give clients the new authority"
        );
    }
    let certificate = folder.certificate.display();
    tracing::info!(%certificate, %reason, "a certificate was made");
    pair::read(&folder.certificate, &folder.key)
}

/// Whether it is time for a new certificate.
pub(super) fn is_due(pair: &Pair, now: Timestamp) -> bool {
    let now = now.max(EARLIEST);
    now < pair.not_before || now.plus(RENEW_BEFORE) >= pair.not_after
}

/// Why the certificate is not the one to serve.
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

/// The authority's certificate; made where it is missing, near its end, without constraints, or in
/// the way of a name.
fn authority(
    folder: &Folder,
    names: &Names,
    now: Timestamp,
) -> Result<CertificateDer<'static>, Error> {
    let path = &folder.authority;
    let chain = match pair::chain(path) {
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
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
        tracing::warn!(path = %path.display(), "the authority is written again: {reason}");
    }
    make_authority(folder, names, now)
}

/// Why the authority's certificate is to be written again, and what that means for clients.
fn outdated(
    folder: &Folder,
    authority: &X509Certificate<'_>,
    names: &Names,
    now: Timestamp,
) -> Result<Option<String>, Error> {
    if now.plus(AUTHORITY_OVERLAP).unix_seconds() >= authority.validity().not_after.timestamp() {
        return Ok(Some("it expires soon: give clients the new file in time".to_owned()));
    }
    // One that somebody else wrote, or that can sign nothing any more, is left as it is. A name that
    // the latter does not permit is an error where the certificate is issued.
    let key = match authority_key(folder) {
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
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
             machine until they get the new one"
        )
    }))
}

/// Writes an authority: of the key that is there, or else of a new one.
fn make_authority(
    folder: &Folder,
    names: &Names,
    now: Timestamp,
) -> Result<CertificateDer<'static>, Error> {
    let key = match authority_key(folder) {
        Ok(key) => key,
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let key = KeyPair::generate()?;
            // The key comes first: a certificate whose key is lost could never sign anything.
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
    tracing::info!(%path, "a certificate authority was written: give this file to clients");
    Ok(certificate.into())
}

/// Writes a certificate for the listeners, with a key of its own.
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
    // A kill between the two leaves a pair that does not fit: the next start creates it again.
    write(&folder.key, key.serialize_pem().as_bytes(), KEY_MODE)?;
    write(&folder.certificate, issued.pem().as_bytes(), CERTIFICATE_MODE)
}

/// The authority's key, if it is the one of the authority's certificate.
fn signer(folder: &Folder) -> Result<KeyPair, Error> {
    let certificate = folder.authority.clone();
    let key = folder.authority_key.clone();
    match pair::read(&certificate, &key) {
        Ok(_fits) => authority_key(folder),
        Err(Error::Read { path, source })
            if path == key && source.kind() == io::ErrorKind::NotFound =>
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

/// A name that goes with the key: two boxes have two, and one box has the same forever, also when
/// its host name changes.
pub(super) fn authority_name(key: &KeyPair) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Orrery");
    name.push(DnType::CommonName, mark(key));
    name
}

fn mark(key: &KeyPair) -> String {
    let digest = Sha256::digest(key.public_key_raw());
    let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("Orrery authority {digest}")
}

/// Random, because a client may refuse two certificates of one authority with the same number.
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

/// The one form of a name that is written and compared: `None` for what is not a name.
fn canonical(name: &str) -> Option<String> {
    // A URL writes an IPv6 address in brackets, and hosts of URLs are names here.
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let plain = name.strip_prefix("*.").unwrap_or(&name);
    DnsName::try_from(plain).ok()?;
    Some(name)
}

/// What the kernel calls this machine.
pub(super) fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Makes the folder, or closes one that is there to others.
fn make(folder: &Path) -> Result<(), Error> {
    let make = || {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        if fs::metadata(folder)?.permissions().mode() & 0o777 != FOLDER_MODE {
            fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?;
        }
        folder.parent().map_or(Ok(()), sync)
    };
    make().map_err(|source| Error::Write { path: folder.to_path_buf(), source })
}

/// Writes a file durably: it is there whole or not at all.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let half = path.with_added_extension("half");
    let write = || {
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(KEY_MODE).open(&half)?;
        // Also for a half-written file that was there before, and whatever the umask is.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&half, path)?;
        path.parent().map_or(Ok(()), sync)
    };
    write().map_err(|source| Error::Write { path: path.to_path_buf(), source })
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}
