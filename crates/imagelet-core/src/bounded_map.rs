//! Maps with a limit: a full map removes its earliest entry.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// Makes room for a new key: if the map has `max` entries, removes the entry with the earliest `time`.
pub fn make_room<K: Clone + Eq + Hash, V, S: BuildHasher, T: Ord>(
    map: &mut HashMap<K, V, S>,
    key: &K,
    max: usize,
    time: impl Fn(&V) -> T,
) {
    while map.len() >= max && !map.contains_key(key) {
        let earliest = map.iter().min_by_key(|(_, entry)| time(entry)).map(|(key, _)| key.clone());
        let Some(earliest) = earliest else { return };
        map.remove(&earliest);
    }
}
