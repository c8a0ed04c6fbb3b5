//! The documents of an image: manifest, index and configuration, parsed exactly as leniently as Go parses them.
//!
//! Documents are untrusted: each digest is validated before any other use, sizes fit in 63 bits, and lists have a
//! maximum length. The caller keeps the bytes of a document, because its digest is computed from the bytes.

mod artifact;
mod config;
mod media;
mod platform;
mod selection;

use std::fmt;

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    image::{ByteSize, Digest},
    printable::{is_unprintable, printable_start},
    text::nullable,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, SeqAccess, Visitor},
};

pub(crate) use artifact::{BlobLayout, FileAnnotations, annotations};
pub(crate) use config::{CONFIG_BYTES_MAX, ImageConfig};
pub(crate) use media::{Compression, DocumentKind, LayerKind, MANIFEST_MEDIA_TYPES, media_type_base};
pub(crate) use selection::{DocumentSource, Selected, select};

pub(crate) const MANIFEST_BYTES_MAX: u64 = 4 << 20;
pub(crate) const INDEX_ENTRIES_MAX: usize = 1000;
pub(crate) const INDEX_DEPTH_MAX: usize = 4;
/// Maximum layers of an image: the kernel's limit for one overlay mount.
pub(crate) const LAYERS_MAX: usize = 500;
/// Maximum compressed size of a layer. The largest existing layers have some tens of GiB.
pub(crate) const LAYER_BYTES_MAX: u64 = 256 << 30;

/// Maximum nesting of objects and lists in a document: more than any tool writes, and less than any parser's limit.
pub(crate) const NESTING_MAX: usize = 128;

/// Maximum bytes of all texts of a descriptor or a configuration (types, platform, paths). A pull keeps them in memory.
const TEXT_BYTES_MAX: usize = 4096;
const REASON_MAX: usize = 256;

/// An OCI descriptor. `urls` (alternative locations) and all annotations except [`FileAnnotations`] are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    #[serde(default, deserialize_with = "size")]
    pub(crate) size: u64,
    pub(crate) platform: Option<DescriptorPlatform>,
    /// The type of the artifact, or the media type of the image's configuration.
    pub(crate) artifact_type: Option<String>,
    pub(crate) annotations: Option<Box<FileAnnotations>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct DescriptorPlatform {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) os: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) architecture: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) variant: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) artifact_type: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ManifestDocument {
    Image(Manifest),
    Index(Index),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: Option<i64>,
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Bounded<Descriptor, LAYERS_MAX>>,
    manifests: Option<Bounded<Descriptor, INDEX_ENTRIES_MAX>>,
    fs_layers: Option<IgnoredAny>,
}

impl ManifestDocument {
    pub(crate) fn parse(bytes: &[u8], content_type: &str) -> Result<Self, RuntimeError> {
        Self::parse_named(bytes, content_type).map(|(document, _)| document)
    }

    /// Parses a document. Also returns its media type: its own, else `content_type`, else the OCI type of its kind.
    /// `content_type` is the `Content-Type` of the response, or empty. Docker and OCI types of one kind are equal.
    pub(crate) fn parse_named(bytes: &[u8], content_type: &str) -> Result<(Self, String), RuntimeError> {
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(unacceptable(format!("the manifest is larger than {}", ByteSize(MANIFEST_BYTES_MAX))));
        }
        let content_type = media_type_base(content_type);
        if DocumentKind::of(&content_type) == Some(DocumentKind::Schema1) {
            return Err(schema1());
        }
        let raw: Raw = object(bytes).map_err(|error| {
            let content_type = printable(&content_type);
            let kind = if content_type.is_empty() { String::new() } else { format!(" of type `{content_type}`") };
            corrupt(format!("the answer{kind} is not an image manifest")).caused_by(error)
        })?;
        let own = media_type_base(raw.media_type.as_deref().unwrap_or_default());
        let document = raw.decide(&content_type, &own)?;
        let named = [own, content_type].into_iter().find(|media_type| !media_type.is_empty());
        let media_type = named.unwrap_or_else(|| match document {
            Self::Image(_) => media::OCI_MANIFEST.to_owned(),
            Self::Index(_) => media::OCI_INDEX.to_owned(),
        });
        Ok((document, media_type))
    }

    pub(crate) fn is_called(&self, media_type: &str) -> bool {
        let own = match self {
            Self::Image(_) => DocumentKind::Image,
            Self::Index(_) => DocumentKind::Index,
        };
        DocumentKind::of(&media_type_base(media_type)).is_none_or(|kind| kind == own)
    }
}

