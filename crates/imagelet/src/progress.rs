//! The display of a running pull: bars on a terminal, plain lines elsewhere, nothing with `--quiet`.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io::{IsTerminal as _, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use imagelet_core::{
    image::{ByteSize, counted},
    printable::printable,
};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

use imagelet_node::{
    api::{LayerSize, PullProgressRow, PullRetry, Step, Steps, no_steps},
    config::has_dumb_terminal,
};

/// Layers with a bar of their own; the total covers the others. A low terminal has fewer.
const BARS_MAX: usize = 24;
/// Lines of a terminal beside those of layers: the total, a wait for the registry, and what was typed.
const LINES_RESERVED: usize = 4;
/// Columns of a name before a bar, so that the line fits 80.
const BAR_NAME_COLUMNS: usize = 28;
const RESOLVING: &str = "asking the registry";
const THROUGH_RUNTIME: &str = "pulling through the runtime";
const DIGITS: usize = 12;
/// Waits that end within this time of each other are one.
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

    /// Shows a pull with its layers, or in a line of its own if `line_width`, the widest name of several pulls, is
    /// given. Dropping the guard removes its bars.
    pub(crate) fn show(&self, image: &str, line_width: Option<usize>) -> Shown {
        let image = printable(image);
        match self {
            Self::Quiet => Shown { steps: no_steps(), bars: None },
            Self::Lines => {
                let said = Mutex::default();
                let steps = move |step| {
                    if let Some(text) = line(&mut lock(&said), &step) {
                        drop(writeln!(std::io::stderr(), "{image}: {text}"));
                    }
                };
                Shown { steps: Arc::new(steps), bars: None }
            }
            Self::Bars(screen) => {
                let lines = tcgetwinsize(std::io::stderr()).ok().map(|size| size.ws_row);
                let layers_max = if line_width.is_some() { 0 } else { bars_for(lines) };
                let columns = line_width.unwrap_or_else(|| image.chars().count());
                let image = in_columns(&image, columns.min(BAR_NAME_COLUMNS));
                let bars = Arc::new(Bars::new(screen.clone(), image, layers_max));
                let hearing = Arc::clone(&bars);
                Shown { steps: Arc::new(move |step| hearing.take(step)), bars: Some(bars) }
            }
        }
    }

    /// Prints a line without breaking the bars.
    pub(crate) fn say(&self, text: &str) {
        match self {
            Self::Quiet => {}
            Self::Lines => drop(writeln!(std::io::stderr(), "{text}")),
            Self::Bars(screen) => drop(screen.println(text)),
        }
    }
}

/// Bars need a terminal that moves its cursor.
fn draws_bars() -> bool {
    std::io::stderr().is_terminal() && !has_dumb_terminal()
}

pub(crate) struct Shown {
    pub(crate) steps: Steps,
    bars: Option<Arc<Bars>>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bars) = &self.bars {
            bars.clear();
        }
    }
}

/// What a pull without bars has said.
#[derive(Default)]
struct Said {
    sizes: BTreeMap<String, ByteSize>,
    retry: Option<(String, Instant)>,
    warnings: BTreeSet<String>,
    unanswered: BTreeMap<String, usize>,
}

