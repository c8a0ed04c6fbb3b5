//! A store on a disk that is full, without inodes, or read-only. Mounting wants root; without it there is nothing to try.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use imagelet_core::{
    error::RuntimeErrorKind,
    image::ImageSpec,
    ports::{ImageService as _, LocalStore as _, PullRemains},
};
use imagelet_oci::{Engine, EngineConfig};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{
    case::{content, pull, scratch, settled},
    image::{Image, Layer, TAR, ZstdFrame, tar},
    registry::Registry,
};

/// Told as tests of their own below.
pub(crate) const STORIES: &[&str] = &["B047", "B048", "B114"];

/// A disk of its own, gone with the test.
struct Disk {
    mountpoint: PathBuf,
    _folder: tempfile::TempDir,
}

fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "a disk of its own needs root: run the tests as root");
}

impl Disk {
    /// A memory file system.
    fn memory(kibibytes: u64, inodes: u64) -> Self {
        require_root();
        let folder = scratch();
        let mountpoint = folder.path().join("disk");
        std::fs::create_dir(&mountpoint).expect("a folder");
        let options = format!("size={kibibytes}k,nr_inodes={inodes},mode=0700");
        let options = std::ffi::CString::new(options).expect("no zero in it");
        rustix::mount::mount("tmpfs", &mountpoint, "tmpfs", MountFlags::empty(), Some(options.as_c_str()))
            .expect("a tmpfs");
        Self { mountpoint, _folder: folder }
    }

    /// An ext4 in a file.
    fn ext4(mebibytes: u64, inodes: u64) -> Self {
        require_root();
        let folder = scratch();
        let (file, mountpoint) = (folder.path().join("disk.img"), folder.path().join("disk"));
        std::fs::File::create(&file).expect("a file").set_len(mebibytes << 20).expect("a length");
        std::fs::create_dir(&mountpoint).expect("a folder");
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-N", &inodes.to_string()]).arg(&file));
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&mountpoint));
        std::fs::set_permissions(&mountpoint, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("a mode");
        Self { mountpoint, _folder: folder }
    }

    fn root(&self) -> PathBuf {
        self.mountpoint.join("store")
    }

    /// Waits for files that are still open for writing: threads of a closed engine, and children of other tests between
    /// their fork and their exec.
    fn read_only(&self) {
        for _ in 0..1000 {
            match rustix::mount::mount_remount(&self.mountpoint, MountFlags::RDONLY, "") {
                Err(rustix::io::Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(20)),
                outcome => return outcome.expect("a remount"),
            }
        }
        panic!("a file is still open for writing");
    }

    fn free(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.mountpoint).expect("a disk");
        disk.f_bavail * disk.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) {
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; install e2fsprogs and mount"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An engine that leaves nothing free, so that the disk itself says when it is full.
fn to_the_brim(root: &Path) -> EngineConfig {
    let mut config = EngineConfig::new(root);
    (config.limits.free_bytes_floor, config.limits.free_inodes_floor) = (0, 0);
    config
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(length)
    .collect()
}

/// An image of `files` files of `size` bytes.
fn image(files: usize, size: usize) -> Image {
    let content = noise(size);
    let names: Vec<String> = (0..files).map(|number| format!("file-{number}")).collect();
    let borrowed: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &content[..])).collect();
    let tar = tar(&borrowed);
    Image::of([Layer::packed(TAR, tar.clone(), &tar), Layer::gzip("small", b"small")])
}

