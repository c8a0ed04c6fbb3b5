//! Reservations of running pulls: the space that each pull still needs and has reserved, and how far it may write.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use imagelet_core::{hold::HoldMeter, image::Digest, lock::locked};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::{Amount, Demand, LayerBytes, rest};
use crate::tenant::Tenant;

/// The smallest number of bytes that a grant allows a pull to write.
pub(super) const GRANT_MIN: u64 = 1 << 20;
const CANCEL_POLL: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Reservations {
    table: Mutex<ReservationTable>,
    pub(crate) returned: Notify,
}

#[derive(Default)]
struct ReservationTable {
    next: u64,
    pulls: BTreeMap<u64, ReservedPull>,
}

struct ReservedPull {
    tenant: Arc<Tenant>,
    space: Arc<PullSpace>,
    layers: HashMap<Digest, ReservedLayer>,
}

struct ReservedLayer {
    amount: Amount,
    /// The layer's bytes at the start of the pull.
    start: LayerBytes,
    progress: Arc<LayerProgress>,
}

#[derive(Default)]
struct LayerProgress {
    read: AtomicU64,
    written: AtomicU64,
    is_over: AtomicBool,
}

/// The bytes that a pull may write. At the end of its grant, the pull waits for the next grant.
struct PullSpace {
    meter: HoldMeter,
    grant: watch::Sender<Grant>,
    wanted: Notify,
}

/// A grant, as offsets in all bytes that the pull has written since its start, with those of restarted layers.
#[derive(Clone, Copy, Debug)]
struct Grant {
    asks_at: u64,
    ends_at: u64,
}

struct PullRest<'a> {
    number: u64,
    pull: &'a ReservedPull,
    rest: Amount,
    step: Amount,
}

pub(crate) struct RunningPull {
    pub(crate) tenant: Arc<Tenant>,
    /// For the layers that are not unpacked yet. `compressed` counts only their unread bytes.
    pub(crate) demand: Demand,
    pub(crate) step: Amount,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OthersReserved {
    /// `rests` is the space that the pulls of the same tenant still need. `steps` is the sum of their next steps.
    pub(crate) rests: Amount,
    pub(crate) steps: Amount,
    pub(crate) pulls: usize,
    /// One item for each other tenant: the sum of the next steps of its pulls.
    by_tenant: Vec<Amount>,
}

impl OthersReserved {
    pub(crate) fn others(&self, share_max: Amount) -> Amount {
        self.by_tenant.iter().map(|held| held.min(share_max)).fold(Amount::default(), Amount::plus)
    }
}

pub(crate) struct OpenReservations<'a> {
    reservations: &'a Arc<Reservations>,
    table: MutexGuard<'a, ReservationTable>,
}

impl Reservations {
    /// Locks the reservations, so that no other pull reserves space until the lock is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> OpenReservations<'_> {
        OpenReservations { reservations: self, table: locked(&self.table) }
    }
}

impl ReservationTable {
    /// The space that each pull needs. A shared layer counts for its first pull, and for each other pull that has read
    /// from it.
    fn rests(&self) -> Vec<PullRest<'_>> {
        let (mut counted, now) = (HashSet::new(), Instant::now());
        let mut rests = Vec::with_capacity(self.pulls.len());
        for (number, pull) in &self.pulls {
            let own = pull.layers.iter().filter(|(digest, layer)| counted.insert(*digest) || layer.bytes().read > 0);
            let rest = own.map(|(_, layer)| layer.rest()).fold(Amount::default(), Amount::plus);
            rests.push(PullRest { number: *number, pull, rest, step: rest.step(pull.space.meter.rate(now)) });
        }
        rests
    }
}

