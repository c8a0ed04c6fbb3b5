//! The world around imagelet: a runtime whose every answer takes a step to arrive, and what must never happen in it.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use crate::{
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    inventory::step,
    runtime::{
        Container, ContainerService, ContainerState, ImageFilesystems, ImageService, Listing, Progress, PullRequest,
        RuntimeError, Sandbox,
    },
};

/// Actors: pods by number, then these.
pub(super) const COLLECTOR: usize = 8;
pub(super) const OBSERVER: usize = 9;
pub(super) const REMOVER: usize = 10;
pub(super) const WORKER: usize = 11;
pub(super) const ACTORS: usize = 12;
/// A pod that starts containers without imagelet.
pub(super) const BESIDE: usize = 99;

/// Clones share all state.
#[derive(Clone)]
pub(super) struct World(Arc<Mutex<State>>);

pub(super) struct State {
    pub(super) seconds: u64,
    /// Milliseconds beyond them, so that no two acts have the same time.
    pub(super) fraction: u64,
    /// Whether each image is in the store; the registry has all.
    pub(super) present: Vec<bool>,
    pub(super) containers: Vec<Held>,
    /// The lease end reported to each pod.
    pub(super) told: Vec<Option<u64>>,
    pub(super) pinned: Vec<bool>,
    /// Work holds the image while this is set.
    pub(super) held: Option<usize>,
    /// When the runtime began to omit containers.
    pub(super) short_since: Option<u64>,
    /// The first violation.
    pub(super) violation: Option<String>,
    /// The polled actor.
    pub(super) actor: usize,
    /// A digest of an actor's observations.
    pub(super) seen: [u64; ACTORS],
    /// A requested removal is responsible only for the containers it saw.
    pub(super) ordered_saw: Vec<u32>,
    /// Containers that the pass under way was told of,
    pub(super) pass_saw: Vec<u32>,
    /// that a pass has taken in since imagelet started,
    pub(super) noticed: Vec<u32>,
    /// and that it had taken in when a removal began.
    noticed_before: Vec<u32>,
    pub(super) removals: u64,
    /// Each answer takes a step; else only those do between which somebody could act to any effect.
    pub(super) is_fine: bool,
    next_container: u32,
}

/// A container, which holds its image whether it runs or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) number: u32,
    pub(super) pod: usize,
    pub(super) image: usize,
    created: u64,
    fraction: u64,
    pub(super) exited: bool,
    pub(super) hidden: bool,
}

pub(super) fn id(image: usize) -> ImageId {
    ImageId::new(format!("sha256:{image:064}"))
}

pub(super) fn name(image: usize) -> String {
    format!("registry.example/image{image}:v1")
}

pub(super) fn uid(pod: usize) -> String {
    format!("uid-{pod}")
}

pub(super) fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn number(spec: &str) -> Option<usize> {
    let digits = spec.strip_prefix("sha256:").or_else(|| spec.strip_prefix("registry.example/image"));
    digits?.trim_end_matches(":v1").parse().ok()
}

impl World {
    pub(super) fn new(pods: usize, images: usize, is_stocked: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            seconds: 0,
            fraction: 0,
            present: vec![is_stocked; images],
            containers: Vec::new(),
            told: vec![None; pods],
            pinned: vec![false; images],
            held: None,
            short_since: None,
            violation: None,
            actor: 0,
            seen: [0; ACTORS],
            ordered_saw: Vec::new(),
            pass_saw: Vec::new(),
            noticed: Vec::new(),
            noticed_before: Vec::new(),
            removals: 0,
            is_fine: false,
            next_container: 0,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    async fn step_if_fine(&self) {
        let is_fine = self.lock().is_fine;
        if is_fine {
            step().await;
        }
    }

    pub(super) fn now(&self) -> SystemTime {
        let world = self.lock();
        time(world.seconds) + Duration::from_millis(world.fraction)
    }
}

impl State {
    pub(super) fn started(&self) -> u64 {
        u64::from(self.next_container)
    }

    pub(super) fn create(&mut self, pod: usize, image: usize) {
        if !self.present[image] {
            self.violation
                .get_or_insert(format!("image {image} is gone between the answer to pod {pod} and its container"));
            return;
        }
        if pod != BESIDE {
            self.told[pod] = None;
        }
        self.containers.push(Held {
            number: self.next_container,
            pod,
            image,
            created: self.seconds,
            fraction: self.fraction,
            exited: false,
            hidden: false,
        });
        self.next_container += 1;
    }

    pub(super) fn see(&mut self, what: &impl Hash) {
        let mut hasher = DefaultHasher::new();
        (self.seen[self.actor], what).hash(&mut hasher);
        self.seen[self.actor] = hasher.finish();
    }

