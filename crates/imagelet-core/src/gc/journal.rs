//! A collection as it is put on record: what it decided of each image, and what came of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use super::{GcDecision, GcOutcome, GcRemoval, GcReport, GcVerdict, ImageGc, Reason};
use crate::{
    audit_log::{Act, ActCode, Decision, Outcome, OutcomeResult, Run, RunHead},
    image::ImageKey,
    inventory::Entry,
};

/// Failures of one collection that are put on record, and bytes of each text that comes from outside.
const FAILURES_MAX: usize = 16;
const TEXT_LENGTH_MAX: usize = 1024;

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
            names: entry.image.names().to_vec(),
            by: String::new(),
            bytes: Some(entry.image.size.0),
            took_ms: None,
            why: reason.to_string(),
        });
    }
}

impl GcReport {
    /// What goes on record of it: it began and was over at these moments.
    pub fn on_record(&self, asked: &Asked, (at, until): (SystemTime, SystemTime)) -> Run {
        let removed: BTreeSet<&ImageKey> = self.removed.iter().map(|removal| &removal.key).collect();
        let steps = self.planned.iter().flat_map(|planned| &planned.plan.steps);
        let planned: BTreeMap<&ImageKey, &Reason> = steps.map(|step| (&step.key, &step.reason)).collect();
        let untried = planned.keys().filter(|key| !removed.contains(*key));
        let spared = untried.filter_map(|key| spared(&self.decisions.of(key)?));
        let decided = self.decisions.iter().map(|decided| match planned.get(&decided.key) {
            // An attempt is recorded with its reason, also where it failed.
            Some(reason) if removed.contains(&decided.key) => decision(&decided, true, reason),
            _ => decision(&decided, matches!(decided.verdict, GcVerdict::Remove { .. }), &decided.reason),
        });
        Run {
            head: RunHead {
                at,
                until,
                by: asked.by.clone(),
                shadow: asked.shadow,
                claimed: self.claimed.0,
                measured: self.measured.map(|bytes| bytes.0),
                failures: self.failures.iter().take(FAILURES_MAX).map(|error| cut(&error.to_string())).collect(),
            },
            decisions: decided.collect(),
            outcomes: self.removed.iter().map(outcome).chain(spared).collect(),
        }
    }
}

/// What stood against a removal that was planned.
fn spared(decision: &GcDecision) -> Option<Outcome> {
    (decision.verdict == GcVerdict::Keep).then(|| Outcome {
        key: decision.key.to_string(),
        names: decision.names(),
        result: OutcomeResult::Spared { code: decision.reason.code().into(), text: cut(&decision.reason.to_string()) },
    })
}

fn outcome(removal: &GcRemoval) -> Outcome {
    let result = match &removal.outcome {
        GcOutcome::Removed { claimed } => OutcomeResult::Removed(claimed.0),
        GcOutcome::Failed { error } => OutcomeResult::Failed(cut(error)),
    };
    Outcome { key: removal.key.to_string(), names: removal.names.clone(), result }
}

fn decision(decided: &GcDecision, goes: bool, reason: &Reason) -> Decision {
    Decision {
        key: decided.key.to_string(),
        names: decided.names(),
        size: decided.size.0,
        goes,
        code: reason.code().into(),
        inputs: reason.inputs(),
        text: cut(&reason.to_string()),
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_LENGTH_MAX)].to_owned()
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
