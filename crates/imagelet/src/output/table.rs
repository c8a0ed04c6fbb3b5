//! Aligned tables: as wide as their cells where nothing bounds them, and no wider than a terminal.

use std::{
    io::{self, Write},
    os::fd::AsFd,
};

use imagelet_core::printable::printable;
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr};

const GAP: usize = 3;
/// Between columns where a table has to be made narrower.
const GAP_MIN: usize = 2;
/// A name is not cut shorter than this.
const CELL_MIN: usize = 20;
/// Prose in the last column is not wrapped narrower than this: it is printed below its row instead.
const PROSE_MIN: usize = 24;
const INDENT: usize = 4;

/// A table. The last column may be prose, which is wrapped; other wide cells are cut at their beginning.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns that are left out first on a narrow terminal, by their header.
    optional: &'static [&'static str],
    is_wide: bool,
}

impl Table {
    pub(crate) fn new<S: AsRef<str>>(header: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self::default();
        table.row(header);
        table
    }

    /// Leaves these columns out, in this order, where a terminal is too narrow.
    #[must_use]
    pub(crate) fn optional(self, columns: &'static [&'static str]) -> Self {
        Self { optional: columns, ..self }
    }

    /// A wide table is not fitted.
    #[must_use]
    pub(crate) fn wide(self, is_wide: bool) -> Self {
        Self { is_wide, ..self }
    }

    /// Adds a row. Control characters, which foreign names may contain, are shown as `?`.
    pub(crate) fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| printable(cell.as_ref())).collect());
    }

    #[must_use]
    pub(crate) fn rows<S: AsRef<str>, R: IntoIterator<Item = S>>(mut self, rows: impl IntoIterator<Item = R>) -> Self {
        rows.into_iter().for_each(|row| self.row(row));
        self
    }

    /// Leaves the columns with these headers out, unless they are wanted.
    #[must_use]
    pub(crate) fn only_if(mut self, is_wanted: bool, headers: &[&str]) -> Self {
        headers.iter().filter(|_| !is_wanted).for_each(|header| leave_out(&mut self.rows, header));
        self
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        // Without a terminal on stdout nothing bounds the lines.
        let width = if self.is_wide { None } else { width_of(&io::stdout()) };
        self.lines(width).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    fn lines(&self, width: Option<usize>) -> Vec<String> {
        let mut rows = self.rows.clone();
        if let Some(width) = width {
            for column in self.optional {
                if total(&widths(&rows), GAP_MIN) > width && !last_is_prose(&rows) {
                    leave_out(&mut rows, column);
                }
            }
        }
        let mut widths = widths(&rows);
        let Some(width) = width.filter(|width| total(&widths, GAP) > *width) else {
            return rows.iter().map(|row| joined(row, &widths, GAP)).collect();
        };
        let is_prose = last_is_prose(&rows);
        let last = widths.len().saturating_sub(1);
        let wanted = if is_prose {
            // A word is not broken where half of the line is enough for it.
            PROSE_MIN.max(widest_word(&rows).min(width / 2)).min(widths[last])
        } else {
            widths.get(last).copied().unwrap_or(0)
        };
        // Names give way first, the widest of them before the others.
        loop {
            let excess = (total(&widths[..last], GAP_MIN) + GAP_MIN + wanted).saturating_sub(width);
            let widest = (0..last).max_by_key(|column| widths[*column]).filter(|column| widths[*column] > CELL_MIN);
            let Some(widest) = widest.filter(|_| excess > 0) else { break };
            let next = (0..last).filter(|column| *column != widest).map(|column| widths[column]).max().unwrap_or(0);
            widths[widest] =
                (widths[widest] - excess.min(widths[widest])).max(next.min(widths[widest] - 1)).max(CELL_MIN);
        }
        let before = total(&widths[..last], GAP_MIN);
        let left = width.saturating_sub(before + GAP_MIN);
        let last_max = if is_prose { usize::MAX } else { left.max(CELL_MIN) };
        let lines_of = |row: &Vec<String>| {
            let maxima = widths[..last].iter().chain([&last_max]);
            let cells: Vec<String> = row.iter().zip(maxima).map(|(cell, max)| with_end(cell, *max)).collect();
            match cells.get(last).filter(|_| is_prose) {
                Some(prose) if left >= PROSE_MIN => {
                    below(&cells[..last], &widths, wrapped(prose, left), before + GAP_MIN)
                }
                Some(prose) => {
                    let wrapped = wrapped(prose, width.saturating_sub(INDENT).max(PROSE_MIN));
                    let wrapped = wrapped.into_iter().map(|line| format!("{:INDENT$}{line}", ""));
                    std::iter::once(joined(&cells[..last], &widths, GAP_MIN)).chain(wrapped).collect()
                }
                None => vec![joined(&cells, &widths, GAP_MIN)],
            }
        };
        rows.iter().flat_map(lines_of).collect()
    }
}

/// Messages for people on stderr: on a terminal, lines that are too wide are wrapped between words.
pub(crate) fn fitted_to_stderr(text: &str) -> String {
    match width_of(&io::stderr()) {
        Some(width) => text.lines().map(|line| wrapped_line(line, width)).collect::<Vec<_>>().join("\n"),
        None => text.trim_end_matches('\n').to_owned(),
    }
}

