//! The private functions that fuzz targets check, in plain types.
//!
//! `crates/imagelet/tests/fuzz/` has the checks. The program itself does not call this module.

use std::{
    error::Error,
    fs::File,
    io::{self, BufRead, Read as _},
    os::fd::BorrowedFd,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, header};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, DigestAlgorithm, Platform, Reference},
};
use tokio::sync::mpsc;

use crate::{
    admission::{WriteGate, WrittenBytes},
    engine::choose_archived,
    hash::Hash,
    image_archive::{ArchiveFiles, ImageArchive, references},
    manifest::{BlobLayout, Descriptor, DocumentSource, ImageConfig, Index, Manifest, ManifestDocument, select},
    pipeline::{
        buffer_pool::{BLOCKS_QUEUED, Expansion, queue},
        frames::{Frame, FrameReader},
        inflate::{Bounds, inflate},
    },
    registry::{ReaderWait, challenges, read_token, registry_hosts_of},
    signature::{Identity, KeySource, PublicKeys, Requirement, SignaturePolicy, payload},
    unpack::{EntryRules, LayerMemory, Ownership, UnpackLimits, UnpackOptions, process_umask, unpack_layer, xattrs_at},
};

/// Small limits, which a short archive can reach.
pub const SMALL_ENTRIES_MAX: u64 = 200;
pub const SMALL_BYTES_MAX: u64 = 1 << 20;
const SMALL_MEMORY: u64 = 256 << 10;
const MEMORY: u64 = 64 << 20;

/// An accepted manifest or index.
#[derive(Debug)]
pub struct Document {
    pub is_index: bool,
    pub media_type: String,
    /// Digest, size and media type: of an image's configuration and layers, or of an index's entries.
    pub descriptors: Vec<(Digest, u64, String)>,
    /// Why the image is rejected, or why the index has no image for a platform.
    pub refusals: Vec<RuntimeError>,
}

pub fn manifest(bytes: &[u8], content_type: &str, platforms: &[Platform]) -> Result<Document, RuntimeError> {
    let (document, media_type) = ManifestDocument::parse_named(bytes, content_type)?;
    let (descriptors, refusals) = match &document {
        ManifestDocument::Image(manifest) => {
            let descriptors: Vec<&Descriptor> = std::iter::once(&manifest.config).chain(&manifest.layers).collect();
            (descriptors, manifest.check_layers().err().into_iter().collect())
        }
        ManifestDocument::Index(index) => (
            index.manifests.iter().collect(),
            platforms.iter().filter_map(|platform| not_offered(index, platform)).collect(),
        ),
    };
    Ok(Document {
        is_index: matches!(document, ManifestDocument::Index(_)),
        media_type,
        descriptors: descriptors
            .into_iter()
            .map(|part| (part.digest.clone(), part.size, part.media_type.clone()))
            .collect(),
        refusals,
    })
}

/// A source without documents: only the index decides.
struct IndexAlone;

impl DocumentSource for IndexAlone {
    type Document = ();

    async fn manifest(&self, _: &Descriptor) -> Result<((), ManifestDocument), RuntimeError> {
        Err(RuntimeError::new(RuntimeErrorKind::NotFound, "no document is there"))
    }

    async fn config(&self, _: &Manifest) -> Result<ImageConfig, RuntimeError> {
        unreachable!("there is no manifest")
    }
}

fn not_offered(index: &Index, platform: &Platform) -> Option<RuntimeError> {
    let selected = select(&IndexAlone, index.clone(), 1, platform).now_or_never().expect("no document is waited for");
    selected.err().filter(|error| error.kind() != RuntimeErrorKind::NotFound)
}

/// The path and key of a blob of an artifact, and whether the blob is an archive.
pub type PlainArtifactFile = (String, Digest, bool);

/// The files of an artifact, or `None` if the document is no artifact.
pub fn artifact(bytes: &[u8]) -> Result<Option<Vec<PlainArtifactFile>>, RuntimeError> {
    let ManifestDocument::Image(manifest) = ManifestDocument::parse(bytes, "")? else { return Ok(None) };
    if manifest.artifact_kind().is_none() {
        return Ok(None);
    }
    manifest.check_layers()?;
    let files = manifest.artifact_files()?.into_iter().map(|file| {
        let is_archive = matches!(file.layout, BlobLayout::Archive { .. });
        (file.layout.path().to_owned(), file.key, is_archive)
    });
    Ok(Some(files.collect()))
}

/// The diff-ids of a configuration, and an error for each platform on which the image does not run.
pub fn config(bytes: &[u8], platforms: &[Platform]) -> Result<(Vec<Digest>, Vec<RuntimeError>), RuntimeError> {
    let config = ImageConfig::parse(bytes)?;
    let refusals = platforms.iter().filter_map(|platform| config.platform.check(platform).err()).collect();
    Ok((config.diff_ids, refusals))
}

