//! Made-up pasts of nodes: which image a pod started from when, and for how long. Seeded, so that each can be had again.

use std::collections::BTreeMap;

const MB: u64 = 1_000_000;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// What happened on a node.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) name: &'static str,
    /// Bytes of the disk that images are on.
    pub(crate) disk: u64,
    /// What each layer takes.
    pub(crate) layers: Vec<u64>,
    pub(crate) images: Vec<Made>,
    /// In the order of time.
    pub(crate) starts: Vec<Start>,
}

/// A built image.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) layers: Vec<usize>,
}

/// A pod starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) at: u64,
    pub(crate) image: usize,
    pub(crate) lasts: u64,
}

/// Makes one kind of history, over so many days and so many tenths of a whole one.
type WorkloadKind = fn(&mut Maker, u64, u64);

/// All kinds there are, over so many days.
pub(crate) fn all(seed: u64, days: u64) -> Vec<History> {
    let kinds: [(&'static str, WorkloadKind); 5] =
        [("cron", cron), ("rolling", rolling), ("ci", ci), ("batch", batch), ("web", web)];
    let one = |name, disk: u64, tell: &dyn Fn(&mut Maker)| {
        let mut maker = Maker::new(seed ^ u64::from_le_bytes(*b"retained"));
        tell(&mut maker);
        maker.history(name, disk)
    };
    let disks = [9_000, 7_000, 22_000, 8_000, 9_000];
    let mut histories: Vec<History> = kinds
        .iter()
        .zip(disks)
        .map(|((name, tell), disk)| one(name, disk * MB, &|maker: &mut Maker| tell(maker, days, 10)))
        .collect();
    histories.push(one("mixture", 28_000 * MB, &|maker: &mut Maker| {
        for (_, tell) in kinds {
            tell(maker, days, 5);
        }
    }));
    histories.push(one("monorepo", 8_000 * MB, &|maker: &mut Maker| monorepo(maker, days)));
    histories.push(one("shift", 7_000 * MB, &|maker: &mut Maker| shift(maker, days)));
    histories
}

impl History {
    /// The same on a disk of so many percent.
    pub(crate) fn on_disk(&self, percent: u64) -> Self {
        Self { disk: self.disk * percent / 100, ..self.clone() }
    }
}

/// Jobs by the hour, the quarter of a day, the night and the week.
fn cron(make: &mut Maker, days: u64, tenths: u64) {
    let bases: Vec<usize> = (0..4).map(|_| make.layer(150, 300)).collect();
    for job in 0..6 * tenths {
        let period = [HOUR, 6 * HOUR, DAY, DAY, DAY, 7 * DAY][usize::try_from(job % 6).unwrap_or(0)];
        let base = bases[make.place(4)];
        let own = make.layer(80, 400);
        let image = make.image(format!("jobs/job-{job}:1"), vec![base, own]);
        let mut at = make.below(period);
        while at < days * DAY {
            let (jitter, lasts) = (make.below(4 * MINUTE), make.between(5 * MINUTE, 30 * MINUTE));
            make.start(at + jitter, image, lasts);
            at += period;
        }
    }
}

/// Services whose versions follow one another and share what they are built on; some are rolled back.
fn rolling(make: &mut Maker, days: u64, tenths: u64) {
    let bases: Vec<usize> = (0..3).map(|_| make.layer(300, 500)).collect();
    for service in 0..tenths * 3 / 2 {
        let base = bases[make.place(3)];
        let mut runtime = make.layer(80, 150);
        let (mut at, mut version, mut before) = (make.below(DAY), 0, None);
        while at < days * DAY {
            version += 1;
            if version % 5 == 0 {
                runtime = make.layer(80, 150);
            }
            let app = make.layer(60, 200);
            let image = make.image(format!("shop/service-{service}:v{version}"), vec![base, runtime, app]);
            let until = at + make.exponential(36 * HOUR).max(HOUR);
            let rolled_back = make.below(100) < 12;
            let mut running = (at, image);
            if let Some(before) = before.filter(|_| rolled_back) {
                let back = at + make.between(10 * MINUTE, 2 * HOUR);
                make.start(at, image, back.min(until) - at);
                running = (back.min(until - 1), before);
            }
            // Now and then it is moved to another node, and comes back.
            while running.0 < until {
                let lasts = make.exponential(60 * HOUR).max(HOUR).min(until - running.0);
                make.start(running.0, running.1, lasts);
                running.0 += lasts + make.exponential(4 * HOUR).max(10 * MINUTE);
            }
            (at, before) = (until, Some(image));
        }
    }
}

/// Builds: a tool image used again and again, and an image for each commit that is used once, sometimes tried again.
fn ci(make: &mut Maker, days: u64, tenths: u64) {
    let tools: Vec<usize> = (0..tenths.max(5))
        .map(|tool| {
            let layers = vec![make.layer(300, 600), make.layer(500, 900)];
            make.image(format!("tools/tool-{tool}:stable"), layers)
        })
        .collect();
    let projects: Vec<usize> = (0..6).map(|_| make.layer(300, 600)).collect();
    let mut commit = 0;
    for day in (0..days).filter(|day| day % 7 < 5) {
        for _ in 0..4 * tenths {
            let at = day * DAY + 8 * HOUR + make.below(11 * HOUR);
            let tool = tools[make.zipf(tools.len())];
            let lasts = make.between(5 * MINUTE, 25 * MINUTE);
            make.start(at, tool, lasts);
            let project = make.place(6);
            let own = make.layer(150, 400);
            commit += 1;
            let image = make.image(format!("ci/project-{project}:{commit:07x}"), vec![projects[project], own]);
            make.start(at + lasts, image, 10 * MINUTE);
            if make.below(100) < 25 {
                let later = make.between(20 * MINUTE, 3 * HOUR);
                make.start(at + lasts + later, image, 10 * MINUTE);
            }
        }
    }
}

/// Campaigns: an image is used for hours or days without pause, and perhaps again a week later.
fn batch(make: &mut Maker, days: u64, tenths: u64) {
    for campaign in 0..days * tenths / 12 + 2 {
        let layers = vec![make.layer(400, 900), make.layer(500, 2_000)];
        let image = make.image(format!("science/model-{campaign}:1"), layers);
        let mut at = make.below(days * DAY);
        loop {
            let until = at + make.between(6 * HOUR, 36 * HOUR);
            while at < until.min(days * DAY) {
                let lasts = make.between(5 * MINUTE, 40 * MINUTE);
                make.start(at, image, lasts);
                at += lasts + make.between(2 * MINUTE, 40 * MINUTE);
            }
            at = until + make.between(3 * DAY, 10 * DAY);
            if at >= days * DAY || make.below(100) < 50 {
                break;
            }
        }
    }
}

/// Services that run for long, leave for other nodes and come back, with a new version now and then.
fn web(make: &mut Maker, days: u64, tenths: u64) {
    let bases: Vec<usize> = (0..5).map(|_| make.layer(100, 250)).collect();
    for service in 0..tenths * 4 {
        let base = bases[make.place(5)];
        let away = [2 * HOUR, 8 * HOUR, 30 * HOUR][make.place(3)];
        let (mut at, mut version) = (make.below(6 * HOUR), 1);
        let own = make.layer(80, 300);
        let mut image = make.image(format!("web/site-{service}:v1"), vec![base, own]);
        let mut next = make.exponential(12 * DAY);
        while at < days * DAY {
            let lasts = make.exponential(12 * HOUR).max(20 * MINUTE);
            make.start(at, image, lasts);
            at += lasts + make.exponential(away).max(10 * MINUTE);
            if at > next {
                version += 1;
                next = at + make.exponential(12 * DAY);
                let own = make.layer(80, 300);
                image = make.image(format!("web/site-{service}:v{version}"), vec![base, own]);
            }
        }
    }
}

/// A company that keeps all it builds in one repository, with its products in the tags: names do not show which image is
/// an old version. Services that move about, jobs of the night and of the hour, and a release now and then.
fn monorepo(make: &mut Maker, days: u64) {
    let bases: Vec<usize> = (0..4).map(|_| make.layer(100, 250)).collect();
    for part in 0..36 {
        let base = bases[make.place(4)];
        let period = [HOUR, DAY][make.place(2)];
        let away = [3 * HOUR, 12 * HOUR][make.place(2)];
        let is_job = part % 3 == 0;
        let (mut at, mut version) = (make.below(DAY), 1);
        let own = make.layer(80, 300);
        let mut image = make.image(format!("company/all:part-{part}-v1"), vec![base, own]);
        let mut next = make.exponential(10 * DAY);
        while at < days * DAY {
            if is_job {
                let (jitter, lasts) = (make.below(10 * MINUTE), make.between(5 * MINUTE, 20 * MINUTE));
                make.start(at + jitter, image, lasts);
                at += period;
            } else {
                let lasts = make.exponential(9 * HOUR).max(20 * MINUTE);
                make.start(at, image, lasts);
                at += lasts + make.exponential(away).max(10 * MINUTE);
            }
            if at > next {
                version += 1;
                next = at + make.exponential(10 * DAY);
                let own = make.layer(80, 300);
                image = make.image(format!("company/all:part-{part}-v{version}"), vec![base, own]);
            }
        }
    }
}

/// What a node learned is wrong from the middle on: services that were away for an hour are away for days and the other
/// way round, and jobs of the night become jobs of every few hours, or end.
fn shift(make: &mut Maker, days: u64) {
    let bases: Vec<usize> = (0..4).map(|_| make.layer(100, 250)).collect();
    let middle = days * DAY / 2;
    for service in 0..28 {
        let layers = vec![bases[make.place(4)], make.layer(80, 300)];
        let image = make.image(format!("web/site-{service}:v1"), layers);
        let away = if service % 2 == 0 { [HOUR, 40 * HOUR] } else { [40 * HOUR, HOUR] };
        let mut at = make.below(12 * HOUR);
        while at < days * DAY {
            let lasts = make.exponential(8 * HOUR).max(20 * MINUTE);
            make.start(at, image, lasts);
            at += lasts + make.exponential(away[usize::from(at >= middle)]).max(10 * MINUTE);
        }
    }
    for job in 0..12 {
        let layers = vec![bases[make.place(4)], make.layer(80, 300)];
        let image = make.image(format!("jobs/job-{job}:1"), layers);
        let periods = [[DAY, 5 * HOUR], [3 * HOUR, DAY], [DAY, 10_000 * DAY]][make.place(3)];
        let mut at = make.below(DAY);
        while at < days * DAY {
            let (jitter, lasts) = (make.below(4 * MINUTE), make.between(5 * MINUTE, 30 * MINUTE));
            make.start(at + jitter, image, lasts);
            at += periods[usize::from(at >= middle)];
        }
    }
}

/// Builds a history, with the dice of its seed.
struct Maker {
    state: u64,
    layers: Vec<u64>,
    images: Vec<Made>,
    starts: Vec<Start>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        Self { state: seed, layers: Vec::new(), images: Vec::new(), starts: Vec::new() }
    }

    /// Something of the node itself always runs.
    fn history(mut self, name: &'static str, disk: u64) -> History {
        let layer = self.layer(20, 40);
        let image = self.image("kube/proxy:1".to_owned(), vec![layer]);
        self.start(0, image, 10_000 * DAY);
        self.starts.sort_by_key(|start| (start.at, start.image));
        History { name, disk, layers: self.layers, images: self.images, starts: self.starts }
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn place(&mut self, end: u64) -> usize {
        usize::try_from(self.below(end)).unwrap_or_default()
    }

    fn between(&mut self, from: u64, until: u64) -> u64 {
        from + self.below(until - from)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a positive number of seconds")]
    fn exponential(&mut self, mean: u64) -> u64 {
        let unit = (self.below(1 << 30) + 1) as f64 / (1_u64 << 30) as f64;
        (-unit.ln() * mean as f64) as u64
    }

    /// The first of several is the most popular.
    fn zipf(&mut self, count: usize) -> usize {
        let total: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
        let mut drawn = self.below(1 << 30) as f64 / (1_u64 << 30) as f64 * total;
        (0..count.saturating_sub(1))
            .find(|rank| {
                drawn -= 1.0 / (rank + 1) as f64;
                drawn < 0.0
            })
            .unwrap_or(count - 1)
    }

    fn layer(&mut self, from: u64, until: u64) -> usize {
        let bytes = self.between(from * MB, until * MB);
        self.layers.push(bytes);
        self.layers.len() - 1
    }

    fn image(&mut self, name: String, layers: Vec<usize>) -> usize {
        self.images.push(Made { name, layers });
        self.images.len() - 1
    }

    fn start(&mut self, at: u64, image: usize, lasts: u64) {
        self.starts.push(Start { at, image, lasts });
    }
}

/// How much the layers of some images take, each once.
pub(crate) fn taken(history: &History, images: impl Iterator<Item = usize>) -> u64 {
    let layers: BTreeMap<usize, u64> =
        images.flat_map(|image| &history.images[image].layers).map(|layer| (*layer, history.layers[*layer])).collect();
    layers.values().sum()
}
