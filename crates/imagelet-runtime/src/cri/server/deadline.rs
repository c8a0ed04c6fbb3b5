//! Ends a call at its caller's deadline with `DeadlineExceeded`.

use std::{convert::Infallible, time::Duration};

use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderMap, Response},
};

pub(super) async fn within(
    limit: Option<Duration>,
    call: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Result<Response<Body>, Infallible> {
    let Some(limit) = limit else { return call.await };
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => Ok(Status::deadline_exceeded("context deadline exceeded").into_http()),
    }
}

/// The time limit in `grpc-timeout`: one to eight digits and a unit. An invalid header sets no limit.
pub(super) fn limit(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
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
            let headers: HeaderMap = [("grpc-timeout".parse().unwrap(), text.parse().unwrap())].into_iter().collect();
            assert_eq!(limit(&headers), wanted, "{text}");
        }
        assert_eq!(limit(&HeaderMap::new()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_late_ends_with_the_code_for_it() {
        let ready = || std::future::ready(Ok(Response::new(Body::empty())));
        let code = |answer: &Response<Body>| answer.headers().get("grpc-status").cloned();
        for limit in [None, Some(Duration::ZERO), Some(Duration::from_hours(99_999_999))] {
            assert_eq!(code(&within(limit, ready()).await.unwrap()), None, "{limit:?}");
        }
        for limit in [Duration::ZERO, Duration::from_millis(50)] {
            let began = tokio::time::Instant::now();
            let late = within(Some(limit), std::future::pending()).await.unwrap();
            assert_eq!(code(&late).unwrap(), "4");
            assert!(began.elapsed() >= limit);
        }
    }
}
