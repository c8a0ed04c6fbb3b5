//! The images of `docker save`: `manifest.json` names configurations and layers. The OCI manifests are made here.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::{Read as _, Seek as _, SeekFrom},
    sync::{Arc, atomic::AtomicBool},
};

use bytes::Bytes;
use imagelet_core::{
    error::RuntimeError,
    image::{ByteSize, Digest, DigestAlgorithm, counted},
};
use serde::Deserialize;
use serde_json::json;

use super::{
    ArchiveFiles, ArchivedImage, NAMES_MAX, check_cancelled,
    files::{FileId, FoundFile, read_small},
    spool::Packing,
};
use crate::{
    hash::Hash,
    manifest::{
        Bounded, CONFIG_BYTES_MAX, Descriptor, INDEX_ENTRIES_MAX, ImageConfig, LAYERS_MAX, MANIFEST_BYTES_MAX, corrupt,
        list, printable, unacceptable,
    },
    store::storage_error,
};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const LIST_BYTES_MAX: u64 = MANIFEST_BYTES_MAX;
const MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG_TYPE: &str = "application/vnd.docker.container.image.v1+json";
const LAYER_TYPE: &str = "application/vnd.docker.image.rootfs.diff.tar";
const LAYER_TYPE_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const LAYER_TYPE_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";
/// Maximum bytes of all manifests made for one archive. A short list can name the same layers many times.
const MADE_BYTES_MAX: usize = 16 << 20;
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
    pub(super) places: HashMap<Digest, String>,
    pub(super) made: HashMap<Digest, Bytes>,
    made_bytes: usize,
    /// The configurations and layers already read, by file. Each file is read once, even if many names lead to it.
    configs: HashMap<FileId, Arc<ReadConfig>>,
    layers: HashMap<FileId, ReadLayer>,
}

struct ReadConfig {
    digest: Digest,
    size: usize,
    diff_ids: Vec<Digest>,
}

#[derive(Clone)]
struct ReadLayer {
    /// The digest of a compressed layer; `None` for an uncompressed layer, whose diff-id is its digest.
    digest: Option<Digest>,
    size: u64,
    packing: Packing,
}

pub(super) fn images(
    files: &ArchiveFiles,
    bytes: &[u8],
    cancelled: &AtomicBool,
) -> Result<DockerArchive, RuntimeError> {
    let saved: Bounded<SavedImage, INDEX_ENTRIES_MAX> =
        list(bytes).map_err(|error| corrupt("`manifest.json` cannot be read").caused_by(error))?;
    let saved = saved.all("archive", "images")?;
    if saved.is_empty() {
        return Err(corrupt("`manifest.json` lists no image"));
    }
    let mut archive = DockerArchive::default();
    for image in saved {
        archive.add(files, image, cancelled)?;
    }
    Ok(archive)
}

impl DockerArchive {
    fn add(&mut self, files: &ArchiveFiles, saved: SavedImage, cancelled: &AtomicBool) -> Result<(), RuntimeError> {
        let SavedImage { config: config_name, repo_tags, layers } = saved;
        let names = repo_tags.unwrap_or_default().all("image", "names")?;
        let layers = layers.unwrap_or_default().all("image", "layers")?;
        let config = self.config(files, &config_name)?;
        check_name(&config_name, &config.digest)?;
        if layers.len() != config.diff_ids.len() {
            let (layers, diff_ids) = (layers.len(), config.diff_ids.len());
            return Err(corrupt(format!(
                "`manifest.json` lists {} of an image and its configuration {diff_ids}",
                counted(layers, "layer")
            )));
        }
        let mut described = Vec::new();
        for (name, diff_id) in layers.into_iter().zip(&config.diff_ids) {
            let ReadLayer { digest, size, packing } = self.layer(files, &name, cancelled)?;
            let digest = digest.unwrap_or_else(|| diff_id.clone());
            let media_type = match packing {
                Packing::Plain => LAYER_TYPE,
                Packing::Gzip => LAYER_TYPE_GZIP,
                Packing::Zstd => LAYER_TYPE_ZSTD,
            };
            described.push(json!({"mediaType": media_type, "size": size, "digest": digest.as_str()}));
            self.places.insert(digest, name);
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "size": config.size, "digest": config.digest.as_str()},
            "layers": described,
        });
        let manifest = Bytes::from(manifest.to_string());
        self.made_bytes += manifest.len();
        if self.made_bytes > MADE_BYTES_MAX {
            let limit = ByteSize(MADE_BYTES_MAX as u64);
            return Err(unacceptable(format!("manifests of more than {limit} describe its images")));
        }
        let (digest, size) = (Digest::of(&manifest), manifest.len() as u64);
        self.places.insert(config.digest.clone(), config_name);
        self.made.insert(digest.clone(), manifest);
        let root = Descriptor::new(MANIFEST_TYPE, digest, size);
        match self.images.iter_mut().find(|image| !names.is_empty() && image.names == names) {
            // As in Docker, the last image with a name gets the name.
            Some(image) => image.roots.insert(0, root),
            None => self.images.push(ArchivedImage { names, roots: vec![root] }),
        }
        Ok(())
    }

    fn config(&mut self, files: &ArchiveFiles, name: &str) -> Result<Arc<ReadConfig>, RuntimeError> {
        let found = files.find(name)?.ok_or_else(|| lacks(name))?;
        let id = found.id;
        if let Some(config) = self.configs.get(&id) {
            return Ok(Arc::clone(config));
        }
        files.count(&found);
        let bytes = read_small(found, name, CONFIG_BYTES_MAX)?;
        let (digest, diff_ids) = (Digest::of(&bytes), ImageConfig::parse(&bytes)?.diff_ids);
        let config = Arc::new(ReadConfig { digest, size: bytes.len(), diff_ids });
        self.configs.insert(id, Arc::clone(&config));
        Ok(config)
    }

    fn layer(&mut self, files: &ArchiveFiles, name: &str, cancelled: &AtomicBool) -> Result<ReadLayer, RuntimeError> {
        check_cancelled(cancelled)?;
        let found = files.find(name)?.ok_or_else(|| lacks(name))?;
        let id = found.id;
        Ok(match self.layers.entry(id) {
            Entry::Occupied(layer) => layer.get().clone(),
            Entry::Vacant(place) => {
                files.count(&found);
                place.insert(read_layer(found, name, cancelled)?).clone()
            }
        })
    }
}

