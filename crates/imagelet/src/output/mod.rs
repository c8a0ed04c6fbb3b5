//! The output of results: aligned tables for people, JSON and YAML for programs.

mod table;

use std::{
    borrow::Cow,
    io::{self, Write},
    process::ExitCode,
};

use clap::ValueEnum;
use imagelet_core::{
    image::{ByteSize, ImageId},
    printable::{escape_unprintable, is_unprintable},
};
use imagelet_node::failure::Failure;
use serde::Serialize;
use serde_json::json;

pub(crate) use table::{Table, fitted_to_stderr};

pub(crate) const DIGEST_SHOWN: usize = 7 + 12;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For people with wide screens.
    Wide,
    /// For programs; stable.
    Json,
    /// The same, as YAML.
    Yaml,
}

impl Format {
    pub(crate) fn is_document(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }
}

/// Formats a document. `is_line`: it is one of several, so JSON is on one line, and YAML is after the separator `---`.
fn text(document: &impl Serialize, format: Format, is_line: bool) -> io::Result<String> {
    if format == Format::Yaml {
        let text = serde_saphyr::to_string(document).map_err(io::Error::other)?;
        // The YAML writer leaves marks of the text's direction unescaped.
        let text = text.replace(|c: char| is_unprintable(c) && c != '\n', "?");
        return Ok(if is_line { format!("---\n{text}") } else { text });
    }
    let text = if is_line { serde_json::to_string(document) } else { serde_json::to_string_pretty(document) };
    Ok(escape_unprintable(&text?) + "\n")
}

pub(crate) fn line(document: &impl Serialize, format: Format) -> Vec<u8> {
    text(document, format, true).unwrap_or_default().into_bytes()
}

pub(crate) fn print<T: Serialize>(
    format: Format,
    result: &T,
    human: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = if format.is_document() {
        text(result, format, false).and_then(|text| out.write_all(text.as_bytes()))
    } else {
        human(&mut out)
    };
    printed(written.and_then(|()| out.flush()))
}

pub(crate) fn print_failure(failure: &Failure) {
    // A failed write is ignored: stderr may be closed.
    drop(writeln!(io::stderr().lock(), "{}", fitted_to_stderr(&failure.text())));
}

pub(crate) fn report(failure: &Failure, format: Format, is_line: bool) -> ExitCode {
    print_failure(failure);
    write_failure(failure, format, is_line);
    ExitCode::FAILURE
}

/// Writes a failure to stdout if the format is JSON or YAML. `is_line`: the command prints one document per line.
pub(crate) fn write_failure(failure: &Failure, format: Format, is_line: bool) {
    if format.is_document() {
        let document =
            if is_line { json!({ "type": "failure", "failure": failure }) } else { json!({ "failure": failure }) };
        // A failed write is ignored: stdout may be closed.
        drop(text(&document, format, is_line).and_then(|text| io::stdout().lock().write_all(text.as_bytes())));
    }
}

pub(crate) fn exit_code(is_failed: bool) -> ExitCode {
    ExitCode::from(u8::from(is_failed))
}

/// Converts the result of a write to stdout to an exit code. A closed stdout (`imagelet ls | head -1`) is no error.
pub(crate) fn printed(written: io::Result<()>) -> io::Result<ExitCode> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(ExitCode::SUCCESS),
    }
}

pub(crate) fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

pub(crate) fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".into(), |bytes| ByteSize(bytes).to_string())
}

pub(crate) fn id(id: &str, is_wide: bool) -> &str {
    if is_wide { id } else { ImageId::shorten(id) }
}

pub(crate) const NAMELESS: &str = "<none>";

/// An image's name in a table: its first tag, else its first digest. `(+2)`: the image has two more tags or digests.
pub(crate) fn names(names: &[String], digests: &[String]) -> String {
    match if names.is_empty() { digests } else { names } {
        [] => NAMELESS.into(),
        [one] => cut_digest(one).into_owned(),
        [first, rest @ ..] => format!("{} (+{})", cut_digest(first), rest.len()),
    }
}

pub(crate) fn cut_digest(name: &str) -> Cow<'_, str> {
    match name.rsplit_once('@') {
        Some((repository, digest)) if digest.len() > DIGEST_SHOWN => {
            let end = (0..=DIGEST_SHOWN).rev().find(|at| digest.is_char_boundary(*at)).unwrap_or(0);
            format!("{repository}@{}…", &digest[..end]).into()
        }
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_by_its_tag_then_by_its_digest() {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let digest = format!("r/a@sha256:{}", "0123456789abcdef".repeat(4));
        for (tags, digests, shown) in [
            (&["r/a:1"][..], &[digest.as_str()][..], "r/a:1"),
            (&["r/a:1", "r/a:2"], &[], "r/a:1 (+1)"),
            (&[], &[&digest], "r/a@sha256:0123456789ab…"),
            (&[], &[&digest, "r/b@sha256:12"], "r/a@sha256:0123456789ab… (+1)"),
            (&[], &["r/b@sha256:12"], "r/b@sha256:12"),
            (&[], &["r/b@sha256:12345678901ä2345"], "r/b@sha256:12345678901…"),
            (&[], &[], "<none>"),
        ] {
            assert_eq!(names(&texts(tags), &texts(digests)), shown);
        }
    }
}
