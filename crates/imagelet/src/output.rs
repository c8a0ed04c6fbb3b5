//! How results look: aligned tables for people, JSON and YAML for programs.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::cli::Format;

/// Blanks between columns.
const GAP: usize = 3;

/// A table whose columns are as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a header.
    pub(crate) fn new<const N: usize>(header: [&str; N]) -> Self {
        Self { rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// A table of names and values, without a header.
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    /// Adds a row. Control characters, which names from outside may bring, are shown as `?`.
    pub(crate) fn row<I: IntoIterator<Item = S>, S: Into<String>>(&mut self, cells: I) {
        self.rows.push(cells.into_iter().map(|cell| printable_cell(cell.into())).collect());
    }

    /// Prints it; nothing trails a row.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0))
            .collect();
        let mut line = String::new();
        for row in &self.rows {
            line.clear();
            for (cell, widest) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', widest - width(cell) + GAP));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Nearly every cell is as it shall be shown.
fn printable_cell(cell: String) -> String {
    let is_plain = cell.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_plain { cell } else { printable(&cell) }
}

/// The columns a terminal needs for a cell that is safe on it.
fn width(cell: &str) -> usize {
    if cell.is_ascii() { cell.len() } else { cell.width() }
}

/// Text from outside, safe on a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Prints a result to stdout, as a document or as whatever `human` makes of it.
///
/// A reader that went away (`imagelet ls | head -1`) is no error.
pub(crate) fn print<T: Serialize>(
    format: Format,
    result: &T,
    human: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = match format {
        Format::Table | Format::Wide => human(&mut out),
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, result).map_err(io::Error::from).and_then(|()| writeln!(out))
        }
        Format::Yaml => {
            serde_saphyr::to_string(result).map_err(io::Error::other).and_then(|text| out.write_all(text.as_bytes()))
        }
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// How long ago something was, to two digits or so: `42s`, `7m`, `3h`, `12d`; `-` when it never was.
pub(crate) fn age(since: Option<SystemTime>, now: SystemTime) -> String {
    let Some(since) = since else { return "-".into() };
    let seconds = now.duration_since(since).map_or(0, |age| age.as_secs());
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// Names as the table shows them: the shortest spelling people use, then how many more there are.
pub(crate) fn names(names: &[String]) -> String {
    match names {
        [] => "<none>".into(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} (+{})", rest.len()),
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
    fn ages_are_short() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000_000);
        for (ago, text) in [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")] {
            assert_eq!(age(Some(now - Duration::from_secs(ago)), now), text);
        }
        assert_eq!(age(None, now), "-");
        assert_eq!(age(Some(now + Duration::from_secs(5)), now), "0s");
    }
}
