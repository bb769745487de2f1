//! Encryption of backups in the age format (age-encryption.org/v1), for public keys (recipients) or
//! with a passphrase. Any age tool can decrypt such a file without this program.
//!
//! Everything is streamed with 64 KiB in memory. Deriving the key from a passphrase takes 64 MiB
//! for a short time, which makes guessing passphrases expensive.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Cursor, Read, Write};
use std::path::Path;

use age::secrecy::SecretString;
use age::stream::{StreamReader, StreamWriter};
use age::{DecryptError, Decryptor, Encryptor, scrypt, x25519};
use sha2::{Digest as _, Sha256};

use super::{Error, Summary, read};
use orrery_config::secret::{self, Secret};
use orrery_runtime::regular_file;

/// The prefix of an age file.
const MAGIC: &[u8] = b"age-encryption.org/";
/// scrypt's cost as a power of two: 2^16 blocks of 1 KiB each.
const WORK_FACTOR: u8 = if cfg!(test) { 4 } else { 16 };
/// Maximum scrypt cost accepted when a backup is decrypted: 1 GiB.
const WORK_FACTOR_MAX: u8 = 20;
/// Maximum size of an identity file, in bytes.
const IDENTITIES_MAX: u64 = 1024 * 1024;
/// The prefix of an identity.
const IDENTITY: &str = "AGE-SECRET-KEY-1";

/// The encryption of backups.
#[derive(Clone)]
pub enum Encryption {
    /// Backups are not encrypted.
    Off,
    /// Backups are encrypted for the holders of these keys. The service that writes such a backup
    /// cannot read it back.
    Recipients(Vec<x25519::Recipient>),
    Passphrase(Secret),
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("Off"),
            Self::Recipients(recipients) => write!(f, "Recipients({})", recipients.len()),
            Self::Passphrase(_) => f.write_str("Passphrase"),
        }
    }
}

impl Encryption {
    /// Creates the encryption from the configuration: for the recipients if any are configured,
    /// otherwise with the passphrase if one is configured, otherwise off.
    ///
    /// # Errors
    /// [`Error::Refused`] for an invalid recipient.
    pub fn new(recipients: &[String], passphrase: Option<&Secret>) -> Result<Self, Error> {
        if let (true, Some(passphrase)) = (recipients.is_empty(), passphrase) {
            return Ok(Self::Passphrase(passphrase.clone()));
        }
        let parse = |text: &String| {
            text.parse().map_err(|reason: &str| {
                Error::Refused(format!("{text} is not an age recipient: {reason}"))
            })
        };
        let recipients = recipients.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(if recipients.is_empty() { Self::Off } else { Self::Recipients(recipients) })
    }

    /// Returns whether backups are unencrypted.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }

    /// Returns whether the writer of a backup can read it.
    #[must_use]
    pub const fn can_read_back(&self) -> bool {
        !matches!(self, Self::Recipients(_))
    }

    /// Returns a writer that encrypts to `out`.
    ///
    /// # Errors
    /// If the header cannot be written to `out`.
    pub fn writer<W: Write>(&self, out: W) -> io::Result<Encrypting<W>> {
        let out = Digesting { out, hash: Sha256::new() };
        let encryptor = match self {
            Self::Off => return Ok(Encrypting(Inner::Plain(out))),
            Self::Recipients(recipients) => Encryptor::with_recipients(
                recipients.iter().map(|recipient| recipient as &dyn age::Recipient),
            ),
            Self::Passphrase(passphrase) => {
                let mut recipient = scrypt::Recipient::new(secret_string(passphrase));
                recipient.set_work_factor(WORK_FACTOR);
                Encryptor::with_recipients(std::iter::once(&recipient as &dyn age::Recipient))
            }
        };
        let encryptor = encryptor.map_err(io::Error::other)?;
        Ok(Encrypting(Inner::Age(encryptor.wrap_output(out)?)))
    }

    /// Returns the keys that decrypt the backups written with this encryption, if they are
    /// available.
    pub(super) fn own_keys(&self) -> Option<Keys> {
        match self {
            Self::Off => Some(Keys::none()),
            Self::Passphrase(passphrase) => {
                Some(Keys::of_passphrase(passphrase, "backup.passphrase_file"))
            }
            Self::Recipients(_) => None,
        }
    }

