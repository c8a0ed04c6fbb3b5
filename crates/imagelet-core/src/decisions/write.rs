//! Writes acts and collections, and keeps count of what it could not write.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    io,
    sync::Arc,
    time::SystemTime,
};

use super::{
    WriteState,
    line::{Line, LostLine, RunLine},
    read::read,
    record::{Act, ActCode, Decision, OutcomeResult, Run},
    segments::{Segments, Youngest},
};

/// So many collections that decided nothing new make one line; with the usual five minutes an hour of them.
const SAME_MAX: u64 = 12;
/// Keys of one act on a line; a pattern may hold very many images.
const KEYS_MAX: usize = 500;
/// Images that are remembered between two collections.
const IMAGES_MAX: usize = 100_000;

/// The only one of its process that adds lines.
#[derive(Debug)]
pub(super) struct Writer {
    segments: Segments,
    state: Arc<WriteState>,
    /// The images of the last collection, as the log has them.
    known: HashMap<String, Known>,
    /// The segment and its length behind our own last line: where the log ends elsewhere, another process has written.
    end: Option<(u64, u64)>,
    /// Collections that decided nothing new and are not written yet.
    same: Option<RunLine>,
    /// Not yet told in the log itself.
    lost: u64,
    lost_for: String,
}

/// An image as the log has it.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The segment that describes it.
    segment: u64,
    /// What it describes.
    hash: u64,
}

impl Writer {
    pub(super) fn new(segments: Segments, state: Arc<WriteState>) -> Self {
        Self { segments, state, known: HashMap::new(), end: None, same: None, lost: 0, lost_for: String::new() }
    }

    pub(super) fn act(&mut self, act: Act) {
        let (brought, is_of_a_name) = (brought(&act).to_vec(), act.is_of_a_name());
        let parts: Vec<Line> = match act.keys.len() {
            0..=KEYS_MAX => vec![Line::Act(act)],
            _ => act.keys.chunks(KEYS_MAX).map(|keys| Line::Act(Act { keys: keys.to_vec(), ..act.clone() })).collect(),
        };
        // A registry that is away makes many of those, and none of them changed anything.
        let is_weighty = !is_of_a_name;
        let written = self.youngest().and_then(|youngest| self.append(youngest, parts, is_weighty));
        remember(&mut self.known, &brought);
        self.note(written, 1);
    }

    pub(super) fn run(&mut self, run: Run) {
        let written = self.try_run(run);
        self.note(written, 1);
        if self.same.as_ref().is_some_and(|same| same.count >= SAME_MAX) {
            self.settle();
        }
    }

    /// Writes what is only counted so far.
    pub(super) fn settle(&mut self) {
        if self.same.is_some() {
            let written = self.youngest().and_then(|youngest| self.append(youngest, Vec::new(), false));
            self.note(written, 0);
        }
    }

    fn try_run(&mut self, run: Run) -> io::Result<()> {
        let youngest = self.youngest()?;
        let Run { head, decisions, outcomes } = run;
        let listed: HashSet<&str> = decisions.iter().map(|decision| decision.key.as_str()).collect();
        let gone: Vec<String> = self.known.keys().filter(|key| !listed.contains(key.as_str())).cloned().collect();
        let known = |decision: &Decision| Known { segment: youngest.number, hash: hash(decision) };
        let is_news = |decision: &Decision| {
            let now = known(decision);
            self.known.get(&decision.key).is_none_or(|then| (then.segment, then.hash) != (now.segment, now.hash))
        };
        let mut decided: Vec<Decision> = decisions.into_iter().filter(is_news).collect();
        let is_quiet = outcomes.is_empty() && head.failures.is_empty() && head.claimed == 0;
        if is_quiet && decided.is_empty() && gone.is_empty() {
            let same = self.same.take_if(|same| (&same.head.by, same.head.shadow) == (&head.by, head.shadow));
            if same.is_none() && self.same.is_some() {
                self.append(youngest, Vec::new(), false)?;
            }
            let (first, count) = same.map_or((head.at, 0), |same| (same.first, same.count));
            self.same = Some(RunLine { first, count: count + 1, ..RunLine::new(head) });
            return Ok(());
        }
        let news: Vec<(String, Known)> =
            decided.iter().map(|decision| (decision.key.clone(), known(decision))).collect();
        let removed: Vec<String> = outcomes
            .iter()
            .filter(|outcome| matches!(outcome.result, OutcomeResult::Removed(_)))
            .map(|outcome| outcome.key.clone())
            .collect();
        let is_weighty = !outcomes.is_empty();
        let mut left_out = 0;
        let told: usize =
            decided.iter().map(|decision| serde_json::to_vec(decision).map_or(0, |text| text.len())).sum();
        if told as u64 > self.segments.append_max() / 2 {
            // Where the log has no room for all images, those that go are written, and the others once that changes.
            let all = decided.len();
            decided.retain(|decision| decision.goes);
            left_out = (all - decided.len()) as u64;
        }
        let whole = RunLine { count: 1, decided, gone: gone.clone(), outcomes, left_out, ..RunLine::new(head) };
        let lines = whole.split().into_iter().map(Line::Run).collect();
        self.append(youngest, lines, is_weighty)?;
        self.known.extend(news);
        for key in gone.iter().chain(&removed) {
            self.known.remove(key);
        }
        Ok(())
    }