/// The scheme of a challenge, and its parameters as pairs of name and value.
pub type PlainChallenge = (String, Vec<(String, String)>);

pub fn parse_challenges(values: &[HeaderValue]) -> Result<Vec<PlainChallenge>, Box<dyn Error>> {
    let headers: HeaderMap = values.iter().map(|value| (header::WWW_AUTHENTICATE, value.clone())).collect();
    Ok(challenges(&headers)?.into_iter().map(|challenge| (challenge.scheme, challenge.parameters)).collect())
}

/// The hosts for an image as texts, from a `hosts.toml`, `registries.conf` or `registries.yaml`; the extension selects
/// the format. `None` if the file has no entry for the image's registry.
pub fn registry_hosts(text: &str, extension: &str, reference: &Reference) -> Result<Option<Vec<String>>, String> {
    let hosts = registry_hosts_of(text, extension, reference)?;
    Ok(hosts.map(|hosts| hosts.iter().map(|host| format!("{}{}", host.origin, host.path.base)).collect()))
}

pub fn token(body: &[u8]) -> Option<String> {
    read_token(body).map(|token| token.expose().to_owned())
}

#[derive(Debug)]
pub struct PolicyRule {
    pub place: String,
    /// Each requirement as one word: `accept`, `reject`, `sigstore` or `unsupported`.
    pub requirements: Vec<&'static str>,
    /// Why requirements cannot be met.
    pub problems: Vec<String>,
}

pub fn policy_rule(bytes: &[u8], reference: &Reference) -> Result<PolicyRule, String> {
    let policy = SignaturePolicy::parse(bytes)?;
    let rule = policy.rule(reference);
    let mut problems = Vec::new();
    let mut name = |requirement: &Requirement| match requirement {
        Requirement::Accept => "accept",
        Requirement::Reject => "reject",
        Requirement::Sigstore { keys, .. } => {
            let text = |key: &KeySource| if let KeySource::Text(text) = key { Some(text.clone()) } else { None };
            problems.extend(PublicKeys::parse(&keys.iter().filter_map(text).collect::<Vec<_>>()).err());
            "sigstore"
        }
        Requirement::Unsupported(why) => {
            problems.push(why.clone());
            "unsupported"
        }
    };
    let requirements = rule.requirements.iter().map(&mut name).collect();
    Ok(PolicyRule { place: rule.place, requirements, problems })
}

