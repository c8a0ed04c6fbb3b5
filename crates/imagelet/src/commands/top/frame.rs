//! One frame of `top`: what a node does now, in the lines and columns of a terminal.

use std::fmt::Write as _;

use imagelet_core::{
    image::{ByteSize, ImageId, counted, shown_name},
    printable::printable,
};
use jiff::Timestamp;
use serde::Serialize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::{
    api::{Disk, PullProgress, Queue},
    node::DecisionRow,
    output::{age, milliseconds},
};

/// Columns of an image's name at most, and at least where the line has room.
const NAME_MAX: usize = 60;
const NAME_MIN: usize = 16;
const BAR_COLUMNS: usize = 20;
/// Layers that are shown below their pull.
const LAYERS_MAX: usize = 8;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct View {
    pub(super) disk: Disk,
    pub(super) pulls: Vec<PullProgress>,
    pub(super) queue: Queue,
    pub(super) decisions: Vec<DecisionRow>,
    /// What could not be asked, and why; the rest may be older.
    pub(super) problems: Vec<String>,
}

/// Size and abilities of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canvas {
    pub(super) columns: usize,
    /// `None`: as many as there are.
    pub(super) lines: Option<usize>,
    pub(super) has_color: bool,
}

/// By its number in an escape sequence (ECMA-48, "select graphic rendition").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain = 0,
    Bold = 1,
    Dim = 2,
    Bad = 31,
    Good = 32,
    Warning = 33,
}

type Line = Vec<(Style, String)>;

struct Section {
    title: Line,
    rows: Vec<Line>,
}

/// The lines of a frame: never more or wider than the canvas.
pub(super) fn frame(view: &View, canvas: Canvas, now: Timestamp) -> Vec<String> {
    let mut head = vec![title(now)];
    head.extend(view.problems.iter().map(|problem| vec![(Style::Bad, printable(problem))]));
    head.extend(disk(&view.disk, canvas.columns));
    let sections = [
        pulls(&view.pulls, canvas.columns),
        queue(&view.queue, canvas.columns),
        registries(&view.queue),
        decisions(&view.decisions, now),
    ];
    let wanted: Vec<usize> = sections.iter().map(|section| section.rows.len()).collect();
    // Each section has an empty line and a title, too.
    let free = canvas.lines.map_or(usize::MAX, |lines| lines.saturating_sub(head.len() + 2 * sections.len()));
    let mut lines = head;
    for (section, shown) in sections.into_iter().zip(shared_out(&wanted, free)) {
        lines.push(Vec::new());
        lines.push(section.title);
        let hidden = section.rows.len() - shown;
        let mut rows = section.rows;
        if hidden > 0 {
            rows.truncate(shown.saturating_sub(1));
            if shown > 0 {
                rows.push(vec![(Style::Dim, format!("  … {} more", hidden + 1))]);
            }
        }
        lines.extend(rows);
    }
    lines.truncate(canvas.lines.unwrap_or(usize::MAX));
    lines.into_iter().map(|line| render(&line, canvas)).collect()
}

/// Shares lines out: all get one more in turn, until they have what they want or nothing is left.
fn shared_out(wanted: &[usize], mut free: usize) -> Vec<usize> {
    let mut given = vec![0; wanted.len()];
    loop {
        let before = free;
        for (given, wanted) in given.iter_mut().zip(wanted) {
            if *given < *wanted && free > 0 {
                *given += 1;
                free -= 1;
            }
        }
        if free == before || free == 0 {
            return given;
        }
    }
}

fn render(line: &[(Style, String)], canvas: Canvas) -> String {
    let mut left = canvas.columns;
    let mut text = String::new();
    for (style, part) in line {
        let part = cut(part, left);
        left = left.saturating_sub(part.width());
        if canvas.has_color && *style != Style::Plain && !part.is_empty() {
            let _ = write!(text, "\u{1b}[{}m{part}\u{1b}[0m", *style as u8);
        } else {
            text.push_str(&part);
        }
    }
    if canvas.has_color { text } else { text.trim_end().to_owned() }
}

