//! Converts wire messages to the types of the core and back.
//!
//! An absent or out-of-range value becomes the nearest valid value.

mod auth;
mod checks;
mod runtime_handler;
mod status;

use std::{path::PathBuf, time::SystemTime};

pub(crate) use auth::{auth_to_wire, credential_from_wire, without_credential};
pub use checks::{check_container_status, check_sandbox_status, check_status, check_version};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    events::PodIdentity,
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    ports::{
        Container, ContainerImage, ContainerState, EncodedPod, FilesystemUsage, ImageFilesystems, Patience,
        PullRequest, Sandbox,
    },
};
use jiff::Timestamp;
use prost::Message as _;
pub(crate) use runtime_handler::HANDLER_ANNOTATION;
pub use runtime_handler::Handlers;
pub(crate) use status::{Call, code_name, error_from_status, status_from_error};

use crate::cri::v1;

pub fn spec_to_wire(spec: &ImageSpec) -> v1::ImageSpec {
    v1::ImageSpec {
        image: spec.image.clone(),
        annotations: spec.annotations.iter().cloned().collect(),
        runtime_handler: spec.runtime_handler.clone(),
        ..v1::ImageSpec::default()
    }
}

pub fn spec_from_wire(spec: Option<v1::ImageSpec>) -> ImageSpec {
    let spec = spec.unwrap_or_default();
    ImageSpec {
        image: spec.image,
        runtime_handler: spec.runtime_handler,
        annotations: spec.annotations.into_iter().collect(),
    }
}

/// The image that a filter selects. `None` selects all images, because the filter, its image or the name is empty.
pub fn filter_from_wire(filter: Option<v1::ImageFilter>) -> Option<ImageSpec> {
    let spec = spec_from_wire(filter?.image);
    (!spec.image.is_empty()).then_some(spec)
}

pub(crate) fn image_to_wire(image: Image) -> v1::Image {
    let (uid, username) = match image.user {
        ImageUser::Unset => (None, String::new()),
        ImageUser::Uid(uid) => (Some(uid), String::new()),
        ImageUser::Name(name) => (None, name),
    };
    let spec = (image.spec != ImageSpec::default()).then(|| spec_to_wire(&image.spec));
    v1::Image {
        id: image.id.as_str().to_owned(),
        repo_tags: image.tags,
        repo_digests: image.digests,
        size: image.size.0,
        uid,
        username,
        spec,
        pinned: image.pinned,
    }
}

pub fn image_from_wire(image: v1::Image) -> Image {
    let user = match image.uid {
        Some(uid) => ImageUser::Uid(uid),
        None if image.username.is_empty() => ImageUser::Unset,
        None => ImageUser::Name(image.username),
    };
    Image {
        id: ImageId::new(image.id),
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: ByteSize(image.size),
        user,
        spec: spec_from_wire(image.spec),
        pinned: image.pinned,
        artifact: None,
    }
}

pub fn pull_to_wire(request: &PullRequest) -> v1::PullImageRequest {
    v1::PullImageRequest {
        image: Some(spec_to_wire(&request.image)),
        auth: request.credential.as_ref().map(|credential| auth_to_wire(credential, &request.image.image)),
        sandbox_config: sandbox_config_to_wire(request),
    }
}

fn sandbox_config_to_wire(request: &PullRequest) -> Option<Vec<u8>> {
    if let Some(encoded) = &request.encoded_pod {
        return Some(encoded.bytes().to_owned());
    }
    let [name, uid, namespace] = [&request.pod.name, &request.pod.uid, &request.pod.namespace].map(ToString::to_string);
    let metadata = Some(v1::PodSandboxMetadata { name, uid, namespace, attempt: 0 });
    let config = v1::PodSandboxConfig { metadata, ..v1::PodSandboxConfig::default() };
    (request.pod != PodIdentity::default()).then(|| config.encode_to_vec())
}

pub fn pull_from_wire(request: v1::PullImageRequest, handlers: &Handlers) -> Result<PullRequest, RuntimeError> {
    let mut image = spec_from_wire(request.image);
    let config = request.sandbox_config.as_deref().map(v1::PodSandboxConfig::decode).transpose().map_err(|error| {
        RuntimeError::new(RuntimeErrorKind::InvalidArgument, "invalid configuration of the pod").caused_by(error)
    })?;
    let annotations = config.as_ref().map(|config| &config.annotations);
    image.runtime_handler = handlers.choose(&image.runtime_handler, annotations)?;
    let credential = match request.auth {
        Some(auth) => credential_from_wire(&auth, &image.image)?,
        None => None,
    };
    let v1::PodSandboxMetadata { name, namespace, uid, .. } =
        config.and_then(|config| config.metadata).unwrap_or_default();
    Ok(PullRequest {
        image,
        credential,
        pod: PodIdentity { namespace: namespace.into(), name: name.into(), uid: uid.into() },
        encoded_pod: request.sandbox_config.as_deref().map(EncodedPod::new),
        // The kubelet repeats a failed request, so imagelet retries only once.
        patience: Patience::ONE_RETRY,
        ..PullRequest::default()
    })
}

