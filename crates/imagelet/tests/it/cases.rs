//! Cases of the catalogue that lie between a kubelet and a runtime, over real sockets: B102 to B111.
//!
//! The runtime is scripted where the moment matters. Cases that are proved where they belong are named in the table of
//! the last test, which fails when an id has no instance.

use std::{collections::BTreeSet, path::Path};

use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use imagelet_core::{error::RuntimeErrorKind, image::ImageSpec, ports::ImageService as _};
use prost::Message as _;
use rustix::process::Signal;
use serde_json::Value;
use tonic::Code;

use crate::{
    between::before,
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, program, run},
    relay::{connect, embedded, in_runtime, pull, request},
    scripted::{self, Runtime, Script},
    testbed::{scratch, wait_until},
    wire::{ImageServiceClient, v1},
};

/// What is unused goes as soon as it is seen: the tests wait out neither an age nor a lease.
const EAGER: &str = "imageMinimumGCAge: 1ms\ngc: {enabled: false, leaseFor: 0s}\n";
const FIRST: &str = "reg.test/first:v1";
const SECOND: &str = "reg.test/second:v1";

/// A daemon over a runtime that has two images, both seen, unused.
struct Scene {
    runtime: Runtime,
    daemon: Daemon,
    folder: tempfile::TempDir,
}

impl Scene {
    fn start() -> Self {
        let folder = scratch();
        let images = vec![scripted::image(FIRST, 3000), scripted::image(SECOND, 2000)];
        let offered = [("reg.test/third:v1".to_owned(), scripted::image("reg.test/third:v1", 1000))].into();
        let runtime = Runtime::start(folder.path(), Script { images, offered, ..Script::default() });
        let daemon = before(folder.path(), &runtime.endpoint(), "", EAGER);
        let scene = Self { runtime, daemon, folder };
        wait_until("the images", || scene.listed().len() == 2);
        scene
    }

    fn listed(&self) -> Vec<Value> {
        let listed = self.daemon.run(["ls", "-o", "json"]);
        if listed.code == 0 { listed.json()["images"].as_array().unwrap().clone() } else { Vec::new() }
    }

    fn collect(&self) -> Value {
        self.daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json()
    }

    /// The removals that the runtime was asked for.
    fn removals(&self) -> Vec<String> {
        self.runtime.with(|script| {
            script.calls.iter().filter_map(|call| Some(call.strip_prefix("remove ")?.to_owned())).collect()
        })
    }

    /// Files below the state that keep what was pulled for whom.
    fn records(&self) -> BTreeSet<String> {
        let mut folders = vec![self.folder.path().join("state")];
        let mut found = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else if entry.path().to_str().unwrap().contains("pulled") {
                    found.insert(entry.path().display().to_string());
                }
            }
        }
        found
    }
}

#[test]
fn an_image_that_is_used_after_the_plan_is_not_removed() {
    let scene = Scene::start();
    // The container is not there when the images are chosen, and there when they are to go.
    scene.runtime.with(|script| script.soon = vec![scripted::container("web", FIRST)]);
    let done = scene.collect();
    assert_eq!(scene.removals(), [scripted::id_of(SECOND)], "{done:#}");
    let left = scene.listed();
    assert_eq!((left.len(), &left[0]["inUseBy"][0]), (1, &"default/web/web".into()), "{left:#?}");
}

#[test]
fn an_image_that_the_runtime_refuses_to_remove_is_told_and_the_next_one_goes() {
    let scene = Scene::start();
    scene.runtime.with(|script| script.refused.insert(scripted::id_of(FIRST)));
    let done = scene.collect();
    let removals: BTreeSet<String> = scene.removals().into_iter().collect();
    assert_eq!(removals, [FIRST, SECOND].map(scripted::id_of).into(), "{done:#}");
    let row = |name: &str| {
        let rows = done["images"].as_array().unwrap();
        rows.iter().find(|row| row["names"][0] == name).cloned().unwrap_or_else(|| panic!("{done:#}"))
    };
    assert_eq!((&row(FIRST)["verdict"], &row(FIRST)["code"]), (&"keep".into(), &"refused".into()), "{done:#}");
    assert_eq!(row(FIRST)["reason"], "the runtime refused to remove it: the image is in use by a container");
    assert_eq!(row(FIRST)["inputs"]["error"], "the image is in use by a container");
    assert_eq!((&row(SECOND)["verdict"], &done["claimed"]), (&"removed".into(), &2000.into()), "{done:#}");
    let left = scene.listed();
    assert_eq!((left.len(), &left[0]["names"][0]), (1, &FIRST.into()), "{left:#?}");
}

