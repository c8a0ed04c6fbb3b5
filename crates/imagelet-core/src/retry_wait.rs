//! Waits between attempts: their growth, their random spread, and random numbers that are not secret.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// The wait before a retry: `first * factor^failures`, at most `max`.
pub fn grown(first: Duration, factor: f64, max: Duration, failures: u32) -> Duration {
    let exponent = i32::try_from(failures.min(64)).unwrap_or(64);
    Duration::from_secs_f64((first.as_secs_f64() * factor.powi(exponent)).min(max.as_secs_f64()))
}

/// Shortens a wait by the fraction `share * random`, so that waiters retry at different times. `random`: 0 to 1.
pub fn scattered(wait: Duration, share: f64, random: f64) -> Duration {
    wait.mul_f64(1.0 - share * random)
}

/// A random number from 0 to below 1.
pub fn random_share() -> f64 {
    (random() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A random number for waits and names. It is not safe for secrets, because it comes from the seed of a `RandomState`.
pub fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_bound_and_scatter_below_it() {
        let first = Duration::from_millis(200);
        let wait = |failures| grown(first, 2.0, Duration::from_secs(10), failures).as_millis();
        assert_eq!([0, 1, 2, 5, 6, u32::MAX].map(wait), [200, 400, 800, 6400, 10_000, 10_000]);
        assert_eq!([0.0, 0.5, 1.0].map(|random| scattered(first, 0.25, random).as_millis()), [200, 175, 150]);
        assert!((0..100).map(|_| random_share()).all(|share| (0.0..1.0).contains(&share)));
        assert!(random() != random() || random() != random());
    }
}