impl OpenReservations<'_> {
    pub(crate) fn steps(&self) -> Amount {
        self.table.rests().into_iter().map(|of| of.step).fold(Amount::default(), Amount::plus)
    }

    /// The reservations that a pull of `tenant` must respect: all except its own, which has the number `itself`.
    pub(crate) fn seen(&self, tenant: &Arc<Tenant>, itself: Option<u64>) -> OthersReserved {
        let (mut seen, mut others) = (OthersReserved::default(), Vec::<(&Arc<Tenant>, Amount)>::new());
        for PullRest { number, pull, rest, step } in self.table.rests() {
            if Some(number) == itself {
                continue;
            }
            seen.pulls += 1;
            if pull.tenant == *tenant {
                (seen.rests, seen.steps) = (seen.rests.plus(rest), seen.steps.plus(step));
            } else if let Some((_, held)) = others.iter_mut().find(|(other, _)| **other == pull.tenant) {
                *held = held.plus(step);
            } else {
                others.push((&pull.tenant, step));
            }
        }
        seen.by_tenant = others.into_iter().map(|(_, held)| held).collect();
        seen
    }

    pub(crate) fn brings(&self, layer: &Digest) -> bool {
        self.table.pulls.values().any(|pull| pull.layers.contains_key(layer))
    }

    pub(crate) fn is_used_up(&self, number: u64) -> bool {
        self.table.pulls.get(&number).is_some_and(|pull| pull.space.is_used_up())
    }

    pub(crate) fn running(&self, number: u64) -> Option<RunningPull> {
        let PullRest { pull, rest, step, .. } = self.table.rests().into_iter().find(|of| of.number == number)?;
        let layers = pull.layers.values();
        let is_measured = layers.clone().any(|layer| layer.bytes().is_measured());
        let running = layers.filter(|layer| !layer.progress.is_over.load(Ordering::Relaxed)).map(ReservedLayer::bytes);
        let demand = Demand { is_measured, ..Demand::of(running, rest) };
        Some(RunningPull { tenant: Arc::clone(&pull.tenant), demand, step })
    }

    /// Reserves space for layers. The pull may write `granted` bytes, and requests more after half of them.
    pub(crate) fn reserve(
        mut self,
        tenant: Arc<Tenant>,
        layers: impl IntoIterator<Item = (Digest, LayerBytes, Amount)>,
        granted: u64,
    ) -> Reservation {
        let number = self.table.next;
        let layer = |(digest, start, amount): (Digest, LayerBytes, Amount)| {
            let (read, written, is_over) = (start.read.into(), start.written.into(), AtomicBool::new(false));
            (digest, ReservedLayer { amount, start, progress: Arc::new(LayerProgress { read, written, is_over }) })
        };
        let layers: HashMap<_, _> = layers.into_iter().map(layer).collect();
        let space = Arc::new(PullSpace::new(granted));
        let progress = layers.iter().map(|(digest, layer)| (digest.clone(), Arc::clone(&layer.progress))).collect();
        if !layers.is_empty() {
            self.table.next += 1;
            self.table.pulls.insert(number, ReservedPull { tenant, space: Arc::clone(&space), layers });
        }
        Reservation { reservations: Arc::clone(self.reservations), number, space, layers: progress }
    }

    pub(crate) fn grant(&self, number: u64, bytes: u64) {
        if let Some(pull) = self.table.pulls.get(&number) {
            pull.space.grant.send_replace(Grant::of(pull.space.meter.bytes(), bytes));
        }
    }
}

impl ReservedLayer {
    fn bytes(&self) -> LayerBytes {
        let [read, written] = [&self.progress.read, &self.progress.written].map(|of| of.load(Ordering::Relaxed));
        LayerBytes { read, written, ..self.start }
    }

    fn rest(&self) -> Amount {
        let is_over = self.progress.is_over.load(Ordering::Relaxed);
        if is_over { Amount::default() } else { rest(self.amount, self.bytes()) }
    }
}

impl Grant {
    fn of(written: u64, bytes: u64) -> Self {
        let bytes = bytes.max(GRANT_MIN);
        Self { asks_at: written.saturating_add(bytes / 2), ends_at: written.saturating_add(bytes) }
    }
}

