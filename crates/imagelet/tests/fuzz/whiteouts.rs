//! Bytes as recipes of layers: what overlayfs shows of the unpacked layer is what the layer means.

use std::path::Path;

use imagelet_oci::fuzzing::UnpackForm;
use rustix::fs::FileType;

use super::{
    archive::{Site, is_io},
    blocks,
    disk::Nodes,
    model::{Layer, Step, Thing, View},
    mutation::{self, Dice},
};

/// Entries in one layer; more show nothing new.
const STEPS_MAX: usize = 48;
/// Bytes that make one entry: what it is, where, and where else.
const RECIPE: usize = 3;
const NAMES: [&str; 4] = ["a", "b", "c", ".d"];
/// Where symbolic links lead.
const TARGETS: [&str; 8] = ["a", "/a", "b/c", "/", "..", "../../../c", "/.d/../b", "c/../a"];
/// Leaves of lower layers have numbers from here on, those of the layer lower ones.
const LOWER: u64 = 1 << 20;
const BUFFER: usize = 4096;

/// Unpacks the layer a recipe makes, in both forms of whiteouts.
pub(crate) fn check(bytes: &[u8], folder: &Path) {
    let site = Site::new(folder);
    let recipe: Vec<_> = bytes.chunks_exact(RECIPE).take(STEPS_MAX).collect();
    let steps: Vec<Step> = recipe.iter().zip(1..).map(|(bytes, number)| step(bytes, number)).collect();
    let mut archive: Vec<u8> = recipe.iter().zip(&steps).flat_map(|(bytes, step)| entry(bytes, step)).collect();
    archive.resize(archive.len() + 1024, 0);
    let (layer, sensible) = Layer::of(&steps);
    let is_root = rustix::process::geteuid().is_root();
    for as_root in [false, true].into_iter().filter(|as_root| is_root || !as_root) {
        let result = site.within(&archive, UnpackForm { as_root, ..UnpackForm::default() }, BUFFER, |result, nodes| {
            match (result, sensible) {
                _ if layer.winding => {}
                (Ok(report), true) => {
                    let upper = Upper { nodes, root_opaque: report.root_opaque };
                    for lower in lowers() {
                        assert_eq!(
                            upper.upon(&lower),
                            layer.upon(&lower),
                            "{steps:?} upon {lower:?}, as root: {as_root}"
                        );
                    }
                    let implied: Vec<Vec<u8>> = layer.implied.iter().map(|path| path.join("/").into_bytes()).collect();
                    let mut reported = report.implicit_directories.clone();
                    reported.sort();
                    assert_eq!(reported.len(), implied.len(), "{steps:?}: {reported:?}, {implied:?}");
                    assert!(implied.iter().all(|path| reported.contains(path)), "{steps:?}: {reported:?}, {implied:?}");
                }
                (Err(_), false) => {}
                (result, _) => panic!("{steps:?}: {result:?}, and the layer means {layer:?}"),
            }
        });
        if let Err(error) = result {
            assert!(!is_io(&*error), "{steps:?}: the file system had to say no: {error:?}");
        }
    }
}

/// Reads one entry of a recipe. `number` identifies its leaf.
fn step(bytes: &[u8], number: u64) -> Step {
    let path = path(bytes[1]);
    match bytes[0] % 10 {
        0 | 1 => Step::Put { path, thing: Thing::Leaf(number) },
        2 | 3 => Step::Put { path, thing: Thing::Directory },
        4 if bytes[2] & 1 == 0 => {
            Step::Link { path, target: TARGETS[usize::from(bytes[2] >> 1) % TARGETS.len()], number }
        }
        4 => Step::Put { path, thing: Thing::Leaf(number) },
        5 => Step::HardLink { path, target: self::path(bytes[2]) },
        6 | 7 => Step::Whiteout { path },
        8 if bytes[2] == 0 => Step::Opaque { directory: Vec::new() },
        8 => Step::Opaque { directory: path },
        _ if bytes[2] == 0 => Step::Put { path: Vec::new(), thing: Thing::Directory },
        _ => Step::Ignored,
    }
}

fn path(byte: u8) -> Vec<&'static str> {
    let depth = 1 + usize::from(byte >> 6) % 3;
    (0..depth).map(|level| NAMES[usize::from(byte >> (2 * level)) % NAMES.len()]).collect()
}

