//! The world around imagelet: a runtime whose every answer takes a step to arrive, and what must never happen in it.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use crate::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    inventory::step,
    ports::{
        Container, ContainerImage, ContainerService, ContainerState, ImageFilesystems, ImageService, Listing, Progress,
        PullRequest, Sandbox, SandboxImage,
    },
};

/// Actors: pods by number, then these.
pub(super) const COLLECTOR: usize = 8;
pub(super) const OBSERVER: usize = 9;
pub(super) const REMOVER: usize = 10;
pub(super) const ACTORS: usize = 11;
/// A pod that starts containers without imagelet.
pub(super) const BESIDE: usize = 99;
/// The image of containers that mount another one.
const BASE: usize = 999;

/// Clones share all state.
#[derive(Clone)]
pub(super) struct World(Arc<Mutex<State>>);

pub(super) struct State {
    pub(super) seconds: u64,
    /// Milliseconds beyond them, so that no two acts have the same time.
    pub(super) fraction: u64,
    /// Whether each image is in the store; the registry has all.
    pub(super) present: Vec<bool>,
    /// The image of each name; the numbers are equal until a name moves.
    pub(super) names: Vec<usize>,
    pub(super) containers: Vec<Held>,
    /// The lease of each pod whose request was answered.
    pub(super) leases: Vec<Option<GrantedLease>>,
    /// When each pod's request was last answered by the runtime.
    pub(super) answered_at: Vec<u64>,
    /// Whether the first name is pinned.
    pub(super) is_pinned: bool,
    /// The images whose removal had begun before the pin.
    pub(super) removed_before_pin: Vec<usize>,
    /// The failure of the next answer, for any caller.
    pub(super) failure: Option<Failure>,
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
    /// Containers that the runtime has listed for the pass under way,
    pub(super) pass_saw: Vec<u32>,
    /// that a pass has taken in since imagelet started,
    pub(super) noticed: Vec<u32>,
    /// and that it had taken in when a removal began.
    noticed_before: Vec<u32>,
    /// The names when a collection last looked at an image.
    names_before: Vec<usize>,
    pub(super) removals: u64,
    /// Each answer takes a step; else only those do between which somebody could act to any effect.
    pub(super) is_fine: bool,
    next_container: u32,
    pub(super) flaw: Option<Mutation>,
    /// The names when a collection last listed the images, for a flaw.
    names_listed: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GrantedLease {
    pub(super) image: usize,
    pub(super) until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    /// The runtime does nothing and says so.
    Refusal,
    /// The runtime does it, and its answer is lost.
    Loss,
}

/// How an image is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    Container,
    /// A container of another image that mounts it.
    Volume,
    Sandbox,
}

/// A violation of the rules of leases and removals, which the node makes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// A request leases nothing.
    NoLease,
    /// A lease is granted on an answer that a removal has overtaken.
    OldAnswerBelieved,
    /// A request during a removal does not wait for it.
    RemovalNotMarked,
    /// An empty list of containers is trusted at once.
    EmptyListBelieved,
    /// An image missing its last container counts as unused at once.
    HalfListBelieved,
    /// Leases end with the process.
    LeasesForgotten,
    /// Any new container ends any lease of its image.
    AnyContainerServes,
    /// A pass that ran during the last check does not count.
    NewestPassIgnored,
    /// Pins are not checked again.
    PinsNotAskedAgain,
    /// Images mounted as volumes count as unused.
    VolumesIgnored,
    /// Images of sandboxes count as unused.
    SandboxesIgnored,
    /// A name that an image got after the plan does not count.
    NewNamesIgnored,
    /// A container whose volumes the runtime failed to report has none.
    FailedAnswerBelieved,
}

/// A container or sandbox, which holds its image whether it runs or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) number: u32,
    pub(super) kind: Use,
    /// The name that its creator asked for.
    pub(super) name: usize,
    /// Whether imagelet can know its image: a name that moves before a pass has resolved it says another one.
    pub(super) is_resolvable: bool,
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

