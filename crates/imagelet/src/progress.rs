//! The display of a running pull: moving bars on a terminal, plain lines elsewhere, nothing with `--quiet`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IsTerminal as _, Write as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use imagelet_core::{
    image::{ByteSize, counted},
    lock::locked,
    printable::printable,
};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

use imagelet_node::{
    api::{LayerProgress, LayerSize, PullProgressRow, PullRetry, Step, Steps, no_steps},
    config::has_dumb_terminal,
};

const LAYER_LINES_MAX: usize = 24;
const LINES_RESERVED: usize = 4;
const NAME_COLUMNS: usize = 36;
const DRAW_EVERY: Duration = Duration::from_millis(200);
const DIGITS: usize = 12;
/// A new wait for a host is reported only if it ends more than this time after the previous wait for the host.
const RETRY_TOLERANCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) enum Screen {
    Quiet,
    Lines,
    Bars(MultiProgress),
}

impl Screen {
    pub(crate) fn of_stderr(quiet: bool) -> Self {
        if quiet {
            Self::Quiet
        } else if draws_bars() {
            Self::Bars(MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)))
        } else {
            Self::Lines
        }
    }

    /// Shows a pull until the guard is dropped. A `line_width` pads the image's name to this width, and hides the
    /// layers.
    pub(crate) fn show(&self, image: &str, line_width: Option<usize>) -> Shown {
        let image = printable(image);
        let known = Arc::new(Mutex::new(KnownSteps::default()));
        let line = match self {
            Self::Quiet => return Shown { steps: no_steps(), line: None },
            Self::Lines => None,
            Self::Bars(screen) => {
                let lines = tcgetwinsize(std::io::stderr()).ok().map(|size| size.ws_row);
                let layers_max = if line_width.is_some() { 0 } else { layer_lines(lines) };
                let columns = line_width.unwrap_or_else(|| image.chars().count()).min(NAME_COLUMNS);
                let line = Arc::new(Mutex::new(Some(PullLine::new(screen, in_columns(&image, columns)))));
                let (drawn, known) = (Arc::clone(&line), Arc::clone(&known));
                tokio::spawn(async move {
                    let mut clock = tokio::time::interval(DRAW_EVERY);
                    loop {
                        clock.tick().await;
                        let pull = locked(&known).row(Instant::now());
                        let Some(line) = &mut *locked(&drawn) else { return };
                        line.draw(&pull, layers_max);
                    }
                });
                Some(line)
            }
        };
        // A bar shows the image and most of the steps.
        let (screen, has_bar) = (self.clone(), line.is_some());
        let prefix = if has_bar { String::new() } else { format!("{image}: ") };
        let steps = move |step| {
            let is_said = !has_bar || matches!(step, Step::Removed(_) | Step::Notice { .. } | Step::Warning { .. });
            if let Some(text) = locked(&known).take(step).filter(|_| is_said) {
                screen.say(&format!("{prefix}{text}"));
            }
        };
        Shown { steps: Arc::new(steps), line }
    }

    pub(crate) fn say(&self, text: &str) {
        match self {
            Self::Quiet => {}
            Self::Lines => drop(writeln!(std::io::stderr(), "{text}")),
            Self::Bars(screen) => drop(screen.println(text)),
        }
    }
}

fn draws_bars() -> bool {
    std::io::stderr().is_terminal() && !has_dumb_terminal()
}

pub(crate) struct Shown {
    pub(crate) steps: Steps,
    /// The line of the pull on a terminal, until the drop.
    line: Option<Arc<Mutex<Option<PullLine>>>>,
}

impl Drop for Shown {
    /// Removes the line before the command prints its result, and ends the task that draws the line.
    fn drop(&mut self) {
        drop(self.line.as_ref().map(|line| locked(line).take()));
    }
}

#[derive(Default)]
struct KnownSteps {
    row: PullProgressRow,
    began: Option<Instant>,
    retry_at: Option<Instant>,
    warnings: BTreeSet<String>,
    unanswered: BTreeSet<String>,
    /// The start of the speed's measurement: the time when the first received bytes were seen, and their number.
    fetching: Option<(Instant, u64)>,
}

