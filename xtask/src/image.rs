//! Builds a container image of the program: an OCI layout in a tar file, with the same bytes for the same input.

use std::{fmt::Write as _, fs, io::Write as _, path::PathBuf};

use anyhow::{Context as _, Result};
use aws_lc_rs::digest::{SHA256, digest};
use flate2::{Compression, GzBuilder};
use jiff::Timestamp;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

pub(crate) struct ProgramImage {
    /// The program must be statically linked, because the image has no C library.
    pub(crate) program: PathBuf,
    /// The certificate authorities for registries, as one PEM file.
    pub(crate) authorities: PathBuf,
    pub(crate) name: String,
    pub(crate) version: String,
    /// OCI's name of the architecture, such as `amd64`.
    pub(crate) architecture: String,
    /// The time of every file, in seconds since 1970.
    pub(crate) created: u64,
}

impl ProgramImage {
    pub(crate) fn layout(&self) -> Result<Vec<u8>> {
        let layer = self.layer()?;
        let mut packed = GzBuilder::new().write(Vec::new(), Compression::best());
        packed.write_all(&layer)?;
        let packed = packed.finish()?;
        let created = Timestamp::from_second(i64::try_from(self.created)?)?.to_string();
        let config = json!({
            "created": created,
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "Entrypoint": ["/usr/bin/imagelet"],
                "Env": ["PATH=/usr/bin"],
                "Labels": {
                    "org.opencontainers.image.title": "imagelet",
                    "org.opencontainers.image.version": self.version,
                    "org.opencontainers.image.licenses": "Apache-2.0",
                },
            },
            "rootfs": { "type": "layers", "diff_ids": [sha256(&layer)] },
            "history": [{ "created": created, "created_by": "cargo xtask image" }],
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
        })
        .to_string();
        let mut image = descriptor("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
        image["platform"] = json!({ "architecture": self.architecture, "os": "linux" });
        image["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": self.name,
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [image],
        });
        let mut tar = Archive::new(self.created);
        tar.add("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        tar.add("index.json", 0o644, index.to_string().as_bytes())?;
        for folder in ["blobs/", "blobs/sha256/"] {
            tar.add(folder, 0o755, &[])?;
        }
        for blob in [manifest.as_bytes(), config.as_bytes(), &packed] {
            tar.add(&format!("blobs/{}", sha256(blob).replace(':', "/")), 0o644, blob)?;
        }
        Ok(tar.tar.into_inner()?)
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let read = |path: &PathBuf| fs::read(path).with_context(|| format!("cannot read `{}`", path.display()));
        let mut tar = Archive::new(self.created);
        for folder in ["etc/", "etc/ssl/", "etc/ssl/certs/", "usr/", "usr/bin/"] {
            tar.add(folder, 0o755, &[])?;
        }
        tar.add("tmp/", 0o1777, &[])?;
        tar.add("etc/ssl/certs/ca-certificates.crt", 0o644, &read(&self.authorities)?)?;
        tar.add("usr/bin/imagelet", 0o755, &read(&self.program)?)?;
        Ok(tar.tar.into_inner()?)
    }
}

/// A tar file whose entries belong to root and have one time.
struct Archive {
    tar: Builder<Vec<u8>>,
    created: u64,
}

impl Archive {
    fn new(created: u64) -> Self {
        Self { tar: Builder::new(Vec::new()), created }
    }

    /// Adds a file, or a folder if `path` ends with a slash.
    fn add(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(if path.ends_with('/') { EntryType::Directory } else { EntryType::Regular });
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.created);
        header.set_size(bytes.len() as u64);
        self.tar.append_data(&mut header, path, bytes).with_context(|| format!("cannot pack `{path}`"))
    }
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": sha256(bytes), "size": bytes.len() })
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in digest(&SHA256, bytes).as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
