//! Messages of CRI, of a kubelet to the server and of a runtime to the client: what is converted survives the way back,
//! nothing holds more than was counted before, and no refusal is long or shows a password.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use imagelet_core::{
    error::RuntimeError,
    image::{Image, ImageSpec},
    ports::{Container, ImageFilesystems, Listing, PullRequest, Sandbox},
};
use imagelet_runtime::{
    cri::{Handlers, v1},
    fuzzing::cri as fuzzing,
};
use prost::Message;

use super::{assert_short_message, fingerprint, messages, mutation::Dice};

/// The password of all seeds.
const PASSWORD: &str = "hunter2";
/// The longest message of a status, and the mark of one that was cut.
const STATUS_MAX: usize = (4 << 10) + "…".len();
const BATCH_IMAGES_MAX: usize = 1000;
const BATCH_BYTES_MAX: usize = 1 << 20;
const WORDS: [&[u8]; 26] = [
    b"docker.io/library/busybox:latest",
    b"a.example:5000/team/app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"https://index.docker.io/v1/",
    b"https://a.example:5000",
    b"a.example:5000",
    b"https://*.example",
    b"user",
    b"hunter2",
    b"dXNlcjpodW50ZXIy",
    b"dXNlcjpodW50ZXIyAA==",
    b"dXNlcg==",
    b"RegistryUnavailable: x",
    b"SignatureValidationFailed: x",
    b"rpc error: code = NotFound desc = x",
    b"rpc error: code = Unknown desc = rpc error: code = OK desc = ",
    b"failed to resolve: 401 Unauthorized: hunter2",
    b"no space left on device",
    b"io.containerd.cri.runtime-handler",
    b"kata",
    b"/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs",
    b"{\"config\":{}}",
    b"",
    b"\n\x1b[31m",
    b"\xc3\xa4",
    b"\xff",
];

/// Reads the bytes as each message of the interface that imagelet receives.
pub(crate) fn check(bytes: &[u8], _: &Path) {
    if let Some((spec, encoded)) = requested_image(bytes) {
        let (again, encoded_again) = requested_image(&encoded).expect("what is written is read");
        assert_eq!((&spec, &encoded), (&again, &encoded_again), "read as it was written");
    }
    if let Some(spec) = requested_filter(bytes) {
        assert!(!spec.image.is_empty(), "an empty name selects everything");
    }
    check_pull(bytes);
    check_lists(bytes);
    if let Some((read, encoded)) = filesystems(bytes) {
        assert!(!read.containers.is_empty() || read.images.is_empty(), "images alone are on the containers' disk, too");
        let (again, encoded_again) = filesystems(&encoded).expect("what is written is read");
        assert_eq!(encoded, encoded_again, "written as it was read");
        assert_eq!(read.images.len(), again.images.len());
    }
    if let Some(Ok(volumes)) = volumes(bytes) {
        assert!(volumes.is_sorted() && volumes.iter().collect::<BTreeSet<_>>().len() == volumes.len(), "{volumes:?}");
        assert!(volumes.iter().all(|image| !image.is_empty()));
    }
    let refused = volumes(bytes).and_then(Result::err).into_iter().chain(refusals(bytes));
    for error in refused {
        assert_bounded(&error, bytes.len());
    }
    check_relays(bytes);
}

/// Decodes a request. Returns the image of the request, and a request that is encoded from this image.
fn requested_image(bytes: &[u8]) -> Option<(ImageSpec, Vec<u8>)> {
    let request = v1::ImageStatusRequest::decode(bytes).ok()?;
    let spec = fuzzing::spec_from_wire(request.image);
    let image = Some(fuzzing::spec_to_wire(&spec));
    Some((spec, v1::ImageStatusRequest { image, verbose: request.verbose }.encode_to_vec()))
}

/// The image that a list request selects. `None` means that it selects all images, or that the bytes are no request.
fn requested_filter(bytes: &[u8]) -> Option<ImageSpec> {
    fuzzing::filter_from_wire(v1::ListImagesRequest::decode(bytes).ok()?.filter)
}

