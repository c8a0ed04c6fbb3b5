//! A daemon is killed at seeded moments of seeded work: what it acknowledged holds, and nothing half done is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    fake_registry::FakeRegistry,
    images::Random,
    program::{Daemon, write_store_config},
    soundness::{Sample, assert_in_time, assert_sound, is_on_record, listing, small_layer},
    testbed::scratch,
};

/// The moments and the work; `IMAGELET_TEST_SEED` is another.
const SEED: &str = "the power goes at random";
/// Kills in all; `IMAGELET_TEST_ROUNDS` is another number.
const ROUNDS: usize = 200;
/// Daemons side by side, each with a store of its own: every other one answers before the disk has an image.
const LANES: usize = 4;
/// Images that come and go; the first is pinned and stays.
const IMAGES: usize = 6;
/// A kill comes at most this long after the work began.
const MOMENT_MAX_MS: u64 = 350;
/// What a kill may take of the times of use (C3).
const FLUSH_EVERY_SECONDS: i64 = 60;

/// What may be said of an image after what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Present,
    Absent,
    /// The kill met an operation on it.
    Either,
}

/// What one command shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    Pull(usize),
    Remove(usize),
    Collect(&'static [&'static str]),
    Pin(bool),
}

/// A store that is killed again and again.
struct Lane<'a> {
    samples: &'a [Sample],
    folder: tempfile::TempDir,
    random: Random,
    title: String,
    arguments: Vec<String>,
    expected: Vec<Expected>,
    /// Whether the second pattern is pinned; `None` when a kill met the command.
    pinned: Option<bool>,
    /// Seconds: first seen and last used, by image id.
    times: BTreeMap<String, (i64, i64)>,
    interrupted: usize,
}

impl<'a> Lane<'a> {
    fn new(samples: &'a [Sample], seed: &str, number: usize) -> Self {
        let folder = scratch();
        let text = |path: PathBuf| path.into_os_string().into_string().expect("temporary directories have plain names");
        let mut arguments = vec!["--store".to_owned(), text(folder.path().join("store"))];
        let background = number % 2 == 1;
        let config = if background { "durability: background" } else { "durability: commit" };
        arguments.extend(["--config".to_owned(), write_store_config(folder.path(), config)]);
        let seed = format!("{seed}/{number}");
        let title = format!("seed `{seed}`{}", if background { ", in the background mode" } else { "" });
        let expected = vec![Expected::Absent; samples.len()];
        let (random, times) = (Random::new(&seed), BTreeMap::new());
        Self { samples, folder, random, title, arguments, expected, pinned: Some(false), times, interrupted: 0 }
    }

    fn run(&mut self, rounds: usize) {
        let mut daemon = self.start();
        daemon.run(["pull", &self.samples[0].name]).ok();
        daemon.run(["pin", &self.samples[0].name]).ok();
        self.expected[0] = Expected::Present;
        for round in 0..rounds {
            let what = format!("{} round {round}", self.title);
            self.disturb(&mut daemon);
            let started = Instant::now();
            daemon = self.start();
            let document = daemon.run(["ls", "--all", "-o", "json"]);
            assert_in_time(started.elapsed(), &what);
            self.check(&daemon, document, &what);
            if self.random.below(4) == 0 {
                let again = usize::try_from(self.random.below(IMAGES as u64)).expect("a small number");
                let sample = &self.samples[again];
                assert_eq!(daemon.run(["pull", &sample.name]).ok().trim(), sample.id(), "{what}: pulled again");
                let damage = sample.damage(&self.folder.path().join("store"));
                assert!(damage.is_empty(), "{what}: pulled again:\n{}", damage.join("\n"));
                self.expected[again] = Expected::Present;
            }
        }
        daemon.run(["unpin", &self.samples[0].name]).ok();
        daemon.run(["unpin", PATTERN]);
        daemon.run(["gc", "--all-unused", "--now"]).ok();
        let store = self.folder.path().join("store");
        assert_sound(&store, &listing(daemon.run(["ls", "--all", "-o", "json"])), &[], &[], &self.title);
    }

    fn start(&self) -> Daemon {
        Daemon::start(self.folder.path(), &self.arguments)
    }

