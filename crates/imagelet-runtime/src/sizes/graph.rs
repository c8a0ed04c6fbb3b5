//! The parts of containerd's images: a pure function of containerd's lists.
//!
//! A part is a committed snapshot or a blob. The parts of an image are those that containerd's collector reaches from
//! the image's records, through labels (`containerd.io/gc.ref.*`) and the parents of snapshots. A part that the
//! collector also reaches from other roots is *held*: no image removal frees it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use imagelet_core::{
    image::{ByteSize, Digest, ImageId},
    ports::{Certainty, Freed, LayerFacts, LayerGraph},
};

use crate::containerd::{
    calls::COMMITTED,
    v1::{content, images, leases, snapshots},
};

/// The label with which a document refers to a blob. An optional suffix of the label starts with `.` or `/`.
const REFERS_TO_CONTENT: &str = "containerd.io/gc.ref.content";
const REFERS_TO_CONFIG: &str = "containerd.io/gc.ref.content.config";
/// Prefix of the label with which a document refers to a snapshot. The snapshotter's name follows the prefix.
const REFERS_TO_SNAPSHOT: &str = "containerd.io/gc.ref.snapshot.";
/// Labels that keep an unreferenced resource: always, for a time, or as long as another resource exists.
const STAYS: [&str; 4] =
    ["containerd.io/gc.root", "containerd.io/gc.expire", "containerd.io/gc.bref.", "containerd.io/gc.cond."];
const LEASED_CONTENT: &str = "content";
const LEASED_SNAPSHOT: &str = "snapshots/";

/// The file of a blob uses whole blocks.
const BLOCK_BYTES: u64 = 4 << 10;
/// Limit of followed references: about 100 times the references of 10,000 images.
const STEPS_MAX: usize = 50_000_000;

#[derive(Clone, Debug, Default)]
pub struct Listed {
    pub images: Vec<images::Image>,
    pub contents: Vec<content::Info>,
    /// Snapshots by snapshotter. A snapshotter is absent if its snapshots could not be listed.
    pub snapshots: BTreeMap<String, Vec<snapshots::Info>>,
    pub leased: Vec<leases::Resource>,
    /// Digests of the blobs of all other namespaces.
    pub elsewhere: HashSet<String>,
    /// Usage of committed snapshots. A snapshot without reported usage is absent.
    pub usages: HashMap<CommittedSnapshot, Freed>,
    pub folders: PartFolders,
}

/// The identity of a snapshot. Names are reused after a removal; name and creation time together are unique.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommittedSnapshot {
    pub snapshotter: Arc<str>,
    pub name: Arc<str>,
    pub created_at: (i64, i32),
}

#[derive(Clone, Debug, Default)]
pub struct PartFolders {
    pub contents: Option<Arc<Path>>,
    pub snapshots: HashMap<String, Arc<Path>>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("images, blobs and snapshots need more than {STEPS_MAX} references to be followed")]
pub struct TooEntangled;

impl Listed {
    pub fn committed(&self) -> Result<Vec<CommittedSnapshot>, TooEntangled> {
        let mut nodes = Nodes::of(self);
        let roots: Vec<u32> = self.images.iter().flat_map(|record| nodes.roots(record)).collect();
        let found = nodes.reach(roots)?;
        let snapshot = |node: u32| {
            let (snapshotter, snapshot) =
                nodes.listed.get(usize::try_from(node).ok()?.checked_sub(self.contents.len())?)?;
            committed(snapshotter, snapshot)
        };
        Ok(found.nodes.into_iter().filter_map(snapshot).collect())
    }

