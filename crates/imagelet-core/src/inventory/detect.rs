//! Which images are there, since when, and who uses them: a plain function of what the runtime listed (`spec/gc.md §5`).

use std::{
    collections::{BTreeMap, HashMap},
    time::SystemTime,
};

use crate::{
    image::{ByteSize, Image, ImageId, ImageKey, Reference},
    runtime::{Container, Pod},
};

/// Fewest hexadecimal digits by which an image is recognised; what runtimes print as a short id.
pub(super) const ID_PREFIX_MIN: usize = 12;

/// What is remembered of an image between passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The detect time of the pass that first saw it; `None` is earlier than all times.
    pub(crate) first_seen: Option<SystemTime>,
    /// When it was last seen in use.
    pub(crate) last_used: Option<SystemTime>,
    /// The handler it was stored for when first seen.
    pub(crate) handler: String,
    /// What the runtime says it occupies.
    pub(crate) size: ByteSize,
    /// The runtime asks that it stay.
    pub(crate) pinned: bool,
}

pub(crate) type Records = BTreeMap<ImageKey, Record>;

/// Who uses which image. Images that are used but not listed are in here too.
pub(crate) type Users = BTreeMap<ImageKey, Vec<String>>;

/// Who uses which image, and which of the containers are new.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) by_image: Users,
    pub(crate) fresh: BTreeMap<ImageKey, Vec<Fresh>>,
}

/// A container that was not there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// By the wall clock; `None` where the runtime does not say.
    pub(crate) created: Option<SystemTime>,
    /// `NAMESPACE/POD`, where it is of a pod.
    pub(crate) user: Option<String>,
}

/// What one pass got from the runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) images: Vec<Image>,
    pub(crate) pods: Vec<Pod>,
    /// Images mounted as volumes, by container id.
    pub(crate) mounts: BTreeMap<String, Vec<String>>,
}

impl Survey {
    /// Containers that a runtime runs, as opposed to mounts of the embedded store.
    pub(crate) fn runtime_containers(&self) -> usize {
        let of_runtime = |container: &&Container| !container.sandbox_id.is_empty();
        self.pods.iter().flat_map(|pod| &pod.containers).filter(of_runtime).count()
    }
}

/// How images and their users are brought together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DetectRules {
    /// Images are told apart by the handler they are stored for, too.
    pub(crate) handler_keys: bool,
    /// Images mounted as volumes are in use.
    pub(crate) image_volumes: bool,
    /// Any spelling counts: tag, digest, short id, whatever the handler. Without it only the exact id does.
    pub(crate) any_spelling: bool,
}

impl DetectRules {
    /// What the inventory goes by. A removal names the id alone, so a use under any handler protects them all.
    pub(crate) const INVENTORY: Self = Self { handler_keys: true, image_volumes: true, any_spelling: true };

    fn key(self, id: &str, handler: &str) -> ImageKey {
        let handler = if self.handler_keys { handler } else { "" };
        ImageKey::new(ImageId::new(id), handler.to_owned())
    }
}

/// The two clocks of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DetectTimes {
    /// When the pass was asked for: the first sight of images new in it.
    pub(crate) detected_at: Option<SystemTime>,
    /// Read after the listings: the use of images in use.
    pub(crate) now: SystemTime,
}

/// Brings the records up to what was listed and is used.
pub(crate) fn detect(records: &mut Records, survey: &Survey, users: &Users, rules: DetectRules, times: DetectTimes) {
    let mut current = Records::new();
    for image in &survey.images {
        let key = rules.key(image.id.as_str(), &image.spec.runtime_handler);
        // An image listed twice: the later entry wins for what is overwritten, the first for what is set once.
        let known = current.remove(&key).or_else(|| records.remove(&key));
        let (first_seen, last_used, handler) = known.map_or_else(
            || (times.detected_at, None, image.spec.runtime_handler.clone()),
            |record| (record.first_seen, record.last_used, record.handler),
        );
        let last_used = if users.contains_key(&key) { last_used.max(Some(times.now)) } else { last_used };
        current.insert(key, Record { first_seen, last_used, handler, size: image.size, pinned: image.pinned });
    }
    *records = current;
}

