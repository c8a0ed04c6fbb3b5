//! The N-th call of each kind that a daemon makes on its disk fails, for every N: nothing is lost, nothing is a lie.
//!
//! strace counts the calls of each thread by itself, so that one run may meet several faults. N grows until a run meets none.
//! A kind of call that no run of its story makes fails the test: it would prove nothing.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use imagelet_core::image::Digest;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use crate::{
    fake_registry::FakeRegistry,
    images::Layer,
    program::{Daemon, Outcome, write_store_config},
    soundness::{Sample, assert_sound, assert_whole, listing, small_layer},
    testbed::{require_root, scratch, wait_until},
};

/// No command takes longer, whatever fails.
const COMMAND_MAX: Duration = Duration::from_secs(20);
/// A kind of call that still fails at this N is made without end.
const NTH_MAX: usize = 400;
/// Daemons side by side.
const WORKERS: usize = 2;

/// Calls with what they may fail with.
type Table = &'static [(&'static str, &'static [&'static str])];

/// The calls that a pull makes on the disk.
const PULL: Table = &[
    ("write", &["ENOSPC", "EIO", "EDQUOT"]),
    ("pwrite64", &["ENOSPC"]),
    ("fsync", &["EIO", "ENOSPC"]),
    ("fdatasync", &["EIO"]),
    ("syncfs", &["EIO", "ENOSPC"]),
    ("rename", &["EIO", "ENOSPC"]),
    ("openat", &["EMFILE", "EIO"]),
    ("mkdir", &["ENOSPC"]),
    ("mkdirat", &["ENOSPC", "EDQUOT"]),
    ("symlinkat", &["ENOSPC"]),
    ("linkat", &["EIO"]),
    ("mknodat", &["ENOSPC"]),
    ("unlink", &["EIO"]),
    ("unlinkat", &["EIO"]),
    ("pread64", &["EIO"]),
    ("getdents64", &["EIO"]),
    ("statfs", &["EIO"]),
    ("fstatfs", &["EIO"]),
    ("accept4", &["EMFILE"]),
];

/// The calls by which other settings differ.
const PULL_OTHERWISE: Table = &[
    ("fsync", &["EIO"]),
    ("fdatasync", &["EIO"]),
    ("syncfs", &["EIO"]),
    ("rename", &["EIO"]),
    ("openat", &["EIO"]),
    ("mkdir", &["ENOSPC"]),
    ("mkdirat", &["ENOSPC"]),
    ("unlink", &["EIO"]),
    ("pread64", &["EIO"]),
    ("getdents64", &["EIO"]),
];

/// The same for a removal.
const REMOVE: Table = &[
    ("write", &["ENOSPC"]),
    ("fsync", &["EIO"]),
    ("fdatasync", &["EIO"]),
    ("rename", &["EIO", "ENOSPC"]),
    ("openat", &["EMFILE"]),
    ("unlink", &["EIO"]),
    ("unlinkat", &["EIO"]),
    ("getdents64", &["EIO"]),
];

const REMOVE_OTHERWISE: Table = &[("fsync", &["EIO"]), ("rename", &["EIO"]), ("getdents64", &["EIO"])];

/// The store's settings, each with the calls of its pulls and its removals.
const MANNERS: [(&str, Table, Table); 3] = [
    ("durability: commit", PULL, REMOVE),
    // A sync in the background may meet the fault before the removal does.
    ("durability: background", PULL_OTHERWISE, &[]),
    ("keepBlobs: true", PULL_OTHERWISE, REMOVE_OTHERWISE),
];

/// The calls by which a daemon cleans up: where they fail, the next sweep does.
const CLEANING: [&str; 5] = ["unlink", "rename", "openat", "rmdir", "getdents64"];

/// What is asked of the daemon while a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Pull,
    Remove,
}

/// One kind of fault during one operation.
#[derive(Clone, Copy, Debug)]
struct Fault {
    settings: &'static str,
    operation: Operation,
    call: &'static str,
    error: &'static str,
}

impl Fault {
    fn seed(&self) -> String {
        format!("{}-{}", self.call, self.error.to_lowercase())
    }

    /// The story and the kind of call, whatever it fails with.
    fn kind(&self) -> Kind {
        (self.settings, self.operation, self.call)
    }
}

/// Settings, operation and call.
type Kind = (&'static str, Operation, &'static str);

fn faults() -> Vec<Fault> {
    let of = |settings, operation, table: Table| {
        let fault = move |call, error| Fault { settings, operation, call, error };
        table.iter().flat_map(move |(call, errors)| errors.iter().map(move |error| fault(call, error)))
    };
    let all = MANNERS.into_iter().flat_map(|(settings, pull, remove)| {
        of(settings, Operation::Pull, pull).chain(of(settings, Operation::Remove, remove))
    });
    all.collect()
}

