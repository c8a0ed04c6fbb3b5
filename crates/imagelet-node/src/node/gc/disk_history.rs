//! The disk usage of the last day, and the forecast of when it reaches the high threshold.

use std::{collections::VecDeque, sync::Mutex};

use imagelet_core::lock::locked;

use crate::api::DiskSample;

const SAMPLES_MAX: usize = 24 * 60;
/// The minimum interval between samples. More frequent samples would displace the samples of the past day.
const SECONDS_BETWEEN_MIN: u64 = 30;
/// The time that the samples must cover. A forecast from less time is noise.
const GROWTH_SECONDS_MIN: u64 = 30 * 60;
/// A fall of the usage by more than 1/200 of the capacity counts as a collection. The growth is measured after it.
const FALL_PART: u64 = 200;
const HOURS_MAX: f64 = 30.0 * 24.0;

#[derive(Debug, Default)]
pub(super) struct DiskHistory(Mutex<VecDeque<DiskSample>>);

impl DiskHistory {
    pub(super) fn record(&self, sample: DiskSample) {
        let mut samples = locked(&self.0);
        // If the clock was set back, the samples with a later time are removed.
        while samples.back().is_some_and(|last| last.at > sample.at) {
            samples.pop_back();
        }
        // A reload of the settings takes a sample at once, which may be too soon after the last sample.
        if samples.back().is_some_and(|last| sample.at - last.at < SECONDS_BETWEEN_MIN) {
            return;
        }
        samples.push_back(sample);
        if samples.len() > SAMPLES_MAX {
            samples.pop_front();
        }
    }

    pub(super) fn all(&self) -> Vec<DiskSample> {
        locked(&self.0).iter().cloned().collect()
    }
}