pub(super) fn image_of(id: &ImageId) -> usize {
    id.as_str().trim_start_matches("sha256:").parse().expect("the model has its own ids")
}

impl World {
    pub(super) fn new(pods: usize, images: usize, is_stocked: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            seconds: 0,
            fraction: 0,
            present: vec![is_stocked; images],
            names: (0..images).collect(),
            containers: Vec::new(),
            leases: vec![None; pods],
            answered_at: vec![0; pods],
            is_pinned: false,
            removed_before_pin: Vec::new(),
            failure: None,
            short_since: None,
            violation: None,
            actor: 0,
            seen: [0; ACTORS],
            ordered_saw: Vec::new(),
            pass_saw: Vec::new(),
            noticed: Vec::new(),
            noticed_before: Vec::new(),
            names_before: (0..images).collect(),
            removals: 0,
            is_fine: false,
            next_container: 0,
            flaw: None,
            names_listed: (0..images).collect(),
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

    pub(super) fn create(&mut self, pod: usize, name: usize, image: usize, kind: Use) {
        if !self.present[image] {
            self.violation
                .get_or_insert(format!("image {image} is gone between the answer to pod {pod} and its container"));
            return;
        }
        if pod != BESIDE {
            self.leases[pod] = None;
        }
        self.containers.push(Held {
            number: self.next_container,
            kind,
            name,
            is_resolvable: true,
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
        let users = || self.containers.iter().filter(|it| it.image == image && it.is_resolvable);
        let mut wrong = Vec::new();
        if is_ordered {
            wrong.extend(
                users().filter(|it| self.ordered_saw.contains(&it.number)).map(|it| format!("in use by {}", it.pod)),
            );
        } else {
            // A container without a request is protected after a pass saw it.
            let is_known = |it: &&Held| it.pod != BESIDE || self.noticed_before.contains(&it.number);
            wrong.extend(users().filter(is_known).map(|it| format!("in use by pod {}", it.pod)));
            let is_leased = |lease: &GrantedLease| lease.image == image && lease.until > seconds;
            let leases = self.leases.iter().enumerate().filter(|(_, lease)| lease.as_ref().is_some_and(is_leased));
            wrong.extend(leases.map(|(pod, _)| format!("leased by pod {pod}")));
            // A name that moves during the removal comes too late, and so does a pin.
            let has_name = self.names[0] == image && self.names_before[0] == image;
            let is_late = self.removed_before_pin.contains(&image);
            wrong.extend((self.is_pinned && has_name && !is_late).then(|| "pinned".to_owned()));
            self.removed_before_pin.retain(|removed| *removed != image);
        }
        if let Some(wrong) = wrong.first().filter(|_| self.present[image]) {
            self.violation.get_or_insert(format!("image {image} was removed, and is {wrong}"));
        }
        if is_ordered {
            // A requested removal also affects pods that wait for their containers.
            self.leases
                .iter_mut()
                .filter(|lease| lease.is_some_and(|lease| lease.image == image))
                .for_each(|lease| *lease = None);
        }
        self.removals += u64::from(self.present[image]);
        self.present[image] = false;
    }

    /// The image that a caller names or gives the id of.
    fn found(&self, spec: &ImageSpec) -> usize {
        let named = spec.image.strip_prefix("registry.example/image").and_then(|rest| rest.strip_suffix(":v1"));
        match named {
            Some(name) => self.names[name.parse::<usize>().expect("the model has its own names")],
            None => image_of(&ImageId::new(&spec.image)),
        }
    }

    fn image(&self, image: usize) -> Image {
        Image {
            id: id(image),
            tags: names_in(&self.names, image),
            digests: Vec::new(),
            size: ByteSize(100),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        }
    }

    /// Equal for worlds with the same future behaviour.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seconds, &self.present, &self.names, &self.containers, &self.leases, &self.is_pinned).hash(&mut hasher);
        (&self.short_since, &self.seen, &self.ordered_saw, &self.failure).hash(&mut hasher);
        (&self.pass_saw, &self.noticed, &self.noticed_before).hash(&mut hasher);
        (&self.names_before, &self.removed_before_pin, &self.answered_at).hash(&mut hasher);
        self.flaw.map(|_| &self.names_listed).hash(&mut hasher);
        hasher.finish()
    }

    /// After a move, a crash or a restart: sandboxes whose image no pass has resolved before, or that are asked again.
    pub(super) fn forget_names(&mut self, are_all_asked_again: bool) {
        let (names, noticed) = (self.names.clone(), self.noticed.clone());
        for held in self.containers.iter_mut().filter(|held| held.kind == Use::Sandbox) {
            let is_known = !are_all_asked_again && noticed.contains(&held.number);
            held.is_resolvable &= is_known || names[held.name] == held.image;
        }
    }

    /// What the runtime has listed for a requested removal or a pass; other actors keep no list.
    fn listed_for_actor(&mut self) -> Option<&mut Vec<u32>> {
        match self.actor {
            REMOVER => Some(&mut self.ordered_saw),
            OBSERVER => Some(&mut self.pass_saw),
            _ => None,
        }
    }
}

impl World {
    /// Delivers an answer about something that was only looked at, or fails in either way.
    fn deliver<T>(&self, answer: T) -> Result<T, RuntimeError> {
        self.fail(&[Failure::Refusal, Failure::Loss]).map(|()| answer)
    }

    /// Fails if the next answer has one of these failures.
    fn fail(&self, failures: &[Failure]) -> Result<(), RuntimeError> {
        let mut world = self.lock();
        let Some(failure) = world.failure.take_if(|failure| failures.contains(failure)) else { return Ok(()) };
        world.see(&failure);
        Err(match failure {
            Failure::Refusal => RuntimeError::new(RuntimeErrorKind::Unavailable, "the runtime refuses"),
            Failure::Loss => RuntimeError::new(RuntimeErrorKind::TimedOut, "the runtime does not answer in time"),
        })
    }
}

#[async_trait]
impl ImageService for World {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let listed: Vec<Arc<Image>> = {
            let mut world = self.lock();
            let seen = (world.present.clone(), world.names.clone());
            world.see(&("list", seen));
            if world.actor == COLLECTOR {
                world.names_listed = world.names.clone();
            }
            (0..world.present.len()).filter(|at| world.present[*at]).map(|at| Arc::new(world.image(at))).collect()
        };
        self.step_if_fine().await;
        self.deliver(listed.into())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let (found, is_asked_by_pod) = {
            let mut world = self.lock();
            let image = world.found(spec);
            let (is_present, names) = (world.present[image], world.names.clone());
            world.see(&("status", image, is_present, &names));
            if world.actor == COLLECTOR {
                world.names_before = names;
            }
            let mut found = world.image(image);
            if world.flaw == Some(Mutation::NewNamesIgnored) && world.actor == COLLECTOR {
                found.tags = names_in(&world.names_listed, image);
            }
            (is_present.then_some(found), world.actor < COLLECTOR)
        };
        if is_asked_by_pod {
            step().await;
        } else {
            self.step_if_fine().await;
        }
        self.deliver(found)
    }

    async fn pull(&self, request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        self.step_if_fine().await;
        self.fail(&[Failure::Refusal])?;
        let image = {
            let mut world = self.lock();
            let image = world.found(&request.image);
            world.see(&("pull", image));
            world.present[image] = true;
            image
        };
        step().await;
        self.fail(&[Failure::Loss])?;
        Ok(id(image))
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let image = self.lock().found(spec);
        {
            let mut world = self.lock();
            world.see(&("remove", image));
            if world.actor == COLLECTOR {
                world.noticed_before = world.noticed.clone();
            }
        }
        step().await;
        self.fail(&[Failure::Refusal])?;
        self.lock().remove(image);
        self.fail(&[Failure::Loss])
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
            let listed = |held: &&Held| !held.hidden && held.kind != Use::Sandbox;
            let shown: Vec<Held> = world.containers.iter().filter(listed).cloned().collect();
            world.see(&("containers", &shown));
            if let Some(listed) = world.listed_for_actor() {
                listed.extend(shown.iter().map(|held| held.number));
            }
            shown
        };
        step().await;
        self.deliver(listed.iter().map(container).collect())
    }

