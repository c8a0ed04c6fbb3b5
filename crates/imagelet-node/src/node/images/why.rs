//! What holds an image now, the next collection's decision on it, and the last acts on it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::SystemTime,
};

use imagelet_core::{
    audit_log::{Act, ActCode, ActDetails, History, ImageHistory, PullHost},
    gc::{GcDecision, GcGoal, GcOutcome, GcRequest},
    image::{ByteSize, ImageId, ImageKey, Reference, counted, shown_name},
    inventory::{ImageEntry, Snapshot},
};
use imagelet_oci::command_of_owner;
use serde::{Deserialize, Serialize};
use tracing::{instrument::WithSubscriber as _, subscriber::NoSubscriber};

use crate::{
    api::{HeldBackRow, ImageRow, PullRow, Queue, Steps, milliseconds_of, moment},
    config::{Backend, Settings},
    durations::took,
    failure::Failure,
    node::{
        Command, LocalNode,
        pulls::{held_back, pulls_of, queue},
    },
};

/// A longer answer is not useful.
const IMAGES_MAX: usize = 16;

api_documents! {
    WhyRequest {
        /// Name, id or digest, or a prefix of one; present or not.
        image: String,
    }
    Why {
        /// Present images first.
        images: Vec<WhyImage>,
        /// Time of the oldest recorded line.
        on_record_since: Option<String>,
        /// Acts that are missing from the log because a write failed.
        lost: u64,
        damaged: u64,
        /// Failures of the lookup; the other fields are valid.
        problems: Vec<String>,
        /// The runtime does not answer, so presence is unknown.
        presence_unknown: bool,
    }
    WhyImage {
        id: String,
        names: Vec<String>,
        /// In bytes; of an absent image that a collection removed, its size then.
        size: u64,
        /// The present row; absent for an absent image.
        now: Option<ImageRow>,
        uses: u64,
        /// The pod of the last use, as `NAMESPACE/POD`.
        last_user: Option<String>,
        /// The last pull by imagelet.
        pulled_at: Option<String>,
        pulled_bytes: Option<u64>,
        pulled_in_ms: Option<u64>,
        next: Option<WhyNext>,
        /// Running and waiting pulls of it.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pulls: Vec<PullRow>,
        /// Pods whose next pull of it is in back-off.
        held_back: Vec<HeldBackRow>,
        /// The last acts on it, oldest first.
        history: Vec<WhyHappening>,
    }
    WhyNext {
        /// `keep` or `remove`.
        verdict: String,
        code: String,
        inputs: serde_json::Value,
        reason: String,
        /// Position in the order of removal, from 1.
        place: Option<usize>,
        /// Share of the disk in use, where known.
        used_percent: Option<u8>,
        high_percent: u8,
        low_percent: u8,
        /// `enforce` or `shadow`.
        mode: String,
    }
    WhyHappening {
        at: Option<String>,
        /// `pulled`, `imported`, `adopted`, `removed`, `refused`, `untagged`, `pinned`, `unpinned`, `pull failed`, `given up`.
        what: String,
        /// Of a removal by a collection, or its refusal, the code of the reason.
        code: String,
        reason: String,
        by: String,
        /// Names added or removed, or the pattern.
        names: Vec<String>,
        /// Bytes fetched or freed.
        bytes: Option<u64>,
        took_ms: Option<u64>,
        /// Of a pull by the embedded store: what each host of the registry sent.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        hosts: Vec<WhyHost>,
    }
    /// What one host, a mirror or the registry itself, sent for a pull.
    WhyHost {
        /// `HOST:PORT`.
        host: String,
        /// It sent or confirmed the manifest.
        manifest: bool,
        /// Blobs of which it sent bytes.
        blobs: u64,
        bytes: u64,
        /// Failed requests by class.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        failures: BTreeMap<String, u64>,
    }
}

