//! Layers and images in the making, each part of which can be made to lie.

use std::{collections::BTreeMap, io::Write as _};

use imagelet_core::image::{Digest, DigestAlgorithm};
use serde_json::{Value, json};

use super::registry::Answer;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
/// What this machine is called.
pub(crate) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
/// What it is not.
pub(crate) const OTHER: &str = if cfg!(target_arch = "aarch64") { "amd64" } else { "arm64" };

/// A tar stream of some files.
pub(crate) fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_600_000_000);
        builder.append_data(&mut header, path, *bytes).expect("memory takes all");
    }
    builder.into_inner().expect("memory takes all")
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// One frame with its checksum.
pub(crate) fn zstd_frame(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("an encoder");
    encoder.include_checksum(true).expect("a checksum");
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// A frame that decoders skip.
pub(crate) fn zstd_skippable(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    [&[0x50 | number, 0x2a, 0x4d, 0x18], &length.to_le_bytes()[..], bytes].concat()
}

/// A frame written by hand: any window, blocks as they stand and blocks of one byte repeated.
pub(crate) struct ZstdFrame(Vec<u8>);

impl ZstdFrame {
    /// A frame with a window of 2^`log` bytes.
    pub(crate) fn window(log: u8) -> Self {
        Self(vec![0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3])
    }

    fn block(&mut self, last: bool, kind: u32, size: usize, bytes: &[u8]) {
        let header = u32::from(last) | kind << 1 | u32::try_from(size).expect("short") << 3;
        self.0.extend_from_slice(&header.to_le_bytes()[..3]);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        for part in bytes.chunks(1 << 17) {
            self.block(false, 0, part.len(), part);
        }
        self
    }

    /// `count` bytes of value `byte`, 128 KiB of them for four.
    pub(crate) fn run(mut self, byte: u8, mut count: usize) -> Self {
        while count > 0 {
            let part = count.min(1 << 17);
            self.block(false, 1, part, &[byte]);
            count -= part;
        }
        self
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.block(true, 0, 0, &[]);
        self.0
    }
}

/// Hashes with another algorithm than SHA-256.
pub(crate) fn digest_by(algorithm: DigestAlgorithm, bytes: &[u8]) -> String {
    use aws_lc_rs::digest::{SHA256, SHA384, SHA512, digest};
    let by = match algorithm {
        DigestAlgorithm::Sha256 => &SHA256,
        DigestAlgorithm::Sha384 => &SHA384,
        DigestAlgorithm::Sha512 => &SHA512,
    };
    Digest::from_hash(algorithm, digest(by, bytes).as_ref()).to_string()
}

/// A layer, what is said of it, and what comes when it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) diff_id: String,
    pub(crate) digest: String,
    descriptor: Value,
    served: Answer,
}

impl Layer {
    /// One file, packed with gzip.
    pub(crate) fn gzip(path: &str, bytes: &[u8]) -> Self {
        let tar = tar(&[(path, bytes)]);
        Self::packed(&format!("{TAR}+gzip"), gzip(&tar), &tar).holding(path, bytes)
    }

    /// A tar stream packed in any way, well or ill.
    pub(crate) fn packed(media_type: &str, blob: Vec<u8>, tar: &[u8]) -> Self {
        let digest = Digest::of(&blob).to_string();
        Self {
            files: BTreeMap::new(),
            diff_id: Digest::of(tar).to_string(),
            descriptor: json!({"mediaType": media_type, "digest": digest, "size": blob.len()}),
            digest,
            served: Answer::ok("application/octet-stream", blob),
        }
    }

    /// What shall stand in the unpacked layer.
    pub(crate) fn holding(mut self, path: &str, bytes: &[u8]) -> Self {
        self.files.insert(path.into(), bytes.into());
        self
    }

    pub(crate) fn described(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.descriptor);
        if let Some(digest) = self.descriptor["digest"].as_str() {
            self.digest = digest.to_owned();
        }
        self
    }

    pub(crate) fn diff_id(self, diff_id: &str) -> Self {
        Self { diff_id: diff_id.into(), ..self }
    }

    pub(crate) fn served(self, answer: Answer) -> Self {
        Self { served: answer, ..self }
    }

    pub(crate) fn serving(self, bytes: Vec<u8>) -> Self {
        self.served(Answer::ok("application/octet-stream", bytes))
    }
}

/// An image of layers, or an index over images.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) layers: Vec<Layer>,
    config: Vec<u8>,
    config_served: Option<Answer>,
    manifest: Vec<u8>,
    content_type: String,
    /// Documents served by digest besides the root.
    entries: Vec<(String, Answer)>,
}

