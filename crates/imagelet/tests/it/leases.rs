//! Never the wrong one: images that were asked for stay until their containers are there, whatever happens meanwhile, and
//! those of a runtime beside the store stay while its containers do.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use imagelet_runtime::cri::Endpoint;
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    images::Image,
    program::{Daemon, program, run},
    testbed::{Containerd, Registry, scratch, wait_until},
    wire::pods::TestPods,
};

/// Pods that come and go at once.
const LANES: usize = 2;
/// Pods of each lane at most,
const ROUNDS_MAX: usize = 16;
/// and after this time no further one is begun: on a loaded machine a pod takes seconds.
const STORM_MAX: Duration = Duration::from_secs(25);

fn write_config(folder: &Path, lease_for: &str, more: &str) -> PathBuf {
    let path = folder.join("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\n\
         detection: {{period: 1s}}\ngc: {{enabled: false, leaseFor: {lease_for}}}\n{more}"
    );
    fs::write(&path, text).unwrap();
    path
}

fn write_pod(folder: &Path, pod: &str, image: &str) -> String {
    let path = folder.join(format!("{pod}.yaml"));
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: default, uid: uid-{pod}}}\nspec:\n  \
         containers:\n  - {{name: main, image: '{image}', imagePullPolicy: IfNotPresent}}\n"
    );
    fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

fn is_present(daemon: &Daemon, name: &str) -> bool {
    daemon.run(["inspect", "-q", name]).code == 0
}

fn decision<'a>(collected: &'a Value, name: &str) -> &'a Value {
    let rows = collected["images"].as_array().unwrap();
    let named = |row: &&Value| row["names"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    rows.iter().find(named).unwrap_or_else(|| panic!("`{name}` is not in {collected:#}"))
}

/// The end of the lease that keeps an image.
fn held_until(collected: &Value, name: &str) -> String {
    let row = decision(collected, name);
    assert_eq!((row["verdict"].as_str(), row["code"].as_str()), (Some("keep"), Some("awaited")), "{row:#}");
    let until = row["inputs"]["until"].as_str().unwrap_or_else(|| panic!("no end of the lease in {row:#}"));
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains(until)), "{row:#}");
    until.to_owned()
}

#[test]
fn an_image_that_a_pod_was_told_of_outlives_collections_and_a_crash_until_its_lease_ends() {
    let (registry, folder) = (Registry::start(), scratch());
    let push = |name: &str| registry.push(&format!("{name}:v1"), &Image::marked(name, 100));
    let (asked, ordered, by_hand) = (push("asked"), push("ordered"), push("by-hand"));
    let store = folder.path().join("store");
    let config = write_config(folder.path(), "1h", "");
    let arguments = ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let mut daemon = Daemon::start(folder.path(), arguments);
    for (pod, image) in [("web", &asked), ("job", &ordered)] {
        daemon.run(["ensure", "-f", &write_pod(folder.path(), pod, image)]).ok();
    }
    daemon.run(["pull", &by_hand]).ok();

    let plan = daemon.run(["gc", "--all-unused", "--now", "--dry-run", "-o", "json"]).json();
    let until = held_until(&plan, &asked);
    let done = daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
    assert_eq!(held_until(&done, &asked), until);
    assert!(!is_present(&daemon, &by_hand), "a person who pulls announces no container: {done:#}");
    let why = daemon.run(["why", &asked]).ok();
    assert!(why.contains(&format!("held until {until}")), "{why}");
    let why = daemon.run(["why", &asked, "-o", "json"]).json();
    assert_eq!(why["images"][0]["next"]["inputs"]["until"], until.as_str(), "{why:#}");

    // Who orders a removal has it, and learns that somebody may miss the image.
    let removed = run(daemon.command().args(["rm", &ordered, "-o", "json"]));
    assert!(removed.stderr.contains("warning") && removed.stderr.contains("held until"), "{}", removed.stderr);
    assert!(removed.json()["removed"][0]["heldUntil"].is_string());
    assert!(!is_present(&daemon, &ordered));

    daemon.part.kill();
    // A command that works on the store meanwhile knows of the lease, too.
    let command = ["--store", arguments[1], "gc", "--all-unused", "--now", "-o", "json"];
    held_until(&run(program().env("IMAGELET_CONFIG", &config).args(command)).json(), &asked);
    let daemon = Daemon::start(folder.path(), arguments);
    let done = daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
    held_until(&done, &asked);
    assert!(is_present(&daemon, &asked));

    write_config(folder.path(), "1s", "");
    daemon.part.signal(Signal::HUP);
    wait_until("the lease's end", || {
        daemon.run(["gc", "--all-unused", "--now"]).ok();
        !is_present(&daemon, &asked)
    });
}

