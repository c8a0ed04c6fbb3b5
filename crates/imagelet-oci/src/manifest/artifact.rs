//! Artifacts: manifests whose layers are plain files, not file systems (OCI image spec 1.1, KEP-4639).
//!
//! Each blob becomes one file of the mounted directory. Its name is `org.opencontainers.image.title`, else
//! `org.cncf.model.filepath` (`ModelPack`; formerly `org.cnai.model.filepath`), else the hex digits of the digest. The
//! names are checked before any blob is fetched.

use std::collections::BTreeSet;

use imagelet_core::{error::RuntimeError, image::Digest};
use serde::Deserialize;

use super::{Descriptor, ImageConfig, Manifest, media, printable, unacceptable};

const PATH_BYTES_MAX: usize = 1024;
const COMPONENT_BYTES_MAX: usize = 255;
const DEPTH_MAX: usize = 16;
/// The prefix marks removed files in image layers, so other readers of the layer would not see a file with this name.
const WHITEOUT_PREFIX: &str = ".wh.";

/// The annotations of a descriptor that name a file; others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct FileAnnotations {
    #[serde(rename = "org.opencontainers.image.title")]
    title: Option<String>,
    #[serde(rename = "org.cncf.model.filepath")]
    model_path: Option<String>,
    #[serde(rename = "org.cnai.model.filepath")]
    older_model_path: Option<String>,
}

impl FileAnnotations {
    pub(super) fn texts(&self) -> impl Iterator<Item = &String> {
        self.title.iter().chain(&self.model_path).chain(&self.older_model_path)
    }
}

impl Manifest {
    /// The type of an artifact; `None`: the manifest is an image. As in the runtimes, the configuration's type decides.
    pub(crate) fn artifact_kind(&self) -> Option<&str> {
        let kind = self.artifact_type.as_deref().unwrap_or(&self.config.media_type);
        (!media::may_be_image_config(&self.config.media_type)).then_some(kind)
    }

    /// The digest that identifies the image: the configuration's digest. Artifacts often share the configuration `{}`,
    /// so an artifact is identified by its manifest's digest.
    pub(crate) fn id<'a>(&'a self, manifest: &'a Digest) -> &'a Digest {
        if self.artifact_kind().is_some() { manifest } else { &self.config.digest }
    }

    /// Reads the configuration. An artifact's configuration is not parsed; its layers are identified by digest and
    /// path.
    pub(crate) fn read_config(&self, bytes: &[u8]) -> Result<ImageConfig, RuntimeError> {
        match self.artifact_kind() {
            Some(_) => Ok(ImageConfig { diff_ids: self.file_keys()?, ..ImageConfig::default() }),
            None => ImageConfig::parse(bytes),
        }
    }

    /// The path of a layer's file; `None`: the manifest is not an artifact.
    pub(crate) fn file_path(&self, layer: &Descriptor) -> Option<String> {
        self.artifact_kind().map(|_| layer.file_path())
    }

    /// The keys of the layers in the store, after a check of all paths.
    pub(super) fn file_keys(&self) -> Result<Vec<Digest>, RuntimeError> {
        let paths: Vec<String> = self.layers.iter().map(Descriptor::file_path).collect();
        let mut files = BTreeSet::new();
        for (layer, path) in self.layers.iter().zip(&paths) {
            let refused = |why: &str| {
                let digest = &layer.digest;
                unacceptable(format!("the artifact's file name `{}` of blob `{digest}` {why}", printable(path)))
            };
            check_path(path).map_err(refused)?;
            if !files.insert(path.as_str()) {
                return Err(refused("is that of another blob, too"));
            }
        }
        let folder_of = |path: &str| path.rmatch_indices('/').map(|(at, _)| path[..at].to_owned()).collect::<Vec<_>>();
        if let Some(folder) = paths.iter().flat_map(|path| folder_of(path)).find(|folder| files.contains(&**folder)) {
            return Err(unacceptable(format!("the artifact has `{}` as a file and as a folder", printable(&folder))));
        }
        Ok(self.layers.iter().zip(&paths).map(|(layer, path)| file_key(&layer.digest, path)).collect())
    }
}

impl Descriptor {
    fn file_path(&self) -> String {
        let mut named = self.annotations.iter().flat_map(|names| names.texts()).filter(|name| !name.is_empty());
        named.next().cloned().unwrap_or_else(|| self.digest.hex().to_owned())
    }
}

