//! The organizations' limits, cached in memory for enforcement.
//!
//! This module stores nothing durably and enforces nothing. `accounts` loads the limits at startup,
//! and replaces an entry once its commit is durable.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use orrery_domain::account::Limits;
use orrery_domain::ids::OrganizationId;
use orrery_domain::money::Usd;

/// A callback that receives an organization's new limits.
pub type OnChange = Box<dyn Fn(OrganizationId, Limits) + Send + Sync>;

#[derive(Default)]
struct Shared {
    /// The limits of the organizations that have limits.
    limits: RwLock<HashMap<OrganizationId, Limits>>,
    on_change: OnceLock<OnChange>,
}

/// The limits of all organizations; clones share the same state.
#[derive(Clone, Default)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Returns the limits of an organization.
    #[must_use]
    pub fn of(&self, organization: OrganizationId) -> Limits {
        let limits = self.shared.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.get(&organization).copied().unwrap_or_default()
    }

    /// Returns the monthly budgets of all organizations that have one.
    #[must_use]
    pub fn budgets(&self) -> Vec<(OrganizationId, Usd)> {
        let limits = self.shared.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.iter().filter_map(|(id, limits)| Some((*id, limits.monthly_budget?))).collect()
    }

    /// Replaces the limits of an organization.
    pub fn set(&self, organization: OrganizationId, limits: Limits) {
        let mut all = self.shared.limits.write().unwrap_or_else(PoisonError::into_inner);
        if limits.are_none() {
            all.remove(&organization);
        } else {
            all.insert(organization, limits);
        }
        drop(all);
        if let Some(on_change) = self.shared.on_change.get() {
            on_change(organization, limits);
        }
    }

    /// Registers `on_change` for all later changes. Only the first call has an effect.
    pub fn on_change(&self, on_change: OnChange) {
        let _first_only = self.shared.on_change.set(on_change);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn only_organizations_with_limits_are_stored() {
        let limits = Handle::default();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&changes);
        limits.on_change(Box::new(move |organization, limits| {
            seen.lock().unwrap().push((organization, limits.running));
        }));
        let one: OrganizationId = [1; 16].into();
        let few = Limits { running: Some(2), ..Limits::default() };
        limits.set(one, few);
        assert_eq!((limits.of(one), limits.of([2; 16].into())), (few, Limits::default()));
        limits.set(one, Limits::default());
        assert!(limits.shared.limits.read().unwrap().is_empty());
        assert_eq!(*changes.lock().unwrap(), [(one, Some(2)), (one, None)]);
    }
}
