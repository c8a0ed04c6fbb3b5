//! Every step of the store is once the last one of a process, and what is left opens, is whole, and heals.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use rustix::process::Signal;

use crate::{
    fake_registry::FakeRegistry,
    images::{Compression, Layer, noise},
    program::{Daemon, program, with_store, write_store_config},
    soundness::{Sample, assert_clean, assert_sound, is_on_record, reopen, small_layer},
    testbed::{mount_table, require_root, scratch, wait_until},
    tree,
};

/// Who runs the rootless scenario; the kernel's own nobody.
const NOBODY: u32 = 65_534;
/// Scenarios side by side.
const WORKERS: usize = 3;

/// What is in the registry, and a store with `kept` in it to start from.
struct Bed {
    registry: FakeRegistry,
    kept: Sample,
    fresh: Sample,
    artifact: Sample,
    large: Sample,
    kept_again: String,
    template: tempfile::TempDir,
    /// The program where anybody may run it.
    program: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let registry = FakeRegistry::start();
        let shared = small_layer("shared", 20_000);
        let kept = Sample::put(&registry, "kept:v1", vec![shared.clone(), small_layer("kept", 30_000)]);
        let fresh = Sample::put(&registry, "fresh:v1", vec![shared, small_layer("fresh", 40_000)]);
        let files: [(&str, &[u8]); 2] = [("weights.bin", &[7; 10_000]), ("conf/tokens", b"a b")];
        let artifact = Sample::put_artifact(&registry, "model:v1", &files);
        let noisy = noise("large", 17 << 20);
        let large = Sample::put(&registry, "large:v1", vec![Layer::new(Compression::None).file("large", noisy, 0o600)]);
        let kept_again = kept.put_again(&registry, "other/kept:v2");
        let template = scratch();
        with_store(&template.path().join("store"), ["pull", &kept.name]).ok();
        let program = template.path().join("imagelet");
        fs::copy(env!("CARGO_BIN_EXE_imagelet"), &program).unwrap();
        fs::set_permissions(template.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { registry, kept, fresh, artifact, large, kept_again, template, program }
    }
}

/// One store of one run.
struct Run<'a> {
    bed: &'a Bed,
    folder: tempfile::TempDir,
}

