//! Requests go on at the next host, and return to one that works again.

use std::time::Duration;

use futures_util::FutureExt as _;
use imagelet_core::{
    error::{ErrorClass, Party, RuntimeError, RuntimeErrorKind, Stage},
    image::{Digest, Platform},
    ports::Patience,
};
use tokio::time::{Instant, sleep};

use super::fake::{FakeRegistry, Trick};
use crate::{
    registry::{
        PullSession, Registry, RegistryConfig, RegistryTimeouts, Resolved,
        error::{Failure, Retry, unavailable},
        hosts::Host,
        next_host::Attempts,
    },
    testing::{FAULTS, FaultRegistry, RegistryFault, TestImage},
};

/// A client whose `hosts.toml` names these mirrors before the registry.
pub(crate) fn client(fake: &FakeRegistry, mirrors: &[String], config: RegistryConfig) -> (Registry, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join(fake.address.to_string());
    std::fs::create_dir(&own).unwrap();
    let text: Vec<String> = mirrors.iter().map(|mirror| format!("[host.\"http://{mirror}\"]\n")).collect();
    std::fs::write(own.join("hosts.toml"), text.concat()).unwrap();
    let config = RegistryConfig { hosts_dirs: vec![folder.path().to_owned()], ..config };
    (Registry::new(config), folder)
}

/// A fault of the table.
pub(crate) fn fault(name: &str) -> &'static RegistryFault {
    FAULTS.iter().find(|fault| fault.name == name).unwrap()
}

