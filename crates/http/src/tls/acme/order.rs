//! One order: account, challenges, certificate.

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use super::authority_client::{AuthorityClient, Unreachable};
use super::cache::{Cache, StoredAccount};
use super::{Challenges, Options};

/// Time limit for the authority's validation of all names, and for issuing the certificate.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(2 * 60));
/// Maximum length of a reason that is shown and stored, in characters.
const REASON_MAX: usize = 1000;
/// The problem type for a request that must be sent again (RFC 8555, section 6.5). The ACME library
/// gives up after three such responses in a row.
const BAD_NONCE: &str = "urn:ietf:params:acme:error:badNonce";
/// The problem type for an account that is unknown to the authority (RFC 8555, section 6.7).
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// The reason why an order did not produce a certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{step}: {}", reason(.error))]
    Authority { step: &'static str, error: instant_acme::Error },
    #[error("the authority could not validate {0}")]
    Invalid(String),
    #[error("the authority offers no challenge TLS-ALPN-01 for {domain}")]
    NoChallenge { domain: String },
    #[error("the authority asks for a proof of {name}, which was not ordered")]
    Unasked { name: String },
    #[error("the order took longer than {limit:?}")]
    Timeout { limit: Duration },
    #[error("the issued certificate is not used: {reason}")]
    Unusable { reason: String },
    #[error(transparent)]
    Files(#[from] super::Error),
}

impl Error {
    /// Returns whether the authority gave no answer, or asked for the same request again. The delay
    /// before the next order is then shorter than after a refusal.
    pub(super) fn is_temporary(&self) -> bool {
        let Self::Authority { error, .. } = self else { return false };
        if let instant_acme::Error::Api(problem) = error {
            return problem.r#type.as_deref() == Some(BAD_NONCE);
        }
        matches!(error, instant_acme::Error::Other(error) if error.is::<Unreachable>())
    }

    fn is_unknown_account(&self) -> bool {
        let Self::Authority { error: instant_acme::Error::Api(problem), .. } = self else {
            return false;
        };
        problem.r#type.as_deref() == Some(NO_ACCOUNT)
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self::Files(error.into())
    }
}

/// Orders a certificate, and returns it with its private key as PEM. Adds the answers to challenges
/// to `challenges`, which the caller clears.
pub(super) async fn certificate(
    options: &Options,
    cache: &Cache,
    challenges: &Challenges,
    client: &AuthorityClient,
) -> Result<String, Error> {
    let account = account(options, cache, client).await?;
    let mut order = match new_order(&account, &options.domains).await {
        Err(error) if error.is_unknown_account() => {
            tracing::warn!("the authority does not know the account: creating a new account");
            cache.remove_account();
            let account = self::account(options, cache, client).await?;
            new_order(&account, &options.domains).await?
        }
        other => other?,
    };
    answer(&mut order, options, challenges).await?;
    validated(&mut order).await?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(options.domains.clone())?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    order.finalize_csr(request.der()).await.map_err(of("the certificate request"))?;
    let chain = order.poll_certificate(&POLLS).await.map_err(of("the certificate"))?;
    Ok(format!("{}{chain}", key.serialize_pem()))
}

/// Returns the stored account, with its contacts set to the configured contacts, or a new account.
async fn account(
    options: &Options,
    cache: &Cache,
    client: &AuthorityClient,
) -> Result<Account, Error> {
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let contact: Vec<String> =
        options.contact.iter().map(|address| format!("mailto:{address}")).collect();
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let stored = cache.account().and_then(|stored| Some((stored.credentials()?, stored)));
    let Some((credentials, mut stored)) = stored else {
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let created = builder.create(&new, options.directory.clone(), None).await;
        let (account, credentials) = created.map_err(of("the account"))?;
        if let Some(stored) = StoredAccount::new(&options.contact, &credentials) {
            cache.write_account(&stored)?;
        }
        return Ok(account);
    };
    let account = builder.from_credentials(credentials).await.map_err(of("the directory"))?;
    if stored.contact != options.contact {
        account.update_contacts(&contact).await.map_err(of("the account's contact"))?;
        stored.contact.clone_from(&options.contact);
        cache.write_account(&stored)?;
    }
    Ok(account)
}

async fn new_order(account: &Account, domains: &[String]) -> Result<Order, Error> {
    let names: Vec<Identifier> = domains.iter().cloned().map(Identifier::Dns).collect();
    account.new_order(&NewOrder::new(&names)).await.map_err(of("the order"))
}

/// Prepares the answer to each challenge, then asks the authority to start the challenge.
async fn answer(
    order: &mut Order,
    options: &Options,
    challenges: &Challenges,
) -> Result<(), Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(of("the authorization"))?;
        let domain = authorization.identifier().to_string();
        if !options.domains.contains(&domain) {
            return Err(Error::Unasked { name: domain });
        }
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let Some(mut challenge) = authorization.challenge(ChallengeType::TlsAlpn01) else {
            return Err(Error::NoChallenge { domain });
        };
        challenges.insert(&domain, challenge.key_authorization().digest().as_ref())?;
        challenge.set_ready().await.map_err(of("the challenge"))?;
    }
    Ok(())
}

/// Waits until the authority has validated all names.
async fn validated(order: &mut Order) -> Result<(), Error> {
    let status = order.poll_ready(&POLLS).await;
    match &status {
        Ok(OrderStatus::Ready) => return Ok(()),
        Ok(_) | Err(instant_acme::Error::Api(_)) => {}
        Err(_) => {
            return status.map(drop).map_err(of("the validation"));
        }
    }
    // The order contains at most a summary; the reasons are in the challenges.
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let Ok(mut authorization) = authorization else { break };
        let Ok(state) = authorization.refresh().await else { break };
        let problems = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        let domain = state.identifier().to_string();
        reasons.extend(problems.map(|problem| format!("{domain}: {}", words(problem))));
    }
    if reasons.is_empty() {
        status.map_err(of("the validation"))?;
        reasons.push("the names, and gave no reason".to_owned());
    }
    Err(Error::Invalid(reasons.join("; ")))
}

fn of(step: &'static str) -> impl Fn(instant_acme::Error) -> Error {
    move |error| Error::Authority { step, error }
}

fn reason(error: &instant_acme::Error) -> String {
    if let instant_acme::Error::Api(problem) = error {
        return words(problem);
    }
    if let instant_acme::Error::Json(error) = error {
        return format!("the authority's answer is invalid: {error}");
    }
    error.to_string()
}

/// Returns the authority's explanation.
fn words(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    let kind = kind.rsplit(':').next().unwrap_or_default();
    let detail = problem.detail.as_deref().unwrap_or("no explanation");
    let mut text = format!("{detail} ({kind})");
    for sub in &problem.subproblems {
        text.push_str(&format!("; {sub}"));
    }
    text
}

/// Returns text from the authority without control characters, truncated to `REASON_MAX`.
pub(super) fn printable(text: &str) -> String {
    let plain = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    plain.take(REASON_MAX).collect()
}
