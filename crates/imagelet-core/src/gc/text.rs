//! Numbers and errors as the kubelet's messages print them; alerts match on these texts.

pub(crate) use crate::text::{aggregate, duration_text};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn sizes_print_as_the_kubelet_prints_them() {
        let cases = vectors("gc-format-size.json");
        assert_eq!(cases.len(), 18);
        for case in cases {
            let (bytes, text) = (&case["input"]["bytes"], case["expected"]["text"].as_str().unwrap());
            match bytes.as_u64() {
                Some(bytes) => assert_eq!(size_text(bytes), text, "{}", case["name"]),
                // The one case of a size below zero: here no such size can be written down, and nothing prints as it does.
                None => assert_eq!((bytes.as_i64(), text), (Some(-1), "-1 B")),
            }
        }
    }

    #[test]
    fn equal_errors_are_told_once() {
        let texts = |errors: &[&str]| aggregate(&errors.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>());
        assert_eq!(texts(&["e", "e"]), "e");
        assert_eq!(texts(&["e1", "e2", "e1"]), "[e1, e2]");
    }
}