impl Image {
    pub(crate) fn of(layers: impl IntoIterator<Item = Layer>) -> Self {
        let layers: Vec<Layer> = layers.into_iter().collect();
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let config = json!({
            "architecture": ARCHITECTURE,
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        Self {
            layers,
            config: Vec::new(),
            config_served: None,
            manifest: Vec::new(),
            content_type: MANIFEST.into(),
            entries: Vec::new(),
        }
        .with_config(config.to_string().into_bytes())
    }

    /// A good image that no other is.
    pub(crate) fn good(mark: &str) -> Self {
        Self::of([Layer::gzip("mark", mark.as_bytes())])
    }

    /// Changes the configuration; its digest follows.
    pub(crate) fn config(self, change: impl FnOnce(&mut Value)) -> Self {
        let mut config: Value = serde_json::from_slice(&self.config).expect("it was JSON");
        change(&mut config);
        self.with_config(config.to_string().into_bytes())
    }

    /// Any bytes as configuration; their digest is right.
    pub(crate) fn with_config(self, config: Vec<u8>) -> Self {
        let layers: Vec<&Value> = self.layers.iter().map(|layer| &layer.descriptor).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": Digest::of(&config).as_str(), "size": config.len()},
            "layers": layers,
        });
        Self { config, manifest: manifest.to_string().into_bytes(), ..self }
    }

    /// What comes when the configuration is asked for.
    pub(crate) fn serving_config(self, answer: Answer) -> Self {
        Self { config_served: Some(answer), ..self }
    }

    /// Changes the manifest; after the configuration.
    pub(crate) fn manifest(self, change: impl FnOnce(&mut Value)) -> Self {
        let mut manifest: Value = serde_json::from_slice(&self.manifest).expect("it was JSON");
        change(&mut manifest);
        self.with_manifest(manifest.to_string())
    }

    /// Any bytes as manifest.
    pub(crate) fn with_manifest(self, manifest: impl Into<Vec<u8>>) -> Self {
        Self { manifest: manifest.into(), ..self }
    }

    /// Changes the manifest as text.
    pub(crate) fn edited(self, from: &str, to: &str) -> Self {
        let text = String::from_utf8(self.manifest.clone()).expect("it is JSON");
        assert!(text.contains(from), "`{from}` is not in {text}");
        self.with_manifest(text.replacen(from, to, 1))
    }

    pub(crate) fn content_type(self, content_type: &str) -> Self {
        Self { content_type: content_type.into(), ..self }
    }

    /// Puts an index over this image, with one entry for a platform; its root becomes the index.
    pub(crate) fn below_index(mut self, platform: &Value) -> Self {
        let entry = json!({
            "mediaType": self.content_type, "digest": Digest::of(&self.manifest).as_str(), "size": self.manifest.len(),
            "platform": platform,
        });
        self.entries
            .push((Digest::of(&self.manifest).to_string(), Answer::ok(&self.content_type, self.manifest.clone())));
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
        Self { manifest: index.to_string().into_bytes(), content_type: INDEX.into(), ..self }
    }

    pub(crate) fn config_digest(&self) -> String {
        Digest::of(&self.config).to_string()
    }

    pub(crate) fn config_bytes(&self) -> &[u8] {
        &self.config
    }

    /// The digest of the root document.
    pub(crate) fn digest(&self) -> String {
        Digest::of(&self.manifest).to_string()
    }

    /// The manifest below the index, or the root where there is none.
    pub(crate) fn chosen(&self) -> Vec<u8> {
        let below = self.entries.first().map(|(_, answer)| answer.bytes());
        below.unwrap_or_else(|| self.manifest.clone())
    }

    pub(crate) fn root_bytes(&self) -> Vec<u8> {
        self.manifest.clone()
    }

    pub(crate) fn root(&self) -> (Vec<u8>, String) {
        (self.manifest.clone(), self.content_type.clone())
    }

    pub(super) fn entries(&self) -> Vec<(String, Answer)> {
        self.entries.clone()
    }

    pub(super) fn blobs(&self) -> Vec<(String, Answer)> {
        let mut blobs: Vec<_> = self.layers.iter().map(|layer| (layer.digest.clone(), layer.served.clone())).collect();
        let config = self.config_served.clone();
        let config = config.unwrap_or_else(|| Answer::ok("application/octet-stream", self.config.clone()));
        blobs.push((self.config_digest(), config));
        blobs
    }
}
