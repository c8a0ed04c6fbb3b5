//! How long a key that failed is held back (`docs/spec/pull.md §3`).

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Most keys remembered. A node has some hundred pods; past this the oldest keys are forgotten, which only means
/// that they may be tried again sooner.
const KEYS_MAX: usize = 16_384;

/// Windows that double with each failure, per key, and are forgotten after twice the longest.
#[derive(Debug)]
pub(crate) struct Backoff<K> {
    first: Duration,
    max: Duration,
    keys: HashMap<K, BackoffEntry>,
}

/// A key that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackoffEntry {
    /// How long it is held back.
    pub(crate) window: Duration,
    /// Since when.
    pub(crate) since: Instant,
    /// Why it failed; empty once the next try began.
    pub(crate) failure: String,
}

impl<K: Eq + Hash + Clone> Backoff<K> {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, keys: HashMap::new() }
    }

    /// The key's failure, while it is held back. At exactly the end of its window it is free.
    pub(crate) fn held(&self, key: &K, now: Instant) -> Option<&BackoffEntry> {
        self.keys.get(key).filter(|held| {
            let age = now.saturating_duration_since(held.since);
            !self.expired(held, now) && age < held.window
        })
    }

    /// Starts or doubles the key's window.
    pub(crate) fn advance(&mut self, key: K, failure: String, now: Instant) {
        let window = match self.keys.get(&key) {
            Some(held) if !self.expired(held, now) => held.window.saturating_mul(2).min(self.max),
            _ => self.first,
        };
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&key) {
            self.make_room(now);
        }
        self.keys.insert(key, BackoffEntry { window, since: now, failure });
    }

    /// Forgets why the key failed: a new try begins.
    pub(crate) fn begin(&mut self, key: &K) {
        if let Some(held) = self.keys.get_mut(key) {
            held.failure = String::new();
        }
    }

    /// Forgets the key: it succeeded.
    pub(crate) fn forget(&mut self, key: &K) {
        self.keys.remove(key);
    }

    /// The keys of this kind that failed.
    pub(crate) fn alike(&self, is_alike: impl Fn(&K) -> bool) -> Vec<K> {
        self.keys.keys().filter(|key| is_alike(key)).cloned().collect()
    }

    /// Forgets what is older than twice the longest window.
    pub(crate) fn forget_expired(&mut self, now: Instant) {
        let max = self.max;
        self.keys.retain(|_, held| !is_expired(held, max, now));
    }

    /// All keys that are held back now.
    pub(crate) fn all_held(&self, now: Instant) -> impl Iterator<Item = (&K, &BackoffEntry)> {
        self.keys.iter().filter(move |(key, _)| self.held(key, now).is_some())
    }

    fn expired(&self, held: &BackoffEntry, now: Instant) -> bool {
        is_expired(held, self.max, now)
    }

    fn make_room(&mut self, now: Instant) {
        self.forget_expired(now);
        if self.keys.len() >= KEYS_MAX
            && let Some(oldest) = self.keys.iter().min_by_key(|(_, held)| held.since).map(|(key, _)| key.clone())
        {
            self.keys.remove(&oldest);
        }
    }
}

fn is_expired(held: &BackoffEntry, max: Duration, now: Instant) -> bool {
    now.saturating_duration_since(held.since) > max.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn every_backoff_vector_holds() {
        let mut cases = 0;
        for case in vectors("pull-backoff.json") {
            let input = &case["input"];
            let milliseconds = |value: &serde_json::Value| Duration::from_millis(value.as_u64().expect("a number"));
            let mut backoff = Backoff::new(milliseconds(&input["initial_ms"]), milliseconds(&input["max_ms"]));
            let start = Instant::now();
            let operations = input["ops"].as_array().expect("operations");
            let results = case["expected"]["results"].as_array().expect("results");
            assert_eq!(operations.len(), results.len());
            for (operation, expected) in operations.iter().zip(results) {
                let now = start + milliseconds(&operation["t_ms"]);
                match operation["op"].as_str().expect("an operation") {
                    "get" => {}
                    "next" => backoff.advance("key", String::new(), now),
                    "in_backoff_since_update" => {
                        let held = backoff.held(&"key", now).is_some();
                        assert_eq!(Some(held), expected["expect"].as_bool(), "{}: {operation}", case["name"]);
                    }
                    "gc" => backoff.forget_expired(now),
                    "reset" => drop(backoff.keys.remove("key")),
                    other => panic!("unknown operation {other}"),
                }
                let window = backoff.keys.get("key").map_or(Duration::ZERO, |held| held.window);
                assert_eq!(window, milliseconds(&expected["backoff_ms_after"]), "{}: {operation}", case["name"]);
            }
            cases += 1;
        }
        assert_eq!(cases, 8);
    }

    #[test]
    fn keys_are_bounded_and_the_oldest_goes_first() {
        let mut backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(5));
        let start = Instant::now();
        for key in 0..=KEYS_MAX {
            backoff.advance(key, String::new(), start + Duration::from_nanos(key as u64));
        }
        assert_eq!(backoff.keys.len(), KEYS_MAX);
        assert!(backoff.held(&0, start).is_none());
    }
}