#[test]
fn containers_of_a_runtime_beside_the_store_hold_its_images_and_its_silence_holds_them_all() {
    let (registry, folder) = (Registry::start(), scratch());
    registry.push("pause:3.9", &Image::busybox("pause"));
    let push = |name: &str| registry.push(&format!("{name}:v1"), &Image::busybox(name));
    let (running, exited, spare, late) = (push("running"), push("exited"), push("spare"), push("late"));
    let mut containerd = Containerd::start(folder.path(), &registry);
    let more = format!("store: {{runtimeEndpoint: '{}'}}\n", containerd.endpoint());
    let config = write_config(folder.path(), "0s", &more);
    let store = folder.path().join("store");
    let daemon =
        Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()]);
    for image in [&running, &exited] {
        run(program().args(["--endpoint", &containerd.endpoint(), "pull", "-q", image])).ok();
    }
    for image in [&running, &exited, &spare] {
        daemon.run(["pull", image]).ok();
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        let sandbox = pods.run_sandbox("web").await.unwrap();
        pods.run_container(&sandbox, &running, &["/bin/sleep", "3600"]).await.unwrap();
        let other = pods.run_sandbox("job").await.unwrap();
        let stopped = pods.run_container(&other, &exited, &["/bin/sleep", "3600"]).await.unwrap();
        pods.stop_container(&stopped).await.unwrap();

        let done = daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
        for (image, user) in [(&running, "default/web/main"), (&exited, "default/job/main")] {
            let row = decision(&done, image);
            assert_eq!(row["code"], "in_use", "{row:#}");
            assert_eq!(row["inputs"]["by"], serde_json::json!([user]), "{row:#}");
        }
        assert_eq!(decision(&done, &spare)["verdict"], "removed", "{done:#}");
        daemon.run(["rm", &running]).refused(&["in use by default/web/main"]);
        pods.remove_sandbox(&other).await.unwrap();
        pods.remove_sandbox(&sandbox).await.unwrap();
    });

    containerd.kill();
    // Nobody needs the runtime for that.
    daemon.run(["pull", &late]).ok();
    let refused = daemon.run(["gc", "--all-unused", "--now"]).refused(&["could not ask", &containerd.endpoint()]);
    assert!(refused.contains("which images of the store its containers use"), "{refused}");
    let listed = daemon.run(["ls", "-o", "json"]).json();
    for image in [&running, &exited, &late] {
        assert!(is_present(&daemon, image), "`{image}` went although nobody could tell who uses it");
        let users = decision(&listed, image)["inUseBy"][0].as_str().unwrap();
        assert!(users.contains("the runtime does not answer"), "{users}");
    }
    let shown = daemon.run(["ls"]);
    assert!(shown.stderr.contains("warning: which images are in use is unknown"), "{shown:?}");
    assert!(shown.ok().lines().skip(1).all(|row| row.ends_with("unknown")), "each image");
    daemon.run(["rm", &late]).refused(&["could not ask"]);
}

