//! The modelled node with its pods: each act is one step of one actor.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::runtime::Runtime;

use super::{
    story::{Act, Before, Size},
    world::{
        ACTORS, BESIDE, COLLECTOR, Failure, GrantedLease, Mutation, OBSERVER, REMOVER, State, Use, World, id, image_of,
        name, uid,
    },
};
use crate::{
    error::RuntimeError,
    gc::{GcError, GcGoal, GcPolicy, GcRequest, ImageGc, UsedImages},
    image::{Image, ImageSpec},
    inventory::{Inventory, ModelDisk},
    ports::{ImageService as _, PullRequest, RuntimeManager, no_progress},
};

/// The step of the clock, less than the wait on an untrusted list. A pass begins in each step, and a list is short for one
/// step at most.
pub(super) const TICK: u64 = 45;
/// A pod creates its container within this time of its answer, or asks again.
const CREATED_WITHIN: u64 = 50;
/// A lease outlasts the last moment of a container's creation by two steps: one pass may see a short list, the next one
/// sees the container.
const LEASE: u64 = CREATED_WITHIN + 2 * TICK;

type Work<T> = Pin<Box<dyn Future<Output = T>>>;

enum Pod {
    Idle,
    Asking(Work<Option<usize>>),
    Leased,
    Running,
    Exited,
    Done,
}

/// Whether a waiting actor can continue.
#[derive(Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) struct Node {
    bells: [Arc<Bell>; ACTORS],
    clock: Rc<Runtime>,
    pub(super) world: World,
    pub(super) request: GcRequest,
    pub(super) left: Size,
    inventory: Arc<Inventory>,
    gc: Arc<ImageGc>,
    disk: ModelDisk,
    pods: Vec<Pod>,
    collecting: Option<Work<bool>>,
    observing: Option<Work<bool>>,
    removing: Option<Work<()>>,
    /// The start of the last pass that ended, and of those under way.
    passed: u64,
    collecting_from: u64,
    observing_from: u64,
    /// The runtime may fail; otherwise each call has to succeed.
    may_fail: bool,
    /// Restarts of the runtime, and the last restart before a pass that ran over a whole runtime.
    restarts: usize,
    seen_whole: usize,
    /// The restarts at the start of the running pass or collection, where the runtime was whole then.
    collecting_since: Option<usize>,
    observing_since: Option<usize>,
    /// The started removals at each pod's request.
    marks: Vec<u64>,
    /// A replayed prefix: its observations are already known.
    pub(super) is_known: bool,
}

impl Node {
    pub(super) fn new(size: Size, clock: &Rc<Runtime>) -> Self {
        let clock = Rc::clone(clock);
        let world = World::new(size.pods, size.images, size.is_stocked);
        world.lock().is_fine = size.is_fine;
        world.lock().flaw = size.flaw;
        let policy = GcPolicy::new(90, 80, Duration::ZERO, None).unwrap();
        let disk = ModelDisk::default();
        let (inventory, gc) = start(&world, &disk);
        let pods = (0..size.pods).map(|_| Pod::Idle).collect();
        let (collecting, observing, removing, passed) = (None, None, None, 0);
        let mut node = Self {
            bells: std::array::from_fn(|_| Arc::default()),
            clock,
            world,
            request: GcRequest { policy, goal: GcGoal::AllUnused, dry_run: false },
            left: size,
            inventory,
            gc,
            disk,
            pods,
            collecting,
            observing,
            removing,
            passed,
            collecting_from: 0,
            observing_from: 0,
            may_fail: size.failures > 0,
            restarts: 0,
            seen_whole: 0,
            collecting_since: None,
            observing_since: None,
            marks: vec![u64::MAX; size.pods],
            is_known: true,
        };
        for before in size.before {
            node.begin(*before);
        }
        node.is_known = false;
        node
    }

