//! Events about pods for `kubectl describe pod`: the progress of pulls, and artifacts without files in the runtime.
//!
//! The progress of a pod is one `v1` Event, which server-side apply replaces: `events.k8s.io/v1` permits no change of
//! the text. Its name comes from the pod's uid, so a restarted agent continues the object.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use imagelet_core::{
    events::PodIdentity,
    image::{Digest, shown_name},
    manager::{Caller, ImageManager, PullClient, PullStatus},
    ports::{PullEnd, PullRoute},
    printable::one_line,
};
use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    names::{NAME_LENGTH_MAX, NAMESPACE_LENGTH_MAX, is_name},
    node_events::{CONTROLLER, NOTE_LENGTH_MAX, REGARDING_LENGTH_MAX, instance, send_event},
};

const PROGRESS: &str = "PullProgress";
const FORWARDED: &str = "ArtifactForwarded";
const FIRST_AFTER: Duration = Duration::from_secs(15);
const UPDATE_MIN: Duration = Duration::from_secs(15);
const UPDATE_MAX: Duration = Duration::from_mins(1);
/// The minimum time between two requests: a node sends at most 20 events a minute.
const SEND_EVERY: Duration = Duration::from_secs(3);
/// The event count of a pod is dropped after this time without an event. So at most 120 pods have a count.
const ENDS_AFTER: Duration = Duration::from_mins(6);
/// Further warnings are only in the daemon's own list.
const WARNINGS_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SentEvent {
    at: Instant,
    first: Timestamp,
    count: i32,
    is_refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DueEvent {
    reason: &'static str,
    pod: PodIdentity,
    note: String,
}

#[derive(Debug, Default)]
struct ArtifactWarnings {
    waiting: VecDeque<DueEvent>,
    warned: BTreeSet<u64>,
}

struct PodPull<'a> {
    pull: &'a PullStatus,
    since: Instant,
    /// On: the kubelet waits for the pull and reports its end. Off: only a look-ahead waits, and no kubelet reports it.
    is_of_kubelet: bool,
}

pub(crate) async fn send_pod_events(client: &Client, node: &str, manager: &ImageManager) {
    let (mut sent, mut is_failing) = (HashMap::<PodIdentity, SentEvent>::new(), false);
    let mut warnings = ArtifactWarnings::default();
    // The version at which no pull ran and no event could become due. While it lasts, the pulls are not copied.
    let mut idle_since = None;
    let mut ticks = interval(SEND_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(version) = idle_since
            && matches!(manager.pulls_since(version), (current, news) if current == version && news.is_empty())
        {
            continue;
        }
        let now = Instant::now();
        sent.retain(|_, event| now.saturating_duration_since(event.at) < ENDS_AFTER);
        let (version, pulls) = manager.pulls_since(1);
        let due = warnings.next(&pulls).or_else(|| due_event(&pulls, &sent, now));
        let has_ended = |pull: &PullStatus| pull.progress.times.end.is_some();
        let is_idle = due.is_none() && sent.is_empty() && pulls.iter().all(has_ended);
        idle_since = is_idle.then_some(version);
        let Some(due) = due else { continue };
        let before = sent.get(&due.pod).filter(|_| due.reason == PROGRESS);
        let (time, count) = (Timestamp::now(), before.map_or(0, |before| before.count).saturating_add(1));
        let mut event =
            SentEvent { at: now, first: before.map_or(time, |before| before.first), count, is_refused: false };
        event.is_refused = !send_event(&mut is_failing, due.reason, apply(client, node, &due, &event, time)).await;
        if due.reason == PROGRESS {
            sent.insert(due.pod, event);
        }
    }
}

async fn apply(client: &Client, node: &str, due: &DueEvent, event: &SentEvent, time: Timestamp) -> kube::Result<Event> {
    let PodIdentity { namespace, name, uid } = &due.pod;
    let is_progress = due.reason == PROGRESS;
    let identity = if is_progress { uid.to_string() } else { format!("{uid} {}", due.note) };
    let start = name[..name.floor_char_boundary(REGARDING_LENGTH_MAX)].trim_end_matches(['-', '.']);
    let event_name = format!("{start}.{}", &Digest::of(identity.as_bytes()).hex()[..16]);
    let object = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": namespace, "name": event_name},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "type": if is_progress { "Normal" } else { "Warning" }, "reason": due.reason, "message": due.note,
        "firstTimestamp": Time(event.first), "lastTimestamp": Time(time), "count": event.count,
        "source": {"component": CONTROLLER, "host": node},
        "reportingComponent": CONTROLLER, "reportingInstance": instance(node),
    });
    let api = Api::<Event>::namespaced(client.clone(), namespace);
    api.patch(&event_name, &PatchParams::apply(CONTROLLER).force(), &Patch::Apply(&object)).await
}

