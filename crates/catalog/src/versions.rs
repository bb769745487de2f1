//! The model versions of Replicate's API: each model has one version, whose ID is unique among all
//! models.

use std::sync::Arc;

use super::{Catalog, Model};
use orrery_domain::replicate::{LOCAL_OWNER, version_of};

impl Model {
    /// Returns the ID of the model's version.
    #[must_use]
    pub fn version_id(&self) -> &str {
        self.version_id.get_or_init(|| version_of(self.slug.as_str()))
    }
}

impl Catalog {
    /// Returns the model whose version has this ID.
    #[must_use]
    pub fn of_version(&self, id: &str) -> Option<Arc<Model>> {
        self.shared.models.load().values().find(|model| model.version_id() == id).cloned()
    }

    /// Returns the model with this owner and name. The owner of a slug without `/` is
    /// [`LOCAL_OWNER`].
    #[must_use]
    pub fn of_owner(&self, owner: &str, name: &str) -> Option<Arc<Model>> {
        let local = || self.get(name).filter(|_| owner == LOCAL_OWNER && !name.contains('/'));
        self.get(&format!("{owner}/{name}")).or_else(local)
    }
}
