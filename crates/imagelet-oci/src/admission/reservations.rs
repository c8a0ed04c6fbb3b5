//! Reservations of running pulls: each layer once, reduced by every byte of it that is on the disk.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use imagelet_core::image::Digest;
use tokio::sync::{Notify, futures::Notified};

use super::Amount;

#[derive(Debug, Default)]
pub(crate) struct Reservations {
    table: Mutex<ReservationTable>,
    returned: Notify,
}

#[derive(Debug, Default)]
struct ReservationTable {
    layers: HashMap<Digest, ReservedLayer>,
    pulls: usize,
}

#[derive(Debug)]
struct ReservedLayer {
    amount: Amount,
    written: WrittenBytes,
    pulls: usize,
}

pub(crate) struct OpenReservations<'a> {
    reservations: &'a Arc<Reservations>,
    table: MutexGuard<'a, ReservationTable>,
}

impl Reservations {
    /// Locks the reservations; no other pull reserves meanwhile.
    pub(crate) fn open(self: &Arc<Self>) -> OpenReservations<'_> {
        OpenReservations { reservations: self, table: self.lock() }
    }

    pub(crate) fn returned(&self) -> Notified<'_> {
        self.returned.notified()
    }

    fn lock(&self) -> MutexGuard<'_, ReservationTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenReservations<'_> {
    /// The total that is reserved and not on the disk yet, and the number of pulls.
    pub(crate) fn reserved(&self) -> (Amount, usize) {
        let left = self.table.layers.values().map(|held| held.amount.after(held.written.bytes()));
        (left.fold(Amount::default(), Amount::plus), self.table.pulls)
    }

    pub(crate) fn brings(&self, layer: &Digest) -> bool {
        self.table.layers.contains_key(layer)
    }

    /// Reserves layers for a pull; a layer of another pull is only counted as shared.
    pub(crate) fn reserve(mut self, layers: impl IntoIterator<Item = (Digest, Amount)>) -> Reservation {
        let mut reserved: HashMap<Digest, WrittenBytes> = HashMap::new();
        for (layer, amount) in layers {
            if reserved.contains_key(&layer) {
                continue;
            }
            let held = self.table.layers.entry(layer.clone()).or_insert(ReservedLayer {
                amount,
                written: WrittenBytes::default(),
                pulls: 0,
            });
            held.pulls += 1;
            reserved.insert(layer, held.written.clone());
        }
        if !reserved.is_empty() {
            self.table.pulls += 1;
        }
        Reservation { reservations: Arc::clone(self.reservations), layers: reserved }
    }
}

/// A pull's share of the reservations, released on drop.
#[derive(Debug)]
#[must_use = "dropping a reservation gives it back"]
pub(crate) struct Reservation {
    reservations: Arc<Reservations>,
    layers: HashMap<Digest, WrittenBytes>,
}

impl Reservation {
    pub(crate) fn written_bytes(&self, layer: &Digest) -> WrittenBytes {
        self.layers.get(layer).cloned().unwrap_or_default()
    }

    /// Releases the rest of the estimate once a layer is unpacked.
    pub(crate) fn release(&self, layer: &Digest) {
        if let Some(written_bytes) = self.layers.get(layer) {
            written_bytes.0.store(u64::MAX, Ordering::Relaxed);
            self.reservations.returned.notify_waiters();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.layers.is_empty() {
            return;
        }
        let mut table = self.reservations.lock();
        for layer in self.layers.keys() {
            if let Some(held) = table.layers.get_mut(layer) {
                held.pulls -= 1;
                if held.pulls == 0 {
                    table.layers.remove(layer);
                }
            }
        }
        table.pulls -= 1;
        drop(table);
        self.reservations.returned.notify_waiters();
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenBytes(Arc<AtomicU64>);

impl WrittenBytes {
    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn restart(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    fn amount(bytes: u64) -> Amount {
        Amount { bytes, bytes_min: bytes / 2, inodes: bytes / 10, inodes_min: 1 }
    }

    fn reserve(reservations: &Arc<Reservations>, layers: &[(&str, u64)]) -> Reservation {
        reservations.open().reserve(layers.iter().map(|(name, bytes)| (layer(name), amount(*bytes))))
    }

    fn reserved(reservations: &Arc<Reservations>) -> (u64, usize) {
        let (amount, pulls) = reservations.open().reserved();
        (amount.bytes, pulls)
    }

    #[test]
    fn a_drop_releases_a_reservation() {
        let reservations = Arc::default();
        let first = reserve(&reservations, &[("a", 100), ("b", 50)]);
        let second = reserve(&reservations, &[("c", 10)]);
        assert_eq!(reserved(&reservations), (160, 2));
        drop(first);
        assert_eq!(reserved(&reservations), (10, 1));
        drop(second);
        assert_eq!(reserved(&reservations), (0, 0));
        assert!(reservations.lock().layers.is_empty());
    }

    #[test]
    fn a_layer_that_two_pulls_bring_counts_once_until_both_are_over() {
        let reservations = Arc::default();
        let first = reserve(&reservations, &[("base", 100), ("a", 10), ("a", 10)]);
        assert!(reservations.open().brings(&layer("base")));
        let second = reserve(&reservations, &[("base", 100), ("b", 20)]);
        assert_eq!(reserved(&reservations), (130, 2));
        drop(first);
        assert_eq!(reserved(&reservations), (120, 1));
        assert!(!reservations.open().brings(&layer("a")));
        drop(second);
        assert_eq!(reserved(&reservations), (0, 0));
    }

    #[test]
    fn bytes_that_landed_are_not_reserved_any_more_and_inodes_go_with_them() {
        let reservations: Arc<Reservations> = Arc::default();
        let pull = reserve(&reservations, &[("a", 1_000)]);
        let written_bytes = pull.written_bytes(&layer("a"));
        written_bytes.add(400);
        let (left, _) = reservations.open().reserved();
        assert_eq!((left.bytes, left.bytes_min, left.inodes), (600, 100, 60));
        written_bytes.add(5_000);
        assert_eq!(reserved(&reservations), (0, 1), "more than expected is no credit");
        written_bytes.restart();
        assert_eq!(reserved(&reservations), (1_000, 1));
        pull.release(&layer("a"));
        assert_eq!(reserved(&reservations), (0, 1));
        drop(pull);
        WrittenBytes::default().add(1);
        assert_eq!(reserved(&reservations), (0, 0));
    }

    #[tokio::test]
    async fn a_waiting_pull_is_woken_by_a_drop_and_by_a_layer_that_is_there() {
        let reservations: Arc<Reservations> = Arc::default();
        let pull = reserve(&reservations, &[("a", 1)]);
        let mut waits = Box::pin(reservations.returned());
        waits.as_mut().enable();
        pull.release(&layer("a"));
        waits.await;
        let mut waits = Box::pin(reservations.returned());
        waits.as_mut().enable();
        drop(pull);
        waits.await;
    }
}
