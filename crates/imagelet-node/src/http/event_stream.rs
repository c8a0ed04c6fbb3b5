//! `/api/v1/events`: recorded events, later ones and the progress of pulls, as server-sent events.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

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

use crate::{
    api::{EventsRequest, Handler, Replies, since_epoch},
    connections::StreamEnd,
    failure::Failure,
};

/// How long a stream lasts.
const STREAM_MAX: Duration = Duration::from_hours(12);
const STREAMS_MAX: usize = 12;
/// The part of an address's connections that all streams together may have: the same address still probes and scrapes.
const STREAMS_PART: (usize, usize) = (3, 4);
/// Frames that a slow client may be behind.
const FRAMES_MAX: usize = 64;
/// A client that reads nothing for so long loses its stream.
const SLOW_MAX: Duration = Duration::from_secs(10);
/// A line at least this often, so that both ends notice that the other is gone.
const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
pub(super) struct EventStreams {
    free: Arc<Semaphore>,
    max: usize,
    /// The start of this daemon, which the ids of its events begin with: a daemon numbers its events from 1.
    run: String,
    stop: CancellationToken,
}

/// The fields of a line that decide on it.
#[derive(Deserialize)]
struct LineHead {
    r#type: String,
    #[serde(default)]
    number: u64,
}

/// The events that a client gets, and the ids that they have.
struct Framing {
    run: String,
    /// The number of the last event that the client has.
    after: u64,
}

impl EventStreams {
    /// `address_max`: the connections that one address may have.
    pub(super) fn new(address_max: usize, started_at: SystemTime, stop: CancellationToken) -> Self {
        let max = STREAMS_MAX.min(address_max * STREAMS_PART.0 / STREAMS_PART.1);
        Self { free: Arc::new(Semaphore::new(max)), max, run: since_epoch(started_at).as_millis().to_string(), stop }
    }

    /// Opens a stream, which lasts until `permission` ends, and no longer than [`STREAM_MAX`]. With `after`, the id of the last
    /// event that the client got, the events up to it are left out.
    pub(super) fn open(
        &self,
        node: Arc<dyn Handler>,
        asked: &EventsRequest,
        after: Option<&str>,
        permission: CancellationToken,
    ) -> Response {
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            let message = format!("{} clients follow the events over HTTP; that is the limit", self.max);
            return super::routes::refuse(&Failure::new("Unavailable", message));
        };
        let (sender, receiver) = mpsc::channel(FRAMES_MAX);
        let (stop, end) = (self.stop.clone(), CancellationToken::new());
        let ends = end.clone().drop_guard();
        let body = serde_json::to_vec(asked).unwrap_or_default();
        let framing = Framing { run: self.run.clone(), after: self.number_of(after).unwrap_or(0) };
        tokio::spawn(async move {
            let _held = (permit, ends);
            let (replies, documents) = Replies::channel();
            tokio::select! {
                refused = async { node.handle(EventsRequest::NAME, &body, replies).await.err() } => {
                    if let Some(failure) = refused {
                        let document = serde_json::to_string(&failure).unwrap_or_default();
                        let last = format!("event: failure\ndata: {document}\n\n");
                        drop(tokio::time::timeout(SLOW_MAX, sender.send(last.into())).await);
                    }
                }
                () = relay(documents, &sender, &framing) => {}
                () = stop.cancelled() => {}
                () = permission.cancelled() => {}
                () = tokio::time::sleep(STREAM_MAX) => {}
            }
        });
        let frames = ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>);
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
        (Extension(StreamEnd(end)), headers, Body::from_stream(frames)).into_response()
    }

    /// The number of an event by its id; `None` for an event of another run.
    fn number_of(&self, id: Option<&str>) -> Option<u64> {
        let (run, number) = id?.split_once('-')?;
        number.parse().ok().filter(|_| run == self.run)
    }
}

/// Ends when the client has gone or is too slow.
async fn relay(
    mut documents: impl tokio_stream::Stream<Item = Vec<u8>> + Unpin,
    frames: &mpsc::Sender<Bytes>,
    framing: &Framing,
) {
    loop {
        let document = tokio::time::timeout(SILENCE_MAX, documents.next()).await;
        let text = match document {
            Ok(Some(document)) => match framing.frame(&document) {
                Some(text) => text,
                None => continue,
            },
            Ok(None) => return,
            Err(_) => ": \n\n".to_owned(),
        };
        match tokio::time::timeout(SLOW_MAX, frames.send(text.into())).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => return tracing::debug!("a client of the events reads too slowly; its stream ends"),
        }
    }
}

