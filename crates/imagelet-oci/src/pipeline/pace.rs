//! The pace of one layer: what its network brought since it got its place and its memory, and what is left.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    hold::{CHECK_PERIOD, HoldMeter, PullWait, SharedThing},
    image::Digest,
    ports::{Progress, PullEvent},
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

#[derive(Debug)]
pub(crate) struct LayerPace {
    /// All time since the layer got its place.
    pub(crate) wall: Arc<HoldMeter>,
    /// The time in which the layer waits for its registry.
    pub(crate) network: HoldMeter,
    left: AtomicU64,
    /// When all compressed bytes were here.
    whole_since: Mutex<Option<Instant>>,
}

impl LayerPace {
    /// Of a layer that gets its place now.
    pub(crate) fn new(size: u64, now: Instant) -> Self {
        Self {
            wall: Arc::new(HoldMeter::new(now)),
            network: HoldMeter::new(now),
            left: AtomicU64::new(size),
            whole_since: Mutex::default(),
        }
    }

    /// The layer gets a place again.
    pub(crate) fn restart(&self, now: Instant) {
        self.wall.restart(now);
        self.network.restart(now);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.wall.add(bytes);
        self.network.add(bytes);
    }

    /// Compressed bytes that are not here.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    pub(crate) fn set_left(&self, left: u64) {
        self.left.store(left, Ordering::Relaxed);
        let mut whole_since = self.whole_since.lock().unwrap_or_else(PoisonError::into_inner);
        *whole_since = if left == 0 { whole_since.or(Some(Instant::now())) } else { None };
    }

    /// How long all compressed bytes have been here.
    pub(crate) fn whole_for(&self, now: Instant) -> Option<Duration> {
        let whole_since = *self.whole_since.lock().unwrap_or_else(PoisonError::into_inner);
        whole_since.map(|since| now.saturating_duration_since(since))
    }
}

/// Waits, and reports a wait that lasts; `holder` is the image that holds most of the thing then.
pub(crate) async fn reported<T>(
    (thing, layer, progress): (SharedThing, &Digest, &Progress),
    holder: impl Fn() -> Option<String>,
    wait: impl Future<Output = T>,
) -> T {
    let mut wait = pin!(wait);
    if let Ok(output) = timeout(CHECK_PERIOD, &mut wait).await {
        return output;
    }
    let _report = WaitReport::begin((thing, layer, progress), holder());
    wait.await
}

/// A wait that is reported; its end is, too, where it is dropped.
pub(crate) struct WaitReport {
    layer: Digest,
    progress: Progress,
}

impl WaitReport {
    pub(crate) fn begin((thing, layer, progress): (SharedThing, &Digest, &Progress), holder: Option<String>) -> Self {
        progress(PullEvent::Waits { layer: layer.clone(), wait: Some(PullWait { thing, holder }) });
        Self { layer: layer.clone(), progress: Arc::clone(progress) }
    }
}

impl Drop for WaitReport {
    fn drop(&mut self) {
        (self.progress)(PullEvent::Waits { layer: self.layer.clone(), wait: None });
    }
}

/// The moments at which a layer checks whether others wait for what it holds.
#[derive(Debug)]
pub(crate) struct Checks(Interval);

impl Checks {
    pub(crate) fn new() -> Self {
        let mut checks = interval_at(Instant::now() + CHECK_PERIOD, CHECK_PERIOD);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(checks)
    }

    /// Runs a future until its end; `None`: a check found a reason to end it.
    pub(crate) async fn run<T>(
        &mut self,
        future: impl Future<Output = T>,
        ends: impl Fn(Instant) -> bool,
    ) -> Option<T> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                // First: a future that is always ready must not keep others waiting.
                now = self.0.tick() => if ends(now) {
                    return None;
                },
                output = &mut future => return Some(output),
            }
        }
    }
}
