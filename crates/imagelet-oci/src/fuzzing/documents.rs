//! Manifests, indexes and configurations: what is accepted keeps the documented limits, and reads the same twice.

use std::path::Path;

use imagelet_core::{
    image::Platform,
    runtime::{RuntimeError, RuntimeErrorKind},
};

use super::{
    assert_tellable,
    mutation::{self, Dice},
};
use crate::manifest::{
    Descriptor, INDEX_ENTRIES_MAX, ImageConfig, LAYER_BYTES_MAX, LAYERS_MAX, LayerKind, Manifest, ManifestDocument,
};

const CONTENT_TYPES: [&str; 8] = [
    "",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json; charset=utf-8",
    "Application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
    "application/json",
    "text/plain\r\n",
];
const PLATFORMS: [&str; 5] = ["linux/amd64", "linux/amd64/v3", "linux/arm64", "linux/arm/v7", "linux/riscv64"];
const WORDS: [&[u8]; 31] = [
    b"\"schemaVersion\":2,",
    b"\"schemaVersion\":1,",
    b"\"mediaType\":\"application/vnd.oci.image.index.v1+json\",",
    b"\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",",
    b"\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+zstd\",",
    b"\"mediaType\":\"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip\",",
    b"+encrypted",
    b"\"artifactType\":\"a/b\",",
    b"\"manifests\":[],",
    b"\"layers\":null,",
    b"\"config\":{},",
    b"\"fsLayers\":[],",
    b"\"digest\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",",
    b"\"digest\":\"sha512:00\",",
    b"\"size\":-1,",
    b"\"size\":9223372036854775807,",
    b"\"size\":9223372036854775808,",
    b"\"size\":1e3,",
    b"\"size\":274877906945,",
    b"\"platform\":{\"os\":\"linux\",\"architecture\":\"amd64\",\"variant\":\"v2\"},",
    b"\"urls\":[\"http://a\"],",
    b"\"annotations\":{\"a\":\"b\"},",
    b"\"rootfs\":{\"diff_ids\":[]},",
    b"\"Labels\":{\"\":\"\"},",
    b"\"Volumes\":{\"/\":{}},",
    b"null",
    b"{}",
    b"[[[[[[[[",
    b"\\ud800",
    b"\\u0000",
    b"\xef\xbb\xbf",
];

/// Reads the bytes as each kind of document.
pub(super) fn check(bytes: &[u8], _: &Path) {
    for content_type in CONTENT_TYPES {
        let (read, again) =
            (ManifestDocument::parse(bytes, content_type), ManifestDocument::parse(bytes, content_type));
        match (&read, &again) {
            (Ok(read), Ok(again)) => {
                assert_eq!(read, again, "read twice");
                assert_within_limits(read, content_type);
                ManifestDocument::media_type(bytes, content_type, read);
            }
            (Err(error), Err(again)) => assert_refusal(error, again),
            _ => panic!("accepted only once: {read:?}, {again:?}"),
        }
    }
    match (ImageConfig::parse(bytes), ImageConfig::parse(bytes)) {
        (Ok(read), Ok(again)) => {
            assert_eq!(read, again, "read twice");
            assert!(read.diff_ids.len() <= LAYERS_MAX);
            for platform in platforms() {
                if let Err(error) = read.check_platform(&platform) {
                    assert_tellable(&error);
                }
            }
        }
        (Err(error), Err(again)) => assert_refusal(&error, &again),
        (read, again) => panic!("accepted only once: {read:?}, {again:?}"),
    }
}

fn assert_refusal(error: &RuntimeError, again: &RuntimeError) {
    assert_tellable(error);
    assert_eq!((error.kind(), error.chain()), (again.kind(), again.chain()));
    assert!(matches!(error.kind(), RuntimeErrorKind::Corrupt | RuntimeErrorKind::Unacceptable), "{error:?}");
}

fn assert_within_limits(document: &ManifestDocument, content_type: &str) {
    match document {
        ManifestDocument::Image(manifest) => {
            let Manifest { config, layers, .. } = manifest;
            assert!(layers.len() <= LAYERS_MAX);
            assert!(
                !content_type.contains("index") && !content_type.contains("list"),
                "an image called {content_type}"
            );
            assert_descriptor(config);
            layers.iter().for_each(assert_descriptor);
            let unpackable = |layer: &Descriptor| {
                layer.size <= LAYER_BYTES_MAX && matches!(LayerKind::of(&layer.media_type), LayerKind::Tar(_))
            };
            match manifest.check_is_image() {
                Ok(()) => assert!(layers.iter().all(unpackable)),
                Err(error) => assert_tellable(&error),
            }
        }
        ManifestDocument::Index(index) => {
            assert!(index.manifests.len() <= INDEX_ENTRIES_MAX);
            assert!(!content_type.contains("manifest.v"), "an index called {content_type}");
            index.manifests.iter().for_each(assert_descriptor);
            for platform in platforms() {
                match index.choose(&platform) {
                    Ok(chosen) => assert!(index.manifests.iter().any(|entry| std::ptr::eq(entry, chosen))),
                    Err(error) => assert_tellable(&error),
                }
            }
        }
    }
}

fn assert_descriptor(descriptor: &Descriptor) {
    assert!(i64::try_from(descriptor.size).is_ok(), "a size of more than 63 bits");
    let hex = descriptor.digest.hex();
    assert!(matches!(hex.len(), 64 | 96 | 128) && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match descriptor.layer_compression() {
        Ok(compression) => assert_eq!(LayerKind::of(&descriptor.media_type), LayerKind::Tar(compression)),
        Err(error) => assert_tellable(&error),
    }
}

fn platforms() -> impl Iterator<Item = Platform> {
    PLATFORMS.iter().map(|text| text.parse().expect("a platform"))
}

/// Changes bytes and inserts members.
pub(super) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &WORDS);
}