/// strace on a daemon, taken off when dropped.
struct Injection {
    strace: Child,
    folder: tempfile::TempDir,
}

impl Injection {
    /// Makes the N-th of the calls of each thread fail, or with `N+` all from there on; of those on `paths` only, if there
    /// are any.
    fn into(daemon: &Daemon, fault: &Fault, when: impl Display, paths: &[PathBuf]) -> Self {
        let folder = scratch();
        let process = daemon.part.id();
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o"]).arg(folder.path().join("log"));
        command.arg("-e").arg(format!("trace={}", fault.call)).args(["-e", "signal=none"]);
        command.arg("-e").arg(format!("inject={}:error={}:when={when}", fault.call, fault.error));
        for path in paths {
            command.arg("-P").arg(path);
        }
        command.args(["-p", &process.to_string()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let injection = Self { strace: command.spawn().expect("strace is installed"), folder };
        let tracer = format!("TracerPid:\t{}\n", injection.strace.id());
        wait_until("strace to hold every thread of the daemon", || {
            let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
            tasks.filter_map(Result::ok).all(|task| {
                // A thread that ended meanwhile needs no tracer.
                fs::read_to_string(task.path().join("status")).map_or(true, |status| status.contains(&tracer))
            })
        });
        injection
    }

    /// Takes it off and answers how many calls it made fail.
    fn end(mut self) -> usize {
        self.detach();
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.matches("(INJECTED)").count()
    }

    fn detach(&mut self) {
        // An error says that it ended before.
        let _ = kill_process(Pid::from_child(&self.strace), Signal::INT);
        let _ = self.strace.wait();
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        self.detach();
    }
}

/// A daemon with one image that stays, whatever happens to others.
struct Bed<'a> {
    folder: tempfile::TempDir,
    registry: &'a FakeRegistry,
    settings: &'static str,
    kept: Sample,
    daemon: Daemon,
}

impl<'a> Bed<'a> {
    fn new(registry: &'a FakeRegistry, settings: &'static str) -> Self {
        let folder = scratch();
        let kept = Sample::put(registry, "kept:v1", vec![small_layer("kept", 2_000)]);
        let config = write_store_config(folder.path(), settings);
        let store = folder.path().join("store");
        let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
        daemon.run(["pull", &kept.name]).ok();
        let bed = Self { folder, registry, settings, kept, daemon };
        bed.settle(0);
        bed
    }

    /// Runs the operation with the N-th call failing, checks what is left, and answers how many faults it met.
    fn try_nth(&mut self, fault: &Fault, nth: usize, sample: &Sample) -> usize {
        let Fault { settings, operation, call, error } = fault;
        let what = format!("{operation:?} with {call} failing by {error} at {nth}, {settings}");
        let tag = format!("{}-{}-{nth}", fault.call, fault.error.to_lowercase());
        let name = sample.put_again(self.registry, &format!("app:{tag}"));
        if fault.operation == Operation::Remove {
            assert_eq!(self.daemon.run(["pull", &name]).ok().trim(), sample.id(), "{what}");
        }
        let started = Instant::now();
        let (outcome, met) = match (fault.operation, fault.call) {
            (Operation::Pull, "write") => self.pull_with_writes_failing(fault, nth, sample, &name),
            (operation, call) => {
                let paths = if call == "write" { self.state_files(sample) } else { Vec::new() };
                let injection = Injection::into(&self.daemon, fault, nth, &paths);
                let word = if operation == Operation::Pull { "pull" } else { "rm" };
                let failures = self.failed_syncs();
                let outcome = self.daemon.run([word, &name]);
                self.settle(failures);
                if ["pread64", "fdatasync"].contains(&call) {
                    // The writer of the audit log makes these calls after the answer; `why` waits for the writer.
                    self.daemon.run(["why", &name]).ok();
                }
                (outcome, injection.end())
            }
        };
        assert!(started.elapsed() < COMMAND_MAX, "{what}: took {:?}", started.elapsed());
        self.judge(fault, sample, &name, &outcome, met, &what);
        met
    }

    /// In the background mode waits for the sync that follows a pull, or for one more failure.
    fn settle(&self, failures: usize) {
        let unsettled = self.folder.path().join("store/names.unsettled.json");
        wait_until("the sync in the background", || !unsettled.exists() || self.failed_syncs() > failures);
    }

    fn failed_syncs(&self) -> usize {
        self.daemon.part.log().matches("pulled images are not durable").count()
    }

