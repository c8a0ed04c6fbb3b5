//! The stream of a node's events: recorded events, and the progress of its pulls.

use std::time::{Duration, SystemTime};

use imagelet_core::{
    events::{EventSubject, RecordedEvent},
    gc::{GcPhase, GcReport},
    image::{counted, shown_name},
};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    local::{FOLLOWERS_MAX, LocalNode},
    pulls::progress_row,
};
use crate::{
    api::{EventLine, EventsRequest, NodeEvent, PullProgressRow, Replies},
    failure::Failure,
};

const NAMED_MAX: usize = 10;
const PROGRESS_EVERY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(1);

/// Streams events to a reader until it disconnects; without `follow` it ends after the recorded events.
///
/// A slow reader gets up to as many events as are kept; then it loses the oldest, and a message reports how many. The stream
/// of one that reads nothing for 30 s ends.
pub(crate) async fn stream(node: &LocalNode, asked: &EventsRequest, replies: &Replies) -> Result<(), Failure> {
    let _follower = node.followers.try_acquire().map_err(|_| {
        Failure::new("Unavailable", format!("{FOLLOWERS_MAX} clients follow the events; that is the limit"))
    })?;
    let (kept, mut events) = node.parts.events.recent_and_follow();
    for recorded in kept {
        if !pass(replies, &EventLine::Event(Box::new(row(recorded)))).await {
            return Ok(());
        }
    }
    if !asked.follow {
        return Ok(());
    }
    let every = Duration::from_millis(asked.progress_ms.unwrap_or_default());
    let mut clock = interval(every.clamp(*PROGRESS_EVERY.start(), *PROGRESS_EVERY.end()));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut version = 0;
    loop {
        let is_there = tokio::select! {
            biased;
            event = events.recv() => match event {
                Ok(recorded) => pass(replies, &EventLine::Event(Box::new(row(recorded)))).await,
                Err(RecvError::Lagged(count)) => pass(replies, &EventLine::Missed { count }).await,
                Err(RecvError::Closed) => return Ok(()),
            },
            _ = clock.tick(), if asked.progress_ms.is_some() => {
                let (now, pulls) = pulls_since(node, version);
                version = now;
                report(pulls, replies).await
            }
            () = replies.closed() => false,
        };
        if !is_there {
            return Ok(());
        }
    }
}

async fn pass(replies: &Replies, line: &EventLine) -> bool {
    replies.deliver(serde_json::to_vec(line).unwrap_or_default()).await
}

/// The waiting and running pulls and those that ended after a version, and the present version. Zero returns none that ended.
pub(crate) fn pulls_since(node: &LocalNode, version: u64) -> (u64, Vec<PullProgressRow>) {
    let ((version, pulls), now) = (node.parts.manager.pulls_since(version), Instant::now());
    let is_silent = node.local().is_none();
    let row = |pull| {
        let row = progress_row(pull, is_silent, now);
        PullProgressRow { bytes_estimated: estimated(node, &row), ..row }
    };
    (version, pulls.into_iter().map(row).collect())
}

async fn report(pulls: Vec<PullProgressRow>, replies: &Replies) -> bool {
    for pull in pulls {
        if !pass(replies, &EventLine::Progress(Box::new(pull))).await {
            return false;
        }
    }
    true
}

/// The likely size for a runtime that reports none: the size of the image that had this name before.
fn estimated(node: &LocalNode, pull: &PullProgressRow) -> Option<u64> {
    if pull.bytes_total.is_some() {
        return None;
    }
    let name = pull.image.parse::<imagelet_core::image::Reference>().ok()?.canonical().to_string();
    let snapshot = node.parts.inventory.snapshot()?;
    let known = snapshot.entries.iter().find(|entry| entry.image.tags.contains(&name));
    known.map(|entry| entry.image.size.0).filter(|size| *size > 0)
}

/// A sentence with what a collection removed and why, and the first images by name. `None`: it removed nothing.
pub(crate) fn of_removals(report: &GcReport) -> Option<String> {
    let named = report.removed().take(NAMED_MAX).map(|removal| {
        let image = &removal.entry.image;
        let name =
            image.names().first().map_or_else(|| image.id.short().to_owned(), |tag| shown_name(tag).into_owned());
        format!("{name} ({})", removal.phase.map_or("space", GcPhase::reason))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let count = report.removed().count();
    let more = count.saturating_sub(NAMED_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let claimed = report.sizes.claimed;
    (count > 0).then(|| format!("Removed {} ({claimed} as listed): {named}{more}", counted(count, "image")))
}

pub(crate) fn row(recorded: RecordedEvent) -> NodeEvent {
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
    NodeEvent {
        number: recorded.number,
        at: moment_precise(recorded.at),
        kind: event.kind.name().into(),
        reason: event.reason.into(),
        message: event.message,
        class: cause.map(|cause| cause.class.into()).unwrap_or_default(),
        hop: cause.map(|cause| cause.stage.into()).unwrap_or_default(),
        ..line
    }
}

/// RFC 3339 with milliseconds: events of one second have an order.
fn moment_precise(time: SystemTime) -> Option<String> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let time = jiff::Timestamp::from_millisecond(i64::try_from(since.as_millis()).ok()?).ok()?;
    Some(format!("{time:.3}"))
}
