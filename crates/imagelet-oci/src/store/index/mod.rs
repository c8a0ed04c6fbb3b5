//! The store in memory: loaded once, kept in step with the disk by commits and removals.

pub(crate) mod list_cache;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod repositories;
pub(crate) mod shared_layers;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use imagelet_core::{
    image::{Digest, ID_PREFIX_LENGTH_MIN, ImageId, ImageNames, LookupError, Reference, look_up},
    runtime::{RuntimeError, RuntimeErrorKind},
};
use serde::{Deserialize, Serialize};

use self::load::{blobs, digest_named, each_read, folders, read_image, read_json, read_layer};
use super::{
    LayerSizes,
    files::durable::SyncView,
    record::{ImageRecord, LayerRecord, checksum},
    verify::Findings,
};

#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) names: BTreeMap<String, ImageId>,
    pub(crate) images: BTreeMap<ImageId, ImageRecord>,
    pub(crate) layers: HashMap<Digest, LayerRecord>,
    pub(crate) leases: HashMap<Digest, usize>,
    /// Number of writes of the names; the file with the higher number is the newer.
    generation: u64,
    /// The names on disk are valid for this boot only.
    pub(crate) names_unsettled: bool,
    pub(crate) blobs: BTreeMap<Digest, u64>,
    pub(crate) written: HashSet<Digest>,
    /// Damaged images that have a name; their names are in `names` too.
    pub(crate) damaged: BTreeMap<ImageId, DamagedImage>,
    pub(crate) marked: HashMap<Digest, Findings>,
    pub(crate) spares: HashMap<Digest, Spare>,
    pub(crate) sunk: VecDeque<LayerSizes>,
}

#[derive(Clone, Debug)]
pub(crate) struct DamagedImage {
    pub(crate) record: Option<ImageRecord>,
    /// The known layers, lowest first; whole ones are kept for a repair.
    pub(crate) layers: Vec<Digest>,
    /// Findings of its own documents; `None` where only layers are damaged.
    pub(crate) documents: Option<Findings>,
}

#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) folder: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Opened before the layer's first file, or at the start that found the layer.
    pub(crate) view: Arc<SyncView>,
    pub(crate) since: SystemTime,
}

/// Content of `names.json`, and with a boot that of `names.unsettled.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct NamesFile {
    version: u32,
    #[serde(default)]
    generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    names: BTreeMap<String, String>,
}

pub(crate) const NAMES_UNSETTLED: &str = "names.unsettled.json";

#[derive(Debug, Default)]
pub(crate) struct NotDurable {
    pub(crate) names: Vec<(String, ImageId)>,
    pub(crate) layers: Vec<Digest>,
}

const NAMES_VERSION: u32 = 1;

/// Maximum reads of a store that another process keeps changing.
const LOOKS_MAX: usize = 8;

type ByFolder<T> = Vec<(String, T)>;

#[derive(Debug, Default)]
struct StoreContents {
    blobs: BTreeMap<Digest, u64>,
    layers: ByFolder<Result<(Digest, LayerRecord), Findings>>,
    images: ByFolder<(Option<ImageRecord>, Option<Findings>)>,
    names: NamesFile,
    names_unsettled: bool,
    names_rebuilt: bool,
}

impl StoreContents {
    fn read(root: &Path, boot: Option<&str>, writable: bool) -> Result<Self, RuntimeError> {
        // An entry that vanished between listing and reading is not damage.
        let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
        let place = root.join("layers");
        let mut layers = each_read(folders(&place)?, |folder| read_layer(&place, folder));
        layers.retain(|(folder, read)| read.is_ok() || is_there(&place.join(folder)));
        let place = root.join("images");
        let mut images = each_read(folders(&place)?, |folder| read_image(&place, folder));
        images.retain(|(folder, (_, wrong))| wrong.is_none() || is_there(&place.join(folder)));
        let records: Vec<&ImageRecord> = images.iter().filter_map(|(_, (record, _))| record.as_ref()).collect();
        let (names, names_rebuilt) = load_names(root, &records, writable)?;
        let unsettled = load_unsettled(root, boot, names.generation);
        let names_unsettled = unsettled.is_some();
        let names = unsettled.unwrap_or(names);
        let blobs = blobs(root);
        Ok(Self { blobs, layers, images, names, names_unsettled, names_rebuilt })
    }

