//! The port to a runtime that starts containers from images: containers, sandboxes and the images in use.

use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use async_trait::async_trait;

use super::details::Members;
use crate::error::RuntimeError;
use crate::image::ImageSpec;

/// The prefix of container ids that stand for mounts of the embedded store. No runtime has such ids.
const OWN: &str = "mount:";
/// The maximum length of a JSON text: the runtime's whole configuration, or a sandbox with its OCI specification.
const JSON_BYTES_MAX: usize = 4 << 20;
const NAME_BYTES_MAX: usize = 1024;

/// Reports the images in use: by a runtime behind CRI, or by the mounts of the embedded store.
#[async_trait]
pub trait ContainerService: Send + Sync + fmt::Debug {
    /// All containers, in any state. An exited container still uses its image.
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError>;

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }

    /// The ids or references of the images that a container mounts as volumes. Empty for a missing container.
    async fn mounted_images(&self, _container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }

    /// Whether a container that is no longer listed is definitely removed. Returns false in doubt.
    async fn is_gone(&self, _container_id: &str) -> Result<bool, RuntimeError> {
        Ok(false)
    }

    /// The image of the sandbox itself. The containers of the sandbox do not name this image.
    async fn sandbox_image(&self, _sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        Ok(SandboxImage::Unknown)
    }

    /// The names of the images for new sandboxes, if the runtime reports them.
    async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxImage {
    /// The id or a name of the image.
    Named(String),
    /// The sandbox exists, and the runtime does not report its image.
    Unknown,
    Gone,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoContainers;

#[async_trait]
impl ContainerService for NoContainers {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        Ok(Vec::new())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    /// The sandbox of the container. Empty for a mount of the embedded store.
    pub sandbox_id: String,
    pub name: String,
    pub image: ContainerImage,
    pub state: ContainerState,
    pub created_at: SystemTime,
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerImage {
    /// The image with its handler, in the spelling of the container's creator.
    pub spec: ImageSpec,
    /// The runtime's id or digest of the image.
    pub reference: String,
    /// The id of the image, if the runtime reports it (CRI 1.30).
    pub id: String,
}

impl ContainerImage {
    /// The texts that may name the image; each may be empty.
    pub fn names(&self) -> [&str; 3] {
        [&self.id, &self.reference, &self.spec.image]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    /// The container uses its image until the container is removed.
    Exited,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// The number of earlier sandboxes of the pod.
    pub attempt: u32,
    pub ready: bool,
    pub created_at: SystemTime,
    pub runtime_handler: String,
}

/// The containers of a runtime, and the mounts of the image store that the runtime uses. If one of the two fails, the
/// call fails, because the images in use are then unknown.
#[derive(Clone, Debug)]
pub struct CombinedContainers {
    own: Arc<dyn ContainerService>,
    runtime: Arc<dyn ContainerService>,
    name: String,
}

impl CombinedContainers {
    /// `own`: the mounts of the image store. `name`: the name of the runtime in error texts.
    pub fn new(own: Arc<dyn ContainerService>, runtime: Arc<dyn ContainerService>, name: impl Into<String>) -> Self {
        Self { own, runtime, name: name.into() }
    }

    fn of(&self, container_id: &str) -> &dyn ContainerService {
        if container_id.starts_with(OWN) { &*self.own } else { &*self.runtime }
    }

    fn unavailable(&self, error: RuntimeError) -> RuntimeError {
        error.about(format!("could not ask `{}` which images of the store its containers use", self.name))
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

impl SandboxImage {
    /// Reads the verbose status of an existing sandbox. containerd and CRI-O use the same key for the image.
    pub fn of_info(info: &BTreeMap<String, String>) -> Self {
        reported_name(info, "info", "image").map_or(Self::Unknown, Self::Named)
    }
}

/// The image for new sandboxes, from the verbose status of a runtime. `None`: the status does not name the image.
pub fn default_sandbox_image(info: &BTreeMap<String, String>) -> Option<String> {
    reported_name(info, "config", "sandboxImage")
}

/// The name in a member of the JSON text of a key. A text that is invalid or too long is treated as absent.
fn reported_name(info: &BTreeMap<String, String>, key: &str, member: &str) -> Option<String> {
    let text = info.get(key).filter(|text| text.len() <= JSON_BYTES_MAX)?;
    let name: String = Members::of(text)?.get(member)?;
    Some(name).filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RuntimeErrorKind;

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
                image: ContainerImage::default(),
                state: ContainerState::Running,
                created_at: SystemTime::UNIX_EPOCH,
                labels: BTreeMap::default(),
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

    fn info(key: &str, text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), text.to_owned())])
    }

    #[test]
    fn containerd_and_cri_o_report_the_images_of_sandboxes() {
        let containerd = r#"{"pid":7,"image":"registry.k8s.io/pause:3.6","snapshotKey":"s","runtimeSpec":{"a":[]}}"#;
        let named = SandboxImage::Named("registry.k8s.io/pause:3.6".to_owned());
        assert_eq!(SandboxImage::of_info(&info("info", containerd)), named);
        let status = r#"{"containerd":{"snapshotter":"overlayfs"},"sandboxImage":"registry.k8s.io/pause:3.6"}"#;
        assert_eq!(default_sandbox_image(&info("config", status)).as_deref(), Some("registry.k8s.io/pause:3.6"));
    }

    #[test]
    fn a_damaged_report_names_no_image() {
        let long = format!(r#"{{"image":"{0}","sandboxImage":"{0}"}}"#, "x".repeat(NAME_BYTES_MAX + 1));
        let huge = format!(r#"{{"image":"a","sandboxImage":"a","pad":"{}"}}"#, "x".repeat(JSON_BYTES_MAX));
        let deep = "[".repeat(100_000);
        for text in ["", "x", "[]", "7", "{}", r#"{"image":7,"sandboxImage":[]}"#, r#"{"image":"","sandboxImage":""}"#]
            .into_iter()
            .chain([long.as_str(), &huge, &deep])
        {
            assert_eq!(SandboxImage::of_info(&info("info", text)), SandboxImage::Unknown, "{text:.80}");
            assert_eq!(default_sandbox_image(&info("config", text)), None, "{text:.80}");
        }
        assert_eq!(SandboxImage::of_info(&BTreeMap::new()), SandboxImage::Unknown);
    }
}
