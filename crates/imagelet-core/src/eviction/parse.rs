//! Thresholds from the texts of a configuration, refused in the kubelet's words.

use std::time::Duration;

use super::{Amount, Quantity, QuantityError, Signal, SignalTexts, Threshold, ThresholdError};
use crate::text::{DurationError, GoDuration, quoted};

/// The four maps of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct ThresholdTexts<'a> {
    /// `evictionHard`
    pub hard: &'a SignalTexts,
    /// `evictionSoft`
    pub soft: &'a SignalTexts,
    /// `evictionSoftGracePeriod`
    pub soft_grace: &'a SignalTexts,
    /// `evictionMinimumReclaim`
    pub reclaim_min: &'a SignalTexts,
}

/// The kubelet's default `evictionHard` on Linux.
pub fn defaults() -> SignalTexts {
    [
        (Signal::MemoryAvailable, "100Mi"),
        (Signal::NodefsAvailable, "10%"),
        (Signal::NodefsInodesFree, "5%"),
        (Signal::ImagefsAvailable, "15%"),
        (Signal::ImagefsInodesFree, "5%"),
    ]
    .into_iter()
    .map(|(signal, text)| (signal.name().to_owned(), text.to_owned()))
    .collect()
}

/// Parses all thresholds: hard ones first, then soft ones, each by signal.
///
/// # Errors
/// The first broken rule. The kubelet reports any of several; here the order is fixed.
pub fn thresholds(texts: ThresholdTexts<'_>) -> Result<Vec<Threshold>, ThresholdError> {
    let mut all = statements(texts.hard)?;
    let mut soft = statements(texts.soft)?;
    let graces = by_signal(texts.soft_grace, |_, text| grace(text))?;
    let reclaims = by_signal(texts.reclaim_min, reclaim_min)?;
    for threshold in &mut soft {
        let grace = graces.iter().find(|(signal, _)| *signal == threshold.signal);
        let missing = || format!("grace period must be specified for the soft eviction threshold {}", threshold.signal);
        let (_, grace) = grace.ok_or_else(|| ThresholdError(missing()))?;
        // A soft threshold with a grace period of zero is hard.
        threshold.grace = Some(*grace).filter(|grace| !grace.is_zero());
    }
    all.append(&mut soft);
    for threshold in &mut all {
        let reclaim = reclaims.iter().find(|(signal, _)| *signal == threshold.signal);
        threshold.reclaim_min = reclaim.map(|(_, amount)| *amount);
    }
    Ok(all)
}

fn by_signal<T>(
    texts: &SignalTexts,
    read: impl Fn(Signal, &str) -> Result<T, ThresholdError>,
) -> Result<Vec<(Signal, T)>, ThresholdError> {
    texts
        .iter()
        .map(|(name, text)| {
            let signal: Signal = name.parse()?;
            Ok((signal, read(signal, text)?))
        })
        .collect()
}

fn statements(texts: &SignalTexts) -> Result<Vec<Threshold>, ThresholdError> {
    let read = by_signal(texts, value)?;
    let threshold = |(signal, value): (Signal, Option<Amount>)| {
        value.map(|value| Threshold { signal, value, grace: None, reclaim_min: None })
    };
    Ok(read.into_iter().filter_map(threshold).collect())
}

/// `None`: the text disables the threshold.
fn value(signal: Signal, text: &str) -> Result<Option<Amount>, ThresholdError> {
    if !text.ends_with('%') {
        let quantity = quantity(text)?;
        return if quantity.nanos() > 0 {
            Ok(Some(Amount::Quantity(quantity)))
        } else {
            Err(ThresholdError(format!("eviction threshold {signal} must be positive: {quantity}")))
        };
    }
    if matches!(text, "0%" | "100%") {
        return Ok(None);
    }
    let fraction = percentage(text)?;
    let bound = match fraction {
        below if below < 0.0 => ">= 0%",
        above if above > 1.0 => "<= 100%",
        fraction => return Ok(Some(Amount::Fraction(fraction))),
    };
    Err(ThresholdError(format!("eviction percentage threshold {signal} must be {bound}: {text}")))
}