impl<'a> Run<'a> {
    fn new(bed: &'a Bed, scenario: &Scenario) -> Self {
        let run = Self { bed, folder: scratch() };
        if scenario.begins == Begins::WithKept {
            let copied = Command::new("cp").arg("-a").arg(bed.template.path().join("store")).arg(run.store()).status();
            assert!(copied.unwrap().success(), "the store is copied");
        }
        fs::create_dir(run.target()).unwrap();
        (scenario.prepare)(&run);
        run
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    fn text(path: PathBuf) -> String {
        path.into_os_string().into_string().expect("temporary directories have plain names")
    }

    /// The program over this store with its failpoints armed by `armed`.
    fn command(&self, scenario: &Scenario, armed: &str) -> Command {
        let mut command = if scenario.rootless { self.by_user() } else { program() };
        command.env("IMAGELET_FAILPOINT", armed).arg("--store").arg(self.store()).args((scenario.arguments)(self));
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir(self.folder.path());
        command
    }

    /// The program, run by somebody who is not root.
    fn by_user(&self) -> Command {
        let mut command = Command::new(&self.bed.program);
        command.env_clear().env("HOME", "/nonexistent").stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
        command
    }

    fn is_mounted(&self) -> bool {
        mount_table().lines().any(|line| line.split(' ').nth(4) == self.target().to_str())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = rustix::mount::unmount(self.target(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// What a scenario starts from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    Empty,
    WithKept,
}

/// An operation that is cut off at each of its steps.
struct Scenario {
    title: &'static str,
    begins: Begins,
    rootless: bool,
    /// Whether the operation may take the image that was there before.
    takes: bool,
    prepare: fn(&Run<'_>),
    arguments: fn(&Run<'_>) -> Vec<String>,
}

impl Scenario {
    const fn new(title: &'static str, begins: Begins, arguments: fn(&Run<'_>) -> Vec<String>) -> Self {
        Self { title, begins, rootless: false, takes: false, prepare: |_| {}, arguments }
    }

    const fn after(mut self, prepare: fn(&Run<'_>)) -> Self {
        self.prepare = prepare;
        self
    }

    const fn taking(mut self) -> Self {
        self.takes = true;
        self
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A pull that dies at a step.
fn cut_off(run: &Run<'_>, step: &str, image: &Sample) {
    let mut command = program();
    command.env("IMAGELET_FAILPOINT", step).arg("--store").arg(run.store()).args(["pull", &image.name]);
    assert_aborted(command.stderr(Stdio::null()), step);
}

/// A pull that died with everything in place but its name.
fn cut_off_pull(run: &Run<'_>) {
    cut_off(run, "commit.images", &run.bed.fresh);
    fs::create_dir_all(run.store().join("tmp/1-1/fs/some")).unwrap();
}

/// Folders at the places of the image to come that no index knows: put there while the pull waits for its first layer.
fn strangers(run: &Run<'_>) {
    for digest in run.bed.fresh.image.diff_ids().iter().chain([&run.bed.fresh.id().to_owned()]) {
        let (place, hex) = (if digest == run.bed.fresh.id() { "images" } else { "layers" }, &digest["sha256:".len()..]);
        fs::create_dir_all(run.store().join(place).join(hex).join("fs")).unwrap();
    }
}

/// A scenario whose unfinished layer stays after a crash.
const REST: &str = "the rest of a layer";

const SCENARIOS: &[Scenario] = &[
    Scenario::new("the first pull", Begins::Empty, |run| words(&["pull", &run.bed.kept.name])),
    Scenario {
        rootless: true,
        ..Scenario::new("a pull without root", Begins::Empty, |run| words(&["pull", &run.bed.kept.name]))
    }
    .after(|run| {
        std::os::unix::fs::chown(run.folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }),
    Scenario::new("a second pull", Begins::WithKept, |run| words(&["pull", &run.bed.fresh.name])),
    Scenario::new("the pull of an artifact", Begins::WithKept, |run| words(&["pull", &run.bed.artifact.name])),
    Scenario::new(REST, Begins::WithKept, |run| words(&["pull", &run.bed.large.name])).after(|run| {
        cut_off(run, "unpack.end", &run.bed.large);
    }),
    Scenario::new("a second name", Begins::WithKept, |run| words(&["pull", &run.bed.kept_again])),
    Scenario::new("a removal", Begins::WithKept, |run| words(&["rm", &run.bed.kept.name])).taking(),
    Scenario::new("the end of a name", Begins::WithKept, |run| words(&["untag", &run.bed.kept.name])).taking(),
    Scenario::new("a collection", Begins::WithKept, |_| words(&["gc", "--all-unused", "--now"])).taking(),
    Scenario::new("a pin", Begins::WithKept, |run| words(&["pin", &run.bed.kept.name])),
    Scenario::new("a pin taken back", Begins::WithKept, |run| words(&["unpin", &run.bed.kept.name])).after(|run| {
        with_store(&run.store(), ["pin", &run.bed.kept.name]).ok();
    }),
    Scenario::new("a mount", Begins::WithKept, |run| words(&["mount", &run.bed.kept.name, &Run::text(run.target())])),
    Scenario::new("a writable mount", Begins::WithKept, |run| {
        words(&["mount", "--rw", &run.bed.kept.name, &Run::text(run.target())])
    }),
    Scenario::new("an unmount", Begins::WithKept, |run| words(&["unmount", &Run::text(run.target())])).after(|run| {
        with_store(&run.store(), ["mount", "--rw", &run.bed.kept.name, run.target().to_str().unwrap()]).ok();
        fs::write(run.target().join("written"), [7; 100_000]).unwrap();
    }),
    Scenario::new("a start after a crash", Begins::WithKept, |_| words(&["pin", "nothing"])).after(cut_off_pull),
    Scenario::new("a start with damaged names", Begins::WithKept, |_| words(&["pin", "nothing"])).after(|run| {
        fs::write(run.store().join("names.json"), "{\"version\":1,\"na").unwrap();
    }),
];

/// Runs to its SIGABRT.
fn assert_aborted(command: &mut Command, what: &str) {
    let status = command.status().unwrap();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{what}: ended by {status}");
}

/// The steps that the scenario reaches, with how often.
fn reached(bed: &Bed, scenario: &Scenario) -> BTreeMap<String, usize> {
    let run = Run::new(bed, scenario);
    let log = run.folder.path().join("steps");
    let status = run.command(scenario, &format!("log:{}", log.display())).status().unwrap();
    assert!(status.success(), "{}: undisturbed, it ended by {status}", scenario.title);
    let mut steps = BTreeMap::new();
    for step in fs::read_to_string(&log).unwrap_or_default().lines() {
        *steps.entry(step.to_owned()).or_default() += 1;
    }
    steps
}

/// Cuts the scenario off at one step and looks at what is left.
fn crash(bed: &Bed, scenario: &Scenario, armed: &str) {
    let what = format!("{}, cut off at {armed}", scenario.title);
    let run = Run::new(bed, scenario);
    assert_aborted(&mut run.command(scenario, armed), &what);
    if scenario.rootless {
        // Root goes on with a store whose files are a user's: owners differ, so that only a new pull can be compared.
        return assert_heals_rootless(&run, scenario, &what);
    }
    let (store, known) = (run.store(), [&bed.kept, &bed.fresh, &bed.artifact, &bed.large]);
    let mut listed = reopen(&store, &what);
    if scenario.title == REST {
        with_store(&store, ["pull", &bed.large.name]).ok();
        listed = reopen(&store, &what);
        assert!(listed.contains_key(bed.large.id()), "{what}: what stays is continued by a pull");
    }
    let kept: &[&Sample] = if scenario.begins == Begins::WithKept && !scenario.takes { &[&bed.kept] } else { &[] };
    assert_sound(&store, &listed, &known, kept, &what);
    for id in listed.keys() {
        assert!(is_on_record(&store, id), "{what}: {id} would count as preloaded");
    }
    if run.is_mounted() {
        tree::assert_same(&shown(&run.target()), &bed.kept.merged());
        with_store(&store, ["unmount", run.target().to_str().unwrap()]).ok();
    }
    assert_heals(&store, bed, &what);
}

/// What a mount shows, without what the test itself wrote.
fn shown(target: &Path) -> tree::Tree {
    let mut tree = tree::read(target);
    tree.remove("written");
    tree
}

/// The same pulls give the exact images, and removals leave nothing.
fn assert_heals(store: &Path, bed: &Bed, what: &str) {
    let large = reopen(store, what).contains_key(bed.large.id()).then_some(&bed.large);
    let samples: Vec<&Sample> = [&bed.kept, &bed.fresh, &bed.artifact].into_iter().chain(large).collect();
    let names: Vec<&str> = samples.iter().map(|sample| &*sample.name).collect();
    let ids: Vec<&str> = samples.iter().map(|sample| sample.id()).collect();
    let pulled = with_store(store, [&["pull"], &names[..]].concat()).ok();
    assert_eq!(pulled.lines().collect::<Vec<_>>(), ids, "{what}");
    let listed = reopen(store, what);
    assert_sound(store, &listed, &samples, &samples, what);
    with_store(store, [&["rm"], &ids[..]].concat()).ok();
    assert_clean(store, &BTreeSet::new(), what);
}

fn assert_heals_rootless(run: &Run<'_>, scenario: &Scenario, what: &str) {
    let by_user =
        |arguments: &[&str]| crate::program::run(run.by_user().arg("--store").arg(run.store()).args(arguments));
    assert!(scenario.rootless && scenario.begins == Begins::Empty, "{what}");
    assert_eq!(by_user(&["pull", &run.bed.kept.name]).ok().trim(), run.bed.kept.id(), "{what}");
    let listed = crate::soundness::listing(by_user(&["ls", "--all", "-o", "json"]));
    assert_eq!(listed.keys().map(String::as_str).collect::<Vec<_>>(), [run.bed.kept.id()], "{what}");
    assert_clean(&run.store(), &BTreeSet::from([run.bed.kept.id()]), what);
    by_user(&["rm", run.bed.kept.id()]).ok();
    assert_clean(&run.store(), &BTreeSet::new(), what);
}

/// Every name that can be armed, each named once in the sources, but the steps of an import.
fn all_steps() -> BTreeSet<String> {
    let replaced = |room| ["written", "synced", "renamed", "durable"].map(|step| format!("{room}.{step}"));
    let replaced = ["file", "record", "state"].into_iter().flat_map(replaced);
    replaced.chain(steps_in_sources()).filter(|name| !name.starts_with("import.")).collect()
}

/// The names of all `failpoint!` in the sources of the workspace.
pub(crate) fn steps_in_sources() -> Vec<String> {
    fn collect(folder: &Path, names: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                collect(&entry, names);
            } else if entry.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&entry).unwrap();
                let named = text.split("failpoint!(\"").skip(1).filter_map(|rest| rest.split_once('"'));
                names.extend(named.map(|(name, _)| name.to_owned()));
            }
        }
    }
    let mut names = Vec::new();
    for member in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
        collect(&member.unwrap().path().join("src"), &mut names);
    }
    names
}

#[test]
fn each_step_may_be_the_last_one_of_a_process() {
    require_root("mounting");
    let bed = Bed::new();
    let mut pending = Vec::new();
    let mut met = BTreeSet::new();
    for scenario in SCENARIOS {
        for (step, count) in reached(&bed, scenario) {
            pending.extend((1..=count).map(|nth| (scenario, format!("{step}:{nth}"))));
            met.insert(step);
        }
    }
    crash_with_strangers(&bed);
    met.insert("commit.stranger".to_owned());
    for (config, steps) in DAEMONS {
        for armed in steps {
            crash_daemon(&bed, config, armed);
            met.insert(armed.split(':').next().unwrap().to_owned());
        }
    }
    for armed in ["file.synced", "file.renamed"] {
        crash_first_start(&bed, armed);
    }
    assert_eq!(met, all_steps(), "steps that no scenario reaches, or that are not listed");

    assert!(pending.len() > 200, "only {} crashes", pending.len());
    let (pending, failed) = (Mutex::new(pending), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some((scenario, armed)) = pending.lock().unwrap().pop() else { return };
                    let one = AssertUnwindSafe(|| crash(&bed, scenario, &armed));
                    if std::panic::catch_unwind(one).is_err() {
                        failed.lock().unwrap().push(format!("{}, cut off at {armed}", scenario.title));
                    }
                }
            });
        }
    });
    // What is wrong with each was told as it failed.
    assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new());
}

