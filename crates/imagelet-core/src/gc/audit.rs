//! A collection as the audit log records it: the decision on each image, and the outcomes.

use std::time::SystemTime;

use super::{
    ImageGc,
    reason::Reason,
    report::{GcDecision, GcOutcome, GcReport},
};
use crate::{
    audit_log::{Act, ActCode, Decision, Outcome, OutcomeResult, Run, RunHead},
    inventory::ImageEntry,
};

/// Limit of recorded failures per collection, and of bytes per text from outside.
const FAILURES_MAX: usize = 16;
const TEXT_LENGTH_MAX: usize = 1024;

/// The trigger of a collection, and whether it runs in shadow mode.
#[derive(Clone, Debug)]
pub struct RunTrigger {
    /// `timer`, `command`, `pull`, `pressure`.
    pub by: String,
    /// The collection only reports what it would remove.
    pub shadow: bool,
}

impl ImageGc {
    /// Records the removal before it starts, in case the process ends before the collection.
    pub(super) fn record_removal(&self, entry: &ImageEntry, reason: &Reason, at: SystemTime) {
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
            hosts: Vec::new(),
        });
    }
}

impl GcReport {
    /// The record of a collection between these two times.
    pub fn to_audit(&self, asked: &RunTrigger, (at, until): (SystemTime, SystemTime)) -> Run {
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
            decisions: self.decisions.iter().map(decision).collect(),
            gone: Vec::new(),
            outcomes: self.decisions.iter().filter_map(outcome).collect(),
            left_out: 0,
        }
    }
}

fn outcome(decision: &GcDecision) -> Option<Outcome> {
    let result = match &decision.outcome {
        GcOutcome::Kept | GcOutcome::Chosen => return None,
        GcOutcome::Removed => OutcomeResult::Removed(decision.entry.image.size.0),
        GcOutcome::Failed(error) => OutcomeResult::Failed(cut(error)),
        GcOutcome::Spared => {
            OutcomeResult::Spared { code: decision.reason.code().into(), text: cut(&decision.reason.to_string()) }
        }
    };
    Some(Outcome { key: decision.key().to_string(), names: decision.entry.image.names().to_vec(), result })
}

fn decision(decided: &GcDecision) -> Decision {
    Decision {
        key: decided.key().to_string(),
        names: decided.entry.image.names().to_vec(),
        size: decided.entry.image.size.0,
        // A failed attempt is recorded with its reason, too.
        goes: !matches!(decided.outcome, GcOutcome::Kept | GcOutcome::Spared),
        code: decided.reason.code().into(),
        inputs: decided.reason.inputs(),
        text: cut(&decided.reason.to_string()),
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_LENGTH_MAX)].to_owned()
}
