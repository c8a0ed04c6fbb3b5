//! The removal of one image that a person ordered.

use std::time::SystemTime;

use tokio::time::Instant;

use super::{GcError, ImageGc};
use crate::{
    image::{Image, ImageSpec},
    inventory::Ordered,
    runtime::RuntimeError,
};

/// Why an image was not removed on order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// These use it.
    #[error("image `{image}` is in use by {}", by.join(", "))]
    InUse {
        /// The name it was ordered by.
        image: String,
        /// Containers, mounts, or what else is done with it right now.
        by: Vec<String>,
    },
    /// Who uses it could not be asked, or the answer is not to be believed.
    #[error(transparent)]
    Unknown(#[from] GcError),
    /// The store did not find or remove it.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl ImageGc {
    /// Removes one image: age, pins and leases do not stand against it, users do. `None`: it is not there.
    ///
    /// Whoever asks for it meanwhile waits, and learns that it is gone.
    ///
    /// # Errors
    /// When it is in use, when that cannot be told, or when the store refuses.
    pub async fn remove_ordered(&self, spec: &ImageSpec, now: SystemTime) -> Result<Option<Image>, OrderError> {
        // One collection or order at a time.
        let waiting = Instant::now();
        let _turn = self.turn.lock().await;
        let now = now + waiting.elapsed();
        let Some(image) = self.runtime.status(spec).await? else { return Ok(None) };
        let ordered = self.inventory.clear_ordered(&image, now).await.map_err(GcError::Inventory)?;
        let _removal = match ordered {
            Ordered::Free(removal) => removal,
            Ordered::InUse(by) => return Err(OrderError::InUse { image: spec.image.clone(), by }),
            Ordered::Doubtful => return Err(GcError::ContainersVanished.into()),
        };
        self.runtime.remove(&ImageSpec { image: image.id.to_string(), ..image.spec.clone() }).await?;
        Ok(Some(image))
    }
}
