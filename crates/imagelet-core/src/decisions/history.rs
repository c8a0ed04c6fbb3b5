//! What happened to one image, gathered from the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::SystemTime,
};

use serde_json::Value;

use super::{
    read::{Damage, RunTold, Told, read},
    record::{Act, ActCode, Decision, OutcomeResult},
};
use crate::image::Reference;

/// Shorter beginnings of an id mean nothing.
const DIGITS_MIN: usize = 4;

/// What the log knows of the images that a text means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Each image by key; more than one where a name moved, or where the beginning of an id fits several.
    pub images: Vec<ImageHistory>,
    /// When the oldest line that is left was written; `None`: nothing is on record at all.
    pub since: Option<SystemTime>,
    /// Acts and collections that did not reach the disk.
    pub lost: u64,
    /// What could not be read.
    pub damage: Damage,
}

/// What the log knows of one image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageHistory {
    /// Its key.
    pub key: String,
    /// All names it had.
    pub names: Vec<String>,
    /// What it was last listed with.
    pub size: u64,
    /// Whether it was there at the last collection that is on record.
    pub is_present: bool,
    /// Oldest first.
    pub happenings: Vec<Happening>,
}

/// Something that happened to an image, or was decided on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// When, or when first.
    pub at: SystemTime,
    /// When the same was last decided.
    pub until: SystemTime,
    /// How often in a row.
    pub count: u64,
    /// What.
    pub kind: HappeningKind,
    /// The stable word of the reason.
    pub code: String,
    /// What the reason rests on.
    pub inputs: Value,
    /// The reason for people; empty where there is none.
    pub text: String,
    /// Who asked.
    pub by: String,
    /// Names concerned, where that is a part of it.
    pub names: Vec<String>,
    /// Bytes, where known.
    pub bytes: Option<u64>,
    /// How long it took, in milliseconds.
    pub took_ms: Option<u64>,
    /// It was decided in shadow mode: nobody acted on it.
    pub shadow: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HappeningKind {
    /// Somebody did something.
    Act(ActCode),
    /// A collection found it, and nobody told of a pull.
    Found,
    /// A collection kept it.
    Kept,
    /// A collection chose it; what came of it follows, unless it was in shadow mode.
    Chosen,
    /// A collection removed it.
    Removed,
    /// A collection tried to.
    Failed,
    /// Something came between.
    Spared,
    /// A collection did not find it any more, and nobody told of a removal.
    Gone,
}

impl History {
    /// Reads a log for the images that a text means.
    pub(super) fn of(directory: &Path, text: &str) -> io::Result<Self> {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut history = Self::default();
        let first = |at: SystemTime, since: &mut Option<SystemTime>| {
            *since = Some(since.map_or(at, |since| since.min(at)));
        };
        history.damage = read(directory, |told| match told {
            Told::Act(act) => {
                first(act.at, &mut history.since);
                let is_named = !matches!(act.code, ActCode::Pinned | ActCode::Unpinned);
                for key in &act.keys {
                    let known = names.entry(key.clone()).or_default();
                    known.extend(act.names.iter().filter(|_| is_named).cloned());
                }
            }
            Told::Run(run) => {
                first(run.first, &mut history.since);
                for (key, now, _) in run.images().into_iter().flatten() {
                    note_names(&mut names, key, now);
                }
                for outcome in run.outcomes {
                    note_names(&mut names, &outcome.key, &outcome.names);
                }
            }
            Told::Lost { at, count, .. } => {
                first(at, &mut history.since);
                history.lost += count;
            }
        })?;
        let wanted = Wanted::new(text);
        names.retain(|key, names| wanted.is(key, names));
        let mut images: BTreeMap<String, ImageHistory> = BTreeMap::new();
        for (key, names) in names {
            let names = names.into_iter().collect();
            images.insert(key.clone(), ImageHistory { key, names, ..ImageHistory::default() });
        }
        if !images.is_empty() {
            read(directory, |told| {
                for image in images.values_mut() {
                    image.hear(&told);
                }
            })?;
        }
        history.images = images.into_values().collect();
        Ok(history)
    }
}

fn note_names(names: &mut BTreeMap<String, BTreeSet<String>>, key: &str, now: &[String]) {
    match names.get_mut(key) {
        Some(known) => {
            for name in now {
                if !known.contains(name) {
                    known.insert(name.clone());
                }
            }
        }
        None => {
            names.insert(key.to_owned(), now.iter().cloned().collect());
        }
    }
}

/// What a person means by a text.
struct Wanted {
    text: String,
    /// As a name in full.
    canonical: Option<String>,
    /// As the beginning of an id or digest.
    digits: Option<String>,
}

impl Wanted {
    fn new(text: &str) -> Self {
        let text = text.trim();
        let bare = text.strip_prefix("sha256:").unwrap_or(text);
        let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        Self {
            text: text.to_owned(),
            canonical: text.parse::<Reference>().ok().map(|name| name.canonical().to_string()),
            digits: (bare.len() >= DIGITS_MIN && bare.bytes().all(is_hex)).then(|| bare.to_owned()),
        }
    }

