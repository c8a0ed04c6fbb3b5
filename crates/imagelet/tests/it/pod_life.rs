//! The life of an image between a kubelet and containerd, with a real pod: pulled through imagelet, started, kept while it
//! is in use, also over restarts of imagelet, and gone when nobody wants it any more.

use imagelet_core::{error::RuntimeErrorKind, image::ImageSpec, ports::ImageService as _};
use imagelet_runtime::cri::Endpoint;
use rustix::process::Signal;
use tonic::Code;

use crate::{
    between::before,
    images::Image,
    program::Daemon,
    relay::{connect, in_runtime, pull, request},
    testbed::{Containerd, Registry, scratch, wait_until},
    wire::{RuntimeServiceClient, pods::TestPods, v1},
};

const EAGER: &str = "imageMinimumGCAge: 1ms\ngc: {enabled: false, leaseFor: 0s}\n";

pub(crate) async fn runtime_client(daemon: &Daemon) -> RuntimeServiceClient {
    let channel = tonic::transport::Endpoint::new(daemon.endpoint()).unwrap().connect().await.unwrap();
    RuntimeServiceClient::new(channel)
}

/// Every call that only looks is passed on to the runtime, as it answers it; none that changes a container is.
pub(crate) async fn all_runtime_calls(daemon: &Daemon, sandbox: &str, container: &str, image: &str) {
    let mut client = runtime_client(daemon).await;
    let version = client.version(v1::VersionRequest::default()).await.unwrap().into_inner();
    assert_eq!((version.version.as_str(), version.runtime_name.as_str()), ("0.1.0", "containerd"));
    let status = client.status(v1::StatusRequest { verbose: true }).await.unwrap().into_inner();
    assert!(status.status.unwrap().conditions.iter().any(|condition| condition.r#type == "RuntimeReady"));
    assert!(!status.info.is_empty(), "as verbose as it is");
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap().into_inner().items;
    assert_eq!(sandboxes.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [sandbox]);
    let asked = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: false };
    assert_eq!(client.pod_sandbox_status(asked).await.unwrap().into_inner().status.unwrap().id, sandbox);
    for filter in [None, Some(v1::ContainerFilter { id: container.to_owned() })] {
        let listed = client.list_containers(v1::ListContainersRequest { filter }).await.unwrap().into_inner();
        let containers: Vec<_> =
            listed.containers.iter().map(|one| (one.id.as_str(), one.image_ref.as_str(), one.state)).collect();
        assert_eq!(containers, [(container, image, 1)], "it runs");
    }
    let none = v1::ContainerFilter { id: "f".repeat(64) };
    let listed = client.list_containers(v1::ListContainersRequest { filter: Some(none) }).await.unwrap().into_inner();
    assert!(listed.containers.is_empty(), "the filter is the runtime's to read");
    let asked = v1::ContainerStatusRequest { container_id: container.to_owned() };
    let told = client.container_status(asked).await.unwrap().into_inner().status.unwrap();
    assert_eq!(told.id, container);
    // This runtime is older than these calls, and says so itself.
    let streamed = client.stream_containers(v1::StreamContainersRequest::default()).await;
    assert_eq!(ended(streamed).await, Code::Unimplemented);
    let streamed = client.stream_pod_sandboxes(v1::StreamPodSandboxesRequest::default()).await;
    assert_eq!(ended(streamed).await, Code::Unimplemented);
    let config = client.runtime_config(v1::RuntimeConfigRequest {}).await;
    assert!(config.is_ok() || config.unwrap_err().code() == Code::Unimplemented);
    let stop = v1::StopContainerRequest { container_id: container.to_owned(), timeout: 0 };
    assert_eq!(client.stop_container(stop).await.unwrap_err().code(), Code::Unimplemented);
    let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.to_owned() };
    assert_eq!(client.remove_pod_sandbox(remove).await.unwrap_err().code(), Code::Unimplemented);
}

/// The code that a stream ends with, whether it comes with its opening or with its first message.
async fn ended<T>(stream: Result<tonic::Response<tonic::Streaming<T>>, tonic::Status>) -> Code {
    match stream {
        Err(status) => status.code(),
        Ok(stream) => stream.into_inner().message().await.err().map_or(Code::Ok, |status| status.code()),
    }
}

