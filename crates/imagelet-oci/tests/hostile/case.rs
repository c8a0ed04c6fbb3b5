//! A case: an id of the catalogue, an image, and what must become of it.

use std::collections::BTreeMap;

use crate::{archive::MTIME, fixture::Host};

/// Makes the cases of one category, some of which name the host's files.
pub(crate) type Cases = fn(&Host) -> Vec<Case>;

/// One image and what a pull of it must do.
pub(crate) struct Case {
    /// As in the catalogue of bad inputs, `B001` to `B041`.
    pub(crate) id: &'static str,
    /// What is hostile about it.
    pub(crate) what: String,
    /// Uncompressed, lowest first.
    pub(crate) layers: Vec<Vec<u8>>,
    pub(crate) outcome: Outcome,
    /// What a mount of the image shows: a path, and a file's content or nothing for all else.
    pub(crate) merged: Option<Vec<(&'static str, Option<&'static str>)>>,
}

/// What must become of a pull. The host stays as it was in any case.
pub(crate) enum Outcome {
    /// One error that has all these words in it.
    Fails(Vec<String>),
    /// It fails, or what it makes lies in the layer.
    Contained,
    /// It succeeds, and each layer is exactly this.
    Succeeds(Vec<Tree>),
}

impl Case {
    fn new(id: &'static str, what: impl Into<String>, layers: Vec<Vec<u8>>, outcome: Outcome) -> Self {
        Self { id, what: what.into(), layers, outcome, merged: None }
    }

    /// With a lower layer under it.
    pub(crate) fn above(mut self, lower: Vec<u8>) -> Self {
        self.layers.insert(0, lower);
        self
    }

    /// With a lower layer under it, and its tree.
    pub(crate) fn over(mut self, lower: Vec<u8>, tree: Tree) -> Self {
        if let Outcome::Succeeds(trees) = &mut self.outcome {
            trees.insert(0, tree);
        }
        self.above(lower)
    }

    /// A mount must show exactly this.
    pub(crate) fn merged(self, shown: &[(&'static str, Option<&'static str>)]) -> Self {
        Self { merged: Some(shown.to_vec()), ..self }
    }
}

/// The pull fails, and says these words: the entry as `` `name` ``, and a word of the cause.
pub(crate) fn fails(id: &'static str, what: impl Into<String>, layer: Vec<u8>, words: &[&str]) -> Case {
    let words = words.iter().map(|&word| word.to_owned()).collect();
    Case::new(id, what, vec![layer], Outcome::Fails(words))
}

pub(crate) fn contained(id: &'static str, what: impl Into<String>, layers: Vec<Vec<u8>>) -> Case {
    Case::new(id, what, layers, Outcome::Contained)
}

pub(crate) fn succeeds(id: &'static str, what: impl Into<String>, layer: Vec<u8>, tree: Tree) -> Case {
    Case::new(id, what, vec![layer], Outcome::Succeeds(vec![tree]))
}

/// Layers with the tree of each, lowest first.
pub(crate) fn stack(id: &'static str, what: impl Into<String>, layers: Vec<(Vec<u8>, Tree)>) -> Case {
    let (layers, trees) = layers.into_iter().unzip();
    Case::new(id, what, layers, Outcome::Succeeds(trees))
}

/// Everything a layer's folder must have, its root apart.
#[derive(Clone, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: BTreeMap<Vec<u8>, Node>,
    last: Vec<u8>,
}

/// What must lie at a path.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// `None`: not looked at.
    pub(crate) mode: Option<u32>,
    pub(crate) owner: (u32, u32),
    /// `None`: not looked at.
    pub(crate) mtime: Option<(i64, i64)>,
    pub(crate) xattrs: Vec<(&'static str, Option<Vec<u8>>)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Directory,
    File(Vec<u8>),
    /// A file of this size, of which the first and last bytes are known and that takes few blocks.
    Sparse {
        size: u64,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    Symlink(Vec<u8>),
    /// Another name of this path.
    SameAs(Vec<u8>),
    Fifo,
    /// Created, or left out and on record.
    Device {
        block: bool,
        major: u32,
        minor: u32,
    },
    Whiteout,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn add(mut self, path: impl AsRef<[u8]>, kind: Kind, mode: Option<u32>, mtime: Option<(i64, i64)>) -> Self {
        self.last = path.as_ref().to_vec();
        self.nodes.insert(self.last.clone(), Node { kind, mode, owner: (0, 0), mtime, xattrs: Vec::new() });
        self
    }

    pub(crate) fn file(self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        self.add(path, Kind::File(content.as_ref().to_vec()), Some(0o644), Some((MTIME, 0)))
    }

    pub(crate) fn dir(self, path: impl AsRef<[u8]>) -> Self {
        self.add(path, Kind::Directory, Some(0o755), Some((MTIME, 0)))
    }

    /// A directory that no entry names.
    pub(crate) fn implied(self, path: impl AsRef<[u8]>) -> Self {
        self.add(path, Kind::Directory, Some(0o755), None)
    }

    pub(crate) fn symlink(self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.add(path, Kind::Symlink(target.as_ref().to_vec()), None, Some((MTIME, 0)))
    }

    pub(crate) fn same(self, path: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> Self {
        self.add(path, Kind::SameAs(other.as_ref().to_vec()), None, None)
    }

    pub(crate) fn fifo(self, path: &str) -> Self {
        self.add(path, Kind::Fifo, Some(0o644), Some((MTIME, 0)))
    }

    pub(crate) fn device(self, path: &str, block: bool, major: u32, minor: u32) -> Self {
        self.add(path, Kind::Device { block, major, minor }, Some(0o644), Some((MTIME, 0)))
    }

    pub(crate) fn whiteout(self, path: &str) -> Self {
        self.add(path, Kind::Whiteout, None, None)
    }

    pub(crate) fn sparse(self, path: &str, size: u64, first: &[u8], last: &[u8]) -> Self {
        let kind = Kind::Sparse { size, first: first.to_vec(), last: last.to_vec() };
        self.add(path, kind, Some(0o644), Some((MTIME, 0)))
    }

    fn last(&mut self) -> &mut Node {
        self.nodes.get_mut(&self.last).expect("a node was added")
    }

    /// Of the node added last.
    pub(crate) fn mode(mut self, mode: u32) -> Self {
        self.last().mode = Some(mode);
        self
    }

    pub(crate) fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.last().owner = (uid, gid);
        self
    }

    pub(crate) fn mtime(mut self, seconds: i64, nanos: i64) -> Self {
        self.last().mtime = Some((seconds, nanos));
        self
    }

    /// An attribute of the node added last; `None`: it must not have it.
    pub(crate) fn xattr(mut self, name: &'static str, value: Option<&[u8]>) -> Self {
        self.last().xattrs.push((name, value.map(<[u8]>::to_vec)));
        self
    }
}