/// The key of a file's layer. No image layer can have the same key: a diff-id is the digest of a tar file, and a tar
/// file cannot start with these words.
fn file_key(blob: &Digest, path: &str) -> Digest {
    Digest::of(format!("artifact file\n{blob}\n{path}").as_bytes())
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.len() > PATH_BYTES_MAX {
        return Err("is longer than 1024 bytes");
    }
    if path.chars().any(char::is_control) {
        return Err("has control characters");
    }
    if path.starts_with('/') {
        return Err("is absolute");
    }
    if path.split('/').count() > DEPTH_MAX {
        return Err("is deeper than 16 folders");
    }
    for component in path.split('/') {
        match component {
            "" => return Err("has an empty component"),
            "." | ".." => return Err("has a component `.` or `..`"),
            _ if component.len() > COMPONENT_BYTES_MAX => return Err("has a component of more than 255 bytes"),
            _ if component.starts_with(WHITEOUT_PREFIX) => return Err("has a component that begins with `.wh.`"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifest::ManifestDocument;

    const EMPTY: &str = "application/vnd.oci.empty.v1+json";

    fn manifest(config_type: &str, layers: &[(&[u8], serde_json::Value)]) -> Manifest {
        let layers: Vec<_> = layers
            .iter()
            .map(|(bytes, annotations)| {
                let digest = Digest::of(bytes).to_string();
                json!({"mediaType": "text/x", "digest": digest, "size": bytes.len(), "annotations": annotations})
            })
            .collect();
        let config = json!({"mediaType": config_type, "digest": Digest::of(b"{}").as_str(), "size": 2});
        let text = json!({"schemaVersion": 2, "artifactType": "a/model", "config": config, "layers": layers});
        match ManifestDocument::parse(text.to_string().as_bytes(), "").expect("a manifest") {
            ManifestDocument::Image(manifest) => manifest,
            ManifestDocument::Index(_) => panic!("no index"),
        }
    }

    fn titled(titles: &[&str]) -> Manifest {
        let titles: Vec<_> =
            titles.iter().map(|title| (title.as_bytes(), json!({"org.opencontainers.image.title": title}))).collect();
        manifest(EMPTY, &titles)
    }

    #[test]
    fn an_artifact_is_known_by_its_configuration_and_identified_by_its_manifest() {
        let of_manifest = Digest::of(b"manifest");
        let artifact = titled(&["a"]);
        assert_eq!((artifact.artifact_kind(), artifact.id(&of_manifest)), (Some("a/model"), &of_manifest));
        let image = manifest("application/vnd.oci.image.config.v1+json", &[]);
        assert_eq!((image.artifact_kind(), image.id(&of_manifest)), (None, &Digest::of(b"{}")));
        let untyped = Manifest { artifact_type: None, ..titled(&[]) };
        assert_eq!(untyped.artifact_kind(), Some(EMPTY));
    }

    #[test]
    fn a_file_is_named_by_its_title_else_by_its_path_in_a_model_else_by_its_digest() {
        let (title, path) = ("org.opencontainers.image.title", "org.cncf.model.filepath");
        let older = "org.cnai.model.filepath";
        for (annotations, expected) in [
            (json!({title: "weights.bin", path: "other", older: "older"}), "weights.bin"),
            (json!({title: "", path: "a/b"}), "a/b"),
            (json!({path: "a/b", older: "c/d"}), "a/b"),
            (json!({path: "", older: "c/d"}), "c/d"),
            (json!({path: null, older: "c/d"}), "c/d"),
            (json!({title: null}), Digest::of(b"x").hex()),
            (json!({"org.example": "y"}), Digest::of(b"x").hex()),
            (json!(null), Digest::of(b"x").hex()),
        ] {
            let artifact = manifest(EMPTY, &[(b"x", annotations.clone())]);
            assert_eq!(artifact.file_path(&artifact.layers[0]).as_deref(), Some(expected), "{annotations}");
        }
    }

    #[test]
    fn unsafe_and_clashing_names_are_refused_and_nested_ones_are_not() {
        let long = "x".repeat(256);
        let (deep, wide) = (["d"; 17].join("/"), ["x"; 600].join("y"));
        for (titles, why) in [
            (&["/etc/passwd"][..], "absolute"),
            (&["../x"], "`..`"),
            (&["a/../b"], "`..`"),
            (&["a/.."], "`..`"),
            (&["./a"], "`.`"),
            (&["a//b"], "empty component"),
            (&["a/"], "empty component"),
            (&["a\0b"], "control characters"),
            (&["a\nb"], "control characters"),
            (&["a\u{1b}[31m"], "control characters"),
            (&[".wh.a"], ".wh."),
            (&["a/.wh..wh..opq"], ".wh."),
            (&[&long], "255 bytes"),
            (&[&deep], "deeper"),
            (&[&wide], "1024 bytes"),
            (&["a", "b", "a"], "another blob"),
            (&["a/b", "a"], "as a file and as a folder"),
            (&["a", "a/b/c"], "as a file and as a folder"),
        ] {
            let error = titled(titles).file_keys().expect_err(why);
            assert!(error.to_string().contains(why), "{titles:?}: {error}");
        }
        let keys = titled(&["a/b", "a/c", "ab", "..a", "b.wh.", "é"]).file_keys().expect("all are safe");
        assert_eq!(BTreeSet::from_iter(&keys).len(), 6);
        assert_eq!(titled(&["a/b"]).file_keys().expect("safe")[0], keys[0], "a key depends on blob and path alone");
    }
}
