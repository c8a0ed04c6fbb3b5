//! The store in memory: loaded once, then updated by commits and removals.

pub(crate) mod listing;
pub(crate) mod load;
pub(crate) mod repositories;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{SystemTime, UNIX_EPOCH},
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    image::{Digest, ImageId, ImageNames, LookupError, look_up},
    ports::{Findings, Listing},
};
use serde::{Deserialize, Serialize};

use self::load::{ReadRecord, blobs, read_folders, read_json};
use super::{
    could_not,
    files::durable::{SyncView, replace_file},
    record::{ImageRecord, LayerRecord, SpareRecord, TREE, checksum, folder_usage::block_size},
};

#[derive(Default)]
pub(crate) struct Index {
    pub(crate) names: BTreeMap<String, ImageId>,
    pub(crate) images: BTreeMap<ImageId, ImageRecord>,
    pub(crate) layers: HashMap<Digest, LayerRecord>,
    /// The number of times that the names were written. Of two names files, the one with the higher number is newer.
    generation: u64,
    /// Whether the newest names on the disk are valid only for this boot.
    pub(crate) names_unsettled: bool,
    pub(crate) blobs: BTreeMap<Digest, u64>,
    /// Only images that have a name. `names` has their names, too.
    pub(crate) damaged: BTreeMap<ImageId, DamagedImage>,
    pub(crate) marked: HashMap<Digest, Findings>,
    pub(crate) unfinished: Unfinished,
    block: u64,
    /// The cached list of images, sorted by id; `None` if the index may have changed since (see [`listing::Locked`]).
    list: Option<Listing>,
}

#[derive(Default)]
pub(crate) struct Unfinished {
    pub(crate) leases: HashMap<Digest, usize>,
    /// Partial content that has a writer, by file name. The flag stops a writer whose blob only serves a resumption.
    pub(crate) written: HashMap<String, Option<Arc<AtomicBool>>>,
    /// File name → the number of the admitted pull that counts on this partial content.
    pub(crate) continued: HashMap<String, u64>,
    pub(crate) spares: HashMap<Digest, Spare>,
    /// The views that receive the write errors of partial layers, by file name.
    pub(crate) partial_views: HashMap<String, Arc<SyncView>>,
}

#[derive(Clone, Debug)]
pub(crate) struct DamagedImage {
    pub(crate) record: Option<ImageRecord>,
    /// The known layers of the image, lowest first. The store keeps the undamaged layers for a repair.
    pub(crate) layers: Vec<Digest>,
    /// The findings about the image's documents; `None` if only layers are damaged.
    pub(crate) documents: Option<Findings>,
}

impl DamagedImage {
    pub(crate) fn new(record: ImageRecord, documents: Option<Findings>) -> Self {
        Self { layers: record.diff_ids().cloned().collect(), record: Some(record), documents }
    }
}

pub(crate) struct StoredImage {
    pub(crate) id: ImageId,
    pub(crate) names: Vec<String>,
    pub(crate) is_damaged: bool,
    pub(crate) image: DamagedImage,
}

#[derive(Clone)]
pub(crate) struct Spare {
    pub(crate) folder: PathBuf,
    pub(crate) record: LayerRecord,
    /// A view that was opened before the layer's first write, or at the start that found the layer.
    pub(crate) view: Arc<SyncView>,
    pub(crate) since: SystemTime,
    pub(crate) origin: SpareRecord,
}

/// The content of `names.json`; if `boot` is set, the content of `names.unsettled.json`.
#[derive(Default, Serialize, Deserialize)]
struct NamesFile {
    version: u32,
    #[serde(default)]
    generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    names: BTreeMap<String, ImageId>,
}

pub(crate) const NAMES_UNSETTLED: &str = "names.unsettled.json";
const NAMES_VERSION: u32 = 1;

const BLOCK_USUAL: u64 = 4096;
const READS_MAX: usize = 8;

#[derive(Default)]
struct StoreContents {
    blobs: BTreeMap<Digest, u64>,
    layers: Vec<(Digest, ReadRecord<LayerRecord>)>,
    images: Vec<(Digest, ReadRecord<ImageRecord>)>,
    names: NamesFile,
    names_unsettled: bool,
    names_rebuilt: bool,
}

impl StoreContents {
    fn read(root: &Path, boot: Option<&str>, writable: bool) -> Result<Self, RuntimeError> {
        let layers = read_folders(&root.join("layers"), "layer.json", |folder, digest, record: &LayerRecord| {
            record.diff_id == *digest && folder.join(TREE).is_dir()
        })?;
        let images =
            read_folders(&root.join("images"), "image.json", |_, digest, record: &ImageRecord| record.id == *digest)?;
        let (names, names_rebuilt) = load_names(root, &images, writable)?;
        let unsettled = load_unsettled(root, boot, names.generation);
        let names_unsettled = unsettled.is_some();
        let names = unsettled.unwrap_or(names);
        Ok(Self { blobs: blobs(root), layers, images, names, names_unsettled, names_rebuilt })
    }

