//! What a start that a person watches makes: the first key, and the link that sets up the dashboard.

use super::FIRST_KEY;
use crate::api::{Role, Services};
use crate::audit::Actor;

/// What is shown once, on a terminal. All of it is secret.
#[derive(Default)]
pub struct FirstStart {
    /// The key of a store that had no organization yet.
    pub key: Option<String>,
    /// Where the Owner of the default organization sets up the dashboard; `None` where there is one.
    pub setup_link: Option<String>,
    /// What a first start has set aside on the disk, and the free space below which new work is refused, in
    /// bytes.
    pub disk: Option<(u64, u64)>,
}

impl std::fmt::Debug for FirstStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstStart").finish_non_exhaustive()
    }
}

/// Makes the organization `default` and, where a person watches, what that person needs first.
///
/// # Errors
/// When the store cannot be read or written.
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
