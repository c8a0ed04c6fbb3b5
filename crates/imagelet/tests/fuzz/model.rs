//! What a layer means, apart from how it is unpacked: a reference for the overlay form.
//!
//! A layer is a tree of its own, in which the last entry of a name wins, and two sets of paths: those that whiteouts
//! hide, and directories under which nothing of lower layers is seen. Whiteouts act on lower layers only, wherever they
//! stand in the archive. A directory that replaces something of its own layer starts afresh. Links on the way to a place
//! lead where they lead in a container that sees this layer alone.

use std::collections::{BTreeMap, BTreeSet};

/// Links followed for one place; more are refused.
const LINKS_MAX: u32 = 40;

/// A path below the root; empty for the root.
pub(crate) type Path = Vec<&'static str>;
/// What is seen when layers are merged: paths and what stands there.
pub(crate) type View = BTreeMap<Path, Thing>;

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Directory,
    /// Anything else, identified by a number; hard links share it.
    Leaf(u64),
}

/// One entry of the archive.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Put {
        path: Path,
        thing: Thing,
    },
    /// A symbolic link; the number is its leaf's.
    Link {
        path: Path,
        target: &'static str,
        number: u64,
    },
    HardLink {
        path: Path,
        target: Path,
    },
    Whiteout {
        path: Path,
    },
    Opaque {
        directory: Path,
    },
    /// Bookkeeping that means nothing.
    Ignored,
}

/// A layer as its entries mean it.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    own: View,
    hidden: BTreeSet<Path>,
    cut: BTreeSet<Path>,
    /// Which leaves are symbolic links.
    links: BTreeMap<u64, &'static str>,
    /// So many links in a row that the bound may be met elsewhere.
    pub(crate) winding: bool,
    /// Directories that no entry names.
    pub(crate) implied: BTreeSet<Path>,
}

impl Layer {
    /// The layer, and whether all its entries make sense; else the archive is to be refused.
    pub(crate) fn of(steps: &[Step]) -> (Self, bool) {
        let mut layer = Layer::default();
        let sensible = steps.iter().all(|step| layer.take(step).is_some());
        (layer, sensible)
    }

    fn take(&mut self, step: &Step) -> Option<()> {
        match step {
            Step::Put { path, thing } => self.put(path, *thing),
            Step::Link { path, target, number } => {
                self.links.insert(*number, target);
                self.put(path, Thing::Leaf(*number))
            }
            Step::HardLink { path, target } => self.hard_link(path, target),
            Step::Whiteout { path } => {
                let path = self.place(path, true)?;
                self.hidden.insert(path);
                Some(())
            }
            Step::Opaque { directory } => {
                let directory = self.walk(directory, true)?;
                self.cut.insert(directory);
                Some(())
            }
            Step::Ignored => Some(()),
        }
    }

    /// What is seen when the layer lies upon a lower one.
    pub(crate) fn upon(&self, lower: &View) -> View {
        let mut view = self.own.clone();
        for (path, thing) in lower {
            let covered = (0..path.len()).any(|length| {
                let above = &path[..length];
                self.cut.contains(above)
                    || self.hidden.contains(above)
                    || matches!(self.own.get(above), Some(Thing::Leaf(_)))
            });
            if !covered && !self.hidden.contains(path) {
                view.entry(path.clone()).or_insert(*thing);
            }
        }
        view
    }

    fn put(&mut self, path: &Path, thing: Thing) -> Option<()> {
        if path.is_empty() {
            return (thing == Thing::Directory).then_some(());
        }
        let path = self.place(path, true)?;
        self.implied.remove(&path);
        match (self.own.get(&path), thing) {
            (Some(Thing::Directory), Thing::Directory) => return Some(()),
            (Some(Thing::Leaf(_)), Thing::Directory) => drop(self.cut.insert(path.clone())),
            _ => {}
        }
        self.clear(&path);
        self.own.insert(path, thing);
        Some(())
    }

    fn hard_link(&mut self, path: &Path, target: &Path) -> Option<()> {
        let path = self.place(path, true)?;
        let target = self.place(target, false)?;
        let Some(Thing::Leaf(leaf)) = self.own.get(&target).copied() else { return None };
        if self.own.get(&path) == Some(&Thing::Leaf(leaf)) {
            return Some(());
        }
        self.clear(&path);
        // What is replaced may hold the target.
        self.own.contains_key(&target).then_some(())?;
        self.own.insert(path, Thing::Leaf(leaf));
        Some(())
    }

    /// Where a name really is: links on the way are followed, not the last one.
    fn place(&mut self, path: &[&'static str], make: bool) -> Option<Path> {
        let (last, above) = path.split_last()?;
        let mut place = self.walk(above, make)?;
        place.push(last);
        Some(place)
    }

    /// Walks down to a directory, and makes what is missing if `make` is set; no entry may lie below another kind.
    fn walk(&mut self, path: &[&'static str], make: bool) -> Option<Path> {
        let mut here = Path::new();
        let mut ahead: Vec<&str> = path.iter().rev().copied().collect();
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            here.push(name);
            match self.own.get(&here) {
                Some(Thing::Directory) => {}
                Some(Thing::Leaf(number)) => {
                    let target = self.links.get(number)?;
                    links += 1;
                    self.winding |= links > LINKS_MAX / 4;
                    (links <= LINKS_MAX).then_some(())?;
                    here.pop();
                    if target.starts_with('/') {
                        here.clear();
                    }
                    ahead.extend(target.rsplit('/').filter(|name| !name.is_empty()));
                }
                None if make => {
                    self.implied.insert(here.clone());
                    self.own.insert(here.clone(), Thing::Directory);
                }
                None => return None,
            }
        }
        Some(here)
    }

    fn clear(&mut self, path: &Path) {
        self.own.retain(|other, _| !other.starts_with(path));
        self.implied.retain(|other| !other.starts_with(path));
    }
}
