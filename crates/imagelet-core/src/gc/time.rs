//! Ages, where no time at all is infinitely long ago and the future is now (`docs/spec/gc.md §0.2`).

use std::time::{Duration, SystemTime};

/// `now - since > age`.
pub(crate) fn is_older(since: Option<SystemTime>, age: Duration, now: SystemTime) -> bool {
    since.is_none_or(|since| now.duration_since(since).is_ok_and(|passed| passed > age))
}

/// `now - since < age`.
pub(crate) fn is_younger(since: Option<SystemTime>, age: Duration, now: SystemTime) -> bool {
    since.is_some_and(|since| now.duration_since(since).map_or(true, |passed| passed < age))
}