impl KnownSteps {
    /// Applies a step to the progress. Returns the text that a screen without bars prints. `None`: it prints nothing.
    fn take(&mut self, step: Step) -> Option<String> {
        let row = &mut self.row;
        match step {
            Step::Resolved { manifest, layers } => {
                let total: ByteSize = layers.iter().map(|layer| ByteSize(layer.size)).sum();
                let text = format!("{}, {total} to fetch at most", counted(layers.len(), "layer"));
                let layer = |LayerSize { digest, size }| LayerProgress { digest, size, ..LayerProgress::default() };
                (row.phase, row.manifest, row.retry) = ("fetching".into(), manifest, None);
                row.layers = layers.into_iter().map(layer).collect();
                return Some(text);
            }
            Step::Fetching { digest, received } => drop(self.layer(&digest, "fetching", |size| received.min(size))),
            Step::Present { digest } => {
                self.layer(&digest, "present", |_| 0);
                return Some(format!("layer {} is present", short(&digest)));
            }
            Step::Done { digest } => {
                let size = ByteSize(self.layer(&digest, "done", |size| size).unwrap_or_default());
                return Some(format!("layer {} is done ({size})", short(&digest)));
            }
            Step::Committing => (row.phase, row.retry) = ("committing".into(), None),
            Step::ThroughRuntime => (row.phase, row.retry) = ("pulling".into(), None),
            Step::Checking { read, total } => {
                (row.phase, row.bytes_received, row.bytes_total) = ("checking".into(), read, Some(total));
            }
            Step::Notice { note } => return Some(printable(&note)),
            Step::Removed(image) => return Some(image.text()),
            Step::Warning { text } => {
                let line = format!("warning: {}", printable(&text));
                return self.warnings.insert(text).then_some(line);
            }
            Step::Waiting { host, over: false } => {
                let text = waiting_for(&host);
                return self.unanswered.insert(host).then_some(text);
            }
            Step::Waiting { host, over: true } => drop(self.unanswered.remove(&host)),
            Step::Retry(retry) => {
                let at = Instant::now() + Duration::from_millis(retry.remaining_ms);
                // Several requests of one pull may wait for the same rate limit, so the wait is reported only once.
                let is_new = row.retry.as_ref().is_none_or(|known| known.host != retry.host)
                    || self.retry_at.is_none_or(|known| at > known + RETRY_TOLERANCE);
                self.retry_at = Some(at);
                let text = retry.text();
                row.retry = Some(retry);
                return is_new.then_some(text);
            }
            Step::Asked { .. } | Step::Image { .. } | Step::Settled { .. } => {}
        }
        None
    }

    fn layer(&mut self, digest: &str, state: &str, received: impl FnOnce(u64) -> u64) -> Option<u64> {
        let layer = self.row.layers.iter_mut().find(|layer| layer.digest == digest)?;
        (layer.state, layer.received) = (state.into(), received(layer.size));
        Some(layer.size)
    }

    fn row(&mut self, now: Instant) -> PullProgressRow {
        let mut row = self.row.clone();
        let missing = row.layers.iter().filter(|layer| layer.state != "present");
        if !row.layers.is_empty() {
            row.bytes_total = Some(missing.clone().map(|layer| layer.size).sum());
            row.bytes_received = missing.map(|layer| layer.received).sum();
        }
        let between = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
        };
        row.elapsed_ms = between(*self.began.get_or_insert(now), now);
        if let Some(total) = row.bytes_total.filter(|_| row.bytes_received > 0) {
            let (since, before) = *self.fetching.get_or_insert((now, row.bytes_received));
            let speed = (row.bytes_received.saturating_sub(before) * 1000).checked_div(between(since, now));
            row.bytes_per_second = speed.filter(|speed| *speed > 0);
            let left = total.saturating_sub(row.bytes_received);
            row.remaining_ms = row.bytes_per_second.map(|speed| left.saturating_mul(1000) / speed);
        }
        row.waits = self.unanswered.first().map(|host| waiting_for(host)).unwrap_or_default();
        let left = self.retry_at.map(|at| between(now, at));
        let retry = row.retry.zip(left.filter(|left| *left > 0));
        row.retry = retry.map(|(retry, remaining_ms)| PullRetry { remaining_ms, ..retry });
        row
    }
}

fn waiting_for(host: &str) -> String {
    format!("waiting for {}", printable(host))
}

fn short(digest: &str) -> &str {
    let hex = digest.split_once(':').map_or(digest, |(_, hex)| hex);
    hex.get(..DIGITS).unwrap_or(hex)
}

