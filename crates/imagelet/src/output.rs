//! How results look: aligned tables for people, JSON and YAML for programs.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    io::{self, StdoutLock},
    time::SystemTime,
};

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::cli::Format;

/// Long answers are written in few pieces.
const OUT_BUFFER: usize = 256 << 10;
/// How much of a digest distinguishes images: `sha256:` and 12 digits.
const DIGEST_SHOWN: usize = 7 + 12;
/// Blanks between columns.
const GAP: usize = 3;

/// A table whose columns are as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// All cells, one after the other: very long tables are made of few pieces.
    text: String,
    /// Where each cell ends.
    cells: Vec<u32>,
    /// At which cell each row ends.
    rows: Vec<u32>,
}

impl Table {
    /// A table with a header.
    pub(crate) fn new<const N: usize>(header: [&str; N]) -> Self {
        let mut table = Self::default();
        table.row(header);
        table
    }

    /// A table of names and values, without a header.
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    /// A table of names and values of which there will be so many, and so much text: what grows step by step is written
    /// more than once.
    pub(crate) fn sized(rows: usize, columns: usize, text: usize) -> Self {
        let rows = rows + 1;
        Self {
            text: String::with_capacity(text),
            cells: Vec::with_capacity(rows * columns),
            rows: Vec::with_capacity(rows),
        }
    }

    /// Adds a row. Control characters, which names from outside may bring, are shown as `?`.
    pub(crate) fn row<I: IntoIterator<Item = S>, S: AsRef<str>>(&mut self, cells: I) {
        for cell in cells {
            self.cell(cell.as_ref());
        }
        self.end_row();
    }

    /// Adds a cell to the row that is being made.
    pub(crate) fn cell(&mut self, cell: &str) {
        if is_plain(cell) {
            self.text.push_str(cell);
        } else {
            self.text.extend(printable_chars(cell));
        }
        self.cells.push(place(self.text.len()));
    }

    /// The same with something that prints plain characters alone.
    pub(crate) fn show(&mut self, cell: impl fmt::Display) {
        // A string takes everything.
        let _ = write!(self.text, "{cell}");
        self.cells.push(place(self.text.len()));
    }

    /// Ends the row.
    pub(crate) fn end_row(&mut self) {
        self.rows.push(place(self.cells.len()));
    }

    /// Prints it; nothing trails a row.
    pub(crate) fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        let mut widths: Vec<usize> = Vec::new();
        for row in self.cells_by_row() {
            for (column, cell) in row.enumerate() {
                if column == widths.len() {
                    widths.push(0);
                }
                widths[column] = widths[column].max(width(cell));
            }
        }
        let mut line = String::new();
        for row in self.cells_by_row() {
            line.clear();
            for (cell, widest) in row.zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', widest - width(cell) + GAP));
            }
            line.truncate(line.trim_end().len());
            line.push('\n');
            out.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    fn cells_by_row(&self) -> impl Iterator<Item = impl Iterator<Item = &str>> {
        let end = |ends: &[u32], at: usize| ends[at] as usize;
        let begin = move |ends: &[u32], at: usize| if at == 0 { 0 } else { end(ends, at - 1) };
        (0..self.rows.len()).map(move |row| {
            let cells = begin(&self.rows, row)..end(&self.rows, row);
            cells.map(move |cell| &self.text[begin(&self.cells, cell)..end(&self.cells, cell)])
        })
    }
}

/// Where something is in a table. One of four gigabytes is nothing that anybody prints.
fn place(at: usize) -> u32 {
    u32::try_from(at).expect("a table is smaller than four gigabytes")
}

/// The standard output past the library's own buffer, which looks for the end of each line.
struct Stdout(StdoutLock<'static>);

impl io::Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Nearly every cell is as it shall be shown.
fn is_plain(cell: &str) -> bool {
    cell.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// The columns a terminal needs for a cell that is safe on it.
fn width(cell: &str) -> usize {
    if cell.is_ascii() { cell.len() } else { cell.width() }
}

/// Text from outside, safe on a terminal.
pub(crate) fn printable(text: &str) -> String {
    printable_chars(text).collect()
}

fn printable_chars(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|c| if c.is_control() { '?' } else { c })
}

/// Prints a result to stdout, as a document or as whatever `human` makes of it.
///
/// A reader that went away (`imagelet ls | head -1`) is no error.
pub(crate) fn print<T: Serialize>(
    format: Format,
    result: &T,
    human: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(OUT_BUFFER, Stdout(io::stdout().lock()));
    let written = match format {
        Format::Table | Format::Wide => human(&mut out),
        Format::Json => serde_json::to_writer_pretty(&mut out, result)
            .map_err(io::Error::from)
            .and_then(|()| io::Write::write_all(&mut out, b"\n")),
        Format::Yaml => serde_saphyr::to_string(result)
            .map_err(io::Error::other)
            .and_then(|text| io::Write::write_all(&mut out, text.as_bytes())),
    };
    match written.and_then(|()| io::Write::flush(&mut out)) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// How long ago something was, to two digits or so: `42s`, `7m`, `3h`, `12d`; `-` when it never was.
pub(crate) fn age(since: Option<SystemTime>, now: SystemTime) -> String {
    since.map_or_else(|| "-".into(), |since| Age(now.duration_since(since).map_or(0, |age| age.as_secs())).to_string())
}

/// So many seconds, as [`age`] prints them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age(pub(crate) u64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        match seconds {
            0..=119 => write!(f, "{seconds}s"),
            120..=7199 => write!(f, "{}m", seconds / 60),
            7200..=172_799 => write!(f, "{}h", seconds / 3600),
            _ => write!(f, "{}d", seconds / 86400),
        }
    }
}

/// What stands for an image's name where it has none.
pub(crate) const NAMELESS: &str = "<none>";

/// An image's name in a table: its first tag, else its first digest, else [`NAMELESS`]; then how many more there are.
pub(crate) fn names(names: &[String], digests: &[String]) -> String {
    match if names.is_empty() { digests } else { names } {
        [] => NAMELESS.into(),
        [one] => cut_digest(one).into_owned(),
        [first, rest @ ..] => format!("{} (+{})", cut_digest(first), rest.len()),
    }
}

/// A name with the digest in it cut as ids are, for tables that are no wider than a screen.
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_a_terminal_shows() {
        let mut table = Table::new(["NAME", "SIZE"]);
        table.row(["日本", "1MB"]);
        table.row(["a\u{1b}[31m", ""]);
        let mut out = Vec::new();
        table.write(&mut out).expect("memory takes it");
        assert_eq!(String::from_utf8_lossy(&out), "NAME     SIZE\n日本     1MB\na?[31m\n");
    }

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

    #[test]
    fn ages_are_short() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000_000);
        for (ago, text) in [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")] {
            assert_eq!(age(Some(now - Duration::from_secs(ago)), now), text);
        }
        assert_eq!(age(None, now), "-");
        assert_eq!(age(Some(now + Duration::from_secs(5)), now), "0s");
    }
}