    pub fn graph(&self) -> Result<LayerGraph, TooEntangled> {
        let mut nodes = Nodes::of(self);
        let mut held = nodes.holders(self);
        let ids: HashSet<&str> =
            self.images.iter().map(|record| record.name.as_str()).filter(|name| is_id(name)).collect();
        // A walk is reused for equal roots, because most records of one image name the same target.
        let mut reached: HashMap<Vec<u32>, Arc<Reached>> = HashMap::new();
        let mut images: BTreeMap<ImageId, BTreeSet<u32>> = BTreeMap::new();
        for record in &self.images {
            let roots = nodes.roots(record);
            let known = reached.get(&roots).map(Arc::clone);
            let found = known.map_or_else(|| nodes.reach(roots.iter().copied()).map(Arc::new), Ok)?;
            reached.entry(roots).or_insert_with(|| Arc::clone(&found));
            let owners = owners(record, &found, &ids);
            if owners.is_empty() {
                // The record belongs to no image, so no image removal frees its parts.
                held.extend(&found.nodes);
            }
            for id in owners {
                images.entry(ImageId::new(id)).or_default().extend(&found.nodes);
            }
        }
        let held: HashSet<u32> = nodes.reach(held)?.nodes.into_iter().collect();
        Ok(nodes.graph(self, images, &held))
    }
}

/// How many unreported folders a snapshotter creates around each snapshot. `None` means an unknown number.
fn own_folders(snapshotter: &str) -> Option<u64> {
    match snapshotter {
        // The snapshot's folder and `work`.
        "overlayfs" => Some(2),
        "native" => Some(0),
        _ => None,
    }
}

/// The images that a record belongs to. CRI's image id is the digest of the configuration.
fn owners<'a>(record: &'a images::Image, found: &'a Reached, ids: &HashSet<&str>) -> BTreeSet<&'a str> {
    if is_id(&record.name) {
        return BTreeSet::from([record.name.as_str()]);
    }
    // An index may have the configurations of several platforms. CRI shows one of them.
    let shown: BTreeSet<&str> =
        found.configs.iter().map(|config| &**config).filter(|config| ids.contains(config)).collect();
    if shown.is_empty() { found.configs.iter().map(|config| &**config).collect() } else { shown }
}

fn is_id(name: &str) -> bool {
    name.parse::<Digest>().is_ok()
}

/// All blobs and snapshots, each with a number. The numbers of the snapshots follow those of the blobs.
struct Nodes<'a> {
    contents: HashMap<&'a str, u32>,
    snapshots: HashMap<(&'a str, &'a str), u32>,
    listed: Vec<(&'a str, &'a snapshots::Info)>,
    resources: Vec<Resource<'a>>,
    steps_left: usize,
    walk: usize,
}

struct Resource<'a> {
    references: Vec<u32>,
    config: Option<&'a str>,
    /// References to snapshots of a snapshotter that could not be listed.
    unseen: Vec<(&'a str, &'a str)>,
    walk: usize,
}

#[derive(Debug, Default)]
struct Reached {
    nodes: Vec<u32>,
    configs: BTreeSet<String>,
}

impl<'a> Nodes<'a> {
    fn of(listed: &'a Listed) -> Self {
        let number = |at: usize| u32::try_from(at).expect("lists are bounded well below");
        let blobs = listed.contents.iter().enumerate();
        let contents = blobs.map(|(at, blob)| (blob.digest.as_str(), number(at))).collect();
        let all: Vec<(&str, &snapshots::Info)> = listed
            .snapshots
            .iter()
            .flat_map(|(snapshotter, snapshots)| snapshots.iter().map(|snapshot| (snapshotter.as_str(), snapshot)))
            .collect();
        let snapshots = all.iter().zip(listed.contents.len()..);
        let snapshots =
            snapshots.map(|((snapshotter, it), at)| ((*snapshotter, it.name.as_str()), number(at))).collect();
        let (resources, steps_left) = (Vec::new(), STEPS_MAX);
        let mut nodes = Self { contents, snapshots, listed: all, resources, steps_left, walk: 0 };
        let blobs = listed.contents.iter().map(|blob| (&blob.labels, None));
        let parents =
            nodes.listed.iter().map(|(snapshotter, it)| (&it.labels, Some((*snapshotter, it.parent.as_str()))));
        let resources = blobs.chain(parents).map(|(labels, parent)| nodes.resource(labels, parent, listed)).collect();
        nodes.resources = resources;
        nodes
    }