    /// Repeats the read of a store that another process may change, until the names are the same before and after a
    /// read. The flag is true if the names still differ after the last permitted read.
    fn read_concurrently<N: PartialEq>(
        names: impl Fn() -> N,
        read: impl Fn() -> Result<Self, RuntimeError>,
    ) -> Result<(Self, bool), RuntimeError> {
        let mut reads = 0;
        loop {
            let before = names();
            let found = read()?;
            reads += 1;
            let is_torn = names() != before;
            if !is_torn || reads == READS_MAX {
                return Ok((found, is_torn));
            }
        }
    }
}

/// The bytes of both names files. Each write has a new generation, so two writes always have different bytes.
fn names_bytes(root: &Path) -> [Option<Vec<u8>>; 2] {
    ["names.json", NAMES_UNSETTLED].map(|name| fs::read(root.join(name)).ok())
}

impl Index {
    /// Reads the store. Sets a damaged names file aside and rebuilds it from the records. An image with a missing or
    /// damaged record or layer keeps its name; it is logged and hidden. So damage never prevents a start. Drops content
    /// of another boot. If `writable` is false, only reads, and reads again while another process changes the store.
    pub(crate) fn load(root: &Path, writable: bool, boot: Option<&str>) -> Result<Self, RuntimeError> {
        let read = || StoreContents::read(root, boot, writable);
        let (found, is_torn) =
            if writable { (read()?, false) } else { StoreContents::read_concurrently(|| names_bytes(root), read)? };
        let mut index = Self {
            blobs: found.blobs,
            generation: found.names.generation,
            names_unsettled: found.names_unsettled,
            block: block_size(root).unwrap_or(BLOCK_USUAL),
            ..Self::default()
        };
        for (layer, read) in found.layers {
            match read {
                Ok(record) if record.unsettled.is_some() && record.unsettled.as_deref() != boot => {
                    tracing::warn!(%layer, "a layer was not yet durable when the machine stopped; it is dropped");
                }
                Ok(record) => drop(index.layers.insert(layer, record)),
                Err((_, findings)) => {
                    let finding = &findings.first[0];
                    tracing::error!(%layer, path = finding.path, reason = finding.detail, "a layer is dropped");
                    index.marked.insert(layer, findings);
                }
            }
        }
        let images = found.images.into_iter().map(|(digest, read)| (ImageId::new(digest.as_str()), read));
        let mut images: HashMap<ImageId, ReadRecord<ImageRecord>> = images.collect();
        for (name, id) in found.names.names {
            if !index.is_known(&id) {
                let read = images.remove(&id);
                let record = read.as_ref().and_then(|read| read.as_ref().ok());
                // If an image is incomplete in a torn read, another process is adding or removing the image.
                let is_whole =
                    record.is_some_and(|record| record.diff_ids().all(|layer| index.layers.contains_key(layer)));
                if is_torn && !is_whole {
                    continue;
                }
                if read.is_none() && id.as_str().parse::<Digest>().is_err() {
                    tracing::error!(name, image = %id, "a name has no image behind it; it is dropped");
                    continue;
                }
                index.admit(root, &id, read);
            }
            // All names of an image share one string for its id.
            let id = index.images.get_key_value(&id).map_or(id, |(known, _)| known.clone());
            index.names.insert(name, id);
        }
        if found.names_rebuilt && writable {
            replace_file(&root.join("names.json"), &index.names_file(None))
                .map_err(could_not("write the names of", root))?;
        }
        Ok(index)
    }

    /// The bytes of the next `names.json`; if `boot` is set, of the next `names.unsettled.json`.
    pub(crate) fn names_file(&mut self, boot: Option<&str>) -> Vec<u8> {
        self.generation += 1;
        checksum::seal(&NamesFile {
            version: NAMES_VERSION,
            generation: self.generation,
            boot: boot.map(str::to_owned),
            names: self.names.clone(),
        })
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.names_unsettled || self.layers.values().any(|layer| layer.unsettled.is_some())
    }

    pub(crate) fn unsettled_layers(&self) -> Vec<LayerRecord> {
        self.layers.values().filter(|layer| layer.unsettled.is_some()).cloned().collect()
    }

    pub(crate) fn drop_unsettled(&mut self) -> Vec<LayerRecord> {
        let layers = self.unsettled_layers();
        for layer in &layers {
            self.layers.remove(&layer.diff_id);
        }
        let Self { names, images, layers: present, damaged, .. } = self;
        images.retain(|_, image| image.diff_ids().all(|layer| present.contains_key(layer)));
        for (name, id) in names.extract_if(.., |_, id| !images.contains_key(id) && !damaged.contains_key(id)) {
            tracing::error!(name, image = %id, "the disk refused to keep this image; it is dropped");
        }
        self.names_unsettled = false;
        layers
    }

