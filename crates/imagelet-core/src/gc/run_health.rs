//! The health of periodic runs: a first failure is logged, a second in a row is an event (`docs/spec/gc.md §9`).

use tracing::Level;

use super::report::GcEvent;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcRuns {
    failed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunMessage {
    /// `ERROR` for a failure, `INFO` for the first success after a failure, `DEBUG` for any other success.
    pub level: Level,
    pub text: &'static str,
    pub event: Option<GcEvent>,
}

impl GcRuns {
    pub fn ended(&mut self, result: Result<(), &str>) -> RunMessage {
        let failed_before = std::mem::replace(&mut self.failed, result.is_err());
        let (level, text, event) = match (result, failed_before) {
            (Err(_), false) => (
                Level::ERROR,
                "Image garbage collection failed once. Stats initialization may not have completed yet",
                None,
            ),
            (Err(error), true) => {
                let event = GcEvent { reason: "ImageGCFailed", message: error.to_owned() };
                (Level::ERROR, "Image garbage collection failed multiple times in a row", Some(event))
            }
            (Ok(()), true) => (Level::INFO, "Image garbage collection succeeded", None),
            (Ok(()), false) => (Level::DEBUG, "Image garbage collection succeeded", None),
        };
        RunMessage { level, text, event }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use imagelet_vectors::vectors;
    use serde_json::Value;

    use super::*;
    use crate::gc::GcPolicy;

    fn spelled(message: &RunMessage) -> Vec<String> {
        let level = match message.level {
            Level::ERROR => "log-error",
            Level::INFO => "log-v1",
            _ => "log-v4",
        };
        let event = message.event.as_ref().map(|event| format!("event:Warning {} {}", event.reason, event.message));
        std::iter::once(format!("{level}:{}", message.text)).chain(event).collect()
    }

    #[test]
    fn every_vector_of_the_loop_holds() {
        let cases = vectors("gc-loop-events.json");
        assert_eq!(cases.len(), 7);
        for case in cases {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            if let Some(results) = input["results"].as_array() {
                let mut runs = GcRuns::default();
                let per_run: Vec<Value> = results
                    .iter()
                    .map(|result| spelled(&runs.ended(result.as_str().map_or(Ok(()), Err))).into())
                    .collect();
                assert_eq!(Value::from(per_run), expected["per_run"], "{name}");
                continue;
            }
            let high = input["image_gc_high_threshold_percent"].as_i64().unwrap();
            let age_max = Duration::from_nanos(input["image_maximum_gc_age"].as_u64().unwrap());
            let policy = GcPolicy::new(high, high - 1, Duration::ZERO, Some(age_max)).unwrap();
            assert_eq!(expected["image_gc_loop_started"], !policy.is_off(), "{name}");
            // The program's `jobs.rs` runs these cases for detection jobs, too.
        }
    }
}