fn line(said: &mut Said, step: &Step) -> Option<String> {
    match step {
        Step::Resolved { layers: resolved, .. } => {
            said.sizes = resolved.iter().map(|layer| (layer.digest.clone(), ByteSize(layer.size))).collect();
            let total: ByteSize = resolved.iter().map(|layer| ByteSize(layer.size)).sum();
            Some(format!("{}, {total} to fetch at most", counted(resolved.len(), "layer")))
        }
        Step::Notice { note } => Some(printable(note)),
        Step::Waiting { host, over } => {
            let (was, is) = unanswered(&mut said.unanswered, host, *over);
            (was == 0 && is == 1).then(|| waiting_for(host))
        }
        Step::Removed(image) => Some(image.text()),
        // Each attempt of a pull warns anew.
        Step::Warning { text } => said.warnings.insert(text.clone()).then(|| warning(text)),
        Step::Present { digest } => Some(format!("layer {} is present", short(digest))),
        Step::Retry(retry) => {
            let at = Instant::now() + Duration::from_millis(retry.remaining_ms);
            // All requests of a pull wait for the same limit.
            let is_new =
                said.retry.as_ref().is_none_or(|(host, known)| *host != retry.host || at > *known + RETRY_TOLERANCE);
            said.retry = Some((retry.host.clone(), at));
            is_new.then(|| retry.text())
        }
        Step::Done { digest } => {
            let size = said.sizes.get(digest).copied().unwrap_or(ByteSize::ZERO);
            Some(format!("layer {} is done ({size})", short(digest)))
        }
        _ => None,
    }
}

fn warning(text: &str) -> String {
    format!("warning: {}", printable(text))
}

/// How many requests a host had not answered, and has not now.
fn unanswered(hosts: &mut BTreeMap<String, usize>, host: &str, over: bool) -> (usize, usize) {
    let was = hosts.get(host).copied().unwrap_or_default();
    let is = if over { was.saturating_sub(1) } else { was + 1 };
    hosts.insert(host.to_owned(), is);
    (was, is)
}

fn waiting_for(host: &str) -> String {
    format!("waiting for {}", printable(host))
}

