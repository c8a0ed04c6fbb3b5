//! `why`: the protection of an image, the next collection's decision on it, and the last acts on it or on all images.

use std::{collections::HashMap, sync::Arc};

use imagelet_core::{
    audit_log::{Act, ActCode, ActDetails, History, ImageHistory, PullHost},
    gc::{GcDecision, GcGoal, GcOutcome},
    image::{ByteSize, Image, ImageId, ImageKey, Reference, counted, shown_name},
    inventory::{ImageEntry, Snapshot},
};
use imagelet_oci::command_of_owner;
use serde::{Deserialize, Serialize};

use super::Images;
use crate::{
    api::{HeldBackRow, ImageRow, PullRow, at_most, milliseconds_of, moment},
    config::Backend,
    durations::took,
    failure::Failure,
    node::{
        Collection, LocalNode,
        pulls::{held_back_of, pulls_of},
    },
};

const IMAGES_MAX: usize = 16;
const DECISIONS_MAX: u64 = 500;

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
        #[cfg_attr(test, schemars(with = "Vec<tests::WhyHost>"))]
        hosts: Vec<PullHost>,
    }
    DecisionsRequest {
        /// Most rows; 100 unless given.
        #[cfg_attr(test, schemars(range(max = 500)))]
        limit: Option<u64>,
    }
    /// The last acts on all images, the latest first.
    Decisions {
        decisions: Vec<DecisionRow>,
    }
    DecisionRow {
        /// Empty for a failed pull.
        id: String,
        #[serde(flatten)]
        happening: WhyHappening,
    }
}

