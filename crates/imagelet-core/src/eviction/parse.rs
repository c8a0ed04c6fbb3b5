//! Thresholds from the texts of a configuration, refused in the kubelet's words.

use std::{collections::BTreeMap, time::Duration};

use super::{Amount, Signal, Threshold, quantity};
use crate::text::{GoDuration, quoted};

/// Configured texts by signal.
pub type SignalTexts = BTreeMap<String, String>;

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

/// Why the texts are not thresholds, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ThresholdError {
    /// The configuration key.
    pub key: &'static str,
    text: String,
}

impl ThresholdError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { key: "", text: text.into() }
    }
}

/// The kubelet's default `evictionHard` on Linux.
pub fn defaults() -> SignalTexts {
    let texts = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ];
    texts.into_iter().map(|(signal, text)| (signal.to_owned(), text.to_owned())).collect()
}

/// Parses all thresholds: hard ones first, then soft ones, each by signal.
///
/// # Errors
/// The first broken rule. The kubelet reports any of several; here the order is fixed.
pub fn thresholds(texts: ThresholdTexts<'_>) -> Result<Vec<Threshold>, ThresholdError> {
    let hard = by_signal("evictionHard", texts.hard, threshold)?;
    let graces = by_signal("evictionSoftGracePeriod", texts.soft_grace, |_, text| grace(text))?;
    let reclaims = by_signal("evictionMinimumReclaim", texts.reclaim_min, reclaim_min)?;
    let soft = by_signal("evictionSoft", texts.soft, |signal, text| {
        let Some(threshold) = threshold(signal, text)? else { return Ok(None) };
        let missing =
            || ThresholdError::new(format!("grace period must be specified for the soft eviction threshold {signal}"));
        let grace = *graces.get(&signal).ok_or_else(missing)?;
        // A soft threshold with a grace period of zero is hard.
        Ok(Some(Threshold { grace: Some(grace).filter(|grace| !grace.is_zero()), ..threshold }))
    })?;
    let all = hard.into_values().chain(soft.into_values()).flatten();
    Ok(all.map(|it| Threshold { reclaim_min: reclaims.get(&it.signal).copied(), ..it }).collect())
}

fn by_signal<T>(
    key: &'static str,
    texts: &SignalTexts,
    read: impl Fn(Signal, &str) -> Result<T, ThresholdError>,
) -> Result<BTreeMap<Signal, T>, ThresholdError> {
    let read = |(name, text): (&String, &String)| {
        let signal = name.parse()?;
        Ok((signal, read(signal, text)?))
    };
    texts.iter().map(read).collect::<Result<_, _>>().map_err(|error: ThresholdError| ThresholdError { key, ..error })
}

/// `None`: the text disables the threshold.
fn threshold(signal: Signal, text: &str) -> Result<Option<Threshold>, ThresholdError> {
    let refuse = |why: String| Err(ThresholdError::new(why));
    let value = match amount(text)? {
        Amount::Fraction(_) if matches!(text, "0%" | "100%") => return Ok(None),
        Amount::Fraction(share) if share < 0.0 => {
            return refuse(format!("eviction percentage threshold {signal} must be >= 0%: {text}"));
        }
        Amount::Fraction(share) if share > 1.0 => {
            return refuse(format!("eviction percentage threshold {signal} must be <= 100%: {text}"));
        }
        Amount::Nanos(..=0) => return refuse(format!("eviction threshold {signal} must be positive: {text}")),
        value => value,
    };
    Ok(Some(Threshold { signal, value, text: text.to_owned(), grace: None, reclaim_min: None }))
}

fn reclaim_min(signal: Signal, text: &str) -> Result<Amount, ThresholdError> {
    match amount(text)? {
        Amount::Nanos(..0) => {
            Err(ThresholdError::new(format!("negative eviction minimum reclaim specified for {signal}")))
        }
        Amount::Fraction(share) if share <= 0.0 => {
            Err(ThresholdError::new(format!("eviction percentage minimum reclaim {signal} must be positive: {text}")))
        }
        amount => Ok(amount),
    }
}

fn grace(text: &str) -> Result<Duration, ThresholdError> {
    let span = text.parse::<GoDuration>().map_err(|error| ThresholdError::new(error.to_string()))?;
    if span.0 < 0 {
        let message = format!("invalid eviction grace period specified: {text}, must be a positive value");
        return Err(ThresholdError::new(message));
    }
    Ok(span.to_std())
}

fn amount(text: &str) -> Result<Amount, ThresholdError> {
    /// Limit of an echoed malformed text.
    const SHOWN_MAX: usize = 64;
    if !text.ends_with('%') {
        return quantity::parse(text).map(Amount::Nanos).map_err(ThresholdError::new);
    }
    let number = text.trim_end_matches('%');
    let refused = |why: &str| {
        let shown: String = number.chars().take(SHOWN_MAX).collect();
        ThresholdError::new(format!("strconv.ParseFloat: parsing {}: {why}", quoted(&shown)))
    };
    // Go also parses names: infinities compare with every share, and `nan` is a share of nothing.
    let is_digits = number.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let read: f32 = number.parse().map_err(|_| refused("invalid syntax"))?;
    match read {
        read if read.is_nan() => Err(refused("invalid syntax")),
        read if read.is_infinite() && is_digits => Err(refused("value out of range")),
        read => Ok(Amount::Fraction(read / 100.0)),
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;
    use serde_json::Value;

    use super::*;

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

    fn wanted_amount(of: &Value, quantity: &str, percentage: &str) -> Option<Amount> {
        let quantity = of[quantity].as_str().map(|text| Amount::Nanos(quantity::parse(text).unwrap()));
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
                        value: wanted_amount(it, "quantity", "percentage").unwrap(),
                        text: String::new(),
                        grace: it["grace_period"].as_str().map(|text| grace(text).unwrap()),
                        reclaim_min: wanted_amount(it, "min_reclaim_quantity", "min_reclaim_percentage"),
                    }
                })
                .collect();
            let found = found.unwrap_or_default().into_iter().map(|it| Threshold { text: String::new(), ..it });
            let found: Vec<Threshold> = found.collect();
            assert_eq!(found.len(), wanted.len(), "{name}");
            for threshold in &wanted {
                assert!(found.contains(threshold), "{name}: {threshold:?} is not in {found:?}");
            }
        }
    }

    #[test]
    fn each_mistake_is_reported_in_the_kubelets_words() {
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
        assert_eq!(read[2].value, Amount::Nanos((100 << 20) * quantity::NANOS));
    }
}