impl WhyHappening {
    /// The reason, the bytes, the time and the requester, as far as they are known.
    pub fn explained(&self) -> String {
        let parts = [
            (!self.reason.is_empty()).then(|| self.reason.clone()),
            self.bytes.map(|bytes| {
                let freed = if self.what == "removed" && self.reason.is_empty() { " freed" } else { "" };
                format!("{}{freed}", ByteSize(bytes))
            }),
            self.took_ms.map(|milliseconds| format!("in {}", took(milliseconds))),
            (!self.by.is_empty()).then(|| format!("by {}", self.by)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl From<PullHost> for WhyHost {
    fn from(PullHost { host, manifest, blobs, bytes, failures }: PullHost) -> Self {
        Self { host, manifest, blobs, bytes, failures }
    }
}

impl Command for WhyRequest {
    const NAME: &'static str = "why";
    type Answer = Why;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Why, Failure> {
        let text = self.image.trim().to_owned();
        if text.is_empty() {
            return Err(Failure::new("InvalidArgument", "an empty text names no image"));
        }
        let mut problems = Vec::new();
        // The recorded history is reported although the store or runtime does not answer.
        let present = node.look(&text).await.unwrap_or_else(|failure| {
            problems.push(failure.to_string());
            None
        });
        let decisions = Arc::clone(&node.parts.decisions);
        let wanted = present.as_ref().map_or_else(|| text.clone(), |image| image.id.to_string());
        let read = tokio::task::spawn_blocking(move || {
            let history = decisions.history(&text)?;
            // Its name may be recorded for images that it named before.
            let own = if wanted == text { History::default() } else { decisions.history(&wanted)? };
            Ok::<_, std::io::Error>((history, own))
        });
        let read = read.await?;
        let (mut history, own) =
            read.map_err(|error| Failure::because("could not read the log of decisions", &error))?;
        for image in own.images {
            if history.images.iter().all(|known| known.key != image.key) {
                history.images.push(image);
            }
        }
        if let Some(key) = present.map(|image| image.key().to_string())
            && history.images.iter().all(|known| known.key != key)
        {
            // Failed pulls of a name count for the image that has it now.
            match history.images.iter_mut().find(|known| known.key.is_empty()) {
                Some(nameless) => nameless.key = key,
                None => history.images.push(ImageHistory { key, ..ImageHistory::default() }),
            }
        }
        let Queue { pulls, .. } = queue(node.parts.manager.status());
        if history.images.is_empty()
            && let Ok(name) = self.image.trim().parse::<Reference>()
        {
            let names = vec![name.canonical().to_string()];
            let is_pulled = !pulls_of(&pulls, &names).is_empty();
            history.images.extend(is_pulled.then(|| ImageHistory { names, ..ImageHistory::default() }));
        }
        if history.images.is_empty() {
            let image = shown_name(&self.image);
            if let Some(problem) = problems.first() {
                let message = format!("no record of `{image}`, and it is not known whether it is present: {problem}");
                return Err(Failure::new("Unavailable", message));
            }
            let message = format!("no record of `{image}`, and it is not present");
            let since = history.since.and_then(moment).map_or_else(
                || "there are no records at all; `imagelet help why` says what is recorded".to_owned(),
                |since| format!("the records begin at {since}; `imagelet ls` lists what is present"),
            );
            let pulls = changing(&node.settings())
                .map(|by| format!("{by} changes the store; its pulls are recorded when they end"));
            return Err(Failure::new("NotFound", message).or_hint(&pulls.unwrap_or(since)));
        }
        if history.images.len() > IMAGES_MAX {
            let images = counted(history.images.len(), "image");
            let message = format!("`{}` means {images}", shown_name(&self.image));
            return Err(Failure::new("InvalidArgument", message).or_hint("write more of its id or name"));
        }
        let (rows, presence_unknown) = match node.rows().await {
            Ok(rows) => (rows, false),
            Err(failure) => {
                problems.push(failure.to_string());
                (Vec::new(), true)
            }
        };
        let is_listed = history.images.iter().any(|image| rows.iter().any(|row| is_of(row, &image.key)));
        let predicted = if is_listed { predict(node).await } else { Ok(Prediction::default()) };
        let predicted = predicted.map_err(|failure| problems.push(failure.to_string())).unwrap_or_default();
        let mut images: Vec<WhyImage> =
            history.images.into_iter().map(|image| history_row(image, &rows, &predicted)).collect();
        if let Some(snapshot) = node.parts.inventory.snapshot() {
            images.iter_mut().filter(|image| image.now.is_some()).for_each(|image| image.remember(&snapshot));
        }
        images.sort_by_key(|image| image.now.is_none());
        let status = node.parts.manager.status();
        for image in &mut images {
            image.pulls = pulls_of(&pulls, &image.names);
            image.held_back = held_back(&status, &image.names);
        }
        problems.dedup();
        Ok(Why {
            images,
            on_record_since: history.since.and_then(moment),
            lost: history.lost,
            damaged: history.damage.lines,
            problems,
            presence_unknown,
        })
    }
}

/// The command in another process that changes the store of this one: it may pull what is asked for.
fn changing(settings: &Settings) -> Option<String> {
    match &settings.images.backend {
        Backend::Embedded(store) => command_of_owner(&store.engine.place.root),
        Backend::Cri(_) => None,
    }
}

impl WhyImage {
    fn remember(&mut self, snapshot: &Snapshot) {
        let handler = self.now.as_ref().map_or("", |row| &row.runtime_handler);
        let is_it = |entry: &&Arc<ImageEntry>| {
            entry.image.id.as_str() == self.id && entry.image.spec.runtime_handler == handler
        };
        let Some(entry) = snapshot.entries.iter().find(is_it) else { return };
        (self.uses, self.last_user) = (entry.usage.history.uses, entry.usage.user.clone());
        if let Some(pulled) = entry.usage.pulled {
            self.pulled_at = moment(pulled.at);
            self.pulled_bytes = Some(pulled.bytes.0);
            self.pulled_in_ms = Some(milliseconds_of(pulled.duration));
        }
    }
}

fn is_of(row: &ImageRow, key: &str) -> bool {
    let key = ImageKey::parse(key);
    row.id == key.id().as_str() && row.runtime_handler == key.handler()
}

#[derive(Debug, Default)]
struct Prediction {
    /// By key, each with its position in the order of removal.
    decisions: HashMap<ImageKey, (GcDecision, Option<usize>)>,
    frame: WhyNext,
}

async fn predict(node: &LocalNode) -> Result<Prediction, Failure> {
    let settings = node.settings();
    let policy = settings.collection.policy;
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: true };
    // The audit log records collections, not requests for a prediction.
    let planned = node.parts.gc.run(&request, SystemTime::now()).with_subscriber(NoSubscriber::new()).await;
    let report = planned.map_err(|error| Failure::because("could not plan the next collection", &error))?;
    Ok(Prediction {
        frame: WhyNext {
            used_percent: Some(report.disk_before.used_percent()),
            high_percent: policy.high().get(),
            low_percent: policy.low().get(),
            mode: settings.collection.mode.name().into(),
            ..WhyNext::default()
        },
        decisions: (1..).zip(report.decisions).map(placed).collect(),
    })
}

fn placed((place, decision): (usize, GcDecision)) -> (ImageKey, (GcDecision, Option<usize>)) {
    let place = (decision.outcome == GcOutcome::Chosen).then_some(place);
    (decision.key(), (decision, place))
}

pub(crate) async fn predict_all(node: &LocalNode, rows: &mut [ImageRow]) {
    let predicted = predict(node).await.unwrap_or_else(|failure| {
        tracing::warn!(problem = failure.to_string(), "could not predict the next collection");
        Prediction::default()
    });
    for row in rows {
        let key = ImageKey::new(ImageId::new(&row.id), row.runtime_handler.clone());
        let Some((decision, place)) = predicted.decisions.get(&key) else { continue };
        let goes = place.is_some();
        row.next_code = Some(decision.reason.code().to_owned());
        row.next_reason = Some(format!("{}: {}", if goes { "goes" } else { "stays" }, decision.reason));
    }
}

fn history_row(image: ImageHistory, rows: &[ImageRow], predicted: &Prediction) -> WhyImage {
    let key = ImageKey::parse(&image.key);
    let now = rows.iter().find(|row| is_of(row, &image.key)).cloned();
    let next = predicted.decisions.get(&key).map(|(decision, place)| WhyNext {
        verdict: if place.is_some() { "remove" } else { "keep" }.into(),
        code: decision.reason.code().into(),
        inputs: decision.reason.inputs(),
        reason: decision.reason.to_string(),
        place: *place,
        ..predicted.frame.clone()
    });
    let mut names = now.as_ref().map(|row| row.names.clone()).unwrap_or_default();
    names.extend(image.names.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
    let removed = image.acts.iter().rev().find(|act| act.code == ActCode::Removed).and_then(|act| act.details.bytes);
    WhyImage {
        id: key.id().to_string(),
        names,
        size: now.as_ref().map(|row| row.size).or(removed).unwrap_or_default(),
        next: next.filter(|_| now.is_some()),
        now,
        history: image.acts.into_iter().map(happening).collect(),
        ..WhyImage::default()
    }
}

pub(super) fn happening(act: Act) -> WhyHappening {
    let ActDetails { bytes, took_ms, reason, why, hosts } = act.details;
    let what = match act.code {
        ActCode::Pulled => "pulled",
        ActCode::Imported => "imported",
        ActCode::Removed | ActCode::RemovedOnRequest => "removed",
        ActCode::Refused => "refused",
        ActCode::UntaggedOnRequest => "untagged",
        ActCode::Pinned => "pinned",
        ActCode::Unpinned => "unpinned",
        ActCode::Adopted => "adopted",
        ActCode::PullFailed => "pull failed",
        ActCode::PullGivenUp => "given up",
    };
    WhyHappening {
        at: moment(act.at),
        what: what.into(),
        code: if reason.is_empty() { act.code.code().into() } else { reason },
        reason: why,
        by: act.by,
        names: act.names,
        bytes,
        took_ms,
        hosts: hosts.into_iter().map(WhyHost::from).collect(),
    }
}
