//! Sharded locks: a fixed number of locks for any number of keys (`docs/spec/pull.md §8.8`).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The kubelet's number; more parallel pulls than this share locks.
const STRIPES_MAX: usize = 31;

#[derive(Debug)]
pub(super) struct ShardedLocks {
    locks: Vec<Mutex<()>>,
}

impl ShardedLocks {
    pub(super) fn new(wanted: i64) -> Self {
        let count = usize::try_from(wanted).unwrap_or_default().clamp(1, STRIPES_MAX);
        Self { locks: (0..count).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn one(&self, key: &str) -> MutexGuard<'_, ()> {
        self.locks[self.index(key)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all locks, always in the same order, so that two callers cannot deadlock.
    pub(super) fn all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.locks.iter().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    fn index(&self, key: &str) -> usize {
        fnv1(key) as usize % self.locks.len()
    }
}

/// 32-bit FNV-1, which multiplies before the XOR.
fn fnv1(key: &str) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    key.bytes().fold(OFFSET_BASIS, |hash, byte| hash.wrapping_mul(PRIME) ^ u32::from(byte))
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn every_vector_of_lock_stripes_holds() {
        let cases = vectors("pull-lock-stripes.json");
        for case in &cases {
            let stripes = ShardedLocks::new(case["input"]["requested"].as_i64().expect("a number"));
            let count = stripes.locks.len();
            assert_eq!(Some(count as u64), case["expected"]["stripes"].as_u64(), "{}", case["name"]);
            // Older kubelet releases index past their locks; here every key maps to a lock.
            for key in 0..1000 {
                drop(stripes.one(&key.to_string()));
            }
            assert_eq!(stripes.all().len(), count);
        }
        assert_eq!(cases.len(), 6);
    }

    #[test]
    fn every_key_of_the_filename_vectors_has_its_stripe() {
        let cases = vectors("pull-records-filename.json");
        for case in &cases {
            let key = case["input"]["key"].as_str().expect("a key");
            for (count, index) in case["expected"]["lock_stripe"].as_object().expect("stripes by count") {
                let stripes = ShardedLocks::new(count.parse().expect("a number"));
                assert_eq!(Some(stripes.index(key) as u64), index.as_u64(), "{key} of {count}");
            }
            let wide = u64::from(fnv1(key)) % 2_147_483_647;
            assert_eq!(Some(wide), case["expected"]["fnv1_32_mod_2147483647"].as_u64(), "{key}");
        }
        assert_eq!(cases.len(), 29);
    }
}
