//! `/api/v1/events`: recorded events, later ones and the progress of pulls, as server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use http::header;
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;

use super::listener::StreamEnd;
use crate::{
    api::{EventsRequest, Handler, Replies},
    failure::Failure,
};

/// Streams at a time: a part of the connections, so that probes are still answered.
pub(super) const STREAMS_MAX: usize = 12;
/// Frames that a slow client may be behind.
const FRAMES_MAX: usize = 64;
/// A client that reads nothing for so long is disconnected.
const SLOW_MAX: Duration = Duration::from_secs(10);
/// A line at least this often, so that both ends notice that the other is gone.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The streams of a daemon.
#[derive(Clone, Debug)]
pub(super) struct EventStreams {
    pub(super) free: Arc<Semaphore>,
    pub(super) stop: CancellationToken,
}

/// The fields of a line that decide on it.
#[derive(Deserialize)]
struct LineHead {
    r#type: String,
    at: Option<String>,
}

impl EventStreams {
    /// Opens a stream. With `after`, the id of the last event that the client got, the events up to it are left out.
    pub(super) fn open(&self, node: Arc<dyn Handler>, asked: &EventsRequest, after: Option<String>) -> Response {
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            let message = format!("{STREAMS_MAX} clients follow the events over HTTP; that is the limit");
            return super::routes::refuse(&Failure::new("Unavailable", message));
        };
        let (sender, receiver) = mpsc::channel(FRAMES_MAX);
        let end = CancellationToken::new();
        let (ended, stop) = (end.clone(), self.stop.clone());
        let body = serde_json::to_vec(asked).unwrap_or_default();
        tokio::spawn(async move {
            let _permit = permit;
            let (replies, documents) = Replies::channel();
            tokio::select! {
                _ = node.handle(EventsRequest::NAME, &body, replies) => {}
                () = relay(documents, &sender, after) => {}
                () = stop.cancelled() => {}
            }
            ended.cancel();
        });
        let frames = ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>);
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
        (headers, Extension(StreamEnd(end)), Body::from_stream(frames)).into_response()
    }
}

/// Ends when the client has gone or is too slow.
async fn relay(
    mut documents: impl tokio_stream::Stream<Item = Vec<u8>> + Unpin,
    frames: &mpsc::Sender<Bytes>,
    mut after: Option<String>,
) {
    loop {
        let document = tokio::time::timeout(SILENCE_MAX, documents.next()).await;
        let text = match document {
            Ok(Some(document)) => match frame(&document, &mut after) {
                Some(text) => text,
                None => continue,
            },
            Ok(None) => return,
            Err(_) => ": \n\n".to_owned(),
        };
        match tokio::time::timeout(SLOW_MAX, frames.send(text.into())).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => return tracing::debug!("a client of the events reads too slowly and is disconnected"),
        }
    }
}

/// A document as a server-sent event; `None` for an event that the client has.
fn frame(document: &[u8], after: &mut Option<String>) -> Option<String> {
    let LineHead { r#type: kind, at } = serde_json::from_slice(document).ok()?;
    let text = std::str::from_utf8(document).ok()?;
    if kind == "event" {
        if after.is_some() && at <= *after {
            return None;
        }
        *after = None;
    }
    let id = at.map_or_else(String::new, |at| format!("id: {at}\n"));
    // A JSON document has no line end of its own.
    Some(format!("event: {kind}\n{id}data: {text}\n\n"))
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::api::Refusal;

    /// Sends this many events and waits.
    #[derive(Debug)]
    struct Sends(usize);

    #[async_trait]
    impl Handler for Sends {
        async fn handle(&self, _: &str, _: &[u8], replies: Replies) -> Result<Bytes, Refusal> {
            for number in 0..self.0 {
                let event = format!("{{\"type\":\"event\",\"at\":\"2026-08-01T00:00:{:02}.000Z\"}}", number % 60);
                if !replies.deliver(event.into_bytes()).await {
                    break;
                }
            }
            std::future::pending().await
        }
    }

    fn streams() -> EventStreams {
        EventStreams { free: Arc::new(Semaphore::new(1)), stop: CancellationToken::new() }
    }

    #[test]
    fn an_event_is_framed_with_its_time_as_id_and_a_client_gets_none_twice() {
        let mut after = None;
        let progress = br#"{"type":"progress","image":"a"}"#;
        assert_eq!(
            frame(progress, &mut after).as_deref(),
            Some("event: progress\ndata: {\"type\":\"progress\",\"image\":\"a\"}\n\n")
        );
        let at = |second| format!("{{\"type\":\"event\",\"at\":\"2026-08-01T00:00:0{second}.000Z\"}}").into_bytes();
        let mut after = Some("2026-08-01T00:00:02.000Z".to_owned());
        assert_eq!((frame(&at(1), &mut after), frame(&at(2), &mut after)), (None, None));
        assert!(frame(&at(3), &mut after).unwrap().contains("\nid: 2026-08-01T00:00:03.000Z\ndata: "));
        assert!(frame(&at(1), &mut after).is_some(), "a clock that was set back loses no event");
        assert_eq!(frame(b"no json", &mut None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_has_lines_and_ends_with_the_daemon() {
        let streams = streams();
        let mut body = streams.open(Arc::new(Sends(1)), &EventsRequest::default(), None).into_body();
        let mut next = async || body.frame().await.map(|frame| frame.unwrap().into_data().unwrap());
        assert!(next().await.unwrap().starts_with(b"event: event\n"));
        assert_eq!(next().await.unwrap(), ": \n\n");
        streams.stop.cancel();
        assert_eq!(next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_and_a_client_that_does_not_read_frees_its_place() {
        let streams = streams();
        let slow = streams.open(Arc::new(Sends(100_000)), &EventsRequest::default(), None);
        let refused = streams.open(Arc::new(Sends(1)), &EventsRequest::default(), None);
        assert_eq!(refused.status(), http::StatusCode::SERVICE_UNAVAILABLE);
        let StreamEnd(end) = slow.extensions().get::<StreamEnd>().unwrap().clone();
        end.cancelled().await;
        tokio::task::yield_now().await;
        let next = streams.open(Arc::new(Sends(1)), &EventsRequest::default(), None);
        assert_eq!(next.status(), http::StatusCode::OK);
    }
}