/// Who uses which image.
pub(crate) fn users(survey: &Survey, rules: DetectRules) -> Users {
    uses(survey, rules, |_| false).by_image
}

/// Who uses which image, and which containers are new by what is known of their ids.
pub(crate) fn uses(survey: &Survey, rules: DetectRules, is_fresh: impl Fn(&str) -> bool) -> Uses {
    let names = Names::of(&survey.images, rules);
    let mut uses = Uses::default();
    for (pod, container) in survey.pods.iter().flat_map(|pod| pod.containers.iter().map(move |it| (pod, it))) {
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
        add(rules.key(&container.image_id, &container.image.runtime_handler), &user);
        if rules.any_spelling {
            for text in [&container.image_id, &container.image_ref, &container.image.image] {
                names.find(text).into_iter().for_each(|key| add(key, &user));
            }
        }
        if !rules.image_volumes {
            continue;
        }
        let volume_user = format!("{user} (volume)");
        for mounted in survey.mounts.get(&container.id).into_iter().flatten() {
            if survey.images.iter().any(|image| image.id.as_str() == mounted) {
                add(ImageKey::new(ImageId::new(mounted), String::new()), &volume_user);
            }
            if rules.any_spelling {
                names.find(mounted).into_iter().for_each(|key| add(key, &volume_user));
            }
        }
        note_fresh(&mut uses, found, pod, container, &is_fresh);
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

/// Whether this user is a mount of the embedded store, of which the kernel tells, and not a container of a runtime.
pub(super) fn is_mount(user: &str) -> bool {
    user.starts_with("mount ")
}

/// All spellings of the listed images.
struct Names {
    keys: Vec<ImageKey>,
    by_spelling: HashMap<String, Vec<usize>>,
}

impl Names {
    fn of(images: &[Image], rules: DetectRules) -> Self {
        let mut names = Self { keys: Vec::with_capacity(images.len()), by_spelling: HashMap::new() };
        if !rules.any_spelling {
            return names;
        }
        for (index, image) in images.iter().enumerate() {
            names.keys.push(rules.key(image.id.as_str(), &image.spec.runtime_handler));
            let mut add = |spelling: &str| {
                let indices: &mut Vec<usize> = names.by_spelling.entry(spelling.to_owned()).or_default();
                if !spelling.is_empty() && !indices.contains(&index) {
                    indices.push(index);
                }
            };
            add(bare_id(image.id.as_str()));
            for name in image.tags.iter().chain(&image.digests) {
                add(name);
                name.parse::<Reference>().into_iter().for_each(|it| add(&it.canonical().to_string()));
                // The same content by another repository's name is the same image.
                name.split_once('@').into_iter().for_each(|(_, digest)| add(bare_id(digest)));
            }
        }
        names
    }

    fn find(&self, text: &str) -> Vec<ImageKey> {
        if text.is_empty() {
            return Vec::new();
        }
        let bare = bare_id(text);
        let digest = text.split_once('@').map(|(_, digest)| bare_id(digest).to_owned());
        let canonical = text.parse::<Reference>().ok().map(|reference| reference.canonical().to_string());
        let spellings = [Some(text.to_owned()), Some(bare.to_owned()), digest, canonical];
        let mut found: Vec<usize> =
            spellings.into_iter().flatten().filter_map(|it| self.by_spelling.get(&it)).flatten().copied().collect();
        if is_id_prefix(bare) {
            let starts = |key: &ImageKey| bare_id(key.id().as_str()).starts_with(bare);
            found.extend(self.keys.iter().enumerate().filter(|(_, key)| starts(key)).map(|(index, _)| index));
        }
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|index| self.keys[index].clone()).collect()
    }
}

/// An id without its algorithm.
pub(super) fn bare_id(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// Whether this may be the beginning of an id's digits.
pub(super) fn is_id_prefix(bare: &str) -> bool {
    bare.len() >= ID_PREFIX_MIN && bare.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
