//! The bytes of a running pull, from the events of its layers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use imagelet_core::{
    image::Digest,
    runtime::{LayerState, Progress, PullEvent},
};

/// Bytes received and in all, of the layers of one pull.
#[derive(Clone, Debug, Default)]
pub(super) struct PullBytes(Arc<Mutex<LayerBytes>>);

#[derive(Debug, Default)]
struct LayerBytes {
    /// Received and whole size of each layer; a manifest has a bounded number.
    layers: BTreeMap<Digest, (u64, u64)>,
}

impl PullBytes {
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
            PullEvent::Resolved { layers, .. } => {
                bytes.layers = layers.iter().map(|(digest, size)| (digest.clone(), (0, size.0))).collect();
            }
            PullEvent::Layer { digest, state } => {
                if let Some((received, all)) = bytes.layers.get_mut(digest) {
                    *received = match state {
                        LayerState::Fetching { received } => received.0,
                        LayerState::Present | LayerState::Done => *all,
                    };
                }
            }
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, LayerBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::image::ByteSize;

    use super::*;

    #[test]
    fn bytes_are_summed_over_the_layers_of_the_manifest() {
        let bytes = PullBytes::default();
        let progress = bytes.progress();
        assert_eq!(bytes.sum(), None);
        let [a, b, other] = [b"a", b"b", b"c"].map(|text| Digest::of(text));
        let layers = vec![(a.clone(), ByteSize(100)), (b.clone(), ByteSize(50))];
        progress(PullEvent::Resolved { manifest: other.clone(), layers });
        assert_eq!(bytes.sum(), Some((0, 150)));
        progress(PullEvent::Layer { digest: a, state: LayerState::Fetching { received: ByteSize(30) } });
        progress(PullEvent::Layer { digest: b, state: LayerState::Present });
        progress(PullEvent::Layer { digest: other, state: LayerState::Done });
        assert_eq!(bytes.sum(), Some((80, 150)));
    }
}