impl WhyHappening {
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

impl WhyRequest {
    pub(crate) async fn run_on(self, node: &LocalNode) -> Result<Why, Failure> {
        let images = &node.pulls.images;
        let text = self.image.trim().to_owned();
        if text.is_empty() {
            return Err(Failure::invalid("an empty text names no image"));
        }
        let mut problems = Vec::new();
        // If the store or the runtime does not answer, the reply still has the history.
        let present = images.look(&text).await.map_err(|failure| problems.push(failure.to_string()));
        let present = present.ok().flatten();
        let mut history = images.history_of(text.clone(), present.as_ref()).await?;
        let queue = node.pulls.queue();
        if history.images.is_empty()
            && let Ok(name) = text.parse::<Reference>()
        {
            let names = vec![name.canonical().to_string()];
            let is_pulled = !pulls_of(&queue, &names).is_empty();
            history.images.extend(is_pulled.then(|| ImageHistory { names, ..ImageHistory::default() }));
        }
        if history.images.is_empty() {
            return Err(images.unknown(&text, &history, problems.first()));
        }
        if history.images.len() > IMAGES_MAX {
            let message = format!("`{}` means {}", shown_name(&text), counted(history.images.len(), "image"));
            return Err(Failure::invalid(message).or_hint("write more of its id or name"));
        }
        let rows = images.rows().await.map_err(|failure| problems.push(failure.to_string()));
        let presence_unknown = rows.is_err();
        let rows = rows.unwrap_or_default();
        let is_listed = history.images.iter().any(|image| rows.iter().any(|row| is_of(row, &image.key)));
        let predicted = if is_listed { predict(&node.collection).await } else { Ok(HashMap::new()) };
        let predicted = predicted.map_err(|failure| problems.push(failure.to_string())).unwrap_or_default();
        let snapshot = images.inventory.snapshot();
        let mut found: Vec<WhyImage> = Vec::new();
        for image in history.images {
            let row = history_row(image, &rows, &predicted, snapshot.as_deref());
            let (pulls, held_back) = (pulls_of(&queue, &row.names), held_back_of(&queue, &row.names));
            found.push(WhyImage { pulls, held_back, ..row });
        }
        found.sort_by_key(|image| image.now.is_none());
        problems.dedup();
        Ok(Why {
            images: found,
            on_record_since: history.since.and_then(moment),
            lost: history.lost,
            damaged: history.damaged,
            problems,
            presence_unknown,
        })
    }
}

impl Images {
    async fn history_of(&self, text: String, present: Option<&Image>) -> Result<History, Failure> {
        let log = Arc::clone(&self.log);
        let id = present.map(|image| image.id.to_string()).filter(|id| *id != text);
        let read = tokio::task::spawn_blocking(move || {
            let history = log.history(&text)?;
            // The records of a name may concern earlier images, so the records of the present id are added.
            let own = id.map(|id| log.history(&id)).transpose()?.unwrap_or_default();
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
            // Failed pulls are recorded by name. They are added to the image that has the name now.
            match history.images.iter_mut().find(|known| known.key.is_empty()) {
                Some(nameless) => nameless.key = key,
                None => history.images.push(ImageHistory { key, ..ImageHistory::default() }),
            }
        }
        Ok(history)
    }

    fn unknown(&self, text: &str, history: &History, problem: Option<&String>) -> Failure {
        let image = shown_name(text);
        if let Some(problem) = problem {
            let message = format!("no record of `{image}`, and it is not known whether it is present: {problem}");
            return Failure::new("Unavailable", message);
        }
        // A command in another process may be pulling the image, so the hint names the command.
        let changing = match &self.settings().images.backend {
            Backend::Embedded(store) => command_of_owner(&store.engine.place.root),
            Backend::Cri(_) => None,
        };
        let hint = match (changing, history.since.and_then(moment)) {
            (Some(by), _) => format!("{by} changes the store; its pulls are recorded when they end"),
            (None, Some(since)) => format!("the records begin at {since}; `imagelet ls` lists what is present"),
            (None, None) => "there are no records at all; `imagelet help why` says what is recorded".to_owned(),
        };
        Failure::new("NotFound", format!("no record of `{image}`, and it is not present")).or_hint(&hint)
    }
}

fn is_of(row: &ImageRow, key: &str) -> bool {
    let key = ImageKey::parse(key);
    row.id == key.id().as_str() && row.runtime_handler == key.handler()
}

async fn predict(collection: &Collection) -> Result<HashMap<ImageKey, WhyNext>, Failure> {
    let report = collection.plan(GcGoal::Threshold).await;
    let report = report.map_err(|error| Failure::because("could not plan the next collection", &error))?;
    let (settings, used_percent) = (collection.images.settings(), report.disk_before.used_percent());
    let next = |(place, decision): (usize, GcDecision)| {
        let place = (decision.outcome == GcOutcome::Chosen).then_some(place);
        let next = WhyNext {
            verdict: if place.is_some() { "remove" } else { "keep" }.into(),
            code: decision.reason.code().into(),
            inputs: decision.reason.inputs(),
            reason: decision.reason.to_string(),
            place,
            used_percent: Some(used_percent),
            high_percent: settings.collection.policy.high().get(),
            low_percent: settings.collection.policy.low().get(),
            mode: settings.collection.mode.name().into(),
        };
        (decision.key(), next)
    };
    Ok((1..).zip(report.decisions).map(next).collect())
}

pub(crate) async fn predict_all(collection: &Collection, rows: &mut [ImageRow]) {
    let predicted = predict(collection).await.unwrap_or_else(|failure| {
        tracing::warn!(problem = failure.to_string(), "could not predict the next collection");
        HashMap::new()
    });
    for row in rows {
        let key = ImageKey::new(ImageId::new(&row.id), row.runtime_handler.clone());
        let Some(next) = predicted.get(&key) else { continue };
        let goes = if next.place.is_some() { "goes" } else { "stays" };
        row.next_code = Some(next.code.clone());
        row.next_reason = Some(format!("{goes}: {}", next.reason));
    }
}

fn history_row(
    image: ImageHistory,
    rows: &[ImageRow],
    predicted: &HashMap<ImageKey, WhyNext>,
    snapshot: Option<&Snapshot>,
) -> WhyImage {
    let key = ImageKey::parse(&image.key);
    let now = rows.iter().find(|row| is_of(row, &image.key)).cloned();
    let mut names = now.as_ref().map(|row| row.names.clone()).unwrap_or_default();
    names.extend(image.names.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
    let removed = image.acts.iter().rev().find(|act| act.code == ActCode::Removed).and_then(|act| act.details.bytes);
    let is_it = |entry: &&Arc<ImageEntry>| entry.key() == key;
    let entry = snapshot.and_then(|snapshot| snapshot.entries.iter().find(is_it)).filter(|_| now.is_some());
    let pulled = entry.and_then(|entry| entry.usage.pulled.as_ref());
    WhyImage {
        id: key.id().to_string(),
        names,
        size: now.as_ref().map(|row| row.size).or(removed).unwrap_or_default(),
        uses: entry.map_or(0, |entry| entry.usage.history.uses),
        last_user: entry.and_then(|entry| entry.usage.user.clone()),
        pulled_at: pulled.and_then(|pulled| moment(pulled.at)),
        pulled_bytes: pulled.map(|pulled| pulled.bytes.0),
        pulled_in_ms: pulled.map(|pulled| milliseconds_of(pulled.duration)),
        next: predicted.get(&key).cloned().filter(|_| now.is_some()),
        now,
        history: image.acts.into_iter().map(happening).collect(),
        ..WhyImage::default()
    }
}

impl DecisionsRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<Decisions, Failure> {
        let log = Arc::clone(&images.log);
        let max = at_most("limit", self.limit.unwrap_or(100), DECISIONS_MAX)?;
        let read = tokio::task::spawn_blocking(move || log.recent(max)).await?;
        let read = read.map_err(|error| Failure::because("could not read the log of decisions", &error))?;
        let row = |act: Act| DecisionRow {
            id: act.keys.first().map_or_else(String::new, |key| ImageKey::parse(key).id().to_string()),
            happening: happening(act),
        };
        Ok(Decisions { decisions: read.into_iter().map(row).collect() })
    }
}

fn happening(act: Act) -> WhyHappening {
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
        code: if reason.is_empty() { act.code.name().into() } else { reason },
        reason: why,
        by: act.by,
        names: act.names,
        bytes,
        took_ms,
        hosts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    api_documents! {
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
            #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
            failures: std::collections::BTreeMap<String, u64>,
        }
    }

    #[test]
    fn a_host_is_shown_as_the_interface_describes_it() {
        let host =
            PullHost { host: "a:1".into(), manifest: true, blobs: 2, bytes: 3, failures: [("tls".into(), 1)].into() };
        let value = serde_json::to_value(&host).unwrap();
        let described: WhyHost = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(described).unwrap(), value);
    }
}