    fn is(&self, key: &str, names: &BTreeSet<String>) -> bool {
        let id = key.split(',').next().unwrap_or(key);
        let begins = |digest: &str| {
            let bare = digest.strip_prefix("sha256:").unwrap_or(digest);
            self.digits.as_deref().is_some_and(|digits| bare.starts_with(digits))
        };
        key == self.text
            || id == self.text
            || begins(id)
            || names.iter().any(|name| {
                *name == self.text
                    || self.canonical.as_ref() == Some(name)
                    || name.split_once('@').is_some_and(|(_, digest)| begins(digest))
            })
    }
}

impl ImageHistory {
    fn hear(&mut self, told: &Told<'_>) {
        match told {
            Told::Act(act) if act.keys.contains(&self.key) => self.act(act),
            Told::Run(run) => self.run(run),
            Told::Act(_) | Told::Lost { .. } => {}
        }
    }

    fn act(&mut self, act: &Act) {
        if matches!(act.code, ActCode::Pulled | ActCode::Adopted) {
            self.end_removal();
        }
        match act.code {
            ActCode::Pulled | ActCode::Adopted => self.is_present = true,
            ActCode::RemovedOnRequest => self.is_present = false,
            ActCode::Removing => {
                if !self.is_present {
                    self.happenings.push(Happening::new(HappeningKind::Found, "found", act.at, ""));
                }
                self.is_present = true;
            }
            ActCode::UntaggedOnRequest | ActCode::Pinned | ActCode::Unpinned => {}
        }
        self.happenings.push(Happening {
            names: act.names.clone(),
            bytes: act.bytes,
            took_ms: act.took_ms,
            text: act.why.clone(),
            ..Happening::new(HappeningKind::Act(act.code), act.code.code(), act.at, &act.by)
        });
    }

    fn run(&mut self, run: &RunTold<'_>) {
        if let Some(is_listed) = run.lists(&self.key) {
            if is_listed && !self.is_present {
                self.happenings.push(Happening::new(HappeningKind::Found, "found", run.first, ""));
            }
            if !is_listed && self.end_removal() {
                self.is_present = false;
            }
            if !is_listed && self.is_present {
                self.happenings.push(Happening::new(HappeningKind::Gone, "gone_elsewhere", run.first, ""));
            }
            self.is_present = is_listed;
            let listed = run.images().into_iter().flatten().find(|(key, _, _)| *key == self.key);
            self.size = listed.map_or(self.size, |(_, _, size)| size);
        }
        let changed = run.changed.iter().find(|decision| decision.key == self.key);
        let decision = run.decision(&self.key).or(changed);
        if let Some(outcome) = run.outcomes.iter().find(|outcome| outcome.key == self.key) {
            // The collection lived to tell what came of it.
            let began = self.happenings.pop_if(|last| last.is_removing());
            let tried = self.tried(&outcome.result, Happening::decided(HappeningKind::Removed, decision, run));
            // What was decided is told once, and what it rests on moves on: the line before the removal has it as it was.
            self.happenings.push(match began {
                Some(began) if tried.kind == HappeningKind::Removed && !began.text.is_empty() => {
                    Happening { text: began.text, ..tried }
                }
                _ => tried,
            });
            return;
        }
        if let Some(decision) = decision {
            let kind = if decision.goes { HappeningKind::Chosen } else { HappeningKind::Kept };
            let happening = Happening::decided(kind, Some(decision), run);
            match self.happenings.last_mut() {
                Some(last) if last.is_same(&happening) => {
                    last.count += happening.count;
                    last.until = happening.until;
                }
                _ => self.happenings.push(happening),
            }
        }
    }
}

impl ImageHistory {
    /// A collection was about to remove it and never told what came of that, and it is gone: the removal was the last
    /// that was done. True: so it is.
    fn end_removal(&mut self) -> bool {
        let Some(last) = self.happenings.last_mut().filter(|last| last.is_removing()) else { return false };
        last.kind = HappeningKind::Removed;
        true
    }

    fn tried(&mut self, result: &OutcomeResult, happening: Happening) -> Happening {
        match result {
            OutcomeResult::Removed(bytes) => {
                self.is_present = false;
                Happening { bytes: Some(*bytes), ..happening }
            }
            OutcomeResult::Failed(error) => Happening { kind: HappeningKind::Failed, text: error.clone(), ..happening },
            OutcomeResult::Spared { code, text } => Happening {
                kind: HappeningKind::Spared,
                code: code.clone(),
                text: text.clone(),
                inputs: Value::Null,
                ..happening
            },
        }
    }
}

impl Happening {
    fn new(kind: HappeningKind, code: &str, at: SystemTime, by: &str) -> Self {
        Self {
            at,
            until: at,
            count: 1,
            kind,
            code: code.to_owned(),
            inputs: Value::Null,
            text: String::new(),
            by: by.to_owned(),
            names: Vec::new(),
            bytes: None,
            took_ms: None,
            shadow: false,
        }
    }

    fn decided(kind: HappeningKind, decision: Option<&Decision>, run: &RunTold<'_>) -> Self {
        let code = decision.map_or("", |decision| &decision.code);
        Self {
            until: run.head.at,
            count: run.count,
            inputs: decision.map_or(Value::Null, |decision| decision.inputs.clone()),
            text: decision.map_or_else(String::new, |decision| decision.text.clone()),
            shadow: run.head.shadow,
            ..Self::new(kind, code, run.first, &run.head.by)
        }
    }

    fn is_removing(&self) -> bool {
        self.kind == HappeningKind::Act(ActCode::Removing)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.code == other.code && self.shadow == other.shadow
    }
}
