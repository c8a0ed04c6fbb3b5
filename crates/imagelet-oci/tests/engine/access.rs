//! What another repository has to send before it is given what is here, and what is recorded of what it did not send.

use imagelet_core::{
    error::RuntimeErrorKind,
    image::{Digest, ImageSpec},
    ports::{ImageService as _, LocalStore as _, PullRequest},
};
use imagelet_oci::Engine;
use serde_json::{Value, json};

use crate::{
    fixture::{Layer, TestRegistry},
    open, pull,
};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A registry with a private image of two layers, `team/app:v1`, and the manifest and configuration of that.
async fn private() -> (TestRegistry, Value, Vec<u8>) {
    let registry = TestRegistry::start().await;
    registry.image("team/app", "v1", &secret_layers());
    let manifest: Value = serde_json::from_slice(&registry.file("team/app/manifests/v1")).expect("JSON");
    let config = registry.file(&format!("team/app/blobs/{}", manifest["config"]["digest"].as_str().expect("a digest")));
    (registry, manifest, config)
}

fn secret_layers() -> [Layer; 2] {
    [Layer::new().file("secret", b"of the team").gzip(), Layer::new().file("more", &vec![5; 70_000]).gzip()]
}

/// Serves a manifest as `evil/app:v1`, and of its blobs those that are given.
async fn evil(manifest: &Value, blobs: &[&[u8]]) -> TestRegistry {
    let registry = TestRegistry::start().await;
    registry.put("evil/app/manifests/v1", MANIFEST, serde_json::to_vec(manifest).expect("JSON"), None);
    for blob in blobs {
        registry.put(&format!("evil/app/blobs/{}", Digest::of(blob)), "layer", blob.to_vec(), None);
    }
    registry
}

