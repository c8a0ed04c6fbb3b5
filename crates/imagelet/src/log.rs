//! Logging: a daemon's log, or lines for people on a command's stderr.

use std::{fmt, io::IsTerminal as _};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::{config::Environment, output::printable};

/// Starts logging. A daemon logs its decisions. A command logs only what would otherwise be lost, because its errors
/// are printed to stderr anyway; with `IMAGELET_LOG` it logs like a daemon.
pub(crate) fn start(environment: &Environment, is_daemon: bool) {
    let default = if is_daemon { "info" } else { "error" };
    let wanted = environment.log.as_deref().unwrap_or(default);
    let filter = EnvFilter::try_new(wanted).unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if !is_daemon && environment.log.is_none() {
        builder.event_format(ForPeople).init();
    } else if std::io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).init();
    }
}

/// Formats an event as `warning: MESSAGE: CAUSE (path=/x)`.
struct ForPeople;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for ForPeople {
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        writeln!(writer, "{}", said.line())
    }
}

#[derive(Debug, Default)]
struct Said {
    message: String,
    causes: Vec<String>,
    others: Vec<String>,
}

impl Said {
    fn line(&self) -> String {
        let said = [&[format!("warning: {}", self.message)], self.causes.as_slice()].concat().join(": ");
        let others = if self.others.is_empty() { String::new() } else { format!(" ({})", self.others.join(", ")) };
        printable(&(said + &others))
    }

    fn take(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = text,
            "error" | "why" | "reason" => self.causes.push(text),
            name => self.others.push(format!("{name}={text}")),
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_a_line_for_people() {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt().event_format(ForPeople).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let error = io::Error::other("no room\u{1b}[31m");
            tracing::error!(%error, path = "/x", "could not write");
            tracing::error!("alone");
        });
        let said = String::from_utf8(kept.0.lock().expect("no panic").clone()).expect("it is text");
        assert_eq!(said, "warning: could not write: no room?[31m (path=/x)\nwarning: alone\n");
    }
}
