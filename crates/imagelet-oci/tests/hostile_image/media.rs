//! What layers and documents are called.

use imagelet_core::error::RuntimeErrorKind::{Corrupt, Unacceptable};
use serde_json::json;

use super::{
    case::{Bench, Case},
    image::{ARCHITECTURE, CONFIG, Image, Layer, MANIFEST},
    registry::Answer,
};

fn typed(media_type: &str) -> Image {
    let odd = Layer::gzip("odd", b"odd").described(|layer| layer["mediaType"] = media_type.into());
    Image::of([Layer::gzip("good", b"good"), odd])
}

fn artifact(config_type: &str, layer_type: &str) -> Image {
    Image::of([Layer::gzip("chart", b"chart").described(|layer| layer["mediaType"] = layer_type.into())])
        .with_config(b"{}".to_vec())
        .manifest(|manifest| manifest["config"]["mediaType"] = config_type.into())
}

const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// An artifact whose blobs have these names.
fn titled(titles: &[&str]) -> Image {
    let layer = |(number, title): (usize, &&str)| {
        Layer::gzip(&number.to_string(), title.as_bytes()).described(|layer| {
            layer["mediaType"] = "application/vnd.example.part".into();
            layer["annotations"] = json!({"org.opencontainers.image.title": title});
        })
    };
    Image::of(titles.iter().enumerate().map(layer))
        .with_config(b"{}".to_vec())
        .manifest(|manifest| manifest["config"]["mediaType"] = EMPTY.into())
}

const SCHEMA1: &str = r#"{"schemaVersion":1,"name":"a","tag":"v1","architecture":"amd64","fsLayers":[{"blobSum":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}],"history":[{"v1Compatibility":"{}"}]}"#;

