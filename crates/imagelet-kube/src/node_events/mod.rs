//! Events about the node in the cluster (`events.k8s.io/v1`): what imagelet decides by itself, and no kubelet reports.
//!
//! Events are sent as they happen and are not kept: those during an outage of the API server are in the daemon's own list only.

mod series;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::Method;
use imagelet_core::{
    events::{Event, EventCause, EventKind, EventSubject, LogEvents},
    image::Reference,
    printable::one_line,
    runtime::{ErrorClass, Stage},
};
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, MissedTickBehavior, interval},
};

use self::series::{EventAction, EventText, SeriesTable};
use crate::{access::ApiAccess, api_client::ApiClient, api_error::ApiError, names::shown};

/// The reasons that are sent, of events about the node.
const REASONS: [&str; 6] =
    ["CircuitOpened", "FreeDiskSpaceFailed", "ImageGCFailed", "LookAheadFailed", "PinsReleased", "PrefetchFailed"];
/// Where events about nodes are, as a kubelet's own.
const EVENTS_PATH: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const NAMESPACE: &str = "default";
const CONTROLLER: &str = "imagelet.dev/node-agent";
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The API's limits, in bytes.
const NOTE_LENGTH_MAX: usize = 1024;
const INSTANCE_LENGTH_MAX: usize = 128;
/// An event's name is the node's, a dot and 16 digits; a name has 253 bytes at most.
const NODE_LENGTH_MAX: usize = 236;

#[derive(Debug)]
pub(crate) struct NodeEvents {
    api: ApiClient,
    node: String,
    events: Arc<LogEvents>,
}

impl NodeEvents {
    pub(crate) fn new(access: ApiAccess, node: &str, events: Arc<LogEvents>) -> Self {
        Self { api: ApiClient::new(access).waiting(ANSWER_MAX), node: node.to_owned(), events }
    }

    /// Sends events for as long as this future lives. `look_every` is the period in which series are looked at.
    pub(crate) async fn run(&self, look_every: Duration) {
        let mut received = self.events.follow();
        let mut table = SeriesTable::new(Instant::now());
        let mut clock = interval(look_every);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_failing = false;
        loop {
            let actions = tokio::select! {
                event = received.recv() => match event {
                    Ok(recorded) => {
                        let text = text(&recorded.event);
                        let action = text.and_then(|text| table.observe(text, recorded.at, Instant::now()));
                        action.into_iter().collect()
                    }
                    // The oldest are lost, and the next ones are not.
                    Err(RecvError::Lagged(_)) => continue,
                    Err(RecvError::Closed) => return,
                },
                _ = clock.tick() => table.due(Instant::now()),
            };
            for action in actions {
                let (EventAction::Create { text, .. } | EventAction::Update { text, .. }) = &action;
                match self.send(&action).await {
                    Ok(()) => is_failing = false,
                    Err(error) => {
                        table.forget(text);
                        let error = error.chain();
                        if std::mem::replace(&mut is_failing, true) {
                            tracing::debug!(error, reason = text.reason, "could not send an event to the cluster");
                        } else {
                            tracing::warn!(error, reason = text.reason, "could not send an event to the cluster");
                        }
                    }
                }
            }
        }
    }

