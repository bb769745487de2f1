//! Budgets: shared limits on bytes, requests or connections, so that a flood of requests cannot
//! take more memory than configured.
//!
//! A [`Lease`] holds part of a budget and releases that part when dropped. Under [`Share::Fair`] a
//! peer may hold at most as much as is still free: a single peer gets at most half of the budget,
//! two peers get a third each, and some of the budget is always free for another peer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::request::Peer;

/// Bits of an IPv6 address that identify a network; one host commonly owns all addresses in this
/// network.
const IPV6_NETWORK_BITS: u32 = 64;

/// How much of a budget one peer may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Up to the amount that is still free.
    Fair,
    /// Up to this amount.
    AtMost(usize),
}

/// The holder of a lease: an IPv4 address or a 64-bit IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Holder(IpAddr);

impl Holder {
    fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let host_bits = u128::BITS - IPV6_NETWORK_BITS;
                IpAddr::V6((address.to_bits() >> host_bits << host_bits).into())
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// A limit shared by all peers.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    share: Share,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    total: usize,
    by_holder: HashMap<Holder, usize>,
}

/// The budget has no room for a request, or the peer already holds its full share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the budget is used up")]
pub struct Full;

impl Budget {
    /// Creates an unused budget with this limit.
    #[must_use]
    pub fn new(limit: usize, share: Share) -> Arc<Self> {
        Arc::new(Self { limit, share, used: Mutex::default() })
    }

    /// Creates an empty lease for `peer`. Requests over the control socket or from this process are
    /// not counted; growing their leases always succeeds.
    #[must_use]
    pub fn lease(self: &Arc<Self>, peer: &Peer) -> Lease {
        Lease { budget: Arc::clone(self), holder: peer.ip().map(Holder::of), amount: 0 }
    }

