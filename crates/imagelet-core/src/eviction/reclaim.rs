//! What is given up before any pod, by what is short and how the disks are laid out.

use super::Signal;

/// How images, writable layers and the kubelet's own files share disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One disk for everything.
    Single,
    /// Images and writable layers on a separate disk.
    DedicatedImages,
    /// Images on a separate disk; writable layers with the kubelet's files.
    Split,
}

impl Layout {
    /// A split counts only with dedicated images, as in the kubelet.
    pub fn of(has_dedicated_images: bool, is_split: bool) -> Self {
        match (has_dedicated_images, is_split) {
            (false, _) => Self::Single,
            (true, false) => Self::DedicatedImages,
            (true, true) => Self::Split,
        }
    }

    /// The name in API responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::DedicatedImages => "dedicated-images",
            Self::Split => "split",
        }
    }
}

/// A way to reclaim space without evicting a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Remove dead containers, so that their images become unused.
    Containers,
    /// Remove unused images.
    Images,
}

impl Reclaim {
    /// The kubelet's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Containers => "DeleteAllUnusedContainers",
            Self::Images => "DeleteUnusedImages",
        }
    }
}

/// The reclaim steps, in order, after a threshold of this signal is crossed. Empty: only evicting a pod helps.
pub fn reclaim_order(layout: Layout, signal: Signal) -> &'static [Reclaim] {
    const BOTH: &[Reclaim] = &[Reclaim::Containers, Reclaim::Images];
    let of_disk = |on_single, on_dedicated, on_split| match layout {
        Layout::Single => on_single,
        Layout::DedicatedImages => on_dedicated,
        Layout::Split => on_split,
    };
    match signal {
        Signal::ImagefsAvailable | Signal::ImagefsInodesFree => of_disk(BOTH, BOTH, &[Reclaim::Images]),
        Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree => of_disk(BOTH, BOTH, &[Reclaim::Containers]),
        Signal::NodefsAvailable | Signal::NodefsInodesFree => of_disk(BOTH, &[], &[Reclaim::Containers]),
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn every_vector_of_node_reclaim_holds() {
        let cases = vectors("gc-node-reclaim.json");
        assert_eq!(cases.len(), 24);
        for case in cases {
            let input = &case["input"];
            let layout =
                Layout::of(input["dedicated_image_fs"] == true, input["container_fs_split_from_image_fs"] == true);
            let signal = input["signal"].as_str().unwrap().parse().unwrap();
            let calls: Vec<&str> = reclaim_order(layout, signal).iter().map(|reclaim| reclaim.name()).collect();
            let wanted: Vec<&str> = case["expected"]["reclaim_calls_in_order"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_str().unwrap())
                .collect();
            assert_eq!(calls, wanted, "{}", case["name"]);
        }
    }

    #[test]
    fn a_split_without_a_disk_for_images_is_none() {
        assert_eq!(Layout::of(false, true), Layout::Single);
    }
}
