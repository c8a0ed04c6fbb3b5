//! Small stories of shared pulls and their slots, in every order of their steps.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::{self, Either};

use super::*;
use crate::{
    error::RuntimeError,
    image::{ByteSize, ImageId, ImageKey},
    manager::{EnsureRequest, PullPolicy},
    testing::{
        dice::Dice,
        interleavings::{InterleavedStory, explore_all_orders, explore_random_order, step},
    },
};

const GRACE: Duration = Duration::from_mins(1);
const IMAGES: usize = 2;
const HIGH: i32 = 5;

/// A client of one image, by number.
#[derive(Clone, Copy)]
struct Client {
    image: usize,
    arrives: Duration,
    priority: i32,
    /// Leaves after so many steps; `None`: stays to the end.
    leaves_after: Option<usize>,
    /// Its pod ends as it leaves, so the pull gets no grace from it.
    ends: bool,
}

const STAYS: Client = Client { image: 0, arrives: Duration::ZERO, priority: 0, leaves_after: None, ends: false };
const LEAVES: Client = Client { leaves_after: Some(1), ..STAYS };

#[derive(Clone, Copy)]
struct Setup {
    grace: Duration,
    slots: usize,
    /// Steps of each pull; `None`: a pull lasts twice the grace.
    steps: Option<usize>,
    succeeds: bool,
}

const SETUP: Setup = Setup { grace: GRACE, slots: 1, steps: Some(1), succeeds: true };

/// What the pulls and clients of one run did. A pull has the number of its start.
#[derive(Default)]
struct Log {
    /// Pulls that are not dropped, with their image.
    alive: BTreeMap<u64, usize>,
    running: usize,
    started: u64,
    finished: Vec<u64>,
    /// Pulls whose outcome reached a client, or was recorded for one that had left.
    delivered: Vec<u64>,
    violations: Vec<String>,
}

type SharedLog = Arc<Mutex<Log>>;

/// Runs its function at a drop.
struct AtDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn work(client: Client) -> Work {
    let image = format!("registry.example/app{}:v1", client.image);
    let mut request = EnsureRequest::new(&image, PullPolicy::Always);
    request.pull.pod.namespace = "a".into();
    Work {
        reference: image.parse().expect("it is valid"),
        request,
        credentials: crate::credentials::PullCredentials::default(),
    }
}

fn pulled(pull: u64) -> Pulled {
    Pulled {
        key: ImageKey::new(ImageId::new("sha256:a"), String::new()),
        size: ByteSize(pull),
        took: Duration::ZERO,
        attempt: 0,
        senders: Vec::new(),
    }
}

fn pull(log: &SharedLog, setup: Setup, image: usize, place: Place) -> PullFuture {
    let number = {
        let mut log = log.lock().unwrap();
        log.started += 1;
        let number = log.started;
        log.alive.insert(number, image);
        number
    };
    let log = Arc::clone(log);
    let alive = AtDrop({
        let log = Arc::clone(&log);
        move || {
            log.lock().unwrap().alive.remove(&number);
        }
    });
    async move {
        let (_alive, place) = (alive, place);
        place.turn().await;
        log.lock().unwrap().running += 1;
        let _running = AtDrop(|| log.lock().unwrap().running -= 1);
        match setup.steps {
            Some(steps) => {
                for _ in 0..steps {
                    step().await;
                }
            }
            None => tokio::time::sleep(setup.grace * 2).await,
        }
        if !setup.succeeds {
            return Err(Arc::new(RuntimeError::other("no such host")));
        }
        log.lock().unwrap().finished.push(number);
        Ok(pulled(number))
    }
    .boxed()
}

fn client(log: &SharedLog, pulls: &Arc<SingleFlight>, setup: Setup, client: Client) -> BoxFuture<'static, ()> {
    let (log, pulls) = (Arc::clone(log), Arc::clone(pulls));
    async move {
        if !client.arrives.is_zero() {
            tokio::time::sleep(client.arrives).await;
        }
        let finished = log.lock().unwrap().finished.clone();
        let request = Request { tenant: "a".into(), priority: client.priority, is_limited: true };
        let begin = |place, _, _| pull(&log, setup, client.image, place);
        let subscription = pulls.join::<SharedLog>(&work(client), request, begin).expect("there is room");
        let deliver =
            |log: SharedLog, pulled: Pulled| async move { log.lock().unwrap().delivered.push(pulled.size.0) }.boxed();
        let unwanted: fn(&SharedLog) -> BoxFuture<'static, ()> =
            if client.ends { |_| future::ready(()).boxed() } else { |_| future::pending().boxed() };
        let subscription = subscription.on_complete(Arc::clone(&log), deliver, unwanted);
        let watcher: PullWatcher = Arc::new(|_| ());
        let outcome = subscription.outcome(&watcher).boxed();
        let leaves = async {
            match client.leaves_after {
                Some(steps) => {
                    for _ in 0..steps {
                        step().await;
                    }
                }
                None => future::pending().await,
            }
        };
        let Either::Left(((outcome, _), _)) = future::select(outcome, leaves.boxed()).await else { return };
        let mut log = log.lock().unwrap();
        if let Ok(pulled) = outcome {
            let pull = pulled.size.0;
            if finished.contains(&pull) {
                log.violations.push(format!("a client joined pull {pull}, which was over"));
            }
            log.delivered.push(pull);
        }
    }
    .boxed()
}