/// The digest in a signed text, and the identity rules that reject its name, the strictest first.
pub type SignedClaim = (Digest, Vec<(&'static str, String)>);

pub fn signed_claim(bytes: &[u8], reference: &Reference) -> Result<SignedClaim, String> {
    let (digest, name) = payload::parse(bytes)?;
    let identities = [
        ("exact", Identity::Exact),
        ("digest or exact", Identity::RepositoryOfDigestOrExact),
        ("repository", Identity::SameRepository),
    ];
    let refusal = |(of, identity): (_, Identity)| identity.check(reference, &name).err().map(|why| (of, why));
    Ok((digest, identities.into_iter().filter_map(refusal).collect()))
}

pub type Imported = Result<Vec<OpenedImage>, RuntimeError>;

#[derive(Debug)]
pub struct OpenedImage {
    pub references: Result<Vec<Reference>, RuntimeError>,
    pub chosen: Result<OpenedDocuments, RuntimeError>,
}

#[derive(Debug)]
pub struct OpenedDocuments {
    /// The root document and the manifest, each with its digest.
    pub documents: Vec<(Digest, Bytes)>,
    /// One item for each layer: its size, or an error if the archive does not have it.
    pub layers: Vec<Result<u64, RuntimeError>>,
}

pub fn import_tar(path: &Path) -> Imported {
    let file = File::open(path).expect("the caller wrote the file");
    let files = ArchiveFiles::of_tar(file, path, &LayerMemory::of_its_own(MEMORY))?;
    imported(files)
}

pub fn import_folder(path: &Path) -> Imported {
    imported(ArchiveFiles::of_folder(path)?)
}

fn imported(files: ArchiveFiles) -> Imported {
    let ImageArchive { blobs, images, .. } = ImageArchive::read(files, &AtomicBool::new(false))?;
    let platform: Platform = "linux/amd64".parse().expect("a platform");
    let read = images.into_iter().map(|image| {
        let chosen = choose_archived(&blobs, image.roots, Some(&platform)).map(|found| {
            let layers = found.manifest.layers.iter().map(|layer| blobs.open(layer).map(|_| layer.size)).collect();
            let documents = [found.first, found.chosen]
                .map(|document| (document.digest, document.bytes.read().expect("it is in memory")));
            OpenedDocuments { documents: documents.into(), layers }
        });
        OpenedImage { references: references(&image.names, None), chosen }
    });
    Ok(read.collect())
}

#[derive(Debug)]
pub struct Inflated {
    pub outcome: Result<(), RuntimeError>,
    pub bytes: Vec<u8>,
    /// Whether the next stage received the end mark.
    pub ended: bool,
}

/// Splits `compressed` into frames of `frame` bytes, and inflates them to at most `limit` bytes.
pub fn inflate_frames(compressed: &[u8], frame: usize, limit: u64) -> Inflated {
    let (sender, frames) = mpsc::channel(compressed.len().div_ceil(frame) + 1);
    let parts = compressed.chunks(frame).map(|part| Frame::Bytes(Bytes::copy_from_slice(part)));
    for frame in parts.chain([Frame::End]) {
        sender.try_send(frame).expect("the queue holds all frames");
    }
    let source = FrameReader::new(frames, ReaderWait::default(), WrittenBytes::default());
    let memory = LayerMemory::of_its_own(MEMORY);
    let (mut blocks, mut out) =
        queue(BLOCKS_QUEUED, &memory, Hash::new(DigestAlgorithm::Sha256), WriteGate::default(), None);
    let bounds = Bounds { expansion: Expansion::new(limit, &Arc::default()), memory, cancelled: Arc::default() };
    let mut bytes = Vec::new();
    let (outcome, ended) = std::thread::scope(|scope| {
        let inflater = scope.spawn(move || inflate(source, &mut blocks, bounds, None).1);
        let ended = out.read_to_end(&mut bytes).is_ok();
        (inflater.join().expect("inflating does not panic"), ended)
    });
    let outcome = match outcome {
        Ok(true) => Ok(()),
        Ok(false) => Err(RuntimeError::defect("the reader was not dropped")),
        Err(error) => Err(error),
    };
    Inflated { outcome, bytes, ended }
}

#[derive(Debug, Clone)]
pub struct Unpacked {
    pub entries: u64,
    pub bytes: u64,
    pub disk_bytes: u64,
    pub root_opaque: bool,
    pub implicit_directories: Vec<Vec<u8>>,
    /// The path of each ownership record, and whether the record is of a device that was not created.
    pub ownership: Vec<(String, bool)>,
}

/// How an archive is unpacked.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnpackForm<'a> {
    pub as_root: bool,
    /// Whether the limits are so small that a short archive reaches them.
    pub is_small: bool,
    /// The folder for the archive of an artifact, empty for the artifact's root. `None` for an image's layer.
    pub folder: Option<&'a str>,
}

/// Unpacks an archive. `record` is called with each path and its encoded record of `files.list`.
pub fn unpack(
    mut archive: &mut dyn BufRead,
    root: BorrowedFd<'_>,
    UnpackForm { as_root, is_small, folder }: UnpackForm<'_>,
    record: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<Unpacked, Box<dyn Error>> {
    let mut limits = UnpackLimits::default();
    if is_small {
        (limits.entries_max, limits.bytes_max) = (SMALL_ENTRIES_MAX, SMALL_BYTES_MAX);
        (limits.header_max, limits.depth_max, limits.ranges_max) = (16 << 10, 64, 64);
    }
    let options = UnpackOptions {
        ownership: if as_root { Ownership::Apply } else { Ownership::Record },
        rules: EntryRules::Own,
        limits,
        umask: process_umask(),
        memory: LayerMemory::of_its_own(if is_small { SMALL_MEMORY } else { MEMORY }),
        folder: folder.map(str::to_owned),
        cancelled: Arc::default(),
        direct_min: if is_small { u64::MAX } else { 1 << 10 },
    };
    let mut encoded = |path: &[u8], entry| {
        record(path, &postcard::to_stdvec(&entry).map_err(io::Error::other)?);
        Ok(())
    };
    let report = unpack_layer(&mut archive, root, &options, Some(&mut encoded))?;
    Ok(Unpacked {
        entries: report.entries,
        bytes: report.bytes,
        disk_bytes: report.disk_bytes,
        root_opaque: report.root_opaque,
        implicit_directories: report.implicit_directories,
        ownership: report.ownership.into_iter().map(|record| (record.path, record.device.is_some())).collect(),
    })
}

/// The digest of a file's extended attributes, as `files.list` stores it.
pub fn xattrs_sum(parent: BorrowedFd<'_>, name: &[u8]) -> Option<u128> {
    xattrs_at(parent, name).expect("attributes can be read")
}