impl Framing {
    /// A document as a server-sent event; `None` for an event that the client has.
    fn frame(&self, document: &[u8]) -> Option<String> {
        let LineHead { r#type: kind, number } = serde_json::from_slice(document).ok()?;
        let text = std::str::from_utf8(document).ok()?;
        let is_event = kind == "event";
        if is_event && number <= self.after {
            return None;
        }
        let id = if is_event { format!("id: {}-{number}\n", self.run) } else { String::new() };
        // A JSON document has no line end of its own.
        Some(format!("event: {kind}\n{id}data: {text}\n\n"))
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use http_body_util::BodyExt as _;

    use super::*;

    /// Sends this many events and waits.
    #[derive(Debug)]
    struct Sends(usize);

    #[async_trait]
    impl Handler for Sends {
        async fn handle(&self, _: &str, _: &[u8], replies: Replies) -> Result<Bytes, Failure> {
            for number in 1..=self.0 {
                if !replies.deliver(event(number)).await {
                    break;
                }
            }
            std::future::pending().await
        }
    }

    /// Has its limit of followers.
    #[derive(Debug)]
    struct Refuses;

    #[async_trait]
    impl Handler for Refuses {
        async fn handle(&self, _: &str, _: &[u8], _: Replies) -> Result<Bytes, Failure> {
            Err(Failure::new("Unavailable", "32 clients follow"))
        }
    }

    fn event(number: usize) -> Vec<u8> {
        format!("{{\"type\":\"event\",\"at\":\"2026-08-01T00:00:00.000Z\",\"number\":{number}}}").into_bytes()
    }

    /// For a daemon with two connections of one address.
    fn streams() -> EventStreams {
        let started_at = SystemTime::UNIX_EPOCH + Duration::from_millis(1234);
        EventStreams::new(2, started_at, CancellationToken::new())
    }

    fn open(streams: &EventStreams, node: impl Handler + 'static) -> Response {
        streams.open(Arc::new(node), &EventsRequest::default(), None, CancellationToken::new())
    }

    async fn next(body: &mut Body) -> Option<Bytes> {
        body.frame().await.map(|frame| frame.unwrap().into_data().unwrap())
    }

    #[test]
    fn a_client_gets_each_event_once_also_those_of_one_moment_and_those_of_another_run() {
        let streams = streams();
        let framing = |id: Option<&str>| Framing { run: "1234".into(), after: streams.number_of(id).unwrap_or(0) };
        let progress = br#"{"type":"progress","image":"a"}"#;
        assert_eq!(
            framing(Some("1234-7")).frame(progress).as_deref(),
            Some("event: progress\ndata: {\"type\":\"progress\",\"image\":\"a\"}\n\n")
        );
        for (id, first) in [
            (None, 1),
            (Some("1234-2"), 3),
            (Some("999-2"), 1),
            (Some("2026-08-01T00:00:00.000Z"), 1),
            (Some("1234-x"), 1),
            (Some(""), 1),
        ] {
            let shown = (1..=4).filter_map(|number| framing(id).frame(&event(number)));
            let ids: Vec<String> = shown.map(|text| text.lines().nth(1).unwrap().to_owned()).collect();
            let expected: Vec<String> = (first..=4).map(|number| format!("id: 1234-{number}")).collect();
            assert_eq!(ids, expected, "{id:?}");
        }
        assert_eq!(framing(None).frame(b"no json"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_has_lines_and_ends_with_the_daemon() {
        let streams = streams();
        let mut body = open(&streams, Sends(1)).into_body();
        assert!(next(&mut body).await.unwrap().starts_with(b"event: event\n"));
        assert_eq!(next(&mut body).await.unwrap(), ": \n\n");
        streams.stop.cancel();
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_with_the_permission_that_opened_it_and_after_its_longest_time() {
        let (streams, permission) = (streams(), CancellationToken::new());
        let mut body =
            streams.open(Arc::new(Sends(0)), &EventsRequest::default(), None, permission.clone()).into_body();
        assert_eq!(next(&mut body).await.unwrap(), ": \n\n");
        permission.cancel();
        assert_eq!(next(&mut body).await, None);
        let (mut body, opened) = (open(&streams, Sends(0)).into_body(), tokio::time::Instant::now());
        while next(&mut body).await.is_some() {}
        assert_eq!(opened.elapsed(), STREAM_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_stream_says_why() {
        let mut body = open(&streams(), Refuses).into_body();
        let document = r#"{"message":"32 clients follow","reason":"Unavailable"}"#;
        assert_eq!(next(&mut body).await.unwrap(), format!("event: failure\ndata: {document}\n\n"));
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_and_a_client_that_does_not_read_frees_its_place() {
        let streams = streams();
        let slow = open(&streams, Sends(100_000));
        let StreamEnd(end) = slow.extensions().get().cloned().expect("its connection knows the end");
        let refused = open(&streams, Sends(1));
        assert_eq!(refused.status(), http::StatusCode::SERVICE_UNAVAILABLE, "three quarters of the connections");
        tokio::time::sleep(SLOW_MAX - Duration::from_secs(1)).await;
        assert!(!end.is_cancelled());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(end.is_cancelled());
        assert_eq!(open(&streams, Sends(1)).status(), http::StatusCode::OK);
        drop(slow);
    }
}
