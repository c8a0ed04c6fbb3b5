//! The objects of `imagelet.dev/v1alpha1`: `ImageSet`, `ClusterImageSet` and `NodeImages`.

mod image_set;
mod known_sets;
mod node_images;
mod pod_selector;
mod set_spec;
mod set_status;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use self::{
    image_set::{ImageSet, PLACES, SetName, SetObject},
    known_sets::{KnownSets, SetLimit, SharedSets},
    node_images::{ImagePhase, ImageReport, NodeImages, SetPhase, SetReport},
    set_spec::{SetImage, SetPullPolicy, SetScope},
    set_status::{FailureCount, SetStatus, WaveStatus},
};
#[cfg(test)]
pub(crate) use self::{pod_selector::PodSelector, values::NodeLimit};
pub use self::{set_spec::SetRejection, set_status::NodeCounts};

pub(crate) const PREFETCH_GROUP: &str = "imagelet.dev/v1alpha1";
/// The CustomResourceDefinitions, as input of `kubectl apply -f`.
pub const CRDS: &str = include_str!("crds.yaml");

pub(crate) const IMAGES_MAX: usize = 64;
/// Maximum sets of one report. An API object has at most 1.5 MB.
pub(crate) const REPORTED_SETS_MAX: usize = 128;
