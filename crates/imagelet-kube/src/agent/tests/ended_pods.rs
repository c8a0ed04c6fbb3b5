//! The end of a kubelet's pulls with their pod, and what does not end them.

use imagelet_core::{
    error::ErrorClass,
    events::PodIdentity,
    manager::{Caller, EnsureError, EnsureRequest, Ensured, PullPolicy},
    ports::unwatched,
};

use super::*;

/// How long a pull takes. A pull that did not end by then does not end with its pod.
const PULL: Duration = Duration::from_mins(5);

/// A node on which each pull takes long.
async fn node_with_slow_pulls(fake: &FakeApi) -> (Cluster, TestNode) {
    let cluster = Cluster::of(fake, "ended");
    let node = TestNode::new(&cluster.client, &cluster.node);
    node.runtime.offer("app:v1", "app", 100);
    node.runtime.set_pull_takes(PULL);
    node.until_synced().await;
    (cluster, node)
}

impl TestNode {
    /// A kubelet's request for `app:v1`.
    fn pull(&self, pod: &PodIdentity) -> JoinHandle<Result<Ensured, EnsureError>> {
        let caller = Caller::Client { own_credentials: true, is_limited: false };
        let mut request = EnsureRequest { caller, ..EnsureRequest::new("app:v1", PullPolicy::Always) };
        request.pull.pod = pod.clone();
        let manager = Arc::clone(&self.manager);
        tokio::spawn(async move { manager.ensure(&request, unwatched()).await })
    }

    async fn until_pulls(&self, count: usize) {
        let until = SystemTime::now() + WAIT_MAX;
        while self.runtime.pulls_running() != count {
            assert!(SystemTime::now() < until, "{} pulls run and not {count}", self.runtime.pulls_running());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Binds a pod and waits until the agent knows it.
async fn bound(fake: &FakeApi, cluster: &Cluster, node: &TestNode, name: &str) -> PodIdentity {
    let pods = node.health.report().pods;
    cluster.create(name, &["app:v1"]).await;
    node.until("the pod", |report| report.pods > pods).await;
    let name = cluster.full_name(name);
    let name = name.trim_start_matches("default/");
    let pod = fake.object("/api/v1/pods", "default", name).unwrap();
    let uid = pod["metadata"]["uid"].as_str().unwrap().into();
    PodIdentity { namespace: "default".into(), name: name.into(), uid }
}

#[tokio::test(start_paused = true)]
async fn a_kubelets_pull_ends_with_its_pod_and_the_error_says_how_the_pod_ended() {
    for (end, expected) in [
        ("deleted", "is being deleted"),
        ("failed", "has finished"),
        ("succeeded", "has finished"),
        ("removed", "was removed from the API server"),
        ("absent from a list", "was removed from the API server"),
    ] {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        let (cluster, node) = node_with_slow_pulls(&fake).await;
        let pod = bound(&fake, &cluster, &node, "web").await;
        let pull = node.pull(&pod);
        node.until_pulls(1).await;
        match end {
            "deleted" => {
                let mut object = fake.object("/api/v1/pods", "default", &pod.name).unwrap();
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z".into();
                fake.apply(object);
            }
            "failed" => cluster.set_phase("web", "Failed", &[]).await,
            "succeeded" => cluster.set_phase("web", "Succeeded", &[]).await,
            "removed" => fake.remove("default", &pod.name),
            _ => {
                fake.plant_lasting(Some(ApiFault::Status(500, "away".into())));
                fake.cut_connections();
                node.until("out of sync", |report| !report.in_sync).await;
                fake.remove("default", &pod.name);
                fake.forget_history();
                fake.plant_lasting(None);
            }
        }
        let error = pull.await.unwrap().unwrap_err();
        let message = format!("the pull of `app:v1` ended, because the pod `default/{}` {expected}", pod.name);
        assert_eq!((error.class(), error.message()), (ErrorClass::Cancelled, message), "{end}");
        // Not even the grace of a pull is waited for.
        node.until_pulls(0).await;
        // The kubelet repeats the request for its next credential, or requests another image of the pod.
        node.pull(&pod).await.unwrap().unwrap_err();
        assert_eq!(node.runtime.pull_requests().len(), 1, "{end}");
        let status = node.manager.status();
        assert!(status.pulls.is_empty() && status.held_back.is_empty() && status.open_circuits.is_empty(), "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_pull_goes_on_for_another_pod_and_a_pod_of_the_same_name_joins_it() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let (cluster, node) = node_with_slow_pulls(&fake).await;
    let (first, other) = (bound(&fake, &cluster, &node, "db-0").await, bound(&fake, &cluster, &node, "other").await);
    let pulls = (node.pull(&first), node.pull(&other));
    node.until_pulls(1).await;
    // Deleted by force and made anew.
    fake.remove("default", &first.name);
    pulls.0.await.unwrap().unwrap_err();
    let again = bound(&fake, &cluster, &node, "db-0").await;
    assert_ne!(first.uid, again.uid);
    let joined = node.pull(&again);
    pulls.1.await.unwrap().unwrap();
    joined.await.unwrap().unwrap();
    assert_eq!(node.runtime.pull_requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pull_waits_for_the_request_of_another_pod_that_a_serial_kubelet_has_not_sent_yet() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let (cluster, node) = node_with_slow_pulls(&fake).await;
    let (first, next) = (bound(&fake, &cluster, &node, "web").await, bound(&fake, &cluster, &node, "next").await);
    let pull = node.pull(&first);
    node.until_pulls(1).await;
    fake.remove("default", &first.name);
    pull.await.unwrap().unwrap_err();
    node.pull(&next).await.unwrap().unwrap();
    assert_eq!(node.runtime.pull_requests().len(), 1, "the next request joined the pull");
}

#[tokio::test(start_paused = true)]
async fn neither_an_outage_of_the_api_server_nor_an_unknown_pod_nor_the_mirror_of_a_static_pod_ends_a_pull() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let (cluster, node) = node_with_slow_pulls(&fake).await;
    let known = bound(&fake, &cluster, &node, "web").await;
    let unknown = PodIdentity { uid: "uid-of-no-object".into(), ..known.clone() };
    // The kubelet's own uid of a static pod is the hash of its manifest.
    let hash = "0123456789abcdef0123456789abcdef";
    fake.apply(json!({
        "metadata": {
            "namespace": "kube-system", "name": "static-node",
            "annotations": {"kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash},
        },
        "spec": {"nodeName": cluster.node, "containers": [{"name": "c", "image": "app:v1"}]},
    }));
    let fixed = PodIdentity { namespace: "kube-system".into(), name: "static-node".into(), uid: hash.into() };
    let pulls = [known, unknown, fixed].map(|pod| node.pull(&pod));
    node.until_pulls(1).await;
    fake.remove("kube-system", "static-node");
    for fault in [ApiFault::Status(500, "away".into()), ApiFault::Status(403, "forbidden".into()), ApiFault::Hang] {
        fake.plant_lasting(Some(fault));
        fake.cut_connections();
        tokio::time::sleep(Duration::from_secs(30)).await;
        fake.forget_history();
    }
    fake.plant_lasting(None);
    for pull in pulls {
        pull.await.unwrap().unwrap();
    }
}