    /// Whether the log says that an image was dropped, which the disk refused to keep after its pull had been answered.
    fn is_dropped(&self, name: &str) -> bool {
        let log = self.daemon.part.log();
        log.lines().any(|line| line.contains("the disk refused to keep this image") && line.contains(name))
    }

    /// A runtime wakes its threads by a write, too, and nothing holds of a machine where that fails. So the writes are
    /// picked by file, and those of a layer are known once its pull has begun.
    fn pull_with_writes_failing(&self, fault: &Fault, nth: usize, sample: &Sample, name: &str) -> (Outcome, usize) {
        let held = self.registry.hold("app", &sample.image.layers[1].digest);
        thread::scope(|scope| {
            let pull = scope.spawn(|| self.daemon.run(["pull", name]));
            held.until_asked();
            let mut paths = self.state_files(sample);
            let mut number = 0;
            for entry in fs::read_dir(self.folder.path().join("store/tmp")).unwrap().map(|entry| entry.unwrap().path())
            {
                let (_, digits) = entry.to_str().and_then(|path| path.rsplit_once('-')).expect("PROCESS-NUMBER");
                number = number.max(digits.parse::<u64>().expect("a number"));
                paths.extend(["layer.json", "implicit.json"].map(|file| entry.join(file)));
                for seed in ["first", &fault.seed()] {
                    let files = [format!("{seed}/text"), format!("{seed}/noise"), format!("implied/{seed}")];
                    paths.extend(files.iter().map(|file| entry.join("fs").join(file)));
                }
            }
            for next in number + 1..number + 3 {
                let folder = self.folder.path().join(format!("store/tmp/{}-{next}", self.daemon.part.id()));
                paths.extend(["manifest.json", "config.json", "image.json"].map(|file| folder.join(file)));
            }
            let injection = Injection::into(&self.daemon, fault, nth, &paths);
            drop(held);
            (pull.join().unwrap(), injection.end())
        })
    }

    /// The files beside which nothing else is written in place.
    fn state_files(&self, sample: &Sample) -> Vec<PathBuf> {
        let record = format!("state/image_manager/pulled/sha256-{}.tmp", Digest::of(sample.id().as_bytes()).hex());
        let files = ["names.new", "state/inventory/.ledger.new", &record];
        files.iter().map(|file| self.folder.path().join("store").join(file)).collect()
    }

