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
use tokio::sync::mpsc;

use crate::{
    cli::is_since,
    output::{Format, Table, line, printed},
    progress::PullScreen,
};

/// The interval of progress on a terminal. With JSON or YAML, it is `REPORT_PERIOD`.
const DRAW_PERIOD: Duration = Duration::from_millis(500);
const REPORT_PERIOD: Duration = Duration::from_secs(1);

fn includes(since: Option<Timestamp>, entry: &EventLine) -> bool {
    let EventLine::Event(event) = entry else { return true };
    is_since(since, event.at.as_deref())
}

pub(super) async fn recent(node: &Node, since: Option<Timestamp>, format: Format) -> Result<ExitCode, Failure> {
    let heard = Mutex::new(Vec::new());
    node.follow(&EventsRequest::default(), &|entry| locked(&heard).push(entry), &|_| {}).await?;
    let mut heard = heard.into_inner().unwrap_or_else(PoisonError::into_inner);
    heard.retain(|entry| includes(since, entry));
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

pub(super) async fn follow(node: &Node, since: Option<Timestamp>, format: Format) -> Result<ExitCode, Failure> {
    let is_document = format.is_document();
    let screen = if is_document { None } else { PullScreen::of_stderr(format == Format::Wide) };
    let every = if is_document { Some(REPORT_PERIOD) } else { screen.as_ref().map(|_| DRAW_PERIOD) };
    let progress_ms = every.and_then(|every| u64::try_from(every.as_millis()).ok());
    let request = EventsRequest { follow: true, progress_ms };
    let follower = Mutex::new(Follower { format, since, screen, last: None, before: None });
    // The command ends if a line cannot be written, for example because stdout is closed.
    let (failed, mut failures) = mpsc::channel(1);
    let hear = |entry: EventLine| {
        if let Err(error) = locked(&follower).print(&entry) {
            drop(failed.try_send(error));
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
            if is_document || !["Cancelled", "Unavailable"].contains(&failure.reason.as_str()) {
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
        Some(error) = failures.recv() => Ok(printed(Err(error))?),
    }
}

#[derive(Debug)]
struct Follower {
    format: Format,
    since: Option<Timestamp>,
    screen: Option<PullScreen>,
    last: Option<String>,
    /// The time of the last event before a reconnection. Events up to this time arrive again and are skipped.
    before: Option<String>,
}

impl Follower {
    fn print(&mut self, entry: &EventLine) -> io::Result<()> {
        if self.is_again(entry) || !includes(self.since, entry) {
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
        let mut printed = Follower { format: Format::Table, since: None, screen: None, last: None, before: None };
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
