//! The bytes of a running pull and their rate.

use std::sync::{Arc, Mutex};

use imagelet_core::{
    hold::HoldMeter,
    lock::locked,
    ports::{PullProgress, PullRoute, PullWatcher},
};
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct PullBytes {
    known: Mutex<KnownBytes>,
    meter: HoldMeter,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownBytes {
    /// The received or present bytes, and the total. `None` before the manifest is known.
    pub(super) sum: Option<(u64, u64)>,
    received: u64,
    /// Whether the pull reports its bytes, or `None` if this is not known yet.
    pub(super) is_measured: Option<bool>,
}

impl PullBytes {
    pub(super) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self { known: Mutex::default(), meter: HoldMeter::new(now) })
    }

    /// The meter of received bytes. Its clock stops while the pull is queued, and after all bytes are received.
    pub(super) fn meter(&self, is_queued: bool, now: Instant) -> &HoldMeter {
        let is_whole = self.known().sum.is_some_and(|(received, all)| received >= all);
        if is_queued || is_whole {
            self.meter.pause(now);
        } else {
            self.meter.resume(now);
        }
        &self.meter
    }

    pub(super) fn known(&self) -> KnownBytes {
        *locked(&self.known)
    }

    pub(super) fn watcher(self: &Arc<Self>) -> PullWatcher {
        let bytes = Arc::clone(self);
        Arc::new(move |progress| bytes.take(progress))
    }

    fn take(&self, progress: &PullProgress) {
        let mut known = locked(&self.known);
        self.meter.add(progress.traffic.received.saturating_sub(known.received));
        let (received, missing) = progress.bytes();
        let all = progress.layers.iter().map(|layer| layer.size.0).fold(0, u64::saturating_add);
        *known = KnownBytes {
            sum: (!progress.layers.is_empty()).then_some((all - missing + received, all)),
            received: progress.traffic.received,
            is_measured: match &progress.route {
                Some(route) => Some(matches!(route, PullRoute::Imported)),
                None => progress.times.resolved.is_some().then_some(true),
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use imagelet_core::{
        image::{ByteSize, Digest},
        ports::{ForwardReason, LayerState, PullEvent},
    };

    use super::*;

    /// Applies events to a progress that these bytes watch.
    fn watched(bytes: &Arc<PullBytes>) -> impl FnMut(PullEvent) {
        let (watcher, mut progress) = (bytes.watcher(), PullProgress::default());
        move |event| {
            progress.apply(event, Instant::now());
            watcher(&progress);
        }
    }

    #[test]
    fn bytes_are_summed_over_the_layers_of_the_manifest() {
        let bytes = PullBytes::new(Instant::now());
        let mut progress = watched(&bytes);
        assert_eq!((bytes.known().sum, bytes.known().is_measured), (None, None));
        let [a, b, other] = [b"a", b"b", b"c"].map(|text| Digest::of(text));
        let layers = vec![(a.clone(), ByteSize(100)), (b.clone(), ByteSize(50))];
        progress(PullEvent::Resolved { manifest: other.clone(), layers });
        assert_eq!(bytes.known().sum, Some((0, 150)));
        progress(PullEvent::Layer { digest: a, state: LayerState::Fetching { received: ByteSize(30) } });
        progress(PullEvent::Layer { digest: b, state: LayerState::Present });
        progress(PullEvent::Layer { digest: other, state: LayerState::Done });
        assert_eq!((bytes.known().sum, bytes.known().is_measured), (Some((80, 150)), Some(true)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_meter_counts_what_the_network_brings_while_something_is_left_of_it() {
        let (bytes, began) = (PullBytes::new(Instant::now()), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut progress = watched(&bytes);
        assert_eq!(bytes.meter(true, after(0)).bytes(), 0);
        assert_eq!(bytes.meter(false, after(60)).held_for(after(60)), Duration::ZERO, "a minute in the queue");
        let [a, b] = [b"a", b"b"].map(|text| Digest::of(text));
        let layers = vec![(a.clone(), ByteSize(1000)), (b.clone(), ByteSize(90_000))];
        progress(PullEvent::Resolved { manifest: a.clone(), layers });
        progress(PullEvent::Layer { digest: b, state: LayerState::Present });
        progress(PullEvent::Layer { digest: a.clone(), state: LayerState::Fetching { received: ByteSize(300) } });
        let meter = bytes.meter(false, after(70));
        assert_eq!((meter.bytes(), meter.held_for(after(70))), (300, Duration::from_secs(10)));
        progress(PullEvent::Layer { digest: a, state: LayerState::Done });
        let meter = bytes.meter(false, after(70));
        assert_eq!((meter.bytes(), meter.held_for(after(99))), (1000, Duration::from_secs(10)), "it is being unpacked");
    }

    #[test]
    fn what_a_runtime_fetches_is_not_measured() {
        let bytes = PullBytes::new(Instant::now());
        let mut progress = watched(&bytes);
        for (way, is_measured) in
            [(PullRoute::Imported, true), (PullRoute::Forwarded(ForwardReason::SwitchedOff), false)]
        {
            progress(PullEvent::Route(way));
            assert_eq!(bytes.known().is_measured, Some(is_measured));
        }
    }
}
