//! Limits the parallel requests to one host, over all pulls of the process, and the connections of one client (one set
//! of TLS settings and proxy) to the host.
//!
//! A request has a slot from before its connection until the end of its body. Slots are granted in the order of
//! requests. Requests that read ahead get only a part of the slots. Otherwise the request that the reader needs next
//! could wait for read-ahead requests, which wait for the reader.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::origin::Origin;
use crate::registry::locked;

/// From this number of hosts on, hosts without a request are removed.
const HOSTS_MAX: usize = 1024;

pub(crate) struct HostPermits {
    max: usize,
    hosts: Mutex<HashMap<(String, u16), Arc<Semaphore>>>,
}

impl HostPermits {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, hosts: Mutex::default() }
    }

    pub(crate) async fn acquire(&self, origin: &Origin) -> OwnedSemaphorePermit {
        self.of(origin).acquire_owned().await.expect("the semaphore is never closed")
    }

    fn of(&self, origin: &Origin) -> Arc<Semaphore> {
        let mut hosts = locked(&self.hosts);
        if hosts.len() >= HOSTS_MAX {
            // Each permit, and each wait for a permit, has a reference to the semaphore of its host.
            hosts.retain(|_, permits| Arc::strong_count(permits) > 1);
        }
        let permits = hosts.entry((origin.host().to_owned(), origin.port));
        Arc::clone(permits.or_insert_with(|| Arc::new(Semaphore::new(self.max))))
    }
}

pub(crate) struct HostSlots {
    all: HostPermits,
    ahead: HostPermits,
}

pub(crate) struct HostSlot {
    _slot: OwnedSemaphorePermit,
    _ahead: Option<OwnedSemaphorePermit>,
}

impl HostSlots {
    pub(crate) fn new(max: usize) -> Self {
        let reserved = (max / 4).max(1);
        Self { all: HostPermits::new(max), ahead: HostPermits::new(max.saturating_sub(reserved)) }
    }

    pub(crate) async fn acquire(&self, origin: &Origin, urgency: &Urgency) -> HostSlot {
        let ahead = tokio::select! {
            biased;
            () = urgency.raised() => None,
            permit = self.ahead.acquire(origin) => Some(permit),
        };
        let slot = self.all.acquire(origin).await;
        (urgency.on_slot)();
        HostSlot { _slot: slot, _ahead: ahead }
    }
}

/// Whether the reader needs the bytes of a request next, or later. [`Urgency::raise`] changes this to next.
pub(crate) struct Urgency {
    is_next: CancellationToken,
    /// Called when the request gets its slot.
    on_slot: Box<dyn Fn() + Send + Sync>,
}

impl Urgency {
    pub(crate) fn is_next() -> Arc<Self> {
        let urgency = Self::reads_ahead(|| {});
        urgency.raise();
        urgency
    }

    pub(crate) fn reads_ahead(on_slot: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { is_next: CancellationToken::new(), on_slot: Box::new(on_slot) })
    }

    pub(crate) fn raise(&self) {
        self.is_next.cancel();
    }

    pub(crate) async fn raised(&self) {
        self.is_next.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::{FutureExt as _, poll};

    use super::*;
    use crate::registry::connection::origin::Target;

    fn origin(host: &str) -> Origin {
        Target::parse(&format!("https://{host}")).expect("a URL").origin
    }

    #[tokio::test]
    async fn slots_are_granted_in_order_and_hosts_do_not_share_them() {
        let (slots, host) = (HostSlots::new(2), origin("a.example"));
        let next = Urgency::is_next();
        let (first, second) = (slots.acquire(&host, &next).await, slots.acquire(&host, &next).await);
        let mut third = Box::pin(slots.acquire(&host, &next));
        let mut fourth = Box::pin(slots.acquire(&host, &next));
        assert!(poll!(&mut third).is_pending() && poll!(&mut fourth).is_pending());
        assert!(slots.acquire(&origin("a.example:5000"), &Urgency::is_next()).now_or_never().is_some());
        drop(first);
        assert!(poll!(&mut fourth).is_pending(), "the earlier one is first");
        assert!(poll!(&mut third).is_ready());
        drop(second);
        assert!(poll!(&mut fourth).is_ready());
    }

    #[tokio::test]
    async fn parts_that_are_read_ahead_never_take_the_last_slot_until_their_turn_comes() {
        for (max, parts) in [(1, 0), (2, 1), (4, 3), (16, 12)] {
            let (slots, host) = (HostSlots::new(max), origin("a.example"));
            let granted = Arc::<AtomicUsize>::default();
            let count = Arc::clone(&granted);
            let ahead = Urgency::reads_ahead(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
            let mut running = Vec::new();
            while let Some(slot) = slots.acquire(&host, &ahead).now_or_never() {
                running.push(slot);
            }
            assert_eq!(running.len(), parts, "of {max}");
            let mut waiting = Box::pin(slots.acquire(&host, &ahead));
            assert!(poll!(&mut waiting).is_pending());
            assert_eq!(granted.load(Ordering::Relaxed), parts);
            ahead.raise();
            assert!(poll!(&mut waiting).is_ready(), "of {max}: it is next");
            assert_eq!(granted.load(Ordering::Relaxed), parts + 1);
        }
    }

    #[tokio::test]
    async fn hosts_without_a_request_are_forgotten() {
        let permits = HostPermits::new(1);
        let held = permits.acquire(&origin("held.example")).await;
        for number in 0..2 * HOSTS_MAX {
            drop(permits.acquire(&origin(&format!("h{number}.example"))).await);
        }
        assert!(permits.hosts.lock().unwrap().len() <= HOSTS_MAX);
        assert!(permits.acquire(&origin("held.example")).now_or_never().is_none(), "a held one stays");
        drop(held);
    }
}