    /// Sets the daemon to work, kills it, and notes what it acknowledged before.
    fn disturb(&mut self, daemon: &mut Daemon) {
        let mut running: Vec<(Work, Child)> = Vec::new();
        for work in self.plan() {
            let mut command = daemon.command();
            match &work {
                Work::Pull(at) => command.args(["pull", &self.samples[*at].name]),
                Work::Remove(at) => command.args(["rm", &self.samples[*at].name]),
                Work::Collect(arguments) => command.args(["gc", "-o", "json"]).args(*arguments),
                Work::Pin(on) => command.args([if *on { "pin" } else { "unpin" }, PATTERN]),
            };
            running.push((work, command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()));
        }
        thread::sleep(Duration::from_millis(self.random.below(MOMENT_MAX_MS)));
        daemon.part.kill();
        let ended: Vec<(Work, Option<Vec<u8>>)> = running
            .into_iter()
            .map(|(work, child)| {
                let output = child.wait_with_output().unwrap();
                (work, output.status.success().then_some(output.stdout))
            })
            .collect();
        self.interrupted += ended.iter().filter(|(_, said)| said.is_none()).count();
        self.note(&ended);
    }

    /// One to four commands; no two name the same image.
    fn plan(&mut self) -> Vec<Work> {
        let mut images: Vec<usize> = (1..IMAGES).collect();
        let mut works = Vec::new();
        for _ in 0..=self.random.below(4) {
            let at = usize::try_from(self.random.below(images.len() as u64)).expect("a small number");
            works.push(match self.random.below(10) {
                0..=4 => Work::Pull(images.swap_remove(at)),
                5 | 6 => Work::Remove(images.swap_remove(at)),
                7 => Work::Collect(&["--all-unused", "--now"]),
                8 => Work::Collect(&["--free", "100k"]),
                _ => Work::Pin(self.random.below(2) == 0),
            });
        }
        let mut seen = BTreeSet::new();
        // Two pins or collections at once would say nothing about their order.
        works.retain(|work| match work {
            Work::Pull(_) | Work::Remove(_) => true,
            Work::Collect(_) => seen.insert("collect"),
            Work::Pin(_) => seen.insert("pin"),
        });
        works
    }

    fn note(&mut self, ended: &[(Work, Option<Vec<u8>>)]) {
        let collects = ended.iter().any(|(work, _)| matches!(work, Work::Collect(_)));
        for (work, said) in ended {
            let done = said.is_some();
            match work {
                // A collection beside it may have taken the image at once.
                Work::Pull(at) if done && !collects => self.expected[*at] = Expected::Present,
                Work::Pull(at) if collects || self.expected[*at] != Expected::Present => {
                    self.expected[*at] = Expected::Either;
                }
                Work::Pull(_) => {}
                Work::Remove(at) if done => self.expected[*at] = Expected::Absent,
                Work::Remove(at) if self.expected[*at] == Expected::Present => self.expected[*at] = Expected::Either,
                Work::Remove(_) => {}
                Work::Pin(on) => self.pinned = done.then_some(*on),
                Work::Collect(_) => {}
            }
        }
        let Some((_, said)) = ended.iter().find(|(work, _)| matches!(work, Work::Collect(_))) else { return };
        let removed = said.as_deref().map(removed).unwrap_or_default();
        let pulled: BTreeSet<usize> =
            ended.iter().filter_map(|(work, _)| if let Work::Pull(at) = work { Some(*at) } else { None }).collect();
        for at in 1..IMAGES {
            if removed.contains(self.samples[at].id()) && !pulled.contains(&at) {
                self.expected[at] = Expected::Absent;
            } else if self.expected[at] == Expected::Present && said.is_none() {
                self.expected[at] = Expected::Either;
            }
        }
    }