    /// Verifies a backup that was just written, by reading it from the disk. If the keys are
    /// available, the contents of the backup are checked; otherwise, the bytes of the file are
    /// compared with `digest`. `written` is the expected summary, if known.
    ///
    /// # Errors
    /// [`Error`] if the file differs from the written data.
    pub fn read_back(
        &self,
        file: File,
        written: Option<Summary>,
        digest: [u8; 32],
        progress: &mut dyn FnMut(u64),
    ) -> Result<Summary, Error> {
        let Some(keys) = self.own_keys() else {
            return match written {
                Some(written) if has_digest(file, digest)? => Ok(written),
                Some(_) | None => Err(not_written()),
            };
        };
        let file = io::BufReader::new(file);
        read::verify(open(file, &keys)?, progress)
    }
}

/// Returns whether a file contains exactly the bytes that were written to it, according to their
/// digest.
pub(super) fn has_digest(mut file: File, digest: [u8; 32]) -> io::Result<bool> {
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash)?;
    Ok(hash.finalize()[..] == digest[..])
}

/// Returns the error for a file that failed its verification.
pub(super) fn not_written() -> Error {
    Error::Damaged("the file on disk differs from what was written to it".to_owned())
}

fn secret_string(secret: &Secret) -> SecretString {
    SecretString::from(secret.expose().to_owned())
}

/// A writer that encrypts its input and hashes its output.
pub struct Encrypting<W: Write>(Inner<W>);

enum Inner<W: Write> {
    Plain(Digesting<W>),
    Age(StreamWriter<Digesting<W>>),
}

impl<W: Write> fmt::Debug for Encrypting<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encrypting")
    }
}

impl<W: Write> Encrypting<W> {
    /// Finishes the file. Returns the underlying writer, and the SHA-256 of all bytes written to
    /// it.
    ///
    /// # Errors
    /// If the underlying writer fails.
    pub fn finish(self) -> io::Result<(W, [u8; 32])> {
        let Digesting { out, hash } = match self.0 {
            Inner::Plain(out) => out,
            Inner::Age(stream) => stream.finish()?,
        };
        Ok((out, hash.finalize().into()))
    }
}

impl<W: Write> Write for Encrypting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Plain(out) => out.write(bytes),
            Inner::Age(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::Plain(out) => out.flush(),
            Inner::Age(stream) => stream.flush(),
        }
    }
}

struct Digesting<W> {
    out: W,
    hash: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Keys for encrypted backups.
pub struct Keys {
    identities: Vec<Box<dyn age::Identity + Send>>,
    is_passphrase: bool,
    /// The source of the keys, for error messages.
    source: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({} of {})", self.identities.len(), self.source)
    }
}

impl Keys {
    /// Returns an empty set of keys, which can read only unencrypted backups.
    #[must_use]
    pub const fn none() -> Self {
        Self { identities: Vec::new(), is_passphrase: false, source: String::new() }
    }

    /// Returns the key for a passphrase from `source`.
    #[must_use]
    pub fn of_passphrase(passphrase: &Secret, source: &str) -> Self {
        let mut identity = scrypt::Identity::new(secret_string(passphrase));
        identity.set_max_work_factor(WORK_FACTOR_MAX);
        let identities: Vec<Box<dyn age::Identity + Send>> = vec![Box::new(identity)];
        Self { identities, is_passphrase: true, source: source.to_owned() }
    }

    /// Reads a passphrase from a one-line file that other users cannot read.
    ///
    /// # Errors
    /// [`Error::Refused`], with a message that does not contain the passphrase.
    pub fn in_passphrase_file(path: &Path) -> Result<Self, Error> {
        let passphrase = secret::from_file(path).map_err(Error::Refused)?;
        Ok(Self::of_passphrase(&passphrase, &path.display().to_string()))
    }

