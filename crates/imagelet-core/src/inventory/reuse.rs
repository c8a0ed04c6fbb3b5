//! What this node's images did so far: how many of those that lay idle for so long were used again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::history::{SPANS, Span, UseHistory};

/// Kinds of images that are counted apart: by returns so far, and whether a newer version is in use.
pub const KINDS: usize = KINDS_U8 as usize;
const KINDS_U8: u8 = 12;
/// When one kind has seen so many, the past is worth half: a node's workload changes.
const SEEN_MAX: u32 = 4096;

/// How images of each kind fared, by how long they had lain idle. The node's own experience, kept in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u8, u8, u32, u32)>", into = "Vec<(u8, u8, u32, u32)>")]
pub struct ReuseTable(Box<[[Seen; SPANS]; KINDS]>);

/// Images that lay idle until one span of time, and how many of them were used within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    idle: u32,
    used: u32,
}

/// Which kind of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u8);

impl Kind {
    /// Never used; used once; returned once, 2 or 3, 4 to 7 times, or more: each of the newest version or an older one.
    pub fn of(history: &UseHistory) -> Self {
        let experience = match (history.uses, history.returns) {
            (0, _) => 0,
            (_, 0) => 1,
            (_, 1) => 2,
            (_, 2..=3) => 3,
            (_, 4..=7) => 4,
            _ => 5,
        };
        Self(2 * experience + u8::from(history.superseded))
    }

    /// All there are, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..KINDS_U8).map(Self)
    }

    /// Its number, below [`KINDS`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Images of which a newer version is in use.
    pub fn is_superseded(self) -> bool {
        self.0 % 2 == 1
    }
}

impl ReuseTable {
    /// How many images of a kind lay idle until a span, and how many of them were used within it.
    pub fn seen(&self, kind: Kind, span: usize) -> (u32, u32) {
        let seen = self.0[kind.index()].get(span).copied().unwrap_or_default();
        (seen.idle, seen.used)
    }

    /// An image lay idle from one span into a later one.
    pub(super) fn idled(&mut self, kind: Kind, from: usize, until: usize) {
        for seen in &mut self.0[kind.index()][from.min(SPANS)..until.min(SPANS)] {
            seen.idle += 1;
        }
        self.age(kind);
    }

    /// An image was used after it had lain idle for so long. The spans before were counted already.
    pub(super) fn used(&mut self, kind: Kind, gap: Duration) {
        let seen = &mut self.0[kind.index()][Span::of(gap).index()];
        seen.idle += 1;
        seen.used += 1;
        self.age(kind);
    }

    fn age(&mut self, kind: Kind) {
        let kind = &mut self.0[kind.index()];
        if kind.iter().any(|seen| seen.idle > SEEN_MAX) {
            for seen in kind {
                *seen = Seen { idle: seen.idle / 2, used: seen.used / 2 };
            }
        }
    }
}

impl Default for ReuseTable {
    fn default() -> Self {
        Self(Box::new([[Seen::default(); SPANS]; KINDS]))
    }
}

impl From<Vec<(u8, u8, u32, u32)>> for ReuseTable {
    /// What a file says; what cannot be is cut.
    fn from(lines: Vec<(u8, u8, u32, u32)>) -> Self {
        let mut table = Self::default();
        for (kind, span, idle, used) in lines {
            if let Some(seen) = table.0.get_mut(usize::from(kind)).and_then(|kind| kind.get_mut(usize::from(span))) {
                let idle = idle.min(SEEN_MAX);
                *seen = Seen { idle, used: used.min(idle) };
            }
        }
        table
    }
}

impl From<ReuseTable> for Vec<(u8, u8, u32, u32)> {
    fn from(table: ReuseTable) -> Self {
        let kinds = (0_u8..).zip(*table.0);
        kinds
            .flat_map(|(kind, spans)| (0_u8..).zip(spans).map(move |(span, seen)| (kind, span, seen.idle, seen.used)))
            .filter(|(_, _, idle, _)| *idle > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experience_is_kept_apart_by_kind_and_age() {
        let mut table = ReuseTable::default();
        let cron = Kind::of(&UseHistory { uses: 9, returns: 8, ..UseHistory::default() });
        let old = Kind::of(&UseHistory { uses: 1, superseded: true, ..UseHistory::default() });
        assert_ne!(cron, old);
        let day = Span::of(Duration::from_hours(24)).index();
        table.idled(cron, 0, day);
        table.used(cron, Duration::from_hours(24));
        table.idled(old, 0, SPANS);
        assert_eq!((table.seen(cron, day), table.seen(cron, day - 1), table.seen(old, day)), ((1, 1), (1, 0), (1, 0)));
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<ReuseTable>(&text).unwrap(), table);
    }

    #[test]
    fn old_experience_fades_and_numbers_stay_small() {
        let mut table = ReuseTable::default();
        let kind = Kind::of(&UseHistory::default());
        for _ in 0..100_000 {
            table.used(kind, Duration::ZERO);
        }
        let (idle, used) = table.seen(kind, 0);
        assert!(idle <= SEEN_MAX && used <= idle && used > SEEN_MAX / 3);
        assert_eq!(
            serde_json::from_str::<ReuseTable>("[[200,3,1,1],[1,200,1,1],[0,0,1,9]]").unwrap().seen(kind, 0),
            (1, 1)
        );
    }
}