/// The beginning of a text that fits, with `…` where something is cut off.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    if columns == 0 {
        return String::new();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        if cut.width() + letter.width().unwrap_or(0) + 1 > columns {
            break;
        }
        cut.push(letter);
    }
    // Letters together may be wider than each: a variation selector makes its letter a picture of two columns.
    while cut.width() + 1 > columns {
        cut.pop();
    }
    cut + "…"
}

fn padded(text: &str, columns: usize) -> String {
    let cut = cut(text, columns);
    let gap = columns.saturating_sub(cut.width());
    format!("{cut}{:gap$}", "")
}

fn title(now: Timestamp) -> Line {
    vec![(Style::Bold, "imagelet top".into()), (Style::Dim, format!("  {}  q quits", now.strftime("%H:%M:%S UTC")))]
}

fn disk(disk: &Disk, columns: usize) -> Vec<Line> {
    let Some(used) = disk.used_percent else {
        return vec![vec![(Style::Bold, "Disk  ".into()), (Style::Plain, "not visible from here".into())]];
    };
    let style = match used {
        used if used >= disk.high_percent => Style::Bad,
        used if used >= disk.low_percent => Style::Warning,
        _ => Style::Good,
    };
    let width = columns.saturating_sub(26).clamp(10, 60);
    let marks: Vec<usize> = [disk.low_percent, disk.high_percent].map(|mark| usize::from(mark) * width / 100).into();
    let at = usize::from(used) * width / 100;
    let bar: String = (0..width)
        .map(|place| match (marks.contains(&place), place < at) {
            (true, _) => '|',
            (false, true) => '#',
            (false, false) => '.',
        })
        .collect();
    let shares = disk.shares();
    let held = shares[..4].iter().filter(|(.., size)| *size > 0);
    let held: Vec<String> = held.map(|(_, name, size)| format!("{name} {}", ByteSize(*size))).collect();
    let forecast = disk.forecast().map_or_else(String::new, |forecast| format!("; forecast: {forecast}"));
    let mode = if disk.gc_mode == "shadow" { ", shadow mode" } else { "" };
    vec![
        vec![
            (Style::Bold, "Disk  ".into()),
            (style, format!("{used:3}% ")),
            (Style::Plain, format!("[{bar}] ")),
            (Style::Plain, format!("{} free", ByteSize(disk.available))),
        ],
        vec![(
            Style::Dim,
            format!("      collects at {}% down to {}%{mode}{forecast}", disk.high_percent, disk.low_percent),
        )],
        vec![(Style::Dim, format!("      {}", held.join(", ")))],
    ]
}

fn heading(name: &str, what: &str) -> Line {
    vec![(Style::Bold, format!("{name}  ")), (Style::Dim, what.to_owned())]
}

fn bar(received: u64, total: u64) -> String {
    let share = if total == 0 { 0.0 } else { (received as f64 / total as f64).clamp(0.0, 1.0) };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the width of the bar")]
    let full = (share * BAR_COLUMNS as f64) as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR_COLUMNS - full))
}

/// Columns of a name beside so many others.
fn name_columns(columns: usize, others: usize) -> usize {
    columns.saturating_sub(others).clamp(NAME_MIN, NAME_MAX)
}

