//! Artifacts: manifests whose blobs are files or archives of files, not layers (OCI image spec 1.1, KEP-4639).
//!
//! By default, a blob is one file, named by `org.opencontainers.image.title`, else by `org.cncf.model.filepath`
//! (`ModelPack`; formerly `org.cnai.model.filepath`), else by the hex digits of its digest. It is an archive of files
//! if its media type is an archive type of `ModelPack` or `KitOps`, or if ORAS marks it as a folder
//! (`io.deis.oras.content.unpack`). The manifest is checked before any blob is fetched.

use std::collections::BTreeMap;

use imagelet_core::{error::RuntimeError, image::Digest};
use serde::Deserialize;
use serde_json::Value;

use super::{Compression, Descriptor, ImageConfig, LayerKind, Manifest, media, printable, unacceptable};

const PATH_BYTES_MAX: usize = 1024;
const COMPONENT_BYTES_MAX: usize = 255;
const DEPTH_MAX: usize = 16;
/// Limits of an artifact's annotations, which become the labels of the image that is made from the artifact.
const ANNOTATIONS_MAX: usize = 500;
const ANNOTATIONS_BYTES_MAX: usize = 64 << 10;
/// In image layers, this prefix marks a removed file. So a file of an artifact with this prefix is rejected.
const WHITEOUT_PREFIX: &str = ".wh.";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct FileAnnotations {
    #[serde(rename = "org.opencontainers.image.title")]
    title: Option<String>,
    #[serde(rename = "org.cncf.model.filepath")]
    model_path: Option<String>,
    #[serde(rename = "org.cnai.model.filepath")]
    older_model_path: Option<String>,
    /// The text `true` marks the blob as a compressed archive of the folder that `title` names.
    #[serde(rename = "io.deis.oras.content.unpack")]
    unpack: Option<String>,
    /// The digest of the uncompressed archive.
    #[serde(rename = "io.deis.oras.content.digest")]
    content: Option<String>,
}