    /// Brings the node to the start of a story; earlier acts do not count.
    fn begin(&mut self, before: Before) {
        let reaches = |node: &mut Self, pod: usize, stage: u8| {
            while node.pods[pod].stage() < stage {
                node.act(Act::Pod(pod));
            }
        };
        match before {
            Before::Leased(pod) => reaches(self, pod, Pod::Leased.stage()),
            Before::Runs(pod) => reaches(self, pod, Pod::Running.stage()),
            Before::Passed => {
                self.left.passes += 1;
                self.act(Act::Observe);
                while self.observing.is_some() {
                    self.act(Act::Observe);
                }
            }
            Before::Did(act) => {
                match act {
                    Act::Tick => self.left.ticks += 1,
                    Act::Pin => self.left.pins += 1,
                    Act::Restart | Act::RestartHalf => self.left.restarts += 1,
                    Act::Collect if self.collecting.is_none() => self.left.collections += 1,
                    Act::Observe if self.observing.is_none() => self.left.passes += 1,
                    _ => {}
                }
                self.act(act);
            }
        }
        let world = self.world.lock();
        assert_eq!(world.violation, None, "a story does not begin with its end");
    }

    pub(super) fn acts(&self) -> Vec<Act> {
        let world = self.world.lock();
        let is_woken = |actor: usize| self.bells[actor].0.load(Ordering::Relaxed);
        let can_go_on = |pod: &usize| match self.pods[*pod] {
            Pod::Done => false,
            Pod::Asking(_) => is_woken(*pod),
            _ => true,
        };
        let mut acts: Vec<Act> = (0..self.pods.len()).filter(can_go_on).map(Act::Pod).collect();
        let mut may = |act: Act, is_possible: bool| acts.extend(is_possible.then_some(act));
        let can = |is_begun: bool, actor: usize, left: usize| if is_begun { is_woken(actor) } else { left > 0 };
        may(Act::Collect, can(self.collecting.is_some(), COLLECTOR, self.left.collections));
        may(Act::Observe, can(self.observing.is_some(), OBSERVER, self.left.passes));
        may(Act::Remove, can(self.removing.is_some(), REMOVER, self.left.orders));
        may(Act::Crash, self.left.crashes > 0);
        // If a runtime restarts again before a pass saw it whole, no observer can detect it.
        let is_whole = world.short_since.is_none() && self.seen_whole == self.restarts;
        let can_restart = self.left.restarts > 0 && is_whole && !world.containers.is_empty();
        may(Act::Restart, can_restart);
        may(Act::RestartHalf, can_restart && world.containers.len() > 1);
        may(Act::Recover, world.short_since.is_some());
        may(Act::Beside, is_beside(&world) || (self.left.besides > 0 && world.present[world.names[0]]));
        may(Act::Pin, self.left.pins > 0 && !world.is_pinned);
        may(Act::Unpin, self.left.is_endless && world.is_pinned);
        let can_fail = self.left.failures > 0 && world.failure.is_none();
        may(Act::Refuse, can_fail);
        may(Act::Lose, can_fail);
        may(Act::Move, self.left.moves > 0 && self.left.images > 1);
        // Passes are more frequent than leases expire, and a runtime is whole before its list is trusted.
        let is_watched = world.seconds < self.passed + TICK;
        may(
            Act::Tick,
            self.left.ticks > 0 && is_watched && world.short_since.is_none_or(|since| since == world.seconds),
        );
        acts
    }

    pub(super) fn is_idle(&self, pod: usize) -> bool {
        matches!(self.pods[pod], Pod::Idle)
    }

    pub(super) fn is_passing(&self) -> bool {
        self.observing.is_some()
    }

    pub(super) fn act(&mut self, act: Act) {
        if self.left.is_endless {
            // A container is younger than its pod's earlier requests and older than the later ones.
            self.world.lock().fraction += 2;
        }
        match act {
            Act::Pod(pod) => self.pod(pod),
            Act::Collect => self.collect(),
            Act::Observe => self.observe(),
            Act::Remove => self.remove(),
            Act::Crash => self.crash(),
            Act::Restart | Act::RestartHalf => {
                (self.left.restarts, self.restarts) = (self.left.restarts - 1, self.restarts + 1);
                let mut world = self.world.lock();
                world.short_since = Some(world.seconds);
                // What is not listed for a while is asked again.
                world.forget_names(true);
                let hidden = if act == Act::Restart { world.containers.len() } else { 1 };
                world.containers.iter_mut().take(hidden).for_each(|held| held.hidden = true);
            }
            Act::Recover => {
                let mut world = self.world.lock();
                world.short_since = None;
                world.containers.iter_mut().for_each(|held| held.hidden = false);
            }
            Act::Beside => {
                let mut world = self.world.lock();
                if is_beside(&world) {
                    world.containers.retain(|held| held.pod != BESIDE);
                } else {
                    self.left.besides -= 1;
                    let image = world.names[0];
                    world.create(BESIDE, 0, image, self.left.besides_hold);
                }
            }
            Act::Pin => {
                self.left.pins -= 1;
                self.inventory.pin(&name(0)).unwrap();
                let mut world = self.world.lock();
                world.is_pinned = true;
                let images = 0..self.left.images;
                world.removed_before_pin = images.filter(|image| self.inventory.is_removing(&id(*image))).collect();
            }
            Act::Unpin => {
                self.inventory.unpin(&name(0)).unwrap();
                self.world.lock().is_pinned = false;
            }
            Act::Refuse | Act::Lose => {
                self.left.failures -= 1;
                let failure = if act == Act::Refuse { Failure::Refusal } else { Failure::Loss };
                self.world.lock().failure = Some(failure);
            }
            Act::Move => {
                self.left.moves -= 1;
                let mut world = self.world.lock();
                let image = (world.names[0] + 1) % self.left.images;
                (world.names[0], world.present[image]) = (image, true);
                world.forget_names(false);
            }
            Act::Tick => {
                self.left.ticks -= 1;
                let mut world = self.world.lock();
                (world.seconds, world.fraction) = (world.seconds + TICK, 0);
                drop(world);
                self.clock.block_on(tokio::time::advance(Duration::from_secs(TICK)));
            }
        }
    }

