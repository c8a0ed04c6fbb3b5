//! The stream of a node's events: recorded events, and the progress of its pulls.

use std::time::Duration;

use imagelet_core::events::{EventSubject, RecordedEvent};
use tokio::{
    sync::{Semaphore, SemaphorePermit, broadcast::error::RecvError, mpsc},
    time::{MissedTickBehavior, interval},
};

use super::Pulls;
use crate::{
    api::{EventLine, EventsRequest, NodeEvent, READ_WITHIN},
    failure::Failure,
};

/// Limit of the clients that follow the events. Each client may need a few hundred buffered messages of up to 8 KiB.
const FOLLOWERS_MAX: usize = 32;
static FOLLOWERS: Semaphore = Semaphore::const_new(FOLLOWERS_MAX);
const PROGRESS_EVERY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(1);

pub(crate) fn follower() -> Result<SemaphorePermit<'static>, Failure> {
    let full = || format!("{FOLLOWERS_MAX} clients follow the events; that is the limit");
    FOLLOWERS.try_acquire().map_err(|_| Failure::new("Unavailable", full()))
}

/// Sends the recorded events, and with `follow` the later ones, until the reader disconnects or reads nothing for 30 s.
/// A slow reader misses the events that are no longer recorded; [`EventLine::Missed`] counts them.
pub(crate) async fn send_events(
    pulls: &Pulls,
    asked: &EventsRequest,
    _place: SemaphorePermit<'static>,
    reader: mpsc::Sender<EventLine>,
) {
    let (kept, mut events) = pulls.images.events.recent_and_follow();
    let mut lines: Vec<EventLine> = kept.into_iter().map(line).collect();
    let every = Duration::from_millis(asked.progress_ms.unwrap_or_default());
    let mut clock = interval(every.clamp(*PROGRESS_EVERY.start(), *PROGRESS_EVERY.end()));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut version = 0;
    loop {
        for line in lines.drain(..) {
            if reader.send_timeout(line, READ_WITHIN).await.is_err() {
                return;
            }
        }
        if !asked.follow {
            return;
        }
        tokio::select! {
            biased;
            event = events.recv() => lines.push(match event {
                Ok(recorded) => line(recorded),
                Err(RecvError::Lagged(count)) => EventLine::Missed { count },
                Err(RecvError::Closed) => return,
            }),
            _ = clock.tick(), if asked.progress_ms.is_some() => {
                let (now, changed) = pulls.since(version);
                version = now;
                lines.extend(changed.into_iter().map(|pull| EventLine::Progress(Box::new(pull))));
            }
            () = reader.closed() => return,
        }
    }
}

fn line(recorded: RecordedEvent) -> EventLine {
    let event = recorded.event;
    let (mut line, cause) = (NodeEvent::default(), event.cause);
    match &event.subject {
        EventSubject::Node => line.node = true,
        EventSubject::Pod { pod, field_path } => {
            (line.namespace, line.pod) = (pod.namespace.to_string(), pod.name.to_string());
            line.uid = pod.uid.to_string();
            line.field = field_path.to_string();
        }
    }
    EventLine::Event(Box::new(NodeEvent {
        number: recorded.number,
        // The time has milliseconds, so that clients can order the events of one second.
        at: jiff::Timestamp::try_from(recorded.at).ok().map(|at| format!("{at:.3}")),
        kind: event.kind.name().into(),
        reason: event.reason.into(),
        message: event.message,
        class: cause.map(|(class, _)| class.to_string()).unwrap_or_default(),
        hop: cause.map(|(_, stage)| stage.to_string()).unwrap_or_default(),
        ..line
    }))
}
