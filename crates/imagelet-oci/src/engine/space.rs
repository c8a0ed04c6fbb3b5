//! Reserves space for a pull before its first layer byte, and more space as its bytes arrive. If space is missing, the
//! pull requests space, waits for other pulls, or is rejected.

use std::{collections::HashSet, sync::Arc, time::Duration};

use imagelet_core::{
    error::RuntimeError,
    hold::SharedThing,
    image::{ByteSize, Digest},
    ports::{Progress, PullEvent, RoomMade, RoomWanted},
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Engine, EngineConfig, sharing::only_from};
use crate::{
    admission::{
        Admission, Amount, Demand, Fit, LayerBytes, Reservation, Reservations, RunningPull, Space, expected, grant,
        helps_to_wait, more, refusal, rest,
    },
    manifest::{Compression, Descriptor},
    pipeline::{LayerLimits, reported},
    registry::Resolved,
    store::{ContinuedPartials, PartialKey, Resumption, Store, could_not},
    tenant::Tenant,
};

/// How long a pull that may not fit waits for other pulls.
const WAIT_MAX: Duration = Duration::from_mins(1);
/// The content of a pull that failed within this time is probably needed again soon, for example after a restart of the
/// daemon. Unused images are removed before this content.
pub(super) const YOUNG: Duration = Duration::from_mins(10);
const ROOM_WAIT_MAX: Duration = Duration::from_mins(2);
/// Maximum number of space requests, while each frees space. One may not be enough, because images share layers.
const ROOM_ROUNDS_MAX: usize = 3;
/// Maximum space that is requested for the first bytes of a pull, which show how its layers expand.
const PROBE_MAX: ByteSize = ByteSize(16 << 20);

#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The layer's diff-id in the store, or its chain id for a sink.
    id: Digest,
    compression: Compression,
    packed: u64,
    is_fetched: bool,
    partial: Option<PartialKey>,
}

#[derive(Clone)]
enum SpaceFor {
    /// The layers, the number and the tenant of a pull that begins.
    Layers(Arc<[Wanted]>, u64, Arc<Tenant>),
    /// The bytes that the running pull with this number still writes.
    Rest(u64),
}

struct NoSpace {
    missing: Amount,
    now: Amount,
    demand: Demand,
    space: Space,
}

impl Engine {
    pub(super) async fn admit(
        &self,
        wanted: &[Wanted],
        (pull, tenant): (u64, Arc<Tenant>),
        progress: &Progress,
    ) -> Result<(Reservation, ContinuedPartials), RuntimeError> {
        let admitted = self.space(&SpaceFor::Layers(wanted.into(), pull, tenant), progress).await?;
        Ok(admitted.expect("a pull that begins gets a reservation"))
    }

    /// Fetches, and reserves more space step by step. Ends the fetches if no more space is granted.
    pub(super) async fn with_space<T, E>(
        &self,
        (reservation, resumption): (&Reservation, &Resumption),
        progress: &Progress,
        refused: impl FnOnce(RuntimeError) -> E,
        fetching: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let requests = async {
            loop {
                reservation.asks().await;
                if let Err(error) = self.space(&SpaceFor::Rest(reservation.number), progress).await {
                    resumption.heed(&error);
                    return error;
                }
            }
        };
        tokio::select! {
            fetched = fetching => fetched,
            error = requests => Err(refused(error)),
        }
    }

