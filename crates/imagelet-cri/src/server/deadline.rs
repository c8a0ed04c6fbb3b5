//! Ends a call at its caller's deadline with `DeadlineExceeded`.

use std::time::Duration;

use tonic::{Status, metadata::MetadataMap};

/// Tonic ends a call at the same time with `Cancelled`; this timer must fire first.
const AHEAD: Duration = Duration::from_millis(10);

pub(super) async fn within<T>(
    metadata: &MetadataMap,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let limit = metadata.get("grpc-timeout").and_then(|text| duration(text.as_encoded_bytes()));
    let Some(limit) = limit else { return call.await };
    match tokio::time::timeout(limit.saturating_sub(AHEAD), call).await {
        Ok(result) => result,
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

/// At most eight digits and a unit.
fn duration(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_reads_in_every_unit_and_nothing_else_does() {
        for (text, wanted) in [
            ("1m", Some(Duration::from_millis(1))),
            ("2S", Some(Duration::from_secs(2))),
            ("3M", Some(Duration::from_mins(3))),
            ("4H", Some(Duration::from_hours(4))),
            ("5u", Some(Duration::from_micros(5))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("", None),
            ("1", None),
            ("m", None),
            ("+1m", None),
            ("999999999m", None),
            ("1x", None),
        ] {
            assert_eq!(duration(text.as_bytes()), wanted, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_late_ends_with_the_code_for_it() {
        let mut metadata = MetadataMap::new();
        assert_eq!(within(&metadata, async { Ok(1) }).await.unwrap(), 1);
        metadata.insert("grpc-timeout", "50m".parse().unwrap());
        assert_eq!(within(&metadata, async { Ok(1) }).await.unwrap(), 1);
        let late = within(&metadata, std::future::pending::<Result<(), Status>>()).await.unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
    }
}
