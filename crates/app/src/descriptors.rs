//! Raises the limit on file descriptors and reserves a share of them.
//!
//! Client connections may use half of all descriptors. The other half is reserved for the store,
//! payloads, files, worker programs and outgoing connections, so that a flood of clients cannot
//! prevent the service from writing accepted work to disk.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Divisor of the reserved share of all descriptors.
const RESERVE_SHARE: u64 = 2;
/// The limit that is assumed if the system sets no limit.
const UNLIMITED: u64 = 1_048_576;

/// Raises the soft limit of this process to the hard limit, and returns the resulting limit.
pub(crate) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current.unwrap_or(UNLIMITED);
    }
    // The kernel does not accept "unlimited" as the number of descriptors.
    let wanted = maximum.unwrap_or(UNLIMITED);
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of file descriptors");
            current.unwrap_or(UNLIMITED)
        }
    }
}

/// Returns the maximum number of client connections: the configured number, or a smaller number if
/// the reserve requires it.
pub(crate) fn connections(configured: usize, descriptors: u64) -> usize {
    let kept = descriptors / RESERVE_SHARE;
    let most = usize::try_from(descriptors.saturating_sub(kept)).unwrap_or(usize::MAX).max(1);
    if configured > most {
        tracing::warn!(
            configured,
            most,
            descriptors,
            "limits.connections lowered, because the other file descriptors are reserved for files"
        );
    }
    configured.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_soft_limit_is_raised_to_hard_limit() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let descriptors = raise();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(descriptors));
        assert!(hard.is_none_or(|hard| hard == descriptors));
    }

    #[test]
    fn descriptor_budget_reserves_half_for_files() {
        for (configured, descriptors, granted) in
            [(10_000, 524_288, 10_000), (10_000, 1024, 512), (100, 1024, 100), (10, 0, 1)]
        {
            assert_eq!(connections(configured, descriptors), granted, "{configured} {descriptors}");
        }
    }
}
