//! Blobs over several connections, from fast, slow, broken and lying servers.

use std::{num::NonZeroUsize, sync::atomic::Ordering, time::Duration};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, Platform},
};

use super::*;
use crate::registry::{
    Registry, RegistryConfig, RegistryTimeouts,
    blob::TWICE_MAX,
    tests::{
        failover::client,
        fake::{FakeRegistry, RecordedRequest as Request, Trick},
    },
};

const MIB: usize = 1 << 20;

/// Bytes that differ at every possible start of a part.
fn pattern(length: usize) -> Vec<u8> {
    (0..length.div_ceil(8))
        .flat_map(|index| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(length)
        .collect()
}

fn registry() -> Registry {
    let progress_timeout = Duration::from_secs(1);
    Registry::new(RegistryConfig {
        timeouts: RegistryTimeouts {
            progress: progress_timeout,
            retry_budget: Duration::from_secs(2),
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    })
}

async fn source(fake: &FakeRegistry, registry: &Registry, layer: &[u8]) -> BlobSource {
    fake.put_image("v1", &[layer]);
    let platform: Platform = "linux/amd64".parse().unwrap();
    let resolved = registry.resolve(&fake.reference("team/app:v1"), None, &platform).await.unwrap();
    fake.seen();
    resolved.session.blob(&resolved.manifest.layers[0])
}

/// The speed of the next stage.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behind {
    Hungry,
    Busy,
}

async fn read(source: &BlobSource, offset: u64, behind: Behind) -> Result<Vec<u8>, RuntimeError> {
    let reader_wait = ReaderWait::default();
    let mut stream = source.open_ranged(offset, &reader_wait).await?;
    let mut all = Vec::new();
    loop {
        let asked = Instant::now();
        let Some(bytes) = stream.next().await? else { return Ok(all) };
        if behind == Behind::Hungry {
            reader_wait.add(asked.elapsed());
        }
        all.extend_from_slice(&bytes);
    }
}

/// Whether a host ends all its answers within two seconds.
async fn is_idle(fake: &FakeRegistry) -> bool {
    let is_idle = || fake.traffic().running.load(Ordering::SeqCst) == 0;
    for _ in 0..100 {
        if is_idle() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_idle()
}

fn ranges(seen: &[Request]) -> Vec<Option<&str>> {
    seen.iter().map(|seen| seen.range.as_deref()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_reader_gets_all_in_few_ranges_one_after_the_other_and_no_byte_twice() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(40 * MIB + 123));
    let source = source(&fake, &registry(), &layer).await;
    let read = read(&source, 0, Behind::Busy).await.unwrap();
    assert!(read == layer, "every byte in its place");
    assert_eq!(fake.traffic().bytes.load(Ordering::SeqCst), layer.len() as u64);
    assert_eq!(
        ranges(&fake.seen()),
        [Some("bytes=0-4194303"), Some("bytes=4194304-20971519"), Some("bytes=20971520-")]
    );
}

#[tokio::test]
async fn a_blob_below_the_bound_is_one_plain_request() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(16 * MIB - 1));
    let source = source(&fake, &registry(), &layer).await;
    assert!(read(&source, 0, Behind::Hungry).await.unwrap() == layer);
    assert_eq!(ranges(&fake.seen()), [None]);
    assert!(read(&source, 16 * MIB as u64 - 8, Behind::Hungry).await.unwrap() == layer[16 * MIB - 8..]);
    assert_eq!(ranges(&fake.seen()), [Some("bytes=16777208-")]);
    assert!(read(&source, 16 * MIB as u64 - 1, Behind::Hungry).await.unwrap().is_empty());
    assert!(fake.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_slow_over_one_connection_is_asked_over_several() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(24 * MIB));
    fake.throttle(4 << 20);
    let source = source(&fake, &registry(), &layer).await;
    let started = Instant::now();
    assert!(read(&source, 0, Behind::Hungry).await.unwrap() == layer);
    let took = started.elapsed();
    // One connection would take six seconds.
    assert!(took < Duration::from_millis(3500), "{took:?}");
    let traffic = fake.traffic();
    assert_eq!(traffic.bytes.load(Ordering::SeqCst), layer.len() as u64, "no byte twice");
    let connections = traffic.running_max.load(Ordering::SeqCst);
    assert!((4..=9).contains(&connections), "{connections}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_before_a_busy_reader_is_asked_over_one_connection_at_a_time() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(18 * MIB));
    fake.throttle(20 << 20);
    let source = source(&fake, &registry(), &layer).await;
    assert!(read(&source, 0, Behind::Busy).await.unwrap() == layer);
    assert!(fake.traffic().running_max.load(Ordering::SeqCst) <= 2, "the next is only asked for early");
    assert_eq!(fake.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_ahead_stays_within_its_bound_while_the_reader_sleeps() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(64 * MIB));
    fake.throttle(20 << 20);
    let registry = registry();
    let source = source(&fake, &registry, &layer).await;
    let reader_wait = ReaderWait::default();
    let mut stream = source.open_ranged(0, &reader_wait).await.unwrap();
    let mut read = 0;
    while read < 8 * MIB {
        let asked = Instant::now();
        read += stream.next().await.unwrap().unwrap().len();
        reader_wait.add(asked.elapsed());
    }
    assert!(!stream.ahead.is_empty(), "it reads ahead");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let held = stream.meter.received.load(Ordering::SeqCst) - read as u64;
    // One piece per connection may be in memory while it waits for its permit.
    let sizes = RegistryConfig::default().fetch_sizes;
    let bound = (sizes.read_ahead + 8 * 512 * 1024) as u64;
    assert!((1 << 20..=bound).contains(&held), "{held}");
    assert!(registry.shared.read_ahead.available_permits() < sizes.read_ahead);
    drop(stream);
    assert!(is_idle(&fake).await, "nothing is left running");
    let shared = &registry.shared;
    assert_eq!(
        (shared.read_ahead.available_permits(), shared.extra_connections.available_permits()),
        (sizes.read_ahead, sizes.extra_connections),
        "all room is given back"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ignores_ranges_is_read_as_one_stream() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(20 * MIB));
    let source = source(&fake, &registry(), &layer).await;
    fake.trick(Digest::of(&layer).as_str(), 99, Trick::IgnoreRange);
    assert!(read(&source, 0, Behind::Hungry).await.unwrap() == layer);
    assert_eq!(fake.seen().len(), 1);
    assert_eq!(fake.traffic().bytes.load(Ordering::SeqCst), layer.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_ranges_is_asked_for_the_whole() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(20 * MIB));
    let source = source(&fake, &registry(), &layer).await;
    fake.trick(Digest::of(&layer).as_str(), 1, Trick::Answer(416, vec![], Bytes::new()));
    assert!(read(&source, 0, Behind::Busy).await.unwrap() == layer);
    assert_eq!(ranges(&fake.seen()), [Some("bytes=0-4194303"), None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lies_about_ranges_is_asked_for_the_whole_and_nothing_is_spliced() {
    let layer = pattern(20 * MIB);
    let lies = [
        "bytes 0-20971519/20971520", // all of it, it says
        "bytes 1-4194304/20971520",  // shifted
        "bytes 0-4194302/20971520",  // short
        "bytes 0-4194303/20971521",  // of another blob
        "bytes 0-18446744073709551615/*",
    ];
    for lie in lies {
        let fake = FakeRegistry::start().await;
        let source = source(&fake, &registry(), &layer).await;
        fake.trick(Digest::of(&layer).as_str(), 1, Trick::Header("content-range", lie.to_owned()));
        assert!(read(&source, 0, Behind::Hungry).await.unwrap() == layer, "{lie}");
        assert_eq!(ranges(&fake.seen()), [Some("bytes=0-4194303"), None], "{lie}");
    }
    // A host that honours the first range and not a later one sends bytes that are not the later part.
    let fake = FakeRegistry::start().await;
    let source = source(&fake, &registry(), &layer).await;
    let reader_wait = ReaderWait::default();
    let mut stream = source.open_ranged(0, &reader_wait).await.unwrap();
    fake.trick(Digest::of(&layer).as_str(), 99, Trick::IgnoreRange);
    let mut all = Vec::new();
    while let Some(bytes) = stream.next().await.unwrap() {
        reader_wait.add(Duration::from_millis(10));
        all.extend_from_slice(&bytes);
    }
    assert!(all == layer, "the whole is read again up to the part, and its rest is taken from it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_breaks_is_taken_up_where_it_broke() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(20 * MIB));
    let source = source(&fake, &registry(), &layer).await;
    let reader_wait = ReaderWait::default();
    let mut stream = source.open_ranged(0, &reader_wait).await.unwrap();
    for trick in [Trick::CutAfter(700_000), Trick::StallAfter(100_000), Trick::CutAfter(1)] {
        fake.trick(Digest::of(&layer).as_str(), 1, trick);
    }
    let mut all = Vec::new();
    while let Some(bytes) = stream.next().await.unwrap() {
        all.extend_from_slice(&bytes);
    }
    assert!(all == layer);
    let seen = fake.seen();
    assert_eq!(
        ranges(&seen),
        [
            Some("bytes=0-4194303"),
            Some("bytes=4194304-"),
            Some("bytes=4894304-"),
            Some("bytes=4994304-"),
            Some("bytes=4994305-"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_breaks_every_part_again_and_again_is_read_to_the_end_or_given_up() {
    let (fake, layer) = (FakeRegistry::start().await, pattern(20 * MIB));
    fake.throttle(8 << 20);
    let source = source(&fake, &registry(), &layer).await;
    let answer = Trick::Answer(503, vec![("retry-after", "0".to_owned())], Bytes::new());
    let reader_wait = ReaderWait::default();
    let mut stream = source.open_ranged(0, &reader_wait).await.unwrap();
    fake.trick(Digest::of(&layer).as_str(), 3, answer.clone());
    let mut all = Vec::new();
    loop {
        let asked = Instant::now();
        let Some(bytes) = stream.next().await.unwrap() else { break };
        reader_wait.add(asked.elapsed());
        all.extend_from_slice(&bytes);
    }
    assert!(all == layer);
    assert_eq!(fake.traffic().bytes.load(Ordering::SeqCst), layer.len() as u64);

    let mut stream = source.open_ranged(0, &reader_wait).await.unwrap();
    fake.trick(Digest::of(&layer).as_str(), 999, answer);
    let error = loop {
        match stream.next().await {
            Ok(Some(_)) => reader_wait.add(Duration::from_millis(10)),
            Ok(None) => panic!("it came to its end"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable, "{error}");
}

/// Reads a blob of which so many connections after the first megabytes get a trick; the time, and the bytes that this
/// host sent.
async fn read_with_slow_ones(
    fake: &FakeRegistry,
    source: &BlobSource,
    layer: &[u8],
    connections: u32,
    trick: Trick,
) -> (Duration, u64) {
    let reader_wait = ReaderWait::default();
    let began = Instant::now();
    let mut stream = source.open_ranged(0, &reader_wait).await.unwrap();
    let (mut all, mut trick) = (Vec::new(), Some(trick));
    loop {
        let asked = Instant::now();
        let Some(bytes) = stream.next().await.unwrap() else { break };
        reader_wait.add(asked.elapsed());
        all.extend_from_slice(&bytes);
        if let Some(trick) = trick.take_if(|_| all.len() >= 6 * MIB) {
            fake.trick(Digest::of(layer).as_str(), connections, trick);
        }
    }
    assert!(all == layer, "every byte in its place");
    (began.elapsed(), fake.traffic().bytes.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_trickles_or_falls_silent_is_overtaken_by_a_second_request_for_its_rest() {
    // Its part takes 100 s and more.
    for trick in [Trick::Slow(20 << 10), Trick::StallAfter(300_000)] {
        let (fake, layer) = (FakeRegistry::start().await, pattern(24 * MIB));
        fake.throttle(4 << 20);
        let registry = Registry::new(RegistryConfig::default());
        let source = source(&fake, &registry, &layer).await;
        let (took, sent) = read_with_slow_ones(&fake, &source, &layer, 1, trick.clone()).await;
        assert!(took < Duration::from_secs(12), "{trick:?}: {took:?}");
        assert!(sent < layer.len() as u64 + TWICE_MAX, "{trick:?}: {sent}");
    }
}

#[tokio::test]
async fn a_stream_that_is_not_open_yet_is_measured_for_the_host_that_it_requests_from() {
    let (fake, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join(fake.address.to_string());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("hosts.toml"), format!("[host.\"http://{}\"]\n", mirror.address)).unwrap();
    let config = RegistryConfig { hosts_dirs: vec![folder.path().to_owned()], ..RegistryConfig::default() };
    mirror.put_image("v1", &[b"layer"]);
    let source = source(&fake, &Registry::new(config), b"layer").await;
    for registry in [&fake, &mirror] {
        registry.trick(Digest::of(b"layer").as_str(), 9, Trick::Answer(404, vec![], "".into()));
    }
    let mut stream = source.stream(0..5);
    stream.ready().await.unwrap_err();
    assert_eq!((stream.sender.is_none(), stream.meter.host()), (true, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_that_slows_to_a_crawl_is_overtaken_by_the_registry_and_its_connection_dropped() {
    let (fake, mirror, layer) = (FakeRegistry::start().await, FakeRegistry::start().await, pattern(24 * MIB));
    let (registry, _folder) = client(&fake, &[mirror.address.to_string()], RegistryConfig::default());
    for host in [&fake, &mirror] {
        host.throttle(4 << 20);
        host.put_image("v1", &[&layer]);
    }
    let source = source(&fake, &registry, &layer).await;
    mirror.seen();
    // From the sixth megabyte on, each new connection to the mirror takes 100 s and more for its part.
    let (took, from_mirror) = read_with_slow_ones(&mirror, &source, &layer, 99, Trick::Slow(20 << 10)).await;
    assert!(took < Duration::from_secs(20), "{took:?}");
    let requested = ranges(&fake.seen()).into_iter().flatten().map(str::to_owned).collect::<Vec<_>>();
    assert!(!requested.is_empty(), "the registry sends the rest");
    let from_registry = fake.traffic().bytes.load(Ordering::SeqCst);
    assert!(from_mirror >= 6 * MIB as u64 && from_registry > 0, "{from_mirror} {from_registry}");
    let sent = from_mirror + from_registry;
    assert!(sent < layer.len() as u64 + TWICE_MAX, "{sent}");
    let senders = source.session.senders();
    let named: Vec<(&str, bool)> = senders.iter().map(|sender| (&*sender.host, sender.bytes > 0)).collect();
    assert_eq!(named, [(&*mirror.address.to_string(), true), (&*fake.address.to_string(), true)]);
    assert!(senders[0].bytes + senders[1].bytes >= layer.len() as u64);
    assert!(is_idle(&mirror).await, "its connections would be busy for minutes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_never_has_more_connections_than_its_bound_and_every_pull_goes_on() {
    for bound in [1, 3] {
        let fake = FakeRegistry::start().await;
        fake.throttle(6 << 20);
        let connections_per_host = NonZeroUsize::new(bound).expect("not zero");
        let config = RegistryConfig { connections_per_host, ..RegistryConfig::default() };
        let registry = Registry::new(config);
        let layer = pattern(17 * MIB);
        let source = source(&fake, &registry, &layer).await;
        let platform: Platform = "linux/amd64".parse().unwrap();
        let reference = fake.reference("team/app:v1");
        let whole = async || assert!(read(&source, 0, Behind::Hungry).await.unwrap() == layer);
        // A second pull begins while layers of the first one wait for connections.
        let second = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            registry.resolve(&reference, None, &platform).await.unwrap();
            fake.traffic().bytes.load(Ordering::SeqCst)
        };
        let ((), (), sent_before) = tokio::join!(whole(), whole(), second);
        assert_eq!(fake.connections_max(), bound);
        assert!(sent_before < layer.len() as u64, "the second pull waited for all layers of the first: {sent_before}");
        assert_eq!(fake.traffic().bytes.load(Ordering::SeqCst), 2 * layer.len() as u64);
    }
}
