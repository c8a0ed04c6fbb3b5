//! Leases of images for the pods of the node. A lease protects an image as long as a pod waits for the image. The list
//! of waiting pods is replaced as a whole and not stored, so no lease outlives its pod. Until the first list after a
//! start, every image is leased, at most for the duration of a lease.

use std::{collections::BTreeMap, sync::Arc};

use crate::image::Image;
use crate::inventory::{Inventory, InventoryState, Snapshot, pins::index::PatternIndex};

/// A pod that is bound to the node and has containers that do not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPod {
    /// `NAMESPACE/NAME`.
    pub pod: Arc<str>,
    /// The images of the missing containers, as spelled in the pod. A text that is no reference leases no image.
    pub images: Vec<Arc<str>>,
}

/// The image names that pods wait for, each with the pods that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodLeases(pub(crate) PatternIndex<Vec<Arc<str>>>);

impl PodLeases {
    fn new(pods: &[WaitingPod]) -> Self {
        let mut by_name: BTreeMap<&str, Vec<Arc<str>>> = BTreeMap::new();
        for WaitingPod { pod, images } in pods {
            for image in images {
                by_name.entry(image).or_default().push(Arc::clone(pod));
            }
        }
        // A name with `*` is no reference and would be parsed as a glob.
        let names = by_name.into_iter().filter(|(name, _)| !name.contains('*'));
        Self(PatternIndex::of(names.filter_map(|(name, pods)| Some((name.parse().ok()?, pods))).collect()))
    }

    /// The pods that wait for an image, sorted.
    pub(crate) fn pods_of(&self, image: &Image) -> Vec<String> {
        let mut pods: Vec<String> = self.0.find(image).into_iter().flatten().map(ToString::to_string).collect();
        pods.sort();
        pods.dedup();
        pods
    }
}

impl Inventory {
    /// Leases images to exactly these pods, until the next call. If a pod waits for one name of an image, no collection
    /// removes the image, and other image managers see it as pinned.
    pub fn lease_to_pods(&self, pods: &[WaitingPod]) {
        let leases = PodLeases::new(pods);
        let mut state = self.lock();
        self.leases.lock().pods_unknown_until = None;
        if state.pod_leases != leases {
            state.pod_leases = leases;
            state.redraw_awaited();
        }
    }

    pub fn awaited_by(&self, image: &Image) -> Vec<String> {
        self.lock().pod_leases.pods_of(image)
    }
}

impl InventoryState {
    /// Applies changed leases to the snapshot without waiting for the next pass.
    fn redraw_awaited(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let mut snapshot = Snapshot::clone(snapshot);
        for entry in &mut snapshot.entries {
            let awaited_by = self.pod_leases.pods_of(&entry.image);
            if entry.awaited_by != awaited_by {
                Arc::make_mut(entry).awaited_by = awaited_by;
            }
        }
        self.snapshot = Some(Arc::new(snapshot));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{
        image::{ByteSize, ImageId, ImageSpec, ImageUser},
        ports::RuntimeManager,
        testing::FakeRuntime,
    };

    fn image(tag: &str, digest: &str) -> Image {
        Image {
            id: ImageId::new(format!("sha256:{}", "ab".repeat(32))),
            tags: vec![tag.to_owned()],
            digests: vec![format!("ghcr.io/team/app@sha256:{}", digest.repeat(32))],
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        }
    }

    fn waiting(pod: &str, images: &[&str]) -> WaitingPod {
        WaitingPod { pod: pod.into(), images: images.iter().map(|image| (*image).into()).collect() }
    }

    #[test]
    fn a_pod_leases_the_images_that_its_names_name() {
        let by_digest = format!("ghcr.io/team/app:other@sha256:{}", "cd".repeat(32));
        for (name, is_leased) in [
            ("busybox:1", true),
            ("docker.io/library/busybox:1", true),
            ("busybox", false),
            ("busybox:2", false),
            (by_digest.as_str(), true),
            ("abababababab", true),
            ("*", false),
            ("busy*", false),
            ("", false),
            ("UPPER", false),
        ] {
            let leases = PodLeases::new(&[waiting("default/web", &[name])]);
            let image = image("docker.io/library/busybox:1", "cd");
            assert_eq!(!leases.0.find(&image).is_empty(), is_leased, "{name}");
            assert_eq!(leases.pods_of(&image).len(), usize::from(is_leased), "{name}");
        }
    }

    #[test]
    fn an_image_names_each_of_its_pods_once_and_in_order() {
        let pods = [waiting("shop/web", &["busybox:1", "docker.io/library/busybox:1"]), waiting("a/b", &["busybox:1"])];
        let leases = PodLeases::new(&pods);
        assert_eq!(leases.pods_of(&image("docker.io/library/busybox:1", "cd")), ["a/b", "shop/web"]);
    }

    #[tokio::test]
    async fn a_changed_list_of_pods_shows_without_a_pass() {
        let fake = FakeRuntime::new();
        fake.preload("busybox:1", "busybox:1", 10);
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake));
        let inventory = Inventory::open(runtime, None).unwrap();
        let awaited = |inventory: &Inventory| inventory.snapshot().unwrap().entries[0].awaited_by.clone();
        inventory.refresh(SystemTime::now()).await.unwrap();
        inventory.lease_to_pods(&[waiting("default/web", &["busybox:1"])]);
        assert_eq!(awaited(&inventory), ["default/web"]);
        assert_eq!(inventory.awaited_by(&image("docker.io/library/busybox:1", "cd")), ["default/web"]);
        inventory.refresh(SystemTime::now()).await.unwrap();
        assert_eq!(awaited(&inventory), ["default/web"]);
        inventory.lease_to_pods(&[]);
        assert_eq!(awaited(&inventory), [""; 0]);
    }

    #[tokio::test]
    async fn until_the_first_list_of_pods_all_images_are_leased_and_no_longer_than_a_lease_lasts() {
        let now = SystemTime::now();
        let fake = FakeRuntime::new();
        let id = fake.preload("busybox:1", "busybox:1", 10);
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake));
        let inventory = Inventory::open(runtime, None).unwrap();
        inventory.leases.start(Duration::from_mins(10), now);
        assert_eq!(inventory.leases.until(&id, now), None);
        inventory.leases.expect_pods(now);
        assert!(inventory.leases.until(&id, now + Duration::from_mins(9)).is_some());
        assert_eq!(inventory.leases.until(&id, now + Duration::from_mins(11)), None);
        inventory.lease_to_pods(&[]);
        assert_eq!(inventory.leases.until(&id, now + Duration::from_mins(9)), None);
    }
}