/// The same numbers from the same seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Pods that come and go, one after another; answers how many there were.
async fn lane(number: usize, images: &[String], daemon: &Daemon, containerd: &Containerd, folder: &Path) -> usize {
    let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
    let pods = TestPods::connect(&endpoint, folder).await.unwrap();
    let mut random = Random(20_261_122 + number as u64);
    let began = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS_MAX && began.elapsed() < STORM_MAX {
        let pod = format!("pod-{number}-{rounds}");
        let image = &images[usize::try_from(random.below(images.len() as u64)).unwrap()];
        let stays = |when: &str| assert!(is_present(daemon, image), "`{image}` of {pod} went {when}");
        daemon.run(["ensure", "-f", &write_pod(folder, &pod, image)]).ok();
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        stays("between the answer and the container");
        let sandbox = pods.run_sandbox(&pod).await.unwrap();
        let created = pods.run_container(&sandbox, image, &["/bin/sleep", "3600"]).await;
        let container =
            created.unwrap_or_else(|error| panic!("no container of `{image}` for {pod}: {}", error.message()));
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        stays("while its container ran");
        if random.below(2) == 0 {
            pods.stop_container(&container).await.unwrap();
            tokio::time::sleep(Duration::from_millis(random.below(400))).await;
            stays("while its exited container was there");
        }
        pods.remove_container(&container).await.unwrap();
        pods.remove_sandbox(&sandbox).await.unwrap();
        rounds += 1;
    }
    rounds
}

#[test]
fn pods_that_come_and_go_under_collections_without_end_never_miss_their_images() {
    let (registry, folder) = (Registry::start(), scratch());
    let pause = registry.push("pause:3.9", &Image::busybox("pause"));
    let push = |name: String| registry.push(&format!("{name}:v1"), &Image::busybox(&name));
    let anchor = push("anchor".into());
    let shared = push("shared".into());
    // Two of its own for each lane: what goes wrongly is not pulled again by somebody else meanwhile.
    let own = |lane: usize| [push(format!("own-{lane}-0")), push(format!("own-{lane}-1")), shared.clone()];
    let images: Vec<[String; 3]> = (0..LANES).map(own).collect();
    let containerd = Containerd::start(folder.path(), &registry);
    let config = write_config(folder.path(), "1h", "");
    let daemon = Daemon::start(
        folder.path(),
        ["--runtime-endpoint", &containerd.endpoint(), "--config", config.to_str().unwrap()],
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
    let pods = runtime.block_on(TestPods::connect(&endpoint, folder.path())).unwrap();
    daemon.run(["pull", &pause]).ok();
    daemon.run(["pin", &pause]).ok();
    daemon.run(["ensure", "-f", &write_pod(folder.path(), "anchor", &anchor)]).ok();
    let sandbox = runtime.block_on(async {
        let sandbox = pods.run_sandbox("anchor").await.unwrap();
        pods.run_container(&sandbox, &anchor, &["/bin/sleep", "3600"]).await.unwrap();
        sandbox
    });

    let at_work = AtomicUsize::new(LANES);
    let (mut collections, mut removed) = (0, 0);
    let rounds: usize = thread::scope(|scope| {
        let lanes: Vec<_> = images
            .iter()
            .enumerate()
            .map(|(number, images)| {
                let (daemon, containerd, folder, at_work) = (&daemon, &containerd, folder.path(), &at_work);
                scope.spawn(move || {
                    let ends = Ends(at_work);
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let rounds = runtime.block_on(lane(number, images, daemon, containerd, folder));
                    drop(ends);
                    rounds
                })
            })
            .collect();
        while at_work.load(Ordering::SeqCst) > 0 {
            let done = daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
            let rows = done["images"].as_array().unwrap();
            removed += rows.iter().filter(|row| row["verdict"] == "removed").count();
            collections += 1;
        }
        lanes.into_iter().map(|lane| lane.join().unwrap()).sum()
    });
    assert!(rounds >= 2 * LANES && collections > rounds, "{rounds} pods, {collections} collections");
    assert!(removed > 0, "nothing ever went in {collections} collections beside {rounds} pods");
    assert!(is_present(&daemon, &anchor), "the image of a container that ran all the time went");
    // And what nobody needs any more does go. Containers that came and went between two looks left their leases behind.
    write_config(folder.path(), "1s", "");
    daemon.part.signal(Signal::HUP);
    wait_until("the images that no container uses to go", || {
        daemon.run(["gc", "--all-unused", "--now"]).ok();
        !images.iter().flatten().any(|image| is_present(&daemon, image))
    });
    runtime.block_on(pods.remove_sandbox(&sandbox)).unwrap();
}

/// Tells the end of a lane, also where it panics.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