pub(crate) fn cases() -> Vec<Case> {
    let gzip = "application/vnd.oci.image.layer.v1.tar+gzip";
    let unknown = |name: &'static str, media_type: &str| {
        Case::new("B050", name, typed(media_type))
            .fails(Unacceptable, &["unknown type", media_type, "sha256:"])
            .never_asks("/blobs/")
    };
    let encrypted = |name: &'static str, media_type: &str| {
        Case::new("B051", name, typed(media_type)).fails(Unacceptable, &["encrypted", "sha256:"]).never_asks("/blobs/")
    };
    let refused = |name: &'static str, image: Image, words: &[&str]| {
        Case::new("B052", name, image).fails(Unacceptable, words).never_asks("/blobs/")
    };
    let old = |name: &'static str, content_type: &str, body: &str| {
        Case::new("B053", name, Image::good("old").with_manifest(body).content_type(content_type))
            .fails(Unacceptable, &["schema version 1", "no longer supported", "hint: push the image again"])
    };
    vec![
        unknown("of another house", "application/vnd.example.odd.v1"),
        unknown("a page", "text/html"),
        unknown("lzma", "application/vnd.oci.image.layer.v1.tar+lzma"),
        unknown("almost", "application/vnd.oci.image.layer.v1.tar+gzip2"),
        unknown("a path", "../../../etc/passwd"),
        unknown("none", ""),
        Case::new(
            "B050",
            "null",
            Image::of([Layer::gzip("x", b"x").described(|layer| layer["mediaType"] = json!(null))]),
        )
        .fails(Unacceptable, &["unknown type"]),
        Case::new("B050", "control characters", typed("a\u{1b}[31m\nb")).fails(Unacceptable, &["unknown type"]),
        Case::new("B050", "a very long one", typed(&"x".repeat(100_000))).fails(Unacceptable, &["unknown type"]),
        Case::new(
            "B050",
            "not a text",
            Image::of([Layer::gzip("x", b"x").described(|layer| layer["mediaType"] = json!(7))]),
        )
        .fails(Corrupt, &["not an image manifest"]),
        Case::new(
            "B050",
            "in capitals",
            Image::of([Layer::gzip("x", b"x").described(|layer| layer["mediaType"] = gzip.to_uppercase().into())]),
        ),
        encrypted("gzip", "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"),
        encrypted("zstd", "application/vnd.oci.image.layer.v1.tar+zstd+encrypted"),
        encrypted("plain", "application/vnd.oci.image.layer.v1.tar+encrypted"),
        encrypted("docker's", "application/vnd.docker.image.rootfs.diff.tar.gzip+enc"),
        refused("an artifact with a file above its folder", titled(&["../../etc/passwd"]), &["component `.` or `..`"]),
        refused("an artifact with a file of the node", titled(&["/etc/passwd"]), &["is absolute"]),
        refused("an artifact with two files of one name", titled(&["a", "b", "a"]), &["another blob"]),
        refused("an artifact with a file in a file", titled(&["a", "a/b"]), &["as a file and as a folder"]),
        refused("an artifact with a whiteout", titled(&["etc/.wh.passwd"]), &["begins with `.wh.`"]),
        refused("an artifact with a NUL in a name", titled(&["a\0b"]), &["control characters"]),
        refused("an artifact with an endless name", titled(&[&"x/".repeat(100_000)]), &["longer than 1024 bytes"]),
        Case::new(
            "B052",
            "an artifact with a name that is no text",
            Image::of([Layer::gzip("x", b"x")
                .described(|layer| layer["annotations"] = json!({"org.opencontainers.image.title": 7}))])
            .manifest(|manifest| manifest["config"]["mediaType"] = EMPTY.into()),
        )
        .fails(Corrupt, &["not an image manifest"]),
        refused("a signature", artifact(CONFIG, "application/vnd.dev.cosign.simplesigning.v1+json"), &["cosign"]),
        Case::new(
            "B052",
            "only an attestation",
            Image::good("attested").below_index(&json!({"os": "unknown", "architecture": "unknown"})),
        )
        .fails(Unacceptable, &["unknown/unknown", ARCHITECTURE]),
        Case::new(
            "B052",
            "an artifact manifest",
            Image::good("x").content_type("application/vnd.oci.artifact.manifest.v1+json").with_manifest("{}"),
        )
        .fails(Unacceptable, &["application/vnd.oci.artifact.manifest.v1+json"]),
        Case::new(
            "B052",
            "an image that also says what it is for",
            Image::good("typed").manifest(|manifest| manifest["artifactType"] = "application/vnd.example.model".into()),
        ),
        Case::new(
            "B052",
            "an image that refers to another manifest",
            Image::good("referring").manifest(|manifest| {
                let digest = Image::good("its subject").digest();
                manifest["subject"] = json!({"mediaType": MANIFEST, "digest": digest, "size": 7});
            }),
        )
        .never_asks("/referrers/")
        .never_asks(&Image::good("its subject").digest()),
        old("by its content type", "application/vnd.docker.distribution.manifest.v1+json", SCHEMA1),
        old("signed", "application/vnd.docker.distribution.manifest.v1+prettyjws", SCHEMA1),
        old("by its content type alone", "application/vnd.docker.distribution.manifest.v1+prettyjws", "{}"),
        old("by its version alone", "", r#"{"schemaVersion":1}"#),
        old("by its layers alone", "", r#"{"fsLayers":[]}"#),
        old("called json", "application/json", SCHEMA1),
        old("called a page", "text/plain; charset=utf-8", SCHEMA1),
        Case::new(
            "B053",
            "below an index",
            Image::good("x")
                .with_manifest(SCHEMA1)
                .content_type("application/vnd.docker.distribution.manifest.v1+json")
                .below_index(&json!({"os": "linux", "architecture": ARCHITECTURE})),
        )
        .fails(Unacceptable, &["schema version 1"])
        .answering("manifests/unused", Answer::ok("", "")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_an_image_is_refused_by_its_type_before_a_byte_of_it_is_fetched() {
    Bench::new().await.hold(cases()).await;
}
