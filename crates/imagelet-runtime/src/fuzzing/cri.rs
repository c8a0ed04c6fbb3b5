//! Fuzz access to private conversions from wire messages to core types and back.
//!
//! The checks are in `crates/imagelet/tests/fuzz/`.

use std::sync::Arc;

use imagelet_core::{
    error::RuntimeError,
    image::{Image, ImageSpec},
    ports::{Container, ImageFilesystems, Listing, PullRequest, Sandbox},
};
use prost::Message;
use tonic::{Code, Status};

use crate::cri::{
    bounded::{LIST, ONE},
    convert::{self, Call, Handlers},
    server, v1,
};

/// Decodes a request. Returns the image of the request, and a request that is encoded from this image.
pub fn requested_image(bytes: &[u8]) -> Option<(ImageSpec, Vec<u8>)> {
    let request = v1::ImageStatusRequest::decode(bytes).ok()?;
    let spec = convert::spec_from_wire(request.image);
    let image = Some(convert::spec_to_wire(&spec));
    Some((spec, v1::ImageStatusRequest { image, verbose: request.verbose }.encode_to_vec()))
}

/// The image that a list request selects. `None` means that it selects all images, or that the bytes are no request.
pub fn requested_filter(bytes: &[u8]) -> Option<ImageSpec> {
    convert::filter_from_wire(v1::ListImagesRequest::decode(bytes).ok()?.filter)
}

/// Decodes a request. Returns its pull, and the request to a runtime that is encoded from this pull.
pub fn requested_pull(bytes: &[u8]) -> Option<Result<(PullRequest, Vec<u8>), RuntimeError>> {
    let request = v1::PullImageRequest::decode(bytes).ok()?;
    let pull = convert::pull_from_wire(request, &Handlers::Any);
    Some(pull.map(|pull| {
        let encoded = convert::pull_to_wire(&pull).encode_to_vec();
        (pull, encoded)
    }))
}

/// The images of a list, and the messages in which a stream sends them.
pub fn listed_images(bytes: &[u8]) -> Option<(Vec<Image>, Vec<Vec<u8>>)> {
    let images = v1::ListImagesResponse::decode(bytes).ok()?.images;
    let images: Vec<Image> = images.into_iter().map(convert::image_from_wire).collect();
    let listing: Listing = images.iter().cloned().map(Arc::new).collect();
    let batches = server::batches(listing).map(|images| v1::ListImagesResponse { images }.encode_to_vec());
    Some((images, batches.collect()))
}

/// The usage of file systems, and the answer that is encoded from this usage.
pub fn filesystems(bytes: &[u8]) -> Option<(ImageFilesystems, Vec<u8>)> {
    let read = convert::filesystems_from_wire(v1::ImageFsInfoResponse::decode(bytes).ok()?);
    let encoded = convert::filesystems_to_wire(&read).encode_to_vec();
    Some((read, encoded))
}

pub fn listed_containers(bytes: &[u8]) -> Option<Vec<Container>> {
    let containers = v1::ListContainersResponse::decode(bytes).ok()?.containers;
    Some(containers.into_iter().map(convert::container_from_wire).collect())
}

pub fn listed_sandboxes(bytes: &[u8]) -> Option<Vec<Sandbox>> {
    let sandboxes = v1::ListPodSandboxResponse::decode(bytes).ok()?.items;
    Some(sandboxes.into_iter().filter_map(convert::sandbox_from_wire).collect())
}

/// The images of a container's volumes. `None` means that the bytes are no container status.
pub fn volumes(bytes: &[u8]) -> Option<Result<Vec<String>, RuntimeError>> {
    let status = v1::ContainerStatusResponse::decode(bytes).ok()?.status.unwrap_or_default();
    Some(convert::check_container_status(&status).map(|()| convert::volumes_from_wire(status)))
}

/// Checks the bytes as answers to `Version`, `Status` and `PodSandboxStatus`, and returns the errors.
pub fn refusals(bytes: &[u8]) -> Vec<RuntimeError> {
    let version = v1::VersionResponse::decode(bytes).map(|it| convert::check_version(&it));
    let status = v1::StatusResponse::decode(bytes).map(|it| convert::check_status(&it));
    let sandbox = v1::PodSandboxStatusResponse::decode(bytes).map(|it| convert::check_sandbox_status(&it));
    [version, status, sandbox].into_iter().flatten().filter_map(Result::err).collect()
}

/// The numbers of entries and parts that are counted in a message: for a list, and for a single answer.
pub fn counted(bytes: &[u8]) -> Option<[(usize, usize); 2]> {
    let used = |bounds: crate::wire::MessageBounds| {
        let left = bounds.less(bytes)?;
        Some((bounds.entries - left.entries, bounds.parts - left.parts))
    };
    Some([used(LIST)?, used(ONE)?])
}

/// For each kind of call: the error of a runtime's status, and the code and message of the status for the client.
pub fn relayed(code: i32, message: &str) -> Vec<(RuntimeError, i32, String)> {
    let status = Status::new(Code::from_i32(code), message);
    let calls = [Call::Pull, Call::Remove, Call::Image("ListImages"), Call::Runtime("ListContainers")];
    let relay = |call| {
        let error = convert::error_from_status(call, &status);
        let relayed = convert::status_from_error(&error.copied());
        (error, relayed.code() as i32, relayed.message().to_owned())
    };
    calls.into_iter().map(relay).collect()
}

/// A runtime's message about a pull, without the credential of the pull.
pub fn shown_refusal(message: &str, request: &PullRequest) -> String {
    convert::without_credential(Status::unknown(message), request).message().to_owned()
}