    async fn space(&self, of: &SpaceFor, progress: &Progress) -> Result<Admitted, RuntimeError> {
        let deadline = Instant::now() + WAIT_MAX;
        let (mut fit, mut rounds, mut is_helped, mut could_free) = (Fit::Whole, 0, true, None);
        let mut is_probed = false;
        loop {
            // The future is created before the check, so that it receives every later notification.
            let mut returned = Box::pin(self.reservations.returned.notified());
            returned.as_mut().enable();
            let NoSpace { missing, now, demand, space } = match self.reserve(of, fit).await? {
                Ok(admitted) => return Ok(admitted),
                Err(no_space) => no_space,
            };
            if self.free_unfinished(of, &now, Some(YOUNG)).await? > 0 {
                continue;
            }
            let ((whole, least), (step, _)) = (self.in_bytes(&missing), self.in_bytes(&now));
            if rounds < ROOM_ROUNDS_MAX && is_helped {
                rounds += 1;
                is_helped = false;
                if let Some(made) = self.request_space(&demand, RoomWanted { whole, now: step }, progress).await {
                    is_helped = made.freed > ByteSize::ZERO;
                    could_free = Some(made.could_free);
                    if made.freed + made.could_free >= whole {
                        fit = Fit::Step;
                        continue;
                    }
                }
                if is_helped {
                    continue;
                }
            }
            if self.free_unfinished(of, &now, None).await? > 0 {
                continue;
            }
            let is_new = matches!(of, SpaceFor::Layers(..));
            if let SpaceFor::Layers(wanted, ..) = of
                && let Some(layer) = wanted.first()
                && Instant::now() < deadline
                && helps_to_wait(self.config.admission, &demand, &space)
            {
                tracing::info!(
                    wanted = demand.amount.bytes,
                    free = space.free_bytes,
                    reserved = space.reserved.bytes,
                    pulls = space.pulls,
                    "a pull waits for the space that others have reserved"
                );
                let what = (SharedThing::Space, &layer.id, progress);
                let _ = reported(what, || None, timeout_at(deadline, returned)).await;
                continue;
            }
            let removable = could_free.unwrap_or_default();
            let is_reachable = removable > ByteSize::ZERO && least <= removable;
            if (is_reachable || !missing.is_refusal())
                && let Ok(admitted) = self.reserve(of, Fit::Part).await?
            {
                if is_new {
                    tracing::warn!(
                        expected = demand.amount.bytes,
                        compressed = demand.compressed,
                        free = space.free_bytes,
                        "a pull proceeds that may not fit: its size unpacked is only expected"
                    );
                }
                return Ok(admitted);
            }
            // The size is only assumed. If the minimum for the pull can be freed, the pull starts instead of being rejected.
            if is_reachable && !demand.is_measured && !is_probed {
                is_probed = true;
                let wanted = RoomWanted { whole: least, now: least.min(PROBE_MAX) };
                let made = self.request_space(&demand, wanted, progress).await;
                if let Some(made) = made.filter(|made| made.freed > ByteSize::ZERO) {
                    could_free = Some(made.could_free);
                    continue;
                }
            }
            let unfinished = ByteSize(self.store.unfinished_bytes());
            if least <= removable + unfinished && self.free_unfinished(of, &missing, None).await? > 0 {
                continue;
            }
            return Err(refusal(self.config.admission, &demand, &space, &missing, could_free));
        }
    }

    /// Removes content of other unfinished pulls until the missing space is free. Keeps content younger than `spared`.
    async fn free_unfinished(
        &self,
        of: &SpaceFor,
        missing: &Amount,
        spared: Option<Duration>,
    ) -> Result<u64, RuntimeError> {
        let short = if missing.inodes > 0 { u64::MAX } else { missing.bytes };
        if short == 0 {
            return Ok(0);
        }
        let kept: Vec<PartialKey> = match of {
            SpaceFor::Layers(wanted, ..) => wanted.iter().filter_map(|layer| layer.partial.clone()).collect(),
            SpaceFor::Rest(_) => Vec::new(),
        };
        self.on_disk(move |store| match store.free_unfinished(short, &kept, spared)? {
            freed if freed >= short || spared.is_some() => Ok(freed),
            freed => Ok(freed + store.revoke_partials()?),
        })
        .await
    }

    async fn reserve(&self, of: &SpaceFor, fit: Fit) -> Result<Result<Admitted, NoSpace>, RuntimeError> {
        let (reservations, config, of) = (self.reservations.clone(), self.config.clone(), of.clone());
        self.on_disk(move |store| reserve(store, &reservations, &config, &of, fit)).await
    }

    /// A check whether a number of bytes is free in addition to the floor and to the bytes that all pulls write next.
    pub(super) fn unreserved_space(&self) -> Arc<dyn Fn(u64) -> bool + Send + Sync> {
        let (store, reservations) = (Arc::clone(&self.store), Arc::clone(&self.reservations));
        let floor = self.config.limits.free_bytes_floor;
        Arc::new(move |bytes| {
            let taken = reservations.open().steps().bytes.saturating_add(floor).saturating_add(bytes);
            store.free().is_ok_and(|(free, _)| free >= taken)
        })
    }

    async fn request_space(&self, demand: &Demand, wanted: RoomWanted, progress: &Progress) -> Option<RoomMade> {
        let room = self.room.get()?;
        let (whole, now) = (wanted.whole.0, wanted.now.0);
        tracing::info!(whole, now, layers = demand.layers, "a pull requests space");
        let made = timeout(ROOM_WAIT_MAX, room.make_room(wanted)).await;
        if made.is_err() {
            tracing::warn!(seconds = ROOM_WAIT_MAX.as_secs(), "no space was freed in time");
        }
        let made = made.ok().flatten()?;
        made.removed.iter().cloned().map(PullEvent::Removed).for_each(|removed| progress(removed));
        Some(made)
    }

    /// Converts the missing space to bytes, the unit of a collection: the whole estimate, and the part of it that is
    /// certain. Inodes are converted by the average bytes per inode of this store.
    fn in_bytes(&self, missing: &Amount) -> (ByteSize, ByteSize) {
        let whole = self.store.takes();
        let of_inodes = |inodes: u64| inodes.saturating_mul(whole.bytes.div_ceil(whole.inodes.max(1)));
        (
            ByteSize(missing.bytes.max(of_inodes(missing.inodes))),
            ByteSize(missing.bytes_min.max(of_inodes(missing.inodes_min))),
        )
    }
}

