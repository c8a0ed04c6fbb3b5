//! An image's recorded history, what holds it now, and the next collection's decision on it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use imagelet_core::{
    audit_log::{Happening, HappeningKind, History, ImageHistory, PullHost},
    gc::{GcDecision, GcGoal, GcOutcome, GcRequest},
    image::{ByteSize, ImageId, ImageKey, shown_name},
    inventory::{ImageEntry, Snapshot},
};
use serde::{Deserialize, Serialize};
use tracing::{instrument::WithSubscriber as _, subscriber::NoSubscriber};

use crate::{
    api::{HeldBackRow, ImageRow, PodStartRow, Steps, moment},
    failure::Failure,
    node::{command::Command, local::LocalNode, pulls::WaitingRows},
    output::took,
};

/// A longer answer is not useful.
const IMAGES_MAX: usize = 16;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WhyRequest {
    /// Name, id or digest, or a prefix of one; present or not.
    pub(crate) image: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Why {
    /// Present images first.
    pub(crate) images: Vec<WhyImage>,
    /// Time of the oldest recorded line.
    pub(crate) on_record_since: Option<String>,
    /// Decisions that are missing from the log because a write failed.
    pub(crate) lost: u64,
    pub(crate) damaged: u64,
    /// Failures of the lookup; the other fields are valid.
    pub(crate) problems: Vec<String>,
    /// The runtime does not answer, so presence is unknown.
    pub(crate) presence_unknown: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WhyImage {
    pub(crate) id: String,
    pub(crate) names: Vec<String>,
    /// In bytes; the last known size of an absent image.
    pub(crate) size: u64,
    /// The present row; absent for an absent image.
    pub(crate) now: Option<ImageRow>,
    pub(crate) uses: u64,
    /// The pod of the last use, as `NAMESPACE/POD`.
    pub(crate) last_user: Option<String>,
    /// The last pull by imagelet.
    pub(crate) pulled_at: Option<String>,
    pub(crate) pulled_bytes: Option<u64>,
    pub(crate) pulled_in_ms: Option<u64>,
    pub(crate) next: Option<WhyNext>,
    /// Pods whose next pull of it is in back-off.
    pub(crate) held_back: Vec<HeldBackRow>,
    /// Startup latency of the pods that pulled it, since the daemon's start; the latest first.
    pub(crate) pod_starts: Vec<PodStartRow>,
    pub(crate) history: Vec<WhyHappening>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WhyNext {
    /// `keep` or `remove`.
    pub(crate) verdict: String,
    pub(crate) code: String,
    pub(crate) inputs: serde_json::Value,
    pub(crate) reason: String,
    /// Position in the order of removal, from 1.
    pub(crate) place: Option<usize>,
    /// Share of the disk in use, where known.
    pub(crate) used_percent: Option<u8>,
    pub(crate) high_percent: u8,
    pub(crate) low_percent: u8,
    /// `enforce` or `shadow`.
    pub(crate) mode: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WhyHappening {
    pub(crate) at: Option<String>,
    /// The last time, where the same decision was repeated.
    pub(crate) until: Option<String>,
    pub(crate) count: u64,
    /// `pulled`, `imported`, `adopted`, `removing`, `found`, `kept`, `chosen`, `removed`, `failed`, `spared`, `gone`, `untagged`,
    /// `pinned`, `unpinned`, `pull failed`, `given up`.
    pub(crate) what: String,
    pub(crate) code: String,
    pub(crate) inputs: serde_json::Value,
    pub(crate) reason: String,
    pub(crate) by: String,
    /// Names added or removed, or the pattern.
    pub(crate) names: Vec<String>,
    /// Bytes fetched or freed.
    pub(crate) bytes: Option<u64>,
    pub(crate) took_ms: Option<u64>,
    /// Planned only, in shadow mode.
    pub(crate) shadow: bool,
    /// Of a pull by the embedded store: what each host of the registry sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hosts: Vec<WhyHost>,
}

impl WhyHappening {
    /// The reason, the bytes, the time and the requester, as far as they are known.
    pub(crate) fn explained(&self) -> String {
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

/// What one host, a mirror or the registry itself, sent for a pull.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WhyHost {
    /// `HOST:PORT`.
    pub(crate) host: String,
    /// It sent or confirmed the manifest.
    pub(crate) manifest: bool,
    /// Blobs of which it sent bytes.
    pub(crate) blobs: u64,
    pub(crate) bytes: u64,
    /// Failed requests by class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) failures: BTreeMap<String, u64>,
}

impl From<PullHost> for WhyHost {
    fn from(PullHost { host, manifest, blobs, bytes, failures }: PullHost) -> Self {
        Self { host, manifest, blobs, bytes, failures }
    }
}

#[async_trait]
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
        let read = read.await.map_err(|error| Failure::of(&error))?;
        let (mut history, own) =
            read.map_err(|error| Failure::because("could not read the log of decisions", &error))?;
        for image in own.images {
            if history.images.iter().all(|known| known.key != image.key) {
                history.images.push(image);
            }
        }
        // Failed pulls of a name count for the image that has it now.
        if let Some(image) = &present
            && history.images.iter().all(|known| known.key != image.key().to_string())
            && let Some(nameless) = history.images.iter_mut().find(|known| known.key.is_empty())
        {
            nameless.key = image.key().to_string();
        }
        if let Some(image) = &present
            && history.images.iter().all(|known| known.key != image.key().to_string())
        {
            history.images.push(ImageHistory { key: image.key().to_string(), ..ImageHistory::default() });
        }
        if history.images.is_empty() {
            let image = shown_name(&self.image);
            if let Some(problem) = problems.first() {
                let message = format!("no record of `{image}`, and it is not known whether it is present: {problem}");
                return Err(Failure::new("Unavailable", message));
            }
            let message = format!("no record of `{image}`, and it is not present");
            let since = history.since.and_then(moment).map_or_else(
                || "there are no records at all; see docs/why.md".to_owned(),
                |since| format!("the records begin at {since}; `imagelet ls` lists what is present"),
            );
            return Err(Failure::new("NotFound", message).or_hint(&since));
        }
        if history.images.len() > IMAGES_MAX {
            let message = format!("`{}` means {} images", shown_name(&self.image), history.images.len());
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
        let predicted = if is_listed { predict(node, &mut problems).await } else { Prediction::default() };
        let mut images: Vec<WhyImage> =
            history.images.into_iter().map(|image| history_row(image, &rows, &predicted)).collect();
        if let Some(snapshot) = node.parts.inventory.snapshot() {
            images.iter_mut().filter(|image| image.now.is_some()).for_each(|image| image.remember(&snapshot));
        }
        images.sort_by_key(|image| image.now.is_none());
        let status = node.parts.manager.status();
        for image in &mut images {
            image.held_back = WaitingRows::held_back(&status, &image.names);
            image.pod_starts = PodStartRow::pulling(&node.parts.pod_starts, &image.names);
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

impl WhyImage {
    fn remember(&mut self, snapshot: &Snapshot) {
        let handler = self.now.as_ref().map_or("", |row| &row.runtime_handler);
        let is_it = |entry: &&Arc<ImageEntry>| {
            entry.image.id.as_str() == self.id && entry.image.spec.runtime_handler == handler
        };
        let Some(entry) = snapshot.entries.iter().find(is_it) else { return };
        (self.uses, self.last_user) = (entry.history.uses, entry.last_user.clone());
        if let Some(pulled) = entry.pulled {
            self.pulled_at = moment(pulled.at);
            self.pulled_bytes = Some(pulled.bytes.0);
            self.pulled_in_ms = Some(u64::try_from(pulled.duration.as_millis()).unwrap_or(u64::MAX));
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

async fn predict(node: &LocalNode, problems: &mut Vec<String>) -> Prediction {
    let settings = node.settings();
    let policy = settings.gc;
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: true };
    // The audit log records collections, not requests for a prediction.
    let planned = node.parts.gc.run(&request, SystemTime::now()).with_subscriber(NoSubscriber::new());
    match planned.await {
        Ok(report) => Prediction {
            frame: WhyNext {
                used_percent: Some(report.disk_before.used_percent()),
                high_percent: policy.high().get(),
                low_percent: policy.low().get(),
                mode: settings.collection.mode.name().into(),
                ..WhyNext::default()
            },
            decisions: (1..).zip(report.decisions).map(placed).collect(),
        },
        Err(error) => {
            problems.push(Failure::because("could not plan the next collection", &error).to_string());
            Prediction::default()
        }
    }
}

fn placed((place, decision): (usize, GcDecision)) -> (ImageKey, (GcDecision, Option<usize>)) {
    let place = (decision.outcome == GcOutcome::Chosen).then_some(place);
    (decision.key(), (decision, place))
}

pub(crate) async fn predict_all(node: &LocalNode, rows: &mut [ImageRow]) {
    let mut problems = Vec::new();
    let predicted = predict(node, &mut problems).await;
    for problem in problems {
        tracing::warn!(problem, "could not predict the next collection");
    }
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
    WhyImage {
        id: key.id().to_string(),
        names,
        size: now.as_ref().map_or(image.size, |row| row.size),
        next: next.filter(|_| now.is_some()),
        now,
        uses: 0,
        last_user: None,
        pulled_at: None,
        pulled_bytes: None,
        pulled_in_ms: None,
        held_back: Vec::new(),
        pod_starts: Vec::new(),
        history: image.happenings.into_iter().map(happening).collect(),
    }
}

pub(super) fn happening(happening: Happening) -> WhyHappening {
    let what = match happening.kind {
        HappeningKind::Act(code) => match code {
            imagelet_core::audit_log::ActCode::Pulled => "pulled",
            imagelet_core::audit_log::ActCode::Imported => "imported",
            imagelet_core::audit_log::ActCode::RemovedOnRequest => "removed",
            imagelet_core::audit_log::ActCode::UntaggedOnRequest => "untagged",
            imagelet_core::audit_log::ActCode::Pinned => "pinned",
            imagelet_core::audit_log::ActCode::Unpinned => "unpinned",
            imagelet_core::audit_log::ActCode::Adopted => "adopted",
            imagelet_core::audit_log::ActCode::PullFailed => "pull failed",
            imagelet_core::audit_log::ActCode::PullGivenUp => "given up",
            imagelet_core::audit_log::ActCode::Removing => "removing",
        },
        HappeningKind::Found => "found",
        HappeningKind::Kept => "kept",
        HappeningKind::Chosen => "chosen",
        HappeningKind::Removed => "removed",
        HappeningKind::Failed => "failed",
        HappeningKind::Spared => "spared",
        HappeningKind::Gone => "gone",
    };
    WhyHappening {
        at: moment(happening.at),
        until: moment(happening.until).filter(|_| happening.count > 1),
        count: happening.count,
        what: what.into(),
        code: happening.code,
        inputs: happening.inputs,
        reason: happening.text,
        by: happening.by,
        names: happening.names,
        bytes: happening.bytes,
        took_ms: happening.took_ms,
        shadow: happening.shadow,
        hosts: happening.hosts.into_iter().map(WhyHost::from).collect(),
    }
}