/// Chooses the next event, or `None` if no event is due. The pod whose last event is the oldest comes first.
fn due_event(pulls: &[PullStatus], sent: &HashMap<PodIdentity, SentEvent>, now: Instant) -> Option<DueEvent> {
    let mut pods: HashMap<&PodIdentity, BTreeMap<u64, PodPull<'_>>> = HashMap::new();
    for pull in pulls {
        for client in pull.clients.iter().filter(|client| is_reported(client)) {
            let new = PodPull { pull, since: client.since, is_of_kubelet: false };
            let known = pods.entry(&client.pod).or_default().entry(pull.number).or_insert(new);
            // A pull that has just ended is listed twice. The later entry has the end.
            known.pull = pull;
            known.since = known.since.min(client.since);
            known.is_of_kubelet |= client.caller != Caller::LookAhead;
        }
    }
    let due = pods.into_iter().filter_map(|(pod, pulls)| {
        let before = sent.get(pod);
        let mut pulls: Vec<PodPull<'_>> = pulls.into_values().filter(|it| it.is_shown(before, now)).collect();
        pulls.sort_by_key(|it| (!it.is_of_kubelet, it.since, it.pull.number));
        let since = pulls.iter().map(|it| it.since).min()?;
        let has_ended = pulls.iter().any(|it| it.pull.progress.times.end.is_some());
        let is_due = before.is_none_or(|before| {
            let wait = match (before.is_refused, has_ended) {
                (true, _) => UPDATE_MAX,
                (false, true) => Duration::ZERO,
                (false, false) => (now.saturating_duration_since(since) / 4).clamp(UPDATE_MIN, UPDATE_MAX),
            };
            now.saturating_duration_since(before.at) >= wait
        });
        is_due.then_some((before.map(|before| before.at), since, pod, pulls))
    });
    let (_, _, pod, pulls) = due.min_by_key(|(at, since, pod, _)| {
        let pod: &PodIdentity = pod;
        (*at, *since, &pod.uid)
    })?;
    let lines = pulls.iter().map(|it| format!("image {}: {}", shown_name(&it.pull.image), it.pull.line(false, now)));
    Some(DueEvent::new(PROGRESS, pod, &lines.collect::<Vec<_>>().join("; ")))
}

impl DueEvent {
    fn new(reason: &'static str, pod: &PodIdentity, text: &str) -> Self {
        let note = one_line(text);
        Self { reason, pod: pod.clone(), note: note[..note.floor_char_boundary(NOTE_LENGTH_MAX)].to_owned() }
    }
}

impl ArtifactWarnings {
    /// Each pod of a pull that ended as a forwarded artifact gets one warning, without a text of a registry.
    fn next(&mut self, pulls: &[PullStatus]) -> Option<DueEvent> {
        self.warned.retain(|number| pulls.iter().any(|pull| pull.number == *number));
        for pull in pulls.iter().filter(|pull| pull.progress.times.end.is_some()) {
            let Some(route @ PullRoute::ForwardedArtifact(_)) = &pull.progress.route else { continue };
            if !self.warned.insert(pull.number) {
                continue;
            }
            let (image, reason) = (shown_name(&pull.image), route.reason_code().unwrap_or_default());
            let text = format!(
                "image {image}: the runtime pulled an artifact without its files ({reason}); a volume of it is empty"
            );
            let pods: BTreeMap<_, _> =
                pull.clients.iter().filter(|it| is_reported(it)).map(|it| (&it.pod.uid, &it.pod)).collect();
            let room = WARNINGS_MAX.saturating_sub(self.waiting.len());
            self.waiting.extend(pods.into_values().take(room).map(|pod| DueEvent::new(FORWARDED, pod, &text)));
        }
        self.waiting.pop_front()
    }
}

/// Whether a client's pod gets events. A command may name a pod that the API server does not have.
fn is_reported(PullClient { pod, caller, .. }: &PullClient) -> bool {
    let is_pod = is_name(&pod.namespace, NAMESPACE_LENGTH_MAX) && is_name(&pod.name, NAME_LENGTH_MAX);
    matches!(caller, Caller::Client { .. } | Caller::LookAhead) && is_pod && !pod.uid.is_empty()
}

impl PodPull<'_> {
    /// An ended pull only has a line if an earlier event of the pod had one and no kubelet reports the end.
    fn is_shown(&self, before: Option<&SentEvent>, now: Instant) -> bool {
        match &self.pull.progress.times.end {
            None => now.saturating_duration_since(self.since) >= FIRST_AFTER,
            Some((_, PullEnd::Cancelled)) => false,
            Some((at, PullEnd::Pulled | PullEnd::Failed(_))) => {
                let is_before = |before: &SentEvent| before.at < *at && before.at >= self.since + FIRST_AFTER;
                !self.is_of_kubelet && before.is_some_and(is_before)
            }
        }
    }
}

#[cfg(test)]
mod tests;