impl Raw {
    fn decide(self, content_type: &str, media_type: &str) -> Result<ManifestDocument, RuntimeError> {
        if self.schema_version == Some(1) || self.fs_layers.is_some() {
            return Err(schema1());
        }
        let is_one_kind =
            || DocumentKind::of(content_type).is_some_and(|kind| Some(kind) == DocumentKind::of(media_type));
        if !content_type.is_empty() && !media_type.is_empty() && content_type != media_type && !is_one_kind() {
            return Err(corrupt(format!(
                "the registry calls the manifest `{}`, but it calls itself `{}`",
                printable(content_type),
                printable(media_type)
            )));
        }
        let named = if media_type.is_empty() { content_type } else { media_type };
        let kind = match DocumentKind::of(named) {
            Some(kind) => kind,
            None if !named.is_empty() => {
                return Err(unacceptable(format!(
                    "`{}` is neither an image manifest nor an image index",
                    printable(named)
                )));
            }
            None if self.manifests.is_some() => DocumentKind::Index,
            None => DocumentKind::Image,
        };
        let has_layers = self.layers.as_ref().is_some_and(|list| list.count > 0);
        let has_manifests = self.manifests.as_ref().is_some_and(|list| list.count > 0);
        if has_manifests && (has_layers || self.config.is_some()) {
            return Err(unacceptable("the document is an image manifest and an image index at once"));
        }
        match kind {
            DocumentKind::Schema1 => Err(schema1()),
            DocumentKind::Index => {
                let manifests = self.manifests.unwrap_or_default().all("index", "entries")?;
                if has_layers {
                    return Err(corrupt("the image index has layers"));
                }
                Ok(ManifestDocument::Index(Index { manifests }))
            }
            DocumentKind::Image => {
                if has_manifests {
                    return Err(corrupt("the image manifest lists manifests"));
                }
                let config = self.config.ok_or_else(|| corrupt("the image manifest names no configuration"))?;
                // The runtime has the same limit, so its pull would fail, too. `Stage::Unpack` prevents its pull.
                let fault = Fault::new(ErrorClass::Unacceptable, Stage::Unpack);
                let layers = self.layers.unwrap_or_default().all("image", "layers");
                let layers = layers.map_err(|error| error.with_fault(fault))?;
                let artifact_type = self.artifact_type.filter(|text| !text.is_empty());
                Ok(ManifestDocument::Image(Manifest { config, layers, artifact_type }))
            }
        }
    }
}

impl Manifest {
    pub(crate) fn check_layers(&self) -> Result<(), RuntimeError> {
        if self.artifact_kind().is_some() {
            self.artifact_files()?;
        } else {
            self.layers.iter().try_for_each(|layer| layer.layer_compression().map(drop))?;
        }
        for layer in &self.layers {
            if layer.size > LAYER_BYTES_MAX {
                let (digest, size, limit) = (&layer.digest, ByteSize(layer.size), ByteSize(LAYER_BYTES_MAX));
                return Err(unacceptable(format!("layer `{digest}` has {size}; the limit is {limit}")));
            }
        }
        [&self.config].into_iter().chain(&self.layers).try_for_each(Descriptor::check_texts)
    }
}