    /// Reads a store that another process may change, until its names are the same before and after. At the limit the
    /// last read is used; the flag is then true, because it may mix several moments.
    fn read_concurrently<N: PartialEq>(
        names: impl Fn() -> N,
        read: impl Fn() -> Result<Self, RuntimeError>,
    ) -> Result<(Self, bool), RuntimeError> {
        let mut looks = 0;
        loop {
            let before = names();
            let found = read()?;
            looks += 1;
            let is_torn = names() != before;
            if !is_torn || looks == LOOKS_MAX {
                return Ok((found, is_torn));
            }
        }
    }
}

/// The names files as they are now. Each write has its own generation, so that no two are equal.
fn names_bytes(root: &Path) -> [Option<Vec<u8>>; 2] {
    ["names.json", NAMES_UNSETTLED].map(|name| fs::read(root.join(name)).ok())
}

impl Index {
    /// Reads the store. A damaged names file is set aside and rebuilt from the records; an image with a missing or
    /// damaged record or layer keeps its name, is logged and not shown. So a start always succeeds.
    ///
    /// Content with the mark of another boot is dropped: any part of it may be lost. Unless `writable`, nothing is
    /// changed, and concurrent changes by another process do not count as damage.
    pub(crate) fn load(root: &Path, writable: bool, boot: Option<&str>) -> Result<Self, RuntimeError> {
        let (found, is_torn) = if writable {
            (StoreContents::read(root, boot, true)?, false)
        } else {
            StoreContents::read_concurrently(|| names_bytes(root), || StoreContents::read(root, boot, false))?
        };
        let mut index = Self { blobs: found.blobs, ..Self::default() };
        for (folder, read) in found.layers {
            match read {
                Ok((_, record)) if record.unsettled.is_some() && record.unsettled.as_deref() != boot => {
                    tracing::warn!(
                        layer = folder,
                        "a layer was not yet durable when the machine stopped; it is dropped"
                    );
                }
                Ok((diff_id, record)) => {
                    index.layers.insert(diff_id, record);
                }
                Err(findings) => {
                    let finding = &findings.first[0];
                    tracing::error!(layer = folder, path = finding.path, reason = finding.detail, "a layer is dropped");
                    index.marked.extend(digest_named(&folder).map(|diff_id| (diff_id, findings)));
                }
            }
        }
        let (mut records, mut spoiled) = (HashMap::new(), HashMap::new());
        for (folder, (record, wrong)) in found.images {
            records.extend(record.map(|record| (record.image_id(), record)));
            spoiled
                .extend(wrong.zip(digest_named(&folder)).map(|(findings, id)| (ImageId::new(id.as_str()), findings)));
        }
        index.generation = found.names.generation;
        index.names_unsettled = found.names_unsettled;
        for (name, id) in found.names.names {
            let id = ImageId::new(id);
            if !index.is_known(&id) {
                let record = records.remove(&id);
                // Another process adds or removes it right now.
                if is_torn && record.as_ref().is_none_or(|record| index.lacking(record).is_some()) {
                    continue;
                }
                if record.is_none() && id.as_str().parse::<Digest>().is_err() {
                    tracing::error!(name, image = %id, "a name has no image behind it; it is dropped");
                    continue;
                }
                index.admit(root, &id, record, spoiled.remove(&id));
            }
            // All names of an image share one string.
            let id = index.images.get_key_value(&id).map_or(id, |(known, _)| known.clone());
            index.names.insert(name, id);
        }
        if found.names_rebuilt && writable {
            super::files::durable::replace_file(&root.join("names.json"), &index.names_file())
                .map_err(|error| super::storage_error("could not write the store's names", error))?;
        }
        Ok(index)
    }

    pub(crate) fn names_file(&mut self) -> Vec<u8> {
        self.names_bytes(None)
    }

    pub(crate) fn names_unsettled_file(&mut self, boot: &str) -> Vec<u8> {
        self.names_bytes(Some(boot.to_owned()))
    }

    fn names_bytes(&mut self, boot: Option<String>) -> Vec<u8> {
        self.generation += 1;
        let names = self.names.iter().map(|(name, id)| (name.clone(), id.to_string())).collect();
        let file = NamesFile { version: NAMES_VERSION, generation: self.generation, boot, names };
        checksum::seal(&file)
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.names_unsettled || self.layers.values().any(|layer| layer.unsettled.is_some())
    }

    pub(crate) fn unsettled_layers(&self) -> Vec<(Digest, LayerRecord)> {
        let unsettled = self.layers.iter().filter(|(_, layer)| layer.unsettled.is_some());
        unsettled.map(|(diff_id, layer)| (diff_id.clone(), layer.clone())).collect()
    }

    pub(crate) fn mark_durable(&mut self, layers: &[(Digest, LayerRecord)]) {
        for (diff_id, _) in layers {
            if let Some(layer) = self.layers.get_mut(diff_id) {
                layer.unsettled = None;
            }
        }
    }