    /// Reads identities from a file in the format of `age-keygen`: one identity per line, with
    /// comments after `#`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the file has no identity; the message contains no key.
    pub fn in_identity_file(path: &Path) -> Result<Self, Error> {
        let source = path.display().to_string();
        let unreadable =
            |error: io::Error| Error::Refused(format!("{source} cannot be read: {error}"));
        let mut text = String::new();
        regular_file::open(path)
            .and_then(|file| file.take(IDENTITIES_MAX).read_to_string(&mut text))
            .map_err(unreadable)?;
        let lines = (1..).zip(text.lines().map(str::trim));
        let mut identities: Vec<Box<dyn age::Identity + Send>> = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let identity: x25519::Identity = line.parse().map_err(|_reason| {
                Error::Refused(format!(
                    "{source}, line {number}: this is not an age identity; expected {IDENTITY}…"
                ))
            })?;
            identities.push(Box::new(identity));
        }
        if identities.is_empty() {
            return Err(Error::Refused(format!("{source} contains no age identity ({IDENTITY}…)")));
        }
        Ok(Self { identities, is_passphrase: false, source })
    }
}

/// Returns a reader for the decrypted bytes of a backup, which may also be unencrypted.
///
/// # Errors
/// [`Error::Refused`] if the keys do not decrypt the backup; [`Error::Damaged`] if the backup's
/// header is damaged.
pub fn open<'r>(mut from: impl BufRead + 'r, keys: &Keys) -> Result<Box<dyn Read + 'r>, Error> {
    let mut head = Vec::new();
    from.by_ref().take(MAGIC.len() as u64).read_to_end(&mut head)?;
    let is_encrypted = head == MAGIC;
    let whole = Cursor::new(head).chain(from);
    if !is_encrypted {
        return Ok(Box::new(whole));
    }
    let damaged = |error: DecryptError| {
        Error::Damaged(format!(
            "the backup is incomplete or damaged: its encryption header is cut off or was \
             changed ({error})"
        ))
    };
    let decryptor = Decryptor::new_buffered(whole).map_err(damaged)?;
    let is_scrypt = decryptor.is_scrypt();
    let wanted = if is_scrypt { "--passphrase-file FILE" } else { "--identity FILE" };
    if keys.identities.is_empty() {
        let message = format!("this backup is encrypted: decrypt it with {wanted}");
        return Err(Error::Refused(message));
    }
    if keys.is_passphrase != is_scrypt {
        let how = if is_scrypt { "with a passphrase" } else { "for public keys" };
        let message = format!("this backup is encrypted {how}: decrypt it with {wanted}");
        return Err(Error::Refused(message));
    }
    let identities = keys.identities.iter().map(|identity| identity.as_ref() as &dyn age::Identity);
    match decryptor.decrypt(identities) {
        Ok(stream) => Ok(Box::new(Decrypting(stream))),
        Err(
            DecryptError::NoMatchingKeys
            | DecryptError::DecryptionFailed
            | DecryptError::KeyDecryptionFailed,
        ) => Err(Error::Refused(format!(
            "{} does not decrypt this backup: it was encrypted for another key, or its header was \
             changed",
            keys.source
        ))),
        Err(error) => Err(damaged(error)),
    }
}

/// Returns whether a backup is encrypted, judging by its first bytes.
///
/// # Errors
/// If the file cannot be read.
pub fn is_encrypted(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    regular_file::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut head)?;
    Ok(head == MAGIC)
}

/// A reader for the decrypted bytes, with readable error messages.
struct Decrypting<R>(StreamReader<R>);