/// A line with its indentation, and deeper what does not fit.
fn wrapped_line(line: &str, width: usize) -> String {
    let words = line.trim_start_matches(' ');
    let indent = line.len() - words.len();
    if line.width() <= width || width < indent + INDENT + PROSE_MIN {
        return line.to_owned();
    }
    let lines = wrapped(words, width - indent - INDENT).into_iter().enumerate().map(|(number, line)| {
        let indent = if number == 0 { indent } else { indent + INDENT };
        format!("{:indent$}{line}", "")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn width_of<T: io::IsTerminal + AsFd>(terminal: &T) -> Option<usize> {
    let size = terminal.is_terminal().then(|| tcgetwinsize(terminal).ok()).flatten()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

fn total(widths: &[usize], gap: usize) -> usize {
    widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1)
}

fn last_column(rows: &[Vec<String>]) -> impl Iterator<Item = &String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    rows.iter().filter_map(move |row| row.get(columns.wrapping_sub(1)))
}

/// Sentences have more than two words, names and states have not.
fn last_is_prose(rows: &[Vec<String>]) -> bool {
    last_column(rows).any(|cell| cell.split(' ').count() > 2)
}

/// The widest word of the last column.
fn widest_word(rows: &[Vec<String>]) -> usize {
    last_column(rows).flat_map(|cell| cell.split(' ')).map(UnicodeWidthStr::width).max().unwrap_or(0)
}

fn leave_out(rows: &mut [Vec<String>], header: &str) {
    let Some(column) = rows.first().and_then(|row| row.iter().position(|cell| cell == header)) else { return };
    for row in rows.iter_mut().filter(|row| row.len() > column) {
        row.remove(column);
    }
}

fn joined(cells: &[String], widths: &[usize], gap: usize) -> String {
    let pad = |(cell, width): (&String, &usize)| {
        let gap = width.saturating_sub(cell.width()) + gap;
        format!("{cell}{:gap$}", "")
    };
    cells.iter().zip(widths).map(pad).collect::<String>().trim_end().to_owned()
}

/// A row whose last cell has several lines.
fn below(cells: &[String], widths: &[usize], lines: Vec<String>, indent: usize) -> Vec<String> {
    let lines = lines.into_iter().enumerate().map(|(number, line)| {
        let head = if number == 0 { joined(cells, widths, GAP_MIN) } else { String::new() };
        let gap = indent.saturating_sub(head.width());
        format!("{head}{:gap$}{line}", "").trim_end().to_owned()
    });
    lines.collect()
}

/// The end of a text that is too wide, which distinguishes names.
fn with_end(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |letter: &char| {
        let wide = letter.width().unwrap_or(0);
        let is_in = wide <= left;
        left = if is_in { left - wide } else { 0 };
        is_in
    };
    let mut end: Vec<char> = text.chars().rev().take_while(fits).collect();
    end.push('…');
    end.into_iter().rev().collect()
}

/// Lines of whole words; a word that is too wide has a line of its own.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.width() + 1 + word.width() <= width {
            line.extend([" ", word]);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
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
    fn a_table_is_no_wider_than_its_terminal_and_keeps_the_ends_of_names() {
        assert_eq!(plan().lines(None), plan().lines(Some(200)));
        for width in [60, 80, 100, 120, 160] {
            let lines = plan().lines(Some(width));
            assert!(lines.iter().all(|line| line.width() <= width), "{width}:\n{}", lines.join("\n"));
            let text = lines.join(" ");
            assert!(text.contains("a-long-name:v1.2.3") || width < 80, "{width}:\n{}", lines.join("\n"));
            for word in ["0123456789ab", "threshold", "busybox:1.36", "web"] {
                assert!(text.contains(word), "{width}: {word} is missing:\n{}", lines.join("\n"));
            }
        }
        assert_eq!(
            plan().lines(Some(60)),
            [
                "NAME                  ID            SIZE",
                "    REASON",
                "…/a-long-name:v1.2.3  0123456789ab  64MB",
                "    no container has used it for three days, and the disk is",
                "    above its threshold",
                "busybox:1.36          ba9876543210  4MB",
                "    in use by web",
            ]
        );
    }

    #[test]
    fn a_last_column_that_is_no_sentence_is_cut_or_wrapped_between_words() {
        let mut table = Table::new(["NAME", "SIZE", "REASON"]);
        table.row(["registry.example.org/team/app:v1", "64MB", "pinned by `registry.example.org/kube-system/*`"]);
        assert!(table.lines(Some(74)).iter().all(|line| line.width() <= 74), "{:#?}", table.lines(Some(74)));
        assert!(table.lines(Some(74)).join(" ").contains("`registry.example.org/kube-system/*`"));
        let mut table = Table::new(["NAME", "HELD BY"]);
        table.row(["registry.example.org/team/app:v1", "registry.example.org/kube-system/coredns:v1.11.3"]);
        assert_eq!(table.lines(Some(60))[1], "…ple.org/team/app:v1  …ample.org/kube-system/coredns:v1.11.3");
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
        assert_eq!(table.lines(Some(40))[1], "…y.example.org/team/app:v1  64MB  in use");
    }
}
