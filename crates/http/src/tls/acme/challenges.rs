//! The certificates that answer challenges while an order is in progress.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto;
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;

use super::{CHALLENGE_PROTOCOL, Error};

/// The certificates by DNS name; clones share the same state.
#[derive(Clone, Default)]
pub(in crate::tls) struct Challenges(Arc<Mutex<BTreeMap<String, Arc<CertifiedKey>>>>);

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lock().keys()).finish()
    }
}

impl Challenges {
    /// Adds the certificate that answers challenges for `domain`, with the digest of a key
    /// authorization.
    pub(super) fn insert(&self, domain: &str, digest: &[u8]) -> Result<(), Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![domain.to_owned()])?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let certificate = params.self_signed(&key)?;
        let secret = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|reason| Error::Setup(rustls::Error::General(reason.to_owned())))?;
        let signer = crypto::ring::default_provider()
            .key_provider
            .load_private_key(secret)
            .map_err(Error::Setup)?;
        let certified = CertifiedKey::new(vec![certificate.der().clone()], signer);
        self.lock().insert(domain.to_owned(), Arc::new(certified));
        Ok(())
    }

    /// Returns the certificate for a challenge; `None` if no order for the name is in progress.
    pub(in crate::tls) fn answer(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        self.lock().get(&name).cloned()
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<CertifiedKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the connection is a challenge: the client offers only the challenge protocol.
pub(in crate::tls) fn is_challenge(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|mut offered| {
        offered.next() == Some(CHALLENGE_PROTOCOL) && offered.next().is_none()
    })
}
