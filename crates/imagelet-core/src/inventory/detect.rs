//! Detection: the present images, their first sight and their users, from the runtime's lists (`docs/spec/gc.md §5`).

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::SystemTime};

use crate::inventory::{reference_match::ReferenceMatches, sandboxes::SandboxImages};
use crate::{
    image::{ByteSize, Image, ImageId, ImageKey},
    runtime::{Container, Listing, Pod, Sandbox},
};

/// The record of an image between passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Detect time of the first pass that saw it; `None` sorts first.
    pub(crate) first_seen: Option<SystemTime>,
    pub(crate) last_used: Option<SystemTime>,
    /// The handler at the first sight.
    pub(crate) handler: String,
    /// The reported size.
    pub(crate) size: ByteSize,
    /// The runtime requests that the image stays.
    pub(crate) pinned: bool,
}

pub(crate) type Records = BTreeMap<ImageKey, Record>;

/// Users by image, including images that are used but not listed.
pub(crate) type Users = BTreeMap<ImageKey, Vec<String>>;

/// Users by image, and the new containers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) by_image: Users,
    pub(crate) fresh: BTreeMap<ImageKey, Vec<Fresh>>,
    /// Image id of each sandbox, where listed: a name may move to another image later.
    pub(crate) sandboxes: SandboxImages,
}

/// A container that was not there at the previous pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// Creation by the wall clock; `None` where the runtime does not report it.
    pub(crate) created: Option<SystemTime>,
    /// `NAMESPACE/POD` of a pod's container.
    pub(crate) user: Option<String>,
}

/// The runtime's answers for one pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) images: Listing,
    pub(crate) pods: Vec<Pod>,
    pub(crate) mounts: BTreeMap<String, Vec<String>>,
    pub(crate) sandboxes: SandboxImages,
    /// The runtime confirmed that each container and sandbox missing from its lists is gone.
    pub(crate) missing_are_gone: bool,
}

impl Survey {
    /// Runtime containers, without the mounts of the embedded store.
    pub(crate) fn runtime_containers(&self) -> usize {
        let of_runtime = |container: &&Container| !container.sandbox_id.is_empty();
        self.pods.iter().flat_map(|pod| &pod.containers).filter(of_runtime).count()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DetectTimes {
    /// Time of the request: the first sight of new images.
    pub(crate) detected_at: Option<SystemTime>,
    /// Time after the listings: the last use of images in use.
    pub(crate) now: SystemTime,
}

pub(crate) fn detect(records: &mut Records, survey: &Survey, users: &Users, times: DetectTimes) {
    let mut listed: Vec<&Image> = survey.images.iter().map(Arc::as_ref).collect();
    // A duplicate image keeps the order of the listing.
    listed.sort_by(|one, other| in_order_of_keys(one, other));
    let mut listed = listed.into_iter().peekable();
    let mut used = users.keys().peekable();
    let mut arrived = Vec::new();
    // All three are sorted by key, so one walk without copies joins them.
    records.retain(|key, record| {
        let mut is_listed = false;
        while let Some(image) = listed.peek() {
            match image.cmp_key(key) {
                Ordering::Less => arrived.push(*image),
                // The later entry of a duplicate wins for updated fields.
                Ordering::Equal => {
                    (record.size, record.pinned) = (image.size, image.pinned);
                    is_listed = true;
                }
                Ordering::Greater => break,
            }
            listed.next();
        }
        while used.next_if(|other| *other < key).is_some() {}
        if is_listed && used.next_if(|other| *other == key).is_some() {
            record.last_used = record.last_used.max(Some(times.now));
        }
        is_listed
    });
    arrived.extend(listed);
    for image in arrived {
        let key = image.key();
        let last_used = users.contains_key(&key).then_some(times.now);
        // The first entry of a duplicate wins for fields set once.
        let record = records.entry(key).or_insert_with(|| Record {
            first_seen: times.detected_at,
            last_used,
            handler: image.spec.runtime_handler.clone(),
            size: image.size,
            pinned: image.pinned,
        });
        (record.size, record.pinned) = (image.size, image.pinned);
    }
}

pub(super) fn in_order_of_keys(one: &Image, other: &Image) -> Ordering {
    one.id.cmp(&other.id).then_with(|| one.spec.runtime_handler.cmp(&other.spec.runtime_handler))
}

pub(crate) fn users(survey: &Survey) -> Users {
    uses(survey, |_| false).by_image
}

/// Users by image, and the containers whose ids are new.
pub(crate) fn uses(survey: &Survey, is_fresh: impl Fn(&str) -> bool) -> Uses {
    let containers = || survey.pods.iter().flat_map(|pod| pod.containers.iter().map(move |it| (pod, it)));
    let mounted = |container: &Container| survey.mounts.get(&container.id).into_iter().flatten();
    let texts = containers().flat_map(|(_, container)| {
        let own = [&container.image_id, &container.image_ref, &container.image.image].into_iter();
        own.chain(mounted(container)).map(String::as_str)
    });
    let of_sandboxes = survey.sandboxes.values().flatten().map(String::as_str);
    let names = ReferenceMatches::of(&survey.images, texts.chain(of_sandboxes));
    let mut uses = Uses::default();
    for (pod, container) in containers() {
        let user = user_text(pod, container);
        let mut found: Vec<ImageKey> = Vec::new();
        let mut add = |key: ImageKey, user: &str| {
            let list: &mut Vec<String> = uses.by_image.entry(key.clone()).or_default();
            if list.last().is_none_or(|last| last != user) {
                list.push(user.to_owned());
            }
            if !found.contains(&key) {
                found.push(key);
            }
        };
        // Listed or not: a used image may have been removed meanwhile.
        add(ImageKey::new(ImageId::new(&container.image_id), container.image.runtime_handler.clone()), &user);
        for text in [&container.image_id, &container.image_ref, &container.image.image] {
            names.find(text).into_iter().for_each(|key| add(key, &user));
        }
        let volume_user = format!("{user} (volume)");
        for mounted in mounted(container) {
            names.find(mounted).into_iter().for_each(|key| add(key, &volume_user));
        }
        note_fresh(&mut uses, found, pod, container, &is_fresh);
    }
    for (pod, sandbox) in survey.pods.iter().flat_map(|pod| pod.sandboxes.iter().map(move |it| (pod, it))) {
        let Some(image) = survey.sandboxes.get(&sandbox.id).and_then(Option::as_ref) else { continue };
        for key in names.find(image) {
            uses.sandboxes.entry(sandbox.id.clone()).or_insert_with(|| Some(key.id().to_string()));
            let list = uses.by_image.entry(key).or_default();
            let user = sandbox_text(pod, sandbox);
            // One pod may have several containers of the image.
            if !list.contains(&user) {
                list.push(user);
            }
        }
    }
    uses
}

fn note_fresh(
    uses: &mut Uses,
    found: Vec<ImageKey>,
    pod: &Pod,
    container: &Container,
    is_fresh: &impl Fn(&str) -> bool,
) {
    if !is_fresh(&container.id) {
        return;
    }
    let created = Some(container.created_at).filter(|at| *at > SystemTime::UNIX_EPOCH);
    let user = (!pod.name.is_empty()).then(|| format!("{}/{}", pod.namespace, pod.name));
    for key in found {
        uses.fresh.entry(key).or_default().push(Fresh { created, user: user.clone() });
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

/// Whether the user is a mount of the embedded store, reported by the kernel, and not a runtime container.
pub(super) fn is_mount(user: &str) -> bool {
    user.starts_with("mount ")
}
