//! Large documents: in a staging folder until they are wanted, and parsed in turn.

use std::{path::Path, pin::pin, time::Duration};

use serde_json::json;

use super::*;
use crate::{
    manifest::CONFIG_BYTES_MAX,
    registry::{
        RegistryConfig,
        tests::fake::{FakeRegistry, OCI_INDEX, OCI_MANIFEST},
    },
    store::{Store, StoreOptions},
};

const PADDING: usize = 1 << 20;

/// An image whose index, manifest and configuration have a long comment each.
fn put_large(fake: &FakeRegistry) -> [Bytes; 3] {
    let padding = "x".repeat(PADDING);
    let bytes = |value: serde_json::Value| Bytes::from(value.to_string());
    let config = bytes(json!({"architecture": "amd64", "os": "linux", "comment": padding, "rootfs": {"diff_ids": []}}));
    let described = |media_type: &str, bytes: &[u8]| {
        json!({"mediaType": media_type, "digest": Digest::of(bytes).as_str(), "size": bytes.len(),
               "platform": {"os": "linux", "architecture": "amd64"}})
    };
    let of_config = described("application/vnd.oci.image.config.v1+json", &config);
    let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": of_config, "layers": [],
                          "annotations": {"comment": padding}});
    let manifest = bytes(manifest);
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [described(OCI_MANIFEST, &manifest)],
                       "annotations": {"comment": padding}});
    let index = bytes(index);
    fake.put_blob(config.clone());
    fake.put_document("manifest", OCI_MANIFEST, manifest.clone());
    fake.put_document("large", OCI_INDEX, index.clone());
    [index, manifest, config]
}

fn keeping(folder: &Path) -> (Registry, Arc<Store>) {
    let store = Arc::new(Store::open(folder, StoreOptions::for_tests()).unwrap());
    let registry = Registry::new(RegistryConfig::default());
    registry.keep_documents_in(&store);
    (registry, store)
}

fn platform() -> Platform {
    "linux/amd64".parse().unwrap()
}

/// Bytes of the files in the staging folders of a store.
fn staged(root: &Path) -> u64 {
    let folders = std::fs::read_dir(root.join("tmp")).unwrap();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn a_pull_keeps_no_large_document_in_memory_and_has_its_bytes_when_they_are_wanted() {
    let (fake, folder) = (FakeRegistry::start().await, tempfile::tempdir().unwrap());
    let documents = put_large(&fake);
    let (registry, _store) = keeping(folder.path());
    let resolved = registry.resolve(&fake.reference("team/app:large"), None, &platform()).await.unwrap();
    let config = resolved.session.fetch_document_blob(&resolved.manifest.config, CONFIG_BYTES_MAX).await.unwrap();
    assert_eq!(resolved.in_memory() + config.in_memory(), 0);
    for (kept, sent) in [&resolved.root.bytes, &resolved.chosen.bytes, &config].into_iter().zip(&documents) {
        assert_eq!((kept.len(), kept.read().unwrap()), (sent.len(), sent.clone()));
    }
    let sent: usize = documents.iter().map(Bytes::len).sum();
    assert_eq!(staged(folder.path()), sent as u64);
    drop((resolved, config));
    assert_eq!(staged(folder.path()), 0, "they go with the pull");
}

#[tokio::test]
async fn small_documents_stay_in_memory() {
    let (fake, folder) = (FakeRegistry::start().await, tempfile::tempdir().unwrap());
    fake.put_image("v1", &[]);
    let (registry, _store) = keeping(folder.path());
    let resolved = registry.resolve(&fake.reference("team/app:v1"), None, &platform()).await.unwrap();
    assert!((1..64 << 10).contains(&resolved.in_memory()));
    assert_eq!(staged(folder.path()), 0);
}

#[tokio::test]
async fn a_large_document_waits_on_the_disk_for_its_turn_to_be_parsed() {
    let (fake, folder) = (FakeRegistry::start().await, tempfile::tempdir().unwrap());
    let [index, ..] = put_large(&fake);
    fake.put_image("v1", &[]);
    let (registry, _store) = keeping(folder.path());
    let all = u32::try_from(PARSED_BYTES_MAX).unwrap();
    let others = registry.shared.parsing.acquire_many(all).await.unwrap();
    let (reference, platform) = (fake.reference("team/app:large"), platform());
    let mut pull = pin!(registry.resolve(&reference, None, &platform));
    // It is received without a turn: one that comes slowly keeps no other from being parsed.
    while staged(folder.path()) < index.len() as u64 {
        tokio::select! {
            _ = &mut pull => panic!("it was parsed"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    registry.resolve(&fake.reference("team/app:v1"), None, &platform).await.expect("a small one needs no turn");
    drop(others);
    pull.await.expect("its turn has come");
    assert_eq!(registry.shared.parsing.available_permits(), PARSED_BYTES_MAX);
}
