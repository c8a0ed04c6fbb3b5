//! Images where the process may have little: few descriptors, or 128 MiB of memory.

use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit, setrlimit};

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use imagelet_core::error::RuntimeErrorKind::Unacceptable;
use imagelet_oci::{Engine, EngineConfig, UNPACK_MEMORY_MIN};

use super::{
    artifacts, bombs,
    case::{Bench, Case, content, pull, scratch, scratch_on_disk, settled},
    child, compression, configs, digests, foreign,
    image::{Image, Layer, TAR},
    manifests, media,
    registry::Registry,
};

/// What a login shell gives to a program.
const DESCRIPTORS: u64 = 1024;
const PULLS: usize = 8;
const LAYERS: usize = 4;
const FOLDERS: usize = 4_000;

/// A tar of folders in pairs, one in the other, so that each second one is opened; `mark` makes it unlike any other.
pub(crate) fn folders(mark: &str, count: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for number in 0..count / 2 {
        for path in [format!("{mark}-{number}"), format!("{mark}-{number}/below")] {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::Directory);
            header.set_size(0);
            header.set_mode(0o755);
            builder.append_data(&mut header, path, &b""[..]).expect("memory takes all");
        }
    }
    builder.into_inner().expect("memory takes all")
}

#[test]
fn eight_pulls_of_four_thousand_folders_a_layer_need_no_more_than_1024_descriptors() {
    child::alone("scarce::eight_pulls_of_four_thousand_folders_a_layer_need_no_more_than_1024_descriptors", async {
        setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) })
            .expect("limits may be lowered");
        let bench = Bench::with(|config| config.limits.expansion_free = 1 << 30).await;
        let names: Vec<String> = (0..PULLS)
            .map(|number| {
                let layers = (0..LAYERS).map(|layer| {
                    let tar = folders(&format!("{number}-{layer}"), FOLDERS);
                    Layer::packed(TAR, tar.clone(), &tar)
                });
                bench.registry.put(&format!("folders-{number}"), &Image::of(layers))
            })
            .collect();
        for outcome in join_all(names.iter().map(|name| pull(&bench.engine, name))).await {
            outcome.unwrap_or_else(|error| panic!("{}", error.chain()));
        }
    });
}

/// What a small unit or container may give, and what the listeners of a daemon take of it: a quarter, an eighth, and the
/// reserve for accepts.
const DESCRIPTORS_FEW: u64 = 256;
const DESCRIPTORS_TAKEN: usize = 256 / 4 + 256 / 8 + 8;
const PULLS_MANY: usize = 60;
const LAYERS_MANY: usize = 8;

#[test]
fn sixty_pulls_of_eight_layers_end_well_with_256_descriptors() {
    const TEST: &str = "scarce::sixty_pulls_of_eight_layers_end_well_with_256_descriptors";
    let name = |number: usize| format!("few-{number}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let Some(host) = child::mark() else {
        // The registry has descriptors of its own.
        let registry = runtime.block_on(Registry::start());
        for number in 0..PULLS_MANY {
            let layers = (0..LAYERS_MANY).map(|layer| {
                let tar = folders(&format!("{number}-{layer}"), 200);
                Layer::packed(TAR, tar.clone(), &tar)
            });
            registry.put(&name(number), &Image::of(layers));
        }
        let status = child::run(TEST, &registry.host());
        assert!(status.success(), "`{TEST}` failed in its own process: {status}");
        return;
    };
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_FEW), maximum: Some(DESCRIPTORS_FEW) })
        .expect("limits may be lowered");
    runtime.block_on(async {
        let folder = scratch();
        let mut config = EngineConfig::new(folder.path().join("store"));
        config.limits.expansion_free = 1 << 30;
        config.limits.free_inodes_floor = 0;
        let engine = Engine::open(config).await.unwrap_or_else(|error| panic!("open: {}", error.chain()));
        let open = || fs::File::open("/dev/null").expect("a descriptor");
        let _taken: Vec<fs::File> = (0..DESCRIPTORS_TAKEN).map(|_| open()).collect();
        let names: Vec<String> = (0..PULLS_MANY).map(|number| format!("{host}/{}:v1", name(number))).collect();
        for outcome in join_all(names.iter().map(|name| pull(&engine, name))).await {
            outcome.unwrap_or_else(|error| panic!("{}", error.chain()));
        }
    });
}

/// What the whole process may have: its code, the registry's images and the pulls.
const MEMORY: u64 = 128 << 20;

