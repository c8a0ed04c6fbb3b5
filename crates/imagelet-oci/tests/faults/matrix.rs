//! Each fault with one, two and three hosts: a pull succeeds where one host is healthy, and else says what is wrong.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, stream};
use imagelet_core::testing::debug_text;
use imagelet_oci::testing::{FAULTS, ONE_PERCENT, RegistryFault};
use tokio::time::Instant;

use crate::scene::{HOP, Scene};

/// Pulls at the same time.
const CONCURRENT: usize = 12;
/// What a pull takes without a fault, on a busy machine.
const USUAL: std::time::Duration = std::time::Duration::from_secs(20);
/// Secrets that no message may hold.
const SECRETS: [&str; 4] = ["hunter2pass", "aHVudGVyMnBhc3M", "signed-secret", "key-of-"];

/// What the HTTP client says of its own layers; it names neither place nor cause.
const LAYERS: [&str; 4] = ["client error (", "connection error", "error reading a body", "error writing a body"];

/// Cases that the client does not handle yet: a fault, and numbers of hosts.
const KNOWN_TO_FAIL: &[(&str, &[usize])] = &[];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_succeeds_where_one_host_is_healthy_and_else_reports_class_and_host() {
    let cases = FAULTS.iter().flat_map(|fault| (1..=3).map(move |hosts| (fault, hosts)));
    let outcomes = stream::iter(cases)
        .map(|(fault, hosts)| async move { ((fault.name, hosts), check(fault, hosts).await) })
        .buffer_unordered(CONCURRENT)
        .collect::<Vec<_>>()
        .await;
    let known = |(name, hosts): &(&str, usize)| KNOWN_TO_FAIL.iter().any(|(it, of)| it == name && of.contains(hosts));
    let mut wrong: Vec<String> = Vec::new();
    for (case, outcome) in outcomes {
        match (outcome, known(&case)) {
            (Err(why), false) => wrong.push(format!("{case:?}: {why}")),
            (Ok(()), true) => wrong.push(format!("{case:?} is known to fail, and passes")),
            _ => {}
        }
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// One pull; what is wrong with its outcome.
async fn check(fault: &RegistryFault, hosts: usize) -> Result<(), String> {
    let scene = Scene::start(fault, hosts).await;
    let began = Instant::now();
    let pulled = scene.pull().await;
    let took = began.elapsed();
    let leaks = scene.leaks();
    if !leaks.is_empty() {
        return Err(format!("secrets reached other origins: {leaks:?}"));
    }
    let expected = fault.expected.filter(|_| hosts == 1);
    match (pulled, expected) {
        (Ok(_), None) => {}
        (Ok(_), Some(_)) => return Err("the pull succeeds".to_owned()),
        (Err(error), None) => return Err(format!("the pull fails: {} ({:?})", error.chain(), error.fault())),
        (Err(error), Some((class, stage))) => {
            let text = format!("{} {} {error:?}", error.chain(), error.hint().unwrap_or_default());
            if let Some(debug) = debug_text(&error.chain()) {
                return Err(format!("has Rust's debug format, `{debug}`: {}", error.chain()));
            }
            let faulty = &scene.hosts[0];
            if (error.fault().class, error.fault().stage) != (class, stage) {
                return Err(format!("reported as {:?}: {}", error.fault(), error.chain()));
            }
            // The dead target has an address of its own.
            let places = [faulty.address(), faulty.storage_address(), "127.0.0.1:1`"];
            if !places.iter().any(|place| error.chain().contains(place)) {
                return Err(format!("names no host: {}", error.chain()));
            }
            if let Some(layer) = LAYERS.iter().find(|layer| error.chain().contains(*layer)) {
                return Err(format!("names a layer, `{layer}`: {}", error.chain()));
            }
            if let Some(secret) = SECRETS.iter().find(|secret| text.contains(*secret)) {
                return Err(format!("repeats the secret `{secret}`: {text}"));
            }
        }
    }
    let stalls = scene.hosts[0].stalls();
    if hosts > 1 && stalls > 1 {
        return Err(format!("waits {stalls} times for a host that does not answer"));
    }
    if hosts > 1 && took > HOP + USUAL {
        return Err(format!("takes {took:?}"));
    }
    Ok(())
}

#[test]
fn at_least_sixty_faults_have_a_name_of_their_own() {
    let names: BTreeSet<&str> = FAULTS.iter().map(|fault| fault.name).collect();
    assert_eq!(names.len(), FAULTS.len(), "two faults have one name");
    assert!(names.len() >= 60, "{} faults", names.len());
    for (name, hosts) in KNOWN_TO_FAIL {
        assert!(names.contains(name) && hosts.iter().all(|count| (1..=3).contains(count)), "{name} is no case");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a thousand pulls take minutes"]
async fn of_a_thousand_pulls_with_one_percent_of_resets_and_of_errors_at_most_one_fails() {
    let scene = Scene::start(&ONE_PERCENT, 1).await;
    let mut failed = Vec::new();
    for _ in 0..1_000 {
        match scene.pull().await {
            Ok(_) => scene.remove().await,
            Err(error) => failed.push(error.chain()),
        }
    }
    assert!(failed.len() <= 1, "{} pulls fail: {failed:#?}", failed.len());
    assert!(scene.hosts[0].requests() > 3_000, "the registry was asked");
}
