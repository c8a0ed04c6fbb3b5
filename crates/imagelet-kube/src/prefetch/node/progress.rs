//! The bytes of a running pull, from the events of its layers, and the rate at which they come.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use imagelet_core::{
    hold::HoldMeter,
    image::Digest,
    runtime::{LayerState, Progress, PullEvent, PullRoute},
};
use tokio::time::Instant;

/// Bytes received and in all, of the layers of one pull. Clones are the same bytes.
#[derive(Clone, Debug)]
pub(super) struct PullBytes(Arc<PullRecord>);

#[derive(Debug)]
struct PullRecord {
    layers: Mutex<LayerBytes>,
    meter: HoldMeter,
}

#[derive(Debug, Default)]
struct LayerBytes {
    /// Received and whole size of each layer; a manifest has a bounded number.
    layers: BTreeMap<Digest, (u64, u64)>,
    /// Whether the bytes are reported; `None`: not known yet.
    is_measured: Option<bool>,
}

impl PullBytes {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(PullRecord { layers: Mutex::default(), meter: HoldMeter::new(now) }))
    }

    /// The meter of what the network brings. Its clock stands while the pull waits for its turn, and once it has received
    /// all bytes.
    pub(super) fn meter(&self, is_queued: bool, now: Instant) -> &HoldMeter {
        let is_whole = self.sum().is_some_and(|(received, all)| received >= all);
        if is_queued || is_whole {
            self.0.meter.pause(now);
        } else {
            self.0.meter.resume(now);
        }
        &self.0.meter
    }

    /// Whether the pull reports its bytes; `None`: not known yet.
    pub(super) fn is_measured(&self) -> Option<bool> {
        self.lock().is_measured
    }

    pub(super) fn progress(&self) -> Progress {
        let bytes = self.clone();
        Arc::new(move |event| bytes.take(&event))
    }

    /// Received and in all; `None` before the manifest is known.
    pub(super) fn sum(&self) -> Option<(u64, u64)> {
        let bytes = self.lock();
        let sum = |(received, all): (u64, u64), (of_received, of_all): &(u64, u64)| {
            (received.saturating_add(*of_received), all.saturating_add(*of_all))
        };
        (!bytes.layers.is_empty()).then(|| bytes.layers.values().fold((0, 0), sum))
    }

    fn take(&self, event: &PullEvent) {
        let mut bytes = self.lock();
        match event {
            PullEvent::Route(way) => bytes.is_measured = Some(matches!(way, PullRoute::Imported)),
            PullEvent::Resolved { layers, .. } => {
                bytes.is_measured = Some(true);
                bytes.layers = layers.iter().map(|(digest, size)| (digest.clone(), (0, size.0))).collect();
            }
            PullEvent::Layer { digest, state } => {
                if let Some((received, all)) = bytes.layers.get_mut(digest) {
                    let before = *received;
                    *received = match state {
                        LayerState::Fetching { received } => received.0,
                        LayerState::Present | LayerState::Done => *all,
                    };
                    // What was present came over no network.
                    if !matches!(state, LayerState::Present) {
                        self.0.meter.add(received.saturating_sub(before));
                    }
                }
            }
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, LayerBytes> {
        self.0.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use imagelet_core::{image::ByteSize, runtime::ForwardReason};

    use super::*;

    #[test]
    fn bytes_are_summed_over_the_layers_of_the_manifest() {
        let bytes = PullBytes::new(Instant::now());
        let progress = bytes.progress();
        assert_eq!((bytes.sum(), bytes.is_measured()), (None, None));
        let [a, b, other] = [b"a", b"b", b"c"].map(|text| Digest::of(text));
        let layers = vec![(a.clone(), ByteSize(100)), (b.clone(), ByteSize(50))];
        progress(PullEvent::Resolved { manifest: other.clone(), layers });
        assert_eq!(bytes.sum(), Some((0, 150)));
        progress(PullEvent::Layer { digest: a, state: LayerState::Fetching { received: ByteSize(30) } });
        progress(PullEvent::Layer { digest: b, state: LayerState::Present });
        progress(PullEvent::Layer { digest: other, state: LayerState::Done });
        assert_eq!((bytes.sum(), bytes.is_measured()), (Some((80, 150)), Some(true)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_meter_counts_what_the_network_brings_while_something_is_left_of_it() {
        let (bytes, began) = (PullBytes::new(Instant::now()), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        let progress = bytes.progress();
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
        let progress = bytes.progress();
        for (way, is_measured) in
            [(PullRoute::Imported, true), (PullRoute::Forwarded(ForwardReason::SwitchedOff), false)]
        {
            progress(PullEvent::Route(way));
            assert_eq!(bytes.is_measured(), Some(is_measured));
        }
    }
}