/// The entry in the archive, spelled as builders spell names.
fn entry(bytes: &[u8], step: &Step) -> Vec<u8> {
    let spelled = |path: &[&str], last: &str| {
        let mut components = path.to_vec();
        components.push(last);
        match bytes[0] >> 6 {
            0 => components.join("/"),
            1 => format!("/./{}", components.join("/")),
            2 => format!("x/../{}", components.join("//")),
            _ => format!("{}/./{last}", [&["."], path].concat().join("/")),
        }
    };
    let split =
        |path: &[&'static str]| path.split_last().map_or((Vec::new(), "."), |(last, above)| (above.to_vec(), *last));
    match step {
        Step::Put { path, thing: Thing::Directory } => {
            let (above, last) = split(path);
            let slash = if bytes[2] & 1 == 0 { "" } else { "/" };
            blocks::header(b'5', format!("{}{slash}", spelled(&above, last)).as_bytes(), b"", 0)
        }
        Step::Put { path, thing: Thing::Leaf(number) } => {
            let (above, last) = split(path);
            let name = spelled(&above, last).into_bytes();
            match bytes[0] % 10 {
                0 | 1 => blocks::file(b'0', &name, &vec![0; usize::from(bytes[2] % 4) * 300], *number),
                _ => blocks::header(b'6', &name, b"", *number),
            }
        }
        Step::Link { path, target, number } => {
            let (above, last) = split(path);
            blocks::header(b'2', spelled(&above, last).as_bytes(), target.as_bytes(), *number)
        }
        Step::HardLink { path, target } => {
            let (above, last) = split(path);
            blocks::header(b'1', spelled(&above, last).as_bytes(), target.join("/").as_bytes(), 0)
        }
        Step::Whiteout { path } => {
            let (above, last) = split(path);
            blocks::header(b'0', spelled(&above, &format!(".wh.{last}")).as_bytes(), b"", 0)
        }
        Step::Opaque { directory } => blocks::header(b'0', spelled(directory, ".wh..wh..opq").as_bytes(), b"", 0),
        Step::Ignored => blocks::header(b'0', spelled(&path(bytes[1]), ".wh..wh.plnk").as_bytes(), b"", 0),
    }
}

/// Lower layers that have all names in use: as directories down to files, as files at once, and not at all.
fn lowers() -> [View; 3] {
    let mut deep = View::new();
    let mut flat = View::new();
    let mut number = LOWER..;
    let mut leaf = || Thing::Leaf(number.next().expect("there is always another"));
    for a in NAMES {
        flat.insert(vec![a], leaf());
        deep.insert(vec![a], Thing::Directory);
        for b in NAMES {
            deep.insert(vec![a, b], Thing::Directory);
            for c in NAMES {
                deep.insert(vec![a, b, c], leaf());
            }
        }
    }
    [View::new(), flat, deep]
}

/// An unpacked layer, as overlayfs sees it.
struct Upper<'a> {
    nodes: &'a Nodes,
    root_opaque: bool,
}

impl Upper<'_> {
    /// What overlayfs shows when the layer lies upon a lower one.
    fn upon(&self, lower: &View) -> View {
        let mut view = View::new();
        for (path, node) in self.nodes {
            let whiteout = node.is_whiteout();
            let own = match node.kind {
                _ if whiteout || path.is_empty() => continue,
                FileType::Directory => Thing::Directory,
                _ => Thing::Leaf(node.stat.mtime.0.cast_unsigned()),
            };
            view.insert(names(path), own);
        }
        for (path, thing) in lower {
            let covered = (0..path.len()).any(|length| {
                let node = self.nodes.get(path[..length].join("/").as_bytes());
                node.is_some_and(|node| {
                    node.kind != FileType::Directory || (if length == 0 { self.root_opaque } else { node.is_opaque() })
                })
            });
            if !covered && !self.nodes.contains_key(path.join("/").as_bytes()) {
                view.insert(path.clone(), *thing);
            }
        }
        view
    }
}

fn names(path: &[u8]) -> Vec<&'static str> {
    path.split(|&byte| byte == b'/')
        .map(|name| NAMES.into_iter().find(|known| known.as_bytes() == name).unwrap_or("an unknown name"))
        .collect()
}

/// Changes bytes.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    bytes.truncate(STEPS_MAX * RECIPE);
    mutation::change(bytes, dice, &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &[&'static str], thing: Thing) -> Step {
        Step::Put { path: path.to_vec(), thing }
    }

    /// Whether the layer that some steps make shows what other steps mean.
    fn agree(made: &[Step], meant: &[Step]) -> bool {
        let home = tempfile::tempdir().unwrap();
        let mut archive: Vec<u8> = made.iter().flat_map(|step| entry(&[0, 0, 0], step)).collect();
        archive.resize(archive.len() + 1024, 0);
        let (layer, sensible) = Layer::of(meant);
        assert!(sensible);
        let mut agree = true;
        let report = Site::new(home.path()).within(&archive, UnpackForm::default(), BUFFER, |result, nodes| {
            let upper = Upper { nodes, root_opaque: result.as_ref().unwrap().root_opaque };
            agree = lowers().iter().all(|lower| upper.upon(lower) == layer.upon(lower));
        });
        report.unwrap();
        agree
    }

    #[test]
    fn a_layer_that_shows_something_else_is_found() {
        let whiteout = || Step::Whiteout { path: vec!["a"] };
        let opaque = || Step::Opaque { directory: vec!["a"] };
        let directory = || put(&["a"], Thing::Directory);
        let below = || put(&["a", "b"], Thing::Leaf(1));
        let layers = [
            vec![whiteout()],
            vec![directory()],
            vec![opaque()],
            vec![directory(), below()],
            vec![whiteout(), below()],
            vec![put(&["a"], Thing::Leaf(1))],
            vec![put(&["a"], Thing::Leaf(2))],
            vec![Step::Opaque { directory: vec![] }],
        ];
        for (at, made) in layers.iter().enumerate() {
            for (other, meant) in layers.iter().enumerate() {
                assert_eq!(agree(made, meant), at == other, "{made:?} and {meant:?}");
            }
        }
        // Hidden and then made again is the same as opaque, and so is the other order.
        assert!(agree(&[whiteout(), directory()], &[opaque()]));
        assert!(agree(&[directory(), whiteout()], &[opaque()]));
    }
}