async fn names(engine: &Engine) -> Vec<String> {
    engine.list(None).await.expect("a list").iter().flat_map(|image| image.tags.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_only_names_the_id_of_a_private_image_does_not_open_it() {
    let (registry, manifest, _) = private().await;
    let thief = evil(&manifest, &[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    pull(&engine, &registry.name("team/app:v1")).await.expect("the team's pull");
    let name = thief.name("evil/app:v1");
    let empty = tempfile::tempdir().expect("a folder");
    let elsewhere = pull(&*open(empty.path()).await, &name).await.expect_err("the configuration is not served").chain();
    let error = pull(&engine, &name).await.expect_err("the configuration is not served");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
    assert_eq!(error.chain(), elsewhere, "the answer says what is on the node");
    assert_eq!(engine.status(&ImageSpec::new(&name)).await.expect("a status"), None);
    assert_eq!(names(&engine).await, [registry.name("team/app:v1")]);
    // A manifest of other layers for that configuration says no more.
    let other = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": manifest["config"], "layers": []});
    let thief = evil(&other, &[]).await;
    let error = pull(&engine, &thief.name("evil/app:v1")).await.expect_err("the configuration is not served");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verified_configuration_opens_the_layers_that_it_names() {
    let (registry, manifest, config) = private().await;
    let friend = evil(&manifest, &[&config]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let id = pull(&engine, &registry.name("team/app:v1")).await.expect("the team's pull");
    assert_eq!(pull(&engine, &friend.name("evil/app:v1")).await.expect("its configuration is served"), id);
    assert_eq!(friend.take_layer_requests(), 1, "the configuration");
    assert_eq!(names(&engine).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_digest_that_no_pull_has_fetched_is_not_recorded() {
    let (registry, manifest, config) = private().await;
    // Of another team, and not on the node.
    let other = Layer::new().file("other", &vec![9; 30_000]).plain();
    registry.image("other/app", "v1", std::slice::from_ref(&other));
    // An image of its own over the private layers, said to be the other team's blob and one that is nowhere.
    let mut own: Value = serde_json::from_slice(&config).expect("JSON");
    own["author"] = json!("another team");
    let own = serde_json::to_vec(&own).expect("JSON");
    let media_type = &manifest["layers"][0]["mediaType"];
    let forged = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": manifest["config"]["mediaType"], "digest": Digest::of(&own).as_str(), "size": own.len()},
        "layers": [
            {"mediaType": media_type, "digest": Digest::of(other.blob()).as_str(), "size": other.blob().len()},
            {"mediaType": media_type, "digest": Digest::of(b"nowhere").as_str(), "size": 1_u64 << 37},
        ],
    });
    let forger = evil(&forged, &[&own]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    pull(&engine, &registry.name("team/app:v1")).await.expect("the team's pull");
    pull(&engine, &forger.name("evil/app:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));

    let stored =
        engine.details(&ImageSpec::new(forger.name("evil/app:v1"))).await.expect("a look").expect("it is here");
    let recorded: Vec<(&str, u64)> = stored
        .pulled
        .as_ref()
        .expect("of an engine")
        .layers
        .iter()
        .map(|layer| (layer.blob.as_ref().map_or("", Digest::as_str), layer.size))
        .collect();
    let fetched: Vec<(String, u64)> =
        secret_layers().iter().map(|layer| (Digest::of(layer.blob()).to_string(), layer.blob().len() as u64)).collect();
    assert_eq!(recorded, fetched.iter().map(|(blob, size)| (blob.as_str(), *size)).collect::<Vec<_>>());
    let request = PullRequest { image: ImageSpec::new(registry.name("other/app:v1")), ..PullRequest::default() };
    let estimate = engine.estimate(&request).await.expect("an estimate");
    assert_eq!(
        estimate.expect("of an engine").bytes_missing.0,
        other.blob().len() as u64,
        "it counts as here by a stranger's word"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_is_here_is_confirmed_by_its_registry_each_time_without_a_body() {
    let (registry, manifest, _) = private().await;
    let digest = Digest::of(&registry.file("team/app/manifests/v1"));
    let size = registry.file("team/app/manifests/v1").len();
    let platform: Value = serde_json::from_slice(
        &registry.file(&format!("team/app/blobs/{}", manifest["config"]["digest"].as_str().expect("a digest"))),
    )
    .expect("JSON");
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "manifests": [
            {"mediaType": MANIFEST, "digest": Digest::of(b"x").as_str(), "size": 1, "platform": {"os": "linux", "architecture": "s390x"}},
            {"mediaType": MANIFEST, "digest": digest.as_str(), "size": size, "platform": {"os": "linux", "architecture": platform["architecture"]}},
        ],
    }))
    .expect("JSON");
    let index_digest = Digest::of(&index);
    let index_type = "application/vnd.oci.image.index.v1+json";
    registry.put(&format!("team/app/manifests/{index_digest}"), index_type, index.clone(), None);
    for digest in [digest, index_digest] {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open(folder.path()).await;
        let name = registry.name(&format!("team/app@{digest}"));
        let path = format!("team/app/manifests/{digest}");
        let id = pull(&engine, &name).await.expect("the first");
        registry.take_paths();
        assert_eq!(pull(&engine, &name).await.expect("again"), id);
        assert_eq!(registry.take_paths(), [format!("HEAD {path}")]);
        // Another machine's image of the same digest is another image.
        let foreign = PullRequest {
            image: ImageSpec::new(&name),
            platform: Some("linux/s390x".parse().expect("a platform")),
            ..PullRequest::default()
        };
        engine.pull(&foreign, imagelet_core::ports::no_progress()).await.expect_err("it is not served");
        // What is gone there, or refused by now, is not had from here.
        let served = registry.file(&path);
        registry.forget(&path);
        let error = pull(&engine, &name).await.expect_err("it is gone");
        assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
        registry.put(
            &path,
            if path.ends_with(Digest::of(&index).as_str()) { index_type } else { MANIFEST },
            served,
            None,
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_is_here_costs_a_head_and_a_get_only_where_that_does_not_answer_or_the_tag_has_moved() {
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &[Layer::new().file("f", b"one").gzip()]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let name = registry.name("app:v1");
    let first = pull(&engine, &name).await.expect("the first");
    let (head, get) = ("HEAD app/manifests/v1".to_owned(), "GET app/manifests/v1".to_owned());
    for (what, status, hides_digests, asked) in [
        ("it answers", 0, false, vec![&head]),
        ("no digest", 0, true, vec![&head, &get]),
        ("no HEAD at all", 405, false, vec![&head, &get]),
        ("not found", 404, false, vec![&head, &get]),
        ("forbidden", 403, false, vec![&head, &get]),
    ] {
        registry.answer_head(status, hides_digests);
        registry.take_paths();
        assert_eq!(pull(&engine, &name).await.expect(what), first, "{what}");
        assert_eq!(registry.take_paths().iter().collect::<Vec<_>>(), asked, "{what}");
    }
    registry.answer_head(0, false);
    registry.image("app", "v1", &[Layer::new().file("f", b"two").gzip()]);
    registry.take_paths();
    let second = pull(&engine, &name).await.expect("the tag has moved");
    assert_ne!(second, first);
    assert_eq!(registry.take_paths()[..2], [head.clone(), get]);
    assert_eq!(pull(&engine, &name).await.expect("again"), second);
    assert_eq!(registry.take_paths(), [head]);
    registry.forget("app/manifests/v1");
    let error = pull(&engine, &name).await.expect_err("the tag is gone");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
}
