//! Mounted images: what a look, a collection and an unmount do to those that are moved, covered, bound or elsewhere.

use std::{
    fs::{self, File},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer},
    program::{Outcome, program, run, with_store},
    testbed::{Part, mount_table, require_root, scratch, wait_until},
};

/// What is done to a note, in words and in deed.
type Damage = (&'static str, fn(&Path));

/// What the operator wrote into a writable mount.
const WRITTEN: &str = "hours of work";

const NOBODY: u32 = 65_534;

/// A store with one image, and a folder to mount it in. What is still mounted below goes with it.
struct Bench {
    folder: tempfile::TempDir,
    _registry: FakeRegistry,
    name: String,
}

impl Bench {
    fn new() -> Self {
        Self::with(&Image::marked("mounted", 1000))
    }

    fn with(image: &Image) -> Self {
        require_root("mounting");
        let registry = FakeRegistry::start();
        let bench = Self { folder: scratch(), name: registry.put("app:v1", image), _registry: registry };
        fs::set_permissions(bench.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        bench.run(&["pull", "-q", &bench.name]).ok();
        fs::create_dir_all(bench.target()).unwrap();
        bench
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("parent/target")
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        with_store(&self.store(), arguments)
    }

    fn mount(&self, flags: &[&str]) {
        self.run(&[&["mount", &self.name, text(&self.target())], flags].concat()).ok();
    }

    /// Mounts it writable and writes into it.
    fn mount_and_write(&self) {
        self.mount(&["--rw"]);
        fs::write(self.target().join("written"), WRITTEN).unwrap();
    }

    fn unmount(&self, place: &Path) -> Outcome {
        self.run(&["unmount", text(place)])
    }

    /// Looks at everything, collects all that is unused, and removes by hand: the image and what was written stay.
    fn assert_held(&self, place: &Path, what: &str) {
        for look in [&["ls", "--all"][..], &["df", "-v"], &["gc", "--all-unused", "--now", "--dry-run"], &["status"]] {
            self.run(look).ok();
        }
        let collected = self.run(&["gc", "--all-unused", "--now"]);
        assert!(!collected.stderr.contains("panicked"), "{what}: {}", collected.stderr);
        collected.ok();
        self.run(&["rm", &self.name]).refused(&["mount"]);
        assert_eq!(self.run(&["ls", "-q", "--all"]).ok().lines().count(), 1, "{what}: the image is gone");
        assert_eq!(fs::read_to_string(place.join("marker")).unwrap(), "mounted", "{what}: the layers are gone");
        let written = fs::read_to_string(place.join("written"));
        assert_eq!(written.ok().as_deref(), Some(WRITTEN), "{what}: what was written is gone");
        fs::write(place.join("more"), "more").unwrap_or_else(|error| panic!("{what}: it takes no write: {error}"));
    }

    /// Nothing holds the image any more, and nothing of a mount is left once it is collected.
    fn assert_released(&self, what: &str) {
        self.until_collected(what);
        assert_eq!(self.notes(), Vec::<PathBuf>::new(), "{what}");
    }

    /// A mount namespace that another test makes meanwhile has a copy of each mount, which holds the image for a moment.
    fn until_collected(&self, what: &str) {
        wait_until(&format!("{what}: the image is released"), || {
            self.run(&["gc", "--all-unused", "--now"]).ok();
            self.run(&["ls", "-q", "--all"]).ok().is_empty()
        });
    }

    /// What lies in the store's folder of notes.
    fn notes(&self) -> Vec<PathBuf> {
        fs::read_dir(self.store().join("mounts")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The one note.
    fn note(&self) -> PathBuf {
        let notes: Vec<PathBuf> =
            self.notes().into_iter().filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        notes.into_iter().next().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let table = mount_table();
        let ours = table.lines().filter_map(|line| line.split(' ').nth(4));
        for target in ours.filter(|target| Path::new(target).starts_with(self.folder.path())) {
            let _ = rustix::mount::unmount(target, UnmountFlags::DETACH);
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

/// A shell in a mount namespace of its own that has mounted the image there, writable, and written into it.
fn mounted_elsewhere(bench: &Bench) -> Part {
    // The copies of what other tests have mounted would hold that.
    let script = format!(
        "for other in $(cut -d' ' -f5 /proc/self/mountinfo | grep imagelet-it-); do umount -l $other; done; \"$0\" --store {store} mount --rw {name} {target} && printf '{WRITTEN}' > {target}/written && echo ready; exec sleep 600",
        store = text(&bench.store()),
        name = bench.name,
        target = text(&bench.target()),
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).arg(program().get_program()).env("HOME", "/nonexistent");
    let part = Part::start(&mut command, "util-linux", bench.folder.path().join("elsewhere.log"));
    wait_until("the mount in the other namespace", || part.log().contains("ready"));
    part
}

#[test]
fn an_image_is_mounted_in_a_chroot_whose_root_is_no_mount_point() {
    let bench = Bench::new();
    let root = bench.folder.path().join("root");
    for folder in ["usr", "proc", "target"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for link in ["lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    fs::write(root.join("imagelet"), "").unwrap();
    fs::rename(bench.store(), root.join("store")).unwrap();
    let script = "set -e; mount --make-rprivate /; mount --bind /usr \"$1/usr\"; mount -t proc proc \"$1/proc\"\n\
        mount --bind \"$2\" \"$1/imagelet\"\n\
        inside() { chroot \"$1\" /imagelet --store /store \"$2\" \"$3\" $4; }\n\
        inside \"$1\" mount \"$3\" /target; ls \"$1/target\"; inside \"$1\" inspect \"$3\"\n\
        inside \"$1\" unmount /target; ls -A \"$1/target\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&root).arg(program().get_program()).arg(&bench.name);
    let said = run(&mut command).ok();
    let in_use = said.contains("In use by:    mount /target");
    assert!(in_use && said.starts_with("/target\n") && said.ends_with("\n/target\n"), "{said}");
}

#[test]
fn a_mount_of_another_namespace_is_held_until_that_namespace_ends() {
    let bench = Bench::new();
    let mut other = mounted_elsewhere(&bench);
    let place = PathBuf::from(format!("/proc/{}/root{}", other.id(), text(&bench.target())));
    bench.assert_held(&place, "mounted in another namespace");
    bench.unmount(&bench.target()).refused(&["another mount namespace", "--force"]);
    // The same place is free in this namespace.
    bench.mount(&[]);
    bench.unmount(&bench.target()).ok();
    bench.assert_held(&place, "the same place was used here");
    other.kill();
    bench.assert_released("the namespace has ended");
}

#[test]
fn a_mount_of_another_namespace_is_given_up_by_force() {
    let bench = Bench::new();
    let _other = mounted_elsewhere(&bench);
    bench.run(&["unmount", "--force", text(&bench.target())]).ok();
    bench.assert_released("given up");
}

#[test]
fn a_mount_whose_parent_was_moved_is_held_and_unmounted_at_its_new_place() {
    let bench = Bench::new();
    bench.mount_and_write();
    let moved = bench.folder.path().join("moved");
    fs::rename(bench.folder.path().join("parent"), &moved).unwrap();
    let place = moved.join("target");
    bench.assert_held(&place, "a folder above it was moved");
    bench.unmount(&bench.target()).refused(&[text(&place)]);
    // Its old place may show the image, too.
    fs::create_dir_all(bench.target()).unwrap();
    bench.mount(&[]);
    bench.unmount(&bench.target()).ok();
    bench.assert_held(&place, "its old place was used again");
    bench.unmount(&place).ok();
    bench.assert_released("unmounted at its new place");
}

#[test]
fn a_mount_that_is_bound_elsewhere_is_held_after_its_first_place_is_unmounted() {
    for by_us in [false, true] {
        let bench = Bench::new();
        bench.mount_and_write();
        let bound = bench.folder.path().join("bound");
        fs::create_dir(&bound).unwrap();
        rustix::mount::mount_bind(bench.target(), &bound).unwrap();
        if by_us {
            let told = bench.unmount(&bench.target());
            assert!(told.stderr.contains("still mounted elsewhere"), "{}", told.stderr);
            told.ok();
        } else {
            rustix::mount::unmount(bench.target(), UnmountFlags::empty()).unwrap();
        }
        bench.assert_held(&bound, "the first place is unmounted");
        bench.unmount(&bound).ok();
        bench.assert_released("the last place is unmounted");
    }
}

#[test]
fn a_mount_without_a_place_is_held_while_a_process_works_in_it() {
    let bench = Bench::new();
    bench.mount_and_write();
    let inside = File::open(bench.target()).unwrap();
    rustix::mount::unmount(bench.target(), UnmountFlags::DETACH).unwrap();
    let place = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&inside)));
    bench.assert_held(&place, "unmounted lazily");
    drop(inside);
    bench.assert_released("the process is out");
}

#[test]
fn unmount_takes_ours_and_not_what_is_mounted_over_it() {
    let bench = Bench::new();
    bench.mount_and_write();
    rustix::mount::mount("theirs", bench.target(), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(bench.target().join("theirs"), "").unwrap();
    bench.unmount(&bench.target()).refused(&["theirs", "tmpfs"]);
    assert!(bench.target().join("theirs").exists(), "what lay over the image was unmounted");
    bench.run(&["mount", &bench.name, text(&bench.target())]).refused(&["already shows"]);
    rustix::mount::unmount(bench.target(), UnmountFlags::empty()).unwrap();
    bench.assert_held(&bench.target(), "uncovered again");
    bench.unmount(&bench.target()).ok();
    bench.assert_released("unmounted");
}

#[test]
fn a_damaged_note_holds_its_image_and_nothing_up() {
    let damages: &[Damage] = &[
        ("not JSON", |note| fs::write(note, "{").unwrap()),
        ("nothing", |note| fs::write(note, "").unwrap()),
        ("other types", |note| fs::write(note, r#"{"target":7,"image":[],"writable":"x"}"#).unwrap()),
        ("no text", |note| fs::write(note, b"\xff\xfe\0").unwrap()),
        ("a megabyte", |note| fs::write(note, vec![b' '; 1 << 20]).unwrap()),
        ("a folder", |note| {
            fs::remove_file(note).unwrap();
            fs::create_dir(note).unwrap();
        }),
        ("a pipe", |note| {
            fs::remove_file(note).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, note, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }),
        ("a link to a file without end", |note| {
            fs::remove_file(note).unwrap();
            std::os::unix::fs::symlink("/dev/zero", note).unwrap();
        }),
    ];
    let bench = Bench::new();
    for (what, damage) in damages {
        bench.mount_and_write();
        let note = bench.note();
        damage(&note);
        let looked = bench.run(&["ls", "--all"]);
        assert!(looked.stderr.contains(text(&note)), "{what}: the note is not named: {}", looked.stderr);
        looked.ok();
        bench.assert_held(&bench.target(), what);
        bench.unmount(&bench.target()).ok();
        assert_eq!(bench.notes(), Vec::<PathBuf>::new(), "{what}");
    }
    // Of one whose overlay is gone nothing is removed, and nothing held.
    bench.mount_and_write();
    fs::write(bench.note(), "{").unwrap();
    rustix::mount::unmount(bench.target(), UnmountFlags::empty()).unwrap();
    bench.until_collected("its overlay is gone");
    assert!(bench.note().with_extension("").join("upper/written").exists(), "what was written is gone");
}

#[test]
fn a_note_that_was_lost_leaves_its_mount_whole() {
    let bench = Bench::new();
    bench.mount_and_write();
    fs::remove_file(bench.note()).unwrap();
    bench.run(&["pull", "-q", &bench.name]).ok();
    fs::write(bench.target().join("more"), "more").unwrap();
    assert_eq!(fs::read_to_string(bench.target().join("written")).unwrap(), WRITTEN);
    rustix::mount::unmount(bench.target(), UnmountFlags::empty()).unwrap();
    wait_until("no folder is left without a note and a mount", || {
        bench.run(&["pull", "-q", &bench.name]).ok();
        bench.notes().is_empty()
    });
}

#[test]
fn a_target_whose_name_is_no_text_is_mounted_and_unmounted() {
    use std::os::unix::ffi::OsStrExt as _;
    let bench = Bench::new();
    let target = bench.folder.path().join(std::ffi::OsStr::from_bytes(b"na\xffme \\x\n"));
    fs::create_dir(&target).unwrap();
    let run = |arguments: &[&str]| {
        crate::program::run(program().arg("--store").arg(bench.store()).args(arguments).arg(&target))
    };
    run(&["mount", &bench.name]).ok();
    bench.run(&["gc", "--all-unused", "--now"]).ok();
    assert!(target.join("marker").exists(), "the image is not shown");
    run(&["unmount"]).ok();
    bench.assert_released("unmounted");
}

/// Without `--suid` the image's owner is not trusted to act as root, nor without `--dev` to reach the machine's devices.
#[test]
fn set_ids_and_devices_of_an_image_act_only_when_asked_for() {
    let id = fs::read("/usr/bin/id").expect("coreutils are installed");
    let bench = Bench::with(&Image::oci(&[Layer::gzip().file("id", id, 0o4755).null_device("null")]));
    let target = bench.target();
    for (flags, user, opens) in [
        (&[][..], NOBODY, false),
        (&["--rw"], NOBODY, false),
        (&["--suid"], 0, false),
        (&["--dev"], NOBODY, true),
        (&["--rw", "--suid", "--dev"], 0, true),
    ] {
        bench.mount(flags);
        let output = Command::new(target.join("id")).arg("-u").uid(NOBODY).gid(NOBODY).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            user.to_string(),
            "{flags:?}: who the program runs as"
        );
        let opened = File::options().write(true).open(target.join("null")).map(drop);
        assert_eq!(opened.is_ok(), opens, "{flags:?}: {opened:?}");
        let table = mount_table();
        let line = table.lines().find(|line| line.split(' ').nth(4) == target.to_str()).unwrap();
        let options: Vec<&str> = line.split(' ').nth(5).unwrap().split(',').collect();
        for (option, expected) in [("nosuid", user == NOBODY), ("nodev", !opens), ("ro", !flags.contains(&"--rw"))] {
            assert_eq!(options.contains(&option), expected, "{flags:?}: {line}");
        }
        bench.unmount(&target).ok();
    }
}

/// As many layers as a pull takes, each with a folder that none of them has an entry for.
#[test]
fn an_image_of_500_layers_is_mounted() {
    let layers: Vec<Layer> = (0..500)
        .map(|at| {
            Layer::gzip().file(&format!("implied/{at}"), at.to_string(), 0o644).file("last", at.to_string(), 0o644)
        })
        .collect();
    let bench = Bench::with(&Image::oci(&layers));
    for flags in [&[][..], &["--rw"]] {
        bench.mount(flags);
        assert_eq!(fs::read_dir(bench.target().join("implied")).unwrap().count(), 500);
        assert_eq!(fs::read_to_string(bench.target().join("last")).unwrap(), "499");
        assert_eq!(fs::read_to_string(bench.target().join("implied/0")).unwrap(), "0");
        bench.unmount(&bench.target()).ok();
    }
}

/// The root's own mode and owner, which the image's last layer gives.
#[test]
fn a_mounted_root_has_the_mode_that_the_image_gives_it() {
    use std::os::unix::fs::MetadataExt as _;
    let layer = Layer::gzip().directory(".", 0o711).owned_by(7, 8).file("file", "text", 0o644);
    let bench = Bench::with(&Image::oci(&[Layer::gzip().file("below", "text", 0o644), layer]));
    for flags in [&[][..], &["--rw"]] {
        bench.mount(flags);
        let root = fs::metadata(bench.target()).unwrap();
        assert_eq!((root.mode() & 0o7777, root.uid(), root.gid()), (0o711, 7, 8), "{flags:?}");
        bench.unmount(&bench.target()).ok();
    }
}

#[test]
fn an_image_without_layers_is_an_empty_folder() {
    let bench = Bench::with(&Image::oci(&[]));
    let target = bench.target();
    for flags in [&[][..], &["--rw"]] {
        bench.mount(flags);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "{flags:?}");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o755, "{flags:?}");
        let written = fs::write(target.join("written"), WRITTEN);
        assert_eq!(written.is_ok(), !flags.is_empty(), "{flags:?}: {written:?}");
        bench.run(&["rm", &bench.name]).refused(&["mount"]);
        bench.unmount(&target).ok();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "{flags:?}");
    }
    bench.run(&["verify"]).ok();
    bench.assert_released("an image without layers");
}

#[test]
fn a_configuration_is_inspected_however_deep_it_is_nested_and_refused_beyond_128_levels() {
    /// With a field that nothing reads, so that the whole has so many levels.
    fn nested(levels: usize) -> Image {
        let deep = (1..levels).fold(serde_json::json!("end"), |inner, _| serde_json::json!([inner]));
        Image::marked("nested", 1000).configured(|config| config["unread"] = deep)
    }
    for levels in [100, 125, 128] {
        let bench = Bench::with(&nested(levels));
        let text = bench.run(&["inspect", &bench.name]).ok();
        assert!(text.contains("Manifest:") && text.contains("sha256:"), "{levels}: {text}");
        let json = bench.run(&["inspect", &bench.name, "-o", "json"]).ok();
        assert!(json.contains("\"unread\"") && json.contains("end"), "{levels}: {json}");
        bench.mount(&[]);
        bench.unmount(&bench.target()).ok();
    }
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("deep:v1", &nested(129));
    let refused = with_store(&folder.path().join("store"), ["pull", &name]);
    refused.refused(&["the image configuration cannot be read", "nested 129 levels deep; more than 128 are refused"]);
}