    /// Drops the layers that are not durable, and the images that need them.
    pub(crate) fn drop_unsettled(&mut self) -> NotDurable {
        let layers: Vec<Digest> = self.unsettled_layers().into_iter().map(|(diff_id, _)| diff_id).collect();
        for layer in &layers {
            self.layers.remove(layer);
        }
        let here = &self.layers;
        self.images.retain(|_, image| image.diff_ids().iter().all(|layer| here.contains_key(layer)));
        let (kept, lost) = std::mem::take(&mut self.names).into_iter().partition(|(_, id)| self.is_known(id));
        self.names = kept;
        self.names_unsettled = false;
        NotDurable { names: Vec::from_iter::<BTreeMap<_, _>>(lost), layers }
    }

    pub(crate) fn images_with_names(&self) -> Vec<(ImageRecord, Vec<String>)> {
        let mut names: HashMap<&ImageId, Vec<String>> = HashMap::new();
        for (name, id) in &self.names {
            names.entry(id).or_default().push(name.clone());
        }
        self.images.iter().map(|(id, record)| (record.clone(), names.remove(id).unwrap_or_default())).collect()
    }

    pub(crate) fn image_with_names(&self, id: &ImageId) -> Option<(ImageRecord, Vec<String>)> {
        let record = self.images.get(id)?;
        Some((record.clone(), self.names_of(id)))
    }

    pub(crate) fn names_of(&self, id: &ImageId) -> Vec<String> {
        self.names.iter().filter(|(_, named)| *named == id).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn resolve(&self, text: &str) -> Result<Option<ImageId>, RuntimeError> {
        look_up(text, self).map_err(|error| match error {
            LookupError::Ambiguous => {
                let message = format!("`{text}` is the beginning of several image ids");
                RuntimeError::new(RuntimeErrorKind::InvalidArgument, message).with_hint("write more digits of the id")
            }
            LookupError::Empty => RuntimeError::new(RuntimeErrorKind::InvalidArgument, error.to_string()),
        })
    }

    /// The damaged image of a name, an id or an id prefix.
    pub(crate) fn resolve_damaged(&self, text: &str) -> Option<ImageId> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let name = text.parse::<Reference>().ok().map(|reference| reference.canonical().to_string());
        let named = name.and_then(|name| self.names.get(&name)).filter(|id| self.damaged.contains_key(*id));
        let mut by_id = self.damaged.keys().filter(|id| {
            let hex = id.as_str().split_once(':').map_or("", |(_, hex)| hex);
            digits.len() >= ID_PREFIX_LENGTH_MIN && (hex.starts_with(digits) || id.as_str() == text)
        });
        named.or_else(|| by_id.next().filter(|_| by_id.next().is_none())).cloned()
    }

    fn is_known(&self, id: &ImageId) -> bool {
        self.images.contains_key(id) || self.damaged.contains_key(id)
    }

    pub(crate) fn unneeded_layers(&self) -> Vec<Digest> {
        let needed = self.needed_layers();
        let mut unneeded: Vec<Digest> = self
            .layers
            .keys()
            .filter(|layer| !needed.contains(layer.as_str()) && !self.leases.contains_key(*layer))
            .cloned()
            .collect();
        unneeded.sort();
        unneeded
    }

    pub(crate) fn unneeded_marked(&self) -> Vec<Digest> {
        if self.marked.is_empty() {
            return Vec::new();
        }
        let needed = self.needed_layers();
        self.marked.keys().filter(|layer| !needed.contains(layer.as_str())).cloned().collect()
    }

    /// The layers of all images, damaged ones included: their whole layers need not be fetched again.
    fn needed_layers(&self) -> HashSet<&str> {
        let damaged = self.damaged.values().flat_map(|image| image.layers.iter().map(Digest::as_str));
        let layers = self.images.values().flat_map(|image| &image.layers);
        layers.map(|layer| layer.diff_id.as_str()).chain(damaged).collect()
    }

    pub(crate) fn image_folders(&self) -> HashSet<&str> {
        // An id is a digest: the folder's name has no algorithm.
        let ids = self.images.keys().chain(self.damaged.keys());
        ids.filter_map(|id| id.as_str().split_once(':')).map(|(_, digits)| digits).collect()
    }

    /// Whether a names file has the names of this process, however it is written.
    pub(crate) fn says_the_same(&self, bytes: &[u8]) -> bool {
        // Before the sync, the file has the previous durable names.
        if self.is_unsettled() {
            return true;
        }
        let said = checksum::open::<NamesFile>(bytes).map(|file| file.names).unwrap_or_default();
        said.len() == self.names.len()
            && said.iter().zip(&self.names).all(|(a, b)| (a.0, a.1.as_str()) == (b.0, b.1.as_str()))
    }