fn pulls(pulls: &[PullProgress], columns: usize) -> Section {
    let running: Vec<_> = pulls.iter().filter(|pull| pull.phase != "waiting").collect();
    let name = name_columns(columns, 2 + BAR_COLUMNS + 2 + 36);
    let mut rows = Vec::new();
    for pull in &running {
        let state = match pull.bytes_total {
            Some(total) => {
                let rate = pull.bytes_per_second.map_or_else(String::new, |rate| format!("  {}/s", ByteSize(rate)));
                let left = pull.remaining_ms.map_or_else(String::new, |left| format!("  {} left", milliseconds(left)));
                let (received, all) = (ByteSize(pull.bytes_received), ByteSize(total));
                format!("{} {received} of {all}{rate}{left}", bar(pull.bytes_received, total))
            }
            None => format!("{} for {}", pull.phase, milliseconds(pull.elapsed_ms)),
        };
        let image = printable(&shown_name(&pull.image));
        rows.push(vec![(Style::Plain, format!("  {} ", padded(&image, name))), (Style::Good, state)]);
        rows.extend(pull.retry.as_ref().map(|retry| vec![(Style::Warning, format!("    {}", retry.text()))]));
        let fetching: Vec<_> = pull.layers.iter().filter(|layer| layer.state == "fetching").collect();
        for layer in fetching.iter().take(LAYERS_MAX) {
            let digest: String = layer.digest.chars().skip("sha256:".len()).take(12).collect();
            // The rate of a pull is shared by its layers: what remains of one is not known more exactly.
            let (received, size) = (ByteSize(layer.received), ByteSize(layer.size));
            let text = format!("{} {received} of {size}", bar(layer.received, layer.size));
            rows.push(vec![(Style::Dim, format!("  {} {text}", padded(&format!("  {}", printable(&digest)), name)))]);
        }
        let done = pull.layers.iter().filter(|layer| matches!(layer.state.as_str(), "done" | "present")).count();
        let hidden = fetching.len().saturating_sub(LAYERS_MAX);
        if done + hidden > 0 {
            let more = if hidden > 0 { format!(", {hidden} more under way") } else { String::new() };
            rows.push(vec![(Style::Dim, format!("    {done} of {} done{more}", counted(pull.layers.len(), "layer")))]);
        }
    }
    let what = if running.is_empty() { "none is running".to_owned() } else { format!("{} running", running.len()) };
    Section { title: heading("Pulls", &what), rows }
}

fn queue(queue: &Queue, columns: usize) -> Section {
    let waiting: Vec<_> = queue.pulls.iter().filter(|pull| pull.state != "running").collect();
    let name = name_columns(columns, 2 + 44);
    let row = |image: &str, text: String| -> Line {
        vec![(Style::Plain, format!("  {} ", padded(&printable(&shown_name(image)), name))), (Style::Warning, text)]
    };
    let mut rows: Vec<Line> = Vec::new();
    for pull in &waiting {
        let place = pull.position.map_or_else(String::new, |place| format!(", place {place}"));
        rows.push(row(
            &pull.image,
            format!("waits for {} since {}{place}", pull.waits_for(), milliseconds(pull.for_ms)),
        ));
    }
    for held in &queue.held_back {
        let pods = if held.pods > 1 { format!(" of {}", counted(held.pods, "pod")) } else { String::new() };
        let next = milliseconds(held.remaining_ms);
        let text = format!("back-off{pods}, again in {next}: {}", printable(&held.failure));
        rows.push(row(&held.image, text));
    }
    let what = match (waiting.len(), queue.held_back.len()) {
        (0, 0) => "nothing waits".to_owned(),
        (waiting, held) => format!("{waiting} waiting, {held} in back-off"),
    };
    Section { title: heading("Queue", &what), rows }
}

fn registries(queue: &Queue) -> Section {
    let rows = queue.registries.iter().map(|open| {
        let next = if open.remaining_seconds == 0 {
            "now".into()
        } else {
            format!("in {}", milliseconds(open.remaining_seconds * 1000))
        };
        let failures = counted(open.failures, "failure");
        let text = format!("not asked for {}, next attempt {next}: {failures} ({})", open.pulls, open.class);
        vec![(Style::Plain, format!("  {}  ", printable(&open.registry))), (Style::Bad, printable(&text))]
    });
    let rows: Vec<Line> = rows.collect();
    let what = if rows.is_empty() { "all are asked".to_owned() } else { format!("{} not asked", rows.len()) };
    Section { title: heading("Registries", &what), rows }
}

