//! The images of `docker save`: its `manifest.json` names a configuration and layers; the manifests are made here.

use std::{collections::HashMap, io::Read as _};

use bytes::Bytes;
use imagelet_core::{
    image::{Digest, DigestAlgorithm},
    runtime::RuntimeError,
};
use serde::Deserialize;
use serde_json::json;

use super::{ArchiveFiles, ArchivedImage, NAMES_MAX};
use crate::{
    hash::Hash,
    manifest::{
        Bounded, CONFIG_BYTES_MAX, Descriptor, INDEX_ENTRIES_MAX, ImageConfig, LAYERS_MAX, MANIFEST_BYTES_MAX, corrupt,
        list, printable,
    },
    store::storage_error,
};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const LIST_BYTES_MAX: u64 = MANIFEST_BYTES_MAX;
const MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG_TYPE: &str = "application/vnd.docker.container.image.v1+json";
const LAYER_TYPE: &str = "application/vnd.docker.image.rootfs.diff.tar";
const COPY_BUFFER: usize = 256 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    repo_tags: Option<Bounded<String, NAMES_MAX>>,
    layers: Option<Bounded<String, LAYERS_MAX>>,
}

#[derive(Default)]
pub(super) struct DockerArchive {
    pub(super) images: Vec<ArchivedImage>,
    /// ArchiveFiles by the digest of their bytes.
    pub(super) places: HashMap<Digest, String>,
    /// The manifests.
    pub(super) made: HashMap<Digest, Bytes>,
}

pub(super) fn images(files: &ArchiveFiles, bytes: &[u8]) -> Result<DockerArchive, RuntimeError> {
    let saved: Bounded<SavedImage, INDEX_ENTRIES_MAX> =
        list(bytes).map_err(|error| corrupt("`manifest.json` cannot be read").caused_by(error))?;
    let saved = saved.all("archive", "images")?;
    if saved.is_empty() {
        return Err(corrupt("`manifest.json` lists no image"));
    }
    let mut archive = DockerArchive::default();
    for image in saved {
        archive.add(files, image)?;
    }
    Ok(archive)
}

impl DockerArchive {
    fn add(&mut self, files: &ArchiveFiles, saved: SavedImage) -> Result<(), RuntimeError> {
        let SavedImage { config: config_name, repo_tags, layers } = saved;
        let names = repo_tags.unwrap_or_default().all("image", "names")?;
        let layers = layers.unwrap_or_default().all("image", "layers")?;
        let config = files.read(&config_name, CONFIG_BYTES_MAX)?.ok_or_else(|| lacks(&config_name))?;
        let config_digest = Digest::of(&config);
        check_name(&config_name, &config_digest)?;
        let diff_ids = ImageConfig::parse(&config)?.diff_ids;
        if layers.len() != diff_ids.len() {
            let (layers, diff_ids) = (layers.len(), diff_ids.len());
            return Err(corrupt(format!(
                "`manifest.json` lists {layers} layers of an image and its configuration {diff_ids}"
            )));
        }
        let mut described = Vec::new();
        for (layer, diff_id) in layers.into_iter().zip(diff_ids) {
            let (digest, size, suffix) = describe(files, &layer, diff_id)?;
            described
                .push(json!({"mediaType": format!("{LAYER_TYPE}{suffix}"), "size": size, "digest": digest.as_str()}));
            self.places.insert(digest, layer);
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "size": config.len(), "digest": config_digest.as_str()},
            "layers": described,
        });
        let manifest = Bytes::from(manifest.to_string());
        let (digest, size) = (Digest::of(&manifest), manifest.len() as u64);
        self.places.insert(config_digest, config_name);
        self.made.insert(digest.clone(), manifest);
        let root = Descriptor { media_type: MANIFEST_TYPE.into(), digest, size, platform: None, annotations: None };
        self.images.push(ArchivedImage { names, roots: vec![root] });
        Ok(())
    }
}

/// Digest and size of a layer's file, and the suffix of its media type. A plain layer has its diff-id as digest.
fn describe(files: &ArchiveFiles, name: &str, diff_id: Digest) -> Result<(Digest, u64, &'static str), RuntimeError> {
    let (file, size) = files.open(name)?.ok_or_else(|| lacks(name))?;
    let failed = |error| storage_error(format!("could not read `{}` of the archive", printable(name)), error);
    let (mut file, mut magic) = (file.take(size), Vec::new());
    file.by_ref().take(4).read_to_end(&mut magic).map_err(failed)?;
    let suffix = match &magic[..] {
        [0x1f, 0x8b, ..] => ".gzip",
        [0x28, 0xb5, 0x2f, 0xfd] => ".zstd",
        _ => return Ok((diff_id, size, "")),
    };
    let mut hash = Hash::new(DigestAlgorithm::Sha256);
    hash.update(&magic);
    let mut buffer = vec![0; COPY_BUFFER];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok((hash.finish(), size, suffix)),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// A configuration named by 64 digits has that digest.
fn check_name(name: &str, digest: &Digest) -> Result<(), RuntimeError> {
    let stem = name.rsplit('/').next().unwrap_or_default();
    let stem = stem.strip_suffix(".json").unwrap_or(stem);
    if format!("sha256:{stem}").parse::<Digest>().is_ok_and(|named| named != *digest) {
        return Err(corrupt(format!("the configuration `{}` of the archive is `{digest}`", printable(name))));
    }
    Ok(())
}

fn lacks(name: &str) -> RuntimeError {
    corrupt(format!("`manifest.json` names `{}`, which the archive does not have", printable(name)))
}
