//! The ports to whatever stores images and runs containers; [`RuntimeManager`] is their only caller.

mod beside;
mod container;
mod details;
mod error;
mod estimate;
mod fault;
mod fault_text;
mod image_service;
mod import;
mod layers;
mod listing;
mod make_room;
mod manager;
mod operations;
mod pull_observer;
mod sandbox_info;
mod usage;

pub use beside::ContainersBeside;
pub use container::{Container, ContainerService, ContainerState, NoContainers, Sandbox, SandboxImage};
pub use details::{ImageDetails, JsonText, LayerDetails, chain_ids};
pub use error::{RuntimeError, RuntimeErrorKind, error_chain};
pub use estimate::PullEstimate;
pub use fault::{ErrorClass, Fault, Hop};
pub use image_service::{
    EncodedPod, FilesystemUsage, ImageFilesystems, ImageService, LayerState, Progress, PullEvent, PullRequest,
    SandboxConfig, no_progress,
};
pub use import::{
    ForwardReason, ImageBacking, ImageImporter, ImportError, ImportMode,
    ImportSite, ImportStage, ImportStanding, ImportedDocument, ImportedImage, ImportedLayer, ImportingImages,
    LayerImport, LayerSink, OpenedSite, PullWay, RegistrySetting, RegistrySettings, RuntimeConfiguration, RuntimeFacts,
    SnapshotterPlace, StagedTree, Taken, WayTaken,
};
pub use layers::{Certainty, Freed, LayerFacts, LayerGraph, LayerShare, LayerSource};
pub use listing::Listing;
pub use make_room::{MakeRoom, RoomMade, RoomWanted};
pub use manager::{Pod, RuntimeManager};
pub use pull_observer::{PullEnd, PullObserver};
pub use sandbox_info::default_sandbox_image;
pub use usage::StoreMeasure;
