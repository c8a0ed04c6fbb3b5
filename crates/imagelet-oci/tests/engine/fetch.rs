//! What a pull does with mirrors that serve other bytes than they were asked for.

use imagelet_core::error::RuntimeErrorKind;
use imagelet_oci::{Engine, EngineConfig, RegistryConfig};

use crate::{
    fixture::{Layer, TestRegistry},
    pull, settled,
};

/// An engine that asks `mirror` before `registry`.
async fn behind(root: &std::path::Path, registry: &TestRegistry, mirror: &TestRegistry) -> std::sync::Arc<Engine> {
    let hosts = root.join("hosts");
    let own = hosts.join(registry.name("").trim_end_matches('/'));
    std::fs::create_dir_all(&own).expect("a folder");
    let text = format!("[host.\"http://{}\"]\n", mirror.name("").trim_end_matches('/'));
    std::fs::write(own.join("hosts.toml"), text).expect("a file");
    let mut config = EngineConfig::new(root.join("store"));
    config.registry = RegistryConfig { hosts_dirs: vec![hosts], ..RegistryConfig::default() };
    Engine::open(config).await.expect("open")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_serves_another_layer_is_passed_over() {
    let whole = Layer::new().file("a", &vec![7; 200_000]);
    let wrong_in = |layer: &Layer, kind: usize| {
        layer.clone().serving(|bytes| match kind {
            // As long, and no archive any more.
            0 => bytes[20..].fill(0x55),
            // As long, and an archive that unpacks well; the digest alone can tell.
            _ => bytes[600] = 8,
        })
    };
    for (kind, layer) in [(0, whole.clone().gzip()), (0, whole.clone().zstd()), (1, whole.plain())] {
        let (registry, mirror) = (TestRegistry::start().await, TestRegistry::start().await);
        let sound = Layer::new().file("b", b"b").gzip();
        registry.image("a", "v1", &[layer.clone(), sound.clone()]);
        mirror.image("a", "v1", &[wrong_in(&layer, kind), sound]);
        let folder = tempfile::tempdir().expect("a folder");
        let engine = behind(folder.path(), &registry, &mirror).await;
        pull(&engine, &registry.name("a:v1")).await.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
        assert_eq!((mirror.take_layer_requests(), registry.take_layer_requests()), (2, 1), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_registry_serves_the_same_wrong_layer_the_pull_fails_and_leaves_nothing() {
    let layer = Layer::new().file("a", b"text").plain().serving(|bytes| bytes[512] = b'T');
    let (registry, mirror) = (TestRegistry::start().await, TestRegistry::start().await);
    registry.image("a", "v1", std::slice::from_ref(&layer));
    mirror.image("a", "v1", &[layer]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = behind(folder.path(), &registry, &mirror).await;
    let error = pull(&engine, &registry.name("a:v1")).await.expect_err("it is wrong everywhere");
    assert_eq!(error.kind(), RuntimeErrorKind::Corrupt, "{}", error.chain());
    assert_eq!((mirror.take_layer_requests(), registry.take_layer_requests()), (2, 1), "each, and one more try");
    assert_eq!(settled(&folder.path().join("store")).await, Vec::<String>::new());
}