/// Something lies where a layer and the image shall be: it appears after the store was opened.
fn crash_with_strangers(bed: &Bed) {
    for nth in 1..=2 {
        let what = format!("a pull that meets strangers, cut off at commit.stranger:{nth}");
        let folder = scratch();
        let run = Run { bed, folder };
        with_store(&run.store(), ["pin", "nothing"]).ok();
        fs::create_dir(run.target()).unwrap();
        let digest = &bed.fresh.image.layers[1].digest;
        let waited = bed.registry.hold("fresh", digest);
        let mut command = program();
        command.env("IMAGELET_FAILPOINT", format!("commit.stranger:{nth}"));
        command
            .arg("--store")
            .arg(run.store())
            .args(["pull", &bed.fresh.name])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        waited.until_asked();
        strangers(&run);
        drop(waited);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{what}: ended by {status}");
        let listed = reopen(&run.store(), &what);
        assert_sound(&run.store(), &listed, &[&bed.fresh], &[], &what);
        assert_heals(&run.store(), bed, &what);
    }
}

/// How a daemon is configured, and the steps at which it is cut off in a pull.
const DAEMONS: [(&str, &[&str]); 3] = [
    (
        "durability: background",
        &[
            "commit.renamed",
            "commit.renamed:3",
            "commit.images",
            "commit.named-unsettled",
            "settle.synced",
            "settle.mark:1",
            "settle.mark:2",
            "settle.marks",
            // The first is of the start: a new store has its names before its first image.
            "file.synced:2",
            "file.renamed:2",
        ],
    ),
    (
        "keepBlobs: true",
        &["blob.begun", "blob.written:2", "blob.kept:1", "blob.kept:2", "commit.layers", "commit.named"],
    ),
    (
        "durability: background, keepBlobs: true",
        &["blob.written", "blob.kept", "commit.named-unsettled", "settle.marks"],
    ),
];

