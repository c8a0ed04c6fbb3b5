//! A pull of a large layer is ended at many bytes and in each way a pull ends: the next one fetches little of it again.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal};

use crate::{
    fake_registry::FakeRegistry,
    images::{Compression, Image, Layer, Random, noise},
    program::{Daemon, program, with_store, write_store_config},
    soundness::Sample,
    testbed::{Registry, scratch, wait_until},
};

const MIB: u64 = 1 << 20;
/// The size of the layer; a blob with fewer than 8 MiB received starts again.
const LARGE: u64 = 40 * MIB;
const FIRST: u64 = 9 * MIB;
/// What an end may cost.
const REFETCHED_MAX: u64 = MIB;
/// A file that is written with direct I/O, and the chunks of it that are in memory.
const DIRECT: u64 = 260 * MIB;
const DIRECT_QUEUED: u64 = 2 * MIB;

struct Bed {
    registry: FakeRegistry,
    sample: Sample,
    folder: tempfile::TempDir,
}

impl Bed {
    fn new(size: u64) -> Self {
        let registry = FakeRegistry::start();
        let size = usize::try_from(size).expect("it fits");
        let layer = Layer::new(Compression::None).file("large", noise("large", size), 0o644);
        let small = Layer::gzip().file("small", noise("small", 100_000), 0o644);
        let sample = Sample::put(&registry, "large:v1", vec![layer, small]);
        Self { registry, sample, folder: scratch() }
    }

    fn store(&self) -> std::path::PathBuf {
        self.folder.path().join("store")
    }

    /// Serves the large blob up to this byte, and then nothing.
    fn stall_at(&self, byte: Option<u64>) {
        let stall = byte.map(|byte| usize::try_from(byte).expect("it fits"));
        self.registry.spoil("large", self.large(), |answer| answer.stall_at = stall);
    }

    fn large(&self) -> &str {
        &self.sample.image.layers[0].digest
    }

    fn sent(&self) -> u64 {
        self.registry.sent("large", self.large())
    }

    /// Waits until what the registry sent is on the disk, but for a block or two on their way.
    fn until_written(&self, byte: u64, what: &str) {
        wait_until(what, || partial(&self.store()) + MIB / 4 >= byte);
    }

    fn assert_pulled(&self, interruptions: u64, what: &str) {
        let damage = self.sample.damage(&self.store());
        assert!(damage.is_empty(), "{what}:\n{}", damage.join("\n"));
        let (sent, size) = (self.sent(), self.sample.image.layers[0].bytes.len() as u64);
        assert!(sent <= size + interruptions * REFETCHED_MAX, "{what}: {sent} bytes of {size} were sent");
        assert_eq!(partial(&self.store()), 0, "{what}: the image replaces it");
        let requests = self.registry.requests();
        let small = requests.iter().filter(|request| request.ends_with(&self.sample.image.layers[1].digest)).count();
        assert_eq!(small, 1, "{what}: the small layer was unpacked at the first attempt");
    }
}

/// The bytes of the largest file of a partial layer.
fn partial(store: &Path) -> u64 {
    let folders = fs::read_dir(store.join("ingest")).into_iter().flatten();
    let files =
        folders.flat_map(|entry| ["fs", "kept"].map(|tree| entry.as_ref().unwrap().path().join(tree).join("large")));
    files.filter_map(|file| Some(file.metadata().ok()?.len())).max().unwrap_or_default()
}

fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn end(mut child: Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
    assert!(!child.wait().unwrap().success(), "it was interrupted");
}

#[test]
fn a_pull_that_is_killed_many_times_fetches_little_again() {
    let bed = Bed::new(LARGE);
    let mut random = Random::new("killed at many bytes");
    let mut kills = 0;
    let mut byte = FIRST;
    while byte < LARGE {
        bed.stall_at(Some(byte));
        let mut command = program();
        command.arg("--store").arg(bed.store()).args(["pull", &bed.sample.name]);
        let child = spawn(command);
        bed.until_written(byte, "the bytes before a kill");
        end(child, if kills % 2 == 0 { Signal::KILL } else { Signal::INT });
        kills += 1;
        byte += 1 + random.below(5 * MIB);
    }
    bed.stall_at(None);
    with_store(&bed.store(), ["pull", &bed.sample.name]).ok();
    bed.assert_pulled(kills, "killed many times");
}

