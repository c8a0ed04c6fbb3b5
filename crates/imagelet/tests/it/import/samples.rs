//! Images whose import is held against containerd's own pull: an ordinary one, a tall one, and one with all that is odd.

use std::collections::BTreeMap;

use crate::images::{Compression, Image, Kind, Layer, Random, noise};

/// Layers of the tall image: as many as images of this kind have in the field.
const TALL: usize = 60;
/// Files of one package of the ordinary image.
const PACKAGE_FILES: usize = 150;

/// An image with the layers that it was built from.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) name: &'static str,
    pub(super) image: Image,
    layers: Vec<Layer>,
}

impl Sample {
    pub(super) fn new(name: &'static str, layers: Vec<Layer>) -> Self {
        Self { name, image: Image::oci(&layers), layers }
    }

    /// Folders whose time is that of the pull, as no archive says it: those that the topmost layer which has them only
    /// implies, and those that it makes opaque.
    pub(super) fn timeless(&self) -> Vec<String> {
        let mut timeless = BTreeMap::from([(String::new(), true)]);
        for layer in &self.layers {
            let mut of_layer: BTreeMap<String, bool> = BTreeMap::new();
            for entry in &layer.entries {
                let path = entry.path.trim_start_matches("./").trim_end_matches('/');
                for (at, _) in path.match_indices('/') {
                    of_layer.entry(path[..at].to_owned()).or_insert(true);
                }
                match entry.kind {
                    Kind::Directory => drop(of_layer.entry(path.to_owned()).or_insert(false)),
                    Kind::Opaque => drop(of_layer.insert(path.to_owned(), true)),
                    _ => {}
                }
            }
            for entry in layer.entries.iter().filter(|entry| matches!(entry.kind, Kind::Directory)) {
                let path = entry.path.trim_start_matches("./").trim_end_matches('/');
                let is_opaque = layer.entries.iter().any(|one| one.path == path && matches!(one.kind, Kind::Opaque));
                of_layer.insert(path.to_owned(), is_opaque);
            }
            timeless.extend(of_layer);
        }
        timeless.insert(String::new(), true);
        timeless.into_iter().filter(|(_, is_timeless)| *is_timeless).map(|(path, _)| path).collect()
    }
}

/// All of them.
pub(super) fn all() -> Vec<Sample> {
    vec![web(), tall(), odd()]
}

