//! Requests for pods that did not ask yet: what they leave to the request of the pod itself.

use super::*;
use crate::error::{Fault, Stage};

fn ahead(image: &str) -> EnsureRequest {
    EnsureRequest { caller: Caller::LookAhead, ..request(image) }
}

fn kubelet(image: &str) -> EnsureRequest {
    let caller = Caller::Client { own_credentials: true, is_limited: false };
    EnsureRequest { caller, ..EnsureRequest::new(image, PullPolicy::Always) }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_asks_during_a_look_ahead_joins_its_pull_and_keeps_it_when_the_look_ahead_ends() {
    let runtime = FakeRuntime::new();
    runtime.offer("reg.test/app:v1", "app", 10);
    runtime.set_pull_takes(Duration::from_mins(1));
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted::default());
    let look_ahead = node.begin(&ahead("reg.test/app:v1")).await;
    let asked = node.begin(&kubelet("reg.test/app:v1")).await;
    look_ahead.abort();
    drop(look_ahead.await);
    advance(Duration::from_mins(2)).await;
    asked.await.unwrap().unwrap();
    assert_eq!(runtime.pull_requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_look_ahead_that_fails_holds_back_neither_its_pod_nor_the_registry() {
    let runtime = FakeRuntime::new();
    runtime.fail("pull", RuntimeErrorKind::RegistryUnavailable, "dial tcp 10.0.0.1:443: connect: connection refused");
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted::default());
    for _ in 0..5 {
        assert_eq!(node.ensure(&ahead("reg.test/app:v1")).await.unwrap_err().reason(), "RegistryUnavailable");
    }
    let status = node.manager.status();
    assert_eq!((status.held_back, status.open_circuits), (vec![], vec![]));
    runtime.heal();
    runtime.offer("reg.test/app:v1", "app", 10);
    for asked in [request("reg.test/app:v1"), kubelet("reg.test/app:v1")] {
        node.ensure(&asked).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_ahead_waits_for_the_end_of_a_back_off_and_of_an_open_circuit_and_reports_neither() {
    let runtime = FakeRuntime::new();
    runtime.fail("pull", RuntimeErrorKind::RegistryUnavailable, "dial tcp 10.0.0.1:443: connect: connection refused");
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted::default());
    node.ensure(&request("reg.test/app:v1")).await.unwrap_err();
    assert_eq!(node.ensure(&ahead("reg.test/app:v1")).await.unwrap_err().reason(), "ImagePullBackOff");
    for image in ["reg.test/b:v1", "reg.test/c:v1"] {
        node.ensure(&kubelet(image)).await.unwrap_err();
    }
    // The window is over, and the first pull is the probe: the kubelet's.
    advance(Duration::from_secs(11)).await;
    assert_eq!(node.ensure(&ahead("reg.test/d:v1")).await.unwrap_err().reason(), "ImagePullBackOff");
    let pulls = runtime.take_calls().into_iter().filter(|call| call.starts_with("pull")).count();
    assert_eq!(pulls, 3, "those of the pod and the kubelet");
    assert!(node.reported().iter().all(|(_, reason, _)| *reason != "BackOff"), "{:?}", node.reported());
    runtime.heal();
    runtime.offer("reg.test/d:v1", "d", 10);
    node.ensure(&kubelet("reg.test/d:v1")).await.unwrap();
    node.ensure(&ahead("reg.test/d:v1")).await.unwrap();
}

/// A registry that limits requests, and says for how long.
#[derive(Debug)]
struct Limited;

#[async_trait]
impl ImageService for Limited {
    async fn list(&self, _: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        Ok(Listing::default())
    }

    async fn status(&self, _: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(None)
    }

    async fn pull(&self, _: &PullRequest, _: Progress) -> Result<ImageId, RuntimeError> {
        let fault = Fault {
            retry_after: Some(Duration::from_secs(30)),
            ..Fault::new(ErrorClass::RateLimited, Stage::Manifest)
        };
        Err(RuntimeError::new(RuntimeErrorKind::RegistryUnavailable, "429 Too Many Requests").with_fault(fault))
    }

    async fn remove(&self, _: &ImageSpec) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems::default())
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_that_a_registry_names_to_a_look_ahead_counts_for_all() {
    let node = TestNode::new(Arc::new(Limited), Wanted::default());
    node.ensure(&ahead("reg.test/app:v1")).await.unwrap_err();
    let [open] = &node.manager.status().open_circuits[..] else { panic!("the registry named a time") };
    assert_eq!((open.registry.as_str(), open.remaining.as_secs()), ("reg.test", 30));
}