    fn pod(&mut self, pod: usize) {
        let named = pod % self.left.images;
        self.pods[pod] = match std::mem::replace(&mut self.pods[pod], Pod::Done) {
            Pod::Idle => {
                self.world.lock().seen[pod] = 0;
                self.marks[pod] = self.inventory.removals_begun();
                let asking = Box::pin(ask(self.world.clone(), Arc::clone(&self.inventory), pod, named));
                self.heard(pod, asking)
            }
            Pod::Asking(asking) => self.heard(pod, asking),
            Pod::Leased => {
                let mut world = self.world.lock();
                // An expired lease, or an image removed on request: the pod retries or gives up.
                match world.leases[pod].filter(|lease| lease.until > world.seconds) {
                    None => {
                        world.leases[pod] = None;
                        if self.left.is_endless { Pod::Idle } else { Pod::Done }
                    }
                    Some(lease) => {
                        world.create(pod, named, lease.image, self.left.pods_hold);
                        Pod::Running
                    }
                }
            }
            Pod::Running if self.left.exits => {
                self.world.lock().containers.iter_mut().filter(|it| it.pod == pod).for_each(|it| it.exited = true);
                Pod::Exited
            }
            Pod::Running | Pod::Exited => {
                self.world.lock().containers.retain(|held| held.pod != pod);
                if self.left.is_endless { Pod::Idle } else { Pod::Done }
            }
            Pod::Done => Pod::Done,
        };
    }

    fn heard(&mut self, pod: usize, mut asking: Work<Option<usize>>) -> Pod {
        let Some(answer) = self.poll(pod, &mut asking) else { return Pod::Asking(asking) };
        self.marks[pod] = u64::MAX;
        // After a failure a kubelet tries again.
        let Some(image) = answer else { return Pod::Idle };
        if self.left.flaw == Some(Mutation::NoLease) {
            self.inventory.leases.lock().end(&id(image));
        }
        let mut world = self.world.lock();
        world.leases[pod] = Some(GrantedLease { image, until: world.answered_at[pod] + CREATED_WITHIN });
        Pod::Leased
    }

    fn collect(&mut self) {
        let mut collecting = self.collecting.take().unwrap_or_else(|| {
            self.left.collections -= 1;
            self.collecting_since = self.whole_since();
            self.collecting_from = self.world.lock().seconds;
            self.world.lock().seen[COLLECTOR] = 0;
            let (gc, now, request) = (Arc::clone(&self.gc), self.world.now(), self.request);
            let may_fail = self.may_fail;
            Box::pin(async move {
                let collected = gc.run(&request, now).await;
                // The model has no disk; the collection finds out after the removals by age.
                assert!(collected.is_ok() || request.goal == GcGoal::Threshold || may_fail, "{collected:?}");
                !matches!(collected, Err(GcError::Inventory(_)))
            })
        });
        match self.poll(COLLECTOR, &mut collecting) {
            None => self.collecting = Some(collecting),
            Some(true) => self.passed(self.collecting_since, self.collecting_from),
            Some(false) => {}
        }
    }