    /// Listed before the containers.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        let listed = {
            let mut world = self.lock();
            let listed = |held: &&Held| !held.hidden && held.kind == Use::Sandbox;
            let shown: Vec<Held> = world.containers.iter().filter(listed).cloned().collect();
            world.see(&("sandboxes", &shown));
            if let Some(listed) = world.listed_for_actor() {
                *listed = shown.iter().map(|held| held.number).collect();
            }
            shown
        };
        self.step_if_fine().await;
        let is_ignored = self.lock().flaw == Some(Mutation::SandboxesIgnored);
        self.deliver(listed.iter().filter(|_| !is_ignored).map(sandbox).collect())
    }

    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        let mounted = {
            let mut world = self.lock();
            let held = world.containers.iter().find(|it| it.kind == Use::Volume && container_name(it) == container_id);
            let mounted: Vec<String> = held.map(|held| id(held.image).to_string()).into_iter().collect();
            world.see(&("mounted", &mounted));
            mounted
        };
        self.step_if_fine().await;
        let flaw = self.lock().flaw;
        match self.deliver(mounted) {
            Ok(_) if flaw == Some(Mutation::VolumesIgnored) => Ok(Vec::new()),
            Err(_) if flaw == Some(Mutation::FailedAnswerBelieved) => Ok(Vec::new()),
            answer => answer,
        }
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
        self.deliver(is_gone)
    }

    /// By the name that its creator used.
    async fn sandbox_image(&self, sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        let reported = {
            let mut world = self.lock();
            let found = world.containers.iter().find(|it| container_name(it) == sandbox_id).cloned();
            world.see(&("sandbox", &found));
            match found {
                None => SandboxImage::Gone,
                Some(held) => SandboxImage::Named(name(held.name)),
            }
        };
        self.step_if_fine().await;
        self.deliver(reported)
    }
}