impl PullSpace {
    fn new(granted: u64) -> Self {
        let grant = watch::Sender::new(Grant::of(0, granted));
        Self { meter: HoldMeter::new(Instant::now()), grant, wanted: Notify::new() }
    }

    fn is_enough(&self) -> bool {
        self.meter.bytes() < self.grant.borrow().asks_at
    }

    fn is_used_up(&self) -> bool {
        self.meter.bytes() >= self.grant.borrow().ends_at
    }

    /// Requests more space if the pull has reached `asks_at`. Waits for a new grant if the pull has reached `ends_at`.
    async fn wait(&self) {
        if self.is_enough() {
            return;
        }
        let mut grant = self.grant.subscribe();
        // Other threads may use up a new grant before this thread sees it. Then this thread requests more space again.
        let may_write = |grant: &Grant| {
            if self.meter.bytes() >= grant.asks_at {
                self.wanted.notify_one();
            }
            self.meter.bytes() < grant.ends_at
        };
        grant.wait_for(may_write).await.expect("the space has the sender");
    }
}

/// The reservation of one pull, released on drop. Afterwards, only the free-space floors limit writes.
#[must_use = "dropping a reservation gives it back"]
pub(crate) struct Reservation {
    reservations: Arc<Reservations>,
    pub(crate) number: u64,
    space: Arc<PullSpace>,
    layers: HashMap<Digest, Arc<LayerProgress>>,
}

impl Reservation {
    pub(crate) async fn asks(&self) {
        loop {
            self.space.wanted.notified().await;
            // Each thread of the pull may request space, but one grant is for all of them. Late requests are ignored.
            if !self.space.is_enough() {
                return;
            }
        }
    }

    pub(crate) fn written_bytes(&self, layer: &Digest) -> WrittenBytes {
        let layer = self.layers.get(layer).cloned();
        let space = layer.is_some().then(|| Arc::clone(&self.space));
        WrittenBytes { layer: layer.unwrap_or_default(), space }
    }

    pub(crate) fn release(&self, layer: &Digest) {
        if let Some(layer) = self.layers.get(layer) {
            layer.is_over.store(true, Ordering::Relaxed);
            self.reservations.returned.notify_waiters();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.layers.is_empty() {
            locked(&self.reservations.table).pulls.remove(&self.number);
            self.reservations.returned.notify_waiters();
        }
        // This grant lets the waiting threads end. It follows the removal, so that no later grant replaces it.
        self.space.grant.send_replace(Grant::of(0, u64::MAX));
    }
}

/// Counts the bytes that a thread unpacks, and pauses the thread at the end of its pull's grant. The thread itself must
/// pause, because one received frame may expand a thousandfold.
#[derive(Default)]
pub(crate) struct WriteGate {
    written: WrittenBytes,
    cancelled: Arc<AtomicBool>,
    /// The runtime that runs the wait for a grant. `None` for a thread that never waits.
    runtime: Option<Handle>,
}

impl WriteGate {
    pub(crate) fn new(written: WrittenBytes, cancelled: Arc<AtomicBool>) -> Self {
        Self { written, cancelled, runtime: Handle::try_current().ok() }
    }

    /// Counts unpacked bytes, then waits if the pull's grant is used up. The wait ends when the layer is cancelled.
    pub(crate) fn add(&self, bytes: u64) {
        self.written.add(bytes);
        let (Some(space), Some(runtime)) = (&self.written.space, &self.runtime) else { return };
        if space.is_enough() {
            return;
        }
        runtime.block_on(async {
            let mut wait = pin!(space.wait());
            while timeout(CANCEL_POLL, &mut wait).await.is_err() && !self.cancelled.load(Ordering::Relaxed) {}
        });
    }
}

#[derive(Clone, Default)]
pub(crate) struct WrittenBytes {
    layer: Arc<LayerProgress>,
    /// `None`: no space is reserved for the layer, so its writes do not wait.
    space: Option<Arc<PullSpace>>,
}

impl WrittenBytes {
    pub(crate) fn add(&self, bytes: u64) {
        self.layer.written.fetch_add(bytes, Ordering::Relaxed);
        if let Some(space) = &self.space {
            space.meter.add(bytes);
        }
    }