    fn judge(&mut self, fault: &Fault, sample: &Sample, name: &str, outcome: &Outcome, met: usize, what: &str) {
        let store = self.folder.path().join("store");
        let log = self.daemon.part.log();
        assert!(!outcome.stderr.contains("panicked") && !log.contains("panicked"), "{what}: {}\n{log}", outcome.stderr);
        assert_eq!(self.daemon.part.ended(), None, "{what}: the daemon ended\n{log}");
        match outcome.code {
            0 => {}
            1 => {
                assert!(met > 0, "{what}: failed without a fault: {}", outcome.stderr);
                let of_image = outcome.stderr.contains(name) || outcome.stderr.contains(sample.id());
                let mounts = "/run/imagelet/mounts/";
                let places = [store.to_str().unwrap(), mounts];
                let told = of_image || places.iter().any(|place| outcome.stderr.contains(place));
                // What fails may be the answer itself.
                let cut_off = outcome.stderr.contains("imagelet.sock");
                assert!(told || cut_off, "{what}: neither the image nor a file is named: {}", outcome.stderr);
                assert!(
                    cut_off || outcome.stderr.contains("os error"),
                    "{what}: the cause is not told: {}",
                    outcome.stderr
                );
            }
            code => panic!("{what}: exit code {code}: {}", outcome.stderr),
        }
        let listed = listing(self.daemon.run(["ls", "--all", "-o", "json"]));
        let is_pull = fault.operation == Operation::Pull;
        let is_promised = is_pull && outcome.code == 0 && !self.is_dropped(name);
        let kept: &[&Sample] = if is_promised { &[&self.kept, sample] } else { &[&self.kept] };
        assert_whole(&store, &listed, &[&self.kept, sample], kept, what);
        if is_pull && CLEANING.iter().all(|call| !fault.call.starts_with(call)) {
            // Nothing kept the daemon from cleaning up behind itself.
            assert_sound(&store, &listed, &[&self.kept, sample], kept, what);
        }
        assert!(is_pull || outcome.code != 0 || !listed.contains_key(sample.id()), "{what}: removed and still listed");

        let again = sample.put_again(self.registry, &format!("{}-again", name.split_once('/').expect("a host").1));
        assert_eq!(self.daemon.run(["pull", &again]).ok().trim(), sample.id(), "{what}");
        let listed = listing(self.daemon.run(["ls", "--all", "-o", "json"]));
        assert_whole(&store, &listed, &[&self.kept, sample], &[&self.kept, sample], what);
        self.daemon.run(["rm", sample.id()]).ok();
        let listed = listing(self.daemon.run(["ls", "--all", "-o", "json"]));
        assert_sound(&store, &listed, &[&self.kept], &[&self.kept], what);
    }
}

/// A layer whose unpacking makes every kind of call: a sparse file is written in pieces, a second entry replaces the first.
fn varied_layer(seed: &str) -> Layer {
    small_layer(seed, 70_000)
        .sparse(&format!("{seed}/sparse"), 1 << 16, &[(4096, b"piece"), (32 << 10, b"piece")])
        .file(&format!("{seed}/twice"), "first", 0o644)
        .file(&format!("{seed}/twice"), "second", 0o644)
}

#[test]
fn whatever_call_fails_nothing_is_lost_and_nothing_is_a_lie() {
    require_root("strace on a daemon");
    let registry = FakeRegistry::start();
    let (pending, failed) = (Mutex::new(faults()), Mutex::new(Vec::new()));
    let met = Mutex::new(faults().iter().map(|fault| (fault.kind(), 0)).collect::<BTreeMap<_, _>>());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut bed = Bed::new(&registry, MANNERS[0].0);
                loop {
                    let Some(fault) = pending.lock().unwrap().pop() else { return };
                    if bed.settings != fault.settings {
                        bed = Bed::new(&registry, fault.settings);
                    }
                    let seed = fault.seed();
                    let layers = vec![small_layer("first", 3_000), varied_layer(&seed)];
                    let sample = Sample::put(&registry, &format!("{seed}:v1"), layers);
                    for nth in 1..=NTH_MAX {
                        assert!(nth < NTH_MAX, "{fault:?} has no last call");
                        let one = std::panic::AssertUnwindSafe(|| bed.try_nth(&fault, nth, &sample));
                        match std::panic::catch_unwind(one) {
                            Ok(0) => break,
                            Ok(count) => *met.lock().unwrap().get_mut(&fault.kind()).expect("is listed") += count,
                            Err(_) => {
                                failed.lock().unwrap().push(format!("{fault:?} at {nth}"));
                                bed = Bed::new(&registry, fault.settings);
                            }
                        }
                    }
                }
            });
        }
    });
    // What is wrong with each was told as it failed.
    assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new());
    let met = met.into_inner().unwrap();
    let unmet = met.iter().filter(|(_, count)| **count == 0).map(|(kind, _)| *kind);
    assert_eq!(unmet.collect::<Vec<Kind>>(), [], "no such call was made: these faults prove nothing");
}

#[test]
fn a_layer_whose_sync_failed_is_discarded_and_fetched_again() {
    require_root("strace on a daemon");
    let registry = FakeRegistry::start();
    let bed = Bed::new(&registry, MANNERS[0].0);
    let store = bed.folder.path().join("store");
    let syncs = [("syncfs", ""), ("fsync", "layers"), ("fsync", "images"), ("fsync", "names.new"), ("fsync", "")];
    for (at, (call, place)) in syncs.into_iter().enumerate() {
        let what = format!("{call} of `{place}` failing");
        let sample = Sample::put(&registry, &format!("p8-{at}:v1"), vec![small_layer(&format!("p8-{at}"), 9_000)]);
        let layer = format!("/blobs/{}", sample.image.layers[0].digest);
        let fetched = || registry.requests().iter().filter(|request| request.ends_with(&layer)).count();
        let fault = Fault { settings: bed.settings, operation: Operation::Pull, call, error: "EIO" };
        let place = if place.is_empty() { store.clone() } else { store.join(place) };
        // An early sync may come before the one that counts.
        let when = if call == "syncfs" { "1+" } else { "1" };
        let injection = Injection::into(&bed.daemon, &fault, when, &[place]);
        let outcome = bed.daemon.run(["pull", &sample.name]);
        assert!(injection.end() > 0, "{what}: no such call");
        outcome.refused(&[&sample.name, "os error 5"]);
        let listed = listing(bed.daemon.run(["ls", "--all", "-o", "json"]));
        assert_sound(&store, &listed, &[&bed.kept], &[&bed.kept], &what);
        assert_eq!(fetched(), 1, "{what}");
        let again = sample.put_again(&registry, &format!("p8-{at}:v2"));
        assert_eq!(bed.daemon.run(["pull", &again]).ok().trim(), sample.id(), "{what}");
        assert_eq!(fetched(), 2, "{what}: the layer was believed");
        bed.daemon.run(["rm", sample.id()]).ok();
    }
}