    fn check(&mut self, daemon: &Daemon, document: crate::program::Outcome, what: &str) {
        let store = self.folder.path().join("store");
        let rows: serde_json::Value = serde_json::from_str(&document.stdout).unwrap_or_default();
        let listed = listing(document);
        let known: Vec<&Sample> = self.samples.iter().collect();
        let kept: Vec<&Sample> =
            known.iter().zip(&self.expected).filter(|(_, it)| **it == Expected::Present).map(|(it, _)| *it).collect();
        assert_sound(&store, &listed, &known, &kept, what);
        for (sample, expected) in self.samples.iter().zip(&mut self.expected) {
            let present = listed.contains_key(sample.id());
            assert!(!(present && *expected == Expected::Absent), "{what}: {} was removed and is back", sample.name);
            assert!(!present || is_on_record(&store, sample.id()), "{what}: {} would count as preloaded", sample.name);
            *expected = if present { Expected::Present } else { Expected::Absent };
        }
        self.check_times(&rows, what);
        let pins = daemon.run(["pins"]).ok();
        assert!(pins.contains(&self.samples[0].name), "{what}: the pin is gone:\n{pins}");
        let pinned = pins.contains(PATTERN);
        assert!(self.pinned.is_none_or(|wanted| wanted == pinned), "{what}: pinned {:?}:\n{pins}", self.pinned);
        self.pinned = Some(pinned);
    }

    fn check_times(&mut self, rows: &serde_json::Value, what: &str) {
        let seconds = |value: &serde_json::Value| -> Option<i64> {
            value.as_str().map(|text| text.parse::<Timestamp>().expect("a time").as_second())
        };
        let mut times = BTreeMap::new();
        for row in rows["images"].as_array().into_iter().flatten() {
            let id = row["id"].as_str().expect("an id").to_owned();
            let seen = seconds(&row["firstSeen"]).expect("every image was seen");
            let used = seconds(&row["lastUsed"]).unwrap_or(0);
            if let Some((seen_before, used_before)) = self.times.get(&id) {
                // One that went and came again is new; the pinned one never goes.
                if id == self.samples[0].id() {
                    assert_eq!(seen, *seen_before, "{what}: first seen moved");
                }
                let lost = used_before - used;
                assert!(lost <= FLUSH_EVERY_SECONDS || seen > *used_before, "{what}: last used moved back by {lost} s");
            }
            times.insert(id, (seen, used));
        }
        self.times = times;
    }
}

/// Ids that a collection says it removed.
fn removed(document: &[u8]) -> BTreeSet<String> {
    let document: serde_json::Value = serde_json::from_slice(document).unwrap_or_default();
    let rows = document["images"].as_array().into_iter().flatten();
    let gone = rows.filter(|row| row["verdict"] == "removed");
    gone.filter_map(|row| row["id"].as_str().map(str::to_owned)).collect()
}

/// Pins nothing that is here: it comes and goes.
const PATTERN: &str = "registry.example/base/*";

fn samples(registry: &FakeRegistry) -> Vec<Sample> {
    let shared = [small_layer("base", 150_000), small_layer("runtime", 90_000)];
    (0..IMAGES)
        .map(|number| {
            let own = small_layer(&format!("own{number}"), 40_000 * (1 + number % 3));
            // Three share one layer, two share two, one shares none.
            let mut layers: Vec<_> = shared.iter().take(number % 3).cloned().collect();
            layers.push(own);
            let sample = Sample::put(registry, &format!("app{number}:v1"), layers);
            for (at, layer) in sample.image.layers.iter().enumerate() {
                let pause = Duration::from_millis(5 * at as u64 + 7 * number as u64);
                registry.spoil(&format!("app{number}"), &layer.digest, |answer| answer.pause = pause);
            }
            sample
        })
        .collect()
}

#[test]
fn a_daemon_killed_at_any_moment_keeps_what_it_acknowledged_and_nothing_else() {
    let text = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
    let seed = text("IMAGELET_TEST_SEED").unwrap_or_else(|| SEED.to_owned());
    let rounds = text("IMAGELET_TEST_ROUNDS").and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let registry = FakeRegistry::start();
    let samples = samples(&registry);
    let interrupted: usize = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|number| {
                let (samples, seed) = (&samples, &seed);
                scope.spawn(move || {
                    let mut lane = Lane::new(samples, seed, number);
                    lane.run(rounds.div_ceil(LANES));
                    lane.interrupted
                })
            })
            .collect();
        // What a lane found was told as it found it.
        lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| panic!("seed `{seed}`: a lane failed"))).sum()
    });
    assert!(interrupted >= rounds / 2, "seed `{seed}`: only {interrupted} commands were cut off in {rounds} rounds");
}
