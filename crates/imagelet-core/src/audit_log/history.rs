//! What happened to one image, read from the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use serde_json::Value;

use super::{
    files::{Damage, read},
    record::{Act, ActCode, Decision, Line, Outcome, OutcomeResult, PullHost, Run, RunHead},
};
use crate::image::Reference;

/// Shorter id prefixes match nothing.
const DIGITS_MIN: usize = 4;

/// The log's entries on the matching images.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Histories by key; several where a name moved or an id prefix is ambiguous.
    pub images: Vec<ImageHistory>,
    /// Time of the oldest remaining line; `None` for an empty log.
    pub since: Option<SystemTime>,
    /// Acts and collections that did not reach the disk.
    pub lost: u64,
    /// Lines and files that could not be read.
    pub damage: Damage,
}

/// The log's entries on one image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageHistory {
    /// The image's key; empty where only failed pulls of a name are recorded.
    pub key: String,
    /// All names the image had.
    pub names: Vec<String>,
    /// The last listed size.
    pub size: u64,
    /// Whether the last recorded collection listed the image.
    pub is_present: bool,
    /// Events, oldest first.
    pub happenings: Vec<Happening>,
}

/// An act on an image, or a decision about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// Time of the first occurrence.
    pub at: SystemTime,
    /// Time of the last identical decision.
    pub until: SystemTime,
    /// Number of consecutive occurrences.
    pub count: u64,
    /// Kind of the event.
    pub kind: HappeningKind,
    /// The stable code of the reason.
    pub code: String,
    /// The inputs of the reason.
    pub inputs: Value,
    /// The reason as text, if any.
    pub text: String,
    /// The requester.
    pub by: String,
    /// Names concerned, if any.
    pub names: Vec<String>,
    /// Bytes, where known.
    pub bytes: Option<u64>,
    /// Duration in milliseconds.
    pub took_ms: Option<u64>,
    /// Decided in shadow mode, without effect.
    pub shadow: bool,
    /// Of a pull: what each host sent.
    pub hosts: Vec<PullHost>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HappeningKind {
    /// A recorded act.
    Act(ActCode),
    /// A collection found the image without a recorded pull.
    Found,
    /// A collection kept the image.
    Kept,
    /// A collection selected the image for removal; the result follows, except in shadow mode.
    Chosen,
    /// A collection removed the image.
    Removed,
    /// A collection failed to remove the image.
    Failed,
    /// A check prevented a planned removal.
    Spared,
    /// A collection no longer found the image, and no removal is recorded.
    Gone,
}

impl History {
    pub(super) fn of(directory: &Path, text: &str) -> io::Result<Self> {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut history = Self::default();
        history.damage = read(directory, |_, line| {
            let at = match line {
                Line::Act(act) => {
                    let is_named = !matches!(act.code, ActCode::Pinned | ActCode::Unpinned);
                    for key in &act.keys {
                        note_names(&mut names, key, if is_named { &act.names } else { &[] });
                    }
                    act.at
                }
                Line::Run(run) => {
                    let decided = run.decisions.iter().map(|it| (&it.key, &it.names));
                    for (key, now) in decided.chain(run.outcomes.iter().map(|it| (&it.key, &it.names))) {
                        note_names(&mut names, key, now);
                    }
                    history.lost = history.lost.saturating_add(run.left_out);
                    run.head.at
                }
                Line::Lost(lost) => {
                    history.lost = history.lost.saturating_add(lost.count);
                    lost.at
                }
            };
            history.since = Some(history.since.map_or(at, |since| since.min(at)));
        })?;
        let wanted = Wanted::new(text);
        names.retain(|key, names| wanted.is(key, names));
        let mut attempts = Vec::new();
        let mut facts: BTreeMap<String, Facts> = names.keys().map(|key| (key.clone(), Facts::default())).collect();
        read(directory, |_, line| match line {
            Line::Act(act) if act.is_of_a_name() => {
                let is_of_an_image = names.values().any(|names| act.names.iter().any(|name| names.contains(name)));
                if is_of_an_image || wanted.names(&act.names) {
                    attempts.push(act);
                }
            }
            Line::Act(act) => {
                for key in &act.keys {
                    if let Some(facts) = facts.get_mut(key) {
                        facts.0.push(Fact::of_act(act.clone()));
                    }
                }
            }
            Line::Run(run) => facts.iter_mut().for_each(|(key, facts)| facts.run(key, &run)),
            Line::Lost(_) => {}
        })?;
        for act in attempts {
            // A failed pull belongs to the image that had the name last.
            let has_it =
                |key: &str| names.get(key).is_some_and(|names| act.names.iter().any(|name| names.contains(name)));
            let named = facts.iter().filter(|(key, _)| has_it(key));
            let last = named.max_by_key(|(_, facts)| facts.last_at()).map_or_else(String::new, |(key, _)| key.clone());
            if last.is_empty() {
                note_names(&mut names, "", &act.names);
            }
            facts.entry(last).or_default().0.push(Fact::of_act(act));
        }
        history.images = facts
            .into_iter()
            .map(|(key, facts)| {
                let names = names.remove(&key).unwrap_or_default().into_iter().collect();
                ImageHistory { key, names, ..facts.story() }
            })
            .collect();
        Ok(history)
    }
}

