//! Leases of images for the pods of the node. A lease protects an image as long as a pod waits for the image. The list
//! of waiting pods is replaced as a whole and not stored, so no lease outlives its pod. Until the first list after a
//! start, every image is leased, at most for the duration of a lease.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use crate::{
    image::{Image, Reference},
    inventory::{
        Inventory, PinPattern,
        pins::{Form, digest_of},
        reference_match::{bare_id, tail},
    },
};

/// A pod that is bound to the node and has containers that do not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPod {
    /// `NAMESPACE/NAME`.
    pub pod: Arc<str>,
    /// The images of the missing containers, as spelled in the pod. A text that is no reference leases no image.
    pub images: Vec<Arc<str>>,
}

/// The pods that wait for each image name. Names and digests are looked up; prefixes of ids are compared one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodLeases {
    by_name: HashMap<String, Vec<Arc<str>>>,
    by_digest: HashMap<String, Vec<Arc<str>>>,
    /// For each name in `by_name`: the part after the last slash, with and without `:latest`.
    tails: HashSet<String>,
    by_prefix: BTreeMap<String, (PinPattern, Vec<Arc<str>>)>,
}

impl PodLeases {
    fn new(pods: &[WaitingPod]) -> Self {
        let mut leases = Self::default();
        for (pod, name) in pods.iter().flat_map(|it| it.images.iter().map(|name| (Arc::clone(&it.pod), name))) {
            // A name with `*` is no reference and would be parsed as a glob.
            let Some(Ok(pattern)) = (!name.contains('*')).then(|| name.parse::<PinPattern>()) else { continue };
            match &pattern.form {
                Form::Name(name) => {
                    // Normalisation changes the part after the last slash of a name only by adding `:latest`.
                    let tail = tail(name);
                    let tails = [Some(tail), tail.strip_suffix(":latest")];
                    leases.tails.extend(tails.into_iter().flatten().map(str::to_owned));
                    leases.by_name.entry(name.clone()).or_default().push(pod);
                }
                Form::Content(digits) => leases.by_digest.entry(digits.clone()).or_default().push(pod),
                Form::Glob(_) | Form::Digits(..) => {
                    let named = leases.by_prefix.entry(name.trim().to_owned());
                    named.or_insert_with(|| (pattern, Vec::new())).1.push(pod);
                }
            }
        }
        leases
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.by_digest.is_empty() && self.by_prefix.is_empty()
    }

    pub(crate) fn pods_of(&self, image: &Image) -> Vec<String> {
        if self.is_empty() {
            return Vec::new();
        }
        let digests = image.digests.iter().filter_map(|name| digest_of(name));
        let digests = digests.chain([bare_id(image.id.as_str())]);
        let by_digest = digests.filter_map(|digits| self.by_digest.get(digits));
        let by_name = image.tags.iter().chain(&image.digests).filter_map(|name| self.called(name));
        let by_prefix = self.by_prefix.values().filter(|(pattern, _)| pattern.matches(image)).map(|(_, pods)| pods);
        let pods = by_digest.chain(by_name).chain(by_prefix).flatten();
        let mut pods: Vec<String> = pods.map(ToString::to_string).collect();
        pods.sort();
        pods.dedup();
        pods
    }

    /// The pods that wait for a listed name. Most listed names are already normalised, so few are parsed.
    fn called(&self, name: &str) -> Option<&Vec<Arc<str>>> {
        self.by_name.get(name).or_else(|| {
            let parsed = self.tails.contains(tail(name)).then(|| name.parse::<Reference>())?;
            self.by_name.get(&parsed.ok()?.canonical().to_string())
        })
    }
}

impl Inventory {
    /// Leases images to exactly these pods, until the next call. If a pod waits for one name of an image, no collection
    /// removes the image, and other image managers see it as pinned.
    pub fn lease_to_pods(&self, pods: &[WaitingPod]) {
        let leases = PodLeases::new(pods);
        let state = &mut *self.lock();
        self.leases.lock().pods_unknown_until = None;
        if state.pod_leases == leases {
            return;
        }
        state.pod_leases = leases;
        // The snapshot shows the change without another pass.
        for entry in state.snapshot.iter_mut().flat_map(|snapshot| &mut Arc::make_mut(snapshot).entries) {
            let awaited_by = state.pod_leases.pods_of(&entry.image);
            if entry.awaited_by != awaited_by {
                Arc::make_mut(entry).awaited_by = awaited_by;
            }
        }
    }

    pub fn awaited_by(&self, image: &Image) -> Vec<String> {
        self.lock().pod_leases.pods_of(image)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        time::{Duration, SystemTime},
    };

    use proptest::prelude::*;

    use super::*;
    use crate::{
        image::{ByteSize, ImageId, ImageSpec, ImageUser},
        inventory::reference_match::tests::name,
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

    proptest! {
        #[test]
        fn the_pods_of_an_image_are_those_with_a_name_that_matches(
            id in prop_oneof!["sha256:0{64}", "sha256:01{63}", "0{66}", "x"],
            listed in proptest::collection::vec(name(), 0..4),
            awaited in proptest::collection::vec(name(), 0..8),
        ) {
            let (digests, tags) = listed.into_iter().partition(|name| name.contains('@'));
            let image = Image { id: ImageId::new(id), tags, digests, ..image("", "") };
            let is_leased = |name: &String| name.parse::<PinPattern>().is_ok_and(|pattern| pattern.matches(&image));
            let matching = awaited.iter().enumerate().filter(|(_, name)| is_leased(name));
            let matching: BTreeSet<String> = matching.map(|(at, _)| at.to_string()).collect();
            let pods: Vec<WaitingPod> =
                awaited.iter().enumerate().map(|(at, name)| waiting(&at.to_string(), &[name])).collect();
            prop_assert_eq!(PodLeases::new(&pods).pods_of(&image), matching.into_iter().collect::<Vec<_>>());
        }
    }
}
