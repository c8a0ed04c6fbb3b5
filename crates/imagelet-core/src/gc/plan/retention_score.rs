//! What it is worth to keep an image: how soon it is likely to be used again, times what it costs to fetch it again.
//!
//! The chance of a use within a span of idle time comes from three sources, the nearer weighing more: how long this image
//! lay idle before its uses so far, how images of its kind fared on this node, and a guess where nothing is known. The
//! worth is the best rate at which uses can be expected by keeping the image for some time, whichever that is: a nightly
//! job has a high one when its hour comes near, an old version a low one for ever. Bytes that an image alone holds are
//! not in it; whoever chooses weighs the worth against them.
//!
//! A few idle times say less about each single span than about the whole: a bell is drawn over them, broad while they
//! are few, and counts beside them. Of an old version they tell of a time when it was not one; they count as far as old
//! versions are used on this node at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::input::PlanInput;
use crate::{
    image::{ByteSize, ImageId},
    inventory::{Entry, Gaps, KINDS, Kind, ReuseTable, SPANS, Span, UseHistory},
};

/// A first guess: so many of the images that lay idle until a span are used within it. With spans that grow with age
/// that alone is the order of last use.
const HAZARD_GUESSED: f64 = 0.10;
/// The same for an old version whose successor is in use: in all, a fifth of them come back once.
const HAZARD_GUESSED_OLD: f64 = 0.01;
/// How many observations the guess is worth.
const GUESS_WEIGHT: f64 = 4.0;
/// How many of an image's own gaps what is known of its kind is worth.
const KIND_WEIGHT: f64 = 1.0;
/// How much of an image's own gaps is the bell over them; the rest is where each of them was.
const BELL_SHARE: f64 = 0.7;
/// How broad the bell is without evidence, in squared spans: as broad as that of uses that come wholly by chance.
const BELL_VARIANCE: f64 = 13.7;
/// How many gaps that is worth.
const BELL_WEIGHT: f64 = 1.0;
/// A gap is somewhere in its span.
const SPAN_VARIANCE: f64 = 1.0 / 12.0;
/// A logistic bell's deviation by its scale: π ÷ √3.
const LOGISTIC: f64 = 1.813_799;
const DAY: f64 = 86_400.0;
/// What a link brings in a second where nothing else is known; a pull as fast as this costs its bytes.
const LINK_BYTES: f64 = 20e6;
/// How much dearer, or cheaper, a slow or a fast registry makes a byte.
const SLOWNESS: (f64, f64) = (0.5, 4.0);
/// A pull smaller than this tells of a registry's latency, not of its speed.
const PULL_MIN: u64 = 1 << 20;

/// What a node's experience says of each kind of image, reckoned once for all its images.
#[derive(Clone, Debug)]
pub struct Experience {
    /// How many of those that lay idle until a span are used within it.
    hazards: [[f64; SPANS]; KINDS],
    /// How many of those that lay idle until a span are ever used again.
    ever: [[f64; SPANS]; KINDS],
    /// Uses expected per second of an image without gaps of its own, at the begin of each span and at the last one's end.
    blank: [[f64; SPANS + 1]; KINDS],
}

impl Experience {
    /// Of this node.
    pub fn of(reuse: &ReuseTable) -> Self {
        let mut experience =
            Self { hazards: [[0.0; SPANS]; KINDS], ever: [[0.0; SPANS]; KINDS], blank: [[0.0; SPANS + 1]; KINDS] };
        for kind in Kind::all() {
            let (at, mut never) = (kind.index(), 1.0);
            for span in (0..SPANS).rev() {
                let hazard = hazard_of_kind(reuse, kind, span);
                experience.hazards[at][span] = hazard;
                never *= 1.0 - hazard;
                experience.ever[at][span] = 1.0 - never;
            }
            // Kinds that nobody saw yet are alike.
            let bits = |kind: usize| experience.hazards[kind].map(f64::to_bits);
            if let Some(like) = (0..at).find(|like| bits(*like) == bits(at)) {
                experience.blank[at] = experience.blank[like];
                continue;
            }
            for span in 0..SPANS {
                experience.blank[at][span] = best_rate(span, seconds(span), |span| experience.hazards[at][span]);
            }
        }
        experience
    }

