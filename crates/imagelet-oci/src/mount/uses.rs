//! Mounts in the form of containers, so that mounted images count as in use.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use async_trait::async_trait;
use imagelet_core::{
    image::ImageSpec,
    runtime::{Container, ContainerService, ContainerState, RuntimeError},
    text::file_time,
};

use super::{ListedMount, mounts};
use crate::store::Store;

#[derive(Clone, Debug)]
pub(crate) struct MountUses(pub(crate) Arc<Store>);

#[async_trait]
impl ContainerService for MountUses {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let store = Arc::clone(&self.0);
        let mounted = tokio::task::spawn_blocking(move || mounts(&store)).await??;
        Ok(mounted.into_iter().map(container).collect())
    }

    /// The store's list is complete: a mount that is not in it has ended.
    async fn is_gone(&self, _container_id: &str) -> Result<bool, RuntimeError> {
        Ok(true)
    }
}

fn container(mount: ListedMount) -> Container {
    Container {
        id: format!("mount:{}", mount.target.display()),
        sandbox_id: String::new(),
        name: mount.target.display().to_string(),
        image: ImageSpec::new(&mount.image),
        image_ref: mount.image.clone(),
        image_id: mount.image,
        state: ContainerState::Running,
        created_at: file_time(mount.mounted_at).unwrap_or(SystemTime::UNIX_EPOCH),
        labels: BTreeMap::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_mount_whose_note_has_no_time_is_in_use_since_an_unknown_time() {
        let created = |mounted_at| {
            let (target, image) = ("/mnt".into(), "sha256:1".to_owned());
            container(ListedMount { target, image, writable: false, mounted_at, shown: true }).created_at
        };
        assert_eq!(created(5), SystemTime::UNIX_EPOCH + Duration::from_secs(5));
        for mounted_at in [0, u64::MAX, u64::MAX / 2, 1 << 40] {
            assert_eq!(created(mounted_at), SystemTime::UNIX_EPOCH, "{mounted_at}");
        }
    }
}