impl FileAnnotations {
    fn paths(&self) -> impl Iterator<Item = &String> {
        [&self.title, &self.model_path, &self.older_model_path].into_iter().flatten()
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &String> {
        self.paths().chain(&self.unpack).chain(&self.content)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlobLayout {
    File(String),
    Archive {
        /// The folder into which the archive is unpacked. The empty text is the artifact's root.
        folder: String,
        compression: Compression,
        content: Option<Digest>,
    },
}

impl BlobLayout {
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::File(path) => path,
            Self::Archive { folder, .. } => folder,
        }
    }

    /// The key of a blob's layer in the store. It never equals a diff-id, because the hashed text is no tar file.
    fn key(&self, blob: &Digest) -> Digest {
        let kind = if matches!(self, Self::File(_)) { "file" } else { "archive" };
        Digest::of(format!("artifact {kind}\n{blob}\n{}", self.path()).as_bytes())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArtifactFile<'a> {
    pub(crate) blob: &'a Descriptor,
    pub(crate) layout: BlobLayout,
    pub(crate) key: Digest,
}

impl Manifest {
    /// The type of an artifact: `artifactType`, or else the media type of the configuration. `None` for an image; an
    /// image is recognised by the media type of the configuration, as in the runtimes.
    pub(crate) fn artifact_kind(&self) -> Option<&str> {
        let kind = self.artifact_type.as_deref().unwrap_or(&self.config.media_type);
        (!media::may_be_image_config(&self.config.media_type)).then_some(kind)
    }

    pub(crate) fn is_wasm(&self) -> bool {
        media::media_type_base(&self.config.media_type).starts_with("application/vnd.wasm.config.")
    }

    /// The image id. For an artifact it is the manifest's digest, because many artifacts share the configuration `{}`.
    pub(crate) fn id<'a>(&'a self, manifest: &'a Digest) -> &'a Digest {
        if self.artifact_kind().is_some() { manifest } else { &self.config.digest }
    }

    /// Parses an image's configuration. An artifact's is not parsed: the keys of its files are the diff-ids.
    pub(crate) fn read_config(&self, bytes: &[u8]) -> Result<ImageConfig, RuntimeError> {
        if self.artifact_kind().is_none() {
            return ImageConfig::parse(bytes);
        }
        let diff_ids = self.artifact_files()?.into_iter().map(|file| file.key).collect();
        Ok(ImageConfig { diff_ids, ..ImageConfig::default() })
    }

    pub(crate) fn layout(&self, layer: &Descriptor) -> Option<BlobLayout> {
        self.artifact_kind().map(|_| layer.layout())
    }

    /// The compression that the manifest names. The unpacker decides later, by the first bytes of the layer.
    pub(crate) fn compression(&self, layer: &Descriptor) -> Compression {
        match self.layout(layer) {
            None => layer.layer_compression().unwrap_or(Compression::Stored),
            Some(BlobLayout::File(_)) => Compression::Stored,
            Some(BlobLayout::Archive { compression, .. }) => compression,
        }
    }

    /// The blobs in the order of the layers, with checked paths. The unpacker later checks the names inside archives.
    pub(crate) fn artifact_files(&self) -> Result<Vec<ArtifactFile<'_>>, RuntimeError> {
        let layouts = self.layers.iter().map(|blob| (blob, blob.layout()));
        let files: Vec<_> =
            layouts.map(|(blob, layout)| ArtifactFile { key: layout.key(&blob.digest), blob, layout }).collect();
        let mut named: BTreeMap<&str, &ArtifactFile> = BTreeMap::new();
        for file in files.iter().filter(|file| !file.layout.path().is_empty()) {
            let (path, digest) = (file.layout.path(), &file.blob.digest);
            let refused =
                |why| unacceptable(format!("the artifact's file name `{}` of blob `{digest}` {why}", printable(path)));
            check_path(path).map_err(refused)?;
            // A manifest may have the same blob twice under one path. This is one file.
            if named.insert(path, file).is_some_and(|other| other.key != file.key) {
                return Err(refused("is that of another blob, too"));
            }
        }
        let is_file = |path: &&str| named.get(path).is_some_and(|file| matches!(file.layout, BlobLayout::File(_)));
        let mut folders = named.keys().flat_map(|path| path.rmatch_indices('/').map(|(at, _)| &path[..at]));
        if let Some(folder) = folders.find(is_file) {
            return Err(unacceptable(format!("the artifact has `{}` as a file and as a folder", printable(folder))));
        }
        Ok(files)
    }
}

/// The annotations of an artifact's manifest whose values are texts, by name. Those beyond the limits are dropped.
pub(crate) fn annotations(manifest: &[u8]) -> BTreeMap<String, String> {
    #[derive(Default, Deserialize)]
    struct Annotated {
        #[serde(default)]
        annotations: BTreeMap<String, Value>,
    }
    let Annotated { annotations } = serde_json::from_slice(manifest).unwrap_or_default();
    let texts = annotations.into_iter().filter_map(|(name, value)| match value {
        Value::String(text) => Some((name, text)),
        _ => None,
    });
    let mut bytes = 0;
    let fits = |(name, text): &(String, String)| {
        bytes += name.len() + text.len();
        bytes <= ANNOTATIONS_BYTES_MAX
    };
    texts.take(ANNOTATIONS_MAX).take_while(fits).collect()
}

impl Descriptor {
    fn layout(&self) -> BlobLayout {
        let names = self.annotations.as_deref();
        let path = names.into_iter().flat_map(FileAnnotations::paths).find(|name| !name.is_empty());
        let title = names.and_then(|names| names.title.as_deref()).filter(|title| !title.is_empty());
        let is_folder = names.and_then(|names| names.unpack.as_deref()) == Some("true");
        if let Some(title) = title.filter(|_| is_folder) {
            return BlobLayout::Archive {
                folder: if title == "." { String::new() } else { title.to_owned() },
                compression: match LayerKind::of(&self.media_type) {
                    LayerKind::Tar(compression) => compression,
                    _ => Compression::Gzip,
                },
                content: names.and_then(|names| names.content.as_deref()).and_then(|text| text.parse().ok()),
            };
        }
        // Older artifacts of `ModelPack` have the media type of an image layer, and the archive type in `artifactType`.
        let mut types = [&self.media_type].into_iter().chain(&self.artifact_type);
        match types.find_map(|kind| media::model_archive(kind)) {
            Some(compression) => BlobLayout::Archive { folder: String::new(), compression, content: None },
            None => BlobLayout::File(path.cloned().unwrap_or_else(|| self.digest.hex().to_owned())),
        }
    }
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
    const TITLE: &str = "org.opencontainers.image.title";

    /// A manifest of layers with these bytes and these other fields.
    fn manifest(config_type: &str, layers: &[(&[u8], Value)]) -> Manifest {
        let layers = layers.iter().map(|(bytes, fields)| {
            let (mut layer, digest) = (fields.clone(), Digest::of(bytes).to_string());
            layer["digest"] = json!(digest);
            layer["size"] = json!(bytes.len());
            layer
        });
        let config = json!({"mediaType": config_type, "digest": Digest::of(b"{}").as_str(), "size": 2});
        let layers: Vec<Value> = layers.collect();
        let text = json!({"schemaVersion": 2, "artifactType": "a/model", "config": config, "layers": layers});
        match ManifestDocument::parse(text.to_string().as_bytes(), "").expect("a manifest") {
            ManifestDocument::Image(manifest) => manifest,
            ManifestDocument::Index(_) => panic!("no index"),
        }
    }

