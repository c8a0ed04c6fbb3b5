//! Events about the node in the cluster (`events.k8s.io/v1`): decisions of imagelet that no kubelet reports.
//!
//! Unsent events are not stored. During an outage of the API server, events are only in the daemon's own list.

use std::{collections::HashMap, time::Duration};

use imagelet_core::{
    error::{ErrorClass, Stage},
    events::{Event, EventKind, EventSubject, LogEvents},
    image::Reference,
    printable::one_line,
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{self, EventType, Recorder, Reporter},
};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, timeout},
};

use crate::{
    api_error::text,
    names::{NAME_LENGTH_MAX, shown},
};

const REASONS: [&str; 6] =
    ["CircuitOpened", "FreeDiskSpaceFailed", "ImageGCFailed", "LookAheadFailed", "PinsReleased", "PrefetchFailed"];
pub(crate) const CONTROLLER: &str = "imagelet.dev/node-agent";
/// The API's length limits of an event's fields, in bytes.
pub(crate) const NOTE_LENGTH_MAX: usize = 1024;
const INSTANCE_LENGTH_MAX: usize = 128;
/// Maximum length of the object's name. The event's name is this name, a dot and 16 hexadecimal digits.
pub(crate) const REGARDING_LENGTH_MAX: usize = NAME_LENGTH_MAX - 17;
/// If the answer takes longer, the event is lost.
const SEND_MAX: Duration = Duration::from_secs(10);
const UPDATE_EVERY: Duration = Duration::from_mins(1);
/// A series without an event for this time has ended, as in the library. The next equal event creates a new object.
const ENDS_AFTER: Duration = Duration::from_mins(6);
/// A node creates at most this number of objects per `ENDS_AFTER`.
const SERIES_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventText {
    kind: EventKind,
    reason: &'static str,
    note: String,
}

/// The recorder and the last send time of each series. A shared recorder would merge all events with the same reason.
type Series<R> = HashMap<EventText, (R, Instant)>;

pub(crate) async fn send_node_events(client: &Client, node: &str, events: &LogEvents) {
    let mut received = events.follow();
    let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(instance(node)) };
    let name = &node[..node.floor_char_boundary(REGARDING_LENGTH_MAX)];
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.trim_end_matches(['-', '.']).to_owned()),
        // As in a kubelet's events, the uid is the node's name: `kubectl describe node` searches for it.
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    };
    let mut series = Series::new();
    let mut is_failing = false;
    loop {
        let recorded = match received.recv().await {
            Ok(recorded) => recorded,
            // The receiver lost the oldest events. It still receives the next events.
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        let Some(event) = event_text(&recorded.event) else { continue };
        let now = Instant::now();
        if !is_due(&mut series, &event, now) {
            continue;
        }
        let new = || (Recorder::new(client.clone(), reporter.clone()), now);
        let (recorder, sent_at) = series.entry(event.clone()).or_insert_with(new);
        *sent_at = now;
        let sent = events::Event {
            type_: if event.kind == EventKind::Warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.to_owned(),
            note: Some(event.note.clone()),
            action: "ManageImages".to_owned(),
            secondary: None,
        };
        if !send_event(&mut is_failing, event.reason, recorder.publish(&sent, &regarding)).await {
            // The old recorder may count the event as sent, so a new one is used. The limit of the series stays.
            series.insert(event, new());
        }
    }
}

pub(crate) fn instance(node: &str) -> String {
    node[..node.floor_char_boundary(INSTANCE_LENGTH_MAX)].to_owned()
}

pub(crate) async fn send_event<T>(
    is_failing: &mut bool,
    reason: &str,
    request: impl Future<Output = kube::Result<T>>,
) -> bool {
    let error = match timeout(SEND_MAX, request).await {
        Ok(Ok(_)) => {
            *is_failing = false;
            return true;
        }
        Ok(Err(error)) => text(&error),
        Err(_) => format!("no answer within {} s", SEND_MAX.as_secs()),
    };
    if std::mem::replace(is_failing, true) {
        tracing::debug!(error, reason, "could not send an event to the cluster");
    } else {
        tracing::warn!(error, reason, "could not send an event to the cluster");
    }
    false
}

fn is_due<R>(series: &mut Series<R>, event: &EventText, now: Instant) -> bool {
    series.retain(|_, (_, sent_at)| now.saturating_duration_since(*sent_at) < ENDS_AFTER);
    match series.get(event) {
        Some((_, sent_at)) => now.saturating_duration_since(*sent_at) >= UPDATE_EVERY,
        None => series.len() < SERIES_MAX,
    }
}

