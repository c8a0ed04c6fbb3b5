//! Events about pods and the node, and the sinks that receive them.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use tokio::sync::broadcast;

use crate::{
    error::{ErrorClass, Stage},
    lock::locked,
    text::named_enum,
};

/// Maximum length of a stored message in bytes. A runtime's error text has no limit.
const MESSAGE_LENGTH_MAX: usize = 8 * 1024;

/// Receives events. Must not block, because pulls call it.
pub trait EventSink: Send + Sync + fmt::Debug {
    fn record(&self, event: Event);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub reason: &'static str,
    pub message: String,
    /// The text for cluster-wide readers, if `message` has names of one namespace. `None`: they get `message`.
    pub note: Option<String>,
    pub subject: EventSubject,
    /// The class and stage of the failure, for programs, because `message` has the kubelet's text.
    pub cause: Option<(ErrorClass, Stage)>,
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum EventKind {
        Normal = "Normal",
        Warning = "Warning",
    }
}

/// The pod of a request or an event. If there is no pod, all fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodIdentity {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    Pod {
        pod: PodIdentity,
        /// `spec.containers{NAME}` or a similar path. Empty for the pod itself.
        field_path: Arc<str>,
    },
    Node,
}

impl fmt::Display for EventSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Pod { pod: PodIdentity { namespace, name, .. }, field_path } => {
                if namespace.is_empty() && name.is_empty() {
                    return f.write_str("-");
                }
                write!(f, "{namespace}/{name}")?;
                if field_path.is_empty() { Ok(()) } else { write!(f, "/{field_path}") }
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The position among all events of this process, starting at 1.
    pub number: u64,
    pub at: SystemTime,
    pub event: Event,
}

#[derive(Debug)]
pub struct LogEvents {
    kept: Mutex<VecDeque<RecordedEvent>>,
    kept_max: NonZeroUsize,
    followers: broadcast::Sender<RecordedEvent>,
}

impl LogEvents {
    /// Stores the last `kept_max` events. A subscriber that is further behind than that loses the oldest events.
    pub fn new(kept_max: NonZeroUsize) -> Self {
        let (followers, _) = broadcast::channel(kept_max.get());
        Self { kept: Mutex::new(VecDeque::new()), kept_max, followers }
    }

    pub fn recent(&self) -> Vec<RecordedEvent> {
        locked(&self.kept).iter().cloned().collect()
    }

    /// The stored events, the oldest first, and a subscription to all later events, without gap or repetition.
    pub fn recent_and_follow(&self) -> (Vec<RecordedEvent>, broadcast::Receiver<RecordedEvent>) {
        let kept = locked(&self.kept);
        (kept.iter().cloned().collect(), self.followers.subscribe())
    }

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
                let (class, stage) = event.cause.map(|(class, stage)| (class.name(), stage.name())).unzip();
                tracing::warn!(reason = event.reason, subject = %event.subject, class, stage, "{}", event.message);
            }
        }
        let mut kept = locked(&self.kept);
        let number = kept.back().map_or(0, |last| last.number) + 1;
        let recorded = RecordedEvent { number, at: SystemTime::now(), event };
        if kept.len() == self.kept_max.get() {
            kept.pop_front();
        }
        kept.push_back(recorded.clone());
        // The send fails without subscribers, which is no error.
        let _ = self.followers.send(recorded);
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
            note: None,
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
        let kept: Vec<_> =
            events.recent().into_iter().map(|recorded| (recorded.number, recorded.event.message)).collect();
        assert_eq!(kept, [(2, "b".to_owned()), (3, "c".to_owned())]);
        assert!(matches!(follower.try_recv(), Err(broadcast::error::TryRecvError::Lagged(1))));
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let events = LogEvents::new(NonZeroUsize::MIN);
        events.record(event(&"ü".repeat(MESSAGE_LENGTH_MAX)));
        assert_eq!(events.recent()[0].event.message.len(), MESSAGE_LENGTH_MAX);
    }
}
