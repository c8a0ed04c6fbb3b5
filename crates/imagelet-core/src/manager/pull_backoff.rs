//! The exponential back-off of failed keys (`docs/spec/pull.md §3`).

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

use crate::bounded_map::make_room;

/// The maximum number of keys. Above it, the oldest keys are dropped, which permits an earlier retry.
const KEYS_MAX: usize = 16_384;

/// One back-off window per key. Each failure doubles the window. A key expires after twice the longest window.
#[derive(Debug)]
pub(crate) struct Backoff<K> {
    first: Duration,
    max: Duration,
    keys: HashMap<K, BackoffEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackoffEntry {
    pub(crate) window: Duration,
    pub(crate) since: Instant,
    /// The text of the last error; empty during the next attempt.
    pub(crate) failure: String,
}

impl<K: Eq + Hash + Clone> Backoff<K> {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, keys: HashMap::new() }
    }

    /// The last failure of the key, if `now` is before the end of its back-off window.
    pub(crate) fn held(&self, key: &K, now: Instant) -> Option<&BackoffEntry> {
        self.keys.get(key).filter(|held| {
            let age = now.saturating_duration_since(held.since);
            !held.is_expired(self.max, now) && age < held.window
        })
    }

    pub(crate) fn advance(&mut self, key: K, failure: String, now: Instant) {
        let window = match self.keys.get(&key) {
            Some(held) if !held.is_expired(self.max, now) => held.window.saturating_mul(2).min(self.max),
            _ => self.first,
        };
        if self.keys.len() >= KEYS_MAX {
            self.forget_expired(now);
        }
        make_room(&mut self.keys, &key, KEYS_MAX, |held| held.since);
        self.keys.insert(key, BackoffEntry { window, since: now, failure });
    }

    pub(crate) fn begin(&mut self, key: &K) {
        if let Some(held) = self.keys.get_mut(key) {
            held.failure = String::new();
        }
    }

    pub(crate) fn forget(&mut self, key: &K) {
        self.keys.remove(key);
    }

    pub(crate) fn alike(&self, is_alike: impl Fn(&K) -> bool) -> Vec<K> {
        self.keys.keys().filter(|key| is_alike(key)).cloned().collect()
    }

    pub(crate) fn forget_expired(&mut self, now: Instant) {
        self.keys.retain(|_, held| !held.is_expired(self.max, now));
    }

    pub(crate) fn all_held(&self, now: Instant) -> impl Iterator<Item = (&K, &BackoffEntry)> {
        self.keys.iter().filter(move |(key, _)| self.held(key, now).is_some())
    }
}

impl BackoffEntry {
    fn is_expired(&self, window_max: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.since) > window_max.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

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
