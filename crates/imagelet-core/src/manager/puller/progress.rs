//! The progress of one pull for all its clients; a late one receives the current state first.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    audit_log::PullHost,
    image::{ByteSize, Digest},
    runtime::{LayerState, Progress, PullEvent, PullRoute, RemovedImage},
};

const LAYERS_MAX: usize = 512;
const REMOVED_MAX: usize = 64;

#[derive(Clone, Default)]
pub(crate) struct Broadcast {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    resolved: Option<PullEvent>,
    layers: BTreeMap<Digest, LayerState>,
    received: BTreeMap<Digest, ByteSize>,
    committing: bool,
    way: Option<PullRoute>,
    /// The last announced wait.
    retry: Option<PullEvent>,
    hosts: Vec<PullHost>,
    /// Images removed for the pull, also by an attempt that is over.
    removed: Vec<RemovedImage>,
    listeners: HashMap<u64, Progress>,
    next: u64,
}

pub(crate) struct Listening {
    broadcast: Broadcast,
    number: u64,
}

impl Broadcast {
    pub(crate) fn listen(&self, progress: &Progress) -> Listening {
        let (number, missed) = {
            let mut shared = self.lock();
            let number = shared.next;
            shared.next += 1;
            shared.listeners.insert(number, Arc::clone(progress));
            (number, shared.story())
        };
        for event in missed {
            progress(event);
        }
        Listening { broadcast: self.clone(), number }
    }

    pub(crate) fn sink(&self) -> Progress {
        let broadcast = self.clone();
        Arc::new(move |event| broadcast.send(&event))
    }

    /// Compressed bytes received so far. `None`: not reported by the store.
    pub(crate) fn fetched(&self) -> Option<ByteSize> {
        let shared = self.lock();
        shared.resolved.as_ref()?;
        Some(shared.received.values().copied().sum())
    }

    pub(crate) fn way(&self) -> Option<PullRoute> {
        self.lock().way.clone()
    }

    /// What each host has sent, over all attempts.
    pub(crate) fn hosts(&self) -> Vec<PullHost> {
        self.lock().hosts.clone()
    }

