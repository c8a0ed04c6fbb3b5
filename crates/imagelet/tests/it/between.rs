//! Between a kubelet and a runtime: whose limits hold for a pull, and when one that hangs is given up.

use std::{path::Path, time::Duration};

use imagelet_core::{
    error::{ErrorClass, RuntimeError, RuntimeErrorKind, Stage},
    image::ImageSpec,
    ports::ImageService as _,
};
use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    plugins::metrics,
    ports::Port,
    program::Daemon,
    relay::{connect, in_runtime, pull, request},
    scripted::{self, Runtime, Script},
    testbed::{Containerd, Registry, scratch, wait_until},
};

/// A daemon over its own store, with these settings.
fn daemon(folder: &Path, settings: &str) -> Daemon {
    let config = folder.join("config.yaml");
    let head = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {enabled: false}\n";
    std::fs::write(&config, format!("{head}{settings}")).unwrap();
    let store = folder.join("store");
    Daemon::start(folder, ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()])
}

/// A daemon over a runtime at this endpoint, with these settings of `imageService.cri`.
pub(crate) fn before(folder: &Path, endpoint: &str, cri: &str, settings: &str) -> Daemon {
    let config = folder.join("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n{settings}\
         imageService: {{cri: {{endpoint: '{endpoint}', {cri}}}}}\nstore: {{directory: '{}'}}\n",
        folder.join("state").display()
    );
    std::fs::write(&config, text).unwrap();
    Daemon::start(folder, ["--config", config.to_str().unwrap()])
}

fn pulls(daemon: &Daemon) -> Vec<Value> {
    daemon.run(["status", "-o", "json"]).json()["pulls"].as_array().unwrap().clone()
}

#[test]
fn pulls_of_a_kubelet_wait_for_no_limit_of_ours_unless_that_is_wanted() {
    const PULLS: usize = 12;
    const LIMITS: &str = "serializeImagePulls: true\nregistryPullQPS: 1\nregistryBurst: 1\n";
    for (setting, side_by_side) in [("", PULLS), ("cri: {limitPulls: true}\n", 1)] {
        let (folder, registry) = (scratch(), FakeRegistry::start());
        let images: Vec<Image> = (0..PULLS).map(|number| Image::marked(&format!("{number}"), 50_000)).collect();
        let names: Vec<String> =
            images.iter().enumerate().map(|(number, image)| registry.put(&format!("a{number}:v1"), image)).collect();
        let held: Vec<_> = images
            .iter()
            .enumerate()
            .map(|(number, image)| registry.hold(&format!("a{number}"), &image.layers[0].digest))
            .collect();
        let daemon = daemon(folder.path(), &format!("{LIMITS}{setting}"));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = runtime.block_on(connect(&daemon));
        let callers: Vec<_> = names
            .iter()
            .map(|name| {
                let (client, asked) = (client.clone(), request(name));
                runtime.spawn(async move { pull(&client, &asked).await })
            })
            .collect();
        wait_until("all callers", || pulls(&daemon).len() == PULLS);
        let running = || pulls(&daemon).iter().filter(|pull| pull["state"] == "running").count();
        wait_until("those that may run", || running() == side_by_side);
        // A person's pull keeps to the limits, and finds its slot free where the kubelet takes none.
        let other = registry.put("other:v1", &Image::marked("other", 1000));
        if setting.is_empty() {
            daemon.run(["pull", &other]).ok();
        }
        drop(held);
        if setting.is_empty() {
            for (caller, image) in callers.into_iter().zip(&images) {
                assert_eq!(runtime.block_on(caller).unwrap().unwrap(), image.id());
            }
        } else {
            callers.iter().for_each(tokio::task::JoinHandle::abort);
        }
    }
}