#[test]
fn a_runtime_that_lists_nothing_after_a_restart_loses_nothing() {
    let scene = Scene::start();
    scene.daemon.run(["pull", "reg.test/third:v1"]).ok();
    let records = scene.records();
    assert!(scene.listed().len() == 3 && !records.is_empty(), "{records:?}");
    scene.runtime.with(|script| {
        script.containers = vec![scripted::container("web", FIRST)];
        script.is_blank = true;
    });
    let outcome = scene.daemon.run(["gc", "--all-unused", "--now"]);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    assert_eq!(scene.removals(), Vec::<String>::new());
    scene.runtime.with(|script| script.is_blank = false);
    wait_until("the images", || scene.listed().len() == 3);
    assert_eq!(scene.records(), records, "who may use them is known from before");
}

#[test]
fn a_hundred_callers_share_one_pull_and_one_that_goes_takes_nothing_along() {
    const CALLERS: usize = 100;
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("many", 300_000);
    let name = registry.put("many:v1", &image);
    let held = registry.hold("many", &image.layers[0].digest);
    let daemon = embedded(folder.path());
    let clients = tokio::runtime::Runtime::new().unwrap();
    let client = clients.block_on(connect(&daemon));
    let mut callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (client, asked) = (client.clone(), request(&name));
            clients.spawn(async move { pull(&client, &asked).await })
        })
        .collect();
    let shared_by = || daemon.run(["status", "-o", "json"]).json()["pulls"][0]["askers"].clone();
    wait_until("all callers", || shared_by() == CALLERS);
    callers.remove(0).abort();
    wait_until("the others", || shared_by() == CALLERS - 1);
    drop(held);
    for caller in callers {
        assert_eq!(clients.block_on(caller).unwrap().unwrap(), image.id());
    }
    for blob in image.layers.iter().chain([&image.config]) {
        let asked = registry.requests().iter().filter(|asked| asked.ends_with(&blob.digest)).count();
        assert_eq!(asked, 1);
    }
}

#[test]
fn removals_and_pulls_of_one_image_at_once_fail_neither_and_leave_no_phantom() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("contested", 50_000);
    let name = registry.put("contested:v1", &image);
    let daemon = embedded(folder.path());
    let clients = tokio::runtime::Runtime::new().unwrap();
    let client = clients.block_on(connect(&daemon));
    // Removed while it is on its way: there was nothing yet, and then it comes.
    let held = registry.hold("contested", &image.layers[0].digest);
    let pulling = clients.spawn({
        let (client, asked) = (client.clone(), request(&name));
        async move { pull(&client, &asked).await }
    });
    held.until_asked();
    clients.block_on(client.remove(&ImageSpec::new(&name))).unwrap();
    drop(held);
    assert_eq!(clients.block_on(pulling).unwrap().unwrap(), image.id());
    clients.block_on(async {
        assert!(client.status(&ImageSpec::new(&name)).await.unwrap().is_some());
        for _ in 0..10 {
            let (asked, spec) = (request(&name), ImageSpec::new(&name));
            let (pulled, removed, again) =
                futures_util::join!(pull(&client, &asked), client.remove(&spec), client.remove(&spec));
            assert_eq!(pulled.unwrap(), image.id());
            removed.unwrap();
            again.unwrap();
            // Whichever came last: all calls see the same.
            let found = client.status(&spec).await.unwrap().is_some();
            assert_eq!(client.list(None).await.unwrap().len(), usize::from(found));
        }
        pull(&client, &request(&name)).await.unwrap();
    });
    daemon.run(["verify"]).ok();
    clients.block_on(client.remove(&ImageSpec::new(&name))).unwrap();
    assert_eq!(daemon.run(["ls", "-q", "--all"]).ok(), "");
    assert!(daemon.stop(Signal::TERM).success());
    let layers = folder.path().join("store/layers");
    assert_eq!(std::fs::read_dir(layers).unwrap().count(), 0, "unneeded layers are left");
}

