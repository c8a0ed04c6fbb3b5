//! Layers that are said to be elsewhere.

use imagelet_core::error::RuntimeErrorKind::{NotFound, Unacceptable};
use serde_json::json;

use super::{
    case::{Bench, Case},
    image::{Image, Layer},
    registry::{Answer, Registry},
};

const FOREIGN: [(&str, &str); 3] = [
    ("docker's foreign layer", "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"),
    ("the OCI's foreign layer", "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"),
    ("the OCI's foreign layer with zstd", "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"),
];

/// Places that no pull may go to.
fn elsewhere(host: &str) -> serde_json::Value {
    json!([
        format!("http://{host}/secret"),
        "file:///etc/passwd",
        "unix:///run/docker.sock",
        "http://169.254.169.254/latest/meta-data/",
        "gopher://x",
        ""
    ])
}

fn with_urls(host: &str) -> Layer {
    Layer::gzip("linked", b"linked").described(|layer| layer["urls"] = elsewhere(host))
}

fn against(host: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = FOREIGN
        .into_iter()
        .map(|(name, media_type)| {
            let layer = with_urls(host).described(|layer| layer["mediaType"] = media_type.into());
            let layer = layer.served(Answer::ok("", "").status(404));
            let digest = layer.digest.clone();
            Case::new("B068", name, Image::of([layer])).fails(Unacceptable, &["foreign layer", &digest])
        })
        .collect();
    let gone = with_urls(host).served(Answer::ok("", "").status(404));
    let digest = gone.digest.clone();
    let served = FOREIGN.into_iter().filter(|(_, media_type)| media_type.ends_with("gzip"));
    cases.extend(served.zip(["docker's, which the registry has", "the OCI's, which the registry has"]).map(
        |((_, media_type), name)| {
            let layer = with_urls(host).described(|layer| layer["mediaType"] = media_type.into());
            Case::new("B068", name, Image::of([layer]))
        },
    ));
    cases.extend([
        Case::new("B068", "a layer with links that the registry has", Image::of([with_urls(host)])),
        Case::new("B068", "a layer with links that the registry has not", Image::of([gone]))
            .fails(NotFound, &[&digest]),
        Case::new(
            "B068",
            "a configuration with links",
            Image::good("linked").manifest(|manifest| manifest["config"]["urls"] = elsewhere(host)),
        ),
        Case::new(
            "B068",
            "links that are no list",
            Image::of([Layer::gzip("x", b"x").described(|layer| layer["urls"] = json!(null))]),
        ),
    ]);
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    against("127.0.0.1:9")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_a_manifest_is_never_followed() {
    let other = Registry::start().await;
    other.answer("/secret", Answer::ok("", "secret"));
    Bench::new().await.hold(against(&other.host())).await;
    let asked = other.take_asked();
    assert!(asked.is_empty(), "{asked:?}");
}