fn decisions(decisions: &[DecisionRow], now: Timestamp) -> Section {
    let rows = decisions.iter().map(|row| {
        let happening = &row.happening;
        let style = match happening.what.as_str() {
            "failed" | "pull failed" => Style::Bad,
            "removed" | "chosen" => Style::Warning,
            _ => Style::Plain,
        };
        let name = ImageId::shown(happening.names.first(), &row.id);
        let reason =
            if happening.reason.is_empty() { String::new() } else { format!(": {}", printable(&happening.reason)) };
        let by = if happening.by.is_empty() { String::new() } else { format!(" ({})", printable(&happening.by)) };
        vec![
            (Style::Dim, format!("  {:>4} ago  ", age(happening.at.as_deref(), now))),
            (style, format!("{:<11} ", happening.what)),
            (Style::Plain, format!("{}{reason}{by}", printable(&name))),
        ]
    });
    let rows: Vec<Line> = rows.collect();
    let what = if rows.is_empty() { "nothing is recorded" } else { "" };
    Section { title: heading("Decisions", what), rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{HeldBackRow, LayerProgress, OpenCircuitRow, PullRow},
        node::WhyHappening,
    };

    fn now() -> Timestamp {
        "2026-08-02T00:00:00Z".parse().unwrap()
    }

    fn busy() -> View {
        let layer = |state: &str, received| LayerProgress {
            digest: "sha256:0123456789abcdef".into(),
            state: state.into(),
            size: 10_000_000,
            received,
        };
        let pull = |number: u64| PullProgress {
            pull: number,
            image: format!("registry.example/team/service-{number}:v1"),
            phase: "fetching".into(),
            bytes_total: Some(20_000_000),
            bytes_received: 5_000_000,
            bytes_per_second: Some(2_500_000),
            remaining_ms: Some(6000),
            layers: vec![layer("fetching", 5_000_000), layer("done", 10_000_000), layer("waiting", 0)],
            ..PullProgress::default()
        };
        let decision = |number: u64| DecisionRow {
            id: format!("sha256:{number}"),
            happening: WhyHappening {
                at: Some("2026-08-01T23:57:00Z".into()),
                what: "removed".into(),
                names: vec![format!("registry.example/old-{number}:v1")],
                reason: "least needed\u{1b}[2J".into(),
                by: "timer".into(),
                ..WhyHappening::default()
            },
        };
        View {
            disk: Disk {
                capacity: 100_000_000_000,
                available: 18_400_000_000,
                used_percent: Some(82),
                high_percent: 85,
                low_percent: 80,
                in_use_size: 40_000_000_000,
                hours_to_high: Some(5.0),
                growth_per_hour: Some(600_000_000),
                ..Disk::default()
            },
            pulls: (1..=9).map(pull).collect(),
            queue: Queue {
                pulls: vec![PullRow {
                    image: "registry.example/next:v1".into(),
                    state: "waiting-for-slot".into(),
                    position: Some(1),
                    for_ms: 3000,
                    ..PullRow::default()
                }],
                held_back: vec![HeldBackRow {
                    image: "a:v1".into(),
                    remaining_ms: 20_000,
                    failure: "no such host".into(),
                    pods: 1,
                }],
                registries: vec![OpenCircuitRow {
                    registry: "registry.example".into(),
                    pulls: "all-pulls".into(),
                    class: "connection-refused".into(),
                    failures: 3,
                    remaining_seconds: 12,
                    ..OpenCircuitRow::default()
                }],
                ..Queue::default()
            },
            decisions: (0..30).map(decision).collect(),
            problems: vec!["the daemon does not answer".into()],
        }
    }

    #[test]
    fn a_frame_is_never_larger_than_its_terminal() {
        for (columns, lines) in [(80, 24), (160, 50), (20, 5), (1, 1), (40, 200), (300, 12)] {
            for has_color in [false, true] {
                let canvas = Canvas { columns, lines: Some(lines), has_color };
                let drawn = frame(&busy(), canvas, now());
                assert!(drawn.len() <= lines, "{} lines at {columns}×{lines}", drawn.len());
                if !has_color {
                    let widest = drawn.iter().map(|line| line.width()).max().unwrap();
                    assert!(widest <= columns, "{widest} columns at {columns}×{lines}");
                }
                assert!(drawn.iter().all(|line| !line.contains("\u{1b}[2J")), "a name controls the terminal");
            }
        }
    }

    #[test]
    fn a_small_terminal_shows_something_of_each_section_and_how_much_is_hidden() {
        let drawn = frame(&busy(), Canvas { columns: 80, lines: Some(24), has_color: false }, now());
        let text = drawn.join("\n");
        for words in [
            "the daemon does not answer",
            "Disk   82% [",
            "18.4GB free",
            "collects at 85% down to 80%; forecast: 85% in about 5 h",
            "images in use 40GB, other files 41.6GB",
            "Pulls  9 running",
            "[#####...............] 5MB of 20MB  2.5MB/s  6s left",
            "Queue  1 waiting, 1 in back-off",
            "waits for a free slot since 3s, place 1",
            "again in 20s: no such host",
            "Registries  1 not asked",
            "next attempt in 12s: 3 failures",
            "   3m ago  removed     registry.example/old-0:v1: least needed?[2J (timer)",
            " more",
        ] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
    }

    #[test]
    fn an_idle_node_says_so() {
        let canvas = Canvas { columns: 80, lines: None, has_color: false };
        let text = frame(&View::default(), canvas, now()).join("\n");
        assert_eq!(
            text,
            "imagelet top  00:00:00 UTC  q quits\nDisk  not visible from here\n\nPulls  none is running\n\n\
             Queue  nothing waits\n\nRegistries  all are asked\n\nDecisions  nothing is recorded"
        );
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        let canvas = Canvas { columns: 80, lines: None, has_color: false };
        assert!(!frame(&busy(), canvas, now()).concat().contains('\u{1b}'));
        let coloured = frame(&busy(), Canvas { has_color: true, ..canvas }, now()).concat();
        assert!(coloured.contains("\u{1b}[33m 82% \u{1b}[0m"), "{coloured}");
    }

    #[test]
    fn lines_are_shared_out_in_turn() {
        assert_eq!(shared_out(&[5, 1, 0, 9], 8), [4, 1, 0, 3]);
        assert_eq!(shared_out(&[5, 1, 0, 9], 100), [5, 1, 0, 9]);
        assert_eq!(shared_out(&[5, 1], 0), [0, 0]);
        assert_eq!(
            (cut("日本語", 5), cut("abc", 3), cut("abc", 0), padded("a", 3)),
            ("日本…".into(), "abc".into(), String::new(), "a  ".into())
        );
    }

    #[test]
    fn letters_that_together_are_wider_than_each_stay_within_their_columns() {
        for text in
            ["☺\u{fe0f}abc", "a☺\u{fe0f}☺\u{fe0f}☺\u{fe0f}", "1\u{fe0f}\u{20e3}1\u{fe0f}\u{20e3}1\u{fe0f}\u{20e3}"]
        {
            for columns in 0..8 {
                assert!(cut(text, columns).width() <= columns, "{text:?} in {columns}");
                assert_eq!(padded(text, columns).width(), columns, "{text:?} in {columns}");
                let line = [(Style::Plain, text.to_owned()), (Style::Bold, text.to_owned())];
                let drawn = render(&line, Canvas { columns, lines: None, has_color: false });
                assert!(drawn.width() <= columns, "{drawn:?} in {columns}");
            }
        }
    }
}