fn short(digest: &str) -> &str {
    let hex = digest.split_once(':').map_or(digest, |(_, hex)| hex);
    hex.get(..DIGITS).unwrap_or(hex)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pulls of a node on a terminal, polled: a line for each, and one for each layer in progress.
#[derive(Debug)]
pub(crate) struct PullScreen {
    screen: MultiProgress,
    pulls: BTreeMap<(u64, String), (ProgressBar, BTreeMap<String, ProgressBar>)>,
    with_layers: bool,
}

const PULL_LINES_MAX: usize = 16;
const LAYER_LINES_MAX: usize = 8;
/// Columns of a name, so that the columns after it align.
const NAME_COLUMNS: usize = 36;

impl PullScreen {
    /// On stderr, drawn twice a second at most; `None` where stderr is no terminal.
    pub(crate) fn of_stderr(with_layers: bool) -> Option<Self> {
        draws_bars().then(|| Self {
            screen: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(2)),
            pulls: BTreeMap::new(),
            with_layers,
        })
    }

    /// Runs something that writes to the terminal without breaking the lines.
    pub(crate) fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.screen.suspend(work)
    }

    /// Updates the line of a pull; removes it when the pull has ended.
    pub(crate) fn show(&mut self, pull: &PullProgressRow) {
        let key = (pull.pull, if pull.pull == 0 { pull.image.clone() } else { String::new() });
        if pull.pull > 0 {
            // The pull has left the queue.
            self.forget(&(0, pull.image.clone()));
        }
        if ["done", "failed", "given-up"].contains(&pull.phase.as_str()) {
            self.forget(&key);
            return;
        }
        let is_full = self.pulls.len() >= PULL_LINES_MAX;
        let (line, layers) = match self.pulls.entry(key) {
            Entry::Occupied(shown) => shown.into_mut(),
            Entry::Vacant(_) if is_full => return,
            Entry::Vacant(free) => free.insert((self.screen.add(ProgressBar::new(0)), BTreeMap::new())),
        };
        let has_total = pull.bytes_total.is_some();
        line.set_style(style(if has_total { "{prefix} {bar:16} {wide_msg}" } else { "{prefix} {wide_msg}" }));
        line.set_prefix(in_columns(&printable(&pull.image), NAME_COLUMNS));
        line.set_length(pull.bytes_total.unwrap_or(0));
        line.set_position(pull.bytes_received);
        line.set_message(standing(pull));
        for layer in &pull.layers {
            let comes = layer.state == "fetching" && self.with_layers;
            if !comes {
                if let Some(bar) = layers.remove(&layer.digest) {
                    bar.finish_and_clear();
                }
                continue;
            }
            if !layers.contains_key(&layer.digest) && layers.len() < LAYER_LINES_MAX {
                let bar = self.screen.insert_after(line, ProgressBar::new(layer.size));
                bar.set_style(style("  {prefix:>34} {bar:16} {decimal_bytes}/{decimal_total_bytes}"));
                bar.set_prefix(short(&layer.digest).to_owned());
                layers.insert(layer.digest.clone(), bar);
            }
            if let Some(bar) = layers.get(&layer.digest) {
                bar.set_position(layer.received);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        let keys: Vec<_> = self.pulls.keys().cloned().collect();
        for key in &keys {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: &(u64, String)) {
        if let Some((line, layers)) = self.pulls.remove(key) {
            layers.values().for_each(ProgressBar::finish_and_clear);
            line.finish_and_clear();
        }
    }
}

/// Shortens a name: cuts a digest to its first digits, then keeps the end of the name.
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
    let for_so_long = format!("{} s", pull.elapsed_ms / 1000);
    let mut retry = pull.retry.as_ref().map_or_else(String::new, |retry| format!(", {}", retry.text()));
    if !pull.waits.is_empty() {
        retry = format!("{retry}, {}", printable(&pull.waits));
    }
    let Some(total) = pull.bytes_total else {
        let place = pull.position.map_or_else(String::new, |place| format!(" at place {place}"));
        let estimate = pull.bytes_estimated.map_or_else(String::new, |bytes| format!(", about {}", ByteSize(bytes)));
        let phase = if pull.phase == "pulling" { THROUGH_RUNTIME } else { &pull.phase };
        return format!("{phase}{place} for {for_so_long}{estimate}{retry}");
    };
    let over = pull.layers.iter().filter(|layer| ["done", "present"].contains(&layer.state.as_str())).count();
    let speed = pull.bytes_per_second.map_or_else(String::new, |speed| format!(", {}/s", ByteSize(speed)));
    let left = pull.remaining_ms.map_or_else(String::new, |left| format!(", {} s left", left.div_ceil(1000)));
    let (received, all) = (ByteSize(pull.bytes_received), pull.layers.len() as u64 + pull.layers_hidden);
    let layers = counted(all, "layer");
    format!("{} {received} of {}{speed}{left}, {over} of {layers}{retry}", pull.phase, ByteSize(total))
}

/// How many layers have a bar on a terminal of so many lines.
fn bars_for(lines: Option<u16>) -> usize {
    lines.map_or(BARS_MAX, |lines| usize::from(lines).saturating_sub(LINES_RESERVED).clamp(1, BARS_MAX))
}

struct Bars {
    screen: MultiProgress,
    total: ProgressBar,
    layers_max: usize,
    layers: Mutex<LayerBars>,
}

#[derive(Default)]
struct LayerBars {
    by_digest: BTreeMap<String, ProgressBar>,
    /// Of an image with more layers than lines: those under way that have a line.
    visible: BTreeSet<String>,
    done: usize,
    retry: Option<Countdown>,
    warnings: BTreeSet<String>,
    unanswered: BTreeMap<String, usize>,
}

/// A line below the total that counts down to the next request.
struct Countdown {
    bar: ProgressBar,
    at: Instant,
}

impl Countdown {
    const PERIOD: Duration = Duration::from_secs(1);

    fn new(screen: &MultiProgress, above: &ProgressBar, retry: PullRetry) -> Self {
        let at = Instant::now() + Duration::from_millis(retry.remaining_ms);
        let bar = screen.insert_after(above, ProgressBar::new_spinner());
        let text = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            let left = at.saturating_duration_since(Instant::now()).as_millis();
            let retry = PullRetry { remaining_ms: u64::try_from(left).unwrap_or(u64::MAX), ..retry.clone() };
            let _ = out.write_str(&retry.text());
        };
        bar.set_style(style("  {wait}").with_key("wait", text));
        bar.enable_steady_tick(Self::PERIOD);
        Self { bar, at }
    }

    /// Whether a step shows that the pull goes on.
    fn is_over(&self, step: &Step, now: Instant) -> bool {
        matches!(step, Step::Resolved { .. } | Step::Committing | Step::ThroughRuntime) || now >= self.at
    }
}

