//! The last stage: plain blocks become files in a staging folder, and their hash the layer's identity.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
};

use imagelet_core::{
    image::Digest,
    runtime::{RuntimeError, RuntimeErrorKind},
};
use rustix::fs::{Mode, OFlags};

use super::{
    Hash, LayerJob,
    blocks::{BlockQueue, BlockReader},
    unconfined,
};
use crate::{
    failpoint::Step,
    store::{LIST, LayerRecord, ListWriter, StagedLayer, Staging, storage_error, write_implicit},
    unpack::{
        LayerMemory, OverlayForm, Ownership, UnpackError, UnpackLimits, UnpackOptions, disk_size, process_umask,
        unpack_layer_listed,
    },
};

impl LayerJob {
    /// Runs on a blocking thread, and what reads the archive on one that is confined. The staging folder goes with an error.
    pub(super) fn unpack(
        &self,
        staging: Staging,
        blocks: BlockQueue,
        memory: Arc<LayerMemory>,
        cancelled: Arc<AtomicBool>,
    ) -> Result<StagedLayer, RuntimeError> {
        let tree = staging.path().join("fs");
        let open = || -> std::io::Result<_> {
            std::fs::DirBuilder::new().create(&tree)?;
            Ok(rustix::fs::open(&tree, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
        };
        let root = open().map_err(|error| storage_error(format!("could not create `{}`", tree.display()), error))?;
        Step::UnpackTree.reach();
        let mut reader = BlockReader::new(blocks, Hash::new(self.diff_id.algorithm())).telling(self.landing.clone());
        let as_root = rustix::process::geteuid().is_root();
        let options = UnpackOptions {
            ownership: if as_root { Ownership::Apply } else { Ownership::Record },
            overlay: if as_root { OverlayForm::Trusted } else { OverlayForm::User },
            limits: UnpackLimits {
                entries_max: self.limits.entries_max,
                free_bytes_floor: self.limits.free_bytes_floor,
                free_inodes_floor: self.limits.free_inodes_floor,
                ..UnpackLimits::default()
            },
            memory,
            umask: process_umask(),
            cancelled,
        };
        let unlisted = |error| storage_error("could not write the layer's list of files", error);
        let mut list = ListWriter::new(std::fs::File::create(staging.path().join(LIST)).map_err(unlisted)?);
        let root = std::os::fd::AsFd::as_fd(&root);
        let list_ref = &mut list;
        let unpacked = self.confinement.run(Some(root), move || {
            let report = unpack_layer_listed(&mut reader, root, &options, list_ref)?;
            Step::UnpackEnd.reach();
            Ok((report, reader.drain()))
        });
        let (report, drained) = unpacked.map_err(unconfined)?.map_err(|error| self.in_layer(unpack_error(error)))?;
        let diff_id = drained.map_err(|error| {
            self.in_layer(RuntimeError::new(RuntimeErrorKind::Corrupt, "the archive breaks off").caused_by(error))
        })?;
        if diff_id != self.diff_id {
            return Err(RuntimeError::new(
                RuntimeErrorKind::Corrupt,
                format!(
                    "layer `{}` unpacks to `{diff_id}`, and the image's configuration says `{}`",
                    self.descriptor.digest, self.diff_id
                ),
            ));
        }
        Step::UnpackVerified.reach();
        let (list_digest, list_bytes) = list.finish().map_err(unlisted)?;
        let mut sums = BTreeMap::from([(LIST.to_owned(), list_digest.to_string())]);
        if !report.ownership.is_empty() {
            let bytes = serde_json::to_vec(&report.ownership).expect("a list of owners is JSON");
            sums.insert("ownership.json".into(), Digest::of(&bytes).to_string());
            std::fs::write(staging.path().join("ownership.json"), bytes)
                .map_err(|error| storage_error("could not write the layer's ownership", error))?;
            Step::UnpackOwnership.reach();
        }
        if !report.implicit_directories.is_empty() {
            let digest = write_implicit(staging.path(), &report.implicit_directories)
                .map_err(|error| storage_error("could not write the layer's implied directories", error))?;
            sums.insert("implicit.json".into(), digest.to_string());
            Step::UnpackImplicit.reach();
        }
        let record = LayerRecord {
            diff_id: diff_id.to_string(),
            entries: report.entries,
            bytes: report.bytes,
            disk_bytes: report.disk_bytes + disk_size(list_bytes),
            allocated: None,
            root_opaque: report.root_opaque,
            unsettled: self.store.unsettled_mark(),
            sums,
        };
        StagedLayer::new(staging, (diff_id, &self.descriptor), record, Arc::clone(&self.view))
    }
}

fn unpack_error(error: UnpackError) -> RuntimeError {
    let kind = match &error {
        UnpackError::Io { .. } => {
            let message = error.to_string();
            return match error {
                UnpackError::Io { source, .. } => storage_error(message, source),
                _ => RuntimeError::other(message),
            };
        }
        UnpackError::Full { .. } => {
            return RuntimeError::new(RuntimeErrorKind::DiskFull, error.to_string())
                .with_hint("make room with `imagelet gc`, or name a larger place with --store DIR");
        }
        UnpackError::Limit { .. } => RuntimeErrorKind::Unacceptable,
        UnpackError::Busy { .. } => RuntimeErrorKind::Unavailable,
        UnpackError::Cancelled => RuntimeErrorKind::Cancelled,
        _ => RuntimeErrorKind::Corrupt,
    };
    RuntimeError::new(kind, error.to_string())
}