/// Decodes a request. Returns its pull, and the request to a runtime that is encoded from this pull.
fn requested_pull(bytes: &[u8]) -> Option<Result<(PullRequest, Vec<u8>), RuntimeError>> {
    let request = v1::PullImageRequest::decode(bytes).ok()?;
    let pull = fuzzing::pull_from_wire(request, &Handlers::Any);
    Some(pull.map(|pull| {
        let encoded = fuzzing::pull_to_wire(&pull).encode_to_vec();
        (pull, encoded)
    }))
}

/// The images of a list, and the messages in which a stream sends them.
fn listed_images(bytes: &[u8]) -> Option<(Vec<Image>, Vec<Vec<u8>>)> {
    let images = v1::ListImagesResponse::decode(bytes).ok()?.images;
    let images: Vec<Image> = images.into_iter().map(fuzzing::image_from_wire).collect();
    let listing: Listing = images.iter().cloned().map(Arc::new).collect();
    let batches = fuzzing::batches(listing).map(|images| v1::ListImagesResponse { images }.encode_to_vec());
    Some((images, batches.collect()))
}

/// The usage of file systems, and the answer that is encoded from this usage.
fn filesystems(bytes: &[u8]) -> Option<(ImageFilesystems, Vec<u8>)> {
    let read = fuzzing::filesystems_from_wire(v1::ImageFsInfoResponse::decode(bytes).ok()?);
    let encoded = fuzzing::filesystems_to_wire(&read).encode_to_vec();
    Some((read, encoded))
}

fn listed_containers(bytes: &[u8]) -> Option<Vec<Container>> {
    let containers = v1::ListContainersResponse::decode(bytes).ok()?.containers;
    Some(containers.into_iter().map(fuzzing::container_from_wire).collect())
}

fn listed_sandboxes(bytes: &[u8]) -> Option<Vec<Sandbox>> {
    let sandboxes = v1::ListPodSandboxResponse::decode(bytes).ok()?.items;
    Some(sandboxes.into_iter().filter_map(fuzzing::sandbox_from_wire).collect())
}

/// The images of a container's volumes. `None` means that the bytes are no container status.
fn volumes(bytes: &[u8]) -> Option<Result<Vec<String>, RuntimeError>> {
    let status = v1::ContainerStatusResponse::decode(bytes).ok()?.status.unwrap_or_default();
    Some(fuzzing::check_container_status(&status).map(|()| fuzzing::volumes_from_wire(status)))
}

/// Checks the bytes as answers to `Version`, `Status` and `PodSandboxStatus`, and returns the errors.
fn refusals(bytes: &[u8]) -> Vec<RuntimeError> {
    let version = v1::VersionResponse::decode(bytes).map(|it| fuzzing::check_version(&it));
    let status = v1::StatusResponse::decode(bytes).map(|it| fuzzing::check_status(&it));
    let sandbox = v1::PodSandboxStatusResponse::decode(bytes).map(|it| fuzzing::check_sandbox_status(&it));
    [version, status, sandbox].into_iter().flatten().filter_map(Result::err).collect()
}

/// The numbers of entries and parts that are counted in a message: for a list, and for a single answer.
fn counted(bytes: &[u8]) -> Option<[(usize, usize); 2]> {
    let used = |bounds: fuzzing::MessageBounds| {
        let left = bounds.less(bytes)?;
        Some((bounds.entries - left.entries, bounds.parts - left.parts))
    };
    Some([used(fuzzing::LIST)?, used(fuzzing::ONE)?])
}

