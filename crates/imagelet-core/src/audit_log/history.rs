//! The recorded acts on the images that match a name, id or digest.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::Path,
};

use jiff::Timestamp;

use super::{
    files::read,
    record::{Act, ActCode, Line},
};
use crate::image::Reference;

/// The minimum number of digits of an id prefix. A shorter prefix matches no image.
const DIGITS_MIN: usize = 4;
const ACTS_MAX: usize = 100;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The matching images, sorted by key. Several images match if a name moved or an id prefix is ambiguous.
    pub images: Vec<ImageHistory>,
    /// The time of the oldest line in the log. `None`: the log is empty.
    pub since: Option<Timestamp>,
    pub lost: u64,
    /// The number of torn or unknown lines, which are skipped.
    pub damaged: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageHistory {
    /// The key of the image. Empty: the log has only failed pulls of this name.
    pub key: String,
    pub names: Vec<String>,
    /// The last acts, the oldest first.
    pub acts: Vec<Act>,
}

impl History {
    pub(super) fn of(directory: &Path, text: &str) -> io::Result<Self> {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let mut history = Self::default();
        history.damaged = read(directory, |line| {
            let at = match line {
                Line::Act(act) => {
                    for key in &act.keys {
                        let number = first.len();
                        first.entry(key.clone()).or_insert(number);
                        let known = names.entry(key.clone()).or_default();
                        // The names of a change of pins are patterns.
                        if !matches!(act.code, ActCode::Pinned | ActCode::Unpinned) {
                            known.extend(act.names.iter().cloned());
                        }
                    }
                    act.at
                }
                Line::Lost { at, count } => {
                    history.lost = history.lost.saturating_add(count);
                    at
                }
            };
            history.since = Some(history.since.map_or(at, |since| since.min(at)));
        })?;
        let wanted = Wanted::new(text);
        let is_wanted = names.iter().filter(|(key, names)| wanted.is(key, names));
        let mut images: BTreeMap<String, VecDeque<Act>> =
            is_wanted.map(|(key, _)| (key.clone(), VecDeque::new())).collect();
        let mut last: BTreeMap<String, Timestamp> = BTreeMap::new();
        read(directory, |line| {
            let Line::Act(act) = line else { return };
            if act.code.is_of_a_name() {
                // A failed pull belongs to the image with this name that has the latest earlier act. If no such image
                // has an earlier act, the pull belongs to the first image that got the name later.
                let named = names.iter().filter(|(_, of)| act.names.iter().any(|name| of.contains(name)));
                let owner = named.map(|(key, _)| key).max_by_key(|key| (last.get(*key), Reverse(first.get(*key))));
                let owner = owner.cloned().unwrap_or_default();
                if owner.is_empty() && wanted.names(&act.names) {
                    names.entry(owner.clone()).or_default().extend(act.names.iter().cloned());
                    images.entry(owner.clone()).or_default();
                }
                if let Some(acts) = images.get_mut(&owner) {
                    add(acts, act);
                }
                return;
            }
            for key in &act.keys {
                last.insert(key.clone(), act.at);
                if let Some(acts) = images.get_mut(key) {
                    add(acts, act.clone());
                }
            }
        })?;
        let image = |(key, acts): (String, VecDeque<Act>)| {
            let mut acts = Vec::from(acts);
            // Several processes write, so the lines may be out of order.
            acts.sort_by_key(|act| act.at);
            ImageHistory { names: names.remove(&key).unwrap_or_default().into_iter().collect(), key, acts }
        };
        history.images = images.into_iter().map(image).collect();
        Ok(history)
    }
}

fn add(acts: &mut VecDeque<Act>, act: Act) {
    if acts.len() == ACTS_MAX {
        acts.pop_front();
    }
    acts.push_back(act);
}

struct Wanted {
    text: String,
    canonical: Option<String>,
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
