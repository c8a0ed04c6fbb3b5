//! Removes unneeded images, to free space or because they are old (`docs/spec/gc.md §6-§8`).
//!
//! `plan/` decides and `run.rs` acts. The disk is measured again at the end. **Invariant:** a collection removes an
//! image only if a listing immediately before the removal shows no user of the image.

mod keep_rules;
mod plan;
mod policy;
mod prune_records;
mod remaining;
mod remove_on_request;
mod report;
mod run;
mod run_health;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, atomic::AtomicBool};

use self::{keep_rules::LabelCache, plan::ReportedShortfall, prune_records::Pruning, remaining::RemainingImages};
pub use self::{
    keep_rules::{KEEP_RULES_MAX, KeepRule, KeepRules, KeepScope},
    plan::Shortfall,
    policy::{GcGoal, GcMarks, GcOrder, GcPhase, GcPolicy, GcRequest, ReliefMarks},
    remove_on_request::UsedImages,
    report::{GcDecision, GcError, GcEvent, GcOutcome, GcReport, GcSizes},
    run_health::{GcRuns, RunMessage},
};
use crate::{
    audit_log::AuditLog,
    disks::{DiskProbe, StatVfs},
    inventory::Inventory,
    lock::locked,
    ports::RuntimeManager,
    records::PullRecords,
};

#[derive(Debug)]
pub struct ImageGc {
    runtime: RuntimeManager,
    inventory: Arc<Inventory>,
    probe: Arc<dyn DiskProbe>,
    turn: tokio::sync::Mutex<()>,
    shortfall: ReportedShortfall,
    remaining: RemainingImages,
    rules: Mutex<Arc<KeepRules>>,
    labels: LabelCache,
    decisions: Option<Arc<AuditLog>>,
    pruning: Option<Pruning>,
}

impl ImageGc {
    pub fn new(runtime: RuntimeManager, inventory: Arc<Inventory>) -> Self {
        Self {
            runtime,
            inventory,
            probe: Arc::new(StatVfs),
            turn: tokio::sync::Mutex::new(()),
            shortfall: ReportedShortfall::default(),
            remaining: RemainingImages::default(),
            rules: Mutex::default(),
            labels: LabelCache::default(),
            decisions: None,
            pruning: None,
        }
    }

    /// Records each removal as soon as it has ended, so that a crash later in the collection does not lose the record.
    #[must_use]
    pub fn with_decisions(self, decisions: Arc<AuditLog>) -> Self {
        Self { decisions: Some(decisions), ..self }
    }

    /// Prunes the pull records of absent images after each collection. A first empty image list prunes all records only
    /// with `trusts_empty_list`, because a runtime that has just started may list no image.
    #[must_use]
    pub fn with_records(self, records: Arc<PullRecords>, trusts_empty_list: bool) -> Self {
        Self { pruning: Some(Pruning { records, trusts_empty_list, found_none: AtomicBool::new(false) }), ..self }
    }

    #[must_use]
    pub fn with_probe(self, probe: Arc<dyn DiskProbe>) -> Self {
        Self { probe, ..self }
    }

    /// Sets the keep rules of later collections. An `image` rule without `unused_max` becomes a pin.
    pub fn set_rules(&self, rules: KeepRules) {
        self.inventory.set_configured_pins(rules.keep.iter().filter_map(KeepRule::pin).cloned().collect());
        let mut current = locked(&self.rules);
        if **current != rules {
            *current = Arc::new(rules);
        }
    }

    fn rules(&self) -> Arc<KeepRules> {
        Arc::clone(&locked(&self.rules))
    }
}