/// A memory cgroup that goes with its owner.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(test: &str) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (parent, limit) = if v1.join("memory.limit_in_bytes").exists() {
            (v1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let group = Self(parent.join(format!("{}-{}", test.replace("::", "-"), std::process::id())));
        let made = fs::create_dir(&group.0).and_then(|()| fs::write(group.0.join(limit), MEMORY.to_string()));
        made.unwrap_or_else(|error| panic!("no memory cgroup can be made at `{}`: {error}", group.0.display()));
        group
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // What was in it may take a moment to leave.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Runs `work` in a child in such a cgroup; `prepared` is made before it joins, and not counted.
fn in_group<T, F: Future<Output = ()>>(test: &str, prepare: impl FnOnce() -> T, work: impl FnOnce(T) -> F) {
    assert!(rustix::process::geteuid().is_root(), "a cgroup of its own needs root: run the tests as root");
    let Some(group) = child::mark() else {
        let group = MemoryGroup::new(test);
        let status = child::run(test, group.0.to_str().expect("a plain path"));
        assert!(status.success(), "`{test}` failed in {MEMORY} bytes of memory: {status}");
        return;
    };
    let prepared = prepare();
    fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).expect("the cgroup takes us");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(work(prepared));
}

/// A layer that is small on its way and asks to have much remembered: folders, with attributes.
fn hungry(mark: &str, folders: usize, value: usize) -> Layer {
    let mut builder = tar::Builder::new(zstd::stream::write::Encoder::new(Vec::new(), 1).expect("an encoder"));
    let value = vec![b'x'; value];
    for number in 0..folders {
        if !value.is_empty() {
            builder.append_pax_extensions([("SCHILY.xattr.user.much", &value[..])]).expect("memory takes all");
        }
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(0o755);
        // Without attributes, each brings folders that no entry names, with paths as long as they may be.
        let path = if value.is_empty() {
            format!("{mark}/{}", vec![format!("{number:0250}"); 15].join("/"))
        } else {
            format!("{mark}/{number}")
        };
        builder.append_data(&mut header, path, &b""[..]).expect("memory takes all");
    }
    let mut encoder = builder.into_inner().expect("memory takes all");
    encoder.flush().expect("memory takes all");
    let blob = encoder.finish().expect("memory takes all");
    // Whatever comes of it, it is not what the configuration says.
    Layer::packed("application/vnd.oci.image.layer.v1.tar+zstd", blob, mark.as_bytes())
}

#[test]
fn images_that_want_all_memory_are_refused_one_beside_the_other_and_the_process_stays_small() {
    let images = || -> Vec<Image> {
        let of = |mark: &str| {
            let attributes = (0..2).map(|number| hungry(&format!("{mark}-{number}"), 2_000, 60_000));
            Image::of(attributes.chain([hungry(&format!("{mark}-folders"), 1_000, 0)]))
        };
        vec![of("one"), of("two")]
    };
    in_group(
        "scarce::images_that_want_all_memory_are_refused_one_beside_the_other_and_the_process_stays_small",
        images,
        |images| async move {
            let mut bench = Bench::on(scratch_on_disk(), |config| {
                config.limits.expansion_free = 4 << 30;
                config.limits.memory = UNPACK_MEMORY_MIN;
            })
            .await;
            let names: Vec<String> = images
                .iter()
                .enumerate()
                .map(|(at, image)| bench.registry.put(&format!("hungry-{at}"), image))
                .collect();
            let before = content(&bench.root());
            for outcome in join_all(names.iter().map(|name| pull(&bench.engine, name))).await {
                let error = outcome.expect_err("no layer is what it says it is");
                eprintln!("{}", error.chain());
            }
            // Threads of layers beside the one that failed may still clear up.
            assert_eq!(settled(&bench.root(), &before).await, before, "something is left behind");
            let folders = Image::of([hungry("alone", 1_000, 0)]);
            let words = &["sha256:", "store.unpackMemory", "the limit is"];
            bench.hold(vec![Case::new("B048", "folders alone", folders).fails(Unacceptable, words)]).await;
        },
    );
}

#[test]
fn every_bad_image_of_the_catalogue_is_dealt_with_in_128_mib() {
    let tables = || {
        let mut cases: Vec<Case> = [
            compression::cases(),
            bombs::cases(),
            media::cases(),
            artifacts::cases(),
            digests::cases(),
            manifests::cases(),
            configs::cases(),
            foreign::cases(),
        ]
        .into_iter()
        .flatten()
        .collect();
        // Its twenty thousand files are kernel memory, which is not ours to bound.
        cases.retain(|case| case.name != "twenty thousand tiny files");
        cases
    };
    in_group("scarce::every_bad_image_of_the_catalogue_is_dealt_with_in_128_mib", tables, |cases| async move {
        Bench::on(scratch_on_disk(), |_| {}).await.hold(cases).await;
    });
}
