//! A node that lives through a history: real inventory, real collector, and a store and a disk that are made up.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    disks::{DiskProbe, DiskUse},
    error::RuntimeError,
    gc::{GcGoal, GcOrder, GcPolicy, GcRequest, ImageGc},
    image::{ByteSize, Image, ImageId, ImageKey, ImageSpec, ImageUser},
    inventory::{Inventory, PullCost, UseReport},
    node_policy::NodePolicy,
    ports::{
        Certainty, Container, ContainerImage, ContainerService, ContainerState, FilesystemUsage, ImageFilesystems,
        ImageService, LayerFacts, LayerGraph, Listing, LocalStore, Progress, PullRequest, RuntimeManager, Sandbox,
    },
};

use super::{
    foresight::Foresight,
    histories::{DAY, History, taken},
};

/// How often a node looks after its images.
const PASS_EVERY: u64 = 600;
/// A pass that nothing happened before or after finds nothing; one of so many is done nevertheless.
const QUIET_PASSES_MAX: u64 = 6;
/// So many passes after the last change are done: that a container is gone is believed when it was seen twice.
const PASSES_AFTER: u64 = 3;
/// How long an exited container stays before it is cleaned away.
const EXITED_FOR: u64 = 60;
/// What of a layer goes over the network.
const COMPRESSED_PERCENT: u64 = 40;
/// What a registry sends in a second.
const LINK_BYTES: u64 = 20_000_000;
/// Thresholds as the kubelet's defaults.
const HIGH: i64 = 85;
const LOW: i64 = 80;

/// Whose choice it is what goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The kubelet's, to the letter: least recently used first, each image as large as it is listed.
    Kubelet,
    /// The same order, counting what really comes free.
    Lru,
    /// By what it is worth to keep.
    Cost,
    /// By what will be.
    Ahead,
}

/// What the network brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fetched {
    /// Bytes in all.
    pub(crate) all: u64,
    /// Bytes that had been there before.
    pub(crate) again: u64,
    /// Images that were removed.
    pub(crate) removed: u64,
    /// Collections,
    pub(crate) collections: u64,
    /// and how full they left the disk, in percent, together.
    pub(crate) left: u64,
}

/// Lives through a history.
///
/// # Errors
/// None but those of a collection that could not look, which does not happen here.
pub(crate) async fn live(
    history: Arc<History>,
    way: Way,
    days: u64,
) -> Result<Fetched, Box<dyn std::error::Error + Send + Sync>> {
    let world = World { history: Arc::clone(&history), state: Arc::default() };
    let runtime = RuntimeManager::new(Arc::new(world.clone()), Arc::new(world.clone()));
    let inventory = Arc::new(Inventory::open(runtime.clone(), None)?);
    let gc = ImageGc::new(runtime, Arc::clone(&inventory)).with_probe(Arc::new(world.clone()));
    let policy = GcPolicy::new(HIGH, LOW, Duration::from_mins(2), None)?;
    let (order, rules) = match way {
        Way::Kubelet => (GcOrder::ListedSizes, NodePolicy::KUBELET.gc),
        Way::Lru => (GcOrder::Lru, policy.rules),
        Way::Cost | Way::Ahead => (GcOrder::Cost, policy.rules),
    };
    let policy = GcPolicy { order, rules, ..policy };
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: false };
    let ahead = Foresight::of(&history.starts);
    let mut starts = history.starts.iter().peekable();
    let mut fetched = Fetched::default();
    let mut seen = BTreeSet::new();
    let mut changed = 0;
    for pass in 0..days * DAY / PASS_EVERY {
        let end = (pass + 1) * PASS_EVERY;
        while let Some(start) = starts.next_if(|start| start.at < end) {
            changed = pass;
            let (bytes, again) = world.start(start, &mut seen);
            fetched.all += bytes;
            fetched.again += again;
            if way != Way::Kubelet {
                // A kubelet's collector hears of no pull and no start.
                let key = ImageKey::new(world.id(start.image), String::new());
                let took = Duration::from_millis(bytes * 1000 / LINK_BYTES);
                let cost = PullCost { bytes: ByteSize(bytes), duration: took, at: at(start.at) };
                let pulled = (bytes > 0).then_some(cost);
                inventory.record(&key, UseReport { pulled, ..UseReport::default() }, 1, at(start.at));
            }
        }
        if world.goes_on_until(end) {
            changed = pass;
        }
        let next = end + PASS_EVERY;
        let is_quiet = pass >= changed + PASSES_AFTER
            && pass % QUIET_PASSES_MAX != 0
            && starts.peek().is_none_or(|start| start.at >= next)
            && world.ends_after(next);
        if is_quiet {
            continue;
        }
        if world.used() * 100 >= history.disk * u64::try_from(HIGH)? {
            fetched.removed += match way {
                Way::Ahead => world.collect_ahead(&ahead, end),
                _ => gc.run(&request, at(end)).await?.removed().count() as u64,
            };
            fetched.collections += 1;
            fetched.left += world.used() * 100 / history.disk;
        } else {
            inventory.refresh(at(end)).await?;
        }
    }
    Ok(fetched)
}