    /// Uses expected per day, if the image is kept for as long as that is most.
    pub fn uses_per_day(&self, history: &UseHistory, idle: Duration) -> f64 {
        self.uses_of(Kind::of(history), Some(&history.gaps), idle)
    }

    fn uses_of(&self, kind: Kind, gaps: Option<&Gaps>, idle: Duration) -> f64 {
        let (at, idle) = (Span::of(idle).index(), idle.as_secs_f64());
        let own = gaps.and_then(|gaps| self.own(kind, gaps, at));
        let kind = kind.index();
        let rate = if let Some(own) = own {
            best_rate(at, idle, |span| own.hazard(span, self.hazards[kind][span]))
        } else {
            let [begin, end] = [at, at + 1].map(|span| self.blank[kind][span]);
            let part = ((idle - seconds(at)) / (seconds(at + 1) - seconds(at))).min(1.0);
            begin + (end - begin) * part
        };
        rate * DAY
    }

    /// The chance that the image is used again within this time.
    pub fn chance(&self, history: &UseHistory, idle: Duration, within: Duration) -> f64 {
        let (kind, at) = (Kind::of(history), Span::of(idle).index());
        let own = self.own(kind, &history.gaps, at);
        let kind = kind.index();
        let (from, until) = (idle.as_secs_f64(), idle.saturating_add(within).as_secs_f64());
        let mut left = 1.0;
        for span in at..SPANS {
            let (begin, end) = (seconds(span), seconds(span + 1));
            let of_kind = self.hazards[kind][span];
            let hazard = own.as_ref().map_or(of_kind, |own| own.hazard(span, of_kind));
            let reached = (until.min(end) - begin.max(from)).max(0.0);
            let open = (end - begin.max(from)).max(1.0);
            left *= 1.0 - hazard * (reached / open).min(1.0);
        }
        1.0 - left
    }

    /// What an image's own gaps say, where there are any.
    fn own(&self, kind: Kind, gaps: &Gaps, at: usize) -> Option<Own> {
        let weight = if kind.is_superseded() { self.ever[kind.index()][at] } else { 1.0 };
        Own::of(gaps, weight)
    }
}

