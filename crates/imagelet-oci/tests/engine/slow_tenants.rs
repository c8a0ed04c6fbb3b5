//! One tenant's slow registry beside another tenant's pull, for each thing that the two share.

use std::{sync::Arc, time::Duration};

use imagelet_core::{
    error::RuntimeError,
    events::PodIdentity,
    image::{ImageId, ImageSpec},
    ports::{ImageService as _, Progress, PullEvent, PullRequest, no_progress},
};
use imagelet_oci::EngineImporter;
use imagelet_oci::{Engine, EngineConfig};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    blobs::noise,
    fixture::{Layer, TestRegistry},
    import::Bed,
    open_as,
};

const WAIT_MAX: Duration = Duration::from_mins(2);
const SLOW_RATES: [usize; 2] = [100, 20 << 10];
const MIB: usize = 1 << 20;

fn request(name: &str, namespace: &str) -> PullRequest {
    let pod = PodIdentity { namespace: namespace.into(), ..PodIdentity::default() };
    PullRequest { image: ImageSpec::new(name), pod, ..PullRequest::default() }
}

type Pull = JoinHandle<Result<ImageId, RuntimeError>>;

fn pulling(engine: &Arc<Engine>, name: &str, namespace: &str) -> Pull {
    let (engine, request) = (Arc::clone(engine), request(name, namespace));
    tokio::spawn(async move { engine.pull(&request, no_progress()).await })
}

fn importing(importer: &Arc<EngineImporter>, name: &str, namespace: &str) -> Pull {
    let (importer, request) = (Arc::clone(importer), request(name, namespace));
    tokio::spawn(async move { importer.import(&request, no_progress()).await.map_err(|error| error.cause) })
}

