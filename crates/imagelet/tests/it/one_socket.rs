//! One socket for images and containers, as `crictl -i SOCKET -r SOCKET` asks it, whatever stands behind it.

use std::path::Path;

use imagelet_core::ports::ImageService as _;
use imagelet_runtime::cri::{Endpoint, RemoteImageService};
use prost::Message as _;
use serde_json::Value;
use tonic::Code;

use crate::{
    between::before,
    cases::{raw, raw_client},
    images::Image,
    peers::{HELD_MAX, resident},
    pod_life::{all_runtime_calls, runtime_client},
    program::Daemon,
    relay::{connect, embedded, in_runtime, pull, request},
    scripted::{self, Runtime, Script},
    testbed::{Containerd, Registry, scratch, wait_until},
    wire::{pods::TestPods, v1},
};

/// A daemon over its own store, with a runtime beside it that runs containers.
fn beside(folder: &Path, runtime: &str) -> Daemon {
    let config = folder.join("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {{enabled: false}}\n\
         store: {{directory: '{}', runtimeEndpoint: '{runtime}'}}\n",
        folder.join("store").display()
    );
    std::fs::write(&config, text).unwrap();
    Daemon::start(folder, ["--config", config.to_str().unwrap()])
}

/// The status of a call whose messages this crate does not know, and whether anything was answered.
async fn asked(daemon: &Daemon, call: &str) -> (String, bool) {
    let (status, answer) = raw(daemon, &format!("runtime.v1.RuntimeService/{call}"), &[]).await;
    // A message has five bytes before it.
    (status, answer.len() > 5)
}

const FIGURES: [&str; 7] = [
    "ListContainerStats",
    "StreamContainerStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
    "StreamPodSandboxMetrics",
];

#[test]
fn the_runtime_beside_a_store_answers_on_the_stores_socket() {
    let (registry, folder) = (Registry::start(), scratch());
    registry.push("pause:3.9", &Image::busybox("pause"));
    let image = Image::busybox("application");
    let name = registry.push("application:v1", &image);
    let containerd = Containerd::start(folder.path(), &registry);
    let daemon = beside(folder.path(), &containerd.endpoint());
    in_runtime(async {
        let behind: Endpoint = containerd.endpoint().parse().unwrap();
        let of_containerd = RemoteImageService::connect(&behind, std::time::Duration::from_mins(1)).await.unwrap();
        for images in [&of_containerd, &connect(&daemon).await] {
            assert_eq!(pull(images, &request(&name)).await.unwrap(), image.id());
        }
        let pods = TestPods::connect(&behind, folder.path()).await.unwrap();
        let sandbox = pods.run_sandbox("web").await.unwrap();
        let container = pods.run_container(&sandbox, image.id(), &["/bin/sleep", "3600"]).await.unwrap();
        all_runtime_calls(&daemon, &sandbox.id, &container, image.id()).await;
        // containerd has these; what it answers them depends on its cgroups.
        for call in ["ListContainerStats", "ContainerStats", "ListPodSandboxStats"] {
            let (status, _) = asked(&daemon, call).await;
            assert_ne!(status, (Code::Unimplemented as i32).to_string(), "{call} is not passed on");
        }
        // Images are the store's: containerd's own pause image is none of them.
        let listed = connect(&daemon).await.list(None).await.unwrap();
        assert_eq!(listed.iter().map(|image| image.id.as_str()).collect::<Vec<_>>(), [image.id()]);
        pods.remove_sandbox(&sandbox).await.unwrap();
    });
    drop(containerd);
    in_runtime(async {
        let away = runtime_client(&daemon).await.version(v1::VersionRequest::default()).await.unwrap_err();
        assert_eq!(away.code(), Code::Unavailable, "{away}");
        assert_eq!(connect(&daemon).await.list(None).await.unwrap().len(), 1, "images need no runtime");
    });
}