/// Pulls a small image, then one that may not fit, then another small one. `None`: the disk has no room for the first.
async fn try_on(disk: &Disk, registry: &Registry, large: &str, what: &str) -> Option<bool> {
    let root = disk.root();
    let (first, other) = (registry.put("first", &Image::good("first")), registry.put("other", &Image::good("other")));
    let engine = match Engine::open(to_the_brim(&root)).await {
        Ok(engine) => engine,
        Err(error) => {
            assert_eq!(error.kind(), RuntimeErrorKind::DiskFull, "{what}: {}", error.chain());
            return None;
        }
    };
    // The second time there are names to replace, which takes room for two files of them.
    for _ in 0..2 {
        engine.remove(&ImageSpec::new(&first)).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        if let Err(error) = pull(&engine, &first).await {
            assert_eq!(error.kind(), RuntimeErrorKind::DiskFull, "{what}: {}", error.chain());
            assert!(engine.list(None).await.expect("a list").is_empty(), "{what}");
            return None;
        }
    }
    let (before, free) = (content(&root), disk.free());
    let fits = match pull(&engine, large).await {
        Ok(_) => {
            engine.remove(&ImageSpec::new(large)).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), RuntimeErrorKind::DiskFull, "{what}: {}", error.chain());
            assert!(error.chain().contains(large), "{what}: {}", error.chain());
            assert!(error.hint().is_some_and(|hint| hint.contains("gc")), "{what}: {}", error.chain());
            false
        }
    };
    let listed = engine.list(None).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    assert_eq!(listed.iter().map(|image| image.tags.join(" ")).collect::<Vec<_>>(), [first.as_str()], "{what}");
    assert_eq!(settled(&root, &before).await, before, "{what}: something is left");
    assert!(disk.free() + (16 << 10) >= free, "{what}: {free} bytes were free, and now {}", disk.free());
    // What fitted once still does.
    engine.remove(&ImageSpec::new(&first)).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    let mut pulled = pull(&engine, &other).await;
    // The kernel lets go of the folder of a confined thread a moment after the thread has ended.
    for _ in 0..100 {
        if pulled.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        pulled = pull(&engine, &other).await;
    }
    pulled.unwrap_or_else(|error| panic!("{what}: a small image: {}", error.chain()));
    drop(engine);
    let engine = Engine::open(to_the_brim(&root)).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    let listed = engine.list(None).await.expect("a list");
    assert_eq!(listed.iter().map(|image| image.tags.join(" ")).collect::<Vec<_>>(), [other], "{what}: after a restart");
    Some(fits)
}

