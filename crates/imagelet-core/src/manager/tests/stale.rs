//! Stories of a registry that is away while its image is here.

use std::path::Path;

use super::*;

const DAY: Duration = Duration::from_hours(24);
const IMAGE: &str = "reg.io/app:v1";
const DOCUMENT: &str = r#"{"auths": {"reg.io": {"username": "ada", "password": "smash"}}}"#;

fn always(image: &str) -> EnsureRequest {
    EnsureRequest { policy: PullPolicy::Always, ..request(image) }
}

fn entitled(image: &str) -> EnsureRequest {
    EnsureRequest { secrets: vec![secret("s", DOCUMENT)], ..always(image) }
}

fn node(fake: &FakeRuntime, wanted: Wanted, stale: Option<StaleUse>) -> TestNode {
    TestNode::new(Arc::new(fake.clone()), Wanted { stale, ..wanted })
}

fn recording() -> Wanted {
    Wanted { records: PullRecords::in_memory(), ..Wanted::default() }
}

fn away(fake: &FakeRuntime) {
    fake.fail("pull", RuntimeErrorKind::RegistryUnavailable, "could not reach `reg.io`");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_its_registry_named_is_used_while_that_is_away_and_it_is_said_so() {
    let fake = FakeRuntime::new();
    let id = fake.offer(IMAGE, "app", 1000);
    let node = node(&fake, recording(), Some(StaleUse::new(DAY, None)));
    node.ensure(&always(IMAGE)).await.unwrap();
    away(&fake);
    fake.take_calls();
    let used = node.ensure(&always(IMAGE)).await.unwrap();
    assert_eq!(fake.take_calls(), [format!("pull {IMAGE}"), format!("status {IMAGE}")]);
    assert!(
        matches!(used.origin, Origin::Stale { verified } if verified < Duration::from_mins(1)),
        "{:?}",
        used.origin
    );
    let words = format!(
        "Container image \"{IMAGE}\" already present on machine, used although its registry is unavailable: {id} was \
         last verified 0s ago"
    );
    assert_eq!((used.id, used.message.as_str(), used.reference.as_str()), (id, words.as_str(), IMAGE));
    let reported = node.reported();
    assert_eq!(reported.last(), Some(&("Normal", "Pulled", words)));
    assert!(!reported.iter().any(|(_, reason, _)| *reason == "Failed"), "{reported:?}");
    assert!(node.metrics.render().contains("imagelet_stale_used_total 1"), "{}", node.metrics.render());
    assert!(node.manager.status().held_back.is_empty(), "an image that can be used is not held back");

    fake.heal();
    assert!(matches!(node.ensure(&always(IMAGE)).await.unwrap().origin, Origin::Pulled { .. }));
}

#[tokio::test(start_paused = true)]
async fn unless_it_is_asked_for_a_registry_that_is_away_fails_the_pull() {
    let fake = FakeRuntime::new();
    fake.offer(IMAGE, "app", 1000);
    let node = node(&fake, recording(), None);
    node.ensure(&always(IMAGE)).await.unwrap();
    away(&fake);
    assert_eq!(node.ensure(&always(IMAGE)).await.unwrap_err().reason(), "RegistryUnavailable");
    assert!(!node.metrics.render().contains("imagelet_stale"));
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_says_no_or_sends_something_else_is_believed() {
    use RuntimeErrorKind::{Corrupt, Denied, NotFound, SignatureInvalid, Unavailable};
    for kind in [Denied, NotFound, Corrupt, SignatureInvalid, Unavailable] {
        let fake = FakeRuntime::new();
        fake.offer(IMAGE, "app", 1000);
        let node = node(&fake, recording(), Some(StaleUse::new(DAY, None)));
        node.ensure(&always(IMAGE)).await.unwrap();
        fake.fail("pull", kind, "no");
        assert_eq!(node.ensure(&always(IMAGE)).await.unwrap_err().kind(), Some(kind));
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_no_right_to_the_image_gets_the_registrys_error() {
    let fake = FakeRuntime::new();
    fake.offer_to(IMAGE, "app", 1000, Some(("ada", "smash")));
    let node = node(&fake, recording(), Some(StaleUse::new(DAY, None)));
    node.ensure(&entitled(IMAGE)).await.unwrap();
    away(&fake);
    let stranger = PodIdentity { uid: "uid-other".into(), ..PodIdentity::default() };
    let refused = node.ensure(&of_pod(stranger, always(IMAGE))).await.unwrap_err();
    assert_eq!(refused.reason(), "RegistryUnavailable");
    assert!(!refused.message().contains("present"), "{}", refused.message());
    let used = node.ensure(&entitled(IMAGE)).await.unwrap();
    assert!(matches!(used.origin, Origin::Stale { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_gone_was_replaced_or_never_verified_is_not_used() {
    let fake = FakeRuntime::new();
    let id = fake.offer(IMAGE, "app", 1000);
    fake.preload("reg.io/loaded:v1", "loaded", 1000);
    let node = node(&fake, recording(), Some(StaleUse::new(DAY, None)));
    node.ensure(&always(IMAGE)).await.unwrap();
    away(&fake);
    let pod = |name: &str| PodIdentity { uid: name.into(), ..PodIdentity::default() };
    let fails = async |image: &str, name: &str| {
        let asked = of_pod(pod(name), always(image));
        assert_eq!(node.ensure(&asked).await.unwrap_err().reason(), "RegistryUnavailable", "{name}");
    };
    fails("reg.io/loaded:v1", "loaded by hand").await;
    fake.preload(IMAGE, "another", 1000);
    fails(IMAGE, "the tag stands for another image now").await;
    fake.remove(&ImageSpec::new(IMAGE)).await.unwrap();
    fake.remove(&ImageSpec::new(id.as_str())).await.unwrap();
    fails(IMAGE, "gone").await;
}

/// As if what is remembered were this much older.
fn age_by(file: &Path, age: Duration) {
    let text = std::fs::read_to_string(file).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let at = document[0]["verifiedAt"].as_u64().unwrap();
    document[0]["verifiedAt"] = (at - age.as_secs()).into();
    std::fs::write(file, document.to_string()).unwrap();
}

#[tokio::test]
async fn what_was_verified_survives_a_restart_and_is_used_within_the_bound_only() {
    let (fake, folder) = (FakeRuntime::new(), tempfile::tempdir().unwrap());
    fake.offer(IMAGE, "app", 1000);
    let file = folder.path().join("verified-names.json");
    let start = || {
        let records = PullRecords::open(folder.path(), VerificationPolicy::NeverVerifyPreloadedImages).unwrap();
        node(&fake, Wanted { records, ..Wanted::default() }, Some(StaleUse::new(DAY, Some(file.clone()))))
    };
    start().ensure(&always(IMAGE)).await.unwrap();
    away(&fake);
    age_by(&file, Duration::from_hours(23));
    let Origin::Stale { verified } = start().ensure(&always(IMAGE)).await.unwrap().origin else {
        panic!("the image is not used")
    };
    assert!(verified >= Duration::from_hours(23) && verified < DAY, "{verified:?}");
    // Being used has not made it younger.
    age_by(&file, Duration::from_hours(2));
    assert_eq!(start().ensure(&always(IMAGE)).await.unwrap_err().reason(), "RegistryUnavailable");
}

#[test]
fn credentials_of_which_one_was_refused_are_no_outage() {
    use RuntimeErrorKind::{Denied, RegistryUnavailable};
    let failure = |kind, text: &str| RuntimeError::new(kind, text);
    let join = puller::join_failures;
    assert!(join(vec![failure(RegistryUnavailable, "away")]).is_outage());
    assert!(join(vec![failure(RegistryUnavailable, "away"), failure(RegistryUnavailable, "busy")]).is_outage());
    assert!(!join(vec![failure(Denied, "401"), failure(RegistryUnavailable, "away")]).is_outage());
}