/// The text of an event, or `None` if the event is not sent. Each reader of the namespace `default` can see the text.
fn event_text(event: &Event) -> Option<EventText> {
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

/// The event for a failed pull. Its note is public in the cluster, so it names the registry and no tenant.
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
        cause: Some((class, stage)),
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, sync::Arc};

    use imagelet_core::events::{EventSink as _, PodIdentity};
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{ApiFault, FakeApi, FakeApiOptions};

    struct Bed {
        api: FakeApi,
        events: Arc<LogEvents>,
        running: tokio::task::JoinHandle<()>,
    }

    impl Bed {
        async fn new() -> Self {
            Self::of("node-1").await
        }

        async fn of(node: &str) -> Self {
            let api = FakeApi::start(FakeApiOptions::default()).await;
            let events = Arc::new(LogEvents::new(NonZeroUsize::new(1000).unwrap()));
            let (client, node, sent) = (api.client(), node.to_owned(), Arc::clone(&events));
            let running = tokio::spawn(async move { send_node_events(&client, &node, &sent).await });
            // It subscribes when it first runs.
            tokio::task::yield_now().await;
            Self { api, events, running }
        }

        fn record(&self, kind: EventKind, reason: &'static str, subject: EventSubject, message: &str) {
            self.events.record(Event { kind, reason, message: message.into(), note: None, subject, cause: None });
        }

        fn warn(&self, reason: &'static str, message: &str) {
            self.record(EventKind::Warning, reason, EventSubject::Node, message);
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            self.running.abort();
        }
    }

    async fn seconds(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    fn pod() -> EventSubject {
        let (namespace, name, uid) = ("shop".into(), "web".into(), "uid-web".into());
        EventSubject::Pod { pod: PodIdentity { namespace, name, uid }, field_path: "".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn warnings_about_the_node_become_objects_once_and_what_a_kubelet_reports_does_not() {
        let bed = Bed::new().await;
        bed.record(EventKind::Warning, "Failed", pod(), "Failed to pull image");
        bed.record(EventKind::Normal, "ImagesCollected", EventSubject::Node, "Removed 3 images");
        bed.warn("ImportFailed", "an archive is broken");
        for _ in 0..3 {
            bed.warn("ImageGCFailed", "no space\u{1b}[31m");
        }
        bed.warn("LookAheadFailed", &"ü".repeat(1000));
        bed.warn("LookAheadFailed", "another registry");
        seconds(1).await;
        let objects = bed.api.events();
        let [first, second, third] = &objects[..] else { panic!("{objects:#?}") };
        assert_eq!((&first["reason"], &first["note"]), (&json!("ImageGCFailed"), &json!("no space [31m")));
        assert_eq!((&first["regarding"]["name"], &first["regarding"]["uid"]), (&json!("node-1"), &json!("node-1")));
        assert_eq!((&first["type"], &first["reportingInstance"]), (&json!("Warning"), &json!("node-1")));
        assert_eq!(second["note"].as_str().unwrap().len(), NOTE_LENGTH_MAX);
        assert_eq!(third["note"], "another registry", "another text is another event");
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("node-1.") && name.len() == 23, "{name}");
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
        let sent = event_text(&event("PinsReleased", Some("released pins of an ImageSet"))).unwrap();
        assert_eq!((sent.kind, sent.note.as_str()), (EventKind::Normal, "released pins of an ImageSet"));
        let without = event_text(&event("PinsReleased", None)).unwrap();
        assert_eq!(without.note, "released the pins of ImageSet shop/web");
        assert_eq!(event_text(&event("ImagesCollected", None)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn equal_events_are_one_object_whose_series_is_sent_once_a_minute() {
        let bed = Bed::new().await;
        for _ in 0..150 {
            bed.warn("ImageGCFailed", "no space");
            seconds(1).await;
        }
        let writes = bed.api.requests();
        assert_eq!(writes.len(), 3, "{writes:#?}");
        let objects = bed.api.events();
        assert_eq!((objects.len(), &objects[0]["series"]["count"]), (1, &Value::from(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_the_api_server_refuses_or_does_not_answer_is_dropped_and_the_next_one_is_sent() {
        for fault in [ApiFault::Status(403, "events is forbidden".into()), ApiFault::Hang] {
            let bed = Bed::new().await;
            bed.api.plant(fault.clone());
            bed.warn("ImageGCFailed", "no space");
            seconds(11).await;
            assert_eq!(bed.api.events(), [Value::Null; 0]);
            bed.warn("ImageGCFailed", "no space");
            seconds(1).await;
            assert_eq!(bed.api.requests().len(), 1, "{fault:?}: a failure takes the place of its series");
            seconds(50).await;
            bed.warn("ImageGCFailed", "no space");
            seconds(1).await;
            assert_eq!(bed.api.events().len(), 1, "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_the_api_server_refuses_are_bounded_as_those_that_it_takes() {
        let bed = Bed::new().await;
        bed.api.plant_lasting(Some(ApiFault::Status(403, "events is forbidden".into())));
        for number in 0..100 {
            bed.warn("ImageGCFailed", &number.to_string());
        }
        seconds(1).await;
        assert_eq!(bed.api.requests().len(), SERIES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_about_a_node_with_the_longest_name_is_valid() {
        let node = format!("{}-{}", "n".repeat(REGARDING_LENGTH_MAX - 1), "n".repeat(17));
        let bed = Bed::of(&node).await;
        bed.warn("ImageGCFailed", "no space");
        seconds(1).await;
        let event = &bed.api.events()[0];
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= NAME_LENGTH_MAX && !name.contains("-."), "{name}");
        assert_eq!(event["reportingInstance"], node[..INSTANCE_LENGTH_MAX]);
        assert_eq!((node.len(), &event["regarding"]["uid"]), (NAME_LENGTH_MAX, &json!(node)));
    }

    #[tokio::test(start_paused = true)]
    async fn new_objects_are_bounded_until_their_series_have_ended() {
        let (start, mut notes) = (Instant::now(), 0_u32..);
        let mut series = Series::new();
        let mut created = |seconds, count: usize| {
            let now = start + Duration::from_secs(seconds);
            let is_created = |note: &u32| {
                let event = EventText { kind: EventKind::Warning, reason: "ImageGCFailed", note: note.to_string() };
                let is_due = is_due(&mut series, &event, now);
                if is_due {
                    series.insert(event, ((), now));
                }
                is_due
            };
            notes.by_ref().take(count).filter(is_created).count()
        };
        assert_eq!(created(0, 10), 10);
        assert_eq!(created(60, 100), SERIES_MAX - 10);
        assert_eq!(created(359, 100), 0);
        assert_eq!(created(360, 100), 10);
    }
}