/// The names of an image among these.
fn names_in(names: &[usize], image: usize) -> Vec<String> {
    (0..names.len()).filter(|at| names[*at] == image).map(name).collect()
}

fn container_name(held: &Held) -> String {
    format!("container-{}", held.number)
}

fn container(held: &Held) -> Container {
    let labels = [("io.kubernetes.pod.uid", uid(held.pod)), ("io.kubernetes.pod.name", format!("pod{}", held.pod))];
    let (image, named) = match held.kind {
        Use::Volume => (id(BASE).to_string(), "registry.example/base:v1".to_owned()),
        Use::Container | Use::Sandbox => (id(held.image).to_string(), name(held.name)),
    };
    Container {
        id: container_name(held),
        sandbox_id: format!("sandbox-{}", held.pod),
        name: "app".to_owned(),
        image: ContainerImage { spec: ImageSpec::new(named), reference: image.clone(), id: image },
        state: if held.exited { ContainerState::Exited } else { ContainerState::Running },
        created_at: time(held.created) + Duration::from_millis(held.fraction + 1),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

fn sandbox(held: &Held) -> Sandbox {
    Sandbox {
        id: container_name(held),
        name: format!("pod{}", held.pod),
        namespace: String::new(),
        uid: uid(held.pod),
        attempt: 0,
        ready: !held.exited,
        created_at: time(held.created) + Duration::from_millis(held.fraction + 1),
        runtime_handler: String::new(),
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}