    fn observe(&mut self) {
        let mut observing = self.observing.take().unwrap_or_else(|| {
            self.left.passes -= 1;
            self.observing_since = self.whole_since();
            self.observing_from = self.world.lock().seconds;
            self.world.lock().seen[OBSERVER] = 0;
            // A reader: a pass, and the plan made from it, which is never part of the collection's turn.
            let (gc, now, may_fail) = (Arc::clone(&self.gc), self.world.now(), self.may_fail);
            let request = GcRequest { goal: GcGoal::AllUnused, dry_run: true, ..self.request };
            Box::pin(async move {
                let planned = gc.run(&request, now).await;
                assert!(planned.is_ok() || may_fail, "{planned:?}");
                planned.is_ok()
            })
        });
        match self.poll(OBSERVER, &mut observing) {
            None => self.observing = Some(observing),
            Some(false) => {}
            Some(true) => {
                let mut world = self.world.lock();
                world.noticed = std::mem::take(&mut world.pass_saw);
                drop(world);
                self.passed(self.observing_since, self.observing_from);
            }
        }
    }

    /// The restarts so far, where the runtime is whole.
    fn whole_since(&self) -> Option<usize> {
        self.world.lock().short_since.is_none().then_some(self.restarts)
    }

    fn passed(&mut self, whole_since: Option<usize>, from: u64) {
        if whole_since == self.whole_since() {
            self.seen_whole = whole_since.unwrap_or(self.seen_whole);
        }
        self.passed = self.passed.max(from);
    }

    fn remove(&mut self) {
        let mut removing = self.removing.take().unwrap_or_else(|| {
            self.left.orders -= 1;
            self.world.lock().seen[REMOVER] = 0;
            let (gc, now) = (Arc::clone(&self.gc), self.world.now());
            let spec = ImageSpec::new(id(0).as_str());
            Box::pin(async move { drop(gc.remove_ordered(&spec, UsedImages::Stay, now).await) })
        });
        if self.poll(REMOVER, &mut removing).is_none() {
            self.removing = Some(removing);
        }
    }

    fn crash(&mut self) {
        self.left.crashes -= 1;
        (self.collecting, self.observing, self.removing) = (None, None, None);
        for pod in &mut self.pods {
            if matches!(pod, Pod::Asking(_)) {
                *pod = Pod::Idle;
            }
        }
        self.marks.fill(u64::MAX);
        {
            let mut world = self.world.lock();
            world.seen = Default::default();
            (world.pass_saw, world.noticed, world.removed_before_pin) = (Vec::new(), Vec::new(), Vec::new());
            world.forget_names(true);
        }
        if self.left.flaw == Some(Mutation::LeasesForgotten) {
            self.disk.forget_leases();
        }
        (self.inventory, self.gc) = start(&self.world, &self.disk);
        // Pins are on disk before they are reported.
        if self.world.lock().is_pinned {
            self.inventory.pin(&name(0)).unwrap();
        }
    }

    /// One step of an actor; all its inputs are part of its observations.
    fn poll<T>(&self, actor: usize, work: &mut Work<T>) -> Option<T> {
        // An actor's observations are its answers and the parts of the inventory it reads; the whole only for a
        // snapshot. Two stories with equal observations merge.
        self.mistake_before(actor);
        let drawn = self.inventory.snapshot();
        let removing = self.inventory.leases.lock().removing.clone();
        {
            let is_asker = actor < COLLECTOR;
            let digest = match self.is_known {
                true => 0,
                false if is_asker => self.inventory.digest_for_caller(self.mark()),
                false => self.inventory.digest_for_pass(),
            };
            let mut world = self.world.lock();
            world.actor = actor;
            world.see(&digest);
        }
        let polled = {
            let bell = &self.bells[actor];
            bell.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(Arc::clone(bell));
            work.as_mut().poll(&mut Context::from_waker(&waker))
        };
        if self.left.flaw == Some(Mutation::RemovalNotMarked) && actor == COLLECTOR {
            let mut leases = self.inventory.leases.lock();
            let begun: Vec<_> = leases.removing.difference(&removing).cloned().collect();
            for id in &begun {
                leases.unmark(id);
            }
        }
        let is_drawn = self.inventory.snapshot().map(|it| Arc::as_ptr(&it)) != drawn.as_ref().map(Arc::as_ptr);
        if is_drawn {
            // As each pass does, also one whose collection fails later.
            self.inventory.remember(&self.disk, self.world.now());
        }
        if is_drawn && !self.is_known {
            let digest = self.inventory.digest(u64::MAX);
            self.world.lock().see(&digest);
        }
        match polled {
            Poll::Ready(done) => {
                self.world.lock().seen[actor] = 0;
                Some(done)
            }
            Poll::Pending => None,
        }
    }

