//! Creates the values that an interactive start prints: the first API key, and the setup link for
//! the dashboard.

use super::FIRST_KEY;
use orrery_api::{Role, Services};
use orrery_config::Config;
use orrery_records::accounts::BootstrapKey;
use orrery_records::audit::Actor;

/// Values that are printed once, on a terminal. The key and the setup link are secret.
#[derive(Default)]
pub struct FirstStart {
    /// The API key, if the store had no organization yet.
    pub key: Option<String>,
    /// The dashboard setup link for the default organization; `None` if the organization already
    /// has an Owner.
    pub setup_link: Option<String>,
    /// On a first start: the number of bytes reserved on the disk, and the free space below which
    /// the service refuses new work.
    pub disk: Option<(u64, u64)>,
}

impl std::fmt::Debug for FirstStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstStart").finish_non_exhaustive()
    }
}

/// Returns the bootstrap key that the operator has chosen, if any.
///
/// # Errors
/// Returns an error if the key is too short or not random.
pub(super) fn bootstrap_key(config: &Config) -> anyhow::Result<Option<BootstrapKey>> {
    let Some(key) = &config.bootstrap_key else { return Ok(None) };
    BootstrapKey::new(key.expose().to_owned()).map(Some).map_err(anyhow::Error::msg)
}

/// Creates the bootstrap key in the organization `default`, unless this store has ever had a
/// bootstrap key.
///
/// # Errors
/// Returns an error if the store cannot be read or written.
pub(super) async fn bootstrap(services: &Services, key: &BootstrapKey) -> anyhow::Result<()> {
    let (organization, _made) = services.accounts.ensure_default().await?;
    match services.accounts.bootstrap(organization.id, key).await? {
        Some(made) => tracing::info!(key = made.prefix, "bootstrap key created"),
        None => tracing::info!("the store has had a bootstrap key before: no key is created"),
    }
    Ok(())
}

/// Creates the organization `default`, and in an interactive start also the first API key and the
/// setup link.
///
/// # Errors
/// Returns an error if the store cannot be read or written.
pub(super) async fn prepare(services: &Services, is_watched: bool) -> anyhow::Result<FirstStart> {
    let is_first = services.accounts.organizations().await?.is_empty();
    let (organization, _made) = services.accounts.ensure_default().await?;
    if !is_watched {
        return Ok(FirstStart::default());
    }
    let mut first = FirstStart::default();
    if is_first {
        let made = services.accounts.create_key(organization.id, FIRST_KEY, "first start", None);
        first.key = Some(made.await?.1);
        let disk = services.store.disk_space();
        first.disk = Some((disk.ballast_bytes(), disk.reserve()));
    }
    if services.members.owner(organization.id).await?.is_none() {
        let members = services.members.by(Actor::service_on("start on a terminal"));
        let issued = members.owner_link(organization.id).await?;
        first.setup_link = Some(issued.url(services.url_of(Role::Dashboard)));
    }
    Ok(first)
}
