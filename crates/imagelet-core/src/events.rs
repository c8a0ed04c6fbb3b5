//! Events about pods and the node, and the sinks that receive them.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use tokio::sync::broadcast;

/// Longest message kept, in bytes; a runtime's error text comes from outside.
const MESSAGE_LENGTH_MAX: usize = 8 * 1024;

/// Takes events. Must not block: it is called on the way of a pull.
pub trait EventSink: Send + Sync + fmt::Debug {
    /// Takes one event.
    fn record(&self, event: Event);
}

/// Something that happened, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether somebody should look.
    pub kind: EventKind,
    /// The machine's word for it: `Pulling`, `Pulled`, `Failed`, …
    pub reason: &'static str,
    /// The human's.
    pub message: String,
    /// To whom it happened.
    pub subject: EventSubject,
    /// What went wrong, for machines: beside the message, which stays the kubelet's.
    pub cause: Option<EventCause>,
}

/// What went wrong and where, in the stable words of `docs/errors.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCause {
    /// What.
    pub class: &'static str,
    /// Where on the way.
    pub hop: &'static str,
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// All is as it should be.
    Normal,
    /// Something is not.
    Warning,
}

impl EventKind {
    /// The word of the Kubernetes API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// To whom an event happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    /// A pod, or a container in it.
    Pod {
        /// The pod's namespace.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
        /// Its uid.
        uid: Arc<str>,
        /// `spec.containers{NAME}` and the like; empty for the pod itself.
        field_path: Arc<str>,
    },
    /// The node.
    Node,
}

impl fmt::Display for EventSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Pod { namespace, name, field_path, .. } => {
                if namespace.is_empty() && name.is_empty() {
                    return f.write_str("-");
                }
                write!(f, "{namespace}/{name}")?;
                if field_path.is_empty() { Ok(()) } else { write!(f, "/{field_path}") }
            }
        }
    }
}

/// An event and when it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// When.
    pub at: SystemTime,
    /// What.
    pub event: Event,
}

/// Logs events, keeps the last ones, and tells them to whoever follows.
pub struct LogEvents {
    kept: Mutex<VecDeque<RecordedEvent>>,
    kept_max: NonZeroUsize,
    followers: broadcast::Sender<RecordedEvent>,
}

impl LogEvents {
    /// Keeps that many events; a follower that falls further behind loses the oldest.
    pub fn new(kept_max: NonZeroUsize) -> Self {
        let (followers, _) = broadcast::channel(kept_max.get());
        Self { kept: Mutex::new(VecDeque::new()), kept_max, followers }
    }

    /// The events kept, oldest first.
    pub fn recent(&self) -> Vec<RecordedEvent> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The events kept, oldest first, and all from then on: none twice, none missed.
    pub fn recent_and_follow(&self) -> (Vec<RecordedEvent>, broadcast::Receiver<RecordedEvent>) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.iter().cloned().collect(), self.followers.subscribe())
    }

    /// All events from now on.
    pub fn follow(&self) -> broadcast::Receiver<RecordedEvent> {
        self.followers.subscribe()
    }
}

impl EventSink for LogEvents {
    fn record(&self, mut event: Event) {
        event.message.truncate(event.message.floor_char_boundary(MESSAGE_LENGTH_MAX));
        match event.kind {
            EventKind::Normal => {
                tracing::info!(reason = event.reason, subject = %event.subject, "{}", event.message);
            }
            EventKind::Warning => {
                let (class, hop) = (event.cause.map(|cause| cause.class), event.cause.map(|cause| cause.hop));
                tracing::warn!(reason = event.reason, subject = %event.subject, class, hop, "{}", event.message);
            }
        }
        let recorded = RecordedEvent { at: SystemTime::now(), event };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == self.kept_max.get() {
            kept.pop_front();
        }
        kept.push_back(recorded.clone());
        // Without followers the send has nobody to reach, which is no failure.
        let _ = self.followers.send(recorded);
    }
}

impl fmt::Debug for LogEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogEvents").field("kept_max", &self.kept_max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str) -> Event {
        Event {
            kind: EventKind::Normal,
            reason: "Pulled",
            message: message.into(),
            subject: EventSubject::Node,
            cause: None,
        }
    }

    #[test]
    fn the_last_events_are_kept_and_the_older_ones_go() {
        let events = LogEvents::new(NonZeroUsize::new(2).expect("not zero"));
        let mut follower = events.follow();
        for message in ["a", "b", "c"] {
            events.record(event(message));
        }
        let kept: Vec<String> = events.recent().into_iter().map(|recorded| recorded.event.message).collect();
        assert_eq!(kept, ["b", "c"]);
        assert!(matches!(follower.try_recv(), Err(broadcast::error::TryRecvError::Lagged(1))));
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let events = LogEvents::new(NonZeroUsize::MIN);
        events.record(event(&"ü".repeat(MESSAGE_LENGTH_MAX)));
        assert_eq!(events.recent()[0].event.message.len(), MESSAGE_LENGTH_MAX);
    }
}
