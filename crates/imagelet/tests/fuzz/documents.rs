//! Manifests, indexes and configurations: what is accepted keeps the documented limits, and reads the same twice.

use std::path::Path;

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::Platform,
};

use super::{
    assert_short_message,
    mutation::{self, Dice},
};
use imagelet_oci::fuzzing::{Document, artifact, config, manifest};

const INDEX_ENTRIES_MAX: usize = 1000;
const LAYERS_MAX: usize = 500;
const LAYER_BYTES_MAX: u64 = 256 << 30;

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
pub(crate) fn check(bytes: &[u8], _: &Path) {
    let platforms: Vec<Platform> = PLATFORMS.iter().map(|text| text.parse().expect("a platform")).collect();
    for content_type in CONTENT_TYPES {
        let read = || manifest(bytes, content_type, &platforms);
        match (read(), read()) {
            (Ok(read), Ok(again)) => {
                assert_eq!(
                    (&read.media_type, &read.descriptors),
                    (&again.media_type, &again.descriptors),
                    "read twice"
                );
                let is_artifact = artifact(bytes).is_ok_and(|files| files.is_some());
                assert_within_limits(&read, content_type, is_artifact);
            }
            (Err(error), Err(again)) => assert_refusal(&error, &again),
            (read, again) => panic!("accepted only once: {read:?}, {again:?}"),
        }
    }
    match (config(bytes, &platforms), config(bytes, &platforms)) {
        (Ok((diff_ids, refusals)), Ok((again, _))) => {
            assert_eq!(diff_ids, again, "read twice");
            assert!(diff_ids.len() <= LAYERS_MAX);
            for error in &refusals {
                assert_short_message(error);
            }
        }
        (Err(error), Err(again)) => assert_refusal(&error, &again),
        (read, again) => panic!("accepted only once: {read:?}, {again:?}"),
    }
}

fn assert_refusal(error: &RuntimeError, again: &RuntimeError) {
    assert_short_message(error);
    assert_eq!((error.kind(), error.chain()), (again.kind(), again.chain()));
    assert!(matches!(error.kind(), RuntimeErrorKind::Corrupt | RuntimeErrorKind::Unacceptable), "{error:?}");
}

fn assert_within_limits(document: &Document, content_type: &str, is_artifact: bool) {
    let Document { is_index, descriptors, refusals, .. } = document;
    if *is_index {
        assert!(descriptors.len() <= INDEX_ENTRIES_MAX);
        assert!(!content_type.contains("manifest.v"), "an index called {content_type}");
    } else {
        let layers = &descriptors[1..];
        assert!(layers.len() <= LAYERS_MAX);
        assert!(!content_type.contains("index") && !content_type.contains("list"), "an image called {content_type}");
        let can_unpack = |size: u64, media_type: &str| {
            let media_type = media_type.to_ascii_lowercase();
            let is_tar = media_type.contains("tar") && !media_type.contains("encrypted");
            size <= LAYER_BYTES_MAX && (is_artifact || is_tar)
        };
        assert!(!refusals.is_empty() || layers.iter().all(|(_, size, media_type)| can_unpack(*size, media_type)));
    }
    for error in refusals {
        assert_short_message(error);
    }
    for (digest, size, _) in descriptors {
        assert!(i64::try_from(*size).is_ok(), "a size of more than 63 bits");
        let hex = digest.hex();
        assert!(matches!(hex.len(), 64 | 96 | 128) && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}

/// Changes bytes and inserts members.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &WORDS);
}
