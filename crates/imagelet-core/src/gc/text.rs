//! Numbers and errors as the kubelet's messages print them; alerts match on these texts.

use std::time::Duration;

/// A duration in Go's text form: `2m0s`, `1.5ms`.
pub(crate) fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let fraction = |value: u128, scale: u128, places: usize, unit: &str| {
        let rest = value % scale;
        let text = format!("{rest:0places$}");
        let text = text.trim_end_matches('0');
        if text.is_empty() { format!("{}{unit}", value / scale) } else { format!("{}.{text}{unit}", value / scale) }
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => fraction(nanos, 1_000, 3, "µs"),
        1_000_000..1_000_000_000 => fraction(nanos, 1_000_000, 6, "ms"),
        _ => {
            let seconds = nanos / 1_000_000_000;
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            let rest = fraction(nanos - (seconds - seconds % 60) * 1_000_000_000, 1_000_000_000, 9, "s");
            match (hours, minutes) {
                (0, 0) => rest,
                (0, _) => format!("{minutes}m{rest}"),
                _ => format!("{hours}h{minutes}m{rest}"),
            }
        }
    }
}

/// A size with one decimal in binary units, TiB the largest.
pub(crate) fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Several error texts as one: equal ones once, brackets only around more than one.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for error in errors {
        if !unique.contains(&error.as_str()) {
            unique.push(error);
        }
    }
    match unique.as_slice() {
        [only] => (*only).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn durations_print_as_the_kubelet_prints_them() {
        for case in vectors("gc-duration-text.json") {
            let nanos = case["input"]["nanoseconds"].as_i64().unwrap();
            let sign = if nanos < 0 { "-" } else { "" };
            let text = format!("{sign}{}", duration_text(Duration::from_nanos(nanos.unsigned_abs())));
            assert_eq!(text, case["expected"]["text"].as_str().unwrap(), "{}", case["name"]);
        }
    }

    #[test]
    fn sizes_print_as_the_kubelet_prints_them() {
        for case in vectors("gc-format-size.json") {
            // A negative size cannot be written down here.
            let Some(bytes) = case["input"]["bytes"].as_u64() else { continue };
            assert_eq!(size_text(bytes), case["expected"]["text"].as_str().unwrap(), "{}", case["name"]);
        }
    }

    #[test]
    fn equal_errors_are_told_once() {
        let texts = |errors: &[&str]| aggregate(&errors.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>());
        assert_eq!(texts(&["e", "e"]), "e");
        assert_eq!(texts(&["e1", "e2", "e1"]), "[e1, e2]");
    }
}