    pub(crate) fn remove_unreferenced(&mut self) -> Vec<ImageId> {
        let named: BTreeSet<&ImageId> = self.names.values().collect();
        let nameless: Vec<ImageId> = self.images.keys().filter(|id| !named.contains(id)).cloned().collect();
        for id in &nameless {
            self.images.remove(id);
        }
        self.damaged.retain(|id, _| named.contains(id));
        nameless
    }
}

/// Damaged images do not resolve: the only operation on one is a new pull.
impl ImageNames for Index {
    fn has(&self, id: &ImageId) -> bool {
        self.images.contains_key(id)
    }

    fn named(&self, name: &str) -> Option<ImageId> {
        self.names.get(name).filter(|id| self.images.contains_key(*id)).cloned()
    }

    fn beginning(&self, prefix: &str) -> [Option<ImageId>; 2] {
        let from = self.images.range(ImageId::new(prefix)..).map(|(id, _)| id);
        let mut found = from.take_while(|id| id.as_str().starts_with(prefix)).cloned();
        [found.next(), found.next()]
    }
}

/// Rejects a store of a newer version, in any format: nothing of it may be changed.
pub(crate) fn refuse_newer(root: &Path) -> Result<(), RuntimeError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: serde_json::Number,
    }
    match read_json::<Versioned>(&root.join("names.json")) {
        Ok(file) if file.version.as_u64().is_none_or(|version| version > NAMES_VERSION.into()) => {
            let message =
                format!("the store `{}` was written by a newer imagelet (format {})", root.display(), file.version);
            Err(RuntimeError::new(RuntimeErrorKind::Unavailable, message)
                .with_hint("use that version, or name another place with --store DIR"))
        }
        // A damaged file is reported when it is read.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn load_names(root: &Path, records: &[&ImageRecord], writable: bool) -> Result<(NamesFile, bool), RuntimeError> {
    let path = root.join("names.json");
    let error = match read_json::<NamesFile>(&path) {
        Ok(file) => return Ok((file, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && records.is_empty() => {
            return Ok((NamesFile::default(), false));
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => error,
        Err(error) => return Err(super::storage_error(format!("could not read `{}`", path.display()), error)),
    };
    if writable && error.kind() == io::ErrorKind::InvalidData {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // An earlier set-aside file is not overwritten, even within the same second.
        let mut names = (0..).map(|number| match number {
            0 => root.join(format!("names.json.corrupt-{seconds}")),
            _ => root.join(format!("names.json.corrupt-{seconds}-{number}")),
        });
        let aside = names.find(|path| fs::symlink_metadata(path).is_err()).expect("there is no end of numbers");
        tracing::error!(%error, aside = %aside.display(), "the names file is damaged; it is set aside and rebuilt from the image records");
        fs::rename(&path, &aside)
            .map_err(|error| super::storage_error(format!("could not set `{}` aside", path.display()), error))?;
        crate::failpoint::Step::OpenSetAside.reach();
    }
    let rebuilt = records.iter().flat_map(|record| record.names.iter().map(|name| (name.clone(), record.id.clone())));
    Ok((NamesFile { names: rebuilt.collect(), ..NamesFile::default() }, true))
}

/// The names of this boot, if newer. The file was never synced, so a damaged one counts as missing.
fn load_unsettled(root: &Path, boot: Option<&str>, generation: u64) -> Option<NamesFile> {
    let file = read_json::<NamesFile>(&root.join(NAMES_UNSETTLED)).ok()?;
    let holds = file.version == NAMES_VERSION && file.boot.is_some() && file.boot.as_deref() == boot;
    (holds && file.generation > generation).then_some(file)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_store_that_changes_while_it_is_read_is_read_again_and_not_without_end() {
        for (changes, looks, torn) in [(0, 1, false), (3, 4, false), (1000, LOOKS_MAX, true)] {
            let (left, seen, number) = (Cell::new(changes), Cell::new(0), Cell::new(0));
            let read = || {
                seen.set(seen.get() + 1);
                if left.get() > 0 {
                    left.set(left.get() - 1);
                    number.set(number.get() + 1);
                }
                Ok(StoreContents::default())
            };
            let (_, is_torn) = StoreContents::read_concurrently(|| number.get(), read).unwrap();
            assert_eq!((seen.get(), is_torn), (looks, torn), "{changes} changes");
        }
    }
}
