//! Creates the values that an interactive start shows: the first API key, and the setup link of the
//! dashboard.

use super::FIRST_KEY;
use orrery_api::{Role, Services};
use orrery_records::audit::Actor;

/// Values that are shown once, on a terminal. The key and the setup link are secret.
#[derive(Default)]
pub struct FirstStart {
    /// The API key, if the store had no organization yet.
    pub key: Option<String>,
    /// The dashboard setup link of the default organization; `None` if it has an Owner.
    pub setup_link: Option<String>,
    /// On a first start: the bytes reserved on the disk, and the free space below which the service
    /// refuses new work.
    pub disk: Option<(u64, u64)>,
}

impl std::fmt::Debug for FirstStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstStart").finish_non_exhaustive()
    }
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
