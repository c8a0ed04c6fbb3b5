//! Reserves space for a pull before its first layer byte: requests more, waits for other pulls, or rejects.

use std::{collections::HashSet, sync::Arc, time::Duration};

use imagelet_core::{
    image::{ByteSize, Digest},
    runtime::{RoomMade, RoomWanted, RuntimeError},
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Engine, EngineConfig};
use crate::{
    admission::{
        Admission, Amount, Demand, Expansions, Expected, MissingSpace, Reservation, Reservations, Space, decide,
        helps_to_wait, refusal,
    },
    manifest::{Compression, Descriptor, LayerKind, Manifest},
    store::{Store, could_not},
};

const ROOM_WAIT_MAX: Duration = Duration::from_mins(2);
/// Space requests while each frees some: removed images may share layers with the remaining ones.
const ROOM_ROUNDS_MAX: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The diff-id in the store, or the chain id for a sink.
    id: Digest,
    compression: Compression,
    packed: u64,
    is_fetched: bool,
}

/// Why nothing was reserved.
struct NoSpace {
    missing: MissingSpace,
    demand: Demand,
    space: Space,
}

impl Engine {
    /// Reserves space for the layers that no other pull brings, until the guard is dropped.
    pub(super) async fn admit(&self, wanted: &[Wanted]) -> Result<Reservation, RuntimeError> {
        let deadline = Instant::now() + self.config.admission_wait;
        let (mut rounds, mut made) = (0, None::<RoomMade>);
        loop {
            // Created before the check, so that no release in between is missed.
            let mut returned = Box::pin(self.reservations.returned());
            returned.as_mut().enable();
            let NoSpace { missing, demand, space } = match self.reserve(wanted, false).await? {
                Ok(reservation) => return Ok(reservation),
                Err(no_space) => no_space,
            };
            let short = if missing.inodes > 0 { u64::MAX } else { missing.bytes };
            let freed = self.on_disk(move |store| match store.free_unfinished(short)? {
                freed if freed >= short => Ok(freed),
                freed => Ok(freed + store.revoke_partials()?),
            });
            if freed.await? > 0 {
                continue;
            }
            let helped = rounds == 0 || made.is_some_and(|made| made.freed > ByteSize::ZERO);
            if rounds < ROOM_ROUNDS_MAX && helped {
                rounds += 1;
                let freed = self.request_space(&demand, &missing).await;
                made = freed.or(made);
                if freed.is_some_and(|made| made.freed > ByteSize::ZERO) {
                    continue;
                }
            }
            if Instant::now() < deadline && helps_to_wait(self.config.admission, &demand, &space) {
                tracing::info!(
                    wanted = demand.amount.bytes,
                    free = space.free_bytes,
                    reserved = space.reserved.bytes,
                    pulls = space.pulls,
                    "a pull waits for the space that others have reserved"
                );
                let _ = timeout_at(deadline, returned).await;
                continue;
            }
            if missing.is_refusal() {
                let could_free = made.map(|made| made.could_free);
                return Err(refusal(self.config.admission, &demand, &space, &missing, could_free));
            }
            tracing::warn!(
                expected = demand.amount.bytes,
                compressed = demand.compressed,
                free = space.free_bytes,
                "a pull proceeds that may not fit: its size unpacked is only expected"
            );
            if let Ok(reservation) = self.reserve(wanted, true).await? {
                return Ok(reservation);
            }
            // Another pull has reserved the rest.
            rounds = ROOM_ROUNDS_MAX;
        }
    }

    /// Reserves if the free space less all reservations suffices; with `proceeds`, also where only the estimate does
    /// not.
    async fn reserve(&self, wanted: &[Wanted], proceeds: bool) -> Result<Result<Reservation, NoSpace>, RuntimeError> {
        let (reservations, config, wanted) = (self.reservations.clone(), self.config.clone(), wanted.to_vec());
        self.on_disk(move |store| reserve_now(store, &reservations, &config, &wanted, proceeds)).await
    }

    /// Whether so many bytes that no pull has reserved are free.
    pub(super) fn unreserved_space(&self) -> Arc<dyn Fn(u64) -> bool + Send + Sync> {
        let (store, reservations) = (Arc::clone(&self.store), Arc::clone(&self.reservations));
        let floor = self.config.limits.free_bytes_floor;
        Arc::new(move |bytes| {
            let (reserved, _) = reservations.open().reserved();
            let taken = reserved.bytes.saturating_add(floor).saturating_add(bytes);
            store.free().is_ok_and(|(free, _)| free >= taken)
        })
    }

