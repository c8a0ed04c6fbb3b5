//! Writes acts and collections, and keeps count of what it could not write.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use super::{
    WriteState,
    encode::{Chain, outline, shortened},
    entry::{Entry, LostLine},
    line::encode,
    record::{Act, Run, nanos},
    segments::{Segments, Youngest},
};

/// So many collections that decided nothing new make one line; with the usual five minutes an hour of them.
const SAME_MAX: u64 = 12;
/// After a collection whose inputs were too long to keep, so many are told without.
const LONG_SKIPPED: u32 = 12;

/// The only one of its process that adds lines.
#[derive(Debug)]
pub(super) struct Writer {
    segments: Segments,
    state: Arc<WriteState>,
    /// With the segment it is in.
    chain: Option<(u64, Chain)>,
    /// Not yet told in the log itself.
    lost: u64,
    lost_for: String,
    skip: u32,
}

impl Writer {
    pub(super) fn new(segments: Segments, state: Arc<WriteState>) -> Self {
        Self { segments, state, chain: None, lost: 0, lost_for: String::new(), skip: 0 }
    }

    pub(super) fn act(&mut self, act: Act) {
        let written = self.write(|_, _| Ok(vec![Entry::Act(act)]), true);
        self.note(written, 1);
    }

    pub(super) fn run(&mut self, run: Run) {
        let is_weighty = !run.outcomes.is_empty();
        if self.skip > 0 {
            self.skip -= 1;
            if is_weighty || !run.head.failures.is_empty() {
                let written = self.write(|_, _| Ok(vec![outline(run)]), is_weighty);
                self.note(written, 1);
            }
            return;
        }
        let written = self.write(|chain, segment| Ok(lines(chain, segment, run)), is_weighty);
        self.note(written, 1);
        if self.chain.as_ref().is_some_and(|(_, chain)| chain.counted() >= SAME_MAX) {
            self.settle();
        }
    }

    /// Writes what is only counted so far.
    pub(super) fn settle(&mut self) {
        let counted = self.chain.as_ref().map_or(0, |(_, chain)| chain.counted());
        if counted == 0 {
            return;
        }
        let settle = |chain: &mut Option<(u64, Chain)>, segment| {
            let same = chain.as_mut().and_then(|(_, chain)| chain.settle());
            // In another segment nobody could tell what it is the same as.
            if chain.as_ref().is_some_and(|(begun, _)| *begun != segment) {
                *chain = None;
            }
            Ok(same.into_iter().collect())
        };
        let written = self.write(settle, false);
        self.note(written, counted);
    }

    fn write(
        &mut self,
        lines: impl FnOnce(&mut Option<(u64, Chain)>, u64) -> io::Result<Vec<Entry>>,
        is_weighty: bool,
    ) -> io::Result<()> {
        let mut youngest = self.segments.youngest()?;
        let mut entries = Vec::new();
        if self.lost > 0 || youngest.torn > 0 {
            entries.push(self.confession(&youngest));
        }
        entries.extend(lines(&mut self.chain, youngest.number())?);
        let mut text = Vec::new();
        for entry in entries {
            let mut line = encode(&entry)?;
            if line.len() as u64 > self.segments.line_length_max() {
                line = encode(&shortened(entry, line.len() as u64))?;
                // What follows could not be told by how it differs from this.
                self.chain = None;
                self.skip = LONG_SKIPPED;
            }
            text.extend(line);
        }
        if text.is_empty() {
            return Ok(());
        }
        youngest.append(&text)?;
        if is_weighty { youngest.sync() } else { Ok(()) }
    }

    /// Says in the log itself what is missing from it.
    fn confession(&self, youngest: &Youngest<'_>) -> Entry {
        if youngest.torn > 0 {
            tracing::warn!(bytes = youngest.torn, "cut a torn line off the decision log");
        }
        let error = if self.lost > 0 { self.lost_for.clone() } else { "the process ended while writing".into() };
        let count = self.lost + u64::from(youngest.torn > 0);
        Entry::Lost(LostLine { at: SystemTime::now(), count, torn: youngest.torn, error })
    }

    fn note(&mut self, written: io::Result<()>, count: u64) {
        match written {
            Ok(()) => {
                self.lost = 0;
                self.state.heal();
            }
            Err(error) => {
                // What was to follow would build on what is not there.
                self.chain = None;
                self.lost += count;
                self.lost_for = error.to_string();
                self.state.lose(count, &self.lost_for);
            }
        }
    }
}

fn lines(chain: &mut Option<(u64, Chain)>, segment: u64, run: Run) -> Vec<Entry> {
    let mut entries = Vec::new();
    match chain {
        Some((begun, chain)) if *begun == segment => entries.extend(chain.go_on(run)),
        other => {
            entries.extend(other.as_mut().and_then(|(_, chain)| chain.settle()));
            let (begun, entry) = Chain::begin(name(), run);
            *other = Some((segment, begun));
            entries.push(entry);
        }
    }
    entries
}

/// Unlike any other chain's of this machine.
fn name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{:x}-{count:x}", std::process::id(), nanos::of(SystemTime::now()))
}