/// At most `max` samples at equal intervals, always including the last sample.
pub(super) fn thinned(samples: Vec<DiskSample>, max: usize) -> Vec<DiskSample> {
    let every = samples.len().div_ceil(max.max(1)).max(1);
    let skipped = samples.len().saturating_sub(1) % every;
    if max == 0 { Vec::new() } else { samples.into_iter().skip(skipped).step_by(every).collect() }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Forecast {
    pub growth_per_hour: Option<i64>,
    pub hours_to_high: Option<f64>,
}

/// Predicts when the usage reaches `high` bytes, from its growth between the last fall and the last sample.
pub(super) fn forecast(samples: &[DiskSample], used: Option<u64>, capacity: u64, high: u64) -> Forecast {
    let growth = growth(samples, capacity);
    let hours_to_high = used.and_then(|used| {
        let missing = high.saturating_sub(used) as f64;
        if used >= high { Some(0.0) } else { growth.filter(|growth| *growth > 0.0).map(|growth| missing / growth) }
    });
    #[expect(clippy::cast_possible_truncation, reason = "`as` saturates, and a disk has fewer bytes")]
    let growth_per_hour = growth.map(|growth| growth.round() as i64);
    Forecast { growth_per_hour, hours_to_high: hours_to_high.filter(|hours| *hours <= HOURS_MAX) }
}

/// The growth in bytes per hour since the last fall of the usage. `None`: the samples cover less than half an hour.
fn growth(samples: &[DiskSample], capacity: u64) -> Option<f64> {
    let fall = (1..samples.len())
        .rev()
        .find(|at| samples[*at].used.saturating_add(capacity / FALL_PART) < samples[*at - 1].used);
    let since = &samples[fall.unwrap_or(0)..];
    let (first, last) = (since.first()?, since.last()?);
    if last.at - first.at < GROWTH_SECONDS_MIN {
        return None;
    }
    Some((last.used as f64 - first.used as f64) / ((last.at - first.at) as f64 / 3600.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn line(minutes: std::ops::Range<u64>, used: impl Fn(u64) -> u64) -> Vec<DiskSample> {
        minutes.map(|minute| DiskSample { at: 1_000_000 + minute * 60, used: used(minute) }).collect()
    }

    #[test]
    fn a_day_of_samples_is_kept_and_a_clock_set_back_starts_anew() {
        let history = DiskHistory::default();
        for sample in line(0..2000, |minute| minute) {
            history.record(sample);
        }
        let all = history.all();
        assert_eq!((all.len(), all[0].used, all[1439].used), (1440, 560, 1999));
        history.record(DiskSample { at: 5, used: 7 });
        assert_eq!(history.all().iter().map(|sample| sample.used).collect::<Vec<_>>(), [7]);
    }

    fn recorded(samples: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let history = DiskHistory::default();
        for (at, used) in samples {
            history.record(DiskSample { at: *at, used: *used });
        }
        history.all().iter().map(|sample| (sample.at, sample.used)).collect()
    }

    #[test]
    fn no_number_of_reloads_shortens_the_history() {
        assert_eq!(recorded(&[(60, 1), (120, 2), (120, 3)]), [(60, 1), (120, 2)], "within the second of a sample");
        assert_eq!(recorded(&[(60, 1), (120, 2), (121, 3), (145, 4)]), [(60, 1), (120, 2)]);
        assert_eq!(recorded(&[(60, 1), (90, 2), (120, 3)]), [(60, 1), (90, 2), (120, 3)], "the first one starts anew");
    }

    #[test]
    fn a_clock_that_is_set_back_takes_no_more_than_the_samples_of_its_future() {
        let set_back = |at| recorded(&[(60, 1), (120, 2), (180, 3), (at, 9)]);
        assert_eq!(set_back(179), [(60, 1), (120, 2), (179, 9)], "by a correction");
        assert_eq!(set_back(100), [(60, 1), (100, 9)]);
        assert_eq!(set_back(5), [(5, 9)], "by years");
    }

    #[test]
    fn thinned_samples_are_even_and_end_with_the_last() {
        let used = |max| thinned(line(0..10, |minute| minute), max).iter().map(|it| it.used).collect::<Vec<_>>();
        assert_eq!(used(20), (0..10).collect::<Vec<_>>());
        assert_eq!((used(5), used(3), used(1), used(0)), (vec![1, 3, 5, 7, 9], vec![1, 5, 9], vec![9], vec![]));
        assert!(thinned(Vec::new(), 3).is_empty());
    }

    #[test]
    fn the_forecast_is_a_straight_line_since_the_last_fall() {
        let (capacity, high) = (100 * GIB, 85 * GIB);
        let of = |samples: &[DiskSample]| forecast(samples, samples.last().map(|it| it.used), capacity, high);
        let hours = |samples: &[DiskSample]| of(samples).hours_to_high;
        // A GiB a minute for the last hour: 60 GiB an hour.
        let fills = line(0..61, |minute| minute * GIB / 2);
        assert_eq!(of(&fills).growth_per_hour, Some(i64::try_from(30 * GIB).unwrap()));
        assert!((hours(&fills).unwrap() - 55.0 / 30.0).abs() < 1e-6);
        // A collection an hour ago hides what was before.
        let collected = line(0..121, |minute| if minute < 60 { 80 * GIB } else { 20 * GIB + (minute - 60) * GIB / 4 });
        assert!((hours(&collected).unwrap() - 50.0 / 15.0).abs() < 1e-6);
        assert_eq!(hours(&line(0..61, |_| 90 * GIB)), Some(0.0), "it is reached");
        assert_eq!(hours(&line(0..1, |_| 90 * GIB)), Some(0.0), "which needs no history");
        assert_eq!(forecast(&[], Some(85 * GIB), capacity, high).hours_to_high, Some(0.0));
        assert_eq!(forecast(&[], None, 0, 0), Forecast::default(), "the disk is not visible");
        for (what, samples) in [
            ("nothing", Vec::new()),
            ("one", line(0..1, |_| GIB)),
            ("too short", line(0..29, |minute| minute * GIB)),
            ("even", line(0..61, |_| GIB)),
            ("falling slowly", line(0..61, |minute| 50 * GIB - minute * (GIB >> 6))),
            ("in a year", line(0..61, |minute| GIB + minute * 1000)),
        ] {
            assert_eq!(hours(&samples), None, "{what}");
        }
    }
}
