//! The last happenings of all images, read from the end of the log.

use std::{io, ops::ControlFlow, path::Path};

use super::{
    files::read_back,
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

/// The last happenings in the last `bytes_max` bytes of the log, the latest first, without the images that collections
/// kept. Reads no further back than they need. Blocks.
pub(super) fn recent(directory: &Path, max: usize, bytes_max: u64) -> io::Result<Vec<RecentHappening>> {
    let mut last: Vec<RecentHappening> = Vec::new();
    // The places of the removals of the collection that was read last. Their reasons are in the acts before it: the
    // collection itself records a reason only where it changed.
    let mut removals: Vec<usize> = Vec::new();
    read_back(directory, bytes_max, |line| {
        match line {
            Line::Act(act) if act.code == ActCode::Removing => removals.retain(|place| {
                let RecentHappening { key, happening } = &mut last[*place];
                let is_it = act.keys.contains(key);
                if is_it && !act.why.is_empty() {
                    happening.text.clone_from(&act.why);
                }
                !is_it
            }),
            Line::Act(act) if last.len() < max => {
                let happening = Happening::of_act(&act);
                last.push(RecentHappening { key: act.keys.into_iter().next().unwrap_or_default(), happening });
            }
            Line::Run(run) => {
                let first = last.len();
                last.extend(of_run(&run).into_iter().rev().take(max - first));
                removals =
                    (first..last.len()).filter(|at| last[*at].happening.kind == HappeningKind::Removed).collect();
            }
            Line::Act(_) | Line::Lost(_) => {}
        }
        if last.len() == max && removals.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(last)
}

/// The removals of a collection; in shadow mode, what it selected.
fn of_run(run: &Run) -> Vec<RecentHappening> {
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
        let why = decision.map_or_else(String::new, |it| it.text.clone());
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::audit_log::{
        AuditLog, BYTES_MIN,
        files::{BLOCK_BYTES, read},
        record::{Act, Outcome},
        tests::{Dice, act, at, goes, kept, quiet, removed},
    };

    /// The same, by reading the whole log in order.
    fn by_reading_all(directory: &Path, max: usize) -> Vec<RecentHappening> {
        let (mut all, mut reasons) = (Vec::new(), BTreeMap::new());
        read(directory, |_, line| match line {
            Line::Act(act) if act.code == ActCode::Removing => {
                reasons.extend(act.keys.iter().map(|key| (key.clone(), act.why.clone())));
            }
            Line::Act(act) => {
                all.push(RecentHappening { key: act.keys[0].clone(), happening: Happening::of_act(&act) });
            }
            Line::Run(run) => {
                let reasons = std::mem::take(&mut reasons);
                all.extend(of_run(&run).into_iter().map(|mut row| {
                    let why = reasons.get(&row.key).filter(|why| !why.is_empty());
                    if let Some(why) = why.filter(|_| row.happening.kind == HappeningKind::Removed) {
                        row.happening.text.clone_from(why);
                    }
                    row
                }));
            }
            Line::Lost(_) => {}
        })
        .unwrap();
        all.reverse();
        all.truncate(max);
        all
    }

    #[test]
    fn of_a_long_log_only_its_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::new(folder.path(), 1 << 20);
        for number in 0..3000 {
            log.act(act(number, ActCode::Pulled, number));
            if number % 100 == 0 {
                log.flush();
            }
        }
        log.flush();
        let found = |max, bytes_max| -> Vec<_> {
            recent(folder.path(), max, bytes_max).unwrap().iter().map(|row| row.happening.at).collect()
        };
        let last = |count: usize| -> Vec<_> { (0..3000).rev().take(count).map(at).collect() };
        let block = BLOCK_BYTES as u64;
        assert_eq!(found(50, block), last(50), "one block holds more of them");
        let of_one_block = found(3000, block).len();
        assert!((100..400).contains(&of_one_block), "{of_one_block} of one block");
        assert_eq!(found(3000, block), last(of_one_block));
        assert_eq!(
            found(3000, u64::MAX),
            by_reading_all(folder.path(), 3000).iter().map(|row| row.happening.at).collect::<Vec<_>>()
        );
        assert_eq!(found(3000, 0), []);
    }

    #[test]
    fn the_end_of_a_log_has_the_same_rows_as_the_whole_of_it() {
        for seed in 0..60 {
            let mut dice = Dice(seed);
            let folder = tempfile::tempdir().unwrap();
            let log = AuditLog::new(folder.path(), 4 * BYTES_MIN);
            for second in 0..=dice.next(120) {
                let number = dice.next(9);
                match dice.next(6) {
                    0 => log.act(Act {
                        why: ["", "least needed"][usize::from(dice.next(2) == 0)].into(),
                        ..act(second, ActCode::Removing, number)
                    }),
                    1 => log.run(Run {
                        outcomes: vec![removed(number), removed(number + 1)],
                        ..quiet(second, vec![goes(number, "space")])
                    }),
                    2 => {
                        let result = OutcomeResult::Failed("busy".into());
                        log.run(Run {
                            outcomes: vec![Outcome { result, ..removed(number) }],
                            ..quiet(second, Vec::new())
                        });
                    }
                    3 => {
                        let mut run = quiet(
                            second,
                            (0..dice.next(60))
                                .map(|number| kept(number, "pinned"))
                                .chain([goes(number, "age")])
                                .collect(),
                        );
                        run.head.shadow = dice.next(2) == 0;
                        log.run(run);
                    }
                    // Longer than a block.
                    4 if dice.next(4) == 0 => {
                        log.act(Act { keys: vec!["k".repeat(40_000)], ..act(second, ActCode::Pinned, 1) });
                    }
                    _ => log.act(act(second, ActCode::Pulled, number)),
                }
                log.flush();
            }
            for max in [0, 1, 2, 7, 500] {
                assert_eq!(
                    recent(folder.path(), max, u64::MAX).unwrap(),
                    by_reading_all(folder.path(), max),
                    "seed {seed}, {max} rows"
                );
            }
        }
    }
}