/// Shows all pulls of a node on a terminal, one line for each pull. The wide format also shows lines for their layers.
#[derive(Debug)]
pub(crate) struct PullScreen {
    screen: MultiProgress,
    pulls: BTreeMap<(u64, String), PullLine>,
    layers_max: usize,
}

const PULL_LINES_MAX: usize = 16;

impl PullScreen {
    pub(crate) fn of_stderr(with_layers: bool) -> Option<Self> {
        draws_bars().then(|| Self {
            screen: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(2)),
            pulls: BTreeMap::new(),
            layers_max: if with_layers { 8 } else { 0 },
        })
    }

    pub(crate) fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.screen.suspend(work)
    }

    pub(crate) fn show(&mut self, pull: &PullProgressRow) {
        let key = (pull.pull, if pull.pull == 0 { pull.image.clone() } else { String::new() });
        if pull.pull > 0 {
            // While the pull was queued, it had no number, and its line was found by the image. Remove that line.
            self.pulls.remove(&(0, pull.image.clone()));
        }
        if ["done", "failed", "given-up"].contains(&pull.phase.as_str()) {
            self.pulls.remove(&key);
            return;
        }
        if self.pulls.len() < PULL_LINES_MAX || self.pulls.contains_key(&key) {
            let line = || PullLine::new(&self.screen, in_columns(&printable(&pull.image), NAME_COLUMNS));
            self.pulls.entry(key).or_insert_with(line).draw(pull, self.layers_max);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.pulls.clear();
    }
}

/// The line of a pull, and the lines of its layers. A dropped bar removes its line from the terminal.
#[derive(Debug)]
struct PullLine {
    screen: MultiProgress,
    waits: Option<ProgressBar>,
    layers: BTreeMap<String, ProgressBar>,
    line: ProgressBar,
}

impl PullLine {
    fn new(screen: &MultiProgress, name: String) -> Self {
        let line = screen.add(ProgressBar::new(0).with_style(style("{prefix}")));
        line.set_prefix(name);
        Self { screen: screen.clone(), line, waits: None, layers: BTreeMap::new() }
    }

    fn draw(&mut self, pull: &PullProgressRow, layers_max: usize) {
        let has_total = pull.bytes_total.is_some();
        self.line.set_style(style(if has_total { "{prefix} {bar:16} {wide_msg}" } else { "{prefix} {wide_msg}" }));
        self.line.set_length(pull.bytes_total.unwrap_or(0));
        self.line.set_position(pull.bytes_received);
        if layers_max == 0 {
            self.line.set_message(standing(pull));
        } else {
            self.line.set_message(phase(pull));
            self.draw_waits(pull);
        }
        for layer in &pull.layers {
            if layer.state != "fetching" {
                self.layers.remove(&layer.digest);
                continue;
            }
            if !self.layers.contains_key(&layer.digest) && self.layers.len() < layers_max {
                let bar = self.screen.insert_after(&self.line, ProgressBar::new(layer.size));
                bar.set_style(style("  {prefix:>34} {bar:16} {decimal_bytes}/{decimal_total_bytes}"));
                bar.set_prefix(short(&layer.digest).to_owned());
                self.layers.insert(layer.digest.clone(), bar);
            }
            if let Some(bar) = self.layers.get(&layer.digest) {
                bar.set_position(layer.received);
            }
        }
    }

    fn draw_waits(&mut self, pull: &PullProgressRow) {
        let Some(text) = waits(pull) else {
            self.waits = None;
            return;
        };
        let line = self.waits.get_or_insert_with(|| {
            self.screen.insert_after(&self.line, ProgressBar::new(0).with_style(style("  {wide_msg}")))
        });
        line.set_message(text);
    }
}

/// Pads an image's name to the width. First cuts its digest to 12 digits, then the start of a name that is too long.
fn in_columns(name: &str, columns: usize) -> String {
    let named = match name.split_once('@') {
        Some((name, digest)) => format!("{name}@{}", digest.chars().take("sha256:".len() + DIGITS).collect::<String>()),
        None => name.to_owned(),
    };
    let length = named.chars().count();
    if length <= columns {
        return format!("{named:columns$}");
    }
    let end: String = named.chars().skip(length + 1 - columns).collect();
    format!("…{end}")
}

