//! What is remembered of an image beyond its age: where it came from, what it cost, how its uses follow one another.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::image::ByteSize;

/// What the last pull of an image cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullCost {
    /// Compressed bytes that came over the network.
    pub bytes: ByteSize,
    /// From the first request to the image being there.
    pub duration: Duration,
    /// When it was there.
    pub at: SystemTime,
}

/// How an image came to be on the node, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// imagelet pulled it.
    Pulled,
    /// Somebody else did, and it was handed over: by a pull record or by an operator.
    Adopted,
    /// It was there when the first pass looked, or came behind imagelet's back.
    #[default]
    Found,
}

impl Origin {
    /// The stable word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::Adopted => "adopted",
            Self::Found => "found",
        }
    }
}

/// How many spans idle times are sorted into.
pub const SPANS: usize = 40;
/// A pause shorter than this belongs to the use before it: no collection takes an image that fast.
pub(super) const GAP_MIN: Duration = Duration::from_mins(2);

/// A span of idle time. They grow by half an octave: under a minute, 1 to 1.4 minutes, …, 0.7 to 1 year and longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(u8);

impl Span {
    /// The span that an idle time of this length falls into.
    pub fn of(idle: Duration) -> Self {
        // Far beyond the last span, and small enough to reckon with.
        let seconds = idle.as_secs().min(1 << 30);
        if seconds < 60 {
            return Self(0);
        }
        // Two spans an octave of minutes, numbered from 1.
        let octave = (seconds / 60).ilog2() as usize;
        let upper = seconds >= Self::start_seconds(2 * octave + 2);
        let number = (2 * octave + 1 + usize::from(upper)).min(SPANS - 1);
        Self(u8::try_from(number).unwrap_or(u8::MAX))
    }

    /// Its number, below [`SPANS`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// When the span of this number begins, in seconds; one past the last is where the last ends.
    pub const fn start_seconds(index: usize) -> u64 {
        if index == 0 {
            return 0;
        }
        let octave = 60 << ((index - 1) / 2);
        // The square root of two.
        if index % 2 == 1 { octave } else { octave * 141_421 / 100_000 }
    }
}

/// How long an image lay idle between its uses, the latest weighing most: a weight for each [`Span`].
///
/// A nightly job has all its weight in one span, a service that is rescheduled now and then spreads it. Most images have
/// none, and take no room for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u8, u16)>", into = "Vec<(u8, u16)>")]
pub struct Gaps(Option<Box<[u16; SPANS]>>);

impl Gaps {
    /// The weight of one gap when it is new. Each later one takes an eighth of it away.
    pub const WEIGHT_NEW: u16 = 256;

    /// The weight of the gaps in one span.
    pub fn weight(&self, span: usize) -> u16 {
        self.0.as_ref().and_then(|weights| weights.get(span)).copied().unwrap_or_default()
    }

    /// No gap is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds a gap.
    pub(super) fn add(&mut self, span: Span) {
        let weights = self.0.get_or_insert_with(|| Box::new([0; SPANS]));
        for weight in weights.iter_mut() {
            *weight -= weight.div_ceil(8);
        }
        weights[span.index()] += Self::WEIGHT_NEW;
    }
}

impl From<Vec<(u8, u16)>> for Gaps {
    /// What a file says; more than there can be is cut.
    fn from(weights: Vec<(u8, u16)>) -> Self {
        let mut gaps = [0; SPANS];
        for (span, weight) in weights {
            if let Some(slot) = gaps.get_mut(usize::from(span)) {
                *slot = weight.min(8 * Self::WEIGHT_NEW);
            }
        }
        Self((gaps != [0; SPANS]).then(|| Box::new(gaps)))
    }
}

impl From<Gaps> for Vec<(u8, u16)> {
    fn from(gaps: Gaps) -> Self {
        (0_u8..).zip(gaps.0.into_iter().flat_map(|weights| *weights)).filter(|(_, weight)| *weight > 0).collect()
    }
}

/// How an image was used, as far as tells whether it will be again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UseHistory {
    /// How often it was used: an `ensure` by a pod, a pull, a container or a mount that a pass had not seen before. The
    /// container that follows an `ensure` is the same use.
    pub uses: u64,
    /// How often it was used again after it had lain idle.
    pub returns: u32,
    /// How often it had to be fetched again because it was gone.
    pub comebacks: u32,
    /// How long it lay idle before.
    pub gaps: Gaps,
    /// A newer image of the same repository has been used since: it is an old version.
    pub superseded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_idle_time_falls_into_the_span_that_holds_it() {
        let mut last = Span(0);
        for seconds in (0..100_000).chain((0..500).map(|step| 100_000 + step * 250_000)) {
            let span = Span::of(Duration::from_secs(seconds));
            assert!(span >= last, "{seconds}");
            assert!(Span::start_seconds(span.index()) <= seconds, "{seconds} s in {span:?}");
            if span.index() + 1 < SPANS {
                assert!(seconds < Span::start_seconds(span.index() + 1), "{seconds} s in {span:?}");
            }
            last = span;
        }
        assert_eq!(last.index(), SPANS - 1);
        assert_eq!(Span::of(Duration::MAX).index(), SPANS - 1);
    }

    #[test]
    fn the_latest_gaps_weigh_most_and_the_sum_is_bounded() {
        let mut gaps = Gaps::default();
        let (day, hour) = (Span::of(Duration::from_hours(24)), Span::of(Duration::from_hours(1)));
        (0..1000).for_each(|_| gaps.add(day));
        assert!(gaps.weight(day.index()) <= 8 * Gaps::WEIGHT_NEW);
        (0..10).for_each(|_| gaps.add(hour));
        assert!(gaps.weight(hour.index()) > gaps.weight(day.index()));
        let text = serde_json::to_string(&gaps).unwrap();
        assert!(text.len() < 40, "{text}");
        assert_eq!(serde_json::from_str::<Gaps>(&text).unwrap(), gaps);
        (0..100).for_each(|_| gaps.add(hour));
        assert_eq!(gaps.weight(day.index()), 0, "what is long ago is forgotten");
    }

    #[test]
    fn spans_that_a_file_made_up_are_passed_over() {
        let gaps: Gaps = serde_json::from_str("[[255,7],[3,65535]]").unwrap();
        assert_eq!(gaps.weight(3), 8 * Gaps::WEIGHT_NEW);
        assert_eq!(Vec::from(gaps).len(), 1);
    }
}