    fn remove(&mut self, image: usize) {
        let is_ordered = self.actor == REMOVER;
        let seconds = self.seconds;
        let users = || self.containers.iter().filter(|it| it.image == image);
        let mut wrong = Vec::new();
        if is_ordered {
            wrong.extend(
                users().filter(|it| self.ordered_saw.contains(&it.number)).map(|it| format!("in use by {}", it.pod)),
            );
        } else {
            // A container without a request is protected after a pass saw it.
            let is_known = |it: &&Held| it.pod != BESIDE || self.noticed_before.contains(&it.number);
            wrong.extend(users().filter(is_known).map(|it| format!("in use by pod {}", it.pod)));
            let told = self.told.iter().enumerate().filter(|(pod, until)| {
                *pod % self.present.len() == image && until.is_some_and(|until| until > seconds)
            });
            wrong.extend(told.map(|(pod, _)| format!("leased by pod {pod}")));
            wrong.extend(self.pinned[image].then(|| "pinned".to_owned()));
        }
        wrong.extend((self.held == Some(image)).then(|| "held".to_owned()));
        if let Some(wrong) = wrong.first().filter(|_| self.present[image]) {
            self.violation.get_or_insert(format!("image {image} was removed, and is {wrong}"));
        }
        if is_ordered {
            // A requested removal also affects pods that wait for their containers.
            let images = self.present.len();
            self.told
                .iter_mut()
                .enumerate()
                .filter(|(pod, _)| pod % images == image)
                .for_each(|(_, told)| *told = None);
        }
        self.removals += u64::from(self.present[image]);
        self.present[image] = false;
    }

    fn image(image: usize) -> Image {
        Image {
            id: id(image),
            tags: vec![name(image)],
            digests: Vec::new(),
            size: ByteSize(100),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
        }
    }

    /// Equal for worlds with the same future behaviour.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seconds, &self.present, &self.containers, &self.told, &self.pinned).hash(&mut hasher);
        (&self.held, &self.short_since, &self.seen, &self.ordered_saw).hash(&mut hasher);
        (&self.pass_saw, &self.noticed, &self.noticed_before).hash(&mut hasher);
        hasher.finish()
    }
}

#[async_trait]
impl ImageService for World {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let listed: Vec<Arc<Image>> = {
            let mut world = self.lock();
            let present = world.present.clone();
            world.see(&("list", &present));
            (0..present.len()).filter(|image| present[*image]).map(|image| Arc::new(State::image(image))).collect()
        };
        self.step_if_fine().await;
        Ok(listed.into())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let (found, is_asked_by_pod) = {
            let mut world = self.lock();
            let image = number(&spec.image).expect("the model names its own images");
            let is_present = world.present[image];
            world.see(&("status", image, is_present));
            (is_present.then(|| State::image(image)), world.actor < COLLECTOR)
        };
        if is_asked_by_pod {
            step().await;
        } else {
            self.step_if_fine().await;
        }
        Ok(found)
    }

    async fn pull(&self, request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        self.step_if_fine().await;
        let image = number(&request.image.image).expect("the model names its own images");
        self.lock().present[image] = true;
        step().await;
        Ok(id(image))
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let image = number(&spec.image).expect("the model names its own images");
        {
            let mut world = self.lock();
            world.see(&("remove", image));
            if world.actor == COLLECTOR {
                world.noticed_before = world.noticed.clone();
            }
        }
        step().await;
        self.lock().remove(image);
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        // No disk: nothing in the model depends on it.
        Ok(ImageFilesystems::default())
    }
}

#[async_trait]
impl ContainerService for World {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let listed = {
            let mut world = self.lock();
            let shown: Vec<Held> = world.containers.iter().filter(|it| !it.hidden).cloned().collect();
            world.see(&("containers", &shown));
            let numbers = shown.iter().map(|it| it.number).collect();
            match world.actor {
                REMOVER => world.ordered_saw = numbers,
                OBSERVER => world.pass_saw = numbers,
                _ => {}
            }
            shown
        };
        step().await;
        Ok(listed.iter().map(container).collect())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn mounted_images(&self, _container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }

    /// A runtime that omits a container cannot report it as gone.
    async fn is_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
        let is_gone = {
            let mut world = self.lock();
            let is_gone = !world.containers.iter().any(|it| container_name(it) == container_id);
            world.see(&("gone", is_gone));
            is_gone
        };
        self.step_if_fine().await;
        Ok(is_gone)
    }
}

fn container_name(held: &Held) -> String {
    format!("container-{}", held.number)
}

fn container(held: &Held) -> Container {
    let labels = [("io.kubernetes.pod.uid", uid(held.pod)), ("io.kubernetes.pod.name", format!("pod{}", held.pod))];
    Container {
        id: container_name(held),
        sandbox_id: format!("sandbox-{}", held.pod),
        name: "app".to_owned(),
        image: ImageSpec::new(name(held.image)),
        image_ref: id(held.image).to_string(),
        image_id: id(held.image).to_string(),
        state: if held.exited { ContainerState::Exited } else { ContainerState::Running },
        created_at: time(held.created) + Duration::from_millis(held.fraction + 1),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}
