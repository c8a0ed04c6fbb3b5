//! Measures the disk that a runtime's images are on (`docs/spec/gc.md §13.2`).

use std::{io, sync::Arc};

use super::{
    disk::{DiskProbe, DiskUse},
    report::GcError,
};
use crate::runtime::RuntimeManager;

/// Measures the directory that the runtime reports for images.
///
/// An invisible directory has a capacity of zero, which only a threshold rejects.
pub(super) async fn measure(runtime: &RuntimeManager, probe: &Arc<dyn DiskProbe>) -> Result<DiskUse, GcError> {
    let filesystems = runtime.filesystem().await.map_err(GcError::Filesystem)?;
    let images = filesystems.images.into_iter().next().ok_or(GcError::NoImageFilesystem)?;
    let (probe, mountpoint) = (Arc::clone(probe), images.mountpoint.clone());
    let looked = tokio::task::spawn_blocking(move || probe.look(&mountpoint)).await;
    let disk = match looked.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(disk) => disk,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::debug!(mountpoint = %images.mountpoint.display(), "the image filesystem is not visible from here");
            DiskUse::default()
        }
        Err(cause) => return Err(GcError::Probe { cause }),
    };
    // Reservations are read after the disk: a layer that is committed in between counts twice rather than never.
    Ok(DiskUse { mountpoint: images.mountpoint, images: images.used, reserved: runtime.reserved(), ..disk })
}
