//! Combines a runtime's containers with the mounts of the image store that the runtime uses.

use std::sync::Arc;

use async_trait::async_trait;

use super::container::{Container, ContainerService, Sandbox, SandboxImage};
use crate::runtime::RuntimeError;

/// The id prefix of the store's own uses; no runtime has such ids.
const OWN: &str = "mount:";

/// Reports both sets of uses. It fails where either side fails, as the images in use are then unknown.
#[derive(Clone, Debug)]
pub struct CombinedContainers {
    own: Arc<dyn ContainerService>,
    runtime: Arc<dyn ContainerService>,
    name: String,
}

impl CombinedContainers {
    /// Combines both; errors name the runtime so.
    pub fn new(
        own: Arc<dyn ContainerService>,
        runtime: Arc<dyn ContainerService>,
        name: impl Into<String>,
    ) -> CombinedContainers {
        Self { own, runtime, name: name.into() }
    }

    fn of(&self, container_id: &str) -> &dyn ContainerService {
        if container_id.starts_with(OWN) { &*self.own } else { &*self.runtime }
    }

    fn unavailable(&self, error: RuntimeError) -> RuntimeError {
        let message = format!("could not ask `{}` which images of the store its containers use", self.name);
        RuntimeError::new(error.kind(), message).caused_by(error)
    }
}

#[async_trait]
impl ContainerService for CombinedContainers {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let mut containers = self.own.containers().await?;
        containers.extend(self.runtime.containers().await.map_err(|error| self.unavailable(error))?);
        Ok(containers)
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        let mut sandboxes = self.own.sandboxes().await?;
        sandboxes.extend(self.runtime.sandboxes().await.map_err(|error| self.unavailable(error))?);
        Ok(sandboxes)
    }

    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        self.of(container_id).mounted_images(container_id).await
    }

    async fn is_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
        self.of(container_id).is_gone(container_id).await
    }

    // The embedded store has no sandboxes.
    async fn sandbox_image(&self, sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        self.runtime.sandbox_image(sandbox_id).await.map_err(|error| self.unavailable(error))
    }

    async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        self.runtime.default_sandbox_images().await.map_err(|error| self.unavailable(error))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        image::ImageSpec,
        runtime::{ContainerState, RuntimeErrorKind},
    };

    /// Lists one container, mounts one image into it, or fails.
    #[derive(Debug)]
    struct One {
        id: &'static str,
        is_away: bool,
    }

    #[async_trait]
    impl ContainerService for One {
        async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
            if self.is_away {
                return Err(RuntimeError::new(RuntimeErrorKind::Unavailable, "connection refused"));
            }
            Ok(vec![Container {
                id: self.id.to_owned(),
                sandbox_id: String::new(),
                name: String::new(),
                image: ImageSpec::default(),
                image_ref: String::new(),
                image_id: String::new(),
                state: ContainerState::Running,
                created_at: SystemTime::UNIX_EPOCH,
                labels: std::collections::BTreeMap::default(),
            }])
        }

        async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
            assert_eq!(container_id, self.id);
            Ok(vec![self.id.to_owned()])
        }

        async fn is_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
            Ok(container_id == self.id)
        }
    }

    fn beside(is_away: bool) -> CombinedContainers {
        let (own, runtime) = (One { id: "mount:/mnt", is_away: false }, One { id: "c1", is_away });
        CombinedContainers::new(Arc::new(own), Arc::new(runtime), "unix:///run/x.sock")
    }

    #[tokio::test]
    async fn uses_of_both_are_listed_and_each_is_asked_about_its_own() {
        let both = beside(false);
        let ids: Vec<String> = both.containers().await.unwrap().into_iter().map(|it| it.id).collect();
        assert_eq!(ids, ["mount:/mnt", "c1"]);
        for id in ids {
            assert_eq!(both.mounted_images(&id).await.unwrap(), [id.as_str()]);
            assert!(both.is_gone(&id).await.unwrap());
        }
    }

    #[tokio::test]
    async fn without_an_answer_of_the_runtime_there_is_none() {
        let error = beside(true).containers().await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::Unavailable);
        let text = error.chain();
        assert!(text.contains("unix:///run/x.sock") && text.contains("connection refused"), "{text}");
    }
}