pub(crate) fn standing(pull: &PullProgressRow) -> String {
    let waits = waits(pull).map_or_else(String::new, |waits| format!(", {waits}"));
    format!("{}{waits}", phase(pull))
}

fn waits(pull: &PullProgressRow) -> Option<String> {
    let retry = pull.retry.as_ref().map(PullRetry::text);
    let awaited = Some(&pull.waits).filter(|waits| !waits.is_empty()).map(|waits| printable(waits));
    let waits: Vec<String> = retry.into_iter().chain(awaited).collect();
    (!waits.is_empty()).then(|| waits.join(", "))
}

fn phase(pull: &PullProgressRow) -> String {
    let name = match pull.phase.as_str() {
        "pulling" => "pulling through the runtime",
        "asking" | "" => "asking the registry",
        other => other,
    };
    let Some(total) = pull.bytes_total else {
        let place = pull.position.map_or_else(String::new, |place| format!(" at place {place}"));
        let estimate = pull.bytes_estimated.map_or_else(String::new, |bytes| format!(", about {}", ByteSize(bytes)));
        return format!("{name}{place} for {} s{estimate}", pull.elapsed_ms / 1000);
    };
    let over = pull.layers.iter().filter(|layer| ["done", "present"].contains(&layer.state.as_str())).count();
    let all = pull.layers.len() as u64 + pull.layers_hidden;
    // The number of layers comes first, because a narrow terminal cuts off the end of the line.
    let layers = if all == 0 { String::new() } else { format!(" {over}/{},", counted(all, "layer")) };
    let speed = pull.bytes_per_second.map_or_else(String::new, |speed| format!(", {}/s", ByteSize(speed)));
    let left = pull.remaining_ms.map_or_else(String::new, |left| format!(", {} s left", left.div_ceil(1000)));
    format!("{name}{layers} {} of {}{speed}{left}", ByteSize(pull.bytes_received), ByteSize(total))
}

