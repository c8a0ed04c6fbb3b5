//! Mounts in the form of containers, so that mounted images count as in use.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    image::ImageSpec,
    runtime::{Container, ContainerService, ContainerState, RuntimeError},
};

use super::mounts;
use crate::store::Store;

#[derive(Clone, Debug)]
pub(crate) struct MountUses(pub(crate) Arc<Store>);

#[async_trait]
impl ContainerService for MountUses {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let store = Arc::clone(&self.0);
        let mounted = tokio::task::spawn_blocking(move || mounts(&store))
            .await
            .map_err(|error| RuntimeError::defect("could not list mounts").caused_by(error))??;
        Ok(mounted
            .into_iter()
            .map(|mount| Container {
                id: format!("mount:{}", mount.target.display()),
                sandbox_id: String::new(),
                name: mount.target.display().to_string(),
                image: ImageSpec::new(&mount.image),
                image_ref: mount.image.clone(),
                image_id: mount.image,
                state: ContainerState::Running,
                created_at: SystemTime::UNIX_EPOCH + Duration::from_secs(mount.mounted_at),
                labels: BTreeMap::default(),
            })
            .collect())
    }

    /// The store's list is complete: a mount that is not in it has ended.
    async fn is_gone(&self, _container_id: &str) -> Result<bool, RuntimeError> {
        Ok(true)
    }
}