    fn file(title: &str) -> Value {
        json!({"mediaType": "text/x", "annotations": {TITLE: title}})
    }

    fn folder(title: &str) -> Value {
        json!({"mediaType": "text/x", "annotations": {TITLE: title, "io.deis.oras.content.unpack": "true"}})
    }

    /// An artifact of files whose content is their title.
    fn titled(titles: &[&str]) -> Manifest {
        manifest(EMPTY, &titles.iter().map(|title| (title.as_bytes(), file(title))).collect::<Vec<_>>())
    }

    fn layout(layer: Value) -> BlobLayout {
        let artifact = manifest(EMPTY, &[(b"x", layer)]);
        artifact.layout(&artifact.layers[0]).expect("an artifact")
    }

    #[test]
    fn an_artifact_is_known_by_its_configuration_and_identified_by_its_manifest() {
        let of_manifest = Digest::of(b"manifest");
        let artifact = titled(&["a"]);
        assert_eq!((artifact.artifact_kind(), artifact.id(&of_manifest)), (Some("a/model"), &of_manifest));
        let image = manifest("application/vnd.oci.image.config.v1+json", &[(b"x", file("a"))]);
        assert_eq!((image.artifact_kind(), image.id(&of_manifest)), (None, &Digest::of(b"{}")));
        assert_eq!(image.layout(&image.layers[0]), None);
        let untyped = Manifest { artifact_type: None, ..titled(&[]) };
        assert_eq!(untyped.artifact_kind(), Some(EMPTY));
    }

    #[test]
    fn annotations_of_an_artifact_are_its_texts_and_bounded() {
        let read = |annotations: Value| annotations_of(&json!({"annotations": annotations}));
        let texts = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        assert_eq!(read(json!({"b": "2", "a": "1", "c": 3, "d": null})), texts(&[("a", "1"), ("b", "2")]));
        for odd in [json!(null), json!([]), json!("a")] {
            assert_eq!(read(odd), BTreeMap::new());
        }
        assert_eq!((annotations_of(&json!({})), annotations(b"no JSON")), Default::default());
        let long = "x".repeat(ANNOTATIONS_BYTES_MAX - 10);
        assert_eq!(read(json!({"a": "1", "b": long, "c": "x".repeat(20), "d": "1"})).len(), 2);
        let many: serde_json::Map<_, _> = (0..600).map(|number| (number.to_string(), json!("x"))).collect();
        assert_eq!(read(Value::Object(many)).len(), ANNOTATIONS_MAX);
    }

    fn annotations_of(manifest: &Value) -> BTreeMap<String, String> {
        annotations(manifest.to_string().as_bytes())
    }

    #[test]
    fn a_file_is_named_by_its_title_else_by_its_path_in_a_model_else_by_its_digest() {
        let (path, older) = ("org.cncf.model.filepath", "org.cnai.model.filepath");
        for (annotations, expected) in [
            (json!({TITLE: "weights.bin", path: "other", older: "older"}), "weights.bin"),
            (json!({TITLE: "", path: "a/b"}), "a/b"),
            (json!({path: "a/b", older: "c/d"}), "a/b"),
            (json!({path: "", older: "c/d"}), "c/d"),
            (json!({path: null, older: "c/d"}), "c/d"),
            (json!({TITLE: null}), Digest::of(b"x").hex()),
            (json!({"org.example": "y"}), Digest::of(b"x").hex()),
            (json!(null), Digest::of(b"x").hex()),
        ] {
            assert_eq!(layout(json!({"annotations": annotations})), BlobLayout::File(expected.into()), "{annotations}");
        }
    }