/// Uses expected per second, over the time from now until whichever span's end that is most.
fn best_rate(at: usize, idle: f64, hazard: impl Fn(usize) -> f64) -> f64 {
    let (mut left, mut uses, mut time, mut best) = (1.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
    for span in at..SPANS {
        let (begin, end) = (seconds(span), seconds(span + 1));
        let hazard = hazard(span);
        // Where it is within a span already, what is over of it.
        let rest = if span == at { ((end - idle) / (end - begin)).clamp(0.01, 1.0) } else { 1.0 };
        let hazard = hazard * rest / (1.0 - hazard * (1.0 - rest));
        uses += left * hazard;
        time += left * (end - begin) * rest * (1.0 - hazard / 2.0);
        left *= 1.0 - hazard;
        best = best.max(uses / time);
    }
    best
}

/// What it is expected to cost per day that each of these images is gone, in bytes of a link of usual speed: no more
/// precise than a byte a day, and never nothing.
///
/// A layer that an image shares with others costs each of them a part, and one that stays anyway costs nothing.
pub(super) fn costs(input: &PlanInput<'_>, places: &[usize]) -> Vec<u64> {
    let (fetched, experience) = (fetched(input, places), Experience::of(input.reuse));
    let cost = |place: &usize| {
        let entry = &input.entries[*place];
        let bytes = fetched.get(&entry.image.id).copied().unwrap_or(entry.image.size.0 as f64);
        let since = entry.last_used.unwrap_or(entry.first_seen);
        let idle = input.now.duration_since(since).unwrap_or_default();
        let expected = experience.uses_per_day(&entry.history, idle) * bytes * slowness(entry);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between the two bounds")]
        let expected = expected.clamp(1.0, 1e18) as u64;
        expected
    };
    places.iter().map(cost).collect()
}

/// How much dearer a byte of this image is than one over a link of usual speed.
fn slowness(entry: &Entry) -> f64 {
    let Some(cost) = entry.pulled.filter(|cost| cost.bytes.0 >= PULL_MIN) else { return 1.0 };
    (cost.duration.as_secs_f64() * LINK_BYTES / cost.bytes.0 as f64).clamp(SLOWNESS.0, SLOWNESS.1)
}

/// What each of these would have to fetch again, were it gone: layers that stay cost nothing, others are shared out.
fn fetched<'a>(input: &'a PlanInput<'_>, places: &[usize]) -> BTreeMap<&'a ImageId, f64> {
    let Some(graph) = input.layers else { return BTreeMap::new() };
    let goes: BTreeSet<&ImageId> = places.iter().map(|place| input.id(*place)).collect();
    let mut users = vec![0_u32; graph.layers.len()];
    let mut stays: Vec<bool> = graph.layers.iter().map(|layer| layer.held).collect();
    let index = |part: &u32| usize::try_from(*part).ok().filter(|part| *part < graph.layers.len());
    for (image, parts) in &graph.images {
        for part in parts.iter().filter_map(index) {
            users[part] += 1;
            stays[part] |= !goes.contains(image);
        }
    }
    let share =
        |part: usize| if stays[part] { 0.0 } else { graph.layers[part].bytes.0 as f64 / f64::from(users[part]) };
    let of = |image: &'a ImageId| Some((image, graph.images.get(image)?.iter().filter_map(index).map(share).sum()));
    goes.into_iter().filter_map(of).collect()
}

fn seconds(span: usize) -> f64 {
    Span::start_seconds(span) as f64
}

/// What the node saw of a kind, with the guess; few old versions of one kind count with those of the others.
fn hazard_of_kind(reuse: &ReuseTable, kind: Kind, span: usize) -> f64 {
    let weighed = |(idle, used): (f64, f64), guess: f64| (used + GUESS_WEIGHT * guess) / (idle + GUESS_WEIGHT);
    let seen = |kind| {
        let (idle, used) = reuse.seen(kind, span);
        (f64::from(idle), f64::from(used))
    };
    if !kind.is_superseded() {
        return weighed(seen(kind), HAZARD_GUESSED);
    }
    let old = Kind::all().filter(|kind| kind.is_superseded()).map(seen);
    let old = old.fold((0.0, 0.0), |(idle, used), (more_idle, more_used)| (idle + more_idle, used + more_used));
    weighed(seen(kind), weighed(old, HAZARD_GUESSED_OLD))
}

/// An image's own gaps, with the bell over them: how many ended in each span, and how many reached it.
struct Own {
    ended: [f64; SPANS],
    reached: [f64; SPANS],
}

impl Own {
    fn of(gaps: &Gaps, weight: f64) -> Option<Self> {
        if gaps.is_empty() {
            return None;
        }
        let (mut sum, mut moment, mut square) = (0_u64, 0_u64, 0_u64);
        for (span, weight) in (0_u64..).zip((0..SPANS).map(|span| u64::from(gaps.weight(span)))) {
            sum += weight;
            moment += weight * span;
            square += weight * span * span;
        }
        if sum == 0 {
            return None;
        }
        let (count, sum) = (sum as f64 / f64::from(Gaps::WEIGHT_NEW), sum as f64);
        let mean = moment as f64 / sum;
        let variance = square as f64 / sum - mean * mean + SPAN_VARIANCE;
        let variance = (count * variance + BELL_WEIGHT * BELL_VARIANCE) / (count + BELL_WEIGHT);
        let scale = LOGISTIC / variance.sqrt();
        // Of a logistic bell in spans: what is before a span to what is after its begin. A span's middle is its place.
        let (mut odds, growth) = ((-(mean + 0.5) * scale).exp(), scale.exp());
        let mut own = Self { ended: [0.0; SPANS], reached: [0.0; SPANS] };
        let (of_bell, of_each) = (weight * BELL_SHARE * count, weight * (1.0 - BELL_SHARE) * count / sum);
        let mut before = of_bell;
        for span in 0..SPANS {
            odds *= growth;
            let after = if span + 1 == SPANS { 0.0 } else { of_bell / (1.0 + odds) };
            own.ended[span] = of_each * f64::from(gaps.weight(span)) + before - after;
            before = after;
        }
        let mut reached = 0.0;
        for span in (0..SPANS).rev() {
            reached += own.ended[span];
            own.reached[span] = reached;
        }
        Some(own)
    }

    fn hazard(&self, span: usize, of_kind: f64) -> f64 {
        (self.ended[span] + KIND_WEIGHT * of_kind) / (self.reached[span] + KIND_WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn daily() -> UseHistory {
        let gap = u8::try_from(Span::of(23 * HOUR).index()).unwrap();
        UseHistory { uses: 8, returns: 7, gaps: vec![(gap, 6 * Gaps::WEIGHT_NEW)].into(), ..UseHistory::default() }
    }

    fn uses_per_day(history: &UseHistory, idle: Duration, reuse: &ReuseTable) -> f64 {
        Experience::of(reuse).uses_per_day(history, idle)
    }

    fn chance(history: &UseHistory, idle: Duration, reuse: &ReuseTable, within: Duration) -> f64 {
        Experience::of(reuse).chance(history, idle, within)
    }

    fn once() -> UseHistory {
        UseHistory { uses: 1, ..UseHistory::default() }
    }

    #[test]
    fn without_experience_the_worth_is_the_order_of_last_use() {
        let reuse = ReuseTable::default();
        let mut last = f64::INFINITY;
        for minutes in [1, 5, 20, 60, 300, 1000, 3000, 10_000, 100_000] {
            let rate = uses_per_day(&once(), Duration::from_mins(minutes), &reuse);
            assert!(rate < last && rate > 0.0, "{minutes}: {rate}");
            last = rate;
        }
        let old = UseHistory { superseded: true, ..once() };
        assert!(uses_per_day(&old, HOUR, &reuse) < uses_per_day(&once(), HOUR, &reuse) / 2.0);
    }

    #[test]
    fn a_nightly_job_outlives_what_was_used_after_it() {
        let reuse = ReuseTable::default();
        let rate = |hours: u32| uses_per_day(&daily(), hours * HOUR, &reuse);
        assert!(rate(12) > uses_per_day(&once(), 5 * HOUR, &reuse), "half a day idle, and it comes tonight");
        assert!(rate(20) > rate(12) && rate(12) > rate(2) / 2.0, "{} {} {}", rate(2), rate(12), rate(20));
        assert!(rate(24 * 4) < rate(12) / 5.0, "it did not come for days");
        assert!(chance(&daily(), 20 * HOUR, &reuse, 6 * HOUR) > 0.5);
        assert!(chance(&daily(), 2 * HOUR, &reuse, 6 * HOUR) < 0.4);
    }

    #[test]
    fn what_the_node_saw_of_a_kind_counts_for_each_of_it() {
        let text = |used: u32| {
            let lines: Vec<(u8, u8, u32, u32)> = (0..40).map(|span| (2, span, 200, used)).collect();
            serde_json::to_string(&lines).unwrap()
        };
        let never: ReuseTable = serde_json::from_str(&text(0)).unwrap();
        let often: ReuseTable = serde_json::from_str(&text(100)).unwrap();
        assert!(uses_per_day(&once(), 3 * HOUR, &never) * 50.0 < uses_per_day(&once(), 3 * HOUR, &often));
        let rate = |reuse| uses_per_day(&daily(), 12 * HOUR, reuse);
        assert!((rate(&never) - rate(&often)).abs() < f64::EPSILON, "another kind");
    }

    #[test]
    fn idle_times_of_an_old_version_count_as_far_as_old_versions_come_back() {
        let old = UseHistory { superseded: true, ..daily() };
        let table = |used: u32| {
            let kinds = (1..12_u8).step_by(2);
            let lines: Vec<(u8, u8, u32, u32)> =
                kinds.flat_map(|kind| (0..40).map(move |span| (kind, span, 200, used))).collect();
            serde_json::from_str::<ReuseTable>(&serde_json::to_string(&lines).unwrap()).unwrap()
        };
        let rate = |history: &UseHistory, reuse| uses_per_day(history, 20 * HOUR, reuse);
        let (never, often) = (table(0), table(60));
        assert!(rate(&old, &never) * 20.0 < rate(&daily(), &never), "{}", rate(&old, &never));
        assert!(rate(&old, &often) * 3.0 > rate(&daily(), &often), "{}", rate(&old, &often));
        // One kind of old version that nobody saw yet is like the others.
        let lines: Vec<(u8, u8, u32, u32)> = (0..40).map(|span| (3, span, 200, 60)).collect();
        let others = serde_json::from_str(&serde_json::to_string(&lines).unwrap()).unwrap();
        let guessed = ReuseTable::default();
        assert!(rate(&old, &others) > 1.2 * rate(&old, &guessed));
    }

    #[test]
    fn two_idle_times_tell_less_of_their_spans_than_of_their_length() {
        let gaps = |spans: &[u8]| {
            let gaps: Vec<(u8, u16)> = spans.iter().map(|span| (*span, Gaps::WEIGHT_NEW)).collect();
            UseHistory { uses: 3, returns: 2, gaps: gaps.into(), ..UseHistory::default() }
        };
        let at = u8::try_from(Span::of(4 * HOUR).index()).unwrap();
        let reuse = ReuseTable::default();
        let chance = |history: &UseHistory| chance(history, 3 * HOUR, &reuse, 3 * HOUR);
        let (near, far) = (gaps(&[at - 1, at + 1]), gaps(&[at + 7, at + 9]));
        assert!(chance(&near) > 0.3, "between the two nothing was seen, and it may well come: {}", chance(&near));
        assert!(chance(&far) < chance(&near) / 2.0, "{}", chance(&far));
    }

    #[test]
    fn without_idle_times_of_its_own_the_rate_falls_without_steps() {
        let reuse = ReuseTable::default();
        let experience = Experience::of(&reuse);
        let mut last = f64::INFINITY;
        // The first two spans are no octaves; nothing that young goes.
        for seconds in (7..40).map(|step| step * 10).chain((1..5000).map(|step| 400 + step * 60)) {
            let rate = experience.uses_per_day(&once(), Duration::from_secs(seconds));
            assert!(rate < last && rate > last * 0.6 || last.is_infinite(), "{seconds} s: {rate} after {last}");
            last = rate;
        }
    }

    #[test]
    fn no_history_makes_a_number_that_is_none() {
        for history in [UseHistory::default(), once(), daily()] {
            for idle in [Duration::ZERO, HOUR, Duration::from_hours(1 << 20), Duration::MAX] {
                let rate = uses_per_day(&history, idle, &ReuseTable::default());
                assert!(rate.is_finite() && rate >= 0.0, "{idle:?}");
                let chance = chance(&history, idle, &ReuseTable::default(), 24 * HOUR);
                assert!((0.0..=1.0).contains(&chance), "{idle:?}: {chance}");
            }
        }
    }

    #[test]
    fn a_slow_registry_makes_its_images_dearer() {
        let cost = |bytes: u64, seconds| (ByteSize(bytes), Duration::from_secs(seconds));
        assert!(slowness(Some(cost(20_000_000, 3))) > slowness(Some(cost(20_000_000, 1))));
        for unknown in [None, Some(cost(0, 900)), Some(cost(5_000, 900))] {
            assert!((slowness(unknown) - 1.0).abs() < f64::EPSILON);
        }
        assert!(slowness(Some(cost(2_000_000, 9_000_000))) <= SLOWNESS.1);
    }
}