/// What was told is there after the crash, although the disk need not have it yet.
fn crash_daemon(bed: &Bed, config: &str, armed: &str) {
    let what = format!("a daemon with `{config}`, cut off at {armed}");
    let run = Run { bed, folder: scratch() };
    let store = run.store();
    let config = write_store_config(run.folder.path(), config);
    let arguments = ["--store", store.to_str().unwrap(), "--config", &config];
    let mut daemon = Daemon::start_armed(run.folder.path(), arguments, armed);
    let told = daemon.run(["pull", &bed.fresh.name]).code == 0;
    wait_until("the daemon to die", || daemon.part.ended().is_some());
    let status = daemon.part.ended().expect("it ended");
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{what}: ended by {status}");
    let kept: &[&Sample] = if told { &[&bed.fresh] } else { &[] };
    let listed = reopen(&store, &what);
    assert_sound(&store, &listed, &[&bed.fresh], kept, &what);
    assert_heals(&store, bed, &what);
}

/// The first start on a new store in the background is cut off while it writes the names.
fn crash_first_start(bed: &Bed, armed: &str) {
    let what = format!("a first start in the background, cut off at {armed}");
    let run = Run { bed, folder: scratch() };
    let config = write_store_config(run.folder.path(), "durability: background");
    let mut command = program();
    command.env("IMAGELET_FAILPOINT", armed).args(["serve", "--config", &config]);
    command.arg("--store").arg(run.store()).arg("--socket").arg(run.folder.path().join("socket"));
    let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(ended.signal(), Some(Signal::ABORT.as_raw()), "{what}: ended by {ended}");
    let listed = reopen(&run.store(), &what);
    assert_sound(&run.store(), &listed, &[], &[], &what);
    assert_heals(&run.store(), bed, &what);
}

#[test]
fn a_release_carries_no_failpoints() {
    let program = fs::read(env!("CARGO_BIN_EXE_imagelet")).unwrap();
    let has = |text: &str| program.windows(text.len()).any(|window| window == text.as_bytes());
    // The tests and the program are built the same way, so this holds for both kinds of build.
    assert_eq!(imagelet_core::failpoint::COMPILED_IN, cfg!(debug_assertions));
    assert_eq!(has("IMAGELET_FAILPOINT"), cfg!(debug_assertions));
    assert_eq!(has("commit.stranger"), cfg!(debug_assertions));
}

#[test]
fn steps_have_names_of_their_own() {
    let mut names = steps_in_sources();
    names.retain(|name| name != "open.folder");
    let count = names.len();
    assert!(count > 50 && names.iter().all(|name| !name.contains(':')), "{names:?}");
    assert_eq!(names.into_iter().collect::<BTreeSet<_>>().len(), count);
}
