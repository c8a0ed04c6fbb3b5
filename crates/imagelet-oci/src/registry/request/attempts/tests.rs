//! Slow, silent and failing hosts under a clock that the tests set.

use std::sync::Mutex;

use imagelet_core::{
    error::{ErrorClass, Stage},
    ports::Patience,
};
use tokio::time::sleep;

use super::*;
use crate::registry::{
    Registry, RegistryConfig, RegistryTimeouts,
    connection::{AwaitedHead, awaits},
    error::{Retry, denied, unavailable},
    hosts::Host,
};

/// What a host does with each request.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// The head after so many seconds, the rest at once.
    Head(u64),
    /// The head after a second, the rest so many later.
    Body(u64),
    Never,
    Refuses,
    Denies,
}

/// What became of a request: the host that served it, the second of its end, and the requests to each host.
type Outcome = (Option<usize>, u64, Vec<usize>);

async fn play(hosts: &[Does], patience: Patience, head_max: u64) -> (Outcome, Vec<PullEvent>, String) {
    let config = RegistryConfig {
        timeouts: RegistryTimeouts {
            header: Duration::from_secs(head_max),
            silence_max: None,
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    let places: Vec<String> = (0..hosts.len()).map(|number| format!("127.0.0.{}:1", number + 1)).collect();
    let own = places.iter().map(|place| Host::own(place).unwrap()).collect();
    let reference = "127.0.0.9:1/team/app:v1".parse().unwrap();
    let session = PullSession::new(Registry::new(config).shared, reference, own, &[], patience);
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    session.report_to(&(Arc::new(move |event| heard.lock().unwrap().push(event)) as _));
    let asked = Mutex::new(vec![0; hosts.len()]);
    let attempt = |host: usize| {
        asked.lock().unwrap()[host] += 1;
        let (does, place) = (hosts[host], places[host].clone());
        let at_place =
            |place| AwaitedHead { place, stage: Stage::Manifest, is_redirected: false, since: Instant::now() };
        async move {
            let head = match does {
                Does::Refuses => {
                    return Err(Failure {
                        error: unavailable(ErrorClass::ConnectionRefused, Stage::Connect, "refused"),
                        retry: Retry::Soon,
                    });
                }
                Does::Denies => return Err(Failure::from(denied("denied"))),
                Does::Head(seconds) => seconds,
                Does::Body(_) => 1,
                Does::Never => u64::MAX >> 32,
            };
            awaits(Some(at_place(place)));
            sleep(Duration::from_secs(head)).await;
            awaits(None);
            if let Does::Body(seconds) = does {
                sleep(Duration::from_secs(seconds)).await;
            }
            Ok(host)
        }
        .boxed()
    };
    let began = Instant::now();
    let ended = session.first_success(&mut Attempts::new(0..hosts.len()), "an image", attempt).await;
    let text = ended.as_ref().err().map(RuntimeError::chain).unwrap_or_default();
    let outcome = (ended.ok(), began.elapsed().as_secs(), asked.lock().unwrap().clone());
    let events = events.lock().unwrap().clone();
    (outcome, events, text)
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_waited_for_and_not_begun_again_and_a_silent_mirror_costs_its_short_turn() {
    use Does::{Body, Denies, Head, Never, Refuses};
    let (command, kubelet) = (Patience::FULL, Patience::ONE_RETRY);
    for (what, hosts, patience, expected) in [
        ("a registry that spools for 25 s", &[Head(25)][..], command, (Some(0), 25, vec![1])),
        ("the same for a kubelet", &[Head(25)], kubelet, (Some(0), 25, vec![1])),
        ("one that is slower than the deadline", &[Head(40)], command, (Some(0), 40, vec![2])),
        ("the same for a kubelet, which asks again", &[Head(40)], kubelet, (None, 30, vec![1])),
        (
            "a mirror that fetches on demand before a dead registry",
            &[Head(15), Refuses],
            command,
            (Some(0), 15, vec![1, 1]),
        ),
        ("the same for a kubelet", &[Head(15), Refuses], kubelet, (Some(0), 15, vec![1, 1])),
        ("before a registry that wants a credential", &[Head(15), Denies], command, (Some(0), 15, vec![1, 1])),
        ("before a registry that is as slow", &[Head(15), Head(15)], command, (Some(0), 15, vec![1, 1])),
        ("before a registry that answers", &[Head(15), Head(1)], command, (Some(1), 11, vec![1, 1])),
        ("a silent mirror", &[Never, Head(1)], command, (Some(1), 11, vec![1, 1])),
        ("a silent mirror for a kubelet", &[Never, Head(1)], kubelet, (Some(1), 11, vec![1, 1])),
        ("two silent mirrors", &[Never, Never, Head(1)], command, (Some(2), 21, vec![1, 1, 1])),
        ("two slow mirrors", &[Head(12), Head(12), Head(1)], command, (Some(0), 12, vec![1, 1, 0])),
        ("a silent mirror and a dead registry", &[Never, Refuses], kubelet, (None, 30, vec![1, 2])),
        ("a slow body is no slow head", &[Body(20), Head(1)], command, (Some(0), 21, vec![1, 0])),
        ("nothing answers", &[Never], kubelet, (None, 30, vec![1])),
    ] {
        let (found, _, text) = play(hosts, patience, 30).await;
        assert_eq!(found, expected, "{what}: {text}");
    }
    let ((host, seconds, asked), ..) = play(&[Never], command, 30).await;
    assert_eq!((host, seconds / 10, asked), (None, 6, vec![2]), "a lost request is sent again");
    let ((host, seconds, asked), ..) = play(&[Never, Head(1)], command, 4).await;
    assert_eq!((host, seconds, asked), (Some(1), 5, vec![1, 1]), "the deadline is shorter than a turn");
}

#[tokio::test(start_paused = true)]
async fn the_host_of_a_slow_head_is_reported_until_its_answer_begins() {
    let head = |is_awaited| PullEvent::Head { host: "127.0.0.1:1".into(), is_awaited };
    for (does, expected) in [
        (Does::Head(25), vec![head(true), head(false)]),
        (Does::Head(1), vec![]),
        (Does::Never, vec![head(true), head(false)]),
    ] {
        let (_, events, text) = play(&[does], Patience::ONE_RETRY, 30).await;
        assert_eq!(events, expected, "{does:?}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_is_named_with_the_time_that_was_waited_for_it() {
    let (.., text) = play(&[Does::Never], Patience::ONE_RETRY, 30).await;
    assert!(text.contains("`127.0.0.1:1` did not answer") && text.contains("no byte for 30 s"), "{text}");
    let (.., text) = play(&[Does::Never], Patience::FULL, 30).await;
    assert!(text.contains("2 attempts in 60.") && text.contains("the next one is due in"), "{text}");
    assert!(text.contains("the pull retries for at most 10 s"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_another_host_overtakes_is_asked_last_by_the_next_request() {
    let config = RegistryConfig {
        timeouts: RegistryTimeouts { silence_max: None, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let own = ["127.0.0.1:1", "127.0.0.2:1"].map(|place| Host::own(place).unwrap()).to_vec();
    let reference = "127.0.0.9:1/team/app:v1".parse().unwrap();
    let session = PullSession::new(Registry::new(config).shared, reference, own, &[], Patience::FULL);
    let attempt = |host: usize| {
        let head =
            AwaitedHead { place: String::new(), stage: Stage::Manifest, is_redirected: false, since: Instant::now() };
        async move {
            awaits(Some(head));
            sleep(Duration::from_secs(if host == 0 { 3600 } else { 1 })).await;
            Ok(host)
        }
        .boxed()
    };
    for seconds in [11, 1] {
        let began = Instant::now();
        let host = session.first_success(&mut Attempts::new([0, 1]), "an image", attempt).await.unwrap();
        assert_eq!((host, began.elapsed().as_secs()), (1, seconds));
    }
    let failures: Vec<_> = session.senders().into_iter().flat_map(|host| host.failures).collect();
    assert_eq!(failures, [(ErrorClass::TimedOut.name().to_owned(), 1)]);
}