    /// The segment to add to, once it is known what the log has of each image.
    fn youngest(&mut self) -> io::Result<Youngest> {
        let youngest = self.segments.youngest()?;
        let (number, length) = self.end.unwrap_or_default();
        // A segment that is begun here follows the one that ended where this process left it.
        let is_own = (youngest.number, youngest.length) == (number, length)
            || (youngest.number, youngest.length) == (number + 1, 0) && self.end.is_some();
        if !is_own {
            self.known = HashMap::new();
            read(&self.segments.directory, |segment, line| {
                let run = match line {
                    Line::Run(run) => run,
                    Line::Act(act) => return remember(&mut self.known, brought(&act)),
                    Line::Lost(_) => return,
                };
                for decision in &run.decided {
                    self.known.insert(decision.key.clone(), Known { segment, hash: hash(decision) });
                }
                let removed = run.outcomes.iter().filter(|it| matches!(it.result, OutcomeResult::Removed(_)));
                for key in run.gone.iter().chain(removed.map(|outcome| &outcome.key)) {
                    self.known.remove(key);
                }
            })?;
            self.end = Some((youngest.number, youngest.length));
        }
        Ok(youngest)
    }

    /// Adds lines behind what is only counted so far, which was before them.
    fn append(&mut self, mut youngest: Youngest, lines: Vec<Line>, is_weighty: bool) -> io::Result<()> {
        let lost = LostLine { at: SystemTime::now(), count: self.lost, error: self.lost_for.clone() };
        let lost = (self.lost > 0).then_some(Line::Lost(lost));
        let mut text = Vec::new();
        for line in lost.into_iter().chain(self.same.clone().map(Line::Run)).chain(lines) {
            line.encode(&mut text)?;
        }
        self.segments.append(&mut youngest, &text)?;
        (self.same, self.lost) = (None, 0);
        self.end = Some((youngest.number, youngest.length));
        self.state.heal();
        if is_weighty { youngest.sync() } else { Ok(()) }
    }

    fn note(&mut self, written: io::Result<()>, count: u64) {
        let Err(error) = written else { return };
        // What is on the disk is found out before anything builds on it.
        self.end = None;
        let count = count + self.same.take().map_or(0, |same| same.count);
        self.lost += count;
        self.lost_for = error.to_string();
        self.state.lose(count, &self.lost_for);
    }
}

/// The images that are there after an act: where a collection does not find them, they are gone.
fn brought(act: &Act) -> &[String] {
    match act.code {
        ActCode::Pulled | ActCode::Adopted | ActCode::Removing => &act.keys,
        _ => &[],
    }
}

/// Remembers images that no collection has recorded.
fn remember(known: &mut HashMap<String, Known>, keys: &[String]) {
    for key in keys.iter().take(IMAGES_MAX.saturating_sub(known.len())) {
        known.entry(key.clone()).or_insert(Known { segment: 0, hash: 0 });
    }
}

/// Of what is written anew once it changes; the text and what it rests on move with every pass.
fn hash(decision: &Decision) -> u64 {
    let Decision { names, size, goes, code, .. } = decision;
    // The same in one process, which is all that is asked of it.
    BuildHasherDefault::<DefaultHasher>::default().hash_one((names, size, goes, code))
}
