//! The signature policy: an image that does not meet it is refused before the first byte of a layer.

use std::{path::Path, process::Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagelet_core::{
    credentials::Credential,
    error::{ErrorClass, RuntimeErrorKind},
    image::{Digest, ImageSpec},
    ports::{ArchivePlace, ExportRequest, ImageService as _, ImportRequest, LocalStore as _, no_progress},
};
use imagelet_oci::{EngineConfig, RegistryConfig};
use serde_json::{Value, json};

use crate::{
    fake_sink::FakeSink,
    fixture::{Layer, TestRegistry},
    import::{import, whole},
    open_as, pull,
};

fn openssl(folder: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(folder).output().expect("openssl is installed");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A key pair in a folder, as `key.pem` and `public.pem`.
fn key_pair(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    openssl(folder, &["genpkey", "-out", "key.pem", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    openssl(folder, &["pkey", "-in", "key.pem", "-pubout", "-out", "public.pem"]);
}

/// Attaches a signature to the manifest of a tag, as cosign does.
fn sign(registry: &TestRegistry, keys: &Path, subject: &Digest) {
    let payload = json!({
        "critical": {
            "identity": {"docker-reference": registry.name("app")},
            "image": {"docker-manifest-digest": subject.as_str()},
            "type": "cosign container image signature",
        },
        "optional": null,
    })
    .to_string();
    std::fs::write(keys.join("payload"), &payload).expect("written");
    openssl(
        keys,
        &[
            "pkeyutl",
            "-sign",
            "-inkey",
            "key.pem",
            "-in",
            "payload",
            "-rawin",
            "-digest",
            "sha256",
            "-out",
            "signature",
        ],
    );
    let signature = BASE64_STANDARD.encode(std::fs::read(keys.join("signature")).expect("a signature"));
    let (config, digest) = ("{}", Digest::of(payload.as_bytes()));
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(config.as_bytes()).as_str(), "size": 2},
        "layers": [{
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            "digest": digest.as_str(),
            "size": payload.len(),
            "annotations": {"dev.cosignproject.cosign/signature": signature},
        }],
    });
    registry.put(&format!("app/blobs/{digest}"), "payload", payload.into_bytes(), None);
    registry.put(
        &format!("app/manifests/sha256-{}.sig", subject.hex()),
        media_type,
        manifest.to_string().into_bytes(),
        None,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_once_its_signature_meets_the_policy_and_no_layer_is_fetched_before() {
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &[Layer::new().file("a", b"a").gzip()]);
    is_pulled_once_signed(&registry).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_pulled_once_the_signature_of_its_manifest_meets_the_policy() {
    let registry = TestRegistry::start().await;
    registry.artifact("app", "v1", &[("a", b"a")]);
    is_pulled_once_signed(&registry).await;
}

/// Pulls and imports `app:v1` of one layer under many policies.
async fn is_pulled_once_signed(registry: &TestRegistry) {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = Digest::of(&registry.file("app/manifests/v1"));
    let (ours, other) = (folder.path().join("ours"), folder.path().join("other"));
    key_pair(&ours);
    key_pair(&other);
    let path = folder.path().join("policy.json");
    let registry_config = RegistryConfig { signature_policy: Some(path.clone()), ..RegistryConfig::default() };
    let of =
        |name: &str| EngineConfig { registry: registry_config.clone(), ..EngineConfig::new(folder.path().join(name)) };
    let engine = open_as(of("store")).await;
    let name = registry.name("app:v1");
    let signed = |keys: &Path| json!({"type": "sigstoreSigned", "keyPath": keys.join("public.pem"), "signedIdentity": {"type": "matchRepository"}});
    let write = |requirements: Value| {
        let host = registry.name("");
        let policy = json!({
            "default": [{"type": "reject"}],
            "transports": {"docker": {host.trim_end_matches('/'): requirements}},
        });
        std::fs::write(&path, policy.to_string()).expect("written");
    };
    let accept = json!({"type": "insecureAcceptAnything"});
    let refused = async |why: &str| {
        let error = pull(&engine, &name).await.expect_err(why);
        assert_eq!(error.kind(), RuntimeErrorKind::SignatureInvalid, "{}", error.chain());
        assert_eq!(error.fault().class, ErrorClass::SignatureRejected);
        assert!(error.chain().contains(why), "{why}: {}", error.chain());
        assert_eq!(registry.take_layer_requests(), 0, "{why}");
    };
    refused("cannot be used").await;
    write(json!([signed(&ours)]));
    refused("the registry has none").await;
    sign(registry, &other, &manifest);
    refused("not by an accepted key").await;
    sign(registry, &ours, &Digest::of(b"another image"));
    refused("not by an accepted key").await;
    sign(registry, &ours, &manifest);
    write(json!([{"type": "reject"}]));
    refused("it rejects every image").await;
    write(json!([{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/k"}]));
    refused("not supported").await;
    // All requirements count.
    write(json!([accept, signed(&ours), signed(&other)]));
    refused("not by an accepted key").await;
    write(json!([{"type": "sigstoreSigned", "keyPath": ours.join("public.pem")}]));
    refused("a signature is for").await;
    write(json!([{"type": "sigstoreSigned", "keyPath": folder.path().join("absent.pem")}]));
    refused("absent.pem").await;
    assert_eq!(engine.list(None).await.expect("listed").len(), 0);

    write(json!([signed(&ours)]));
    pull(&engine, &name).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(registry.take_layer_requests(), 1);
    // A later pull of the present image asks the policy, too.
    write(json!([{"type": "reject"}]));
    refused("rejects").await;

    let sink = FakeSink::new();
    let importer = open_as(of("staging")).await.importer(sink.port());
    let error = import(&importer, &name, no_progress()).await.expect_err("it is rejected");
    assert_eq!(error.cause.fault().class, ErrorClass::SignatureRejected, "{}", error.cause.chain());
    assert_eq!((registry.take_layer_requests(), sink.take_log().len()), (0, 0));
    write(json!([signed(&ours)]));
    whole(import(&importer, &name, no_progress()).await);
    assert_eq!(registry.take_layer_requests(), 1);
}

#[tokio::test]
async fn an_archive_is_imported_where_the_policy_accepts_its_transport_and_else_refused_before_any_image() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &[Layer::new().file("a", b"a").gzip()]);
    let at = |name: &str| folder.path().join(name);
    let keeping = EngineConfig { keep_blobs: true, ..EngineConfig::new(at("source")) };
    let source = open_as(keeping).await;
    pull(&source, &registry.name("app:v1")).await.expect("pulled");
    let anonymous = |_: &str| -> Vec<Credential> { Vec::new() };
    let places =
        [ArchivePlace { path: at("app.tar"), is_folder: false }, ArchivePlace { path: at("app"), is_folder: true }];
    for place in &places {
        let request = ExportRequest { image: registry.name("app:v1"), place: place.clone() };
        source.export(&request, &anonymous, &no_progress()).await.expect("exported");
    }
    let policy = at("policy.json");
    let registry_config = RegistryConfig { signature_policy: Some(policy.clone()), ..RegistryConfig::default() };
    let engine = open_as(EngineConfig { registry: registry_config, ..EngineConfig::new(at("store")) }).await;
    let import = async |place: &ArchivePlace| {
        let request = ImportRequest { place: place.clone(), ..ImportRequest::default() };
        engine.import(&request, &no_progress()).await
    };
    let (accept, reject) = (json!([{"type": "insecureAcceptAnything"}]), json!([{"type": "reject"}]));
    let signed = json!([{"type": "sigstoreSigned", "keyData": BASE64_STANDARD.encode("no key")}]);
    // A registry's scope does not count for an archive.
    for (transports, refused) in [
        (json!({}), [Some("rule `default`: it rejects"); 2]),
        (json!({"docker": {"": accept}}), [Some("rule `default`: it rejects"); 2]),
        (json!({"oci": {"": signed}, "oci-archive": {"": signed}}), [Some("cannot be used"); 2]),
        (json!({"oci-archive": {"": accept}}), [None, Some("it rejects")]),
        (json!({"oci": {folder.path().display().to_string(): accept}}), [Some("it rejects"), None]),
        (json!({"oci-archive": {"": accept, folder.path().display().to_string(): reject}}), [Some("it rejects"); 2]),
    ] {
        std::fs::write(&policy, json!({"default": reject, "transports": transports}).to_string()).expect("written");
        for (place, refused) in places.iter().zip(refused) {
            let imported = import(place).await;
            let Some(word) = refused else {
                imported.unwrap_or_else(|error| panic!("{transports}: {}", error.chain()));
                engine.remove(&ImageSpec::new(registry.name("app:v1"))).await.expect("removed");
                continue;
            };
            let error = imported.expect_err(word);
            assert_eq!(error.kind(), RuntimeErrorKind::SignatureInvalid, "{transports}: {}", error.chain());
            assert!(error.chain().contains(word), "{transports}: {}", error.chain());
            assert!(engine.list(None).await.expect("a list").is_empty(), "{transports}");
        }
    }
}