impl Wanted {
    pub(super) fn of((resolved, layer): (&Resolved, &Descriptor), id: Digest, is_fetched: bool) -> Self {
        let manifest = &resolved.manifest;
        let compression = manifest.compression(layer);
        let repository = only_from(manifest, resolved.session.reference());
        let partial = (compression != Compression::Zstd).then(|| PartialKey::new(&layer.digest, repository));
        Self { id, compression, packed: layer.size, is_fetched, partial }
    }

    /// The layer's bytes, and those on the disk that no other pull counts on. An artifact's file is its own blob.
    fn known(&self, continued: &ContinuedPartials, keeps_blobs: bool) -> LayerBytes {
        let is_file = self.compression == Compression::Stored;
        let known = self.partial.as_ref().map(|key| continued.add(key, self.packed, is_file)).unwrap_or_default();
        let keeps_blob = keeps_blobs && !is_file;
        LayerBytes { packed: self.packed, read: known.packed, written: known.written, keeps_blob }
    }
}

/// The reservation of a pull that begins, and the partial content that it counts on; `None` for a running pull.
type Admitted = Option<(Reservation, ContinuedPartials)>;

/// Reserves space if the free space minus all reservations is enough. A pull that begins reserves for its layers. A
/// running pull reserves the bytes until its next request.
fn reserve(
    store: &Arc<Store>,
    reservations: &Arc<Reservations>,
    config: &EngineConfig,
    of: &SpaceFor,
    fit: Fit,
) -> Result<Result<Admitted, NoSpace>, RuntimeError> {
    let page = reservations.open();
    let (RunningPull { tenant, demand, step }, absent, continued) = match of {
        SpaceFor::Layers(wanted, pull, tenant) => {
            let (mut seen, continued) = (HashSet::new(), ContinuedPartials::new(store, *pull));
            let absent: Vec<(Digest, LayerBytes, Amount)> = wanted
                .iter()
                .filter(|layer| layer.is_fetched || store.layer(&layer.id).is_none())
                .filter(|layer| seen.insert(&layer.id))
                .map(|layer| {
                    let whole = expected(layer.compression, layer.packed, config.keep_blobs);
                    (layer.id.clone(), layer.known(&continued, config.keep_blobs), whole)
                })
                .collect();
            if config.admission == Admission::Off {
                return Ok(Ok(Some((page.reserve(Arc::clone(tenant), [], u64::MAX), continued))));
            }
            let own = || absent.iter().filter(|(layer, ..)| !page.brings(layer));
            let amount = own().map(|(_, bytes, whole)| rest(*whole, *bytes)).fold(Amount::default(), Amount::plus);
            let demand = Demand::of(own().map(|(_, bytes, _)| *bytes), amount);
            let step = demand.amount.step(0);
            (RunningPull { tenant: Arc::clone(tenant), demand, step }, absent, Some(continued))
        }
        SpaceFor::Rest(pull) => match page.running(*pull) {
            Some(running) if running.demand.layers > 0 => (running, Vec::new(), None),
            _ => {
                page.grant(*pull, u64::MAX);
                return Ok(Ok(None));
            }
        },
    };
    let running = if let SpaceFor::Rest(pull) = of { Some(*pull) } else { None };
    // The reservations are read before the free space. Bytes written in between count twice, but are never missed.
    let seen = page.seen(&tenant, running);
    let (free_bytes, free_inodes) = store.free().map_err(could_not("measure the disk of", store.root()))?;
    let LayerLimits { free_bytes_floor, free_inodes_floor, .. } = config.limits;
    let free = Space::new((free_bytes, free_bytes_floor), (free_inodes, free_inodes_floor));
    let others = seen.others(free.share_max());
    let beside = |own: Amount| Space { reserved: own.plus(others), others, pulls: seen.pulls, ..free };
    let now = beside(seen.steps);
    // An admitted pull does not wait for the reservations of later pulls.
    let space = if running.is_some() { now } else { beside(seen.rests) };
    let granted = match grant(config.admission, fit, (&demand, &space), (step, &now)) {
        Ok(granted) => granted,
        Err((missing, now)) => return Ok(Err(NoSpace { missing, now, demand, space })),
    };
    if let Some(pull) = running {
        let more = match more(granted, page.is_used_up(pull), &now) {
            Ok(more) => more,
            // A pull that was admitted in part gets no bound of its own; the floors bound its writes.
            Err(_) if fit == Fit::Part => u64::MAX,
            Err(missing) => return Ok(Err(NoSpace { missing, now: missing, demand, space })),
        };
        page.grant(pull, more);
    }
    Ok(Ok(continued.map(|continued| (page.reserve(tenant, absent, granted), continued))))
}
