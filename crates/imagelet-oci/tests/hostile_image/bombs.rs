//! Layers that want more than they are worth: windows, expansion, files, layers.

use imagelet_core::error::RuntimeErrorKind::{DiskFull, Unacceptable};

use super::{
    case::{Bench, Case, pull},
    child,
    image::{Image, Layer, TAR, ZstdFrame, gzip, tar, zstd_frame},
    registry::Registry,
};

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const MIB: usize = 1 << 20;

/// Told as tests of their own below.
pub(crate) const STORIES: &[&str] = &["B046", "B047", "B048"];

fn gzip_best(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

fn layer(media_type: &str, blob: Vec<u8>, tar: &[u8]) -> Image {
    Image::of([Layer::packed(media_type, blob, tar)])
}

/// The head of a tar with one file of zeros, to be followed by them.
fn zeros_head(size: usize) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path("zeros").expect("a short name");
    header.set_size(size as u64);
    header.set_mode(0o644);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// A frame of one file and zeros behind the archive's end, so that a window is filled and the disk is not.
fn zeros_behind(window: u8, mark: &str, zeros: usize) -> Layer {
    let tar = tar(&[("mark", mark.as_bytes())]);
    let blob = ZstdFrame::window(window).raw(&tar).run(0, zeros).end();
    let mut plain = tar;
    plain.resize(plain.len() + zeros, 0);
    Layer::packed(ZSTD, blob, &plain).holding("mark", mark.as_bytes())
}

/// A frame of a single segment, whose window is the size it says it has.
fn single_segment(size: u64) -> Vec<u8> {
    [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0][..], &size.to_le_bytes(), &[1, 0, 0]].concat()
}

