//! Writes acts and collections, of each collection what it decided otherwise than before, and counts what is lost.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    io,
    sync::Arc,
    time::SystemTime,
};

use super::{
    WriteState,
    files::{LogFiles, Youngest, read},
    record::{Act, Decision, Line, LostLine, Outcome, OutcomeResult, Run},
};

/// Limit of images remembered between two collections.
const IMAGES_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct Writer {
    files: LogFiles,
    state: Arc<WriteState>,
    known: KnownImages,
    /// The file and its length after the last own line; a different end means that another process has written.
    end: Option<(u64, u64)>,
    /// Lost records that the log does not report yet.
    lost: u64,
    lost_for: String,
}

#[derive(Debug, Default)]
struct KnownImages(HashMap<String, Described>);

/// The file that describes an image, and a hash of the description. A new file describes every image again, so that no
/// file depends on an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Described {
    file: u64,
    hash: u64,
}

impl Writer {
    pub(super) fn new(files: LogFiles, state: Arc<WriteState>) -> Self {
        Self { files, state, known: KnownImages::default(), end: None, lost: 0, lost_for: String::new() }
    }

    pub(super) fn act(&mut self, act: Act) {
        // An unreachable registry causes many failed pulls, none of which changes an image.
        let is_synced = !act.is_of_a_name();
        let line = Line::Act(act);
        let written = self.youngest().and_then(|youngest| self.append(youngest, line.clone(), is_synced));
        self.known.take(0, &line);
        self.note(written);
    }

    pub(super) fn run(&mut self, run: Run) {
        let written = self.youngest().and_then(|youngest| {
            let file = youngest.number;
            let described: Vec<_> = run.decisions.iter().map(|it| (it.key.clone(), Described::by(it, file))).collect();
            let is_synced = !run.outcomes.is_empty();
            let line = Line::Run(self.changes(run, file));
            self.append(youngest, line.clone(), is_synced)?;
            self.known.0.extend(described);
            self.known.take(file, &line);
            Ok(())
        });
        self.note(written);
    }

    fn changes(&self, mut run: Run, file: u64) -> Run {
        let listed: HashSet<&str> = run.decisions.iter().map(|decision| decision.key.as_str()).collect();
        run.gone = self.known.0.keys().filter(|key| !listed.contains(key.as_str())).cloned().collect();
        run.decisions.retain(|it| self.known.0.get(&it.key) != Some(&Described::by(it, file)));
        let length: usize = run.decisions.iter().map(|it| serde_json::to_vec(it).map_or(0, |text| text.len())).sum();
        if length as u64 > self.files.file_bytes_max() / 2 {
            // A log too small for all images describes the removed ones.
            let all = run.decisions.len();
            run.decisions.retain(|decision| decision.goes);
            run.left_out = (all - run.decisions.len()) as u64;
        }
        run
    }

    /// The youngest file, after its lines are known.
    fn youngest(&mut self) -> io::Result<Youngest> {
        let youngest = self.files.youngest()?;
        // A new file continues the one that ended where this process left it.
        let is_own = self.end.is_some_and(|(number, length)| {
            [(number, length), (number + 1, 0)].contains(&(youngest.number, youngest.length))
        });
        if !is_own {
            self.known = KnownImages::default();
            read(&self.files.directory, |file, line| self.known.take(file, &line))?;
            self.end = Some((youngest.number, youngest.length));
        }
        Ok(youngest)
    }

    fn append(&mut self, mut youngest: Youngest, line: Line, is_synced: bool) -> io::Result<()> {
        let lost = LostLine { at: SystemTime::now(), count: self.lost, error: self.lost_for.clone() };
        let lost = (self.lost > 0).then_some(Line::Lost(lost));
        let lines: Vec<Line> = lost.into_iter().chain([line]).collect();
        self.files.append(&mut youngest, &lines)?;
        self.lost = 0;
        self.end = Some((youngest.number, youngest.length));
        self.state.succeeded();
        if is_synced { youngest.sync() } else { Ok(()) }
    }

    fn note(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        // Lines on disk are read before new ones build on them.
        self.end = None;
        self.lost += 1;
        self.lost_for = error.to_string();
        self.state.failed(&self.lost_for);
    }
}

impl KnownImages {
    fn take(&mut self, file: u64, line: &Line) {
        match line {
            // The next collection that does not list them records their removal.
            Line::Act(act) if act.code.shows_presence() => {
                for key in act.keys.iter().take(IMAGES_MAX.saturating_sub(self.0.len())) {
                    self.0.entry(key.clone()).or_insert(Described { file: 0, hash: 0 });
                }
            }
            Line::Run(run) => {
                self.0.extend(run.decisions.iter().map(|it| (it.key.clone(), Described::by(it, file))));
                let is_removed = |outcome: &&Outcome| matches!(outcome.result, OutcomeResult::Removed(_));
                let removed = run.outcomes.iter().filter(is_removed).map(|outcome| &outcome.key);
                for key in run.gone.iter().chain(removed) {
                    self.0.remove(key);
                }
            }
            Line::Act(_) | Line::Lost(_) => {}
        }
    }
}

impl Described {
    /// The text and the inputs change with every pass and are not part of the hash.
    fn by(decision: &Decision, file: u64) -> Self {
        let Decision { names, size, goes, code, .. } = decision;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((names, size, goes, code));
        Self { file, hash }
    }
}
