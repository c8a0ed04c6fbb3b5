//! Finds the containers and sandboxes that use each image, from the runtime's lists (`docs/spec/gc.md §5`).

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    iter::{self, Peekable},
    time::SystemTime,
};

use crate::inventory::{reference_match::ReferenceMatches, sandboxes::SandboxImages};
use crate::{
    image::{Image, ImageId, ImageKey},
    ports::{Container, Listing, Pod, Sandbox},
};

pub(crate) const USER_LENGTH_MAX: usize = 512;

#[derive(Clone, Debug, Default)]
pub(crate) struct ImageUses {
    pub(crate) by: Vec<String>,
    pub(crate) has_containers: bool,
    pub(crate) fresh: Vec<Fresh>,
}

/// The uses of each image, including images that are used but not listed.
pub(crate) type Users = BTreeMap<ImageKey, ImageUses>;

/// A container that was absent in the previous pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    pub(crate) created: Option<SystemTime>,
    pub(crate) user: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) images: Listing,
    pub(crate) pods: Vec<Pod>,
    pub(crate) mounts: BTreeMap<String, Vec<String>>,
    pub(crate) sandboxes: SandboxImages,
    /// Whether the runtime confirmed that all containers and sandboxes missing from its lists no longer exist.
    pub(crate) missing_are_gone: bool,
}

impl Survey {
    /// The number of containers of the runtime. Mounts of the embedded store do not count.
    pub(crate) fn runtime_containers(&self) -> usize {
        self.pods.iter().flat_map(|pod| &pod.containers).filter(|container| is_of_runtime(container)).count()
    }
}

pub(super) fn in_order_of_keys(one: &Image, other: &Image) -> Ordering {
    one.id.cmp(&other.id).then_with(|| one.spec.runtime_handler.cmp(&other.spec.runtime_handler))
}

/// Advances `row`, which is sorted by key, to a key. Returns the value of the key, if any.
pub(super) fn find<'a, T>(row: &mut Peekable<impl Iterator<Item = (&'a ImageKey, T)>>, key: &ImageKey) -> Option<T> {
    while row.next_if(|(other, _)| *other < key).is_some() {}
    row.next_if(|(other, _)| *other == key).map(|(_, found)| found)
}

/// The uses of each image, and the image id of each sandbox. The id replaces the image name of a sandbox, because a
/// name may move to another image later. `is_fresh` returns whether a container id is new.
pub(crate) fn users(survey: &Survey, is_fresh: impl Fn(&str) -> bool) -> (Users, SandboxImages) {
    let containers = || survey.pods.iter().flat_map(|pod| pod.containers.iter().map(move |it| (pod, it)));
    let mounted = |container: &Container| survey.mounts.get(&container.id).into_iter().flatten();
    let texts = containers()
        .flat_map(|(_, container)| container.image.names().into_iter().chain(mounted(container).map(String::as_str)));
    let of_sandboxes = survey.sandboxes.values().flatten().map(String::as_str);
    let names = ReferenceMatches::of(&survey.images, texts.chain(of_sandboxes));
    let (mut users, mut sandboxes) = (Users::new(), SandboxImages::new());
    for (pod, container) in containers() {
        let user = user_text(pod, container);
        // A used image counts although it is not listed, because it may have been removed in the meantime.
        let own = ImageKey::new(ImageId::new(&container.image.id), container.image.spec.runtime_handler.clone());
        let named = container.image.names().into_iter().flat_map(|text| names.find(text)).map(Image::key);
        let volumes = mounted(container).flat_map(|text| names.find(text)).map(Image::key);
        let volume_user = format!("{user} (volume)");
        let by_user = iter::once(own).chain(named).map(|key| (key, &user));
        let fresh = is_fresh(&container.id).then(|| Fresh::of(pod, container));
        let mut found: Vec<ImageKey> = Vec::new();
        for (key, user) in by_user.chain(volumes.map(|key| (key, &volume_user))) {
            let uses = users.entry(key.clone()).or_default();
            uses.has_containers |= is_of_runtime(container);
            if uses.by.last() != Some(user) {
                uses.by.push(user.clone());
            }
            if !found.contains(&key) {
                uses.fresh.extend(fresh.clone());
                found.push(key);
            }
        }
    }
    for (pod, sandbox) in survey.pods.iter().flat_map(|pod| pod.sandboxes.iter().map(move |it| (pod, it))) {
        let Some(image) = survey.sandboxes.get(&sandbox.id).and_then(Option::as_ref) else { continue };
        for image in names.find(image) {
            sandboxes.entry(sandbox.id.clone()).or_insert_with(|| Some(image.id.to_string()));
            let uses = users.entry(image.key()).or_default();
            uses.has_containers = true;
            let user = sandbox_text(pod, sandbox);
            // A pod with several sandboxes of the image is one user.
            if !uses.by.contains(&user) {
                uses.by.push(user);
            }
        }
    }
    (users, sandboxes)
}

fn is_of_runtime(container: &Container) -> bool {
    !container.sandbox_id.is_empty()
}

impl Fresh {
    fn of(pod: &Pod, container: &Container) -> Self {
        let created = Some(container.created_at).filter(|at| *at > SystemTime::UNIX_EPOCH);
        let user = (!pod.name.is_empty()).then(|| format!("{}/{}", pod.namespace, pod.name));
        Self { created, user: user.filter(|user| user.len() <= USER_LENGTH_MAX) }
    }
}

fn user_text(pod: &Pod, container: &Container) -> String {
    let name = if container.name.is_empty() { &container.id } else { &container.name };
    match (pod.name.is_empty(), container.sandbox_id.is_empty()) {
        (false, _) => format!("{}/{}/{name}", pod.namespace, pod.name),
        (true, true) => format!("mount {name}"),
        (true, false) => format!("container {name}"),
    }
}

fn sandbox_text(pod: &Pod, sandbox: &Sandbox) -> String {
    if pod.name.is_empty() {
        return format!("sandbox {}", sandbox.id);
    }
    format!("{}/{} (sandbox)", pod.namespace, pod.name)
}