fn events(daemon: &Daemon) -> Vec<Value> {
    let told = daemon.run(["events", "-o", "json"]).ok();
    told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A daemon over a scripted runtime that hangs in every pull but that of one image.
struct Hanging {
    runtime: Runtime,
    daemon: Daemon,
    clients: tokio::runtime::Runtime,
    metrics: Port,
    _folder: tempfile::TempDir,
}

impl Hanging {
    fn start() -> Self {
        let (folder, metrics) = (scratch(), Port::choose());
        let offered = [("reg.test/next:v1".to_owned(), scripted::image("reg.test/next:v1", 20))].into();
        let runtime = Runtime::start(folder.path(), Script { offered, ..Script::default() });
        let settings =
            format!("gc: {{enabled: false}}\nruntimeRequestTimeout: 1s\nhttp: {{address: '127.0.0.1:{metrics}'}}\n");
        let daemon = before(folder.path(), &runtime.endpoint(), "pullStallTimeout: 2s", &settings);
        let clients = tokio::runtime::Runtime::new().unwrap();
        Self { runtime, daemon, clients, metrics, _folder: folder }
    }

    /// Two callers of one pull, which the runtime has begun.
    fn two_callers(&self) -> Vec<tokio::task::JoinHandle<Result<String, RuntimeError>>> {
        let client = self.clients.block_on(connect(&self.daemon));
        let call = || {
            let client = client.clone();
            self.clients.spawn(async move { pull(&client, &request("reg.test/hangs:v1")).await })
        };
        let callers = vec![call(), call()];
        wait_until("both callers", || pulls(&self.daemon).first().is_some_and(|pull| pull["askers"] == 2));
        wait_until("the pull of the runtime", || self.runtime.with(|script| !script.calls.is_empty()));
        callers
    }

    /// All callers are told, the event and the counter name the place, and nothing of the pull is left.
    fn is_given_up(
        &self,
        callers: Vec<tokio::task::JoinHandle<Result<String, RuntimeError>>>,
        class: ErrorClass,
        words: &str,
    ) {
        for caller in callers {
            let error = self.clients.block_on(caller).unwrap().unwrap_err();
            assert_eq!(error.kind(), RuntimeErrorKind::TimedOut, "{error}");
            let text = error.to_string();
            assert!(text.contains(words) && text.contains("reg.test/hangs:v1"), "{text}");
        }
        let told = events(&self.daemon);
        let failed = told.iter().filter(|event| event["reason"] == "Failed").collect::<Vec<_>>();
        assert_eq!(failed.len(), 2, "each caller has its own: {told:?}");
        assert_eq!((&failed[0]["class"], &failed[0]["hop"]), (&class.name().into(), &Stage::Runtime.name().into()));
        let counted = format!("imagelet_pull_failures_total{{class=\"{class}\",hop=\"runtime\"}} 2");
        let metrics = metrics(&self.metrics.address());
        assert!(metrics.lines().any(|line| line == counted), "{metrics}");
        assert_eq!(pulls(&self.daemon), Vec::<Value>::new());
    }

    /// The next pull works, in the same process.
    fn works(&self) {
        let pulled =
            self.clients.block_on(async { pull(&connect(&self.daemon).await, &request("reg.test/next:v1")).await });
        assert_eq!(pulled.unwrap(), scripted::id_of("reg.test/next:v1"));
    }
}

#[test]
fn a_pull_and_a_removal_cost_the_runtime_no_more_calls_than_they_need() {
    const NAME: &str = "reg.test/next:v1";
    let scene = Hanging::start();
    let heard = |what: &str| scene.runtime.with(|script| script.methods.iter().any(|method| method == what));
    wait_until("the first pass", || heard("ListImages") && heard("ListContainers"));
    let methods = || scene.runtime.with(|script| std::mem::take(&mut script.methods));
    scene.clients.block_on(async {
        let client = connect(&scene.daemon).await;
        pull(&client, &request(NAME)).await.unwrap();
        methods();
        pull(&client, &request(NAME)).await.unwrap();
        // That it is no runtime that images are imported into is known for a minute.
        assert_eq!(methods(), ["PullImage", "ImageStatus"]);
        client.remove(&ImageSpec::new(NAME)).await.unwrap();
        let mut asked = methods();
        // Who uses it is asked for at once; what its records are called before, and whether it is gone afterwards.
        asked.sort_unstable();
        assert_eq!(
            asked,
            ["ImageStatus", "ImageStatus", "ImageStatus", "List", "ListContainers", "ListPodSandbox", "RemoveImage"]
        );
    });
}

#[test]
fn a_runtime_that_answers_and_does_nothing_loses_its_pull_and_no_other_call() {
    let scene = Hanging::start();
    let callers = scene.two_callers();
    scene.works();
    scene.is_given_up(callers, ErrorClass::TimedOut, "has written nothing for 2s");
    scene.works();
}

#[test]
fn a_runtime_that_answers_nothing_any_more_loses_its_pulls() {
    let scene = Hanging::start();
    let callers = scene.two_callers();
    // Whoever asks it anything waits for this.
    scene.runtime.with(|_| scene.is_given_up(callers, ErrorClass::RuntimeUnavailable, "has answered nothing for 2s"));
    scene.works();
}

#[test]
fn a_slow_pull_of_containerd_is_left_alone_and_one_that_stands_still_is_not() {
    let (folder, registry, other) = (scratch(), FakeRegistry::start(), Registry::start());
    let containerd = Containerd::start(folder.path(), &other);
    // Over the whole of it far longer than the time, and never still.
    let slow = Image::marked("slow", 1_500_000);
    let name = registry.put("slow:v1", &slow);
    registry.spoil("slow", &slow.layers[0].digest, |answer| answer.pause = Duration::from_secs(1));
    assert!(slow.layers[0].bytes.len() > 1_000_000, "it takes some twenty seconds");
    let still = Image::marked("still", 500_000);
    let hanging = registry.put("still:v1", &still);
    let daemon = before(folder.path(), &containerd.endpoint(), "pullStallTimeout: 10s", "gc: {enabled: false}\n");
    in_runtime(async {
        let client = connect(&daemon).await;
        assert_eq!(pull(&client, &request(&name)).await.unwrap(), slow.id());
        let held = registry.hold("still", &still.layers[0].digest);
        let error = pull(&client, &request(&hanging)).await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("has written nothing for 10s"), "{error}");
        drop(held);
        assert_eq!(pull(&client, &request(&hanging)).await.unwrap(), still.id());
    });
}