/// Fills every field and both lists, because the kubelet reads the first entry of each list without a check.
pub fn filesystems_to_wire(filesystems: &ImageFilesystems) -> v1::ImageFsInfoResponse {
    let usages = |usages: &[FilesystemUsage]| usages.iter().map(usage_to_wire).collect::<Vec<_>>();
    let image_filesystems = usages(&filesystems.images);
    let container_filesystems = match usages(&filesystems.containers) {
        none if none.is_empty() => image_filesystems.clone(),
        some => some,
    };
    v1::ImageFsInfoResponse { image_filesystems, container_filesystems }
}

pub fn filesystems_from_wire(response: v1::ImageFsInfoResponse) -> ImageFilesystems {
    let usages = |usages: Vec<v1::FilesystemUsage>| usages.into_iter().map(usage_from_wire).collect::<Vec<_>>();
    let images = usages(response.image_filesystems);
    // If containerd reports no file system for containers, writable layers are on the image file system.
    let containers = match usages(response.container_filesystems) {
        none if none.is_empty() => images.clone(),
        some => some,
    };
    ImageFilesystems { images, containers, ..ImageFilesystems::default() }
}

fn usage_to_wire(usage: &FilesystemUsage) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        timestamp: nanoseconds(usage.measured_at).max(1),
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: usage.mountpoint.to_string_lossy().into_owned() }),
        used_bytes: Some(usage.used.0),
        inodes_used: Some(usage.inodes_used.unwrap_or(0)),
    }
}

fn usage_from_wire(usage: v1::FilesystemUsage) -> FilesystemUsage {
    FilesystemUsage {
        measured_at: time(usage.timestamp),
        mountpoint: usage.fs_id.map(|id| PathBuf::from(id.mountpoint)).unwrap_or_default(),
        used: ByteSize(usage.used_bytes.unwrap_or(0)),
        inodes_used: usage.inodes_used,
    }
}

pub fn container_from_wire(container: v1::Container) -> Container {
    let state = match container.state {
        1 => ContainerState::Running,
        2 => ContainerState::Exited,
        3 => ContainerState::Unknown,
        // A container also uses its image in a state that CRI adds later.
        _ => ContainerState::Created,
    };
    Container {
        id: container.id,
        sandbox_id: container.pod_sandbox_id,
        name: container.metadata.map(|metadata| metadata.name).unwrap_or_default(),
        image: ContainerImage {
            spec: spec_from_wire(container.image),
            reference: container.image_ref,
            id: container.image_id,
        },
        state,
        created_at: time(container.created_at),
        labels: container.labels,
    }
}

// Values of CRI's enumerations.
const SANDBOX_READY: i32 = 0;
pub(crate) const CGROUPS_BY_SYSTEMD: i32 = 0;
pub(crate) const CGROUPS_BY_FILES: i32 = 1;

pub fn sandbox_from_wire(sandbox: v1::PodSandbox) -> Option<Sandbox> {
    let ready = sandbox.state == SANDBOX_READY;
    let metadata = sandbox.metadata?;
    Some(Sandbox {
        id: sandbox.id,
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        attempt: metadata.attempt,
        ready,
        created_at: time(sandbox.created_at),
        runtime_handler: sandbox.runtime_handler,
    })
}

pub fn volumes_from_wire(status: v1::ContainerStatus) -> Vec<String> {
    let mut images: Vec<String> = status
        .mounts
        .into_iter()
        .filter_map(|mount| mount.image)
        .flat_map(|spec| [spec.image, spec.image_ref])
        .filter(|image| !image.is_empty())
        .collect();
    images.sort_unstable();
    images.dedup();
    images
}

fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanoseconds| -nanoseconds),
    }
}

fn time(nanoseconds: i64) -> SystemTime {
    Timestamp::from_nanosecond(nanoseconds.into()).map_or(SystemTime::UNIX_EPOCH, SystemTime::from)
}

#[cfg(test)]
mod tests;