#[test]
fn a_file_that_is_written_with_direct_io_is_continued_in_its_middle() {
    let bed = Bed::new(DIRECT);
    let ends = [(150 * MIB + 77, Signal::KILL), (255 * MIB, Signal::INT)];
    for (byte, signal) in ends {
        bed.stall_at(Some(byte));
        let mut command = program();
        command.arg("--store").arg(bed.store()).args(["pull", &bed.sample.name]);
        let child = spawn(command);
        bed.until_written(byte - DIRECT_QUEUED, "the bytes before a kill");
        end(child, signal);
        // Blocks of the page cache would end 512 bytes, the archive's header, before a page.
        let written = partial(&bed.store());
        assert!(signal != Signal::KILL || written.is_multiple_of(4096), "{written}");
    }
    bed.stall_at(None);
    with_store(&bed.store(), ["pull", &bed.sample.name]).ok();
    // Of the chunks on the disk, the last one may not be in the journal.
    bed.assert_pulled(ends.len() as u64 * (2 + DIRECT_QUEUED / REFETCHED_MAX), "written with direct I/O");
}

#[test]
fn a_daemon_resumes_what_it_was_ended_in_or_what_its_client_gave_up() {
    let bed = Bed::new(LARGE);
    let config = write_store_config(bed.folder.path(), "layersInFlight: 2");
    let store = bed.store();
    let arguments = ["--store", store.to_str().unwrap(), "--config", &config];
    let mut daemon = Daemon::start(bed.folder.path(), arguments);
    for (way, byte) in [("SIGTERM", FIRST), ("the client", 17 * MIB), ("kill", 29 * MIB)] {
        bed.stall_at(Some(byte));
        let mut command = daemon.command();
        command.args(["pull", &bed.sample.name]);
        let child = spawn(command);
        bed.until_written(byte, way);
        match way {
            "SIGTERM" => {
                daemon.stop(Signal::TERM);
                daemon = Daemon::start(bed.folder.path(), arguments);
            }
            "kill" => {
                daemon.part.kill();
                daemon = Daemon::start(bed.folder.path(), arguments);
            }
            _ => {}
        }
        end(child, Signal::INT);
    }
    bed.stall_at(None);
    daemon.run(["pull", &bed.sample.name]).ok();
    bed.assert_pulled(3, "a daemon");
}

#[test]
fn bytes_that_changed_on_the_disk_are_found_and_fetched_again() {
    let bed = Bed::new(LARGE);
    bed.stall_at(Some(20 * MIB));
    let mut command = program();
    command.arg("--store").arg(bed.store()).args(["pull", &bed.sample.name]);
    let child = spawn(command);
    bed.until_written(20 * MIB, "the bytes before a kill");
    end(child, Signal::KILL);
    let partial = fs::read_dir(bed.store().join("ingest")).unwrap().next().expect("a partial layer").unwrap().path();
    let file = fs::File::options().write(true).open(partial.join("fs/large")).unwrap();
    // As after a power cut that the kernel does not tell: the size was recorded, and some bytes were not.
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], MIB).unwrap();
    bed.stall_at(None);
    with_store(&bed.store(), ["pull", &bed.sample.name]).ok();
    // The whole blob once more.
    bed.assert_pulled(2 * LARGE / MIB, "a changed file");
    assert!(bed.sent() > 2 * 20 * MIB, "it was not trusted");
}

#[test]
fn a_registry_that_restarts_for_three_seconds_in_a_pull_costs_only_the_time() {
    let (folder, mut registry) = (scratch(), Registry::start());
    let size = usize::try_from(24 * MIB).expect("it fits");
    let layer = Layer::new(Compression::None).file("large", noise("restart", size), 0o644);
    let image = Image::oci(&[layer, Layer::gzip().file("small", noise("small", 100_000), 0o644)]);
    let name = registry.push("large:v1", &image);
    let (store, config) = (folder.path().join("store"), folder.path().join("config.yaml"));
    // The pull takes some seconds.
    fs::write(&config, "pulls: {bandwidth: 6Mi}\n").unwrap();
    let mut command = program();
    command.env("IMAGELET_CONFIG", &config).arg("--store").arg(&store).args(["pull", "-q", &name]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("a part of the layer", || partial(&store) >= 4 * MIB);
    registry.restart_after(Duration::from_secs(3));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), image.id());
    with_store(&store, ["verify"]).ok();
}
