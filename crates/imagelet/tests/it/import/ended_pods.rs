//! The end of an import with the pod that a kubelet pulls for: in five seconds, and with a few megabytes at most.

use std::time::Duration;

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    events::PodIdentity,
    ports::PullRequest,
};
use rustix::process::Signal;
use serde_json::json;

use super::node::Node;
use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    kubernetes::Api,
    relay::{connect, pull, request},
    soundness::small_layer,
    testbed::{ContainerdRelease, wait_until},
};

const LAYER: usize = 24 << 20;
/// How late a kubelet may have the error.
const END_MAX: Duration = Duration::from_secs(5);
/// How many bytes may come after the end of the last pod.
const LATE_MAX: u64 = 4 << 20;

impl Api {
    /// Binds a pod to the node. Returns its identity as a kubelet sends it.
    fn bound(&self, name: &str, image: &str) -> PodIdentity {
        self.bind(name, image);
        let pod = self.fake.object("/api/v1/pods", "shop", name).unwrap();
        let uid = pod["metadata"]["uid"].as_str().unwrap().into();
        PodIdentity { namespace: "shop".into(), name: name.into(), uid }
    }
}

#[test]
fn a_slow_pull_ends_within_five_seconds_of_its_pod_and_goes_on_without_a_byte_twice_for_the_pod_that_waits() {
    let clients = tokio::runtime::Runtime::new().unwrap();
    for release in ContainerdRelease::all() {
        let (registry, api) = (FakeRegistry::start(), Api::start_with_token());
        let image = Image::oci(&[small_layer("large", LAYER)]);
        let name = registry.put("app:v1", &image);
        let layer = &image.layers[0].digest;
        registry.spoil("app", layer, |answer| answer.pause = Duration::from_millis(50));
        let sent = || registry.sent("app", layer);

        let node = Node::start(&release, "unused:v1");
        let kubeconfig = api.fake.kubeconfig(node.folder.path());
        let daemon = node.daemon(&format!(
            "runtimeImport: require\nkubernetes: {{nodeName: node-1, kubeconfig: '{}'}}\n",
            kubeconfig.display()
        ));
        let watches = || api.fake.requests().iter().any(|it| it.contains("/pods?") && it.contains("watch=true"));
        wait_until("the watch of the pods", watches);
        let begin = |pod: &PodIdentity| {
            let (client, request) =
                (clients.block_on(connect(&daemon)), PullRequest { pod: pod.clone(), ..request(&name) });
            clients.spawn(async move { pull(&client, &request).await })
        };
        let refused = |pull: tokio::task::JoinHandle<Result<String, RuntimeError>>, why: &str| {
            let error = clients.block_on(async { tokio::time::timeout(END_MAX, pull).await });
            let error = error.unwrap_or_else(|_| panic!("{release}: no end within {END_MAX:?}")).unwrap().unwrap_err();
            assert_eq!(error.kind(), RuntimeErrorKind::Cancelled, "{release}: {}", error.chain());
            assert!(error.chain().contains(why), "{release}: {}", error.chain());
        };

        let (first, other) = (api.bound("web", &name), api.bound("db-0", &name));
        let (of_first, of_other) = (begin(&first), begin(&other));
        wait_until("a part of the layer", || sent() > 1 << 20);
        let mut object = api.fake.object("/api/v1/pods", "shop", "web").unwrap();
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:30Z");
        api.fake.apply(object);
        refused(of_first, "because the pod `shop/web` is being deleted");
        let before = sent();
        wait_until("more of the layer for the other pod", || sent() > before + (1 << 20));

        // By force; then nothing waits for the image.
        let at_end = sent();
        api.fake.remove("shop", "db-0");
        refused(of_other, "because the pod `shop/db-0` was removed from the API server");
        std::thread::sleep(Duration::from_secs(2));
        let late = sent() - at_end;
        assert!(late <= LATE_MAX && at_end < LAYER as u64, "{release}: {late} bytes after the end, {at_end} before");

        // Made anew under its name: the bytes that came are not fetched again.
        registry.spoil("app", layer, |answer| answer.pause = Duration::ZERO);
        let again = api.bound("db-0", &name);
        assert_ne!(again.uid, other.uid);
        let id = clients.block_on(begin(&again)).unwrap();
        assert_eq!(id.unwrap_or_else(|error| panic!("{release}: {}", error.chain())), image.id());
        let whole = image.layers[0].bytes.len() as u64;
        println!("{release}: {late} bytes after the end; {} of {whole} twice", sent().saturating_sub(whole));
        assert!(sent() <= whole + LATE_MAX, "{release}: {} bytes of {whole} were sent", sent());
        assert!(daemon.stop(Signal::TERM).success(), "{release}");
    }
}
