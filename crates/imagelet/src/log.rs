//! Logging: a daemon's log, or lines for people on a command's stderr.

use std::{fmt, io::IsTerminal as _};

use tracing::field::Field;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::format::{Writer, debug_fn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::{config::Environment, output::printable};

/// Starts logging. A daemon logs its decisions. A command logs only what would otherwise be lost, because its errors
/// are printed to stderr anyway; with `IMAGELET_LOG` it logs like a daemon.
pub(crate) fn start(environment: &Environment, is_daemon: bool) {
    // The client of Kubernetes logs each failed request as an error, which its caller reports once.
    let default = if is_daemon { "info,kube_client=off" } else { "error" };
    let wanted = environment.log.as_deref().unwrap_or(default);
    let filter = wanted.parse().unwrap_or_else(|_| default.parse::<Targets>().unwrap_or_default());
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(std::io::stderr);
    if !is_daemon && environment.log.is_none() {
        let builder = builder.without_time().with_level(false).with_target(false).with_ansi(false);
        builder.fmt_fields(debug_fn(for_people)).finish().with(filter).init();
    } else if std::io::stderr().is_terminal() {
        builder.with_target(false).with_ansi(!environment.no_color).finish().with(filter).init();
    } else {
        builder.json().flatten_event(true).finish().with(filter).init();
    }
}

/// Formats the fields of an event as `warning: MESSAGE: CAUSE (path=/x)`; the message is the first of them.
fn for_people(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = printable(&format!("{value:?}"));
    let text = text.trim_matches('"');
    match field.name() {
        "message" => write!(writer, "warning: {text}"),
        "error" | "why" | "reason" => write!(writer, ": {text}"),
        name => write!(writer, " ({name}={text})"),
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
        let builder = tracing_subscriber::fmt().without_time().with_level(false).with_target(false).with_ansi(false);
        let subscriber = builder.fmt_fields(debug_fn(for_people)).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let error = io::Error::other("no room\u{1b}[31m");
            tracing::error!(%error, path = "/x", "could not write");
            tracing::error!("alone");
        });
        let said = String::from_utf8(kept.0.lock().expect("no panic").clone()).expect("it is text");
        assert_eq!(said, "warning: could not write: no room?[31m (path=/x)\nwarning: alone\n");
    }
}