/// An answer of the socket to bytes that no client of ours would send: its status, and its messages.
pub(crate) async fn raw(daemon: &Daemon, path: &str, message: &[u8]) -> (String, Vec<u8>) {
    let socket = daemon.endpoint();
    let stream = tokio::net::UnixStream::connect(socket.strip_prefix("unix://").unwrap()).await.unwrap();
    let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.unwrap();
    let connection = tokio::spawn(connection);
    let head = [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..]].concat();
    let call = http::Request::post(format!("http://localhost/{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(http_body_util::Full::new(bytes::Bytes::from([&head, message].concat())))
        .unwrap();
    let answer = sender.send_request(call).await.unwrap();
    let at_once = answer.headers().get("grpc-status").cloned();
    let body = answer.into_body().collect().await.unwrap();
    let status = at_once.or_else(|| body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned()));
    connection.abort();
    (status.expect("an answer has a status").to_str().unwrap().to_owned(), body.to_bytes().to_vec())
}

pub(crate) async fn raw_client(daemon: &Daemon) -> ImageServiceClient {
    let channel = tonic::transport::Endpoint::new(daemon.endpoint()).unwrap().connect().await.unwrap();
    ImageServiceClient::new(channel)
}

/// A request of a later version of the interface.
#[derive(Clone, PartialEq, prost::Message)]
struct Later {
    #[prost(message, optional, tag = "1")]
    image: Option<v1::ImageSpec>,
    #[prost(string, repeated, tag = "77")]
    reasons: Vec<String>,
}

#[test]
fn odd_requests_have_the_codes_that_callers_know() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("here", 1000);
    let name = registry.put("here:v1", &image);
    let daemon = embedded(folder.path());
    in_runtime(async {
        pull(&connect(&daemon).await, &request(&name)).await.unwrap();
        let mut client = raw_client(&daemon).await;
        let nobody = || v1::ImageSpec::default();
        let asked = |image| v1::ImageStatusRequest { image, verbose: false };
        for none in [None, Some(nobody())] {
            let status = client.image_status(asked(none.clone())).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            let removed = client.remove_image(v1::RemoveImageRequest { image: none.clone() }).await.unwrap_err();
            assert_eq!((removed.code(), removed.message()), (Code::InvalidArgument, "no image specified"));
            let pulled = v1::PullImageRequest { image: none.clone(), ..v1::PullImageRequest::default() };
            assert_eq!(client.pull_image(pulled).await.unwrap_err().code(), Code::InvalidArgument);
            for filter in [None, Some(v1::ImageFilter { image: none.clone() })] {
                let listed = client.list_images(v1::ListImagesRequest { filter }).await.unwrap().into_inner();
                assert_eq!(listed.images.len(), 1, "everything is meant");
            }
        }
        let spec = v1::ImageSpec { image: name.clone(), ..v1::ImageSpec::default() };
        let later = Later { image: Some(spec), reasons: vec!["new".into(); 1000] }.encode_to_vec();
        let (status, message) = raw(&daemon, "runtime.v1.ImageService/ImageStatus", &later).await;
        let shown = v1::ImageStatusResponse::decode(&message[5..]).unwrap();
        assert_eq!(
            (status.as_str(), shown.image.unwrap().id.as_str()),
            ("0", image.id()),
            "unknown fields are passed over"
        );
        let status = |code: Code| (code as i32).to_string();
        for (path, code) in [
            ("runtime.v1alpha2.ImageService/ListImages", Code::Unimplemented),
            ("runtime.v1.ImageService/NoSuchCall", Code::Unimplemented),
        ] {
            assert_eq!(raw(&daemon, path, &[]).await, (status(code), Vec::new()), "{path}");
        }
        let (refused, _) = raw(&daemon, "runtime.v1.ImageService/ImageStatus", &vec![0; 17 << 20]).await;
        assert_eq!(refused, status(Code::ResourceExhausted), "longer than any message may be");
        let (garbage, _) = raw(&daemon, "runtime.v1.ImageService/ImageStatus", &[0xff; 64]).await;
        assert_eq!(garbage, status(Code::Internal), "as grpc-go says of what it cannot read");
    });
}

