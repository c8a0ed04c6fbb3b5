//! Pulls that share or race for a layer: every order of a few, and the clock of slow registries.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::time::sleep;

use futures_util::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use imagelet_core::testing::interleavings::{InterleavedStory, explore_all_orders, explore_random_order, step};

use super::*;

use Fetch::{Cancelled, Fails, Succeeds};

#[derive(Clone, Copy)]
enum Fetch {
    Succeeds,
    Fails,
    /// The pull is cancelled after so many steps.
    Cancelled(usize),
}

/// The layer of one run: how often it is being fetched, staged and in the store.
#[derive(Default)]
struct Layer {
    fetching: AtomicUsize,
    staged: AtomicUsize,
    is_in_store: AtomicBool,
    fetched_by: AtomicUsize,
}

struct Staged(Arc<Layer>);

impl Staged {
    fn new(layer: &Arc<Layer>) -> Self {
        layer.staged.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(layer))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.0.staged.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts a fetch for as long as it is not dropped.
struct Fetching(Arc<Layer>);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.fetching.fetch_sub(1, Ordering::SeqCst);
    }
}

fn caller(namespace: &str) -> Arc<LayerCaller> {
    let tenant = Arc::new(Tenant { namespace: namespace.into(), credential: None });
    Arc::new(LayerCaller {
        tenant,
        repository: "repo".into(),
        reference: format!("{namespace}/repo:v1"),
        size: SIZE,
        hold: HoldPolicy::default(),
        rate: Box::new(|| None),
        layer: Digest::of(b"layer"),
        progress: imagelet_core::ports::no_progress(),
    })
}

const SIZE: u64 = 30 << 20;

/// A pull of a tenant whose registry brings so many bytes a second; returns the tenant whose fetch brought its layer, and when.
async fn raced(
    fetches: &LayerSingleFlight<&'static str>,
    namespace: &'static str,
    rate: u64,
    delay: Duration,
) -> (&'static str, Duration) {
    let began = Instant::now();
    sleep(delay).await;
    let enter = async || {
        let pace = Arc::new(LayerPace::new(SIZE, Instant::now()));
        (Arc::clone(&pace), pace)
    };
    let fetch = async |pace: Arc<LayerPace>| {
        let mut left = SIZE;
        while left > 0 {
            sleep(Duration::from_millis(100)).await;
            let received = left.min(rate.div_ceil(10));
            left -= received;
            pace.received(received);
            pace.set_left(left);
        }
        Ok::<_, ()>(namespace)
    };
    let present = async |staged: Option<Arc<&'static str>>| Ok(staged);
    let layer = match fetches.race(key(), &caller(namespace), present, enter, fetch).await.unwrap() {
        RaceOutcome::Present(staged) => staged,
        RaceOutcome::Own(fetched, guard) => {
            let staged = Arc::new(fetched);
            guard.publish(&staged);
            staged
        }
    };
    // As long as its image is not in the store.
    let found = (*layer, began.elapsed());
    sleep(Duration::from_mins(10)).await;
    drop(layer);
    found
}