fn quick() -> RegistryConfig {
    RegistryConfig {
        timeouts: RegistryTimeouts {
            header: Duration::from_secs(1),
            progress: Duration::from_secs(1),
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    }
}

async fn resolve(registry: &Registry, fake: &FakeRegistry) -> Result<Resolved, RuntimeError> {
    let platform: Platform = "linux/amd64".parse().unwrap();
    registry.resolve(&fake.reference("team/app:v1"), None, &platform).await
}

async fn layer(resolved: &Resolved, index: usize) -> Result<Vec<u8>, RuntimeError> {
    let mut stream = resolved.session.open_blob(&resolved.manifest.layers[index], 0).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn ranges(fake: &FakeRegistry) -> Vec<Option<String>> {
    fake.seen().into_iter().map(|seen| seen.range).collect()
}

fn answer(status: u16, headers: &[(&'static str, &str)]) -> Trick {
    Trick::Answer(status, headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(), "".into())
}

#[tokio::test]
async fn a_mirror_that_never_answers_costs_one_deadline_for_an_image_of_thirty_layers_and_none_after_a_restart() {
    let fake = FakeRegistry::start().await;
    let layers: Vec<Vec<u8>> = (0..30).map(|index| vec![index; 1000]).collect();
    fake.put_image("v1", &layers.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let mirror = FaultRegistry::start(Some(fault("accept-and-silence")), &TestImage::of_size(1)).await;
    let kept = tempfile::tempdir().unwrap();
    let health_file = Some(kept.path().join("health.json"));
    // Also on a busy machine the registry answers thirty requests at once within it: else they turn to the mirror.
    let config = RegistryConfig {
        health_file,
        timeouts: RegistryTimeouts { header: Duration::from_secs(8), ..quick().timeouts },
        ..quick()
    };
    let (registry, _folder) = client(&fake, &[mirror.address().to_owned()], config);
    let resolved = resolve(&registry, &fake).await.unwrap();
    let reads = (0..30).map(|index| layer(&resolved, index));
    let read: Vec<_> = futures_util::future::join_all(reads).await;
    assert!(read.into_iter().zip(&layers).all(|(read, layer)| read.unwrap() == *layer));
    assert_eq!(mirror.stalls(), 1, "the manifest waits for it, no layer does");
    let again = Registry::new(registry.shared.config.clone());
    resolve(&again, &fake).await.unwrap();
    assert_eq!(mirror.stalls(), 1, "the next process knows it");
}

/// An image of one layer at a registry and at its mirror, and the bytes of the layer.
async fn mirrored() -> (FakeRegistry, FakeRegistry, Resolved, Vec<u8>) {
    let (fake, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
    let bytes: Vec<u8> = (0..50_000_u32).map(|index| index.to_le_bytes()[0]).collect();
    for registry in [&fake, &mirror] {
        registry.put_image("v1", &[&bytes]);
    }
    let (registry, _folder) = client(&fake, &[mirror.address.to_string()], quick());
    let resolved = resolve(&registry, &fake).await.unwrap();
    fake.seen();
    (fake, mirror, resolved, bytes)
}

#[tokio::test]
async fn a_host_counts_for_a_blob_from_its_first_byte_and_once() {
    let (_fake, mirror, resolved, bytes) = mirrored().await;
    let blobs = |resolved: &Resolved| resolved.session.senders().iter().map(|host| host.blobs).collect::<Vec<_>>();
    mirror.trick(Digest::of(&bytes).as_str(), 1, Trick::CutAfter(0));
    assert_eq!(layer(&resolved, 0).await.unwrap(), bytes);
    assert_eq!(blobs(&resolved), [0, 1], "the mirror sent a head and no byte");

    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[&bytes]);
    let (registry, _folder) = client(&fake, &[], quick());
    let resolved = resolve(&registry, &fake).await.unwrap();
    let descriptor = &resolved.manifest.layers[0];
    fake.trick(descriptor.digest.as_str(), 1, Trick::Body(vec![0; bytes.len()].into()));
    resolved.session.fetch_blob_bytes(descriptor, 1 << 20).await.unwrap();
    assert_eq!(blobs(&resolved), [1], "fetched again after wrong bytes");
}

#[tokio::test]
async fn a_blob_that_breaks_off_at_a_mirror_goes_on_at_the_registry() {
    let (fake, mirror, resolved, bytes) = mirrored().await;
    let digest = Digest::of(&bytes);
    mirror.trick(digest.as_str(), 9, Trick::CutAfter(10_000));
    assert_eq!(layer(&resolved, 0).await.unwrap(), bytes);
    assert_eq!(ranges(&fake), [Some("bytes=10000-".to_owned())]);
    // And back, where the registry breaks off too.
    mirror.clear_tricks();
    mirror.seen();
    mirror.trick(digest.as_str(), 1, Trick::CutAfter(10_000));
    fake.trick(digest.as_str(), 1, Trick::CutAfter(5_000));
    assert_eq!(layer(&resolved, 0).await.unwrap(), bytes);
    assert_eq!(ranges(&mirror), [None, Some("bytes=15000-".to_owned())]);
}

#[tokio::test]
async fn a_mirror_that_ignores_the_range_is_passed_over_and_read_whole_only_if_it_is_the_last() {
    let (fake, mirror, resolved, bytes) = mirrored().await;
    let digest = Digest::of(&bytes);
    mirror.trick(digest.as_str(), 1, Trick::CutAfter(10_000));
    mirror.trick(digest.as_str(), 9, Trick::IgnoreRange);
    fake.trick(digest.as_str(), 9, answer(404, &[]));
    assert_eq!(layer(&resolved, 0).await.unwrap(), bytes, "the mirror alone has it");
    assert_eq!(ranges(&mirror)[1..], [None, Some("bytes=10000-".to_owned()), None]);
}

#[tokio::test]
async fn an_expired_redirect_is_signed_anew_by_its_registry() {
    let (fake, store) = (FakeRegistry::start().await, FakeRegistry::start().await);
    fake.put_image("v1", &[b"layer"]);
    store.put_blob(&b"layer"[..]);
    let (registry, _folder) = client(&fake, &[], quick());
    let resolved = resolve(&registry, &fake).await.unwrap();
    let digest = Digest::of(b"layer");
    let location = format!("http://{}/blobs/{digest}?sig=1", store.address);
    fake.trick(digest.as_str(), 99, answer(307, &[("location", &location)]));
    for (status, times, works) in [(403, 2, true), (400, 1, true), (503, 1, true), (403, 3, false), (401, 1, false)] {
        store.trick(digest.as_str(), times, answer(status, &[]));
        fake.seen();
        let read = layer(&resolved, 0).await;
        assert_eq!(read.is_ok(), works, "{times} times {status}");
        let asked = if status == 401 { 1 } else { times + u32::from(works) };
        assert_eq!(fake.seen().len(), asked as usize, "{times} times {status}");
        store.clear_tricks();
    }
}

#[tokio::test]
async fn a_registry_that_limits_requests_four_times_or_is_away_for_a_while_fails_no_pull() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    let (registry, _folder) = client(&fake, &[], quick());
    fake.trick("/v1", 4, answer(429, &[]));
    let resolved = resolve(&registry, &fake).await.unwrap();
    fake.trick(Digest::of(b"layer").as_str(), 4, answer(503, &[]));
    assert_eq!(layer(&resolved, 0).await.unwrap(), b"layer");
}

#[tokio::test]
async fn a_limit_of_docker_hubs_kind_is_not_waited_for_and_names_its_window() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    let (registry, _folder) = client(&fake, &[], quick());
    fake.trick("/v1", 9, answer(429, &[("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "0;w=21600")]));
    let error = resolve(&registry, &fake).await.unwrap_err();
    assert_eq!(fake.seen().len(), 1);
    assert_eq!(error.fault().class, ErrorClass::RateLimited);
    assert_eq!(error.fault().retry_after, Some(Duration::from_hours(6)));
}

#[tokio::test]
async fn an_error_names_what_failed_at_each_host_also_beside_a_hint() {
    let (fake, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
    let config =
        RegistryConfig { timeouts: RegistryTimeouts { retry_budget: Duration::ZERO, ..quick().timeouts }, ..quick() };
    let (registry, _folder) = client(&fake, &[mirror.address.to_string()], config);
    mirror.trick("/v1", 9, Trick::Answer(500, vec![], "see https://store/x?sig=secretsignature: no disk".into()));
    let error = resolve(&registry, &fake).await.unwrap_err();
    assert_eq!((error.kind(), error.fault().class), (RuntimeErrorKind::NotFound, ErrorClass::ImageUnknown));
    let text = error.chain();
    assert!(error.hint().is_some_and(|hint| hint.contains("check the name")), "{text}");
    for part in [&mirror.address.to_string(), &fake.address.to_string(), "500", "no disk", "MANIFEST_UNKNOWN"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("secretsignature"), "{text}");
    mirror.clear_tricks();
    mirror.trick("/v1", 9, Trick::Answer(500, vec![], vec![b'x'; 1 << 20].into()));
    let text = resolve(&registry, &fake).await.unwrap_err().chain();
    assert!(text.len() < 3000, "{}", text.len());
}

#[tokio::test]
async fn a_wrong_tag_names_its_one_host_once() {
    let fake = FakeRegistry::start().await;
    let place = fake.address.to_string();
    let (as_mirror, _folder) = client(&fake, std::slice::from_ref(&place), quick());
    let text = resolve(&as_mirror, &fake).await.unwrap_err().chain();
    assert!(!text.contains("mirrors failed") && text.contains("was not found"), "{text}");
    // `insecure` of registries.conf: over TLS with any certificate, else plain.
    let (encrypted, _) = FakeRegistry::start_encrypted().await;
    for (fake, requests) in [(&fake, 1), (&encrypted, 1)] {
        fake.seen();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("registries.conf");
        let location = format!("[::ffff:127.0.0.1]:{}", fake.address.port());
        std::fs::write(
            &file,
            format!("[[registry]]\nprefix = \"r.example\"\nlocation = \"{location}\"\ninsecure = true\n"),
        )
        .unwrap();
        let registry = Registry::new(RegistryConfig { hosts_dirs: vec![file], ..quick() });
        let reference = "r.example/team/app:v1".parse().unwrap();
        let error = registry.resolve(&reference, None, &"linux/amd64".parse().unwrap()).await.unwrap_err();
        let text = error.chain();
        assert_eq!(error.fault().class, ErrorClass::ImageUnknown, "{text}");
        assert!(!text.contains("mirrors failed"), "{text}");
        assert_eq!(fake.seen().len(), requests, "{text}");
    }
}

#[tokio::test]
async fn a_host_that_sends_wrong_bytes_is_recorded_with_them() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    let (registry, _folder) = client(&fake, &[], quick());
    let resolved = resolve(&registry, &fake).await.unwrap();
    let descriptor = &resolved.manifest.layers[0];
    fake.trick(descriptor.digest.as_str(), 9, Trick::Body("other".into()));
    resolved.session.fetch_blob_bytes(descriptor, 100).await.unwrap_err();
    let senders = resolved.session.senders();
    assert_eq!(senders[0].host, fake.address.to_string());
    assert_eq!(senders[0].failures.get(ErrorClass::DigestMismatch.name()), Some(&2), "{senders:?}");
}

#[tokio::test]
async fn an_error_goes_from_the_host_to_the_cause() {
    for (name, cause) in [
        ("dial-refused", ": Connection refused (os error 111)"),
        ("reset-before-head", ": Connection reset by peer (os error 104)"),
        ("accept-and-close", ": connection closed before message completed"),
        ("head-garbage", ": invalid HTTP version parsed"),
    ] {
        let host = FaultRegistry::start(Some(fault(name)), &TestImage::of_size(1)).await;
        let registry = Registry::new(RegistryConfig {
            timeouts: RegistryTimeouts { retry_budget: Duration::ZERO, ..quick().timeouts },
            ..quick()
        });
        let reference = format!("{}/team/app:v1", host.address()).parse().unwrap();
        let error = registry.resolve(&reference, None, &"linux/amd64".parse().unwrap()).await.unwrap_err();
        let text = error.chain();
        assert!(text.ends_with(cause) && !text.contains("client error"), "{name}: {text}");
    }
}

#[tokio::test]
async fn a_mirror_that_recovers_is_used_again_after_a_probe() {
    let (fake, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
    for registry in [&fake, &mirror] {
        registry.put_image("v1", &[b"layer"]);
    }
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("health.json");
    let line = format!(r#"{{"origin":"http://{}","strikes":1,"probe_at":0}}"#, mirror.address);
    std::fs::write(&file, format!("[{line}]")).unwrap();
    let (registry, _folder) =
        client(&fake, &[mirror.address.to_string()], RegistryConfig { health_file: Some(file), ..quick() });
    resolve(&registry, &fake).await.unwrap();
    assert_eq!(fake.seen().len(), 1, "the registry serves while the probe is under way");
    let began = Instant::now();
    while !mirror.seen().iter().any(|seen| seen.path.contains("/manifests/")) {
        assert!(began.elapsed() < Duration::from_mins(1), "the mirror is not used again");
        resolve(&registry, &fake).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The address of a port that refuses connections.
async fn refusing() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

async fn resolve_as(registry: &Registry, name: &str, patience: Patience) -> Result<Resolved, RuntimeError> {
    let (reference, platform) = (name.parse().unwrap(), "linux/amd64".parse().unwrap());
    registry.session(&reference, None, patience).await?.resolve(&reference, &platform).await
}

/// Attempts as an error counts them.
fn attempts_of(error: &RuntimeError) -> usize {
    let text = error.chain();
    let before = text.split(" attempts in ").next().filter(|before| before.len() < text.len());
    before.and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or(1)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_repeats_by_itself_gets_one_quick_retry_and_a_command_keeps_its_patience() {
    let millis = Duration::from_millis;
    let reference: imagelet_core::image::Reference = "127.0.0.1:1/team/app:v1".parse().unwrap();
    for (what, patience, retry, takes, count, time) in [
        ("refused", Patience::ONE_RETRY, Retry::Soon, millis(5), 2..=2, millis(155)..=millis(1000)),
        ("slow", Patience::ONE_RETRY, Retry::Soon, millis(600), 1..=1, millis(600)..=millis(600)),
        ("limited", Patience::ONE_RETRY, Retry::After(millis(4500)), millis(5), 1..=1, millis(5)..=millis(5)),
        ("refused", Patience::FULL, Retry::Soon, millis(5), 6..=7, millis(4500)..=millis(10_500)),
        ("slow", Patience::FULL, Retry::Soon, millis(600), 5..=6, millis(4500)..=millis(11_500)),
    ] {
        let shared = Registry::new(RegistryConfig::default()).shared;
        let hosts = vec![Host::own("127.0.0.1:1").unwrap()];
        let session = PullSession::new(shared, reference.clone(), hosts, &[], patience);
        let attempt = |_| {
            async move {
                sleep(takes).await;
                Err::<(), _>(Failure {
                    error: unavailable(ErrorClass::ConnectionRefused, Stage::Connect, "the registry is away"),
                    retry,
                })
            }
            .boxed()
        };
        let began = Instant::now();
        let error = session.first_success(&mut Attempts::new([0]), "an image", attempt).await.unwrap_err();
        let (found, took) = (attempts_of(&error), began.elapsed());
        assert!(count.contains(&found), "{what}: {}", error.chain());
        assert!(time.contains(&took), "{what}: {took:?}, {}", error.chain());
        let names_wait = error.chain().contains("the registry requests a wait of 5 s");
        assert_eq!(names_wait, what == "limited", "{}", error.chain());
    }
}

#[tokio::test]
async fn five_good_pods_behind_three_bad_ones_wait_for_one_quick_retry_of_each() {
    let (good, failing) = (FakeRegistry::start().await, FakeRegistry::start().await);
    good.put_image("v1", &[b"layer"]);
    failing.trick("/v1", 99, answer(503, &[]));
    let registry = Registry::new(RegistryConfig::default());
    let places = [refusing().await, "registry.example:5000".to_owned(), failing.address.to_string()];
    for place in places {
        let error = resolve_as(&registry, &format!("{place}/team/app:v1"), Patience::ONE_RETRY).await.unwrap_err();
        assert!(attempts_of(&error) <= 2, "{place}: {}", error.chain());
        assert!(error.is_outage(), "{place}: {}", error.chain());
    }
    assert!((1..=2).contains(&failing.seen().len()));
    for _ in 0..5 {
        let name = good.reference("team/app:v1").to_string();
        resolve_as(&registry, &name, Patience::ONE_RETRY).await.unwrap();
    }
    assert_eq!(good.seen().len(), 5);
}

#[tokio::test]
async fn a_refused_redirect_target_fails_as_soon_as_a_refused_registry_and_is_not_held_against_it() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    let (registry, _folder) = client(&fake, &[], quick());
    let name = fake.reference("team/app:v1").to_string();
    let digest = Digest::of(b"layer");
    fake.trick(digest.as_str(), 99, answer(307, &[("location", &format!("http://{}/blob", refusing().await))]));
    let resolved = resolve_as(&registry, &name, Patience::ONE_RETRY).await.unwrap();
    fake.seen();
    let error = layer(&resolved, 0).await.unwrap_err();
    assert!((1..=2).contains(&fake.seen().len()), "{}", error.chain());
    assert_eq!((error.fault().class, error.fault().party), (ErrorClass::ConnectionRefused, Party::RedirectTarget));
    let (health, origin) = (&registry.shared.health, &resolved.session.hosts[0].host.origin);
    assert!(!health.is_bad(origin, &format!("{}/team/other", fake.address)));

    // A store that has served bytes of the pull is worth the whole budget.
    let store = FakeRegistry::start().await;
    store.put_blob(&b"layer"[..]);
    fake.clear_tricks();
    let location = format!("http://{}/blobs/{digest}", store.address);
    fake.trick(digest.as_str(), 99, answer(307, &[("location", &location)]));
    let resolved = resolve_as(&registry, &name, Patience::ONE_RETRY).await.unwrap();
    layer(&resolved, 0).await.unwrap();
    store.trick(digest.as_str(), 3, answer(503, &[]));
    assert_eq!(layer(&resolved, 0).await.unwrap(), b"layer");
}

#[tokio::test]
async fn no_body_of_another_origin_appears_in_a_message() {
    let (fake, other) = (FakeRegistry::start().await, FakeRegistry::start().await);
    fake.put_image("v1", &[b"layer"]);
    let config =
        RegistryConfig { timeouts: RegistryTimeouts { retry_budget: Duration::ZERO, ..quick().timeouts }, ..quick() };
    let registry = Registry::new(config);
    let name = fake.reference("team/app:v1").to_string();
    let manifest = r#"{"schemaVersion": 2, "config": "an internal secret"}"#;
    for (status, body) in
        [(403, "an internal secret"), (404, "an internal secret"), (500, "an internal secret"), (200, manifest)]
    {
        fake.trick("/v1", 99, answer(307, &[("location", &format!("http://{}/x", other.address))]));
        other.trick("/x", 99, Trick::Answer(status, vec![], body.into()));
        let text = resolve_as(&registry, &name, Patience::FULL).await.unwrap_err().chain();
        assert!(!text.contains("secret") && text.contains(&other.address.to_string()), "{status}: {text}");
        fake.clear_tricks();
        other.clear_tricks();
    }
}