#[test]
fn ten_thousand_images_come_in_one_list_or_in_a_stream_of_small_messages() {
    const COUNT: usize = 10_000;
    let folder = scratch();
    let long = "repository".repeat(40);
    let images = (0..COUNT).map(|number| scripted::image(&format!("reg.test/{long}/{number}:v1"), 1)).collect();
    let runtime = Runtime::start(folder.path(), Script { images, ..Script::default() });
    let daemon = before(folder.path(), &runtime.endpoint(), "", EAGER);
    in_runtime(async {
        assert_eq!(connect(&daemon).await.list(None).await.unwrap().len(), COUNT, "as a kubelet asks");
        // A client that left the limit of its stack at 4 MiB gets an error from its stack, and may request a stream.
        let mut client = raw_client(&daemon).await;
        let refused = client.list_images(v1::ListImagesRequest::default()).await.unwrap_err();
        assert!(matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted), "{refused}");
        let mut stream = client.stream_images(v1::StreamImagesRequest::default()).await.unwrap().into_inner();
        let mut streamed = BTreeSet::new();
        while let Some(message) = stream.message().await.unwrap() {
            assert!(!message.images.is_empty());
            streamed.extend(message.images.into_iter().map(|image| image.id));
        }
        assert_eq!(streamed.len(), COUNT);
    });
}

