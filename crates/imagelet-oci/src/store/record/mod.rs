//! The records on the disk: of an image, of a layer, and of a spare layer.

pub(super) mod checksum;
pub(super) mod folder_usage;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs, io,
    path::Path,
};

use imagelet_core::{
    image::{Artifact, Digest, ImageId},
    ports::{PulledLayer, PulledManifest},
};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::{Deserialize, Serialize};

use crate::unpack::DiskUsage;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub id: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Digest>,
    #[serde(flatten)]
    pub pulled: PulledManifest,
    pub metadata_size: u64,
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub allocated: DiskUsage,
    /// The image's first names, to rebuild a lost `names.json`.
    #[serde(default)]
    pub names: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub(crate) enum LayerEnd {
    /// The layer stays in the store, with a manifest of its files.
    #[default]
    Store,
    /// The layer leaves the store for a sink, which needs the tree exactly as in the archive.
    Sink,
}

impl From<bool> for LayerEnd {
    fn from(for_sink: bool) -> Self {
        if for_sink { Self::Sink } else { Self::Store }
    }
}

impl From<LayerEnd> for bool {
    fn from(end: LayerEnd) -> Self {
        end == LayerEnd::Sink
    }
}

/// The content of `layers/HEX/layer.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub diff_id: Digest,
    pub entries: u64,
    pub disk_bytes: u64,
    /// Disk usage of the layer's folder, including this record. Zero for a sink's layer.
    #[serde(default)]
    pub allocated: DiskUsage,
    /// Whether the layer hides all lower layers. A mount omits them, because overlayfs ignores a root's opaque mark.
    #[serde(default)]
    pub root_opaque: bool,
    /// The id of the only boot that may use the layer, because the layer is not synced; `None` if the layer is durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<String>,
    /// A sink's layer stays in `tmp/` until the sink takes it.
    #[serde(default, rename = "for_sink")]
    pub end: LayerEnd,
    /// Digests of the other files in the layer's folder.
    #[serde(default)]
    pub sums: BTreeMap<String, Digest>,
}

impl LayerRecord {
    pub(super) fn measured(self, folder: &Path, tree: Option<DiskUsage>) -> io::Result<Self> {
        let tree = tree.map(|usage| (TREE, usage));
        let allocated = usage_with(folder, tree, &Self { allocated: DiskUsage::MAX, ..self.clone() })?;
        Ok(Self { disk_bytes: allocated.bytes, allocated, ..self })
    }
}

impl ImageRecord {
    pub(super) fn measured(self, folder: &Path) -> io::Result<Self> {
        let allocated = usage_with(folder, None, &Self { allocated: DiskUsage::MAX, ..self.clone() })?;
        Ok(Self { allocated, ..self })
    }

    pub(crate) fn image_id(&self) -> ImageId {
        ImageId::new(self.id.as_str())
    }

    pub(crate) fn artifact(&self) -> Option<Artifact> {
        let kind = self.pulled.artifact.as_ref()?.kind.clone();
        // Entries with the same blob and name are one file.
        let files = self.diff_ids().collect::<BTreeSet<_>>().len() as u64;
        Some(Artifact { kind, manifest: self.pulled.digest.clone(), files })
    }

    pub(crate) fn config(&self) -> &Digest {
        self.pulled.artifact.as_ref().map_or(&self.id, |artifact| &artifact.config)
    }

    pub(crate) fn documents(&self) -> impl Iterator<Item = (&'static str, &Digest)> {
        let index = self.index.as_ref().map(|index| ("index.json", index));
        [("manifest.json", &self.pulled.digest), ("config.json", self.config())].into_iter().chain(index)
    }

    pub(crate) fn diff_ids(&self) -> impl Iterator<Item = &Digest> {
        self.pulled.layers.iter().map(|layer| &layer.diff_id)
    }
}

pub(crate) const TREE: &str = "fs";

fn usage_with(folder: &Path, known: Option<(&str, DiskUsage)>, record: &impl Serialize) -> io::Result<DiskUsage> {
    folder_usage::measure(folder, known)?.with_file(folder, checksum::seal(record).len())
}

pub(super) const SPARE_RECORD: &str = "spare.json";

/// The content of `spare.json`, which is beside the `layer.json` of a spare layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SpareRecord {
    /// Only this boot may use the layer, because the layer is not synced.
    pub(crate) boot: String,
    pub(crate) repository: String,
    pub(crate) entry: PulledLayer,
}

/// The hex digits of an id, for a path. An invalid id becomes `none`, so that it cannot lead out of the folder.
pub(super) fn hex(id: &ImageId) -> String {
    id.as_str().parse().map_or_else(|_| "none".to_owned(), |digest: Digest| digest.hex().to_owned())
}

const PATH_ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

pub(crate) fn write_implicit(folder: &Path, paths: &[Vec<u8>]) -> io::Result<Digest> {
    let texts: Vec<String> = paths.iter().map(|path| percent_encode(path, PATH_ESCAPED).to_string()).collect();
    let bytes = serde_json::to_vec(&texts)?;
    fs::write(folder.join("implicit.json"), &bytes)?;
    Ok(Digest::of(&bytes))
}

pub(super) fn read_implicit(folder: &Path) -> io::Result<HashSet<Vec<u8>>> {
    let bytes = match fs::read(folder.join("implicit.json")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashSet::new()),
        Err(error) => return Err(error),
    };
    let texts: Vec<String> = serde_json::from_slice(&bytes)?;
    Ok(texts.iter().map(|text| percent_decode_str(text).collect()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn records_keep_the_form_of_the_first_release() {
        let digest = Digest::of(b"");
        let image = json!({
            "id": digest, "manifest": digest, "layers": [
                {"blob": digest, "size": 3538, "diff_id": digest, "media_type": "tar+gzip"},
                {"size": 0, "diff_id": digest, "media_type": "tar"},
            ], "metadata_size": 612, "user": "", "platform": "linux/amd64", "pulled_at": 1_795_731_710,
            "allocated": {"bytes": 16384, "inodes": 4}, "names": ["registry.example/app:v1"],
        });
        let mut artifact = image.clone();
        artifact["artifact"] = json!({"kind": "model", "config": Digest::of(b"{}")});
        artifact["index"] = json!(digest);
        for (written, config) in [(image, digest), (artifact, Digest::of(b"{}"))] {
            let record: ImageRecord = checksum::open(&checksum::seal(&written)).unwrap();
            assert_eq!((serde_json::to_value(&record).unwrap(), record.config()), (written, &config));
        }
        let mut layer = json!({"diff_id": Digest::of(b""), "entries": 7, "disk_bytes": 40960});
        for (for_sink, end) in [(Value::Null, LayerEnd::Store), (true.into(), LayerEnd::Sink)] {
            if !for_sink.is_null() {
                layer["for_sink"] = for_sink.clone();
            }
            let record: LayerRecord = serde_json::from_value(layer.clone()).unwrap();
            assert_eq!(record.end, end);
            assert_eq!(serde_json::to_value(&record).unwrap()["for_sink"], for_sink == true);
        }
    }
}