/// A pull means the same to the runtime that it is passed on to.
fn check_pull(bytes: &[u8]) {
    match requested_pull(bytes) {
        None => {}
        Some(Err(error)) => {
            assert_bounded(&error, bytes.len());
            assert!(!error.chain().contains(PASSWORD), "{}", error.chain());
        }
        Some(Ok((pull, encoded))) => {
            let shown = format!("{:?}", pull.credential);
            assert!(!shown.contains(PASSWORD) || shown_names(&pull).any(|name| name.contains(PASSWORD)), "{shown}");
            let again = requested_pull(&encoded).expect("what is written is read");
            let (again, encoded_again) = again.expect("what was accepted is accepted");
            assert_eq!((&pull.image, &pull.pod, &pull.encoded_pod), (&again.image, &again.pod, &again.encoded_pod));
            assert_eq!(encoded, encoded_again, "written as it was read");
            if let Some(credential) = &pull.credential {
                let kept = again.credential.map(|credential| credential.kind);
                assert_eq!(kept.as_ref(), Some(&credential.kind), "the runtime gets the credential");
            }
        }
    }
}

/// The texts of a pull's credential that are no secrets.
fn shown_names(pull: &PullRequest) -> impl Iterator<Item = String> {
    use imagelet_core::credentials::CredentialKind::Basic;
    let credential = pull.credential.iter();
    credential.flat_map(|credential| {
        let user = if let Basic { username, .. } = &credential.kind { username.clone() } else { String::new() };
        [user, credential.server_address.clone()]
    })
}

/// Lists hold no more than was counted, and a stream sends what the list has, in order.
fn check_lists(bytes: &[u8]) {
    let Some([list, one]) = counted(bytes) else { panic!("{} bytes hold more than any answer", bytes.len()) };
    if let Some((images, batches)) = listed_images(bytes) {
        let names = images.iter().map(|image| image.tags.len() + image.digests.len()).sum::<usize>();
        assert!(images.len() < list.0 && names <= list.1, "{} images with {names} names: {list:?}", images.len());
        let mut sent: Vec<Image> = Vec::new();
        for batch in batches {
            let (images, _) = listed_images(&batch).expect("what is written is read");
            assert!(!images.is_empty() && images.len() <= BATCH_IMAGES_MAX);
            assert!(images.len() == 1 || batch.len() <= BATCH_BYTES_MAX + 16 * images.len());
            sent.extend(images);
        }
        let id = |image: &Image| image.id.clone();
        assert!(sent.is_sorted_by_key(id), "equal stores have equal lists");
        let mut images = images;
        images.sort_by_key(id);
        assert_eq!(sent, images, "read as it was written");
    }
    if let Some(containers) = listed_containers(bytes) {
        assert!(containers.len() < list.0);
        let labels: usize = containers.iter().map(|container| container.labels.len()).sum();
        assert!(labels <= list.1);
    }
    if let Some(sandboxes) = listed_sandboxes(bytes) {
        assert!(sandboxes.len() < list.0);
    }
    let mounts = v1::ContainerStatusResponse::decode(bytes).ok().and_then(|answer| answer.status);
    assert!(mounts.is_none_or(|status| status.mounts.len() <= one.1));
}

/// Errors of a chain of servers do not grow, and no runtime's text shows the password of the pull.
fn check_relays(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let code = i32::try_from(fingerprint(bytes) % 17).expect("a small number");
    for (error, code, message) in fuzzing::relayed(code.max(1), &text) {
        assert!(code != 0, "an error that claims success");
        assert!(message.len() <= STATUS_MAX, "a status of {} bytes", message.len());
        let relayed = fuzzing::relayed(code, &message);
        assert!(relayed.iter().any(|(_, again, text)| (*again, text) == (code, &message)), "{error:?} piles up");
    }
    let credential = imagelet_core::credentials::Credential {
        kind: imagelet_core::credentials::CredentialKind::Basic {
            username: "user".to_owned(),
            password: imagelet_core::credentials::Secret::new(PASSWORD),
        },
        server_address: "a.example".to_owned(),
    };
    let image = ImageSpec::new("a.example/app:v1");
    let pull = PullRequest { image, credential: Some(credential), ..PullRequest::default() };
    assert!(!fuzzing::shown_refusal(&text, &pull).contains(PASSWORD));
}

/// A refusal quotes what it refuses once, and fits a log line then.
fn assert_bounded(error: &RuntimeError, length: usize) {
    if length < 500 {
        assert_short_message(error);
    }
}

/// Changes fields, and inserts texts of such messages.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    messages::mutate(bytes, dice, &WORDS);
}