#[test]
fn a_store_alone_tells_honestly_that_it_runs_nothing() {
    let folder = scratch();
    let daemon = embedded(folder.path());
    in_runtime(async {
        let mut client = runtime_client(&daemon).await;
        let version = client.version(v1::VersionRequest::default()).await.unwrap().into_inner();
        assert_eq!((version.version.as_str(), version.runtime_name.as_str()), ("0.1.0", "imagelet"));
        assert_eq!((version.runtime_version.as_str(), version.runtime_api_version.as_str()), ("0.1.0", "v1"));
        let status = client.status(v1::StatusRequest { verbose: true }).await.unwrap().into_inner();
        let conditions = status.status.unwrap().conditions;
        let answer: Vec<_> = conditions.iter().map(|condition| (condition.r#type.as_str(), condition.status)).collect();
        assert_eq!(answer, [("RuntimeReady", false), ("NetworkReady", false)]);
        assert!(!status.info.is_empty(), "`crictl info` shows it");
        assert!(client.runtime_config(v1::RuntimeConfigRequest {}).await.unwrap().into_inner().linux.is_some());
        let none = client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap().into_inner();
        assert!(none.items.is_empty());
        let none = client.list_containers(v1::ListContainersRequest::default()).await.unwrap().into_inner();
        assert!(none.containers.is_empty());
        for call in ["StreamContainers", "StreamPodSandboxes"].into_iter().chain(FIGURES) {
            assert_eq!(asked(&daemon, call).await, ("0".to_owned(), false), "{call}");
        }
        for (calls, code) in [
            (["ContainerStatus", "PodSandboxStatus", "ContainerStats", "PodSandboxStats"].as_slice(), Code::NotFound),
            (&["RunPodSandbox", "CreateContainer", "StopContainer", "ExecSync", "NoSuchCall"], Code::Unimplemented),
        ] {
            for call in calls {
                assert_eq!(asked(&daemon, call).await.0, (code as i32).to_string(), "{call}");
            }
        }
    });
}

#[test]
fn lists_too_long_for_a_message_come_in_streams_where_the_runtime_has_them() {
    const COUNT: usize = 1700;
    let folder = scratch();
    // Together above the 16 MiB of a message.
    let note: String = "n".repeat(10_000);
    let images = (0..COUNT).map(|number| {
        let annotations = [("note".to_owned(), note.clone())].into();
        let spec = v1::ImageSpec { annotations, ..v1::ImageSpec::default() };
        v1::Image { spec: Some(spec), ..scripted::image(&format!("reg.test/{number}:v1"), 1) }
    });
    let script = Script { images: images.collect(), images_streamed: 500, ..Script::default() };
    let runtime = Runtime::start(folder.path(), script);
    let listed = |daemon: &Daemon| {
        let listed = daemon.run(["ls", "-q"]);
        if listed.code == 0 { Ok(listed.stdout.lines().count()) } else { Err(listed.stderr) }
    };
    let daemon = before(folder.path(), &runtime.endpoint(), "", "gc: {enabled: false}\n");
    assert_eq!(listed(&daemon), Ok(COUNT));
    in_runtime(async {
        // As a kubelet asks: without the annotations it fits.
        let answer = connect(&daemon).await.list(None).await.unwrap();
        assert_eq!(answer.len(), COUNT);
        assert_eq!(answer[0].spec.annotations, []);
    });
    drop(daemon);
    // The kubelet asks for one message only; a longer list is an error.
    let daemon = before(folder.path(), &runtime.endpoint(), "", "gc: {enabled: false}\ncompatibility: kubelet\n");
    assert!(listed(&daemon).unwrap_err().contains("message length too large"));
    drop(daemon);
    // A runtime that has none is asked for one message from then on.
    runtime.with(|script| {
        script.images.truncate(10);
        script.images_streamed = 0;
    });
    let daemon = before(folder.path(), &runtime.endpoint(), "", "gc: {enabled: false}\n");
    wait_until("the list", || listed(&daemon) == Ok(10));
    wait_until("the log of it", || daemon.part.log().contains("the runtime does not stream lists"));
}

#[test]
fn who_is_told_of_an_image_at_length_is_leased_it_as_who_is_told_briefly() {
    let folder = scratch();
    let names = ["at-length", "briefly", "nobody"].map(|name| format!("reg.test/{name}:v1"));
    let images = names.iter().map(|name| scripted::image(name, 1000)).collect();
    let runtime = Runtime::start(folder.path(), Script { images, ..Script::default() });
    let settings = "imageMinimumGCAge: 1ms\ngc: {enabled: false, leaseFor: 1h}\n";
    let daemon = before(folder.path(), &runtime.endpoint(), "", settings);
    in_runtime(async {
        let mut client = raw_client(&daemon).await;
        for (name, verbose) in [(&names[0], true), (&names[1], false)] {
            let image = Some(v1::ImageSpec { image: name.clone(), ..v1::ImageSpec::default() });
            let answer = client.image_status(v1::ImageStatusRequest { image, verbose }).await.unwrap().into_inner();
            assert_eq!(answer.image.unwrap().repo_tags, std::slice::from_ref(name));
        }
    });
    let done = daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
    let code = |name: &String| {
        let rows = done["images"].as_array().unwrap();
        rows.iter().find(|row| row["names"][0] == name.as_str()).map(|row: &Value| row["code"].clone())
    };
    assert_eq!(names.each_ref().map(code), [Some("awaited".into()), Some("awaited".into()), Some("unused".into())]);
}

#[test]
fn a_runtime_is_told_all_that_a_caller_says_of_its_pod_and_of_the_image() {
    let folder = scratch();
    let name = "reg.test/app:v1";
    let offered = [(name.to_owned(), scripted::image(name, 1000))].into();
    let runtime = Runtime::start(folder.path(), Script { offered, ..Script::default() });
    let daemon = before(folder.path(), &runtime.endpoint(), "", "gc: {enabled: false}\n");
    let texts = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    let pod = |namespace: &str| v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "web".into(),
            uid: "u-1".into(),
            namespace: namespace.into(),
            attempt: 3,
        }),
        labels: texts("app", "shop"),
        annotations: texts("example.com/note", "annotated"),
        linux: Some(v1::LinuxPodSandboxConfig { cgroup_parent: "kubepods-pod1.slice".into(), ..Default::default() }),
        ..v1::PodSandboxConfig::default()
    };
    let login = v1::AuthConfig { username: "alice".into(), password: "zebra-lantern-42".into(), ..Default::default() };
    let image =
        v1::ImageSpec { image: name.into(), annotations: texts("org.example/hint", "fast"), ..Default::default() };
    let asks = ["shop", "bank"].map(|namespace| v1::PullImageRequest {
        image: Some(image.clone()),
        auth: Some(login.clone()),
        sandbox_config: Some(pod(namespace).encode_to_vec()),
    });
    in_runtime(async {
        let client = raw_client(&daemon).await;
        // At once: what one namespace may have, another may be refused, so neither shares the other's pull.
        let pulls = asks.iter().map(|ask| {
            let (mut client, ask) = (client.clone(), ask.clone());
            async move { client.pull_image(ask).await.unwrap().into_inner().image_ref }
        });
        assert_eq!(futures_util::future::join_all(pulls).await, [scripted::id_of(name), scripted::id_of(name)]);
    });
    let mut answer = runtime.with(|script| script.asked.clone());
    answer.sort_by_key(|answer| std::cmp::Reverse(answer.sandbox_config == asks[0].sandbox_config));
    assert_eq!(answer.len(), asks.len());
    for (answer, ask) in answer.iter().zip(&asks) {
        assert_eq!((&answer.image, &answer.sandbox_config), (&ask.image, &ask.sandbox_config));
        let auth = answer.auth.as_ref().unwrap();
        assert_eq!((&auth.username, &auth.password), (&login.username, &login.password));
    }
    let log = daemon.part.log();
    for secret in ["zebra-lantern-42", "annotated", "kubepods-pod1"] {
        assert!(!log.contains(secret), "`{secret}` is in the log:\n{log}");
    }
    // A pull without a pod has none at the runtime.
    in_runtime(async { pull(&connect(&daemon).await, &request(name)).await.unwrap() });
    let last = runtime.with(|script| script.asked.last().cloned()).unwrap();
    assert_eq!((last.sandbox_config, last.auth), (None, None));
}