/// That some disks were too small for the image and some were not.
fn assert_both(outcomes: &[Option<bool>]) {
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert!(count(Some(false)) >= 5 && count(Some(true)) >= 2, "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_anywhere_fails_that_pull_alone() {
    let registry = Registry::start().await;
    let large = registry.put("large", &image(20, 5_000));
    let mut outcomes = Vec::new();
    for kibibytes in (32..=300).step_by(4) {
        let disk = Disk::memory(kibibytes, 10_000);
        outcomes.push(try_on(&disk, &registry, &large, &format!("{kibibytes} KiB")).await);
    }
    assert_both(&outcomes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_inodes_anywhere_fails_that_pull_alone() {
    let registry = Registry::start().await;
    let large = registry.put("large", &image(20, 10));
    let mut outcomes = Vec::new();
    for inodes in 12..=70 {
        let disk = Disk::memory(4096, inodes);
        outcomes.push(try_on(&disk, &registry, &large, &format!("{inodes} inodes")).await);
    }
    assert_both(&outcomes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_ext4_fails_that_pull_alone() {
    let registry = Registry::start().await;
    let (bytes, files) = (registry.put("bytes", &image(3, 5 << 20)), registry.put("files", &image(300, 10)));
    for (mebibytes, inodes, large, fits) in [(8, 400, &bytes, false), (8, 128, &files, false), (32, 600, &bytes, true)]
    {
        let disk = Disk::ext4(mebibytes, inodes);
        let what = format!("{mebibytes} MiB, {inodes} inodes");
        assert_eq!(try_on(&disk, &registry, large, &what).await, Some(fits), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_can_be_removed_from_a_disk_without_a_byte_free() {
    let registry = Registry::start().await;
    let (one, two) = (registry.put("one", &image(10, 5_000)), registry.put("two", &Image::good("two")));
    let disk = Disk::memory(512, 10_000);
    let engine = Engine::open(to_the_brim(&disk.root())).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    for name in [&one, &two] {
        pull(&engine, name).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
    // Somebody else takes the rest.
    let mut rest = std::fs::File::create(disk.mountpoint.join("rest")).expect("a file");
    while std::io::Write::write_all(&mut rest, &[0; 4096]).is_ok() {}
    assert_eq!(disk.free(), 0);
    engine.remove(&ImageSpec::new(&one)).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(disk.free() > 40_000, "{} bytes are free", disk.free());
    assert!(engine.status(&ImageSpec::new(&one)).await.expect("a status").is_none());
    drop(engine);
    let engine = Engine::open(to_the_brim(&disk.root())).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let listed = engine.list(None).await.expect("a list");
    assert_eq!(listed.iter().map(|image| image.tags.join(" ")).collect::<Vec<_>>(), [two], "after a restart");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_disk_lists_and_says_why_it_takes_nothing() {
    let registry = Registry::start().await;
    let (one, two) = (registry.put("one", &Image::good("one")), registry.put("two", &Image::good("two")));
    let disk = Disk::memory(4096, 10_000);
    let engine = Engine::open(to_the_brim(&disk.root())).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    pull(&engine, &one).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let listed = engine.list(None).await.expect("a list");
    drop(engine);
    disk.read_only();
    let engine = Engine::open(to_the_brim(&disk.root())).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(engine.list(None).await.expect("a list"), listed);
    assert!(engine.details(&ImageSpec::new(&one)).await.expect("details").is_some());
    assert!(engine.filesystem().await.is_ok());
    let refusals = [
        pull(&engine, &two).await.map(drop),
        engine.remove(&ImageSpec::new(&one)).await,
        engine.untag(&one).await,
        engine.sweep(PullRemains::Keep).await.map(drop),
    ];
    for refusal in refusals {
        let error = refusal.expect_err("nothing can be written");
        assert_eq!(error.kind(), RuntimeErrorKind::Unavailable, "{}", error.chain());
        assert!(error.chain().to_lowercase().contains("read-only"), "{}", error.chain());
        assert!(error.hint().is_some(), "{}", error.chain());
    }
    assert_eq!(engine.list(None).await.expect("a list"), listed, "after the refusals");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bomb_stops_at_the_floor_of_the_disk_while_it_is_written() {
    const FLOOR: u64 = 24 << 20;
    /// What is written between two looks at the disk.
    const BETWEEN_LOOKS: u64 = 9 << 20;
    let registry = Registry::start().await;
    let disk = Disk::memory(64 << 10, 100_000);
    // Many files of a MiB, so that no header tells beforehand what is to come.
    let mut frame = ZstdFrame::window(20);
    for number in 0..1000 {
        let mut header = tar::Header::new_ustar();
        header.set_path(format!("zeros-{number}")).expect("a short name");
        header.set_size(1 << 20);
        header.set_mode(0o644);
        header.set_cksum();
        frame = frame.raw(header.as_bytes()).run(0, 1 << 20);
    }
    let bomb = Image::of([Layer::packed("application/vnd.oci.image.layer.v1.tar+zstd", frame.end(), b"")]);
    let mut config = EngineConfig::new(disk.root());
    config.limits.expansion_free = 4 << 30;
    (config.limits.free_bytes_floor, config.limits.free_inodes_floor) = (FLOOR, 0);
    let engine = Engine::open(config).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let (least, done) = (Arc::new(AtomicU64::new(disk.free())), Arc::new(AtomicBool::new(false)));
    let watch = {
        let (least, done, path) = (Arc::clone(&least), Arc::clone(&done), disk.mountpoint.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let now = rustix::fs::statvfs(&path).expect("a disk");
                least.fetch_min(now.f_bavail * now.f_frsize, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        })
    };
    let name = registry.put("bomb", &bomb);
    let error = pull(&engine, &name).await.expect_err("it does not fit");
    done.store(true, Ordering::Relaxed);
    watch.join().expect("the watch does not fail");
    assert_eq!(error.kind(), RuntimeErrorKind::DiskFull, "{}", error.chain());
    assert!(error.chain().contains("must stay free") && error.chain().contains("zeros-"), "{}", error.chain());
    let least = least.load(Ordering::Relaxed);
    assert!(least + BETWEEN_LOOKS >= FLOOR, "{least} bytes were free at the least");
    assert!(settled(&disk.root(), &std::collections::BTreeSet::new()).await.is_empty());
}