    pub(crate) fn names_by_image(&self) -> HashMap<&ImageId, Vec<&str>> {
        let mut names: HashMap<&ImageId, Vec<&str>> = HashMap::with_capacity(self.images.len());
        for (name, id) in &self.names {
            names.entry(id).or_default().push(name);
        }
        names
    }

    pub(crate) fn names_of(&self, id: &ImageId) -> Vec<String> {
        self.names.iter().filter(|(_, named)| *named == id).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn resolve(&self, text: &str) -> Result<Option<ImageId>, RuntimeError> {
        let refused = |message: String| RuntimeError::new(RuntimeErrorKind::InvalidArgument, message);
        look_up(text, &NamedImages { names: &self.names, images: &self.images }).map_err(|error| match error {
            LookupError::Empty => refused(error.to_string()),
            LookupError::Ambiguous => refused(format!("`{text}` is the beginning of several image ids"))
                .with_hint("write more digits of the id"),
        })
    }

    pub(crate) fn resolve_damaged(&self, text: &str) -> Option<ImageId> {
        look_up(text, &NamedImages { names: &self.names, images: &self.damaged }).ok().flatten()
    }

    fn is_known(&self, id: &ImageId) -> bool {
        self.images.contains_key(id) || self.damaged.contains_key(id)
    }

    /// The whole and damaged layers that no pull and no image needs. A damaged image needs its layers for a repair.
    pub(crate) fn unneeded_layers(&self) -> Vec<Digest> {
        let damaged = self.damaged.values().flat_map(|image| &image.layers);
        let needed: HashSet<&Digest> = self.images.values().flat_map(ImageRecord::diff_ids).chain(damaged).collect();
        let layers = self.layers.keys().chain(self.marked.keys());
        let unneeded = layers.filter(|layer| !needed.contains(*layer) && !self.unfinished.leases.contains_key(*layer));
        unneeded.cloned().collect()
    }

    pub(crate) fn is_written_in(&self, file: &[u8]) -> bool {
        // Until the background sync, the file has the previous durable names.
        self.is_unsettled() || checksum::open::<NamesFile>(file).is_ok_and(|file| file.names == self.names)
    }

    /// Removes the images without a name. Runs only after the names are on the disk, because their write may fail.
    pub(crate) fn remove_unreferenced(&mut self) {
        let named: BTreeSet<&ImageId> = self.names.values().collect();
        self.images.retain(|id, _| named.contains(id));
        self.damaged.retain(|id, _| named.contains(id));
    }
}

struct NamedImages<'a, T> {
    names: &'a BTreeMap<String, ImageId>,
    images: &'a BTreeMap<ImageId, T>,
}

impl<T> ImageNames for NamedImages<'_, T> {
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

/// Rejects a store that a newer version has written, because this process could damage the store.
pub(crate) fn refuse_newer(root: &Path) -> Result<(), RuntimeError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: serde_json::Number,
    }
    // A damaged names file is reported later, when the names are loaded.
    let Ok(Versioned { version }) = read_json(&root.join("names.json")) else { return Ok(()) };
    if version.as_u64().is_some_and(|version| version <= NAMES_VERSION.into()) {
        return Ok(());
    }
    let message = format!("the store `{}` was written by a newer imagelet (format {version})", root.display());
    Err(RuntimeError::new(RuntimeErrorKind::Unavailable, message)
        .with_hint("use that version, or name another place with --store DIR"))
}

fn load_names(
    root: &Path,
    images: &[(Digest, ReadRecord<ImageRecord>)],
    writable: bool,
) -> Result<(NamesFile, bool), RuntimeError> {
    let path = root.join("names.json");
    let records = images.iter().filter_map(|(_, read)| match read {
        Ok(record) | Err((Some(record), _)) => Some(record),
        Err((None, _)) => None,
    });
    let error = match read_json::<NamesFile>(&path) {
        Ok(file) => return Ok((file, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && records.clone().next().is_none() => {
            return Ok((NamesFile::default(), false));
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => error,
        Err(error) => return Err(could_not("read", &path)(error)),
    };
    if writable && error.kind() == io::ErrorKind::InvalidData {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let aside = root.join(format!("names.json.corrupt-{}", since.as_nanos()));
        tracing::error!(%error, aside = %aside.display(), "the names file is damaged; it is set aside and rebuilt from the image records");
        fs::rename(&path, &aside).map_err(could_not("set aside", &path))?;
        failpoint!("open.set-aside");
    }
    let rebuilt = records.flat_map(|record| record.names.iter().map(|name| (name.clone(), record.image_id())));
    Ok((NamesFile { names: rebuilt.collect(), ..NamesFile::default() }, true))
}

/// The unsynced names, if they are of this boot and newer than `generation`. A damaged file counts as missing.
fn load_unsettled(root: &Path, boot: Option<&str>, generation: u64) -> Option<NamesFile> {
    let file = read_json::<NamesFile>(&root.join(NAMES_UNSETTLED)).ok()?;
    let holds = file.version == NAMES_VERSION && file.boot.is_some() && file.boot.as_deref() == boot;
    (holds && file.generation > generation).then_some(file)
}