/// A base, packages upon it, an application of small files, and settings that change what lies below.
fn web() -> Sample {
    let base = package("usr/lib/base", "base")
        .directory("etc", 0o755)
        .file("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644)
        .directory("tmp", 0o1777)
        .directory("var", 0o755)
        .directory("var/log", 0o755)
        .symlink("lib", "usr/lib");
    let packages = ["python", "nginx", "git"].map(|name| package(&format!("usr/lib/{name}"), name));
    let application = package("srv/app", "application").owned_by(33, 33);
    let settings = Layer::gzip()
        .directory("etc", 0o755)
        .file("etc/passwd", "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/srv:/bin/false\n", 0o644)
        .whiteout("usr/lib/git/3")
        .file("usr/lib/nginx/conf/site", "server {}\n", 0o640);
    let more = Layer::gzip().opaque("usr/lib/python").file("usr/lib/python/only", "this\n", 0o644);
    Sample::new("web:v1", [vec![base], packages.to_vec(), vec![application, settings, more]].concat())
}

/// Folders of small files below one folder.
fn package(folder: &str, name: &str) -> Layer {
    let mut random = Random::new(name);
    let mut layer = Layer::gzip();
    for (at, _) in folder.match_indices('/') {
        layer = layer.directory(&folder[..at], 0o755);
    }
    layer = layer.directory(folder, 0o755);
    for number in 0..PACKAGE_FILES {
        let below = format!("{folder}/{}", number % 12);
        if number < 12 {
            layer = layer.directory(&below, 0o755);
        }
        let size = usize::try_from(random.below(12_000)).expect("it is small");
        layer = layer.file(&format!("{below}/{number}.py"), noise(&format!("{name}{number}"), size), 0o644);
    }
    layer
}

/// Sixty layers that change one another's folders.
fn tall() -> Sample {
    let layer = |number: usize| {
        let layer = Layer::gzip().file(&format!("opt/{}/{number}", number % 7), format!("{number}"), 0o644).file(
            &format!("opt/shared/{number}"),
            noise(&format!("tall{number}"), 4000),
            0o600,
        );
        if number > 7 { layer.whiteout(&format!("opt/shared/{}", number - 7)) } else { layer }
    };
    Sample::new("many:v1", (0..TALL).map(layer).collect())
}

/// Hostile, and valid.
fn odd() -> Sample {
    let long = "n".repeat(200);
    let deep = vec!["d".repeat(60); 12].join("/");
    // Revision 2, effective, one capability: to bind low ports.
    let capability = [[1, 0, 0, 2], [0, 4, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    let base = Layer::gzip()
        .directory(".", 0o711)
        .directory("odd", 0o1777)
        .owned_by(1000, 1001)
        .xattr("user.folder", b"kept")
        .file("odd/lower", "below", 0o640)
        .directory("secret", 0o700)
        .owned_by(5, 6)
        .file("secret/key", "k", 0o400)
        .directory("opaque", 0o750)
        .owned_by(7, 8)
        .file("opaque/a", "a", 0o644)
        .file("opaque/b", "b", 0o644)
        .file("implied/by/this", "i", 0o644)
        .file("setuid", "s", 0o4755)
        .owned_by(0, 42)
        .file("setgid", "s", 0o2755)
        .owned_by(3_000_000_000, 4_000_000_000)
        .directory("setgid.d", 0o2775)
        .file("links/a", "one file", 0o604)
        .owned_by(9, 10)
        .hardlink("links/b", "links/a")
        .hardlink("links/below/c", "links/a")
        .file("links/other", "another file", 0o604)
        .hardlink("links/differs", "links/other")
        .owned_by(21, 22)
        .directory("merged", 0o750)
        .file("merged/below", "stays", 0o644)
        .file("replaced", "below", 0o644)
        .symlink("absolute", "/nonexistent/absolute")
        .symlink("escape", "../../../../etc/passwd")
        .owned_by(11, 12)
        .symlink("loop", "loop")
        .symlink("far", &format!("/{deep}/{long}"))
        .null_device("null")
        .block_device("loop7", 7, 7)
        .owned_by(0, 6)
        .fifo("pipe")
        .sparse("sparse", 3 << 20, &[(1 << 20, b"in the middle"), ((3 << 20) - 4, b"end.")])
        .sparse("hollow", 1 << 20, &[])
        .file("empty", "", 0o000)
        .file("capable", "c", 0o755)
        .xattr("security.capability", &capability)
        .file("attributes", "x", 0o644)
        .xattr("user.text", b"value")
        .xattr("user.bytes", &[0, 255, 10, 61])
        .file(&format!("{deep}/{long}"), "deep", 0o644)
        .file("n\u{e4}me \u{540d}/a b\nc", "names", 0o644)
        .file("old", "the epoch", 0o644)
        .modified(0, 0)
        .file("late-time", "after 2262", 0o644)
        .modified(9_300_000_000, 0)
        .file("precise", "nanoseconds", 0o644)
        .modified(1_700_000_000, 123_456_789)
        .file("twice", "first", 0o600)
        .file("twice", "second, and longer", 0o644)
        .file("late/file", "before its folder", 0o644)
        .directory("late", 0o511)
        .owned_by(13, 14);
    let above = Layer::new(Compression::Zstd)
        .file("odd/upper", "above a folder of another mode", 0o644)
        .file("secret/deeper/new", "n", 0o644)
        .file("setgid.d/below", "in a folder that hands its group on", 0o644)
        .whiteout("odd/lower")
        .whiteout("links/below")
        .whiteout("was-never-there")
        .whiteout("merged")
        .directory("merged", 0o705)
        .whiteout("replaced")
        .file("replaced", "above", 0o600)
        .opaque("opaque")
        .file("opaque/c", "c", 0o644)
        .directory("setuid", 0o2711)
        .file("late", "a file for a folder", 0o644)
        .file("implied/by/that", "i", 0o600);
    let again = Layer::new(Compression::None)
        .directory(".", 0o751)
        .owned_by(23, 24)
        .file("odd/lower", "again", 0o600)
        .directory("links/below", 0o700)
        .directory("opaque", 0o701)
        .file("opaque/a", "anew", 0o644)
        .whiteout("secret")
        .whiteout("null");
    Sample::new("odd:v1", vec![base, above, Layer::gzip(), Layer::gzip(), again])
}

#[test]
fn only_folders_that_the_last_archive_with_them_does_not_date_are_timeless() {
    let first = Layer::gzip().directory("dated", 0o755).file("dated/a", "", 0o644).file("implied/a", "", 0o644);
    let second = Layer::gzip().file("dated/b", "", 0o644).directory("implied", 0o755).directory("new", 0o755);
    let third = Layer::gzip().opaque("new").directory("later", 0o755).file("later/a", "", 0o644);
    assert_eq!(Sample::new("one:v1", vec![first.clone()]).timeless(), ["", "implied"]);
    assert_eq!(Sample::new("two:v1", vec![first.clone(), second.clone()]).timeless(), ["", "dated"]);
    assert_eq!(Sample::new("three:v1", vec![first, second, third]).timeless(), ["", "dated", "new"]);
}
