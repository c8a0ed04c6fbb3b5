//! The vectors of when a collection begins, and how far it goes.

use super::*;
use crate::{
    disks::{Fullness, NoCapacity},
    testing::vectors,
};

#[test]
fn every_vector_of_thresholds_holds() {
    let cases = vectors("gc-thresholds.json");
    assert_eq!(cases.len(), 20);
    for case in cases {
        let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
        let number = |field: &str| input[field].as_u64();
        let percent = |field: &str| u8::try_from(number(field).unwrap()).unwrap();
        let (capacity, available) = (number("capacity_bytes"), number("available_bytes"));
        let mut found = serde_json::Map::new();
        found.insert("clamped".into(), Fullness::cuts(capacity.unwrap_or(0), available.unwrap_or(0)).into());
        if let Ok(full) = Fullness::of(capacity, available) {
            assert_eq!(found["clamped"], full.is_cut(), "{name}");
            let is_triggered = full.used_percent() >= percent("high_threshold_percent");
            found.insert("usage_percent".into(), full.used_percent().into());
            found.insert("triggered".into(), is_triggered.into());
            if is_triggered {
                let excess = i64::try_from(full.excess(percent("low_threshold_percent"))).unwrap();
                found.insert("amount_to_free".into(), excess.into());
            }
        } else {
            let error = GcError::NoCapacity;
            assert_eq!(error.to_string(), NoCapacity.to_string());
            let event = error.event().unwrap();
            found.insert("error".into(), error.to_string().into());
            found.insert("event".into(), format!("Warning {} {}", event.reason, event.message).into());
        }
        assert_eq!(serde_json::Value::from(found), *expected, "{name}");
    }
}