#[test]
fn an_image_lives_as_long_as_its_pod_and_imagelet_may_be_started_anew_meanwhile() {
    let (registry, folder) = (Registry::start(), scratch());
    let pause = registry.push("pause:3.9", &Image::busybox("pause"));
    let image = Image::busybox("application");
    let name = registry.push("application:v1", &image);
    let spare = registry.push("spare:v1", &Image::marked("spare", 100_000));
    let containerd = Containerd::start(folder.path(), &registry);
    let started = || before(folder.path(), &containerd.endpoint(), "", EAGER);
    let daemon = started();
    in_runtime(async {
        let images = connect(&daemon).await;
        for name in [&pause, &name, &spare] {
            pull(&images, &request(name)).await.unwrap();
        }
    });
    let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
    let (pods, sandbox, container) = in_runtime(async {
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        let sandbox = pods.run_sandbox("web").await.unwrap();
        let container = pods.run_container(&sandbox, image.id(), &["/bin/sleep", "3600"]).await.unwrap();
        all_runtime_calls(&daemon, &sandbox.id, &container, image.id()).await;
        (pods, sandbox, container)
    });
    drop(pods);
    assert!(daemon.stop(Signal::TERM).success());
    let daemon = started();
    let present = |name: &str| daemon.run(["inspect", "-q", name]).code == 0;
    wait_until("the images", || present(&name));
    in_runtime(async {
        let images = connect(&daemon).await;
        let refused = images.remove(&ImageSpec::new(image.id())).await.unwrap_err();
        assert_eq!(refused.kind(), RuntimeErrorKind::InUse, "{refused}");
        assert!(refused.to_string().contains("default/web/main"), "{refused}");
    });
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert!(present(&name) && present(&pause) && !present(&spare), "{}", daemon.run(["ls"]).ok());
    // A container that has ended holds its image; one that is removed does not.
    let other = in_runtime(async {
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        pods.stop_container(&container).await.unwrap();
        let images = connect(&daemon).await;
        let refused = images.remove(&ImageSpec::new(&name)).await.unwrap_err();
        assert_eq!(refused.kind(), RuntimeErrorKind::InUse, "{refused}");
        // That there are no containers at all any more would not be believed at once: another one stays.
        let other = pods.run_sandbox("other").await.unwrap();
        pods.run_container(&other, &pause, &["/bin/sleep", "3600"]).await.unwrap();
        daemon.run(["ls"]).ok();
        pods.remove_sandbox(&sandbox).await.unwrap();
        other
    });
    wait_until("the collection of what nobody uses", || {
        daemon.run(["gc", "--all-unused", "--now"]);
        !present(&name)
    });
    assert!(present(&pause), "new sandboxes are started from it");
    in_runtime(async {
        let images = connect(&daemon).await;
        assert_eq!(images.status(&ImageSpec::new(image.id())).await.unwrap(), None);
        // And again from the start.
        assert_eq!(pull(&images, &request(&name)).await.unwrap(), image.id());
        images.remove(&ImageSpec::new(&name)).await.unwrap();
        assert_eq!(images.status(&ImageSpec::new(&name)).await.unwrap(), None);
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        pods.remove_sandbox(&other).await.unwrap();
    });
}

/// The row of an image in a list.
fn row(daemon: &Daemon, id: &str) -> serde_json::Value {
    let listed = daemon.run(["ls", "--all", "-o", "json"]).json();
    let rows = listed["images"].as_array().unwrap();
    rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{id} is not in {listed:#}")).clone()
}

#[test]
fn the_pause_image_stays_under_pods_and_for_new_ones_without_any_pin() {
    let (registry, folder) = (Registry::start(), scratch());
    let (first, second) = (Image::busybox("pause"), Image::busybox("another pause"));
    let pause = registry.push("pause:3.9", &first);
    let (image, spare) = (Image::busybox("application"), Image::marked("spare", 100_000));
    let (name, spare) = (registry.push("application:v1", &image), registry.push("spare:v1", &spare));
    let containerd = Containerd::start(folder.path(), &registry);
    let daemon = before(folder.path(), &containerd.endpoint(), "", EAGER);
    let present = |name: &str| daemon.run(["inspect", "-q", name]).code == 0;
    let collect = || daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
    for name in [&pause, &name, &spare] {
        daemon.run(["pull", name]).ok();
    }
    collect();
    assert!(present(&pause) && !present(&spare), "no pod runs yet: {}", daemon.run(["ls"]).ok());
    assert_eq!(row(&daemon, first.id())["pinnedBy"], serde_json::json!(["sandbox image"]));
    daemon.run(["pull", &name]).ok();

    let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
    let (ready, ended) = in_runtime(async {
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        let ready = pods.run_sandbox("web").await.unwrap();
        pods.run_container(&ready, image.id(), &["/bin/sleep", "3600"]).await.unwrap();
        let ended = pods.run_sandbox("ended").await.unwrap();
        pods.stop_sandbox(&ended).await.unwrap();
        (ready, ended)
    });
    let users = ["default/ended (sandbox)", "default/web (sandbox)"];
    let mut used = row(&daemon, first.id())["inUseBy"].as_array().unwrap().clone();
    used.sort_by_key(ToString::to_string);
    assert_eq!(used, users);
    let why = daemon.run(["why", &pause]).ok();
    assert!(why.contains("default/web (sandbox)") && why.contains("pinned by"), "{why}");

    // The setting means another image from now on; the pods run from the one of before.
    registry.push("pause:3.9", &second);
    daemon.run(["pull", "--policy", "Always", &pause]).ok();
    collect();
    assert!(present(first.id()) && present(second.id()), "{}", daemon.run(["ls"]).ok());
    assert_eq!(row(&daemon, first.id())["pinnedBy"], serde_json::json!([]));
    in_runtime(async {
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        pods.remove_sandbox(&ended).await.unwrap();
    });
    collect();
    assert!(present(first.id()), "one pod is left: {}", daemon.run(["ls"]).ok());
    let new = in_runtime(async {
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        let new = pods.run_sandbox("new").await.unwrap();
        // That there are no containers at all any more would not be believed at once.
        pods.run_container(&new, image.id(), &["/bin/sleep", "3600"]).await.unwrap();
        daemon.run(["ls"]).ok();
        pods.remove_sandbox(&ready).await.unwrap();
        new
    });
    wait_until("the collection of the pause image that no pod runs from", || {
        collect();
        !present(first.id())
    });
    assert!(present(second.id()) && present(&name));
    in_runtime(async {
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        pods.remove_sandbox(&new).await.unwrap();
    });
}
