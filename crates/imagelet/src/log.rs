//! Logging: a daemon's log, or lines for people on a command's stderr.

use std::{
    fmt,
    io::{self, IsTerminal as _},
};

use imagelet_core::printable::{escape_unprintable, printable};
use tracing::field::Field;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::format::{Writer, debug_fn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use imagelet_node::config::{Environment, has_dumb_terminal, variable};

/// Starts logging. If `--log-level` or IMAGELET_LOG is set, a command logs like a daemon, else only errors, as text.
pub(crate) fn start(environment: &Environment, is_daemon: bool) {
    let default = if is_daemon { "info" } else { "error" };
    let wanted = environment.log.as_deref().unwrap_or(default);
    let filter: Targets = wanted.parse().unwrap_or_else(|_| default.parse().unwrap_or_default());
    // The kube crates would log errors that the caller reports, and the whole of an answer that they cannot decode.
    let filter = filter.with_targets([("kube_client", LevelFilter::OFF), ("kube_runtime", LevelFilter::OFF)]);
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(|| LogWriter(io::stderr()));
    if !is_daemon && environment.log.is_none() {
        let builder = builder.without_time().with_level(false).with_target(false).with_ansi(false);
        builder.fmt_fields(debug_fn(for_people)).finish().with(filter).init();
    } else if io::stderr().is_terminal() {
        let has_colours = variable("NO_COLOR").is_none() && !has_dumb_terminal();
        builder.with_target(false).with_ansi(has_colours).finish().with(filter).init();
    } else {
        builder.json().flatten_event(true).finish().with(filter).init();
    }
}

/// Escapes unprintable characters in log events, which may quote a registry. Each write is a whole event.
struct LogWriter<W>(W);

impl<W: io::Write> io::Write for LogWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(escape_unprintable(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Formats one field. A whole event reads `warning: MESSAGE: CAUSE (path=/x)`, because its message is the first field.
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
    use std::sync::{Arc, Mutex};

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
    fn a_text_from_elsewhere_cannot_reverse_a_line_of_the_log_nor_end_it() {
        let text = "of \u{202e}gpj.exe\u{2028}forged";
        for is_json in [true, false] {
            let kept = Kept::default();
            let writer = kept.clone();
            let builder = tracing_subscriber::fmt().with_ansi(false).with_writer(move || LogWriter(writer.clone()));
            let say = || tracing::warn!(error = text, why = %text, "{text}");
            if is_json {
                tracing::subscriber::with_default(builder.json().flatten_event(true).finish(), say);
            } else {
                tracing::subscriber::with_default(builder.finish(), say);
            }
            let said = String::from_utf8(kept.0.lock().expect("no panic").clone()).expect("it is text");
            assert!(!said.contains(['\u{202e}', '\u{2028}']) && said.lines().count() == 1, "{said}");
            if is_json {
                let event: serde_json::Value = serde_json::from_str(&said).expect("JSON");
                assert_eq!([&event["message"], &event["why"]], [text, text], "a reader of JSON gets the text");
            }
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
