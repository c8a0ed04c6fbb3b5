//! The checked configuration, as the rest of the program reads it.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use imagelet_core::{
    eviction::Threshold,
    gc::{InodeMarks, KeepRule, KeepRules, ReliefMarks},
    image::{Percent, PinnedNames},
    inventory::PinPattern,
    manager::{Compatibility, PullSettings},
    records::VerificationPolicy,
    runtime::ImportMode,
};
use imagelet_oci::{EngineConfig, RegistryConfig};

use super::{environment::Surroundings, keys::CriCallers};

/// The configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// When to collect: the kubelet's thresholds and ages.
    pub(crate) gc: GcSettings,
    /// What else determines a collection.
    pub(crate) collection: Collection,
    /// What the kubelet does with images.
    pub(crate) node: NodeSettings,
    /// How the daemon pulls.
    pub(crate) pulls: PullSettings,
    /// Which behavior holds where the kubelet's has a weakness.
    pub(crate) compatibility: Compatibility,
    /// Which present images need proof; `None`: the feature gate is off, and nothing is recorded.
    pub(crate) verification: Option<VerificationPolicy>,
    /// For how long a proof holds; `None`: without end.
    pub(crate) record_age_max: Option<Duration>,
    /// How long a call of a runtime may take.
    pub(crate) runtime_request_timeout: Duration,
    /// Where the daemon listens.
    pub(crate) socket: PathBuf,
    /// What callers may do over CRI.
    pub(crate) callers: CriCallers,
    /// Address for HTTP, if any.
    pub(crate) http: Option<String>,
    /// Where images are kept.
    pub(crate) backend: Backend,
    /// Names whose images are pinned.
    pub(crate) pinned: PinnedNames,
    /// Names of sandbox images; `None`: as the kubelet, which knows none.
    pub(crate) sandbox_images: Option<Vec<PinPattern>>,
    /// How registries are asked.
    pub(crate) registry: RegistryConfig,
    /// The node's own docker configuration; `None`: search for it.
    pub(crate) docker_config: Option<PathBuf>,
    /// Credential providers, if any.
    pub(crate) providers: Option<ProviderSettings>,
    /// The process's environment, as far as credentials are concerned.
    pub(crate) surroundings: Surroundings,
    /// How often images are detected.
    pub(crate) detection_period: Duration,
    /// For how long an image is used under `Always` during an outage of its registry; `None`: not at all.
    pub(crate) stale_max: Option<Duration>,
}

/// Credential providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderSettings {
    /// The file or folder that lists them.
    pub(crate) config: PathBuf,
    /// The folder of the executables.
    pub(crate) binaries: PathBuf,
    /// After this time one is ended.
    pub(crate) timeout: Duration,
}

/// When images are collected, and how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GcSettings {
    /// Start when the filesystem is this full.
    pub(crate) high: Percent,
    /// Stop when it is no fuller than this.
    pub(crate) low: Percent,
    /// No image younger than this is collected.
    pub(crate) age_min: Duration,
    /// Images unused for longer are collected. `None`: age alone removes nothing.
    pub(crate) age_max: Option<Duration>,
}

/// What collection does beyond the kubelet's thresholds and ages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// How often to collect; `None`: on command only.
    pub(crate) period: Option<Duration>,
    /// Collect for a pull that lacks space.
    pub(crate) for_pulls: bool,
    /// Whether the selected images are removed.
    pub(crate) mode: CollectionMode,
    /// Which images are removed first.
    pub(crate) order: CollectionOrder,
    /// Watermarks of inodes; `None`: inodes are ignored.
    pub(crate) inodes: Option<InodeMarks>,
    /// What is removed although the thresholds are out of reach.
    pub(crate) relief: ReliefMarks,
    /// What is kept.
    pub(crate) keep: Vec<KeepRule>,
    /// Only images that imagelet pulled or adopted are removed.
    pub(crate) only_owned: bool,
    /// The kubelet's data root whose pull records adopt images.
    pub(crate) adopt_from: Option<PathBuf>,
    /// How long a lease holds an image.
    pub(crate) lease_for: Duration,
    /// Size limit of the decision log; `None`: no log.
    pub(crate) decisions_max: Option<NonZeroU64>,
}

impl Collection {
    /// What is kept.
    pub(crate) fn rules(&self) -> KeepRules {
        KeepRules { keep: self.keep.clone(), only_owned: self.only_owned }
    }
}

/// Whether the selected images are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectionMode {
    Enforce,
    /// They are only reported.
    Shadow,
}

impl CollectionMode {
    /// The word of the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

/// Which images are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectionOrder {
    /// Those whose loss costs least for the bytes that only they take.
    Cost,
    /// The least recently used.
    Lru,
}

/// What a kubelet on this node does with images.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeSettings {
    /// How many images the Node's status lists; `None`: all.
    pub(crate) status_images_max: Option<usize>,
    /// How many pods run on the node; the pull records in memory are sized by it.
    pub(crate) pods_max: usize,
    /// When the kubelet reports pressure.
    pub(crate) thresholds: Vec<Threshold>,
    /// Where the kubelet asks for images.
    pub(crate) image_endpoint: String,
    /// The kubelet knows a disk of images and one of writable layers, as with CRI-O alone.
    pub(crate) splits_disks: bool,
}

/// Where images are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Embedded(StoreSettings),
    Cri(RuntimeSettings),
}

/// The embedded store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    pub(crate) engine: EngineConfig,
    /// Endpoint of the runtime that runs containers from it, if any, and how long its calls may take.
    pub(crate) runtime: Option<(String, Duration)>,
}

/// A CRI runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeSettings {
    /// Its endpoint.
    pub(crate) endpoint: String,
    /// For how long a pull may show no sign of life; `None`: no limit.
    pub(crate) stall_max: Option<Duration>,
    /// Whether pulls are imported.
    pub(crate) import: ImportMode,
    /// How imports fetch and unpack; the state of the node is in its directory.
    pub(crate) engine: EngineConfig,
}