/// Waits until a registry was asked for so many layers.
async fn asked(registry: &TestRegistry, layers: usize) {
    let mut asked = 0;
    let all = async {
        while asked < layers {
            asked += registry.take_layer_requests();
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_MAX, all).await.expect("the layers are asked for");
}

async fn ends(pull: Pull) -> ImageId {
    let pulled = timeout(WAIT_MAX, pull).await.expect("it ends").expect("no panic");
    pulled.unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// A layer that fills most of a tenant's memory by its first bytes.
fn hungry(seed: u64) -> Layer {
    Layer::new().file("zeros", &vec![0; 30 * MIB]).file(&format!("f{seed}"), &noise(seed, 700_000)).zstd_with_window(25)
}

/// Two tenants fill the memory from a slow registry, and a third one pulls from another.
async fn memory_goes_to_another_tenant(rate: usize, pull: impl Fn(&str, &str) -> Pull) {
    let (slow, healthy) = (TestRegistry::start().await, TestRegistry::start().await);
    for (name, seed) in [("a", 1), ("b", 2)] {
        slow.image(name, "v1", &[hungry(seed)]);
    }
    healthy.image("app", "v1", &[hungry(3), Layer::new().file("small", b"s").gzip()]);
    slow.trickle(rate, 100_000);
    let holders: Vec<_> = ["a", "b"].map(|name| pull(&slow.name(&format!("{name}:v1")), name)).into();
    asked(&slow, 2).await;
    sleep(Duration::from_secs(2)).await;
    slow.take_ranges();
    ends(pull(&healthy.name("app:v1"), "victim")).await;
    assert!(holders.iter().all(|holder| !holder.is_finished()), "they trickle on");
    slow.trickle(0, 0);
    for holder in holders {
        ends(holder).await;
    }
    let ranges = slow.take_ranges();
    let resumed = ranges.iter().flatten().any(|range| {
        let from = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
        from.is_some_and(|(from, _)| from.parse::<usize>().is_ok_and(|from| from >= 100_000))
    });
    assert!(resumed, "what had come is not fetched again: {ranges:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_fill_the_memory_and_then_trickle_give_it_to_another_tenant_and_resume() {
    for rate in SLOW_RATES {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open_as(EngineConfig::new(folder.path())).await;
        memory_goes_to_another_tenant(rate, |name, namespace| pulling(&engine, name, namespace)).await;
        let bed = Bed::new(|_| {}).await;
        memory_goes_to_another_tenant(rate, |name, namespace| importing(&bed.importer, name, namespace)).await;
    }
}

/// Two tenants hold all places from two slow registries, and a third one pulls from another.
async fn a_place_goes_to_another_tenant(rate: usize, pull: impl Fn(&str, &str) -> Pull) {
    let slow = [TestRegistry::start().await, TestRegistry::start().await];
    let healthy = TestRegistry::start().await;
    healthy.image("app", "v1", &[Layer::new().file("small", b"s").gzip()]);
    let mut holders = Vec::new();
    for (tenant, registry) in slow.iter().enumerate() {
        registry.trickle(rate, 0);
        for number in 0..30 {
            let seed = 1000 * (1 + tenant as u64) + number;
            registry.image(
                &format!("i{number}"),
                "v1",
                &[Layer::new().file(&format!("f{seed}"), &noise(seed, 400_000)).gzip()],
            );
            holders.push(pull(&registry.name(&format!("i{number}:v1")), &format!("tenant-{tenant}")));
        }
    }
    let mut held = 0;
    let all = async {
        while held < 48 {
            held += slow.iter().map(TestRegistry::take_layer_requests).sum::<usize>();
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_MAX, all).await.expect("the places fill");
    ends(pull(&healthy.name("app:v1"), "victim")).await;
    assert!(holders.iter().any(|holder| !holder.is_finished()), "they trickle on");
    for registry in &slow {
        registry.trickle(0, 0);
    }
    for holder in holders {
        ends(holder).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_slow_registries_that_hold_all_places_give_one_to_another_tenant_and_end_whole() {
    for rate in SLOW_RATES {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open_as(EngineConfig::new(folder.path())).await;
        a_place_goes_to_another_tenant(rate, |name, namespace| pulling(&engine, name, namespace)).await;
        let bed = Bed::new(|_| {}).await;
        a_place_goes_to_another_tenant(rate, |name, namespace| importing(&bed.importer, name, namespace)).await;
    }
}

/// A blob of junk that a manifest passes off as a public layer.
fn junk(public: &Layer, seed: u64) -> Layer {
    Layer::new().file("junk", &noise(seed, 3 * MIB)).gzip().with_diff_id_of(public.tar())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_layer_is_not_held_by_a_tenant_whose_registry_sends_it_slowly() {
    for rate in SLOW_RATES {
        let (slow, healthy) = (TestRegistry::start().await, TestRegistry::start().await);
        let public = Layer::new().file("base", &noise(9, 100_000)).gzip();
        slow.image("trap", "v1", &[junk(&public, 4)]);
        healthy.image("app", "v1", std::slice::from_ref(&public));
        slow.trickle(rate, 0);
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open_as(EngineConfig::new(folder.path())).await;
        let holder = pulling(&engine, &slow.name("trap:v1"), "tenant");
        asked(&slow, 1).await;
        let (waits, mut waited) = tokio::sync::mpsc::unbounded_channel();
        let progress: Progress = Arc::new(move |event| {
            if let PullEvent::Waits { wait, .. } = event {
                let _ = waits.send(wait.map(|wait| (wait.thing.name(), wait.holder)));
            }
        });
        let request = request(&healthy.name("app:v1"), "victim");
        let pulled = timeout(WAIT_MAX, engine.pull(&request, progress)).await.expect("it ends");
        let id = pulled.expect("it is healthy");
        assert_eq!(waited.recv().await, Some(Some(("layer", Some(slow.name("trap:v1"))))), "the wait names its holder");
        assert_eq!(waited.recv().await, Some(None), "and ends");
        // The first whole layer is the layer of both.
        assert!(!ends(holder).await.as_str().is_empty());
        let image = engine.status(&ImageSpec::new(id.as_str())).await.expect("a status");
        assert!(image.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_does_not_wait_for_the_slow_registry_of_another_tenants_import() {
    for rate in SLOW_RATES {
        let bed = Bed::new(|_| {}).await;
        let slow = TestRegistry::start().await;
        let public = Layer::new().file("base", &noise(9, 100_000)).gzip();
        slow.image("trap", "v1", &[junk(&public, 4)]);
        bed.registry.image("app", "v1", &[public.clone(), Layer::new().file("app", b"a").gzip()]);
        slow.trickle(rate, 0);
        let holder = importing(&bed.importer, &slow.name("trap:v1"), "tenant");
        asked(&slow, 1).await;
        ends(importing(&bed.importer, &bed.registry.name("app:v1"), "victim")).await;
        ends(holder).await;
        assert_eq!(bed.sink.layers(), 2, "each layer came once");
        assert_eq!(bed.left(), Vec::<String>::new());
    }
}
