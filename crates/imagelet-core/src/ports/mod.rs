//! The ports to an image store and to a container runtime. [`RuntimeManager`] is their only caller.

mod containers;
mod details;
mod image_service;
mod layers;
mod local_store;
mod manager;
mod presence;
mod pull_progress;
mod pull_request;
mod pull_route;
mod removal;
mod space_request;
mod verify_report;

pub use containers::{
    CombinedContainers, Container, ContainerImage, ContainerService, ContainerState, NoContainers, Sandbox,
    SandboxImage, default_sandbox_image,
};
pub use details::{
    ImageDetails, JsonText, LayerDetails, Members, PulledArtifact, PulledLayer, PulledManifest, chain_ids,
};
pub use image_service::{FilesystemUsage, ImageFilesystems, ImageService, Listing, StoreMeasure};
pub use layers::{Certainty, Freed, LayerFacts, LayerGraph, LayerShare, LayerSource};
pub use local_store::{
    ArchivePlace, Credentials, ExportRequest, ExportedImage, ImportOutcome, ImportRequest, LocalStore, MountOptions,
    MountedImage, PullEstimate, PullRemains, VerifyProgress,
};
pub use manager::{Pod, RuntimeManager};
pub use presence::{ImageBacking, UsableImages};
pub use pull_progress::{
    LayerState, NextRequest, Progress, PullEnd, PullEvent, PullProgress, PullTimes, PullWatcher, PulledLayerProgress,
    TokenExchange, no_progress, unwatched,
};
pub use pull_request::{EncodedPod, Patience, PullRequest, RegistryHost};
pub use pull_route::{ForwardReason, PULLS, PullRoute};
pub use removal::RemovableNames;
pub use space_request::{MakeRoom, RemovedImage, RoomMade, RoomWanted};
pub use verify_report::{BlobsCheck, Finding, Findings, ImageCheck, LayerCheck, LayerName, VerifyReport};

pub fn metric_families() -> impl Iterator<Item = &'static crate::metrics::Family> {
    manager::FAMILIES.iter().copied().chain([&PULLS])
}
