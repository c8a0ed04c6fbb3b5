//! Hides a damaged image but keeps its names. A repair or a pull restores the image.
//!
//! The file `damaged` marks the folder of a layer or image: its content is not used, also after a restart. A marked
//! layer counts as absent, so a commit replaces it. Until that commit its folder stays, because a mount may use it. A
//! marked image, or an image without all its layers, keeps its names and its undamaged layers.

use std::{io, path::Path};

use imagelet_core::{
    error::RuntimeError,
    image::{Digest, ImageId},
    ports::Findings,
};

use super::{
    Store, could_not,
    files::durable::replace_file,
    index::{
        DamagedImage, Index, StoredImage,
        load::{MARK, ReadRecord, open_regular, read_whole},
    },
    record::{ImageRecord, checksum},
};
use crate::{
    hash::Hash,
    manifest::{ImageConfig, ManifestDocument},
};

impl Index {
    pub(crate) fn admit(&mut self, root: &Path, id: &ImageId, read: Option<ReadRecord<ImageRecord>>) {
        let lost =
            |findings| DamagedImage { layers: layers_by_config(root, id), record: None, documents: Some(findings) };
        let image = match read {
            Some(Ok(record)) if self.missing_layer(&record).is_none() => {
                self.images.insert(id.clone(), record);
                return;
            }
            Some(Ok(record)) => DamagedImage::new(record, None),
            Some(Err((Some(record), findings))) => DamagedImage::new(record, Some(findings)),
            Some(Err((None, findings))) => lost(findings),
            None => lost(Findings::of("image.json", "missing", "the image's folder is missing")),
        };
        self.hide(id, image);
    }

    pub(crate) fn missing_layer(&self, record: &ImageRecord) -> Option<Digest> {
        record.diff_ids().find(|layer| !self.layers.contains_key(*layer)).cloned()
    }

    fn retire_layer(&mut self, layer: &Digest, findings: Findings) {
        self.layers.remove(layer);
        self.marked.insert(layer.clone(), findings);
        for (id, record) in
            self.images.extract_if(.., |_, record| record.diff_ids().any(|other| other == layer)).collect::<Vec<_>>()
        {
            self.hide(&id, DamagedImage::new(record, None));
        }
    }

    fn hide(&mut self, id: &ImageId, image: DamagedImage) {
        let log = |layer: &str, findings: Option<&Findings>| {
            let finding = findings.and_then(|findings| findings.first.first());
            let (path, reason) =
                finding.map_or(("", "the layer is missing"), |finding| (&finding.path, &finding.detail));
            tracing::error!(image = %id, layer, path, reason, "an image is damaged and not listed until it is repaired or pulled again");
        };
        if image.documents.is_some() {
            log("-", image.documents.as_ref());
        }
        for layer in image.layers.iter().filter(|layer| !self.layers.contains_key(*layer)) {
            log(layer.as_str(), self.marked.get(layer));
        }
        self.damaged.insert(id.clone(), image);
    }

    pub(crate) fn restore_whole(&mut self) {
        let Self { images, layers, damaged, .. } = self;
        let has_layers = |record: &ImageRecord| record.diff_ids().all(|layer| layers.contains_key(layer));
        let is_whole =
            |image: &DamagedImage| image.documents.is_none() && image.record.as_ref().is_some_and(has_layers);
        for (id, image) in damaged.extract_if(.., |_, image| is_whole(image)) {
            tracing::info!(image = %id, "a damaged image is whole again");
            images.extend(image.record.map(|record| (id, record)));
        }
    }
}

impl Store {
    pub(crate) fn all_images(&self) -> Vec<StoredImage> {
        let index = self.index();
        let names = index.names_by_image();
        let names_of = |id| names.get(id).into_iter().flatten().map(|name| (*name).to_owned()).collect();
        let whole = index.images.iter().map(|(id, record)| (id, false, DamagedImage::new(record.clone(), None)));
        let damaged = index.damaged.iter().map(|(id, image)| (id, true, image.clone()));
        let stored =
            |(id, is_damaged, image)| StoredImage { id: ImageId::clone(id), names: names_of(id), is_damaged, image };
        whole.chain(damaged).map(stored).collect()
    }

    pub(crate) fn damaged_images(&self) -> impl Iterator<Item = StoredImage> {
        self.all_images().into_iter().filter(|image| image.is_damaged)
    }

    pub(crate) fn marked(&self, layer: &Digest) -> Option<Findings> {
        self.index().marked.get(layer).cloned()
    }

    /// The layers that have a folder but count as absent. A commit moves this folder to the trash.
    pub(crate) fn replaced_by(&self, layers: &[Digest]) -> Vec<Digest> {
        let index = self.index();
        let absent = layers.iter().filter(|layer| !index.layers.contains_key(*layer));
        absent.filter(|layer| self.layer_folder(layer).exists()).cloned().collect()
    }

    /// The layer then counts as absent, and its images are hidden.
    pub(crate) fn mark_layer(&self, layer: &Digest, findings: &Findings) -> Result<(), RuntimeError> {
        let mut index = self.index();
        if !index.layers.contains_key(layer) {
            return Ok(());
        }
        let written = write_mark(&self.layer_folder(layer), findings);
        index.retire_layer(layer, findings.clone());
        written
    }

    pub(crate) fn mark_image(&self, id: &ImageId, findings: &Findings) -> Result<(), RuntimeError> {
        let mut index = self.index();
        let Some(record) = index.images.remove(id) else { return Ok(()) };
        let written = write_mark(&self.image_folder(id), findings);
        index.hide(id, DamagedImage::new(record, Some(findings.clone())));
        written
    }

    pub(crate) fn restore_names(&self) -> Result<(), RuntimeError> {
        self.check_writable()?;
        // `names.json` must name only synced content.
        self.sync_background()?;
        self.replace_names(&mut self.index()).map_err(could_not("write the names of", &self.root))
    }
}

fn write_mark(folder: &Path, findings: &Findings) -> Result<(), RuntimeError> {
    match replace_file(&folder.join(MARK), &checksum::seal(findings)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(could_not("mark", folder)),
    }
}

/// The layers of an image whose record is lost. The source is the document whose digest is the image's id: an image's
/// configuration or an artifact's manifest.
fn layers_by_config(root: &Path, id: &ImageId) -> Vec<Digest> {
    let Ok(wanted) = id.as_str().parse::<Digest>() else { return Vec::new() };
    let folder = root.join("images").join(super::record::hex(id));
    let read = |name: &str| {
        let bytes = open_regular(&folder.join(name)).and_then(read_whole).ok();
        bytes.filter(|bytes| Hash::matches(&wanted, bytes))
    };
    let config = match (read("config.json"), read("manifest.json")) {
        (Some(config), _) => ImageConfig::parse(&config).ok(),
        (None, Some(manifest)) => match ManifestDocument::parse(&manifest, "") {
            Ok(ManifestDocument::Image(manifest)) => manifest.read_config(&[]).ok(),
            _ => None,
        },
        (None, None) => None,
    };
    config.map(|config| config.diff_ids).unwrap_or_default()
}
