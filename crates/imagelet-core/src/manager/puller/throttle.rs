//! The rate limit of pulls (`docs/spec/pull.md §4.1`).

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket: full at first, refilled at a constant rate. Each pull takes one token.
#[derive(Debug)]
pub(crate) struct Throttle {
    rate: PullRate,
    tokens: f64,
    filled: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PullRate {
    /// Pulls per second; above zero.
    pub qps: f32,
    /// How many pulls may begin at once after a quiet time. Zero: no pull ever begins.
    pub burst: u32,
}

impl Throttle {
    pub(crate) fn new(rate: PullRate, now: Instant) -> Self {
        Self { rate, tokens: f64::from(rate.burst), filled: now }
    }

    pub(crate) fn try_take(&mut self, now: Instant) -> bool {
        let tokens = self.tokens_at(now);
        // A token that lacks at most one nanosecond of refill counts as complete, because the clock rounds.
        let step = f64::from(self.rate.qps) * Duration::from_nanos(1).as_secs_f64();
        if tokens + step < 1.0 {
            return false;
        }
        self.tokens = (tokens - 1.0).max(0.0);
        self.filled = self.filled.max(now);
        true
    }

    /// When the next token is complete, unless another pull takes it. `None`: never.
    pub(crate) fn ready_at(&self, now: Instant) -> Option<Instant> {
        if self.rate.burst == 0 || self.rate.qps <= 0.0 {
            return None;
        }
        let lacking = (1.0 - self.tokens_at(now)).max(0.0);
        // Rounded up, so that the token is complete at that time.
        Some(now + Duration::from_secs_f64(lacking / f64::from(self.rate.qps)) + Duration::from_nanos(1))
    }

    fn tokens_at(&self, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.filled).as_secs_f64() * f64::from(self.rate.qps);
        (self.tokens + refilled).min(f64::from(self.rate.burst))
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn a_token_is_there_when_it_was_promised_and_not_much_before() {
        for qps in [0.1_f32, 0.3, 1.0, 3.0, 5.0, 7.5, 1000.0] {
            let mut now = Instant::now();
            let mut throttle = Throttle::new(PullRate { qps, burst: 2 }, now);
            for round in 0..50 {
                while throttle.try_take(now) {}
                let ready = throttle.ready_at(now).expect("it is refilled");
                let early = ready - Duration::from_nanos(10) - (ready - now).mul_f64(1e-6);
                assert!(!throttle.try_take(early), "round {round} at {qps}/s");
                now = ready;
                assert!(throttle.try_take(now), "round {round} at {qps}/s");
            }
        }
        let now = Instant::now();
        assert_eq!(Throttle::new(PullRate { qps: 1.0, burst: 0 }, now).ready_at(now), None);
    }

    #[test]
    fn every_throttle_vector_holds() {
        let mut cases = 0;
        for case in vectors("pull-throttle.json") {
            let input = &case["input"];
            let start = Instant::now();
            #[expect(clippy::cast_possible_truncation, reason = "a rate is small")]
            let rate = PullRate {
                qps: input["qps"].as_f64().expect("a rate") as f32,
                burst: u32::try_from(input["burst"].as_u64().expect("a number")).expect("small"),
            };
            let mut throttle = Throttle::new(rate, start);
            let accepted: Vec<bool> = input["try_at_ms"]
                .as_array()
                .expect("times")
                .iter()
                .map(|at| throttle.try_take(start + Duration::from_millis(at.as_u64().expect("milliseconds"))))
                .collect();
            let expected: Vec<bool> = serde_json::from_value(case["expected"]["accept"].clone()).expect("answers");
            assert_eq!(accepted, expected, "{}", case["name"]);
            cases += 1;
        }
        assert_eq!(cases, 5);
    }
}