    async fn send(&self, action: &EventAction) -> Result<(), ApiError> {
        let sent = match action {
            EventAction::Create { id, text, at } => {
                self.api.send::<IgnoredAny>(Method::POST, EVENTS_PATH, &self.object(*id, text, *at)).await.map(drop)
            }
            EventAction::Update { id, count, last, .. } => {
                let series = json!({"series": {"count": count, "lastObservedTime": micro_time(*last)}});
                self.api.merge(&format!("{EVENTS_PATH}/{}", self.name(*id)), &series).await
            }
        };
        match sent {
            // Created by an earlier attempt whose answer was lost.
            Ok(()) | Err(ApiError::Rejected { code: 409, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn object(&self, id: u64, text: &EventText, at: SystemTime) -> Value {
        let instance = &self.node[..self.node.floor_char_boundary(INSTANCE_LENGTH_MAX)];
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": self.name(id), "namespace": NAMESPACE},
            "type": text.kind.name(),
            "reason": text.reason,
            "action": "ManageImages",
            "note": text.note,
            "eventTime": micro_time(at),
            "reportingController": CONTROLLER,
            "reportingInstance": instance,
            // A kubelet's events have the name for the uid, too: `kubectl describe node` searches for it.
            "regarding": {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node},
        })
    }

    fn name(&self, id: u64) -> String {
        format!("{}.{id:016x}", &self.node[..self.node.floor_char_boundary(NODE_LENGTH_MAX)])
    }
}

/// What is sent of an event; `None`: nothing. Each reader of the namespace `default` sees it.
fn text(event: &Event) -> Option<EventText> {
    if event.subject != EventSubject::Node || !REASONS.contains(&event.reason) {
        return None;
    }
    let text = event.note.as_deref().unwrap_or(&event.message);
    Some(EventText {
        kind: event.kind,
        reason: event.reason,
        note: one_line(&text[..text.floor_char_boundary(NOTE_LENGTH_MAX)]),
    })
}

/// The event about a pull that failed at a step. Readers of the whole cluster get the registry and no name of a tenant.
pub(crate) fn failure_event(
    reason: &'static str,
    message: String,
    what: &str,
    image: &str,
    (class, stage): (ErrorClass, Stage),
) -> Event {
    let registry = image.parse::<Reference>().map(|name| name.domain().to_owned()).unwrap_or_default();
    Event {
        kind: EventKind::Warning,
        reason,
        message,
        note: Some(format!("{what} from registry `{}`: {class} at {stage}", shown(&registry))),
        subject: EventSubject::Node,
        cause: Some(EventCause { class: class.word(), stage: stage.word() }),
    }
}

/// The API's `MicroTime`: RFC 3339 with microseconds.
pub(crate) fn micro_time(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.6}")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use imagelet_core::events::{EventKind, EventSink as _};

    use super::*;
    use crate::testing::{ApiFault, FakeApi, FakeApiOptions};

    const WAIT_MAX: Duration = Duration::from_secs(30);

    struct Bed {
        api: FakeApi,
        events: Arc<LogEvents>,
        running: tokio::task::JoinHandle<()>,
        _folder: tempfile::TempDir,
    }

    impl Bed {
        async fn new() -> Self {
            let api = FakeApi::start(FakeApiOptions { token: Some("a-token".into()), tls: true }).await;
            let folder = tempfile::tempdir().unwrap();
            let access = ApiAccess::Kubeconfig(api.kubeconfig(folder.path()));
            let events = Arc::new(LogEvents::new(NonZeroUsize::new(1000).unwrap()));
            let sender = NodeEvents::new(access, "node-1", Arc::clone(&events));
            let running = tokio::spawn(async move { sender.run(Duration::from_millis(10)).await });
            // It subscribes when it first runs.
            tokio::task::yield_now().await;
            Self { api, events, running, _folder: folder }
        }

        fn record(&self, kind: EventKind, reason: &'static str, subject: EventSubject, message: &str) {
            self.events.record(Event { kind, reason, message: message.into(), note: None, subject, cause: None });
        }

        fn warn(&self, reason: &'static str, message: &str) {
            self.record(EventKind::Warning, reason, EventSubject::Node, message);
        }

        async fn until_objects(&self, count: usize) -> Vec<Value> {
            let waiting = async {
                loop {
                    let objects = self.api.events();
                    if objects.len() >= count {
                        return objects;
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(WAIT_MAX, waiting).await.expect("the events arrive")
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            self.running.abort();
        }
    }

    fn pod() -> EventSubject {
        let (namespace, name, uid) = ("shop".into(), "web".into(), "uid-web".into());
        EventSubject::Pod { namespace, name, uid, field_path: "".into() }
    }

    #[tokio::test]
    async fn warnings_about_the_node_become_objects_once_and_what_a_kubelet_reports_does_not() {
        let bed = Bed::new().await;
        bed.record(EventKind::Warning, "Failed", pod(), "Failed to pull image");
        bed.record(EventKind::Normal, "ImagesCollected", EventSubject::Node, "Removed 3 images");
        bed.warn("ImportFailed", "an archive is broken");
        for _ in 0..3 {
            bed.warn("ImageGCFailed", "no space\u{1b}[31m");
        }
        bed.warn("LookAheadFailed", &"ü".repeat(1000));
        let objects = bed.until_objects(2).await;
        let [first, second] = &objects[..] else { panic!("{objects:#?}") };
        assert_eq!((&first["reason"], &first["note"]), (&json!("ImageGCFailed"), &json!("no space [31m")));
        assert_eq!(first["regarding"]["name"], "node-1");
        assert_eq!((&first["type"], &first["reportingInstance"]), (&json!("Warning"), &json!("node-1")));
        assert_eq!(second["note"].as_str().unwrap().len(), NOTE_LENGTH_MAX);
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("node-1.") && name.len() == 23, "{name}");
        let time = first["eventTime"].as_str().unwrap();
        assert!(time.len() == 27 && time.ends_with('Z'), "{time}");
    }

    #[test]
    fn the_note_takes_the_place_of_a_message_with_names_of_one_namespace() {
        let event = |reason: &'static str, note: Option<&str>| Event {
            kind: EventKind::Normal,
            reason,
            message: "released the pins of ImageSet shop/web".into(),
            note: note.map(str::to_owned),
            subject: EventSubject::Node,
            cause: None,
        };
        let sent = text(&event("PinsReleased", Some("released pins of an ImageSet"))).unwrap();
        assert_eq!((sent.kind, sent.note.as_str()), (EventKind::Normal, "released pins of an ImageSet"));
        assert_eq!(text(&event("PinsReleased", None)).unwrap().note, "released the pins of ImageSet shop/web");
        assert_eq!(text(&event("ImagesCollected", None)), None);
    }

    #[tokio::test]
    async fn a_series_is_sent_as_the_count_and_the_time_of_the_last_event() {
        let api = FakeApi::start(FakeApiOptions::default()).await;
        let folder = tempfile::tempdir().unwrap();
        let events = Arc::new(LogEvents::new(NonZeroUsize::MIN));
        let sender = NodeEvents::new(ApiAccess::Kubeconfig(api.kubeconfig(folder.path())), "node-1", events);
        let text = EventText { kind: EventKind::Warning, reason: "ImageGCFailed", note: "no space".into() };
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        sender.send(&EventAction::Create { id: 7, text: text.clone(), at }).await.unwrap();
        let again = EventAction::Create { id: 7, text: text.clone(), at };
        sender.send(&again).await.expect("an object that exists was created before");
        sender.send(&EventAction::Update { id: 7, text: text.clone(), count: 5, last: at }).await.unwrap();
        let [object] = &api.events()[..] else { panic!("one object") };
        assert_eq!(object["series"], json!({"count": 5, "lastObservedTime": "1970-01-01T00:00:01.500000Z"}));
        let absent = sender.send(&EventAction::Update { id: 8, text, count: 5, last: at }).await;
        assert!(matches!(absent, Err(ApiError::Rejected { code: 404, .. })));
    }

    #[tokio::test]
    async fn an_event_that_the_api_server_refuses_is_dropped_and_the_next_one_is_sent() {
        let bed = Bed::new().await;
        bed.api.plant_lasting(Some(ApiFault::Status(403, "events is forbidden".into())));
        bed.warn("ImageGCFailed", "no space");
        tokio::time::timeout(WAIT_MAX, async {
            while bed.api.requests().is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await
        .expect("the event is sent");
        bed.api.plant_lasting(None);
        // The refusal may still be on its way.
        tokio::time::timeout(WAIT_MAX, async {
            while bed.api.events().is_empty() {
                bed.warn("ImageGCFailed", "no space");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("the next event is sent");
    }
}
