//! The messages of a pod's events about its images; the kubelet's texts where it has one (`docs/spec/pull.md §2.3`).

use std::time::Duration;

use crate::{
    image::{ByteSize, ImageId},
    text::{quoted, whole_milliseconds as ms},
};

pub(super) fn present(image: &str, is_recorded: bool) -> String {
    // Fewer steps than `format!`: this is the message of every ensure that pulls nothing.
    let suffix = if is_recorded { " and can be accessed by the pod" } else { "" };
    ["Container image ", &quoted(image), " already present on machine", suffix].concat()
}

pub(super) fn stale(image: &str, id: &ImageId, age: Duration) -> String {
    format!(
        "Container image {} already present on machine, used although its registry is unavailable: {id} was last \
         verified {} ago",
        quoted(image),
        ms(Duration::from_secs(age.as_secs()))
    )
}

pub(super) fn back_off(image: &str) -> String {
    format!("Back-off pulling image {}", quoted(image))
}

pub(super) fn pulling(image: &str) -> String {
    format!("Pulling image {}", quoted(image))
}

pub(super) fn pulled(image: &str, took: Duration, waited: Duration, size: ByteSize) -> String {
    let (image, took, waited) = (quoted(image), ms(took), ms(waited));
    format!("Successfully pulled image {image} in {took} ({waited} including waiting). Image size: {} bytes.", size.0)
}

pub(super) fn pulled_without_caller(image: &str, took: Duration, size: ByteSize) -> String {
    let (image, took) = (quoted(image), ms(took));
    format!("Pulled image {image} in {took} after its caller was gone. Image size: {} bytes.", size.0)
}

pub(super) fn given_up(image: &str, after: Duration, why: &str) -> String {
    format!("Gave up pulling image {} after {}: {why}", quoted(image), ms(after))
}

pub(super) fn failed(image: &str, failure: &str) -> String {
    format!("Failed to pull image {}: {failure}", quoted(image))
}