fn note_names(names: &mut BTreeMap<String, BTreeSet<String>>, key: &str, now: &[String]) {
    names.entry(key.to_owned()).or_default().extend(now.iter().cloned());
}

struct Wanted {
    text: String,
    /// The text as a full name.
    canonical: Option<String>,
    /// The text as an id or digest prefix.
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
            || self.names(names)
            || names.iter().any(|name| name.split_once('@').is_some_and(|(_, digest)| begins(digest)))
    }

    fn names<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> bool {
        names.into_iter().any(|name| *name == self.text || self.canonical.as_ref() == Some(name))
    }
}

/// The facts about one image in written order.
#[derive(Debug, Default)]
struct Facts(Vec<Fact>);

#[derive(Debug)]
struct Fact {
    at: SystemTime,
    /// The end of the recording collection.
    until: SystemTime,
    by: String,
    shadow: bool,
    kind: FactKind,
}

#[derive(Debug)]
enum FactKind {
    Act(Act),
    /// A collection listed it, or does not mention it. `None`: the previous decision, if it was listed then.
    Listed {
        decision: Option<Decision>,
        /// The collection recorded the outcome of its removal, too.
        is_tried: bool,
    },
    /// A collection attempted its removal, for the reason recorded before.
    Tried(Outcome, String),
    /// A collection no longer listed it.
    Gone,
}

impl Fact {
    fn of_act(act: Act) -> Self {
        Self { at: act.at, until: act.at, by: act.by.clone(), shadow: false, kind: FactKind::Act(act) }
    }

    fn of_run(run: &Run, kind: FactKind) -> Self {
        let RunHead { at, until, ref by, shadow, .. } = run.head;
        Self { at, until, by: by.clone(), shadow, kind }
    }

    fn is_removing(&self) -> bool {
        matches!(&self.kind, FactKind::Act(act) if act.code == ActCode::Removing)
    }
}

impl Facts {
    fn last_at(&self) -> Option<SystemTime> {
        let mentions = self.0.iter().filter(|fact| !matches!(fact.kind, FactKind::Listed { decision: None, .. }));
        mentions.map(|fact| fact.until).max()
    }

    fn run(&mut self, key: &str, run: &Run) {
        if run.gone.iter().any(|gone| gone == key) {
            self.0.push(Fact::of_run(run, FactKind::Gone));
            return;
        }
        let decision = run.decisions.iter().find(|decision| decision.key == key).cloned();
        let outcome = run.outcomes.iter().find(|outcome| outcome.key == key).cloned();
        let is_tried = outcome.is_some();
        self.0.push(Fact::of_run(run, FactKind::Listed { decision, is_tried }));
        let Some(outcome) = outcome else { return };
        // The act before the removal recorded its time and reason.
        let before = self.0.iter().rposition(Fact::is_removing);
        let before = before.filter(|_| !matches!(outcome.result, OutcomeResult::Spared { .. }));
        let (at, why) = match before.map(|place| self.0.remove(place)) {
            Some(Fact { at, kind: FactKind::Act(act), .. }) => (at, act.why),
            _ => (run.head.at, String::new()),
        };
        let kind = FactKind::Tried(outcome, why);
        self.0.push(Fact { at, ..Fact::of_run(run, kind) });
    }

    fn story(mut self) -> ImageHistory {
        self.0.sort_by_key(|fact| fact.at);
        let mut story = Story::default();
        for fact in &self.0 {
            story.take(fact);
        }
        story.attribute();
        story.image
    }
}

#[derive(Debug, Default)]
struct Story {
    image: ImageHistory,
    standing: Option<Decision>,
}

impl Story {
    fn take(&mut self, fact: &Fact) {
        match &fact.kind {
            FactKind::Act(act) => self.act(act),
            FactKind::Listed { decision: None, is_tried: true } => {}
            FactKind::Listed { decision, is_tried } => {
                let Some(decision) = decision.clone().or_else(|| self.standing.take()) else { return };
                self.found(fact.at, fact.until);
                self.image.size = decision.size;
                if !is_tried {
                    self.decided(&decision, fact);
                }
                self.standing = Some(decision);
            }
            FactKind::Tried(outcome, why) => self.tried(outcome, why, fact),
            FactKind::Gone => {
                self.standing = None;
                if std::mem::take(&mut self.image.is_present) && !self.end_removal() {
                    self.image.happenings.push(Happening::of(HappeningKind::Gone, "gone_elsewhere", fact));
                }
            }
        }
    }

    fn act(&mut self, act: &Act) {
        if act.code == ActCode::Removing {
            self.found(act.at, act.at);
        } else if act.code.shows_presence() {
            self.end_removal();
            self.image.is_present = true;
        } else if act.code == ActCode::RemovedOnRequest {
            self.image.is_present = false;
        }
        let is_repeatable = |last: &Happening| act.is_of_a_name() && last.text == act.why;
        self.add(Happening::of_act(act), is_repeatable);
    }