    fn resource(
        &self,
        labels: &'a BTreeMap<String, String>,
        parent: Option<(&'a str, &'a str)>,
        listed: &Listed,
    ) -> Resource<'a> {
        let mut references = self.labelled(labels);
        references.extend(parent.and_then(|parent| self.snapshots.get(&parent)));
        let named = labels.iter().filter_map(|(key, value)| refers_to_snapshot(key, value));
        let unseen = named.filter(|(snapshotter, _)| !listed.snapshots.contains_key(*snapshotter)).collect();
        Resource { references, config: labels.get(REFERS_TO_CONFIG).map(String::as_str), unseen, walk: 0 }
    }

    fn labelled(&self, labels: &'a BTreeMap<String, String>) -> Vec<u32> {
        let refers = |(key, value): (&'a String, &'a String)| {
            if let Some(snapshot) = refers_to_snapshot(key, value) {
                return self.snapshots.get(&snapshot).copied();
            }
            let rest = key.strip_prefix(REFERS_TO_CONTENT)?;
            (rest.is_empty() || rest.starts_with(['.', '/'])).then(|| self.contents.get(value.as_str()).copied())?
        };
        labels.iter().filter_map(refers).collect()
    }

    fn roots(&self, record: &'a images::Image) -> Vec<u32> {
        let mut roots = self.labelled(&record.labels);
        roots.extend(record.target.as_ref().and_then(|target| self.contents.get(target.digest.as_str())));
        roots
    }

    /// Resources that are kept without an image: by leases, labels or other namespaces, and uncommitted snapshots.
    fn holders(&self, listed: &Listed) -> Vec<u32> {
        let leased = listed.leased.iter().filter_map(|resource| {
            if resource.r#type == LEASED_CONTENT {
                return self.contents.get(resource.id.as_str()).copied();
            }
            let snapshotter = resource.r#type.strip_prefix(LEASED_SNAPSHOT)?;
            self.snapshots.get(&(snapshotter, resource.id.as_str())).copied()
        });
        let is_held = |blob: &&content::Info| stays(&blob.labels) || listed.elsewhere.contains(&blob.digest);
        let blobs = listed.contents.iter().filter(is_held).filter_map(|blob| self.contents.get(&*blob.digest).copied());
        let in_use = self.listed.iter().filter(|(_, snapshot)| !is_committed(snapshot) || stays(&snapshot.labels));
        let in_use = in_use
            .filter_map(|(snapshotter, snapshot)| self.snapshots.get(&(*snapshotter, snapshot.name.as_str())).copied());
        leased.chain(blobs).chain(in_use).collect()
    }

    fn reach(&mut self, roots: impl IntoIterator<Item = u32>) -> Result<Reached, TooEntangled> {
        self.walk += 1;
        let (mut found, mut open) = (Reached::default(), roots.into_iter().collect::<Vec<u32>>());
        while let Some(node) = open.pop() {
            self.steps_left = self.steps_left.checked_sub(1).ok_or(TooEntangled)?;
            let Some(resource) = usize::try_from(node).ok().and_then(|at| self.resources.get_mut(at)) else { continue };
            if std::mem::replace(&mut resource.walk, self.walk) == self.walk {
                continue;
            }
            found.nodes.push(node);
            found.configs.extend(resource.config.map(str::to_owned));
            open.extend(&resource.references);
        }
        Ok(found)
    }

    /// No image removal frees parts in `held`.
    fn graph(&self, listed: &Listed, images: BTreeMap<ImageId, BTreeSet<u32>>, held: &HashSet<u32>) -> LayerGraph {
        // `unmeasured` counts parts of unknown size: the blob's length is invalid, or the snapshot's usage is unknown.
        let (mut layers, mut unmeasured) = (Vec::new(), 0);
        let (mut places, mut unseen) = (HashMap::new(), HashSet::new());
        let mut place = |node: u32| {
            if let Some(place) = places.get(&node) {
                return Some(*place);
            }
            let at = usize::try_from(node).ok()?;
            unseen.extend(self.resources[at].unseen.iter().copied());
            let held = held.contains(&node);
            let layer = match at.checked_sub(listed.contents.len()) {
                None => {
                    let blob = &listed.contents[at];
                    let size = u64::try_from(blob.size);
                    unmeasured += usize::from(size.is_err());
                    let bytes = ByteSize(size.unwrap_or(0).div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES));
                    let (id, folder) = (format!("blob:{}", blob.digest).into(), listed.folders.contents.clone());
                    LayerFacts { id, bytes, inodes: Some(1), held, folder }
                }
                Some(at) => {
                    let (snapshotter, snapshot) = self.listed[at];
                    let usage = listed.usages.get(&committed(snapshotter, snapshot)?);
                    let folders = own_folders(snapshotter);
                    unmeasured += usize::from(folders.is_none() || usage.is_none());
                    let folders = folders.unwrap_or_default();
                    LayerFacts {
                        id: format!("{snapshotter}:{}", snapshot.name).into(),
                        bytes: ByteSize(usage.map_or(0, |usage| usage.bytes.0.saturating_add(folders * BLOCK_BYTES))),
                        inodes: usage.map(|usage| usage.inodes.saturating_add(folders)),
                        held,
                        folder: listed.folders.snapshots.get(snapshotter).cloned(),
                    }
                }
            };
            let place = u32::try_from(layers.len()).ok()?;
            layers.push(layer);
            places.insert(node, place);
            Some(place)
        };
        let images = images.into_iter().map(|(id, nodes)| (id, nodes.into_iter().filter_map(&mut place).collect()));
        let images: BTreeMap<ImageId, Vec<u32>> = images.collect();
        let (all, unmeasured) = (layers.len() + unseen.len(), unmeasured + unseen.len());
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let certainty = match unmeasured {
            0 => Certainty::Exact,
            unmeasured => Certainty::Partial { measured: count(all - unmeasured), layers: count(all) },
        };
        LayerGraph { layers, images, certainty }
    }
}