impl<R: Read> Read for Decrypting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| {
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) {
                let message = "part of it cannot be decrypted: it is cut off or was changed";
                return io::Error::new(error.kind(), message);
            }
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{backed_up, restored_with, world};

    fn keys_of(identity: &x25519::Identity) -> Keys {
        let identities: Vec<Box<dyn age::Identity + Send>> = vec![Box::new(identity.clone())];
        Keys { identities, is_passphrase: false, source: "key.txt".to_owned() }
    }

    fn encrypted(encryption: &Encryption, plain: &[u8]) -> (Vec<u8>, [u8; 32]) {
        let mut writer = encryption.writer(Vec::new()).unwrap();
        writer.write_all(plain).unwrap();
        writer.finish().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn backup_encrypted_opens_only_with_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let plain = backed_up(&world(&folder).await).await;
        let own = x25519::Identity::generate();
        let second = x25519::Identity::generate();
        let other = x25519::Identity::generate();
        let names = [own.to_public().to_string(), second.to_public().to_string()];
        let recipients = Encryption::new(&names, None).unwrap();
        let secret = Secret::from("correct horse".to_owned());
        let passphrase = Encryption::new(&[], Some(&secret)).unwrap();
        let right = || Keys::of_passphrase(&secret, "pass.txt");
        let wrong = || Keys::of_passphrase(&Secret::from("wrong".to_owned()), "pass.txt");
        let (file, _) = encrypted(&recipients, &plain);
        let (locked, _) = encrypted(&passphrase, &plain);

        let into = folder.path().join("elsewhere");
        for (bytes, keys, sentence) in [
            (&file, Keys::none(), "is encrypted: decrypt it with --identity FILE"),
            (&file, right(), "is encrypted for public keys"),
            (&file, keys_of(&other), "key.txt does not decrypt this backup"),
            (&locked, Keys::none(), "decrypt it with --passphrase-file FILE"),
            (&locked, keys_of(&own), "is encrypted with a passphrase"),
            (&locked, wrong(), "pass.txt does not decrypt this backup"),
        ] {
            let error = restored_with(bytes, &into, keys).await.unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
            assert!(!into.exists(), "{sentence}");
        }
        for length in (0..file.len()).step_by(file.len() / 9).skip(1) {
            let error = restored_with(&file[..length], &into, keys_of(&own)).await.unwrap_err();
            assert!(error.to_string().contains("cut off"), "{length}: {error}");
            assert!(!into.exists(), "{length}");
        }
        for at in (MAGIC.len()..file.len()).step_by(file.len() / 25) {
            let mut changed = file.clone();
            changed[at] ^= 1;
            let error = restored_with(&changed, &into, keys_of(&own)).await.unwrap_err();
            assert!(error.to_string().contains("changed"), "{at}: {error}");
            assert!(!into.exists(), "{at}");
        }
        for (number, bytes, keys) in
            [(0, &file, keys_of(&own)), (1, &file, keys_of(&second)), (2, &locked, right())]
        {
            let into = folder.path().join(number.to_string());
            let summary = restored_with(bytes, &into, keys).await.unwrap();
            assert_eq!(summary.sha256, read::verify(&plain[..], &mut |_| {}).unwrap().sha256);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn backup_read_back_detects_damage_without_identity() {
        let folder = tempfile::tempdir().unwrap();
        let plain = backed_up(&world(&folder).await).await;
        let summary = read::verify(&plain[..], &mut |_| {}).unwrap();
        let names = [x25519::Identity::generate().to_public().to_string()];
        let secret = Secret::from("correct horse".to_owned());
        let path = folder.path().join("file");
        for encryption in [
            Encryption::Off,
            Encryption::new(&names, None).unwrap(),
            Encryption::new(&[], Some(&secret)).unwrap(),
        ] {
            let (mut bytes, digest) = encrypted(&encryption, &plain);
            for is_good in [true, false] {
                std::fs::write(&path, &bytes).unwrap();
                let file = File::open(&path).unwrap();
                let read = encryption.read_back(file, Some(summary.clone()), digest, &mut |_| {});
                assert_eq!(read.is_ok(), is_good, "{encryption:?}: {read:?}");
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
        }
    }

    #[test]
    fn identity_file_errors_name_line_without_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.txt");
        let identity = x25519::Identity::generate();
        let text = age::secrecy::ExposeSecret::expose_secret(&identity.to_string()).to_owned();
        std::fs::write(&path, format!("# created: today\n\n{text}\n")).unwrap();
        assert_eq!(Keys::in_identity_file(&path).unwrap().identities.len(), 1);
        for (bad, sentence) in [
            ("# nothing\n".to_owned(), "contains no age identity"),
            (format!("# one\n{}\n", &text[..40]), "line 2: this is not an age identity"),
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = Keys::in_identity_file(&path).unwrap_err().to_string();
            assert!(error.contains(sentence) && !error.contains(&text[..40]), "{error}");
        }
        let error = Encryption::new(&["age1nonsense".to_owned()], None).unwrap_err().to_string();
        assert!(error.contains("age1nonsense is not an age recipient"), "{error}");
    }
}