    fn send(&self, event: &PullEvent) {
        let listeners: Vec<Progress> = {
            let mut shared = self.lock();
            shared.note(event);
            shared.listeners.values().cloned().collect()
        };
        // Called without the lock: a listener may be slow, though it must not block.
        for listener in listeners {
            listener(event.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn note(&mut self, event: &PullEvent) {
        match event {
            PullEvent::Resolved { .. } => {
                // A second credential restarts the pull.
                self.restart();
                self.resolved = Some(event.clone());
            }
            PullEvent::Layer { digest, state } => {
                self.count(digest, *state);
                if self.layers.len() < LAYERS_MAX || self.layers.contains_key(digest) {
                    self.layers.insert(digest.clone(), *state);
                }
            }
            PullEvent::Committing => (self.committing, self.retry) = (true, None),
            PullEvent::Retry { .. } => self.retry = Some(event.clone()),
            PullEvent::Removed(image) if self.removed.len() < REMOVED_MAX => self.removed.push(image.clone()),
            PullEvent::Token { .. }
            | PullEvent::Waits { .. }
            | PullEvent::Head { .. }
            | PullEvent::Warning { .. }
            | PullEvent::Removed(_) => {}
            PullEvent::Hosts(hosts) => PullHost::add_all(&mut self.hosts, hosts),
            PullEvent::Route(way) => {
                // What an import reported before is not what the runtime does now.
                self.restart();
                self.way = Some(way.clone());
            }
        }
    }

    fn restart(&mut self) {
        self.layers.clear();
        (self.resolved, self.committing, self.retry) = (None, false, None);
    }

    /// Keeps what came in of a layer. One that is done without a word of its progress came in whole.
    fn count(&mut self, digest: &Digest, state: LayerState) {
        let received = match state {
            LayerState::Present => return,
            LayerState::Fetching { received } => received,
            LayerState::Done if self.received.contains_key(digest) => return,
            LayerState::Done if self.layers.get(digest) == Some(&LayerState::Present) => return,
            LayerState::Done => {
                let Some(PullEvent::Resolved { layers, .. }) = &self.resolved else { return };
                layers.iter().find(|(layer, _)| layer == digest).map_or(ByteSize::ZERO, |(_, size)| *size)
            }
        };
        if self.received.len() < LAYERS_MAX || self.received.contains_key(digest) {
            let most = self.received.entry(digest.clone()).or_default();
            *most = received.max(*most);
        }
    }

    fn story(&self) -> Vec<PullEvent> {
        let layers =
            self.layers.iter().map(|(digest, state)| PullEvent::Layer { digest: digest.clone(), state: *state });
        let committing = self.committing.then_some(PullEvent::Committing);
        let way = self.way.clone().map(PullEvent::Route);
        let removed = self.removed.iter().cloned().map(PullEvent::Removed);
        let story = way.into_iter().chain(self.resolved.clone()).chain(removed).chain(layers).chain(committing);
        story.chain(self.retry.clone()).collect()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.broadcast.lock().listeners.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ForwardReason;

    #[test]
    fn a_late_joiner_learns_where_the_pull_stands() {
        let layer = Digest::of(b"layer");
        let resolved = PullEvent::Resolved { manifest: Digest::of(b"m"), layers: vec![(layer.clone(), ByteSize(9))] };
        let fetching = |received| PullEvent::Layer {
            digest: layer.clone(),
            state: LayerState::Fetching { received: ByteSize(received) },
        };
        let broadcast = Broadcast::default();
        assert_eq!(broadcast.fetched(), None);
        let sink = broadcast.sink();
        for event in [resolved.clone(), fetching(1), fetching(5)] {
            sink(event);
        }
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listening = {
            let heard = Arc::clone(&heard);
            let progress: Progress = Arc::new(move |event| heard.lock().unwrap().push(event));
            broadcast.listen(&progress)
        };
        sink(fetching(9));
        drop(listening);
        sink(PullEvent::Committing);
        assert_eq!(*heard.lock().unwrap(), [resolved, fetching(5), fetching(9)]);
        assert_eq!(broadcast.lock().listeners.len(), 0);
        sink(PullEvent::Layer { digest: layer, state: LayerState::Done });
        assert_eq!(broadcast.fetched(), Some(ByteSize(9)));
    }

    #[test]
    fn what_hosts_sent_is_summed_over_the_attempts_of_a_pull_and_bounded() {
        let broadcast = Broadcast::default();
        let host = |name: &str, bytes, class: &str| PullHost {
            host: name.into(),
            blobs: 1,
            bytes,
            failures: [(class.to_owned(), 1)].into(),
            ..PullHost::default()
        };
        let sink = broadcast.sink();
        sink(PullEvent::Hosts(vec![host("m", 5, "unauthorized")]));
        sink(PullEvent::Hosts(vec![host("m", 2, "unauthorized"), host("r", 3, "timed-out")]));
        let summed = PullHost { blobs: 2, bytes: 7, ..host("m", 0, "unauthorized") };
        let summed = PullHost { failures: [("unauthorized".to_owned(), 2)].into(), ..summed };
        assert_eq!(broadcast.hosts(), [summed, host("r", 3, "timed-out")]);
        sink(PullEvent::Hosts((0..100).map(|number| host(&number.to_string(), 1, "other")).collect()));
        (0..100).for_each(|number| sink(PullEvent::Hosts(vec![host("m", 0, &number.to_string())])));
        let hosts = broadcast.hosts();
        assert_eq!((hosts.len(), hosts[0].failures.len()), (PullHost::REPORTED_MAX, PullHost::CLASSES_MAX));
    }

    #[test]
    fn a_forward_forgets_what_the_import_before_it_reported() {
        let (broadcast, layer) = (Broadcast::default(), Digest::of(b"layer"));
        let (imported, forwarded) = (PullRoute::Imported, PullRoute::Forwarded(ForwardReason::SwitchedOff));
        let sink = broadcast.sink();
        sink(PullEvent::Route(imported.clone()));
        sink(PullEvent::Resolved { manifest: Digest::of(b"m"), layers: vec![(layer.clone(), ByteSize(9))] });
        sink(PullEvent::Layer { digest: layer, state: LayerState::Done });
        assert_eq!((broadcast.way(), broadcast.fetched()), (Some(imported), Some(ByteSize(9))));
        sink(PullEvent::Route(forwarded.clone()));
        assert_eq!((broadcast.way(), broadcast.fetched()), (Some(forwarded.clone()), None));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let progress: Progress = {
            let heard = Arc::clone(&heard);
            Arc::new(move |event| heard.lock().unwrap().push(event))
        };
        let _listening = broadcast.listen(&progress);
        assert_eq!(*heard.lock().unwrap(), [PullEvent::Route(forwarded)], "as a late joiner hears it");
    }
}
