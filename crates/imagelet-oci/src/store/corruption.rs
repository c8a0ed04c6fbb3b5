//! What damage leads to: the image is not shown any more, its names are kept, and a repair or a pull brings it back.
//!
//! A file `damaged` in the folder of a layer or image forbids its use, across restarts. A marked layer counts as
//! absent, so that a commit replaces it; its folder stays until then, because a mount may still show it. An image that
//! lacks a layer, or is marked itself, keeps its names and its other layers.

use std::{
    fs, io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use imagelet_core::{
    image::{Digest, ImageId},
    runtime::RuntimeError,
};

use super::{
    Store,
    files::durable::replace_file,
    index::{
        DamagedImage, Index,
        load::{MARK, Mark},
    },
    record::{ImageRecord, checksum},
    storage_error,
    verify::{Finding, Findings},
};
use crate::manifest::{CONFIG_BYTES_MAX, ImageConfig};

impl Index {
    /// Adds an image as whole or as damaged, depending on the layers present.
    pub(crate) fn admit(
        &mut self,
        root: &Path,
        id: &ImageId,
        record: Option<ImageRecord>,
        documents: Option<Findings>,
    ) {
        let image = match record {
            Some(record) if documents.is_none() && self.lacking(&record).is_none() => {
                self.images.insert(id.clone(), record);
                return;
            }
            Some(record) => DamagedImage { layers: record.diff_ids(), record: Some(record), documents },
            None => {
                let missing = || Findings::of("image.json", "missing", "the image's folder is missing");
                let documents = Some(documents.unwrap_or_else(missing));
                DamagedImage { layers: layers_by_config(root, id), record: None, documents }
            }
        };
        self.drop_from_sight(id, image);
    }

    pub(crate) fn lacking(&self, record: &ImageRecord) -> Option<Digest> {
        record.diff_ids().into_iter().find(|layer| !self.layers.contains_key(layer))
    }

    fn retire_layer(&mut self, layer: &Digest, findings: Findings) {
        self.layers.remove(layer);
        self.marked.insert(layer.clone(), findings);
        let lacking = self.images.iter().filter(|(_, record)| record.diff_ids().contains(layer));
        let lacking: Vec<ImageId> = lacking.map(|(id, _)| id.clone()).collect();
        for id in lacking {
            if let Some(record) = self.images.remove(&id) {
                let image = DamagedImage { layers: record.diff_ids(), record: Some(record), documents: None };
                self.drop_from_sight(&id, image);
            }
        }
    }

    fn drop_from_sight(&mut self, id: &ImageId, image: DamagedImage) {
        const HOW: &str = "an image is damaged and not listed until it is repaired or pulled again";
        let told = |layer: &str, finding: &Finding| {
            tracing::error!(image = %id, layer, path = finding.path, reason = finding.detail, "{HOW}");
        };
        if let Some(finding) = image.documents.as_ref().and_then(|findings| findings.first.first()) {
            told("-", finding);
        }
        for layer in image.layers.iter().filter(|layer| !self.layers.contains_key(*layer)) {
            if let Some(finding) = self.marked.get(layer).and_then(|findings| findings.first.first()) {
                told(layer.as_str(), finding);
            } else {
                tracing::error!(image = %id, %layer, reason = "the layer is missing", "{HOW}");
            }
        }
        self.damaged.insert(id.clone(), image);
    }

    pub(crate) fn restore_whole(&mut self) {
        let whole = self.damaged.iter().filter_map(|(id, image)| {
            let record = image.record.as_ref().filter(|_| image.documents.is_none())?;
            self.lacking(record).is_none().then(|| (id.clone(), record.clone()))
        });
        let whole: Vec<(ImageId, ImageRecord)> = whole.collect();
        for (id, record) in whole {
            tracing::info!(image = %id, "a damaged image is whole again");
            self.damaged.remove(&id);
            self.images.insert(id, record);
        }
    }
}

impl Store {
    pub(crate) fn damaged_images(&self) -> Vec<(ImageId, DamagedImage, Vec<String>)> {
        let index = self.index();
        index.damaged.iter().map(|(id, image)| (id.clone(), image.clone(), index.names_of(id))).collect()
    }

    pub(crate) fn marked(&self, layer: &Digest) -> Option<Findings> {
        self.index().marked.get(layer).cloned()
    }

    /// Absent layers that have a folder, which a commit moves aside.
    pub(crate) fn replaced_by(&self, layers: &[Digest]) -> Vec<Digest> {
        let index = self.index();
        let absent = layers.iter().filter(|layer| !index.layers.contains_key(*layer));
        absent.filter(|layer| self.layer_folder(layer).exists()).cloned().collect()
    }

    /// Marks a layer as damaged; it counts as absent, and no image that needs it is shown.
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
        let image = DamagedImage { layers: record.diff_ids(), record: Some(record), documents: Some(findings.clone()) };
        index.drop_from_sight(id, image);
        written
    }

    pub(crate) fn restore_names(&self) -> Result<(), RuntimeError> {
        self.check_writable()?;
        // The file must not name unsynced content.
        self.sync_background()?;
        let mut index = self.index();
        replace_file(&self.root.join("names.json"), &index.names_file())
            .map_err(|error| storage_error("could not write the store's names", error))
    }
}

fn write_mark(folder: &Path, findings: &Findings) -> Result<(), RuntimeError> {
    let found_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mark = checksum::seal(&Mark { found_at, findings: findings.clone() });
    match replace_file(&folder.join(MARK), &mark) {
        // A missing folder is absent without a mark.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|error| storage_error(format!("could not mark `{}`", folder.display()), error)),
    }
}

/// The layers of an image whose record is lost, from its configuration: the image's id is that file's digest.
fn layers_by_config(root: &Path, id: &ImageId) -> Vec<Digest> {
    let path = root.join("images").join(super::record::hex(id)).join("config.json");
    let is_small = fs::metadata(&path).is_ok_and(|metadata| metadata.len() <= CONFIG_BYTES_MAX);
    let bytes = if is_small { fs::read(&path).unwrap_or_default() } else { Vec::new() };
    if Digest::of(&bytes).as_str() != id.as_str() {
        return Vec::new();
    }
    ImageConfig::parse(&bytes).map(|config| config.diff_ids).unwrap_or_default()
}