    /// Counts bytes of the blob that are inflated, or that are not compressed.
    pub(crate) fn read(&self, bytes: u64) {
        self.layer.read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) async fn space(&self) {
        if let Some(space) = &self.space {
            space.wait().await;
        }
    }

    pub(crate) fn restart(&self, read: u64, written: u64) {
        self.layer.written.store(written, Ordering::Relaxed);
        self.layer.read.store(read, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn tenant(name: &str) -> Arc<Tenant> {
        Arc::new(Tenant { namespace: name.into(), credential: None })
    }

    fn layer(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    fn amount(bytes: u64) -> Amount {
        Amount { bytes, bytes_min: bytes / 2, inodes: bytes / 10, inodes_min: 1 }
    }

    fn packed(packed: u64) -> LayerBytes {
        LayerBytes { packed, ..LayerBytes::default() }
    }

    fn reserve(reservations: &Arc<Reservations>, layers: &[(&str, u64)]) -> Reservation {
        reserve_as(reservations, "", layers)
    }

    fn reserve_as(reservations: &Arc<Reservations>, tenant_name: &str, layers: &[(&str, u64)]) -> Reservation {
        let layers = layers.iter().map(|(name, bytes)| (layer(name), packed(bytes / 3), amount(*bytes)));
        reservations.open().reserve(tenant(tenant_name), layers, u64::MAX)
    }

    fn reserved(reservations: &Arc<Reservations>) -> (u64, usize) {
        let seen = reservations.open().seen(&tenant(""), None);
        (seen.rests.bytes, seen.pulls)
    }

    #[test]
    fn a_drop_releases_a_reservation() {
        let reservations: Arc<Reservations> = Arc::default();
        let first = reserve(&reservations, &[("a", 100), ("b", 50)]);
        let second = reserve(&reservations, &[("c", 10)]);
        assert_eq!(reserved(&reservations), (160, 2));
        drop(first);
        assert_eq!(reserved(&reservations), (10, 1));
        drop(second);
        assert_eq!(reserved(&reservations), (0, 0));
        assert!(locked(&reservations.table).pulls.is_empty());
    }

    #[test]
    fn a_layer_that_two_pulls_bring_counts_once_until_both_are_over() {
        let reservations: Arc<Reservations> = Arc::default();
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
        let left = reservations.open().seen(&tenant(""), None).rests;
        assert_eq!((left.bytes, left.bytes_min, left.inodes), (600, 100, 60));
        written_bytes.add(5_000);
        assert_eq!(reserved(&reservations), (0, 1), "more than expected is no credit");
        written_bytes.restart(0, 0);
        assert_eq!(reserved(&reservations), (1_000, 1));
        pull.release(&layer("a"));
        assert_eq!(reserved(&reservations), (0, 1));
        drop(pull);
        WrittenBytes::default().add(1);
        assert_eq!(reserved(&reservations), (0, 0));
    }

    #[test]
    fn another_tenant_holds_its_next_step_and_half_of_what_is_free_at_most_and_its_own_pulls_see_it_all() {
        const MIB: u64 = 1 << 20;
        let reservations: Arc<Reservations> = Arc::default();
        let _claims = [448, 300].map(|mib| reserve_as(&reservations, "a", &[(&mib.to_string(), mib * MIB)]));
        let _other = reserve_as(&reservations, "b", &[("b", 10 * MIB)]);
        let share_max = |mib| Amount { bytes: mib * MIB, bytes_min: mib * MIB, inodes: u64::MAX, inodes_min: u64::MAX };
        let page = reservations.open();
        for (name, free_half, own, held) in
            [("a", 500, 748, 10), ("b", 500, 10, 128), ("c", 500, 0, 138), ("c", 50, 0, 60)]
        {
            let seen = page.seen(&tenant(name), None);
            let others = seen.others(share_max(free_half));
            assert_eq!((seen.rests.bytes / MIB, others.bytes / MIB, seen.pulls), (own, held, 3), "{name}, {free_half}");
        }
        assert_eq!(page.seen(&tenant("b"), Some(2)).rests, Amount::default(), "a pull does not see itself");
        assert_eq!(page.steps().bytes, 138 * MIB);
    }

    #[test]
    fn a_file_that_is_on_the_disk_in_part_reserves_only_its_rest() {
        let (reservations, whole) = (Arc::<Reservations>::default(), 10 << 30);
        let bytes = LayerBytes { packed: whole, read: 6 << 30, written: 6 << 30, keeps_blob: false };
        let amount = Amount { bytes: whole, bytes_min: whole, inodes: 1, inodes_min: 1 };
        let pull = reservations.open().reserve(tenant(""), [(layer("a"), bytes, amount)], u64::MAX);
        assert_eq!(reserved(&reservations), (4 << 30, 1));
        pull.written_bytes(&layer("a")).restart(0, 0);
        assert_eq!(reserved(&reservations), (whole, 1), "the part proved wrong");
    }

    #[test]
    fn only_a_layer_whose_blob_is_kept_beside_its_files_counts_among_the_blobs() {
        let reservations: Arc<Reservations> = Arc::default();
        let layers = [("image layer", true), ("artifact's file", false)].map(|(name, keeps_blob)| {
            (layer(name), LayerBytes { packed: 100, read: 40, written: 0, keeps_blob }, amount(300))
        });
        let pull = reservations.open().reserve(tenant(""), layers, u64::MAX);
        let running = reservations.open().running(pull.number).expect("it runs").demand;
        assert_eq!((running.compressed, running.blobs), (120, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_stops_where_its_space_ends_and_continues_with_more() {
        const MIB: u64 = 1 << 20;
        let reservations: Arc<Reservations> = Arc::default();
        let pull = reservations.open().reserve(tenant("a"), [(layer("a"), packed(9 * MIB), amount(30 * MIB))], 8 * MIB);
        let bytes = pull.written_bytes(&layer("a"));
        bytes.add(3 * MIB);
        bytes.read(MIB);
        bytes.space().await;
        assert!(pull.asks().now_or_never().is_none(), "half of it is left");
        bytes.add(2 * MIB);
        bytes.read(MIB);
        bytes.space().now_or_never().expect("it goes on while it asks");
        pull.asks().now_or_never().expect("it asks");
        bytes.add(3 * MIB);
        bytes.read(3 * MIB);
        let mut stopped = Box::pin(bytes.space());
        assert!(stopped.as_mut().now_or_never().is_none(), "all is written");
        reservations.open().grant(pull.number, 8 * MIB);
        stopped.await;
        let running = reservations.open().running(pull.number).expect("it runs").demand;
        assert_eq!((running.layers, running.compressed, running.amount.bytes), (1, 4 * MIB, 4 * MIB * 8 / 5));
        bytes.add(9 * MIB);
        let mut stopped = Box::pin(bytes.space());
        assert!(stopped.as_mut().now_or_never().is_none(), "all is written again");
        drop(pull);
        stopped.now_or_never().expect("nothing waits for a pull that is over");
        assert!(WrittenBytes::default().space().now_or_never().is_some(), "without a reservation nothing waits");
    }

    #[tokio::test]
    async fn a_waiting_pull_is_woken_by_a_drop_and_by_a_layer_that_is_there() {
        let reservations: Arc<Reservations> = Arc::default();
        let pull = reserve(&reservations, &[("a", 1)]);
        let mut waits = Box::pin(reservations.returned.notified());
        waits.as_mut().enable();
        pull.release(&layer("a"));
        waits.await;
        let mut waits = Box::pin(reservations.returned.notified());
        waits.as_mut().enable();
        drop(pull);
        waits.await;
    }
}