#[test]
fn a_place_that_is_none_for_a_socket_is_refused_and_left_as_it_is() {
    let folder = scratch();
    let serve = |socket: &Path| {
        let mut command = program();
        command.arg("serve").arg("--socket").arg(socket).arg("--store").arg(folder.path().join("store"));
        run(&mut command)
    };
    let deep = folder.path().join("d".repeat(108));
    assert_eq!(serve(&deep).code, 1);
    assert!(!deep.exists());
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    serve(&file).refused(&["file"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    serve(&link).refused(&["link"]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn an_image_in_use_goes_only_where_that_is_wanted() {
    for remove_in_use in [false, true] {
        let folder = scratch();
        let script = Script {
            images: vec![scripted::image(FIRST, 3000), scripted::image(SECOND, 2000)],
            containers: vec![scripted::container("web", FIRST)],
            ..Script::default()
        };
        let runtime = Runtime::start(folder.path(), script);
        let settings = format!("{EAGER}cri: {{removeInUse: {remove_in_use}}}\n");
        let daemon = before(folder.path(), &runtime.endpoint(), "", &settings);
        in_runtime(async {
            let client = connect(&daemon).await;
            let removed = client.remove(&ImageSpec::new(FIRST)).await;
            if remove_in_use {
                removed.unwrap();
            } else {
                let refused = removed.unwrap_err();
                assert_eq!(refused.kind(), RuntimeErrorKind::InUse);
                assert!(refused.to_string().contains("default/web/web"), "{refused}");
            }
            assert_eq!(client.status(&ImageSpec::new(FIRST)).await.unwrap().is_none(), remove_in_use);
            client.remove(&ImageSpec::new(SECOND)).await.unwrap();
        });
        assert_eq!(runtime.with(|script| script.images.len()), usize::from(!remove_in_use));
    }
}

/// Where each case of the catalogue is proved: its id, the file, the test.
const INSTANCES: &[(&str, &str, &str)] = &[
    ("B102", include_str!("cases.rs"), "an_image_that_is_used_after_the_plan_is_not_removed"),
    ("B103", include_str!("cases.rs"), "an_image_that_the_runtime_refuses_to_remove_is_told_and_the_next_one_goes"),
    ("B104", include_str!("cases.rs"), "a_runtime_that_lists_nothing_after_a_restart_loses_nothing"),
    ("B105", include_str!("reclaim.rs"), "a_threshold_out_of_reach_is_one_event_and_takes_no_image_that_was_just_used"),
    ("B106", include_str!("critest.rs"), "public_image_should_timeout_if_requested"),
    ("B106", include_str!("relay.rs"), "a_pull_ends_when_its_last_caller_hangs_up"),
    ("B107", include_str!("cases.rs"), "a_hundred_callers_share_one_pull_and_one_that_goes_takes_nothing_along"),
    ("B107", include_str!("relay.rs"), "fifty_callers_of_one_image_of_containerd_fetch_each_blob_of_it_once"),
    ("B108", include_str!("cases.rs"), "removals_and_pulls_of_one_image_at_once_fail_neither_and_leave_no_phantom"),
    ("B108", include_str!("critest.rs"), "should_not_fail_on_simultaneous_remove_image_calls"),
    ("B109", include_str!("cases.rs"), "odd_requests_have_the_codes_that_callers_know"),
    ("B109", include_str!("peers.rs"), "hostile_clients_keep_nobody_from_being_served_and_leave_nothing_behind"),
    ("B110", include_str!("cases.rs"), "ten_thousand_images_come_in_one_list_or_in_a_stream_of_small_messages"),
    ("B111", include_str!("cases.rs"), "a_place_that_is_none_for_a_socket_is_refused_and_left_as_it_is"),
    ("B111", include_str!("socket.rs"), "the_socket_of_a_live_daemon_is_not_taken_and_that_of_a_dead_one_is"),
    // A runtime that lies, hangs, restarts or answers garbage.
    ("TM9", include_str!("peers/runtime.rs"), "a_runtime_gone_bad_is_told_of_and_taken_back_once_it_is_sane"),
    ("TM9", include_str!("peers/runtime.rs"), "a_pull_from_a_runtime_that_dies_fails_and_the_next_one_works"),
    ("TM9", include_str!("between.rs"), "a_runtime_that_answers_and_does_nothing_loses_its_pull_and_no_other_call"),
    ("TM9", include_str!("between.rs"), "a_runtime_that_answers_nothing_any_more_loses_its_pulls"),
];

#[test]
fn every_case_between_a_kubelet_and_a_runtime_has_an_instance() {
    for (id, source, test) in INSTANCES {
        assert!(source.contains(&format!("#[test]\nfn {test}() {{")), "{id}: there is no test `{test}` any more");
    }
    let wanted = (102..=111).map(|number| format!("B{number}")).chain(["TM9".to_owned()]);
    let missing: Vec<String> = wanted.filter(|id| INSTANCES.iter().all(|(proved, ..)| proved != id)).collect();
    assert!(missing.is_empty(), "no instance of {missing:?}");
}

#[test]
fn the_handler_of_a_pod_reaches_the_runtime_and_what_it_uses_is_known() {
    let scene = Scene::start();
    let spec = |handler: &str| v1::ImageSpec {
        image: "reg.test/third:v1".into(),
        runtime_handler: handler.into(),
        ..v1::ImageSpec::default()
    };
    let metadata = v1::PodSandboxMetadata { name: "web".into(), uid: "1".into(), namespace: "shop".into(), attempt: 0 };
    let annotations = [("io.containerd.cri.runtime-handler".to_owned(), "gvisor".to_owned())].into();
    let sandbox = v1::PodSandboxConfig { metadata: Some(metadata), annotations, ..v1::PodSandboxConfig::default() }
        .encode_to_vec();
    in_runtime(async {
        let mut client = raw_client(&scene.daemon).await;
        for (handler, sandbox_config) in [("kata", None), ("", Some(sandbox.clone())), ("kata", Some(sandbox))] {
            let image = Some(spec(handler));
            let asked = v1::PullImageRequest { image, sandbox_config, ..v1::PullImageRequest::default() };
            client.pull_image(asked).await.unwrap();
        }
    });
    let shown = scene.runtime.with(|script| script.calls.clone());
    assert_eq!(shown, ["kata", "gvisor", "kata"].map(|handler| format!("pull reg.test/third:v1 for {handler:?}")));
    // The runtime keeps one store for all: what it lists without a handler is what was handed out for one.
    let third = scripted::id_of("reg.test/third:v1");
    let listed = scene.listed();
    let row = listed.iter().find(|row| row["id"] == third.as_str()).unwrap();
    assert!(row["lastUsed"].is_string(), "{row:#}");
}
