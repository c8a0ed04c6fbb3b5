//! Serialization of document fields that serde does not provide: secrets, embedded JSON, times, bounded numbers.

use std::time::{Duration, SystemTime};

use imagelet_core::credentials::Secret;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::failure::Failure;

/// A secret that the socket transport sends in clear text. `Debug` redacts the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden(pub Secret);

impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.expose())
    }
}

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Secret::new(text)))
    }
}

/// Serializes an embedded document as a JSON tree. A document that is nested too deeply is copied as raw text.
#[expect(clippy::ref_option, reason = "the shape that serde calls")]
pub(super) fn laid_out<S: Serializer>(details: &Option<Box<RawValue>>, serializer: S) -> Result<S::Ok, S::Error> {
    match details.as_ref().map(|details| serde_json::from_str::<serde_json::Value>(details.get())) {
        Some(Ok(details)) => details.serialize(serializer),
        _ => details.serialize(serializer),
    }
}

/// A time in RFC 3339: whole seconds, UTC. `None`: a time before 1970.
pub fn moment(time: impl TryInto<jiff::Timestamp>) -> Option<String> {
    let time = time.try_into().ok().filter(|time| time.as_second() >= 0)?;
    Some(format!("{time:.0}"))
}

pub(crate) fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn milliseconds_of(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn at_most(name: &str, number: u64, max: u64) -> Result<usize, Failure> {
    let bounded = usize::try_from(number).ok().filter(|_| number <= max);
    bounded.ok_or_else(|| Failure::invalid(format!("`{name}` is `{number}`; it must be a number from 0 to {max}")))
}
