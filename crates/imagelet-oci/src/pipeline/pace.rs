//! The pace of one layer: the bytes received since it got its place and its memory, and the bytes left.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    hold::{CHECK_PERIOD, HoldMeter, PullWait, SharedThing},
    image::Digest,
    lock::locked,
    ports::{Progress, PullEvent},
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use crate::event_pair::EventPair;

#[derive(Debug)]
pub(crate) struct LayerPace {
    /// The time since the layer got its place.
    pub(crate) wall: Arc<HoldMeter>,
    /// The time in which the layer waits for its registry.
    pub(crate) network: HoldMeter,
    left: AtomicU64,
    /// The time at which the last compressed byte was received.
    whole_since: Mutex<Option<Instant>>,
}

impl LayerPace {
    pub(crate) fn new(size: u64, now: Instant) -> Self {
        Self {
            wall: Arc::new(HoldMeter::new(now)),
            network: HoldMeter::new(now),
            left: AtomicU64::new(size),
            whole_since: Mutex::default(),
        }
    }

    pub(crate) fn restart(&self, now: Instant) {
        self.wall.restart(now);
        self.network.restart(now);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.wall.add(bytes);
        self.network.add(bytes);
    }

    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    pub(crate) fn set_left(&self, left: u64) {
        self.left.store(left, Ordering::Relaxed);
        let mut whole_since = locked(&self.whole_since);
        *whole_since = if left == 0 { whole_since.or(Some(Instant::now())) } else { None };
    }

    pub(crate) fn whole_for(&self, now: Instant) -> Option<Duration> {
        let whole_since = *locked(&self.whole_since);
        whole_since.map(|since| now.saturating_duration_since(since))
    }
}

/// Waits, and reports a long wait. `holder` returns the image that has most of the shared thing.
pub(crate) async fn reported<T>(
    (thing, layer, progress): (SharedThing, &Digest, &Progress),
    holder: impl Fn() -> Option<String>,
    wait: impl Future<Output = T>,
) -> T {
    let mut wait = pin!(wait);
    if let Ok(output) = timeout(CHECK_PERIOD, &mut wait).await {
        return output;
    }
    let _report = report_wait((thing, layer, progress), holder());
    wait.await
}

/// The drop of the returned pair reports the end of the wait.
pub(crate) fn report_wait(
    (thing, layer, progress): (SharedThing, &Digest, &Progress),
    holder: Option<String>,
) -> EventPair {
    let waits = |wait| PullEvent::Waits { layer: layer.clone(), wait };
    EventPair::begin(Arc::clone(progress), waits(Some(PullWait { thing, holder })), waits(None))
}

/// Reports a recheck of an earlier pull's content, during which no byte is received. The drop reports its end.
pub(crate) fn report_recheck(layer: &Digest, progress: &Progress) -> EventPair {
    let recheck = |is_over| PullEvent::Recheck { layer: layer.clone(), is_over };
    EventPair::begin(Arc::clone(progress), recheck(false), recheck(true))
}

#[derive(Debug)]
pub(crate) struct Checks(Interval);

impl Checks {
    pub(crate) fn new() -> Self {
        let mut checks = interval_at(Instant::now() + CHECK_PERIOD, CHECK_PERIOD);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(checks)
    }

    /// Runs a future to its end; `None` if `ends` has returned true at a check before.
    pub(crate) async fn run<T>(
        &mut self,
        future: impl Future<Output = T>,
        ends: impl Fn(Instant) -> bool,
    ) -> Option<T> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                // The tick is polled first: a future that is always ready must not delay the check.
                now = self.0.tick() => if ends(now) {
                    return None;
                },
                output = &mut future => return Some(output),
            }
        }
    }
}
