//! `events`: prints recorded events and, with `-f`, new events.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use imagelet_core::{image::counted, lock::locked, printable::printable};
use imagelet_node::{
    api::{EventLine, EventsRequest, NodeEvent},
    failure::Failure,
    node::Node,
};
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::{
    cli::{EventsArgs, Since},
    output::{Format, Table, line, printed},
    progress::PullScreen,
};

/// The interval of progress on a terminal. With JSON or YAML, it is `REPORT_PERIOD`.
const DRAW_PERIOD: Duration = Duration::from_millis(500);
const REPORT_PERIOD: Duration = Duration::from_secs(1);

pub(super) async fn run(node: &Node, arguments: EventsArgs, format: Format) -> Result<ExitCode, Failure> {
    let EventsArgs { follow: is_following, since } = arguments;
    if is_following { follow(node, since, format).await } else { recent(node, since, format).await }
}

fn includes(since: Option<Since>, entry: &EventLine, now: Timestamp) -> bool {
    let EventLine::Event(event) = entry else { return true };
    since.is_none_or(|since| since.includes(event.at.as_deref(), now))
}

async fn recent(node: &Node, since: Option<Since>, format: Format) -> Result<ExitCode, Failure> {
    let heard = Mutex::new(Vec::new());
    node.follow(&EventsRequest::default(), &|entry| locked(&heard).push(entry), &|_| {}).await?;
    let now = Timestamp::now();
    let mut heard = heard.into_inner().unwrap_or_else(PoisonError::into_inner);
    heard.retain(|entry| includes(since, entry, now));
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = if format.is_document() {
        heard.iter().try_for_each(|entry| out.write_all(&line(entry, format)))
    } else {
        let rows = heard.iter().filter_map(|entry| match entry {
            EventLine::Event(it) => {
                Some([time(it), it.kind.clone(), it.reason.clone(), object(it), it.message.clone()])
            }
            _ => None,
        });
        Table::new(["TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"]).rows(rows).write(&mut out)
    };
    Ok(printed(written.and_then(|()| out.flush()))?)
}

async fn follow(node: &Node, since: Option<Since>, format: Format) -> Result<ExitCode, Failure> {
    let is_document = format.is_document();
    let screen = if is_document { None } else { PullScreen::of_stderr(format == Format::Wide) };
    let every = if is_document { Some(REPORT_PERIOD) } else { screen.as_ref().map(|_| DRAW_PERIOD) };
    let progress_ms = every.and_then(|every| u64::try_from(every.as_millis()).ok());
    let request = EventsRequest { follow: true, progress_ms };
    let follower = Mutex::new(Follower { format, since, screen, last: None, before: None, failed: None });
    // Notified if a line cannot be written, for example because stdout is closed. The command then ends.
    let closed = Notify::new();
    let hear = |entry: EventLine| {
        let mut follower = locked(&follower);
        if let Err(error) = follower.print(&entry) {
            follower.failed = Some(error);
            closed.notify_one();
        }
    };
    let note = |text: &str| locked(&follower).note(text);
    let followed = async {
        loop {
            let failure = match node.follow(&request, &hear, &note).await {
                Ok(()) => return Ok(ExitCode::SUCCESS),
                Err(failure) => failure,
            };
            // With JSON or YAML, a failure ends the command. For people, the command waits until the daemon is back.
            if is_document || !is_lost(&failure) {
                return Err(failure);
            }
            locked(&follower).reconnect();
            note(&format!("{}; waiting for it", failure.message));
            while node.follow(&EventsRequest::default(), &|_| {}, &|_| {}).await.is_err() {
                tokio::time::sleep(REPORT_PERIOD).await;
            }
        }
    };
    tokio::select! {
        followed = followed => followed,
        () = closed.notified() => Ok(printed(locked(&follower).failed.take().map_or(Ok(()), Err))?),
    }
}

fn is_lost(failure: &Failure) -> bool {
    ["Cancelled", "Unavailable"].contains(&failure.reason.as_str())
}

#[derive(Debug)]
struct Follower {
    format: Format,
    since: Option<Since>,
    screen: Option<PullScreen>,
    last: Option<String>,
    /// The time of the last event before a reconnection. Events up to this time arrive again and are skipped.
    before: Option<String>,
    failed: Option<io::Error>,
}