fn read_layer(found: FoundFile, name: &str, cancelled: &AtomicBool) -> Result<ReadLayer, RuntimeError> {
    let FoundFile { mut file, size, .. } = found;
    let failed = |error| storage_error(format!("could not read `{}` of the archive", printable(name)), error);
    let start = file.stream_position().map_err(failed)?;
    let packing = Packing::of(&format!("layer `{}`", printable(name)), (&mut file).take(size))?;
    if packing == Packing::Plain {
        return Ok(ReadLayer { digest: None, size, packing });
    }
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    let (mut file, mut hash) = (file.take(size), Hash::new(DigestAlgorithm::Sha256));
    let mut buffer = vec![0; COPY_BUFFER];
    loop {
        check_cancelled(cancelled)?;
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(ReadLayer { digest: Some(hash.finish()), size, packing }),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Checks a configuration whose file name is 64 digits: the digits must be its digest.
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use imagelet_core::error::RuntimeErrorKind;

    use super::*;

    const LAYERS: usize = 50;
    const IMAGES: usize = 40;

    /// A folder with one compressed layer under the names `0` to `99`, and one configuration of `LAYERS` layers.
    fn saved(folder: &Path) -> ArchiveFiles {
        let blob = [vec![0x1f, 0x8b], vec![7; 64 << 10]].concat();
        fs::write(folder.join("0"), blob).expect("written");
        for name in 1..100 {
            let link = folder.join(name.to_string());
            if name % 2 == 0 {
                fs::hard_link(folder.join("0"), link).expect("linked");
            } else {
                std::os::unix::fs::symlink("0", link).expect("linked");
            }
        }
        let diff_ids: Vec<String> =
            (0..LAYERS).map(|layer: usize| Digest::of(&layer.to_le_bytes()).to_string()).collect();
        let config =
            json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        fs::write(folder.join("config"), config.to_string()).expect("written");
        ArchiveFiles::of_folder(folder).expect("a folder")
    }

    fn list_of(images: usize) -> Vec<u8> {
        let image = |image: usize| {
            let names = (0..LAYERS).map(|layer| ((image + layer) % 100).to_string());
            json!({"Config": "config", "RepoTags": [format!("a:v{image}")], "Layers": names.collect::<Vec<_>>()})
        };
        json!((0..images).map(image).collect::<Vec<_>>()).to_string().into_bytes()
    }

    #[test]
    fn each_file_of_an_archive_is_read_once_whatever_number_of_names_and_images_lead_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = saved(folder.path());
        let archive = images(&files, &list_of(IMAGES), &AtomicBool::new(false)).expect("an archive");
        assert_eq!(archive.images.len(), IMAGES);
        let size = |name: &str| fs::metadata(folder.path().join(name)).expect("a file").len();
        assert_eq!(files.reads().0, size("0") + size("config"));
    }

    #[test]
    fn the_layers_of_an_archive_are_not_hashed_for_a_client_that_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = saved(folder.path());
        let cancelled = AtomicBool::new(true);
        let error = images(&files, &list_of(1), &cancelled).err().expect("it ends");
        assert_eq!(error.kind(), RuntimeErrorKind::Cancelled);
        let found = files.find("0").expect("no failure").expect("a file");
        let error = read_layer(found, "0", &cancelled).err().expect("it ends");
        assert_eq!(error.kind(), RuntimeErrorKind::Cancelled);
    }

    #[test]
    fn a_list_whose_manifests_are_far_larger_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = saved(folder.path());
        let diff_ids = vec![Digest::of(b"").to_string(); LAYERS_MAX];
        let config =
            json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        fs::write(folder.path().join("config"), config.to_string()).expect("written");
        let image = json!({"Config": "config", "Layers": vec!["0"; LAYERS_MAX]});
        let list = json!(vec![image; INDEX_ENTRIES_MAX]).to_string();
        let error = images(&files, list.as_bytes(), &AtomicBool::new(false)).err().expect("too much");
        assert!(error.chain().contains("more than 16.8MB"), "{}", error.chain());
    }
}
