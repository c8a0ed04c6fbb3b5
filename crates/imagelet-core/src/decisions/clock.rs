//! Moments that move with every pass, taken out of what is compared.
//!
//! An image in use was last used "now", in every pass anew. Told as a time, that is a change of a hundred images every
//! five minutes; told as "at the first clock", it is none.

use serde_json::{Map, Value};

const MARK: &str = "@clock";

/// Puts the place of a clock where its value stands.
pub(super) fn hide(value: &mut Value, clocks: &[Value]) {
    if let Some(place) = clocks.iter().position(|clock| clock == value && !value.is_null()) {
        *value = Value::Object(Map::from_iter([(MARK.to_owned(), Value::from(place))]));
        return;
    }
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| hide(value, clocks)),
        Value::Object(values) => values.values_mut().for_each(|value| hide(value, clocks)),
        _ => {}
    }
}

/// Puts the clocks' values back.
pub(super) fn show(value: &mut Value, clocks: &[Value]) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| show(value, clocks)),
        Value::Object(values) => {
            let place = if values.len() == 1 { values.get(MARK).and_then(Value::as_u64) } else { None };
            match place.and_then(|place| clocks.get(usize::try_from(place).ok()?)) {
                Some(clock) => *value = clock.clone(),
                None => values.values_mut().for_each(|value| show(value, clocks)),
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_moment_of_now_is_no_change_and_comes_back() {
        let fact = |now: u64| json!({"used": {"secs": now, "nanos": 5}, "seen": {"secs": 1, "nanos": 0}, "n": null});
        let clocks = |now: u64| [json!({"secs": now, "nanos": 5}), Value::Null];
        let (mut before, mut after) = (fact(10), fact(20));
        hide(&mut before, &clocks(10));
        hide(&mut after, &clocks(20));
        assert_eq!(before, after);
        show(&mut after, &clocks(20));
        assert_eq!(after, fact(20));
    }
}