fn reclaim_min(signal: Signal, text: &str) -> Result<Amount, ThresholdError> {
    if !text.ends_with('%') {
        let quantity = quantity(text)?;
        return if quantity.nanos() < 0 {
            Err(ThresholdError(format!("negative eviction minimum reclaim specified for {signal}")))
        } else {
            Ok(Amount::Quantity(quantity))
        };
    }
    let fraction = percentage(text)?;
    if fraction > 0.0 {
        Ok(Amount::Fraction(fraction))
    } else {
        Err(ThresholdError(format!("eviction percentage minimum reclaim {signal} must be positive: {text}")))
    }
}

fn grace(text: &str) -> Result<Duration, ThresholdError> {
    let span: GoDuration = text.parse().map_err(|error: DurationError| ThresholdError(error.to_string()))?;
    if span.0 < 0 {
        let message = format!("invalid eviction grace period specified: {text}, must be a positive value");
        return Err(ThresholdError(message));
    }
    Ok(span.to_std())
}

fn quantity(text: &str) -> Result<Quantity, ThresholdError> {
    text.parse().map_err(|error: QuantityError| ThresholdError(error.to_string()))
}

fn percentage(text: &str) -> Result<f32, ThresholdError> {
    /// Limit of an echoed malformed text.
    const SHOWN_MAX: usize = 64;
    let number = text.trim_end_matches('%');
    let refused = |why: &str| {
        let shown: String = number.chars().take(SHOWN_MAX).collect();
        ThresholdError(format!("strconv.ParseFloat: parsing {}: {why}", quoted(&shown)))
    };
    // Go also parses names: infinities compare with every share, and `nan` is a share of nothing.
    let is_digits = number.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let read: f32 = number.parse().map_err(|_| refused("invalid syntax"))?;
    match read {
        read if read.is_nan() => Err(refused("invalid syntax")),
        read if read.is_infinite() && is_digits => Err(refused("value out of range")),
        read => Ok(read / 100.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::vectors;

    fn texts(value: &Value) -> SignalTexts {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn read(input: &Value) -> Result<Vec<Threshold>, ThresholdError> {
        let [hard, soft, soft_grace, reclaim_min] =
            ["eviction_hard", "eviction_soft", "eviction_soft_grace_period", "eviction_minimum_reclaim"]
                .map(|field| texts(&input[field]));
        let (hard, soft, soft_grace, reclaim_min) = (&hard, &soft, &soft_grace, &reclaim_min);
        thresholds(ThresholdTexts { hard, soft, soft_grace, reclaim_min })
    }

    fn amount(of: &Value, quantity: &str, percentage: &str) -> Option<Amount> {
        let quantity = of[quantity].as_str().map(|text| Amount::Quantity(text.parse().unwrap()));
        quantity.or(of[percentage].is_number().then(|| Amount::Fraction(of[percentage].to_string().parse().unwrap())))
    }

    #[test]
    fn every_vector_of_eviction_thresholds_holds() {
        let cases = vectors("gc-eviction-thresholds.json");
        assert_eq!(cases.len(), 23);
        for case in cases {
            let (name, expected) = (&case["name"], &case["expected"]);
            let found = read(&case["input"]);
            assert_eq!(found.is_err(), expected["error"] == true, "{name}: {found:?}");
            assert!(expected["error_text"].is_null(), "{name}: no case fixes a text");
            let wanted: Vec<Threshold> = expected["thresholds_unordered"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| {
                    assert_eq!(it["operator"], "LessThan");
                    Threshold {
                        signal: it["signal"].as_str().unwrap().parse().unwrap(),
                        value: amount(it, "quantity", "percentage").unwrap(),
                        grace: it["grace_period"].as_str().map(|text| grace(text).unwrap()),
                        reclaim_min: amount(it, "min_reclaim_quantity", "min_reclaim_percentage"),
                    }
                })
                .collect();
            let found = found.unwrap_or_default();
            assert_eq!(found.len(), wanted.len(), "{name}");
            for threshold in &wanted {
                assert!(found.contains(threshold), "{name}: {threshold:?} is not in {found:?}");
            }
        }
    }

    #[test]
    fn each_mistake_is_told_in_the_kubelets_words() {
        let cases = [
            ("eviction_hard", "mem.available", "1Mi", "unsupported eviction signal mem.available"),
            (
                "eviction_hard",
                "nodefs.available",
                "-15%",
                "eviction percentage threshold nodefs.available must be >= 0%: -15%",
            ),
            (
                "eviction_hard",
                "nodefs.available",
                "150%",
                "eviction percentage threshold nodefs.available must be <= 100%: 150%",
            ),
            (
                "eviction_hard",
                "imagefs.available",
                "-150Mi",
                "eviction threshold imagefs.available must be positive: -150Mi",
            ),
            ("eviction_hard", "imagefs.available", "0", "eviction threshold imagefs.available must be positive: 0"),
            ("eviction_hard", "imagefs.available", "10..5%", "strconv.ParseFloat: parsing \"10..5\": invalid syntax"),
            (
                "eviction_hard",
                "imagefs.available",
                "inf%",
                "eviction percentage threshold imagefs.available must be <= 100%: inf%",
            ),
            ("eviction_hard", "imagefs.available", "nan%", "strconv.ParseFloat: parsing \"nan\": invalid syntax"),
            ("eviction_hard", "imagefs.available", "1e99%", "strconv.ParseFloat: parsing \"1e99\": value out of range"),
            (
                "eviction_hard",
                "imagefs.available",
                "",
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                "eviction_soft",
                "imagefs.available",
                "5%",
                "grace period must be specified for the soft eviction threshold imagefs.available",
            ),
            (
                "eviction_soft_grace_period",
                "imagefs.available",
                "-30s",
                "invalid eviction grace period specified: -30s, must be a positive value",
            ),
            (
                "eviction_soft_grace_period",
                "imagefs.available",
                "30mins",
                "time: unknown unit \"mins\" in duration \"30mins\"",
            ),
            (
                "eviction_minimum_reclaim",
                "imagefs.available",
                "0%",
                "eviction percentage minimum reclaim imagefs.available must be positive: 0%",
            ),
            (
                "eviction_minimum_reclaim",
                "imagefs.available",
                "-1Mi",
                "negative eviction minimum reclaim specified for imagefs.available",
            ),
        ];
        for (field, signal, text, message) in cases {
            let mut input = serde_json::json!({
                "eviction_hard": {}, "eviction_soft": {}, "eviction_soft_grace_period": {},
                "eviction_minimum_reclaim": {},
            });
            input[field][signal] = text.into();
            assert_eq!(read(&input).unwrap_err().to_string(), message, "{field} {text}");
        }
    }

    #[test]
    fn zero_is_a_limit_only_as_a_share_with_a_point() {
        let hard = SignalTexts::from([("imagefs.available".to_owned(), "0.0%".to_owned())]);
        let none = SignalTexts::new();
        let read = thresholds(ThresholdTexts { hard: &hard, soft: &none, soft_grace: &none, reclaim_min: &none });
        assert_eq!(read.unwrap()[0].value, Amount::Fraction(0.0));
    }

    #[test]
    fn the_defaults_read_as_thresholds() {
        let (hard, none) = (defaults(), SignalTexts::new());
        let read = thresholds(ThresholdTexts { hard: &hard, soft: &none, soft_grace: &none, reclaim_min: &none });
        let read = read.unwrap();
        assert_eq!(read.len(), 5);
        assert_eq!(read[2].value, Amount::Quantity(Quantity::whole(100 << 20)));
    }
}