impl Drop for Countdown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Whether a layer that makes progress gets a line now: each one under way has one while there is room.
fn gets_line(visible: &mut BTreeSet<String>, digest: &str, lines_max: usize) -> bool {
    visible.len() < lines_max && visible.insert(digest.to_owned())
}

impl Bars {
    fn new(screen: MultiProgress, image: String, layers_max: usize) -> Self {
        let total = screen.add(ProgressBar::new_spinner().with_style(style("{spinner} {prefix} {wide_msg}")));
        total.set_prefix(image);
        total.set_message(RESOLVING);
        total.enable_steady_tick(Duration::from_millis(120));
        Self { screen, total, layers_max, layers: Mutex::default() }
    }

    fn take(&self, step: Step) {
        let mut layers = lock(&self.layers);
        if layers.retry.as_ref().is_some_and(|retry| retry.is_over(&step, Instant::now())) {
            layers.retry = None;
        }
        match step {
            Step::Retry(retry) => {
                let at = Instant::now() + Duration::from_millis(retry.remaining_ms);
                if layers.retry.as_ref().is_none_or(|shown| at > shown.at + RETRY_TOLERANCE) {
                    layers.retry = None;
                    layers.retry = Some(Countdown::new(&self.screen, &self.total, retry));
                }
                return;
            }
            Step::Resolved { layers: resolved, .. } => self.resolve(&mut layers, &resolved),
            Step::Fetching { digest, received } => {
                if let Some(bar) = layers.by_digest.get(&digest).cloned() {
                    if layers.by_digest.len() > self.layers_max
                        && self.layers_max > 0
                        && gets_line(&mut layers.visible, &digest, self.layers_max)
                    {
                        drop(self.screen.add(bar.clone()));
                    }
                    // A retry starts over; the bar follows.
                    bar.set_position(received.min(bar.length().unwrap_or(received)));
                }
            }
            Step::Present { digest } => self.finish(&mut layers, &digest, "present"),
            Step::Done { digest } => self.finish(&mut layers, &digest, "done"),
            Step::ThroughRuntime => {
                self.total.set_style(style("{spinner} {prefix} {msg} for {elapsed}"));
                self.total.set_message(THROUGH_RUNTIME);
                return;
            }
            Step::Committing => self.total.set_message("committing"),
            Step::Checking { read, total } => {
                self.total.set_length(total);
                self.total.set_style(style(
                    "{spinner} {prefix} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {msg}",
                ));
                self.total.set_message("");
                self.total.set_position(read);
                return;
            }
            Step::Waiting { host, over } => {
                unanswered(&mut layers.unanswered, &host, over);
                let message = match layers.unanswered.iter().find(|(_, count)| **count > 0) {
                    Some((host, _)) => waiting_for(host),
                    None if layers.by_digest.is_empty() => RESOLVING.to_owned(),
                    None => String::new(),
                };
                self.total.set_message(message);
                return;
            }
            // The steps of a pod's images arrive one by one, each on a screen of its own.
            Step::Notice { note } => {
                drop(self.screen.println(printable(&note)));
                return;
            }
            Step::Warning { text } => {
                let line = warning(&text);
                if layers.warnings.insert(text) {
                    drop(self.screen.println(line));
                }
                return;
            }
            Step::Removed(image) => {
                drop(self.screen.println(image.text()));
                return;
            }
            Step::Asked { .. } | Step::Image { .. } | Step::Settled { .. } => return,
        }
        self.total.set_position(layers.by_digest.values().map(ProgressBar::position).sum());
    }