impl Follower {
    fn print(&mut self, entry: &EventLine) -> io::Result<()> {
        if self.is_again(entry) || !includes(self.since, entry, Timestamp::now()) {
            return Ok(());
        }
        if let (Some(screen), EventLine::Progress(pull)) = (self.screen.as_mut(), entry) {
            screen.show(pull);
        }
        let text = if self.format.is_document() { line(entry, self.format) } else { plain(entry) };
        if text.is_empty() {
            return Ok(());
        }
        let write = || {
            let mut out = io::stdout().lock();
            out.write_all(&text).and_then(|()| out.flush())
        };
        self.screen.as_ref().map_or_else(write, |screen| screen.aside(write))
    }

    fn is_again(&mut self, entry: &EventLine) -> bool {
        let EventLine::Event(event) = entry else { return false };
        let is_again = event.at.is_some() && event.at <= self.before;
        if !is_again {
            self.last.clone_from(&event.at);
        }
        is_again
    }

    fn reconnect(&mut self) {
        self.before.clone_from(&self.last);
    }

    fn note(&mut self, text: &str) {
        if let Some(screen) = &mut self.screen {
            screen.clear();
        }
        drop(writeln!(io::stderr(), "-- {} --", printable(text)));
    }
}

/// The line of an event for people. Progress has no line of text, because bars show it.
fn plain(entry: &EventLine) -> Vec<u8> {
    match entry {
        EventLine::Event(event) => {
            let (time, object) = (time(event), object(event));
            let message = printable(&event.message);
            format!("{time}  {:<7}  {:<18}  {object}  {message}\n", event.kind, event.reason).into_bytes()
        }
        EventLine::Missed { count } => {
            format!("-- {} missed: this reader is too slow --\n", counted(*count, "event")).into_bytes()
        }
        EventLine::Progress(_) => Vec::new(),
    }
}

fn time(event: &NodeEvent) -> String {
    event.at.clone().unwrap_or_else(|| "-".into())
}

/// The object of an event: a pod, `node`, or `-` if the event is about a pull by a command.
fn object(event: &NodeEvent) -> String {
    if event.pod.is_empty() {
        return if event.node { "node" } else { "-" }.into();
    }
    let field = if event.field.is_empty() { String::new() } else { format!("/{}", event.field) };
    printable(&format!("{}/{}{field}", event.namespace, event.pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_from_before_a_reconnection_are_not_printed_again() {
        let at = |second: u8| {
            let at = Some(format!("2026-08-01T00:00:0{second}.000Z"));
            EventLine::Event(Box::new(NodeEvent { at, ..NodeEvent::default() }))
        };
        let mut printed =
            Follower { format: Format::Table, since: None, screen: None, last: None, before: None, failed: None };
        assert!(!printed.is_again(&at(1)) && !printed.is_again(&at(2)) && !printed.is_again(&at(2)));
        printed.reconnect();
        assert!(printed.is_again(&at(1)) && printed.is_again(&at(2)));
        assert!(!printed.is_again(&at(3)) && !printed.is_again(&EventLine::Missed { count: 1 }));
    }

    #[test]
    fn an_event_is_a_line_for_people_and_a_document_for_programs() {
        let event = NodeEvent {
            at: Some("2026-08-01T00:00:00.000Z".into()),
            kind: "Normal".into(),
            reason: "Pulling".into(),
            message: "Pulling image \"a\u{1b}\"".into(),
            namespace: "default".into(),
            pod: "web".into(),
            ..NodeEvent::default()
        };
        let entry = EventLine::Event(Box::new(event));
        let text = String::from_utf8(plain(&entry)).expect("text");
        assert_eq!(text, "2026-08-01T00:00:00.000Z  Normal   Pulling             default/web  Pulling image \"a?\"\n");
        let document: serde_json::Value = serde_json::from_slice(&line(&entry, Format::Json)).expect("JSON");
        assert_eq!((&document["type"], &document["reason"]), (&"event".into(), &"Pulling".into()));
        assert_eq!(object(&NodeEvent { node: true, ..NodeEvent::default() }), "node");
        assert_eq!(object(&NodeEvent::default()), "-");
        let missed: serde_json::Value =
            serde_json::from_slice(&line(&EventLine::Missed { count: 3 }, Format::Json)).expect("JSON");
        assert_eq!(missed, serde_json::json!({ "type": "missed", "count": 3 }));
        assert!(String::from_utf8(line(&entry, Format::Yaml)).expect("text").starts_with("---\ntype: event\n"));
    }
}