#[test]
fn a_runtime_that_tells_of_millions_of_things_or_without_end_fills_no_memory() {
    let folder = scratch();
    let sane = vec![scripted::image("reg.test/app:v1", 1000)];
    let script = Script { images: sane.clone(), images_streamed: 100, ..Script::default() };
    let runtime = Runtime::start(folder.path(), script);
    // The first asks for streams, as long as the runtime has them, the second for whole lists.
    let daemons = ["", "compatibility: kubelet\n"].map(|settings| {
        let folder = scratch();
        let settings = format!("gc: {{enabled: false}}\n{settings}");
        (before(folder.path(), &runtime.endpoint(), "", &settings), folder)
    });
    for (daemon, _folder) in &daemons {
        wait_until("the first list", || daemon.run(["ls"]).code == 0);
    }
    let memory = daemons.each_ref().map(|(daemon, _)| resident(daemon.part.id()));
    // Two bytes each on the wire, and hundreds in memory.
    let hollow = vec![v1::Image::default(); 300_000];
    for (images, is_endless) in [(hollow, false), (vec![sane[0].clone(); 1000], true)] {
        runtime.with(|script| {
            script.images_streamed = usize::MAX;
            script.images = images;
            script.streams_without_end = is_endless;
        });
        for ((daemon, _), memory) in daemons.iter().zip(memory) {
            let is_whole = daemon.endpoint() == daemons[1].0.endpoint();
            if is_endless && is_whole {
                continue;
            }
            daemon.run(["ls"]).refused(&["the answer holds more than any may"]);
            let held = resident(daemon.part.id()).saturating_sub(memory);
            assert!(held < HELD_MAX, "it made the daemon hold {held} bytes");
            daemon.run(["status"]).ok();
        }
    }
    runtime.with(|script| {
        script.images = sane.clone();
        script.streams_without_end = false;
    });
    for (daemon, _) in &daemons {
        assert_eq!(daemon.run(["ls", "-q"]).ok().lines().count(), 1);
    }
}