    fn resolve(&self, layers: &mut LayerBars, resolved: &[LayerSize]) {
        self.total.set_style(style(
            "{spinner} {prefix} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} {msg}",
        ));
        self.total.set_message("");
        let fits = resolved.len() <= self.layers_max;
        let mut above = self.total.clone();
        for layer in resolved {
            if layers.by_digest.contains_key(&layer.digest) {
                continue;
            }
            let mut bar = ProgressBar::with_draw_target(Some(layer.size), ProgressDrawTarget::hidden());
            if fits {
                bar = self.screen.insert_after(&above, bar);
                above = bar.clone();
            }
            bar.set_style(style("  {prefix} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {msg:7}"));
            bar.set_prefix(short(&layer.digest).to_owned());
            layers.by_digest.insert(layer.digest.clone(), bar);
        }
        self.total.set_length(layers.by_digest.values().filter_map(ProgressBar::length).sum());
    }

    /// Of many layers, those that are done leave their line to one that is not.
    fn finish(&self, layers: &mut LayerBars, digest: &str, word: &'static str) {
        let Some(bar) = layers.by_digest.get(digest) else { return };
        let total = layers.by_digest.len();
        if total <= self.layers_max || self.layers_max == 0 {
            return bar.finish_with_message(word);
        }
        bar.finish_and_clear();
        layers.visible.remove(digest);
        layers.done += 1;
        self.total.set_message(format!("{}/{total}", layers.done.min(total)));
    }

    fn clear(&self) {
        let mut layers = lock(&self.layers);
        layers.retry = None;
        layers.by_digest.values().for_each(ProgressBar::finish_and_clear);
        self.total.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use imagelet_node::api::{LayerProgress, RemovedForPull};

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
    fn each_of_sixty_layers_has_a_line_while_it_is_under_way() {
        assert_eq!([None, Some(24), Some(80), Some(2)].map(bars_for), [24, 20, 24, 1]);
        let mut visible = BTreeSet::new();
        let digests: Vec<String> = (0..60).map(|number| format!("sha256:{number:064}")).collect();
        let under_way = 4;
        for (number, digest) in digests.iter().enumerate() {
            assert!(gets_line(&mut visible, digest, bars_for(Some(24))), "{number}");
            assert!(!gets_line(&mut visible, digest, bars_for(Some(24))), "it has one");
            if number >= under_way {
                visible.remove(&digests[number - under_way]);
            }
            assert!(visible.contains(digest) && visible.len() <= under_way + 1);
        }
        let all = digests.iter().filter(|digest| gets_line(&mut visible, digest, 21)).count();
        assert_eq!((all, visible.len()), (17, 21), "no more than the terminal has");
    }

    #[test]
    fn a_bar_names_a_host_while_any_is_awaited() {
        let bars = Bars::new(MultiProgress::with_draw_target(ProgressDrawTarget::hidden()), "app:v1".into(), 4);
        for (host, over, shown) in [
            ("b", false, "waiting for b"),
            ("a", false, "waiting for a"),
            ("a", true, "waiting for b"),
            ("b", true, RESOLVING),
        ] {
            bars.take(Step::Waiting { host: host.into(), over });
            assert_eq!(bars.total.message(), shown, "{host} {over}");
        }
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
        assert_eq!(standing(&pull), "fetching 1.5MB of 3MB, 500kB/s, 3 s left, 1 of 2 layers");
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
        assert_eq!(standing(&held), "asking for 0 s, r.test limits requests, next try in 12 s");
    }

    #[test]
    fn without_a_terminal_a_pull_is_a_few_plain_lines() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let layers = vec![LayerSize { digest: digest.clone(), size: 1_500_000 }];
        let mut known = Said::default();
        let mut say = |step| line(&mut known, &step);
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