    /// Returns the total held by all peers.
    #[must_use]
    pub fn used(&self) -> usize {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Part of a budget, released when the lease is dropped.
#[derive(Debug)]
pub struct Lease {
    budget: Arc<Budget>,
    /// `None` if the holder is not counted.
    holder: Option<Holder>,
    amount: usize,
}

impl Lease {
    /// Takes `more` from the budget.
    ///
    /// # Errors
    /// [`Full`] if there is no room or the peer's share does not allow it; the lease does not
    /// change.
    pub fn grow(&mut self, more: usize) -> Result<(), Full> {
        let Some(holder) = self.holder else { return Ok(()) };
        let Budget { limit, share, .. } = *self.budget;
        let mut used = self.budget.lock();
        let total = used.total.saturating_add(more);
        let held = used.by_holder.get(&holder).copied().unwrap_or_default().saturating_add(more);
        let most = match share {
            Share::Fair => limit.saturating_sub(total),
            Share::AtMost(most) => most,
        };
        if more > 0 && (total > limit || held > most) {
            return Err(Full);
        }
        used.take(holder, more);
        drop(used);
        self.amount = self.amount.saturating_add(more);
        Ok(())
    }

    /// Grows the lease to `amount`.
    ///
    /// # Errors
    /// As [`Lease::grow`].
    pub fn grow_to(&mut self, amount: usize) -> Result<(), Full> {
        self.grow(amount.saturating_sub(self.amount))
    }

    /// Grows the lease to `amount` even if the budget is exhausted: for bytes that are already in
    /// memory. Other peers are refused until the lease is released.
    pub fn force_to(&mut self, amount: usize) {
        let more = amount.saturating_sub(self.amount);
        if let Some(holder) = self.holder.filter(|_| more > 0) {
            self.budget.lock().take(holder, more);
            self.amount = self.amount.saturating_add(more);
        }
    }

    /// Moves everything that this lease holds into a new lease.
    #[must_use]
    pub fn split(&mut self) -> Self {
        let amount = std::mem::take(&mut self.amount);
        Self { budget: Arc::clone(&self.budget), holder: self.holder, amount }
    }

    /// Creates an empty lease for the same holder.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self { budget: Arc::clone(&self.budget), holder: self.holder, amount: 0 }
    }

    /// Returns the same bytes, which keep the lease until the last clone of the bytes is dropped.
    #[must_use]
    pub fn bind(self, bytes: Bytes) -> Bytes {
        if self.amount == 0 { bytes } else { Bytes::from_owner(Leased { bytes, _lease: self }) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(holder) = self.holder.filter(|_| self.amount > 0) {
            self.budget.lock().release(holder, self.amount);
        }
    }
}

impl Used {
    fn take(&mut self, holder: Holder, amount: usize) {
        if amount > 0 {
            self.total = self.total.saturating_add(amount);
            let held = self.by_holder.entry(holder).or_default();
            *held = held.saturating_add(amount);
        }
    }

    fn release(&mut self, holder: Holder, amount: usize) {
        self.total = self.total.saturating_sub(amount);
        let Some(held) = self.by_holder.get_mut(&holder) else { return };
        *held = held.saturating_sub(amount);
        if *held == 0 {
            self.by_holder.remove(&holder);
        }
    }
}

/// Bytes together with the lease that covers them.
struct Leased {
    bytes: Bytes,
    _lease: Lease,
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::Tcp(SocketAddr::new(address.parse().unwrap(), 1))
    }

    #[test]
    fn budget_reserves_a_share_for_next_peer() {
        let budget = Budget::new(120, Share::Fair);
        let mut first = budget.lease(&peer("10.0.0.1"));
        assert_eq!(first.grow(61), Err(Full));
        assert_eq!(first.grow(60), Ok(()));
        let mut again = budget.lease(&peer("10.0.0.1"));
        assert_eq!(again.grow(1), Err(Full), "one peer is one peer over all of its connections");
        let mut second = budget.lease(&peer("10.0.0.2"));
        assert_eq!(second.grow(31), Err(Full));
        assert_eq!(second.grow(30), Ok(()));
        assert_eq!(budget.used(), 90);
        drop(first);
        assert_eq!(again.grow(45), Ok(()));
        drop((again, second));
        assert_eq!((budget.used(), budget.lock().by_holder.len()), (0, 0));
    }

    #[test]
    fn budget_counts_ipv6_network_as_one_peer() {
        let budget = Budget::new(100, Share::AtMost(1));
        let mut first = budget.lease(&peer("2001:db8::1"));
        assert_eq!(first.grow(1), Ok(()));
        assert_eq!(budget.lease(&peer("2001:db8::ffff:1")).grow(1), Err(Full));
        assert_eq!(budget.lease(&peer("2001:db8:0:1::1")).grow(1), Ok(()));
        let mut mapped = budget.lease(&peer("::ffff:10.0.0.1"));
        assert_eq!(mapped.grow(1), Ok(()));
        assert_eq!(budget.lease(&peer("10.0.0.1")).grow(1), Err(Full));
        assert_eq!(budget.lease(&peer("10.0.0.2")).grow(1), Ok(()));
    }

    #[test]
    fn budget_ignores_control_socket() {
        let budget = Budget::new(1, Share::Fair);
        let mut owner = budget.lease(&Peer::Unix);
        assert_eq!(owner.grow(1000), Ok(()));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn budget_is_released_with_last_clone_of_bytes() {
        let budget = Budget::new(100, Share::Fair);
        let mut lease = budget.lease(&peer("10.0.0.1"));
        lease.grow(10).unwrap();
        let bytes = lease.bind(Bytes::from_static(b"0123456789"));
        let part = bytes.slice(3..4);
        drop(bytes);
        assert_eq!((part.as_ref(), budget.used()), (&b"3"[..], 10));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn budget_when_overdrawn_refuses_others_until_released() {
        let budget = Budget::new(100, Share::Fair);
        let mut lease = budget.lease(&peer("10.0.0.1"));
        lease.force_to(500);
        lease.force_to(400);
        assert_eq!(budget.used(), 500);
        assert_eq!(budget.lease(&peer("10.0.0.2")).grow(1), Err(Full));
        drop(lease);
        assert_eq!(budget.lease(&peer("10.0.0.2")).grow(1), Ok(()));
    }
}