fn story(setup: Setup, clients: &[Client]) -> InterleavedStory {
    let log = SharedLog::default();
    let scheduler = Arc::new(Scheduler::new(Some(setup.slots), false, None, Arc::default()));
    let pulls = Arc::new(SingleFlight::new(Arc::clone(&scheduler), setup.grace, true));
    let tasks = clients.iter().map(|it| client(&log, &pulls, setup, *it)).collect();
    let invariant = {
        let log = Arc::clone(&log);
        move || {
            let mut log = log.lock().unwrap();
            if let Some(violation) = log.violations.pop() {
                return Err(violation);
            }
            for image in 0..IMAGES {
                let pulls = log.alive.values().filter(|it| **it == image).count();
                if pulls > 1 {
                    return Err(format!("{pulls} pulls of one image"));
                }
            }
            let (running, slots) = (log.running, setup.slots);
            if running > slots { Err(format!("{running} pulls run in {slots} slots")) } else { Ok(()) }
        }
    };
    let at_end = move || {
        let log = log.lock().unwrap();
        let unrecorded: Vec<&u64> = log.finished.iter().filter(|pull| !log.delivered.contains(pull)).collect();
        if !unrecorded.is_empty() {
            return Err(format!("the pulls {unrecorded:?} finished, and no client recorded them"));
        }
        if !log.alive.is_empty() || !locked(&pulls.table).by_key.is_empty() || !scheduler.states().is_empty() {
            return Err("a pull without clients remains".to_owned());
        }
        Ok(())
    };
    InterleavedStory { tasks, invariant: Box::new(invariant), at_end: Box::new(at_end) }
}

#[tokio::test(start_paused = true)]
async fn in_every_order_clients_of_one_image_share_one_pull_and_none_waits_for_ever() {
    for grace in [Duration::ZERO, GRACE] {
        for steps in [0, 2] {
            for succeeds in [true, false] {
                let setup = Setup { grace, steps: Some(steps), succeeds, ..SETUP };
                let ends = Client { ends: true, ..LEAVES };
                for clients in [
                    &[STAYS, STAYS, LEAVES],
                    &[STAYS, LEAVES, LEAVES],
                    &[LEAVES, LEAVES, LEAVES],
                    &[STAYS, LEAVES, ends],
                    &[LEAVES, ends, ends],
                ] {
                    let explored = explore_all_orders(|| story(setup, clients)).await;
                    assert!(explored.unwrap() >= 6, "the clients meet");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_every_order_one_slot_runs_one_pull_and_passes_to_the_next_one_also_where_a_client_leaves() {
    let other = Client { image: 1, priority: HIGH, ..STAYS };
    let leaving = Client { leaves_after: Some(1), ..other };
    for grace in [Duration::ZERO, GRACE] {
        let setup = Setup { grace, ..SETUP };
        for clients in [&[STAYS, other, LEAVES], &[STAYS, leaving, other], &[LEAVES, leaving, STAYS]] {
            explore_all_orders(|| story(setup, clients)).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_every_order_a_client_that_comes_as_the_grace_ends_joins_the_pull_or_starts_the_only_one() {
    let setup = Setup { steps: None, ..SETUP };
    for early in [LEAVES, Client { leaves_after: Some(2), ..STAYS }] {
        for arrives in [GRACE / 2, GRACE, GRACE * 2] {
            let late = Client { arrives, ..STAYS };
            let later = Client { arrives, leaves_after: Some(1), ..STAYS };
            for clients in [&[early, late, late], &[early, late, later], &[early, later, later]] {
                explore_all_orders(|| story(setup, clients)).await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_clients_grace_hides_no_pull_that_the_grace_of_a_later_client_keeps() {
    let setup = Setup { steps: None, ..SETUP };
    let visits = Client { arrives: GRACE / 2, ..LEAVES };
    let joins = Client { arrives: GRACE * 5 / 4, ..STAYS };
    explore_all_orders(|| story(setup, &[LEAVES, visits, joins])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn larger_stories_hold_in_orders_drawn_by_a_seed() {
    for seed in 0..2000_u64 {
        let mut dice = Dice(seed);
        let clients: Vec<Client> = (0..6)
            .map(|_| Client {
                image: dice.below(IMAGES),
                arrives: [Duration::ZERO, GRACE / 2, GRACE][dice.below(3)],
                priority: [0, HIGH][dice.below(2)],
                leaves_after: [None, Some(1), Some(3)][dice.below(3)],
                ends: dice.below(3) == 0,
            })
            .collect();
        let setup = Setup {
            grace: [Duration::ZERO, GRACE][dice.below(2)],
            slots: 1 + dice.below(2),
            steps: [None, Some(1), Some(3)][dice.below(3)],
            succeeds: dice.below(4) > 0,
        };
        explore_random_order(story(setup, &clients), seed).await.unwrap();
    }
}