    /// The image is listed, and no pull of it is recorded.
    fn found(&mut self, at: SystemTime, until: SystemTime) {
        if !std::mem::replace(&mut self.image.is_present, true) {
            let found = Happening::new(HappeningKind::Found, "found", at, "");
            self.image.happenings.push(Happening { until, ..found });
        }
    }

    fn decided(&mut self, decision: &Decision, fact: &Fact) {
        let kind = if decision.goes { HappeningKind::Chosen } else { HappeningKind::Kept };
        self.add(Happening::decided(kind, Some(decision), fact), |_| true);
    }

    /// Adds a happening, or counts it where it repeats the last one.
    fn add(&mut self, happening: Happening, is_repeatable: impl FnOnce(&Happening) -> bool) {
        match self.image.happenings.last_mut() {
            Some(last) if last.is_same(&happening) && is_repeatable(last) => {
                last.count += 1;
                last.until = happening.at;
            }
            _ => self.image.happenings.push(happening),
        }
    }

    fn tried(&mut self, outcome: &Outcome, why: &str, fact: &Fact) {
        let decision = self.standing.clone();
        let happening = Happening::decided(HappeningKind::Removed, decision.as_ref(), fact);
        self.image.happenings.push(match &outcome.result {
            OutcomeResult::Removed(bytes) => {
                (self.image.is_present, self.standing) = (false, None);
                // The inputs change; the reason stays as it was when the removal started.
                let text = if why.is_empty() { happening.text } else { why.to_owned() };
                Happening { bytes: Some(*bytes), text, ..happening }
            }
            OutcomeResult::Failed(error) => Happening { kind: HappeningKind::Failed, text: error.clone(), ..happening },
            OutcomeResult::Spared { code, text } => Happening {
                kind: HappeningKind::Spared,
                code: code.clone(),
                text: text.clone(),
                inputs: Value::Null,
                ..happening
            },
        });
    }

    /// An absent image whose removal started without a recorded outcome was removed by that collection. Returns whether
    /// this applies.
    fn end_removal(&mut self) -> bool {
        let Some(last) = self.image.happenings.last_mut().filter(|last| last.is_removing()) else { return false };
        last.kind = HappeningKind::Removed;
        true
    }

    /// A collection may list images shortly before the act that added or removed one is recorded. That act then
    /// explains the listing, and no second event is added.
    fn attribute(&mut self) {
        let happenings = &mut self.image.happenings;
        let mut place = 0;
        while place < happenings.len() {
            let (kind, seen) = (happenings[place].kind, happenings[place].until);
            let next = happenings.iter().skip(place + 1).position(|next| next.kind != HappeningKind::Kept);
            let next = next.map(|after| place + 1 + after);
            let cause = next.filter(|next| match (kind, happenings[*next].kind) {
                (HappeningKind::Found, HappeningKind::Act(ActCode::Pulled | ActCode::Imported)) => {
                    let Happening { at, took_ms, .. } = happenings[*next];
                    at.checked_sub(Duration::from_millis(took_ms.unwrap_or(0))).is_some_and(|began| began <= seen)
                }
                (HappeningKind::Gone, HappeningKind::Removed | HappeningKind::Act(ActCode::RemovedOnRequest)) => true,
                _ => false,
            });
            if let Some(cause) = cause {
                let cause = happenings.remove(cause);
                for later in &mut happenings[place + 1..] {
                    (later.at, later.until) = (later.at.max(cause.at), later.until.max(cause.at));
                }
                happenings[place] = cause;
            }
            place += 1;
        }
    }
}

impl Happening {
    pub(super) fn new(kind: HappeningKind, code: &str, at: SystemTime, by: &str) -> Self {
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
            hosts: Vec::new(),
        }
    }

    pub(super) fn of_act(act: &Act) -> Self {
        Self {
            names: act.names.clone(),
            bytes: act.bytes,
            took_ms: act.took_ms,
            text: act.why.clone(),
            hosts: act.hosts.clone(),
            ..Self::new(HappeningKind::Act(act.code), act.code.code(), act.at, &act.by)
        }
    }

    fn of(kind: HappeningKind, code: &str, fact: &Fact) -> Self {
        Self { until: fact.until, ..Self::new(kind, code, fact.at, &fact.by) }
    }

    fn decided(kind: HappeningKind, decision: Option<&Decision>, fact: &Fact) -> Self {
        let code = decision.map_or("", |decision| &decision.code);
        Self {
            inputs: decision.map_or(Value::Null, |decision| decision.inputs.clone()),
            text: decision.map_or_else(String::new, |decision| decision.text.clone()),
            shadow: fact.shadow,
            ..Self::new(kind, code, fact.at, &fact.by)
        }
    }

    fn is_removing(&self) -> bool {
        self.kind == HappeningKind::Act(ActCode::Removing)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.code == other.code && self.shadow == other.shadow
    }
}