fn at(seconds: u64) -> SystemTime {
    // In the twenty-first century, where clocks are.
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// A store, containers, a disk.
#[derive(Clone, Debug)]
struct World {
    history: Arc<History>,
    state: Arc<Mutex<NodeState>>,
}

#[derive(Debug, Default)]
struct NodeState {
    present: BTreeSet<usize>,
    /// Containers by number: which image, and when they are cleaned away.
    containers: BTreeMap<u64, (usize, u64)>,
    started: u64,
}

impl World {
    fn id(&self, image: usize) -> ImageId {
        let _ = self;
        ImageId::new(format!("sha256:{image:064x}"))
    }

    fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a pod: what had to be fetched, and what of that had been here before.
    fn start(&self, start: &super::histories::Start, seen: &mut BTreeSet<usize>) -> (u64, u64) {
        let mut state = self.lock();
        let (mut bytes, mut again) = (0, 0);
        if state.present.insert(start.image) {
            let others = state.present.iter().filter(|image| **image != start.image);
            let here: BTreeSet<usize> = others.flat_map(|image| &self.history.images[*image].layers).copied().collect();
            for layer in self.history.images[start.image].layers.iter().filter(|layer| !here.contains(layer)) {
                let packed = self.history.layers[*layer] * COMPRESSED_PERCENT / 100;
                bytes += packed;
                again += if seen.insert(*layer) { 0 } else { packed };
            }
        }
        state.started += 1;
        let number = state.started;
        state.containers.insert(number, (start.image, start.at + start.lasts + EXITED_FOR));
        (bytes, again)
    }

    /// True: containers ended.
    fn goes_on_until(&self, now: u64) -> bool {
        let mut state = self.lock();
        let before = state.containers.len();
        state.containers.retain(|_, (_, until)| *until > now);
        state.containers.len() < before
    }

    /// No container ends until then.
    fn ends_after(&self, time: u64) -> bool {
        self.lock().containers.values().all(|(_, until)| *until > time)
    }

    /// Frees down to the low threshold, knowing what comes.
    fn collect_ahead(&self, ahead: &Foresight, now: u64) -> u64 {
        let wanted = self.used().saturating_sub(self.history.disk * LOW.unsigned_abs() / 100);
        let mut state = self.lock();
        let used = state.containers.values().map(|(image, _)| *image).collect();
        let gone = ahead.choose(&self.history, &state.present, &used, wanted, now);
        for image in &gone {
            state.present.remove(image);
        }
        gone.len() as u64
    }

    fn used(&self) -> u64 {
        taken(&self.history, self.lock().present.iter().copied())
    }

    fn image(&self, image: usize) -> Image {
        let made = &self.history.images[image];
        let size = made.layers.iter().map(|layer| self.history.layers[*layer]).sum();
        Image {
            id: self.id(image),
            tags: vec![format!("registry.example/{}", made.name)],
            digests: Vec::new(),
            size: ByteSize(size),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        let image = usize::from_str_radix(name.strip_prefix("sha256:")?, 16).ok()?;
        self.lock().present.contains(&image).then_some(image)
    }
}

#[async_trait]
impl ImageService for World {
    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }

    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let present: Vec<usize> = self.lock().present.iter().copied().collect();
        Ok(present.into_iter().map(|image| Arc::new(self.image(image))).collect())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(self.find(&spec.image).map(|image| self.image(image)))
    }

    async fn pull(&self, _request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        Err(RuntimeError::unsupported("pods are started from outside"))
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        if let Some(image) = self.find(&spec.image) {
            self.lock().present.remove(&image);
        }
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        let used = ByteSize(self.used());
        let images = FilesystemUsage { measured_at: at(0), mountpoint: "/".into(), used, inodes_used: None };
        Ok(ImageFilesystems { images: vec![images.clone()], containers: vec![images], ..ImageFilesystems::default() })
    }
}

#[async_trait]
impl LocalStore for World {
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        let layer = |(number, bytes): (usize, &u64)| LayerFacts {
            id: number.to_string().into(),
            bytes: ByteSize(*bytes),
            inodes: None,
            held: false,
            folder: None,
        };
        // Those that are here, numbered anew.
        let present = &self.lock().present;
        let here: BTreeSet<usize> =
            present.iter().flat_map(|image| &self.history.images[*image].layers).copied().collect();
        let numbers: BTreeMap<usize, u32> = here.iter().copied().zip(0..).collect();
        let parts = |image: usize| self.history.images[image].layers.iter().map(|layer| numbers[layer]);
        let images = present.iter().map(|image| (self.id(*image), parts(*image).collect())).collect();
        let layers = here.iter().map(|number| layer((*number, &self.history.layers[*number]))).collect();
        Ok(Some(LayerGraph { layers, images, certainty: Certainty::Exact }))
    }
}

#[async_trait]
impl ContainerService for World {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let container = |(number, (image, _)): (&u64, &(usize, u64))| Container {
            id: number.to_string(),
            sandbox_id: format!("sandbox-{number}"),
            name: "main".to_owned(),
            image: ContainerImage { id: self.id(*image).to_string(), ..ContainerImage::default() },
            state: ContainerState::Running,
            created_at: SystemTime::UNIX_EPOCH,
            labels: BTreeMap::new(),
        };
        Ok(self.lock().containers.iter().map(container).collect())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn mounted_images(&self, _container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }
}

impl DiskProbe for World {
    fn look(&self, _directory: &Path) -> io::Result<DiskUse> {
        let (capacity, used) = (ByteSize(self.history.disk), ByteSize(self.used()));
        Ok(DiskUse::of(capacity, capacity.saturating_sub(used)))
    }
}
