//! The last stage: writes plain blocks as files into a staging folder, and computes the diff-id from their hash.

use std::{
    collections::BTreeMap,
    iter,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    sync::{Arc, atomic::AtomicBool},
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    image::{Digest, counted},
};
use rustix::fd::BorrowedFd;

use super::{LayerJob, SMALLER_LAYER_NICE, buffer_pool::BlockReader, change_nice, unconfined};
use crate::{
    confine::AllowedFolder,
    layer_folders::open_folder,
    manifest::BlobLayout,
    store::{
        ContentProof, FileManifestWriter, LIST, LayerEnd, LayerRecord, PROOF, StagedLayer, Staging, TREE,
        storage_error, write_implicit,
    },
    unpack::{
        ARTIFACT_NAMES_MAX, DIRECT_MIN, DiskUsage, EntryRules, FileManifest, FileRecord, LayerMemory, Ownership,
        UnpackError, UnpackErrorKind, UnpackLimits, UnpackOptions, UnpackReport, WholeFile, place_file, process_umask,
        unpack_layer,
    },
};

/// Mode of a layer's root if the archive has no entry for it; independent of the umask.
const ROOT_MODE: u32 = 0o755;

impl LayerJob {
    /// Unpacks on a confined thread, and blocks. An error removes the staging folder, unless the layer stays for the
    /// next pull. `previous` is the folder of an earlier attempt's files.
    pub(super) fn unpack(
        &self,
        staging: Staging,
        previous: Option<&OwnedFd>,
        mut reader: BlockReader,
        bounds: (Arc<LayerMemory>, Arc<AtomicBool>),
    ) -> Result<StagedLayer, RuntimeError> {
        self.staged(staging, bounds, |root, options, list| {
            let mut listed = list.map(Listing::recorder);
            let folders: Vec<_> = iter::once(root).chain(previous.map(AsFd::as_fd)).map(AllowedFolder::Full).collect();
            let is_largest = self.terms.is_largest;
            let unpacked = self.terms.confinement.run(&folders, move || {
                if !is_largest {
                    change_nice(SMALLER_LAYER_NICE);
                }
                let manifest = listed.as_mut().map(|listed| listed as FileManifest<'_>);
                let report = unpack_layer(&mut reader, root, options, manifest)?;
                failpoint!("unpack.end");
                Ok((report, reader.drain()))
            });
            let (report, drained) =
                unpacked.map_err(unconfined)?.map_err(|error| self.in_layer(unpack_error(error)))?;
            let diff_id = drained.map_err(|error| {
                self.in_layer(RuntimeError::new(RuntimeErrorKind::Corrupt, "the archive breaks off").caused_by(error))
            })?;
            let Some(wanted) = self.content_digest().filter(|wanted| diff_id != **wanted) else { return Ok(report) };
            let (digest, document) =
                (&self.descriptor.digest, if self.artifact.is_some() { "manifest" } else { "configuration" });
            let message =
                format!("layer `{digest}` unpacks to `{diff_id}`, and the image's {document} says `{wanted}`");
            Err(RuntimeError::new(RuntimeErrorKind::Corrupt, message))
        })
    }

    pub(super) fn place_file(
        &self,
        file: &WholeFile<'_>,
        memory: &Arc<LayerMemory>,
    ) -> Result<StagedLayer, RuntimeError> {
        let staging = self.staging.store.stage()?;
        self.staged(staging, (Arc::clone(memory), Arc::default()), |root, options, list| {
            let mut listed = list.map(Listing::recorder);
            let manifest = listed.as_mut().map(|listed| listed as FileManifest<'_>);
            place_file(file, root, options, manifest).map_err(|error| self.in_layer(unpack_error(error)))
        })
    }

    fn staged(
        &self,
        staging: Staging,
        (memory, cancelled): (Arc<LayerMemory>, Arc<AtomicBool>),
        write: impl FnOnce(BorrowedFd<'_>, &UnpackOptions, Option<&mut Listing>) -> Result<UnpackReport, RuntimeError>,
    ) -> Result<StagedLayer, RuntimeError> {
        let tree = staging.path().join(TREE);
        let open = || -> std::io::Result<_> {
            std::fs::create_dir(&tree)?;
            std::fs::set_permissions(&tree, std::fs::Permissions::from_mode(ROOT_MODE))?;
            Ok(open_folder(&tree)?)
        };
        let root = open().map_err(|error| storage_error(format!("could not create `{}`", tree.display()), error))?;
        failpoint!("unpack.tree");
        let as_root = rustix::process::geteuid().is_root();
        let options = UnpackOptions {
            ownership: if as_root { Ownership::Apply } else { Ownership::Record },
            rules: match self.staging.end {
                LayerEnd::Store => EntryRules::Own,
                LayerEnd::Sink => EntryRules::Containerd,
            },
            limits: UnpackLimits {
                entries_max: self.terms.limits.entries_max,
                free_bytes_floor: self.terms.limits.free_bytes_floor,
                free_inodes_floor: self.terms.limits.free_inodes_floor,
                ..UnpackLimits::default()
            },
            memory,
            folder: match &self.artifact {
                Some(BlobLayout::Archive { folder, .. }) => Some(folder.clone()),
                None | Some(BlobLayout::File(_)) => None,
            },
            umask: process_umask(),
            cancelled,
            direct_min: DIRECT_MIN,
        };
        let unlisted = |error| storage_error("could not write the layer's list of files", error);
        let mut list = match self.staging.end {
            LayerEnd::Store => {
                let file = std::fs::File::create(staging.path().join(LIST));
                Some(Listing::Files(file.and_then(FileManifestWriter::new).map_err(unlisted)?))
            }
            LayerEnd::Sink => self.artifact.is_some().then(|| Listing::Proof(ContentProof::new())),
        };
        let root = std::os::fd::AsFd::as_fd(&root);
        let report = write(root, &options, list.as_mut())?;
        let names_max = options.limits.entries_max.min(ARTIFACT_NAMES_MAX);
        if self.artifact.is_some() && report.entries + report.implicit_directories.len() as u64 > names_max {
            let message = format!("more than {}", counted(names_max, "name"));
            return Err(self.in_layer(RuntimeError::new(RuntimeErrorKind::Unacceptable, message)));
        }
        failpoint!("unpack.verified");
        let listed = match list {
            Some(Listing::Files(list)) => Some((LIST, list.finish())),
            Some(Listing::Proof(proof)) => Some((PROOF, proof.write(staging.path()))),
            None => None,
        };
        let mut sums = BTreeMap::new();
        if let Some((name, digest)) = listed {
            sums.insert(name.to_owned(), digest.map_err(unlisted)?);
        }
        if let Some(first) = report.ownership.first() {
            if self.staging.end == LayerEnd::Sink {
                // A sink does not receive these records.
                let (path, more) = (&first.path, report.ownership.len() - 1);
                let message = format!("`{path}` and {more} more entries cannot be made here as the archive has them");
                return Err(self.in_layer(RuntimeError::new(RuntimeErrorKind::Unsupported, message)));
            }
            let bytes = serde_json::to_vec(&report.ownership).expect("a list of owners is JSON");
            sums.insert("ownership.json".into(), Digest::of(&bytes));
            std::fs::write(staging.path().join("ownership.json"), bytes)
                .map_err(|error| storage_error("could not write the layer's ownership", error))?;
            failpoint!("unpack.ownership");
        }
        let mut implicit = report.implicit_directories;
        if self.staging.end == LayerEnd::Sink {
            // containerd creates the root itself and ignores the entry of the root.
            implicit.push(Vec::new());
        }
        if !implicit.is_empty() {
            let digest = write_implicit(staging.path(), &implicit)
                .map_err(|error| storage_error("could not write the layer's implied directories", error))?;
            sums.insert("implicit.json".into(), digest);
            failpoint!("unpack.implicit");
        }
        let record = LayerRecord {
            diff_id: self.diff_id.clone(),
            entries: report.entries,
            disk_bytes: report.disk_bytes,
            allocated: DiskUsage::default(),
            root_opaque: report.root_opaque,
            unsettled: self.staging.store.unsettled_mark(self.staging.end),
            end: self.staging.end,
            sums,
        };
        let (store, view) = (&self.staging.store, &self.staging.view);
        let layer = StagedLayer::new(store, staging, &self.descriptor, (record, report.allocated), Arc::clone(view))?;
        // With a kept blob, the layer needs no spare: the next pull resumes from the blob, which a spare would lack.
        if self.blob.is_kept {
            return Ok(layer);
        }
        layer.resumable(self.session.reference().repository(), &self.blob.resumption)
    }
}

enum Listing {
    Files(FileManifestWriter),
    Proof(ContentProof),
}

impl Listing {
    fn recorder(&mut self) -> impl FnMut(&[u8], FileRecord) -> std::io::Result<()> + Send {
        |path, record| match self {
            Self::Files(list) => list.record(path, &record),
            Self::Proof(proof) => proof.record(path, &record),
        }
    }
}

fn unpack_error(error: UnpackError) -> RuntimeError {
    let message = error.to_string();
    let kind = match (error.kind, error.source) {
        (UnpackErrorKind::Io, Some(source)) => return storage_error(message, source),
        (UnpackErrorKind::Full, _) => {
            return RuntimeError::new(RuntimeErrorKind::DiskFull, message)
                .with_hint("make room with `imagelet gc`, or name a larger place with --store DIR");
        }
        (UnpackErrorKind::Limit, _) => RuntimeErrorKind::Unacceptable,
        (UnpackErrorKind::Busy, _) => RuntimeErrorKind::Unavailable,
        (UnpackErrorKind::Cancelled, _) => RuntimeErrorKind::Cancelled,
        _ => RuntimeErrorKind::Corrupt,
    };
    RuntimeError::new(kind, message)
}