#[tokio::test(start_paused = true)]
async fn another_tenant_fetches_a_slow_layer_itself_and_the_slow_one_shares_what_came_first() {
    for slow in [0, 100, 20 << 10] {
        let fetches = LayerSingleFlight::default();
        let (slow, quick) = tokio::join!(
            raced(&fetches, "slow", slow, Duration::ZERO),
            raced(&fetches, "quick", 10 << 20, Duration::from_secs(30)),
        );
        assert_eq!((slow.0, quick.0), ("quick", "quick"));
        let (alone, took) = (Duration::from_secs(3), quick.1.saturating_sub(Duration::from_secs(30)));
        assert!(took <= alone + Duration::from_secs(1), "{took:?}");
        assert!(slow.1 <= quick.1 + Duration::from_secs(1), "{slow:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_came_just_after_a_slow_one_waits_no_more_than_six_seconds_longer_than_alone() {
    let fetches = LayerSingleFlight::default();
    let (_, quick) = tokio::join!(
        raced(&fetches, "slow", 100, Duration::ZERO),
        raced(&fetches, "quick", 10 << 20, Duration::from_millis(1)),
    );
    assert_eq!(quick.0, "quick");
    assert!(quick.1 <= Duration::from_secs(3 + 6), "{:?}", quick.1);
}

#[tokio::test(start_paused = true)]
async fn a_row_of_fetches_that_fail_and_one_that_is_whole_and_stands_still_keep_no_other_tenant_waiting() {
    let fetches = Arc::new(LayerSingleFlight::default());
    // Each begins as the one before it fails.
    let failing = {
        let fetches = Arc::clone(&fetches);
        tokio::spawn(async move {
            for number in 0..100 {
                let begin = fetches.slot(key()).begin(
                    &caller(&format!("t{number}")),
                    Arc::new(LayerPace::new(SIZE, Instant::now())),
                    (number, false),
                );
                sleep(Duration::from_millis(900)).await;
                drop(begin);
            }
        })
    };
    let quick = raced(&fetches, "quick", 10 << 20, Duration::from_millis(1)).await;
    assert!(quick.1 <= Duration::from_secs(3 + 6), "{:?}", quick.1);
    failing.abort();

    let fetches = LayerSingleFlight::<&'static str>::default();
    let pace = Arc::new(LayerPace::new(SIZE, Instant::now()));
    pace.set_left(0);
    let _stands = fetches.slot(key()).begin(&caller("whole"), pace, (0, true)).expect("no other");
    let quick = raced(&fetches, "quick", 10 << 20, Duration::from_secs(1)).await;
    assert!(quick.1 <= Duration::from_secs(1 + 60 + 4), "{:?}", quick.1);
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_comes_well_is_fetched_once_for_all_tenants_and_a_slow_one_once_for_its_own() {
    let fetches = LayerSingleFlight::default();
    let (first, second) = tokio::join!(
        raced(&fetches, "first", 1 << 20, Duration::ZERO),
        raced(&fetches, "second", 10 << 20, Duration::from_secs(2)),
    );
    assert_eq!((first.0, second.0), ("first", "first"));
    let fetches = LayerSingleFlight::default();
    let (first, again) = tokio::join!(
        raced(&fetches, "same", 100 << 10, Duration::ZERO),
        raced(&fetches, "same", 10 << 20, Duration::from_secs(10)),
    );
    assert_eq!(first.1, again.1, "one fetch");
}

fn key() -> LayerKey {
    (Digest::of(b"layer"), None)
}

/// A pull of the layer: it fetches or shares it, fetches another layer, and puts both into the store.
fn pull(fetches: &Arc<LayerSingleFlight<Staged>>, layer: &Arc<Layer>, way: Fetch) -> BoxFuture<'static, ()> {
    let (fetches, layer) = (Arc::clone(fetches), Arc::clone(layer));
    let pulls = async move {
        let fetch = async {
            layer.fetched_by.fetch_add(1, Ordering::SeqCst);
            layer.fetching.fetch_add(1, Ordering::SeqCst);
            let _fetching = Fetching(Arc::clone(&layer));
            step().await;
            if matches!(way, Fails) { Err(()) } else { Ok(Staged::new(&layer)) }
        };
        let present = async |staged: Option<Arc<Staged>>| {
            let is_in_store = layer.is_in_store.load(Ordering::SeqCst);
            Ok(if is_in_store { Some(None) } else { staged.map(Some) })
        };
        let enter = async || ((), Arc::new(LayerPace::new(0, Instant::now())));
        let Ok(outcome) = fetches.race(key(), &caller("a"), present, enter, |()| fetch).await else { return };
        let staged = match outcome {
            RaceOutcome::Present(staged) => staged,
            RaceOutcome::Own(staged, guard) => {
                let staged = Arc::new(staged);
                guard.publish(&staged);
                Some(staged)
            }
        };
        step().await;
        if staged.is_some() {
            layer.is_in_store.store(true, Ordering::SeqCst);
        }
        step().await;
    };
    let Cancelled(steps) = way else { return pulls.boxed() };
    async move {
        let cancelled = async {
            for _ in 0..steps {
                step().await;
            }
        };
        drop(future::select(pulls.boxed(), cancelled.boxed()).await);
    }
    .boxed()
}

fn story(ways: &[Fetch]) -> InterleavedStory {
    let (fetches, layer) = (Arc::new(LayerSingleFlight::default()), Arc::new(Layer::default()));
    let tasks = ways.iter().map(|way| pull(&fetches, &layer, *way)).collect();
    let invariant = {
        let layer = Arc::clone(&layer);
        move || match (layer.fetching.load(Ordering::SeqCst), layer.staged.load(Ordering::SeqCst)) {
            (0, 0 | 1) | (1, 0) => Ok(()),
            (fetching, staged) => Err(format!("fetched {fetching} times at once beside {staged} staged layers")),
        }
    };
    let (pulls, succeed) = (ways.len(), ways.iter().filter(|way| matches!(way, Succeeds)).count());
    let at_end = move || {
        let fetched = layer.fetched_by.load(Ordering::SeqCst);
        if succeed > 0 && !layer.is_in_store.load(Ordering::SeqCst) {
            return Err("no pull brought the layer".to_owned());
        }
        if succeed == pulls && fetched != 1 {
            return Err(format!("{pulls} pulls fetched the layer {fetched} times"));
        }
        drop(fetches.slot((Digest::of(b"other"), None)));
        let slots = fetches.0.lock().unwrap().len();
        if slots == 1 { Ok(()) } else { Err(format!("{slots} slots remain of one that is wanted")) }
    };
    InterleavedStory { tasks, invariant: Box::new(invariant), at_end: Box::new(at_end) }
}

#[tokio::test(start_paused = true)]
async fn in_every_order_a_layer_is_fetched_once_at_a_time_and_not_beside_a_staged_one() {
    for ways in [
        [Succeeds, Succeeds, Succeeds],
        [Succeeds, Succeeds, Fails],
        [Succeeds, Fails, Fails],
        [Succeeds, Succeeds, Cancelled(1)],
        [Succeeds, Cancelled(1), Cancelled(2)],
        [Succeeds, Fails, Cancelled(2)],
    ] {
        explore_all_orders(|| story(&ways)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn in_orders_drawn_by_a_seed_six_pulls_of_a_layer_do_so_too() {
    for ways in [[Succeeds; 6], [Fails, Cancelled(1), Succeeds, Cancelled(3), Fails, Succeeds]] {
        for seed in 0..500 {
            explore_random_order(story(&ways), seed).await.unwrap();
        }
    }
}