pub(crate) fn cases() -> Vec<Case> {
    let small = tar(&[("small", b"small")]);
    let zeros = tar(&[("zeros", &vec![0; 64 * MIB])]);
    let window = &["zstd", "window", "134MB", "sha256:"];
    let expands = &["sha256:", "limit", "inflates to more than"];
    let long = |log: u8| ZstdFrame::window(log).raw(&small).end();
    let tiny = |count: usize| -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
        let files: Vec<(String, Vec<u8>)> =
            (0..count).map(|number| (format!("d{}/f{number}", number / 500), vec![1])).collect();
        let borrowed: Vec<(&str, &[u8])> = files.iter().map(|(path, bytes)| (path.as_str(), &bytes[..])).collect();
        (tar(&borrowed), files)
    };
    let (many, files) = tiny(20_000);
    let many =
        files.iter().fold(Layer::packed(GZIP, gzip(&many), &many), |layer, (path, bytes)| layer.holding(path, bytes));
    let layers =
        |count: usize| Image::of((0..count).map(|number| Layer::gzip("number", number.to_string().as_bytes())));
    vec![
        Case::new("B046", "window of two TiB", layer(ZSTD, long(41), &small)).fails(Unacceptable, window),
        Case::new("B046", "window of 256 MiB", layer(ZSTD, long(28), &small)).fails(Unacceptable, window),
        Case::new(
            "B046",
            "window of 256 MiB in the second frame",
            layer(ZSTD, [zstd_frame(&small), long(28)].concat(), &small),
        )
        .fails(Unacceptable, window),
        Case::new("B046", "single segment of a TiB", layer(ZSTD, single_segment(1 << 40), &small))
            .fails(Unacceptable, window),
        Case::new("B046", "single segment of all there is", layer(ZSTD, single_segment(u64::MAX), &small))
            .fails(Unacceptable, window),
        Case::new(
            "B046",
            "window of 128 MiB",
            Image::of([Layer::packed(ZSTD, long(27), &small).holding("small", b"small")]),
        ),
        Case::new("B047", "gzip of zeros", layer(GZIP, gzip_best(&zeros), &zeros)).fails(Unacceptable, expands),
        Case::new(
            "B047",
            "gzip of zeros in many members",
            layer(GZIP, zeros.chunks(MIB).flat_map(gzip_best).collect(), &zeros),
        )
        .fails(Unacceptable, expands),
        Case::new(
            "B047",
            "zstd of zeros, thirty thousand to one",
            layer(ZSTD, ZstdFrame::window(20).raw(&zeros_head(4000 * MIB)).run(0, 4000 * MIB + 1024).end(), b""),
        )
        .fails(Unacceptable, expands),
        Case::new("B047", "zeros behind the archive", Image::of([zeros_behind(20, "bomb", 64 * MIB)]))
            .fails(Unacceptable, expands),
        Case::new(
            "B047",
            "small bombs that are one together",
            Image::of((0..8).map(|number| zeros_behind(20, &number.to_string(), 3 * MIB))),
        )
        .fails(Unacceptable, expands),
        Case::new("B047", "zeros within the limit", Image::of([zeros_behind(20, "fine", 3 * MIB)])),
        Case::new("B048", "twenty thousand tiny files", Image::of([many])),
        Case::new("B049", "130 layers", layers(130)),
        Case::new("B049", "500 layers", layers(500)),
        Case::new("B049", "501 layers", layers(501)).fails(Unacceptable, &["501 layers", "500"]).never_asks("/blobs/"),
        Case::new("B049", "5000 layers", layers(5000))
            .fails(Unacceptable, &["5000 layers", "500"])
            .never_asks("/blobs/"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_wants_too_much_is_refused_at_the_limit() {
    Bench::new().await.hold(cases()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_files_than_allowed_are_refused_by_their_number() {
    let files: Vec<String> = (0..2_000).map(|number| format!("f{number}")).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|path| (path.as_str(), &b""[..])).collect();
    let tar = tar(&files);
    let image = layer(TAR, tar.clone(), &tar);
    let mut bench = Bench::with(|config| config.limits.entries_max = 1_000).await;
    bench
        .hold(vec![Case::new("B048", "a file too many", image).fails(Unacceptable, &["more than 1000 entries"])])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_below_its_floor_takes_no_layer() {
    use imagelet_oci::Admission::{Compressed, Off};
    for (what, admission, bytes, inodes) in [
        (" free, of which", Off, u64::MAX >> 1, 0),
        ("inodes are free", Off, 0, u64::MAX),
        ("kept by freeBytesFloor", Compressed, u64::MAX >> 1, 0),
        ("kept by freeInodesFloor", Compressed, 0, u64::MAX),
    ] {
        let folder = super::case::scratch();
        let mut config = imagelet_oci::EngineConfig::new(folder.path().join("store"));
        (config.limits.free_bytes_floor, config.limits.free_inodes_floor) = (bytes, inodes);
        config.admission = admission;
        let engine = imagelet_oci::Engine::open(config).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let registry = Registry::start().await;
        let name = registry.put("floor", &Image::good("floor"));
        let error = pull(&engine, &name).await.expect_err("the floor is higher than any disk");
        assert_eq!(error.kind(), DiskFull, "{}", error.chain());
        assert!(error.chain().contains(what) && error.chain().contains(&name), "{}", error.chain());
        assert!(error.hint().is_some());
    }
}

/// The most a refused pull may hold at once: its queues, and what a debug build takes more.
const REFUSED_MEMORY_MAX: u64 = 24 << 20;

#[test]
fn a_refused_window_takes_no_memory() {
    child::alone("bombs::a_refused_window_takes_no_memory", async {
        let small = tar(&[("small", b"small")]);
        let mut bench = Bench::new().await;
        for (name, log) in [("log-41", 41), ("log-28", 28)] {
            let case = Case::new("B046", name, layer(ZSTD, ZstdFrame::window(log).raw(&small).end(), &small));
            let case = case.fails(Unacceptable, &["window"]);
            let ((), peak) = child::peak_of(bench.hold(vec![case])).await;
            assert!(peak <= REFUSED_MEMORY_MAX, "{name}: {peak} bytes");
        }
    });
}

#[test]
fn a_bomb_takes_no_more_memory_than_a_layer() {
    child::alone("bombs::a_bomb_takes_no_more_memory_than_a_layer", async {
        let bomb = ZstdFrame::window(20).raw(&zeros_head(4000 * MIB)).run(0, 4000 * MIB + 1024).end();
        let case = Case::new("B047", "memory", layer(ZSTD, bomb, b"")).fails(Unacceptable, &["inflates to more than"]);
        let mut bench = Bench::with(|config| config.limits.expansion_free = 64 << 20).await;
        let ((), peak) = child::peak_of(bench.hold(vec![case])).await;
        assert!(peak <= REFUSED_MEMORY_MAX, "{peak} bytes");
    });
}

/// One window of the largest size, and the rest of the pipeline.
const LARGE_WINDOWS_MEMORY_MAX: u64 = (128 + 48) << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_filled_beyond_the_budget_is_refused_and_one_within_it_is_not() {
    let mut bench = Bench::with(|config| config.limits.expansion_free = 1 << 30).await;
    let full = |mark: &str, log: u8, zeros: usize| Image::of([zeros_behind(log, mark, zeros)]);
    let words = &["sha256:", "zstd", "window of 134MB", "store.unpackMemory"];
    bench
        .hold(vec![
            Case::new("B046", "128 MiB full", full("all", 27, 150 * MIB)).fails(Unacceptable, words),
            Case::new("B046", "128 MiB and little in it", full("little", 27, 20 * MIB)),
            Case::new("B046", "32 MiB full", full("usual", 25, 150 * MIB)),
        ])
        .await;
}

#[test]
fn the_largest_windows_of_four_layers_are_held_one_at_a_time() {
    child::alone("bombs::the_largest_windows_of_four_layers_are_held_one_at_a_time", async {
        let image = Image::of((0..4).map(|number| zeros_behind(27, &format!("window-{number}"), 150 * MIB)));
        let mut bench = Bench::with(|config| {
            config.limits.expansion_free = 1 << 30;
            config.limits.memory = 384 << 20;
        })
        .await;
        let ((), peak) = child::peak_of(bench.hold(vec![Case::new("B046", "four windows", image)])).await;
        assert!(peak >= 100 << 20, "{peak} bytes: the windows were not used, so nothing was proven");
        assert!(peak <= LARGE_WINDOWS_MEMORY_MAX, "{peak} bytes");
    });
}