fn check_texts<'a>(of: &str, texts: impl IntoIterator<Item = &'a String>) -> Result<(), RuntimeError> {
    let bytes: usize = texts.into_iter().map(String::len).sum();
    if bytes > TEXT_BYTES_MAX {
        let (size, limit) = (ByteSize(bytes as u64), ByteSize(TEXT_BYTES_MAX as u64));
        return Err(unacceptable(format!("the texts of the {of} have {size}; the limit is {limit}")));
    }
    Ok(())
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let media_type = media_type.to_owned();
        Self { media_type, digest, size, platform: None, artifact_type: None, annotations: None }
    }

    fn is_artifact(&self) -> bool {
        self.artifact_type.as_ref().is_some_and(|kind| !media::may_be_image_config(kind))
    }

    pub(crate) fn check_texts(&self) -> Result<(), RuntimeError> {
        let platform = self.platform.iter().flat_map(DescriptorPlatform::texts);
        let annotations = self.annotations.iter().flat_map(|names| names.texts());
        let texts = [&self.media_type].into_iter().chain(&self.artifact_type);
        let texts = texts.chain(platform).chain(annotations);
        check_texts(&format!("descriptor `{}`", self.digest), texts)
    }

    /// Explains the error of an absent foreign layer, which a registry need not serve. Links in it are ignored.
    pub(crate) fn not_fetched(&self, error: RuntimeError) -> RuntimeError {
        if error.kind() != RuntimeErrorKind::NotFound
            || !matches!(LayerKind::of(&self.media_type), LayerKind::Foreign(_))
        {
            return error;
        }
        unacceptable(format!("layer `{}` is not distributed by the registry (a foreign layer)", self.digest))
            .caused_by(error)
            .with_fault(Fault::new(ErrorClass::Unacceptable, Stage::Manifest))
    }

    pub(crate) fn layer_compression(&self) -> Result<Compression, RuntimeError> {
        let refuse = |why: String| Err(unacceptable(format!("layer `{}` {why}", self.digest)));
        match LayerKind::of(&self.media_type) {
            LayerKind::Tar(compression) | LayerKind::Foreign(compression) => Ok(compression),
            LayerKind::Encrypted => refuse("is encrypted; encrypted images are not supported".into()),
            LayerKind::Unknown => refuse(format!("is of the unknown type `{}`", printable(&self.media_type))),
        }
    }
}

fn schema1() -> RuntimeError {
    unacceptable("the manifest is of Docker schema version 1, which is no longer supported")
        .with_hint("push the image again with a current tool")
}

/// A list of at most `MAX` items. Further items are counted and dropped.
pub(crate) struct Bounded<T, const MAX: usize> {
    kept: Vec<T>,
    count: usize,
}

impl<T, const MAX: usize> Bounded<T, MAX> {
    pub(crate) fn all(self, of: &str, what: &str) -> Result<Vec<T>, RuntimeError> {
        if self.count > MAX {
            return Err(unacceptable(format!("the {of} has {} {what}; more than {MAX} are refused", self.count)));
        }
        Ok(self.kept)
    }
}

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Self { kept: Vec::new(), count: 0 }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Self::default())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while self.kept.len() < MAX {
            let Some(item) = list.next_element()? else { break };
            self.kept.push(item);
        }
        self.count = self.kept.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            self.count += 1;
        }
        Ok(self)
    }
}

pub(crate) fn corrupt(message: impl Into<String>) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::Corrupt, message)
}

pub(crate) fn unacceptable(message: impl Into<String>) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::Unacceptable, message)
}

/// Makes an untrusted text safe for a message: shortened, and on one line.
pub(crate) fn printable(text: &str) -> String {
    printable_start(text, 128)
}

/// Parses a JSON object. A list is rejected as in Go, although Serde would accept it for a struct.
pub(crate) fn object<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(serde_json::Error::custom("a list where an object is expected"));
    }
    list(bytes)
}

/// Parses any JSON document. The nesting is checked first, because Serde does not limit the nesting of unknown fields.
pub(crate) fn list<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let levels = nesting(bytes);
    if levels > NESTING_MAX {
        return Err(serde_json::Error::custom(format!(
            "nested {levels} levels deep; more than {NESTING_MAX} are refused"
        )));
    }
    serde_json::from_slice(bytes).map_err(shortened)
}

/// The maximum nesting of objects and lists in a JSON text; meaningless for other text.
fn nesting(bytes: &[u8]) -> usize {
    let (mut level, mut deepest, mut in_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in bytes {
        match (in_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b'{' | b'[') => {
                level += 1;
                deepest = deepest.max(level);
            }
            (false, b'}' | b']') => level = level.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Shortens and escapes an error, because Serde quotes an unexpected value or key in full, possibly megabytes.
fn shortened(error: serde_json::Error) -> serde_json::Error {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let reason = text.strip_suffix(&place).unwrap_or(&text);
    if reason.len() <= REASON_MAX && !reason.contains(is_unprintable) {
        return error;
    }
    let more = if reason.len() > REASON_MAX { "…" } else { "" };
    let shown = printable_start(reason, REASON_MAX);
    serde_json::Error::custom(format!("{shown}{more}{place}"))
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let size = Option::<i64>::deserialize(deserializer)?.unwrap_or_default();
    u64::try_from(size).map_err(|_| D::Error::custom(format!("size {size} is negative")))
}

#[cfg(test)]
mod tests;