    #[test]
    fn the_specification_of_a_media_type_decides_whether_a_blob_is_an_archive_of_files() {
        let archive = |compression| BlobLayout::Archive { folder: String::new(), compression, content: None };
        let plain = || BlobLayout::File("a".into());
        for (media_type, expected) in [
            ("application/vnd.cncf.model.weight.v1.raw", plain()),
            ("application/vnd.cncf.model.weight.v1.tar", archive(Compression::None)),
            ("Application/vnd.cncf.model.weight.config.v1.tar+gzip; x=y", archive(Compression::Gzip)),
            ("application/vnd.cncf.model.dataset.v1.tar+zstd", archive(Compression::Zstd)),
            ("application/vnd.cnai.model.doc.v1.tar", archive(Compression::None)),
            ("application/vnd.cnai.model.layer.v1.tar+gzip", archive(Compression::Gzip)),
            ("application/vnd.kitops.modelkit.modelpart.v1.tar+gzip", archive(Compression::Gzip)),
            ("application/vnd.cncf.model.weight.v1.tar+lzma", plain()),
            ("application/vnd.cncf.model.weight.v1.gguf", plain()),
            ("application/vnd.cncf.helm.chart.content.v1.tar+gzip", plain()),
            ("application/vnd.oci.image.layer.v1.tar+gzip", plain()),
            ("application/x-tar", plain()),
        ] {
            let mut layer = file("a");
            layer["mediaType"] = json!(media_type);
            assert_eq!(layout(layer), expected, "{media_type}");
        }
        let older = json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar", "artifactType": "application/vnd.cnai.model.layer.v1.tar",
        });
        assert_eq!(layout(older), archive(Compression::None));
    }

    #[test]
    fn a_folder_of_oras_is_an_archive_below_its_title_with_the_digest_that_it_names() {
        let content = Digest::of(b"plain");
        for (media_type, compression) in [
            ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip),
            ("application/vnd.oci.image.layer.v1.tar", Compression::None),
            ("application/vnd.example.part", Compression::Gzip),
        ] {
            let mut layer = folder("details");
            layer["mediaType"] = json!(media_type);
            layer["annotations"]["io.deis.oras.content.digest"] = json!(content);
            let expected =
                BlobLayout::Archive { folder: "details".into(), compression, content: Some(content.clone()) };
            assert_eq!(layout(layer), expected, "{media_type}");
        }
        let root = BlobLayout::Archive { folder: String::new(), compression: Compression::Gzip, content: None };
        assert_eq!(layout(folder(".")), root);
        let mut odd = folder("d");
        odd["annotations"]["io.deis.oras.content.digest"] = json!("no digest");
        assert!(matches!(layout(odd), BlobLayout::Archive { content: None, .. }));
        let mut packed = folder("d");
        packed["annotations"]["io.deis.oras.content.unpack"] = json!("false");
        assert_eq!(layout(packed), BlobLayout::File("d".into()));
        let unnamed = json!({"annotations": {"io.deis.oras.content.unpack": "true"}});
        assert_eq!(layout(unnamed), BlobLayout::File(Digest::of(b"x").hex().into()));
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
            (&["a/b", "a"], "as a file and as a folder"),
            (&["a", "a/b/c"], "as a file and as a folder"),
        ] {
            let error = titled(titles).artifact_files().expect_err(why);
            assert!(error.to_string().contains(why), "{titles:?}: {error}");
        }
        let refused = |layers: &[(&[u8], Value)], why: &str| {
            let error = manifest(EMPTY, layers).artifact_files().expect_err(why);
            assert!(error.to_string().contains(why), "{layers:?}: {error}");
        };
        refused(&[(b"1", file("a")), (b"2", file("b")), (b"3", file("a"))], "another blob");
        refused(&[(b"1", folder("a")), (b"2", file("a"))], "another blob");
        refused(&[(b"1", folder("a")), (b"2", folder("a"))], "another blob");
        refused(&[(b"1", file("a")), (b"2", folder("a/b"))], "as a file and as a folder");
        refused(&[(b"1", folder("../a"))], "`..`");
        let keys = |artifact: &Manifest| -> Vec<Digest> {
            artifact.artifact_files().expect("all are safe").into_iter().map(|file| file.key).collect()
        };
        let safe = keys(&titled(&["a/b", "a/c", "ab", "..a", "b.wh.", "é"]));
        assert_eq!(safe.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
        assert_eq!(keys(&titled(&["a/b"]))[0], safe[0], "a key depends on blob and path alone");
        keys(&manifest(EMPTY, &[(b"1", folder("a")), (b"2", file("a/b"))]));
    }

    #[test]
    fn a_blob_under_two_names_is_two_files_and_twice_under_one_name_is_one() {
        let artifact = manifest(EMPTY, &[(b"x", file("a")), (b"x", file("b")), (b"x", file("a")), (b"x", folder("d"))]);
        let files = artifact.artifact_files().expect("no name is that of two blobs");
        let paths: Vec<_> = files.iter().map(|file| file.layout.path()).collect();
        assert_eq!(paths, ["a", "b", "a", "d"]);
        assert!(files[0].key == files[2].key && files[0].key != files[1].key && files[0].key != files[3].key);
    }
}
