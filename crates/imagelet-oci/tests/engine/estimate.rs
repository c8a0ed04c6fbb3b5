//! What a pull would cost, told before it, and not asked for twice.

use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    error::RuntimeErrorKind,
    image::{ByteSize, ImageSpec, Platform},
    ports::{ImageService as _, LocalStore as _, PullEstimate, PullRequest, no_progress},
};
use imagelet_oci::{
    Engine,
    testing::{FaultRegistry, TestImage},
};

use crate::{
    fixture::{Layer, TestRegistry},
    open, pull,
};

fn request(name: &str) -> PullRequest {
    PullRequest { image: ImageSpec::new(name), ..PullRequest::default() }
}

fn login(password: &str) -> Credential {
    let kind = CredentialKind::Basic { username: "bob".into(), password: Secret::new(password) };
    Credential { kind, server_address: String::new() }
}

async fn estimate(engine: &Engine, request: &PullRequest) -> PullEstimate {
    let estimated = engine.estimate(request).await.unwrap_or_else(|error| panic!("estimate: {}", error.chain()));
    estimated.expect("the engine can tell")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_counts_each_blob_once_and_none_whose_layer_is_here() {
    let registry = TestRegistry::start().await;
    let base = Layer::new().file("bin/base", &[1; 5000]).gzip();
    let (own, other) = (Layer::new().file("etc/own", b"own").gzip(), Layer::new().file("etc/other", b"other").zstd());
    registry.image("base", "v1", std::slice::from_ref(&base));
    registry.image("app", "v1", &[base.clone(), own.clone(), own.clone(), other.clone()]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let size = |layers: &[&Layer]| ByteSize(layers.iter().map(|layer| layer.blob().len() as u64).sum());

    let app = request(&registry.name("app:v1"));
    let before = estimate(&engine, &app).await;
    assert_eq!((before.bytes_total, before.bytes_missing), (size(&[&base, &own, &other]), before.bytes_total));
    assert_eq!(before.layers_missing, 3);
    assert!(before.bytes_unpacked.0 > 3 * size(&[&base, &own, &other]).0, "{before:?}");
    assert_eq!(registry.take_layer_requests(), 0);

    pull(&engine, &registry.name("base:v1")).await.expect("the base");
    let between = estimate(&engine, &app).await;
    assert_eq!((between.bytes_missing, between.layers_missing), (size(&[&own, &other]), 2));
    pull(&engine, &registry.name("app:v1")).await.expect("the image");
    let after = estimate(&engine, &app).await;
    assert_eq!((after.bytes_missing, after.bytes_unpacked, after.layers_missing), (ByteSize::ZERO, ByteSize::ZERO, 0));
    assert_eq!((after.manifest, after.bytes_total), (before.manifest, before.bytes_total));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pull_right_after_an_estimate_asks_for_no_manifest_and_the_next_one_does() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("a", b"a").gzip()]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let asked = request(&registry.name("a:v1"));
    estimate(&engine, &asked).await;
    assert_eq!(registry.take_manifest_requests(), 1);
    engine.pull(&asked, no_progress()).await.expect("a pull");
    assert_eq!((registry.take_manifest_requests(), registry.take_layer_requests()), (0, 1));
    engine.pull(&asked, no_progress()).await.expect("a pull");
    assert_eq!(registry.take_manifest_requests(), 1, "an answer serves one pull");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_right_has_resolved_serves_no_other_right_name_or_machine() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("a", b"a").gzip()]);
    registry.image("a", "v2", &[Layer::new().file("a", b"b").gzip()]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let mine = PullRequest { credential: Some(login("mine")), ..request(&registry.name("a:v1")) };
    let others = [
        request(&registry.name("a:v1")),
        PullRequest { credential: Some(login("yours")), ..mine.clone() },
        PullRequest { image: ImageSpec::new(registry.name("a:v2")), ..mine.clone() },
        PullRequest { platform: Some(Platform { variant: Some("v7".into()), ..Platform::host() }), ..mine.clone() },
    ];
    for other in others {
        estimate(&engine, &mine).await;
        registry.take_manifest_requests();
        // Whether the machine suits is not the question here.
        let _ = engine.pull(&other, no_progress()).await;
        assert_eq!(registry.take_manifest_requests(), 1, "{other:?}");
    }
    engine.pull(&mine, no_progress()).await.expect("a pull");
    assert_eq!(registry.take_manifest_requests(), 0, "what is mine is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_a_token_service_refuses_is_sent_once_for_a_tag_that_is_here() {
    let registry = FaultRegistry::start(None, &TestImage::of_size(1000)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let name = format!("{}/{}", registry.address(), TestImage::NAME);
    pull(&engine, &name).await.expect("to every client");
    registry.require("bob", "right");
    let before = registry.requests();
    let wrong = PullRequest { credential: Some(login("wrong")), ..request(&name) };
    let error = engine.pull(&wrong, no_progress()).await.expect_err("it is refused");
    assert_eq!(error.kind(), RuntimeErrorKind::Denied, "{}", error.chain());
    assert_eq!(registry.requests() - before, 2, "the manifest and the token");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_fails_as_the_pull_would() {
    let registry = TestRegistry::start().await;
    registry.image("odd", "v1", &[Layer::new().file("a", b"a").gzip().typed("application/vnd.example.odd")]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    for (name, kind) in [("odd:v1", RuntimeErrorKind::Unacceptable), ("none:v1", RuntimeErrorKind::NotFound)] {
        let error = engine.estimate(&request(&registry.name(name))).await.expect_err("it cannot be pulled");
        let pulled = pull(&engine, &registry.name(name)).await.expect_err("it cannot be pulled");
        assert_eq!((error.kind(), error.chain()), (kind, pulled.chain()), "{name}");
    }
}