fn layer_lines(lines: Option<u16>) -> usize {
    lines.map_or(LAYER_LINES_MAX, |lines| usize::from(lines).saturating_sub(LINES_RESERVED).clamp(1, LAYER_LINES_MAX))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use imagelet_node::api::RemovedForPull;

    #[test]
    fn names_of_pulls_stand_one_under_the_other() {
        let hex = "0123456789abcdef".repeat(4);
        for (name, shown) in [
            ("reg.test/app:v1", "reg.test/app:v1                     "),
            ("registry.example.org/team/a-long-name/app:v1", "…mple.org/team/a-long-name/app:v1   "),
        ] {
            let cut = in_columns(name, 36);
            assert_eq!(cut.chars().count(), 36, "{cut:?}");
            assert!(cut.starts_with(shown.trim_end()) || cut.ends_with(":v1"), "{cut:?}");
        }
        assert_eq!(in_columns(&format!("r.io/a@sha256:{hex}"), 36).trim_end(), "r.io/a@sha256:0123456789ab");
    }

    #[test]
    fn a_low_terminal_has_fewer_lines_of_layers() {
        assert_eq!([None, Some(24), Some(80), Some(2)].map(layer_lines), [24, 20, 24, 1]);
    }

    #[test]
    fn a_pull_names_a_host_while_any_is_awaited() {
        let mut known = KnownSteps::default();
        for (host, over, shown) in [
            ("b", false, "waiting for b"),
            ("a", false, "waiting for a"),
            ("a", true, "waiting for b"),
            ("b", true, ""),
        ] {
            known.take(Step::Waiting { host: host.into(), over });
            assert_eq!(known.row(Instant::now()).waits, shown, "{host} {over}");
        }
    }

    #[test]
    fn the_steps_of_a_pull_add_up_to_what_a_daemon_reports_of_it() {
        let (mut known, began) = (KnownSteps::default(), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(standing(&known.row(began)), "asking the registry for 0 s");
        let layer = |name: &str, size| LayerSize { digest: name.into(), size };
        let layers = vec![layer("a", 10_000_000), layer("b", 5_000_000)];
        known.take(Step::Resolved { manifest: "m".into(), layers });
        known.take(Step::Present { digest: "b".into() });
        known.take(Step::Fetching { digest: "a".into(), received: 1_000_000 });
        known.row(after(1));
        known.take(Step::Fetching { digest: "a".into(), received: 4_000_000 });
        assert_eq!(standing(&known.row(after(4))), "fetching 1/2 layers, 4MB of 10MB, 1MB/s, 6 s left");
        known.take(Step::Retry(PullRetry { host: "r.test".into(), remaining_ms: 9000, requested: true }));
        assert!(known.row(Instant::now()).retry.is_some() && known.row(after(60)).retry.is_none());
        known.take(Step::Done { digest: "a".into() });
        known.take(Step::Committing);
        let done = known.row(after(4));
        assert_eq!((done.phase.as_str(), done.bytes_received, done.retry), ("committing", 10_000_000, None));
    }

    #[test]
    fn a_pull_is_shown_in_a_line() {
        let layers = vec![
            LayerProgress { state: "done".into(), size: 1_000_000, received: 1_000_000, ..LayerProgress::default() },
            LayerProgress { state: "fetching".into(), size: 2_000_000, received: 500_000, ..LayerProgress::default() },
        ];
        let pull = PullProgressRow {
            phase: "fetching".into(),
            bytes_total: Some(3_000_000),
            bytes_received: 1_500_000,
            bytes_per_second: Some(500_000),
            remaining_ms: Some(2500),
            layers,
            ..PullProgressRow::default()
        };
        assert_eq!(standing(&pull), "fetching 1/2 layers, 1.5MB of 3MB, 500kB/s, 3 s left");
        let of_runtime = PullProgressRow {
            phase: "pulling".into(),
            elapsed_ms: 4200,
            bytes_estimated: Some(9_000_000),
            ..PullProgressRow::default()
        };
        assert_eq!(standing(&of_runtime), "pulling through the runtime for 4 s, about 9MB");
        let waits = PullProgressRow { phase: "waiting".into(), position: Some(3), ..PullProgressRow::default() };
        assert_eq!(standing(&waits), "waiting at place 3 for 0 s");
        let retry = Some(PullRetry { host: "r.test".into(), remaining_ms: 11_001, requested: true });
        let held = PullProgressRow { phase: "asking".into(), retry, ..PullProgressRow::default() };
        assert_eq!(standing(&held), "asking the registry for 0 s, r.test limits requests, next try in 12 s");
    }

    #[test]
    fn without_a_terminal_a_pull_is_a_few_plain_lines() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let layers = vec![LayerSize { digest: digest.clone(), size: 1_500_000 }];
        let mut known = KnownSteps::default();
        let mut say = |step| known.take(step);
        assert_eq!(
            say(Step::Resolved { manifest: String::new(), layers }).as_deref(),
            Some("1 layer, 1.5MB to fetch at most")
        );
        assert_eq!(say(Step::Fetching { digest: digest.clone(), received: 10 }), None);
        assert_eq!(say(Step::Done { digest }).as_deref(), Some("layer abababababab is done (1.5MB)"));
        let removed = RemovedForPull { names: vec!["old:v1".into(), "old:v2".into()], bytes: 20_000_000 };
        assert_eq!(say(Step::Removed(removed)).as_deref(), Some("removed old:v1, old:v2 (20MB) to make room"));
        assert_eq!(say(Step::Committing), None);
        let warning = || Step::Warning { text: "`servr` is no key\u{1b}".into() };
        assert_eq!(say(warning()).as_deref(), Some("warning: `servr` is no key?"));
        assert_eq!(say(warning()), None, "each warning once");
        let mut waiting = |over| say(Step::Waiting { host: "zot.test".into(), over });
        assert_eq!(
            [false, false, true, true].map(&mut waiting),
            [Some("waiting for zot.test".into()), None, None, None]
        );
        assert!(waiting(false).is_some(), "for the next answer");
        let mut wait = |host: &str, remaining_ms, requested| {
            say(Step::Retry(PullRetry { host: host.into(), remaining_ms, requested }))
        };
        assert_eq!(wait("r.test", 11_500, true).as_deref(), Some("r.test limits requests, next try in 12 s"));
        assert_eq!(wait("r.test", 11_900, true), None, "another request that waits for the same limit");
        assert_eq!(wait("m.test", 3000, false).as_deref(), Some("m.test failed, next try in 3 s"));
        assert_eq!(wait("m.test", 9000, false).as_deref(), Some("m.test failed, next try in 9 s"));
    }
}