pub(crate) fn refers_to_snapshot<'a>(key: &'a str, value: &'a str) -> Option<(&'a str, &'a str)> {
    let snapshotter = key.strip_prefix(REFERS_TO_SNAPSHOT)?;
    Some((snapshotter.split('/').next().unwrap_or(snapshotter), value))
}

fn stays(labels: &BTreeMap<String, String>) -> bool {
    labels.keys().any(|key| STAYS.iter().any(|label| key.starts_with(label)))
}

fn is_committed(snapshot: &snapshots::Info) -> bool {
    snapshot.kind == COMMITTED
}

fn committed(snapshotter: &str, snapshot: &snapshots::Info) -> Option<CommittedSnapshot> {
    let created_at = snapshot.created_at.map_or((0, 0), |at| (at.seconds, at.nanos));
    is_committed(snapshot).then(|| CommittedSnapshot {
        snapshotter: snapshotter.into(),
        name: snapshot.name.as_str().into(),
        created_at,
    })
}

pub(super) fn snapshotters(images: &[images::Image], contents: &[content::Info]) -> BTreeSet<String> {
    let labels = images.iter().map(|record| &record.labels).chain(contents.iter().map(|blob| &blob.labels));
    let named = labels.flatten().filter_map(|(key, value)| refers_to_snapshot(key, value));
    named.map(|(snapshotter, _)| snapshotter.to_owned()).collect()
}

#[cfg(test)]
mod tests;