    /// What a flaw does before a step of an actor.
    fn mistake_before(&self, actor: usize) {
        let passes = actor == COLLECTOR || actor == OBSERVER;
        match self.left.flaw {
            Some(Mutation::EmptyListBelieved | Mutation::HalfListBelieved) if passes => {
                self.inventory.forget_containers();
            }
            Some(Mutation::AnyContainerServes) if passes => {
                let world = self.world.lock();
                let listed = world.containers.iter().filter(|held| !held.hidden && held.kind == Use::Container);
                listed.for_each(|held| self.inventory.leases.lock().end(&id(held.image)));
            }
            Some(Mutation::NewestPassIgnored) if actor == COLLECTOR => self.inventory.forget_users(),
            Some(Mutation::PinsNotAskedAgain) if actor == COLLECTOR => self.inventory.forget_pins(),
            _ => {}
        }
    }

    fn mark(&self) -> u64 {
        self.marks.iter().copied().min().unwrap_or(u64::MAX)
    }

    /// Equal for nodes with the same possible futures.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let pods: Vec<u8> = self.pods.iter().map(Pod::stage).collect();
        (self.world.lock().digest(), self.inventory.digest(self.mark()), self.disk.digest(), pods, self.passed)
            .hash(&mut hasher);
        (self.collecting.is_some(), self.observing.is_some(), self.removing.is_some()).hash(&mut hasher);
        self.bells.each_ref().map(|bell| bell.0.load(Ordering::Relaxed)).hash(&mut hasher);
        let Size { collections, passes, orders, crashes, restarts, pins, .. } = self.left;
        [collections, passes, orders, crashes, restarts, pins].hash(&mut hasher);
        let Size { besides, failures, moves, ticks, .. } = self.left;
        [besides, failures, moves, ticks].hash(&mut hasher);
        (self.restarts, self.seen_whole, self.collecting_since, self.observing_since).hash(&mut hasher);
        (self.collecting_from, self.observing_from).hash(&mut hasher);
        hasher.finish()
    }
}

impl Pod {
    fn stage(&self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::Asking(_) => 1,
            Self::Leased => 2,
            Self::Running => 3,
            Self::Exited => 4,
            Self::Done => 5,
        }
    }
}

fn start(world: &World, disk: &ModelDisk) -> (Arc<Inventory>, Arc<ImageGc>) {
    let runtime = RuntimeManager::new(Arc::new(world.clone()), Arc::new(world.clone()));
    let lasts = Duration::from_secs(LEASE);
    let inventory = Arc::new(Inventory::from_disk(runtime.clone(), disk, lasts, world.now()));
    let gc = Arc::new(ImageGc::new(runtime, Arc::clone(&inventory)));
    (inventory, gc)
}

fn is_beside(world: &State) -> bool {
    world.containers.iter().any(|held| held.pod == BESIDE)
}

/// A kubelet before a container start: it looks, and pulls an absent image. `None` after a failure.
async fn ask(world: World, inventory: Arc<Inventory>, pod: usize, named: usize) -> Option<usize> {
    let spec = ImageSpec::new(name(named));
    let key = |found: &Option<Image>| found.as_ref().map(Image::key);
    let ask = || async {
        let found = if let Some(found) = world.status(&spec).await? {
            found
        } else {
            let request = PullRequest { image: spec.clone(), ..PullRequest::default() };
            Image { id: world.pull(&request, no_progress()).await?, ..blank() }
        };
        if world.lock().flaw == Some(Mutation::OldAnswerBelieved) {
            inventory.leases.lock().forget_removals(&found.id);
        }
        // The lease is granted at once, and its write takes steps.
        let mut world = world.lock();
        world.answered_at[pod] = world.seconds;
        Ok::<_, RuntimeError>(Some(found))
    };
    let found = inventory.leased(&uid(pod), world.now(), ask, key).await.ok()??;
    Some(image_of(&found.id))
}

fn blank() -> Image {
    Image {
        id: id(0),
        tags: Vec::new(),
        digests: Vec::new(),
        size: crate::image::ByteSize::ZERO,
        user: crate::image::ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    }
}
