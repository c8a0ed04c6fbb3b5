//! The last happenings of all images, read from the log.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::Path,
};

use super::{
    files::read,
    history::{Happening, HappeningKind},
    record::{ActCode, Line, OutcomeResult, Run},
};

/// A happening with the image that it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct RecentHappening {
    /// The image's key; empty for a failed pull.
    pub key: String,
    /// What happened; `names` has the names of the image.
    pub happening: Happening,
}

/// The last happenings, the latest first, without the images that collections kept. Blocks.
pub(super) fn recent(directory: &Path, max: usize) -> io::Result<Vec<RecentHappening>> {
    let mut last = VecDeque::new();
    let mut keep = |found: RecentHappening| {
        last.push_back(found);
        if last.len() > max {
            last.pop_front();
        }
    };
    // Reasons of removals by key: the collection itself records a reason only where it changed.
    let mut reasons = BTreeMap::new();
    read(directory, |_, line| match line {
        Line::Act(act) if act.code == ActCode::Removing => {
            reasons.extend(act.keys.into_iter().map(|key| (key, act.why.clone())));
        }
        Line::Act(act) => {
            let happening = Happening::of_act(&act);
            keep(RecentHappening { key: act.keys.into_iter().next().unwrap_or_default(), happening });
        }
        Line::Run(run) => of_run(&run, &std::mem::take(&mut reasons)).into_iter().for_each(&mut keep),
        Line::Lost(_) => {}
    })?;
    Ok(last.into_iter().rev().collect())
}

/// The removals of a collection; in shadow mode, what it selected.
fn of_run(run: &Run, reasons: &BTreeMap<String, String>) -> Vec<RecentHappening> {
    let head = &run.head;
    let new = |kind, code: &str, at| Happening { shadow: head.shadow, ..Happening::new(kind, code, at, &head.by) };
    let selected = run.decisions.iter().filter(|it| it.goes && head.shadow).map(|it| RecentHappening {
        key: it.key.clone(),
        happening: Happening {
            names: it.names.clone(),
            inputs: it.inputs.clone(),
            text: it.text.clone(),
            bytes: Some(it.size),
            ..new(HappeningKind::Chosen, &it.code, head.at)
        },
    });
    let outcomes = run.outcomes.iter().map(|it| {
        let decision = run.decisions.iter().find(|decision| decision.key == it.key);
        let recorded = reasons.get(&it.key).cloned().filter(|why| !why.is_empty());
        let why = recorded.or_else(|| decision.map(|it| it.text.clone())).unwrap_or_default();
        let code = decision.map_or("", |it| &it.code);
        let happening = match &it.result {
            OutcomeResult::Removed(bytes) => {
                Happening { bytes: Some(*bytes), text: why, ..new(HappeningKind::Removed, code, head.until) }
            }
            OutcomeResult::Failed(error) => {
                Happening { text: error.clone(), ..new(HappeningKind::Failed, code, head.until) }
            }
            OutcomeResult::Spared { code, text } => {
                Happening { text: text.clone(), ..new(HappeningKind::Spared, code, head.until) }
            }
        };
        RecentHappening { key: it.key.clone(), happening: Happening { names: it.names.clone(), ..happening } }
    });
    selected.chain(outcomes).collect()
}
