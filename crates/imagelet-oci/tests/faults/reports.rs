//! What a pull reports of its registry: waits, and requests for tokens.

use std::sync::{Arc, Mutex};

use imagelet_core::ports::{NextRequest, Progress, PullEvent, TokenExchange};
use imagelet_oci::testing::FAULTS;
use tokio::time::Instant;

use crate::scene::Scene;

/// The waits (the host's number, whether it requested them) and tokens (whether granted) of a pull.
async fn reports(fault: &str, hosts: usize) -> (Vec<(usize, bool)>, Vec<bool>) {
    let fault = FAULTS.iter().find(|known| known.name == fault).expect("a fault of this name");
    let scene = Scene::start(fault, hosts).await;
    let heard: Arc<Mutex<Vec<(PullEvent, Instant)>>> = Arc::default();
    let progress: Progress = {
        let heard = Arc::clone(&heard);
        Arc::new(move |event| heard.lock().unwrap().push((event, Instant::now())))
    };
    drop(scene.pull_with(progress).await);
    let (mut waits, mut tokens) = (Vec::new(), Vec::new());
    for (event, heard_at) in heard.lock().unwrap().iter() {
        match event {
            PullEvent::Retry(NextRequest { host, at, is_requested }) => {
                assert!(at > heard_at, "the wait begins with its report");
                waits.push((scene.hosts.iter().position(|known| known.address() == host).unwrap(), *is_requested));
            }
            PullEvent::Token(TokenExchange { service, began, is_granted, .. }) => {
                assert!(began < heard_at && scene.hosts.iter().any(|host| host.address() == service), "{service}");
                tokens.push(*is_granted);
            }
            _ => {}
        }
    }
    (waits, tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_reports_its_waits_for_a_registry_and_its_tokens() {
    assert_eq!(reports("rate-limit-seconds", 1).await, (vec![(0, true)], vec![true]));
    assert_eq!(reports("token-401", 1).await, (vec![], vec![false]));
    let (waits, tokens) = reports("token-500", 1).await;
    assert!(!waits.is_empty() && waits.iter().all(|wait| *wait == (0, false)), "{waits:?}");
    assert!(tokens.len() > 1 && !tokens.contains(&true), "{tokens:?}");
    assert_eq!(reports("rate-limit-seconds", 2).await.0, [], "another host is asked meanwhile");
}
