//! Imports that end early: by a refusal of registry, disk or sink, by a loss of their base, or because they are given up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    error::RuntimeErrorKind,
    ports::{LayerState, Progress, PullEvent, no_progress},
};
use imagelet_oci::ImportStage;

use crate::{
    fixture::Layer,
    import::{Bed, import, whole},
};

/// Two layers, of which the upper one has a folder without an entry.
fn layers() -> [Layer; 2] {
    [Layer::new().file("base", &vec![1; 100_000]).gzip(), Layer::new().file("dir/top", b"t").gzip()]
}

/// Waits for what comes soon, for at most a minute.
pub(crate) async fn until(is_so: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not come");
}

/// The log without the calls that say nothing of an end.
fn ends(log: &[String]) -> Vec<&str> {
    log.iter().map(String::as_str).filter(|call| matches!(*call, "begin" | "finish" | "abandon" | "dropped")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_sink_says_how_far_the_import_came_and_gives_it_up() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.image("a", "v1", &layers());
    for (call, stage, log) in [
        ("begin", ImportStage::Handover, &["begin"][..]),
        ("take 0", ImportStage::Handover, &["begin", "abandon"]),
        ("take 1", ImportStage::Handover, &["begin", "abandon"]),
        ("finish", ImportStage::Recorded, &["begin", "finish", "abandon"]),
    ] {
        bed.sink.forget_layers();
        bed.sink.fail(call);
        let error = bed.import("a:v1").await.expect_err(call);
        assert_eq!((error.stage, error.cause.kind()), (stage, RuntimeErrorKind::Unavailable), "{call}");
        let chain = error.cause.chain();
        assert!(chain.contains("could not import `127.0.0.1:") && chain.contains(call), "{chain}");
        assert_eq!(ends(&bed.sink.take_log()), log, "{call}");
    }
    bed.sink.forget_layers();
    whole(bed.import("a:v1").await);
    assert_eq!(bed.left(), Vec::<String>::new(), "what was left was used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_cannot_say_what_another_import_brought_ends_the_import() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.image("a", "v1", &layers());
    bed.registry.image("b", "v1", &[&layers()[..], &[Layer::new().file("own", b"own").gzip()]].concat());
    bed.sink.stall(Some("take 0"));
    let importing = |name: &str, progress: Progress| {
        let (importer, name) = (Arc::clone(&bed.importer), bed.registry.name(name));
        tokio::spawn(async move { import(&importer, &name, progress).await })
    };
    let first = importing("a:v1", no_progress());
    bed.sink.called("take 0").await;
    let own_is_done = Arc::new(AtomicBool::new(false));
    let progress: Progress = Arc::new({
        let own_is_done = Arc::clone(&own_is_done);
        move |event| {
            if matches!(event, PullEvent::Layer { state: LayerState::Done, .. }) {
                own_is_done.store(true, Ordering::SeqCst);
            }
        }
    });
    let second = importing("b:v1", progress);
    // All its layers have asked for their turn before the first one came.
    until(|| own_is_done.load(Ordering::SeqCst)).await;
    bed.sink.fail("holds 0");
    bed.sink.take_log();
    first.abort();
    assert!(first.await.expect_err("it was given up").is_cancelled());
    let error = second.await.expect("no panic").expect_err("the sink fails");
    assert_eq!(error.stage, ImportStage::Handover);
    assert!(error.cause.chain().contains("holds 0"), "{}", error.cause.chain());
    // The end of the first import is logged at any time.
    assert!(ends(&bed.sink.take_log()).contains(&"abandon"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_fails_ends_an_import_whose_many_others_wait_for_it() {
    let bed = Bed::new(|_| {}).await;
    let layer = |number: u8| Layer::new().file("file", &vec![number; if number == 31 { 100_000 } else { 1 }]).plain();
    bed.registry.image("a", "v1", &(0..32).map(layer).collect::<Vec<_>>());
    bed.sink.fail("take 0");
    let error = bed.import("a:v1").await.expect_err("a layer fails");
    assert!(error.cause.chain().contains("take 0"), "{}", error.cause.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_base_is_gone_begins_once_more_with_the_layers_that_it_has() {
    let bed = Bed::new(|_| {}).await;
    let flat = [Layer::new().file("base", b"b").gzip(), Layer::new().file("top", b"t").gzip()];
    bed.registry.image("a", "v1", &flat);
    bed.sink.lose_base("take 1");
    whole(bed.import("a:v1").await);
    assert_eq!(ends(&bed.sink.take_log()), ["begin", "abandon", "begin", "finish"]);
    assert_eq!(bed.registry.take_layer_requests(), 2, "none was fetched again");
    assert_eq!(bed.left(), Vec::<String>::new());

    bed.sink.forget_layers();
    bed.sink.lose_base("take 1");
    bed.sink.lose_base("take 1");
    let error = bed.import("a:v1").await.expect_err("twice is too much");
    assert_eq!((error.stage, error.cause.kind()), (ImportStage::Handover, RuntimeErrorKind::Unavailable));
    assert_eq!(ends(&bed.sink.take_log()), ["begin", "abandon", "begin", "abandon"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_refused_at_the_fetch_and_never_named() {
    let bed = Bed::new(|_| {}).await;
    let good = Layer::new().file("good", b"g").gzip();
    let big = Layer::new().file("big", &vec![1; 500_000]).plain();
    bed.registry.image("wrong-digest", "v1", &[good.clone(), big.clone().serving(|bytes| bytes[1000] ^= 1)]);
    bed.registry.image("truncated", "v1", &[good.clone(), big.clone().serving(|bytes| bytes.truncate(200_000))]);
    bed.registry.image("wrong-diff-id", "v1", &[good.clone(), big.clone().with_diff_id_of(b"other")]);
    bed.registry.image("encrypted", "v1", &[good.clone(), big.clone().typed("application/vnd.x.tar+encrypted")]);
    bed.registry.image("whiteout-device", "v1", &[good.clone(), Layer::new().special("null", b'3').gzip()]);
    for (name, kind, words, begins) in [
        ("wrong-digest", RuntimeErrorKind::Corrupt, "sha256:", true),
        ("truncated", RuntimeErrorKind::Corrupt, "sha256:", true),
        ("wrong-diff-id", RuntimeErrorKind::Corrupt, "configuration says", true),
        ("encrypted", RuntimeErrorKind::Unacceptable, "encrypted", false),
        ("whiteout-device", RuntimeErrorKind::Unsupported, "`null` and 0 more entries", true),
        ("none", RuntimeErrorKind::NotFound, "none", false),
    ] {
        let error = bed.import(&format!("{name}:v1")).await.expect_err(name);
        let chain = error.cause.chain();
        assert_eq!((error.stage, error.cause.kind()), (ImportStage::Fetch, kind), "{name}: {chain}");
        assert!(chain.contains(words), "{name}: {chain}");
        let log = bed.sink.take_log();
        assert_eq!(ends(&log), if begins { &["begin", "abandon"][..] } else { &[] }, "{name}");
        if !begins {
            assert_eq!(bed.registry.take_layer_requests(), 0, "{name}");
        }
        bed.registry.take_layer_requests();
    }
    // Nothing wrong was kept: only the layer that was whole each time.
    bed.sink.forget_layers();
    bed.registry.image("good", "v1", &[good]);
    whole(bed.import("good:v1").await);
    assert_eq!(bed.left(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_the_sink_has_is_for_those_alone_whose_registry_sends_the_configuration() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.image("ours", "v1", &layers());
    let id = whole(bed.import("ours:v1").await);
    bed.registry.image("theirs", "v1", &layers());
    bed.registry.forget(&format!("theirs/blobs/{id}"));
    bed.sink.take_log();
    let error = bed.import("theirs:v1").await.expect_err("their registry does not have the configuration");
    assert_eq!(error.stage, ImportStage::Fetch);
    assert_eq!(bed.sink.take_log(), Vec::<String>::new(), "the sink was not even asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_is_given_up_anywhere_leaves_nothing_but_whole_layers() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.image("a", "v1", &layers());
    for call in ["begin", "take 0", "take 1", "finish"] {
        bed.sink.forget_layers();
        bed.sink.stall(Some(call));
        let importing = {
            let (importer, name) = (Arc::clone(&bed.importer), bed.registry.name("a:v1"));
            tokio::spawn(async move { import(&importer, &name, no_progress()).await })
        };
        bed.sink.called(call).await;
        importing.abort();
        assert!(importing.await.expect_err("it was given up").is_cancelled());
        if call != "begin" {
            bed.sink.called("dropped").await;
        }
        bed.sink.stall(None);
        bed.sink.take_log();
    }
    bed.sink.forget_layers();
    whole(bed.import("a:v1").await);
    assert_eq!(bed.left(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_without_room_asks_for_no_layer_and_uses_up_what_others_have_left() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.image("a", "v1", &[Layer::new().file("a", &vec![1; 100_000]).gzip()]);
    bed.sink.fail("take 0");
    bed.import("a:v1").await.expect_err("the sink refuses");
    assert_ne!(bed.left(), Vec::<String>::new(), "the layer was whole");
    bed.registry.image("b", "v1", &[Layer::new().file("b", &vec![2; 100_000]).gzip()]);
    let bed = bed.restarted(|config| config.limits.free_bytes_floor = 1 << 60).await;
    bed.registry.take_layer_requests();
    bed.sink.take_log();
    let error = bed.import("b:v1").await.expect_err("there is no room");
    assert_eq!((error.stage, error.cause.kind()), (ImportStage::Fetch, RuntimeErrorKind::DiskFull));
    assert_eq!((bed.registry.take_layer_requests(), ends(&bed.sink.take_log())), (0, vec!["begin", "abandon"]));
    assert_eq!(bed.left(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_off_import_goes_on_with_its_whole_layers_also_after_a_restart() {
    for restarts in [false, true] {
        let mut bed = Bed::new(|_| {}).await;
        let small = [Layer::new().file("one", b"1").gzip(), Layer::new().file("dir/two", b"2").gzip()];
        let big = Layer::new().file("big", &vec![1; 4_000_000]).plain();
        let layers = |big: Layer| [big, small[0].clone(), small[1].clone()];
        bed.registry.image("a", "v1", &layers(big.clone().stalling_at(1_500_000)));
        let importing = {
            let (importer, name) = (Arc::clone(&bed.importer), bed.registry.name("a:v1"));
            tokio::spawn(async move { import(&importer, &name, no_progress()).await })
        };
        let asked = std::cell::Cell::new(0);
        until(|| {
            asked.set(asked.get() + bed.registry.take_layer_requests());
            asked.get() == 3 && bed.left().iter().filter(|path| path.ends_with("layer.json")).count() == 2
        })
        .await;
        importing.abort();
        assert!(importing.await.expect_err("it was given up").is_cancelled());
        if restarts {
            bed = bed.restarted(|_| {}).await;
        }
        bed.registry.image("a", "v1", &layers(big));
        whole(bed.import("a:v1").await);
        assert_eq!(bed.registry.take_layer_requests(), 1, "after a restart: {restarts}");
        until(|| bed.left().is_empty()).await;
    }
}
