//! Aligned tables: as wide as their cells, but no wider than a terminal.

use std::{
    io::{self, Write},
    os::fd::AsFd,
};

use comfy_table::{ContentArrangement, presets::NOTHING};
use imagelet_core::printable::printable;
use rustix::termios::tcgetwinsize;

const GAP: u16 = 3;
const PROSE_MIN: usize = 24;
const INDENT: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    optional: &'static [&'static str],
    is_wide: bool,
}

impl Table {
    pub(crate) fn new<S: AsRef<str>>(header: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self::default();
        table.row(header);
        table
    }

    /// Creates a table of labels and values. Each line of a value has a row. A label without a value has no row.
    pub(crate) fn facts(facts: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Self {
        let mut table = Self::default();
        for (label, value) in facts.into_iter().filter_map(|(label, value)| Some((label, value?))) {
            let labels = std::iter::once(label).chain(std::iter::repeat(""));
            labels.zip(value.lines()).for_each(|row| table.row(<[&str; 2]>::from(row)));
        }
        table
    }

    /// Names columns by their headers. While the table is wider than the terminal, it loses them one after the other.
    #[must_use]
    pub(crate) fn optional(self, columns: &'static [&'static str]) -> Self {
        Self { optional: columns, ..self }
    }

    #[must_use]
    pub(crate) fn wide(self, is_wide: bool) -> Self {
        Self { is_wide, ..self }
    }

    /// Adds a row. Unprintable characters, for example in names from a registry, become `?`.
    pub(crate) fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| printable(cell.as_ref())).collect());
    }

    #[must_use]
    pub(crate) fn rows<S: AsRef<str>, R: IntoIterator<Item = S>>(mut self, rows: impl IntoIterator<Item = R>) -> Self {
        rows.into_iter().for_each(|row| self.row(row));
        self
    }

    #[must_use]
    pub(crate) fn only_if(mut self, is_wanted: bool, headers: &[&str]) -> Self {
        headers.iter().filter(|_| !is_wanted).for_each(|header| leave_out(&mut self.rows, header));
        self
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = if self.is_wide { None } else { width_of(&io::stdout()) };
        self.lines(width).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    fn lines(&self, width: Option<u16>) -> Vec<String> {
        let mut rows = self.rows.clone();
        let Some(width) = width else { return drawn(&rows, None) };
        let is_too_wide = |rows: &[Vec<String>]| {
            let mut table = comfy(rows, None);
            table.discover_columns();
            let widths = table.column_max_content_widths();
            widths.into_iter().map(|one| u32::from(one) + u32::from(GAP)).sum::<u32>()
                > u32::from(width) + u32::from(GAP)
        };
        for column in self.optional {
            if is_too_wide(&rows) {
                leave_out(&mut rows, column);
            }
        }
        drawn(&rows, Some(width))
    }
}

fn drawn(rows: &[Vec<String>], width: Option<u16>) -> Vec<String> {
    comfy(rows, width).lines().map(|line| line.trim_end().to_owned()).collect()
}

fn comfy(rows: &[Vec<String>], width: Option<u16>) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(NOTHING).add_rows(rows);
    match width {
        Some(width) => table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    let last = table.column_count().saturating_sub(1);
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if number == last { 0 } else { GAP }));
    }
    table
}

pub(crate) fn fitted_to_stderr(text: &str) -> String {
    match width_of(&io::stderr()) {
        Some(width) => text.lines().map(|line| wrapped_line(line, width.into())).collect::<Vec<_>>().join("\n"),
        None => text.trim_end_matches('\n').to_owned(),
    }
}

/// Wraps a line between words. Further lines are indented deeper than the first one. A word that is wider than a line
/// fills a line alone.
fn wrapped_line(line: &str, width: usize) -> String {
    let words = line.trim_start_matches(' ');
    let indent = line.len() - words.len();
    let deeper = indent + INDENT;
    if line.chars().count() <= width || width < deeper + PROSE_MIN {
        return line.to_owned();
    }
    let (mut text, mut used) = (" ".repeat(indent), 0);
    for word in words.split(' ') {
        let length = word.chars().count();
        if used > 0 && deeper + used + 1 + length > width {
            text.extend(["\n", &" ".repeat(deeper)]);
            used = 0;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length;
    }
    text
}

fn width_of<T: io::IsTerminal + AsFd>(terminal: &T) -> Option<u16> {
    let size = terminal.is_terminal().then(|| tcgetwinsize(terminal).ok()).flatten()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

fn leave_out(rows: &mut [Vec<String>], header: &str) {
    let Some(column) = rows.first().and_then(|row| row.iter().position(|cell| cell == header)) else { return };
    for row in rows.iter_mut().filter(|row| row.len() > column) {
        row.remove(column);
    }
}

#[cfg(test)]
mod tests {
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

    fn plan() -> Table {
        let mut table = Table::new(["NAME", "ID", "SIZE", "REASON"]);
        let reason = "no container has used it for three days, and the disk is above its threshold";
        table.row(["registry.example.org/team/project/a-long-name:v1.2.3", "0123456789ab", "64MB", reason]);
        table.row(["busybox:1.36", "ba9876543210", "4MB", "in use by web"]);
        table
    }

    #[test]
    fn a_table_is_no_wider_than_its_terminal_and_loses_nothing() {
        assert_eq!(plan().lines(None), plan().lines(Some(200)));
        for width in [60, 80, 100, 120, 160] {
            let lines = plan().lines(Some(width));
            let text = lines.join("\n");
            assert!(lines.iter().all(|line| line.chars().count() <= width.into()), "{width}:\n{text}");
            for word in ["0123456789ab", "threshold", "busybox:1.36", "in use by web"] {
                assert!(text.contains(word), "{width}: {word} is missing:\n{text}");
            }
        }
    }

    #[test]
    fn a_message_is_wrapped_between_words_and_keeps_its_indentation() {
        let hint = "hint: a daemon does: `imagelet serve`, then `imagelet events` or `--endpoint`";
        assert_eq!(wrapped_line(hint, 100), hint);
        assert_eq!(
            wrapped_line(hint, 50),
            "hint: a daemon does: `imagelet serve`, then\n    `imagelet events` or `--endpoint`"
        );
        assert_eq!(
            wrapped_line("  because: one two three four five six seven", 36),
            "  because: one two three four\n      five six seven"
        );
        assert_eq!(wrapped_line(hint, 20), hint, "too narrow to be readable");
    }

    #[test]
    fn optional_columns_are_left_out_before_a_line_breaks() {
        let mut table = Table::new(["NAME", "ID", "SIZE", "USE"]).optional(&["ID"]);
        table.row(["registry.example.org/team/app:v1", "0123456789ab", "64MB", "in use"]);
        assert_eq!(table.lines(Some(80))[0], "NAME                               ID             SIZE   USE");
        assert_eq!(
            table.lines(Some(50)),
            ["NAME                               SIZE   USE", "registry.example.org/team/app:v1   64MB   in use"]
        );
    }

    #[test]
    fn cells_of_any_width_are_wrapped() {
        let length = 33_000;
        let mut table = Table::new(["NAME", "ID", "USE"]).optional(&["ID"]);
        table.row(["n".repeat(length), "0123456789ab".to_owned(), "u".repeat(length)]);
        let lines = table.lines(Some(80));
        assert!(lines.iter().all(|line| line.len() <= 80));
        let letters = lines.iter().flat_map(|line| line.bytes()).filter(|byte| b"nu".contains(byte)).count();
        assert_eq!((letters, lines[0].contains("ID")), (2 * length, false));
    }
}