    async fn request_space(&self, demand: &Demand, missing: &MissingSpace) -> Option<RoomMade> {
        let room = self.room.get()?;
        let wanted = self.in_bytes(missing);
        let (bytes, least) = (wanted.bytes.0, wanted.least.0);
        tracing::info!(wanted = bytes, least, layers = demand.layers, "a pull requests space");
        let made = timeout(ROOM_WAIT_MAX, room.make_room(wanted)).await;
        if made.is_err() {
            tracing::warn!(seconds = ROOM_WAIT_MAX.as_secs(), "no space was freed in time");
        }
        made.ok().flatten()
    }

    /// Space as a collection counts it: inodes converted to the bytes they use here on average.
    fn in_bytes(&self, missing: &MissingSpace) -> RoomWanted {
        let sizes = self.store.layer_sizes();
        let entries: u64 = sizes.iter().map(|layer| layer.entries).sum();
        let bytes: u64 = sizes.iter().map(|layer| layer.on_disk).sum();
        let of_inodes = |inodes: u64| inodes.saturating_mul(bytes.div_ceil(entries.max(1)));
        RoomWanted {
            bytes: ByteSize(missing.bytes.max(of_inodes(missing.inodes))),
            least: ByteSize(missing.bytes_least.max(of_inodes(missing.inodes_least))),
        }
    }
}

impl Wanted {
    pub(super) fn of((manifest, layer): (&Manifest, &Descriptor), id: Digest, is_fetched: bool) -> Self {
        let is_artifact = manifest.artifact_kind().is_some();
        Self { id, compression: compression(&layer.media_type, is_artifact), packed: layer.size, is_fetched }
    }
}

fn reserve_now(
    store: &Store,
    reservations: &Arc<Reservations>,
    config: &EngineConfig,
    wanted: &[Wanted],
    proceeds: bool,
) -> Result<Result<Reservation, NoSpace>, RuntimeError> {
    if config.admission == Admission::Off {
        return Ok(Ok(reservations.open().reserve([])));
    }
    let (learned, mut seen) = (learned(store), HashSet::new());
    let absent: Vec<(&Wanted, Expected)> = wanted
        .iter()
        .filter(|layer| layer.is_fetched || store.layer(&layer.id).is_none())
        .filter(|layer| seen.insert(&layer.id))
        .map(|layer| (layer, learned.expect(layer.compression, layer.packed, config.keep_blobs)))
        .collect();
    let page = reservations.open();
    let own: Vec<_> = absent.iter().filter(|(layer, _)| !page.brings(&layer.id)).collect();
    let demand = Demand {
        layers: own.len(),
        compressed: own.iter().map(|(layer, _)| layer.packed).fold(0, u64::saturating_add),
        amount: own.iter().map(|(_, expected)| expected.amount).fold(Amount::default(), Amount::plus),
        is_measured: own.iter().all(|(_, expected)| expected.is_measured),
        keeps_blobs: config.keep_blobs,
    };
    // Reservations are read first, then free space: bytes written in between count twice rather than not at all.
    let (reserved, pulls) = page.reserved();
    let (free_bytes, free_inodes) = store.free().map_err(could_not("measure the disk of", store.root()))?;
    let space = Space {
        free_bytes,
        free_inodes,
        bytes_floor: config.limits.free_bytes_floor,
        inodes_floor: config.limits.free_inodes_floor,
        reserved,
        pulls,
    };
    Ok(match decide(config.admission, &demand, &space) {
        Some(missing) if missing.is_refusal() || !proceeds => Err(NoSpace { missing, demand, space }),
        _ => Ok(page.reserve(absent.iter().map(|(layer, expected)| (layer.id.clone(), expected.amount)))),
    })
}

pub(super) fn learned(store: &Store) -> Expansions {
    let mut learned = Expansions::default();
    for layer in store.layer_sizes() {
        learned.learn(compression(&layer.media_type, layer.is_artifact), layer.packed, layer.on_disk, layer.entries);
    }
    learned
}

/// By media type alone: the first bytes, which decide, are not fetched yet. The files of an artifact are stored as they
/// are, also those with the type of an archive.
pub(super) fn compression(media_type: &str, is_artifact: bool) -> Compression {
    if is_artifact {
        return Compression::Stored;
    }
    match LayerKind::of(media_type) {
        LayerKind::Tar(compression) | LayerKind::Foreign(compression) => compression,
        // Only artifacts have such layers.
        LayerKind::Encrypted | LayerKind::Unknown => Compression::Stored,
    }
}
