//! A collection as it is put on record: what it was decided on, cut so that what does not change is told once, and back.

use std::{collections::BTreeMap, time::SystemTime};

use serde_json::{Value, json};

use super::{
    GcDecision, GcOutcome, GcRemoval, GcReport, GcVerdict, ImageGc, Plan, PlanInput, Planned, Reason, facts::Facts,
    plan,
};
use crate::{
    decisions::{Act, ActCode, Decision, ImageInput, LayersInput, Outcome, OutcomeResult, Run, RunHead, RunInput},
    image::{Digest, ImageKey},
    inventory::Entry,
};

/// Digits of a digest that tell two plans apart.
const DIGEST_LENGTH: usize = 16;

/// Who wanted a collection, and whether anything was to be done about it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `timer`, `command`, `pull`, `pressure`.
    pub by: String,
    /// It was only to tell what it would do.
    pub shadow: bool,
}

impl ImageGc {
    /// Puts on record that an image is about to be removed, in case nobody lives to tell what came of it.
    pub(super) fn put_on_record(&self, entry: &Entry, reason: &Reason, at: SystemTime) {
        let Some(log) = &self.decisions else { return };
        log.act(Act {
            at,
            code: ActCode::Removing,
            keys: vec![entry.key().to_string()],
            names: entry.image.tags.clone(),
            by: String::new(),
            bytes: Some(entry.image.size.0),
            took_ms: None,
            why: reason.to_string(),
        });
    }
}

impl GcReport {
    /// What goes on record of it: one collection for each time it planned.
    pub fn on_record(&self, asked: &Asked, at: SystemTime) -> Vec<Run> {
        let head = RunHead {
            at,
            by: asked.by.clone(),
            shadow: asked.shadow,
            claimed: self.claimed.0,
            measured: self.measured.map(|bytes| bytes.0),
            failures: self.failures.iter().map(ToString::to_string).collect(),
            ..RunHead::default()
        };
        let mut tried: BTreeMap<&ImageKey, Option<&GcRemoval>> =
            self.removed.iter().map(|removal| (&removal.key, Some(removal))).collect();
        let mut runs: Vec<Run> = Vec::new();
        for planned in &self.planned {
            let mut run = of_plan(planned);
            run.head.at = at;
            run.head.by.clone_from(&asked.by);
            run.head.shadow = asked.shadow;
            for step in &planned.plan.steps {
                run.outcomes.extend(match tried.get_mut(&step.key) {
                    // Tried once, and told with the plan that wanted it.
                    Some(removal) => removal.take().map(outcome),
                    None if asked.shadow => None,
                    None => self.decisions.of(&step.key).and_then(|decision| spared(&decision)),
                });
            }
            runs.push(run);
        }
        match runs.last_mut() {
            // What the whole came to is told with its end.
            Some(last) => last.head = RunHead { digest: last.head.digest.clone(), ..head },
            None => runs.push(self.without_plan(head)),
        }
        runs
    }

    /// The kubelet's way decides image by image: there is nothing to plan again from, only what came of it.
    fn without_plan(&self, head: RunHead) -> Run {
        let images = self.decisions.iter().map(|decision| ImageInput {
            key: decision.key.to_string(),
            names: decision.tags.to_vec(),
            size: decision.size.0,
            facts: Value::Null,
        });
        Run {
            head,
            input: RunInput { images: images.collect(), ..RunInput::default() },
            decisions: self.decisions.iter().map(|decided| decision(&decided)).collect(),
            outcomes: self.removed.iter().map(outcome).collect(),
        }
    }
}

/// What stood against a removal that was planned.
fn spared(decision: &GcDecision) -> Option<Outcome> {
    (decision.verdict == GcVerdict::Keep).then(|| Outcome {
        key: decision.key.to_string(),
        names: decision.tags.to_vec(),
        result: OutcomeResult::Spared { code: decision.reason.code().into(), text: decision.reason.to_string() },
    })
}

fn outcome(removal: &GcRemoval) -> Outcome {
    let result = match &removal.outcome {
        GcOutcome::Removed { claimed } => OutcomeResult::Removed(claimed.0),
        GcOutcome::Failed { error } => OutcomeResult::Failed(error.clone()),
    };
    Outcome { key: removal.key.to_string(), names: removal.tags.clone(), result }
}

