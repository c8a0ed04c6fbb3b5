//! `/api/v1/events`: past events, new events and the progress of pulls, as server-sent events.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Extension,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use http::header;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{EventLine, since_epoch},
    connections::StreamEnd,
    failure::Failure,
};

const STREAM_MAX: Duration = Duration::from_hours(12);
const STREAMS_MAX: usize = 12;
/// The event streams may use this part of the connections of one address. The rest is for probes and scrapes.
const STREAMS_PART: (usize, usize) = (3, 4);
const LINES_MAX: usize = 64;
/// A line is sent at least this often, so that the client and the server notice a lost connection.
const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
pub(super) struct EventStreams {
    free: Arc<Semaphore>,
    max: usize,
    stop: CancellationToken,
}

impl EventStreams {
    pub(super) fn new(address_max: usize, stop: CancellationToken) -> Self {
        let max = STREAMS_MAX.min(address_max * STREAMS_PART.0 / STREAMS_PART.1);
        Self { free: Arc::new(Semaphore::new(max)), max, stop }
    }

    /// Streams the lines of `send`, until `permission` is cancelled or [`STREAM_MAX`] has passed.
    pub(super) fn open<F>(
        &self,
        framing: Framing,
        permission: CancellationToken,
        send: impl FnOnce(mpsc::Sender<EventLine>) -> F,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            let message = format!("{} clients follow the events over HTTP; that is the limit", self.max);
            return Failure::new("Unavailable", message).into_response();
        };
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let (stop, end, sent) = (self.stop.clone(), CancellationToken::new(), send(sender));
        let ends = end.clone().drop_guard();
        tokio::spawn(async move {
            let _held = (permit, ends);
            tokio::select! {
                () = sent => {}
                () = stop.cancelled() => {}
                () = permission.cancelled() => {}
                () = tokio::time::sleep(STREAM_MAX) => {}
            }
        });
        let frames = ReceiverStream::new(lines).filter_map(move |line| framing.frame(&line).map(Ok::<_, Infallible>));
        let events = Sse::new(frames).keep_alive(KeepAlive::new().interval(SILENCE_MAX));
        (Extension(StreamEnd(end)), [(header::CACHE_CONTROL, "no-store")], events).into_response()
    }
}

pub(super) struct Framing {
    /// The start time of this daemon, as the prefix of event ids: each daemon numbers its events from 1.
    run: String,
    after: u64,
}

impl Framing {
    /// `last_id` is the id of the last received event. With an id of an earlier daemon, all events are sent.
    pub(super) fn new(started_at: SystemTime, last_id: Option<&str>) -> Self {
        let run = since_epoch(started_at).as_millis().to_string();
        let after = last_id.and_then(|id| id.strip_prefix(&run)?.strip_prefix('-')?.parse().ok());
        Self { run, after: after.unwrap_or(0) }
    }

    fn frame(&self, line: &EventLine) -> Option<Event> {
        let (kind, number) = match line {
            EventLine::Event(event) if event.number <= self.after => return None,
            EventLine::Event(event) => ("event", Some(event.number)),
            EventLine::Progress(_) => ("progress", None),
            EventLine::Missed { .. } => ("missed", None),
        };
        let event = Event::default().event(kind);
        let event = match number {
            Some(number) => event.id(format!("{}-{number}", self.run)),
            None => event,
        };
        event.json_data(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::api::{NodeEvent, PullProgressRow, READ_WITHIN};

    const STARTED_AT: SystemTime = SystemTime::UNIX_EPOCH;

    /// Sends this many events and waits.
    async fn send(count: u64, client: mpsc::Sender<EventLine>) {
        for number in 1..=count {
            if client.send_timeout(event(number), READ_WITHIN).await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    fn event(number: u64) -> EventLine {
        EventLine::Event(Box::new(NodeEvent { number, ..NodeEvent::default() }))
    }

    /// For a daemon with two connections of one address.
    fn streams() -> EventStreams {
        EventStreams::new(2, CancellationToken::new())
    }

    fn open(streams: &EventStreams, count: u64) -> Response {
        let framing = Framing::new(STARTED_AT, None);
        streams.open(framing, CancellationToken::new(), |client| send(count, client))
    }

    async fn next(body: &mut Body) -> Option<Bytes> {
        body.frame().await.map(|frame| frame.unwrap().into_data().unwrap())
    }

    async fn text(frames: impl IntoIterator<Item = Event>) -> String {
        let frames: Vec<_> = frames.into_iter().map(Ok::<_, Infallible>).collect();
        let body = Sse::new(tokio_stream::iter(frames)).into_response().into_body().collect().await.unwrap();
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_client_gets_each_event_once_also_those_of_one_moment_and_those_of_another_run() {
        let framing = |id: Option<&str>| Framing::new(STARTED_AT + Duration::from_millis(1234), id);
        let progress =
            EventLine::Progress(Box::new(PullProgressRow { image: "a".into(), ..PullProgressRow::default() }));
        let progress = text(framing(Some("1234-7")).frame(&progress)).await;
        assert!(progress.starts_with("event: progress\ndata: {\"type\":\"progress\","), "{progress}");
        for (id, first) in [
            (None, 1),
            (Some("1234-2"), 3),
            (Some("999-2"), 1),
            (Some("2026-08-01T00:00:00.000Z"), 1),
            (Some("1234-x"), 1),
            (Some(""), 1),
        ] {
            let shown = text((1..=4).filter_map(|number| framing(id).frame(&event(number)))).await;
            let ids: Vec<&str> = shown.lines().filter(|line| line.starts_with("id: ")).collect();
            let expected: Vec<String> = (first..=4).map(|number| format!("id: 1234-{number}")).collect();
            assert_eq!(ids, expected, "{id:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_has_lines_and_ends_with_the_daemon() {
        let streams = streams();
        let mut body = open(&streams, 1).into_body();
        assert!(next(&mut body).await.unwrap().starts_with(b"event: event\n"));
        assert!(next(&mut body).await.unwrap().starts_with(b":"));
        streams.stop.cancel();
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_with_the_permission_that_opened_it_and_after_its_longest_time() {
        let (streams, permission) = (streams(), CancellationToken::new());
        let framing = Framing::new(STARTED_AT, None);
        let mut body = streams.open(framing, permission.clone(), |client| send(0, client)).into_body();
        assert!(next(&mut body).await.unwrap().starts_with(b":"));
        permission.cancel();
        assert_eq!(next(&mut body).await, None);
        let (mut body, opened) = (open(&streams, 0).into_body(), tokio::time::Instant::now());
        while next(&mut body).await.is_some() {}
        assert_eq!(opened.elapsed(), STREAM_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_and_a_client_that_does_not_read_frees_its_place() {
        let streams = streams();
        let slow = open(&streams, 100_000);
        let StreamEnd(end) = slow.extensions().get().cloned().expect("its connection knows the end");
        let refused = open(&streams, 1);
        assert_eq!(refused.status(), http::StatusCode::SERVICE_UNAVAILABLE, "three quarters of the connections");
        tokio::time::sleep(READ_WITHIN / 2).await;
        assert!(!end.is_cancelled());
        tokio::time::sleep(READ_WITHIN).await;
        assert!(end.is_cancelled());
        assert_eq!(open(&streams, 1).status(), http::StatusCode::OK);
        drop(slow);
    }
}
