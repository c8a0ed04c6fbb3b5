//! Sums the measured usage of each store's file system (`docs/spec/cri.md §5.7`).

use std::{collections::BTreeMap, path::PathBuf, time::SystemTime};

use super::FilesystemUsage;
use crate::image::ByteSize;

/// A measurement in one store: a layer, a snapshot, or the whole store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreMeasure {
    /// The store's name.
    pub store: String,
    /// Its bytes.
    pub bytes: ByteSize,
    /// Its inodes.
    pub inodes: u64,
    /// The time of the measurement.
    pub at: SystemTime,
}

impl FilesystemUsage {
    /// The usage of an empty store.
    pub fn nothing(mountpoint: PathBuf, now: SystemTime) -> Self {
        Self { measured_at: now, mountpoint, used: ByteSize::ZERO, inodes_used: Some(0) }
    }

    /// One entry per store, the default store first, even if empty: callers read the first entry only.
    ///
    /// An entry has the time of its oldest measurement. A time that the wire cannot represent is replaced by now.
    pub fn by_store(
        default: &str,
        roots: &BTreeMap<String, PathBuf>,
        measures: &[StoreMeasure],
        now: SystemTime,
    ) -> Vec<Self> {
        let others = roots.keys().map(String::as_str).filter(|store| *store != default);
        let sum = |store: &str| {
            let place = roots.get(store).cloned().unwrap_or_default();
            let of_store = measures.iter().filter(|measure| measure.store == store);
            of_store
                .fold(None, |sum: Option<Self>, measure| {
                    let at = if measure.at > SystemTime::UNIX_EPOCH { measure.at } else { now };
                    let sum = sum.unwrap_or_else(|| Self::nothing(place.clone(), at));
                    Some(Self {
                        measured_at: sum.measured_at.min(at),
                        used: ByteSize(sum.used.0.saturating_add(measure.bytes.0)),
                        inodes_used: sum.inodes_used.map(|inodes| inodes.saturating_add(measure.inodes)),
                        mountpoint: sum.mountpoint,
                    })
                })
                .unwrap_or_else(|| Self::nothing(place, now))
        };
        std::iter::once(default).chain(others).map(sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use imagelet_vectors::vectors;

    use super::*;

    fn at(nanoseconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
    }

    #[test]
    fn stores_are_summed_up_as_the_vectors_say() {
        let cases = vectors("cri-imagefs-info.json");
        assert_eq!(cases.len(), 1);
        for case in cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            let number = |value: &serde_json::Value| value.as_u64().unwrap();
            let roots = serde_json::from_value(input["roots"].clone()).unwrap();
            let measures = input["snapshots"].as_array().unwrap().iter().map(|snapshot| StoreMeasure {
                store: snapshot["snapshotter"].as_str().unwrap().to_owned(),
                bytes: ByteSize(number(&snapshot["size"])),
                inodes: number(&snapshot["inodes"]),
                at: at(number(&snapshot["timestamp"])),
            });
            let measures: Vec<StoreMeasure> = measures.collect();
            let now = at(1_000_000);
            let default = input["default_snapshotter"].as_str().unwrap();
            let entries = FilesystemUsage::by_store(default, &roots, &measures, now);
            assert_eq!(entries.len() as u64, number(&expected["entry_count"]));
            assert_eq!(entries[0], FilesystemUsage::nothing(PathBuf::new(), now), "the default store holds nothing");
            let wanted = &expected["entry_1"];
            let wanted = FilesystemUsage {
                measured_at: at(number(&wanted["timestamp"])),
                mountpoint: wanted["mountpoint"].as_str().unwrap().into(),
                used: ByteSize(number(&wanted["used_bytes"])),
                inodes_used: Some(number(&wanted["inodes_used"])),
            };
            assert_eq!(entries[1], wanted);
        }
    }

    #[test]
    fn the_default_store_comes_first_and_each_store_once() {
        let roots = BTreeMap::from(["a", "b", "c"].map(|store| (store.to_owned(), PathBuf::from(format!("/{store}")))));
        let measure = |store: &str, bytes, time| StoreMeasure {
            store: store.to_owned(),
            bytes: ByteSize(bytes),
            inodes: u64::MAX,
            at: at(time),
        };
        let measures = [measure("b", 7, 5), measure("b", u64::MAX, 9), measure("a", 1, 0), measure("unknown", 1, 1)];
        let entries = FilesystemUsage::by_store("b", &roots, &measures, at(10));
        let told: Vec<_> =
            entries.iter().map(|entry| (entry.mountpoint.to_str().unwrap(), entry.used.0, entry.measured_at)).collect();
        assert_eq!(told, [("/b", u64::MAX, at(5)), ("/a", 1, at(10)), ("/c", 0, at(10))]);
        assert_eq!(entries[0].inodes_used, Some(u64::MAX));
    }
}