fn decision(decided: &GcDecision) -> Decision {
    decided_on(&decided.key, matches!(decided.verdict, GcVerdict::Remove { .. }), &decided.reason)
}

fn decided_on(key: &ImageKey, goes: bool, reason: &Reason) -> Decision {
    Decision {
        key: key.to_string(),
        goes,
        code: reason.code().into(),
        inputs: reason.inputs(),
        text: reason.to_string(),
    }
}

/// A plan with all it was made from.
fn of_plan(planned: &Planned) -> Run {
    let Planned { input, plan } = planned;
    let kept = plan.kept.iter().map(|(place, reason)| decided_on(&input.images.at(place).key(), false, reason));
    let goes = plan.steps.iter().map(|step| decided_on(&step.key, true, &step.reason));
    Run {
        head: RunHead { digest: digest(plan), ..RunHead::default() },
        input: cut(input),
        decisions: goes.chain(kept).collect(),
        outcomes: Vec::new(),
    }
}

/// What tells two plans apart.
pub fn digest(plan: &Plan) -> String {
    let text = serde_json::to_vec(plan).unwrap_or_default();
    Digest::of(&text).hex().chars().take(DIGEST_LENGTH).collect()
}

/// The digest of the plan that an input on record leads to today; `None`: the input does not read any more.
pub fn replay(input: &RunInput) -> Option<String> {
    joined(input).map(|input| digest(&plan(&input))).ok()
}

/// Cuts an input into what is common to all images, the images, and the layers.
fn cut(input: &PlanInput) -> RunInput {
    let mut rest = input.clone();
    let (images, layers) = (std::mem::take(&mut rest.images), rest.layers.take());
    let youngest = images.iter().filter_map(Facts::last_used).max();
    let clocks = [Some(input.now), youngest].into_iter().flatten().filter_map(|time| serde_json::to_value(time).ok());
    RunInput {
        common: serde_json::to_value(&rest).unwrap_or_default(),
        clocks: clocks.collect(),
        images: images.written().map(|facts| image(&facts)).collect(),
        layers: layers.map(|graph| LayersInput {
            layers: graph.layers.iter().map(layer).collect(),
            images: graph.images.iter().map(|(id, layers)| (id.to_string(), layers.clone())).collect(),
            certainty: serde_json::to_value(graph.certainty).unwrap_or_default(),
        }),
    }
}

/// Key, names and size stand for themselves; how many of the names have a tag is kept.
fn image(facts: &super::ImageFacts) -> ImageInput {
    let mut rest = serde_json::to_value(facts).unwrap_or_default();
    if let Value::Object(fields) = &mut rest {
        for field in ["key", "digests", "size"] {
            fields.remove(field);
        }
        fields.insert("tags".into(), json!(facts.tags.len()));
        // Most images lack most of it.
        fields.retain(|_, value| !value.is_null());
    }
    let (key, size) = (facts.key.to_string(), facts.size.0);
    ImageInput { key, names: facts.tags.iter().chain(&*facts.digests).cloned().collect(), size, facts: rest }
}

fn layer(facts: &crate::runtime::LayerFacts) -> (String, Value) {
    let mut rest = serde_json::to_value(facts).unwrap_or_default();
    if let Value::Object(fields) = &mut rest {
        fields.remove("id");
    }
    (facts.id.to_string(), rest)
}

/// Puts together what [`cut`] has cut.
fn joined(input: &RunInput) -> Result<PlanInput, serde_json::Error> {
    let mut common = input.common.clone();
    let images = input.images.iter().map(|image| {
        let mut facts = image.facts.clone();
        let tags = facts["tags"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let (tags, digests) = image.names.split_at(tags.min(image.names.len()));
        facts["tags"] = json!(tags);
        facts["digests"] = json!(digests);
        facts["key"] = json!(image.key);
        facts["size"] = json!(image.size);
        facts
    });
    common["images"] = images.collect();
    if let Some(layers) = &input.layers {
        let facts = layers.layers.iter().map(|(id, facts)| {
            let mut facts = facts.clone();
            facts["id"] = json!(id);
            facts
        });
        let images: BTreeMap<_, _> = layers.images.iter().collect();
        common["layers"] =
            json!({"layers": facts.collect::<Vec<_>>(), "images": images, "certainty": layers.certainty});
    }
    serde_json::from_value(common)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
