//! What happens on a node, as `imagelet events` tells it: kept, followed, and to readers that are too slow.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use imagelet_core::{
    image::ImageSpec,
    ports::{ImageService as _, PullRequest, no_progress},
};
use imagelet_runtime::cri::RemoteImageService;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, with_store, write_store_config},
    testbed::{Part, scratch, wait_until},
};

fn daemon(folder: &Path) -> Daemon {
    let config = write_store_config(folder, "");
    Daemon::start(folder, ["--config", &config, "--store", folder.join("store").to_str().unwrap()])
}

fn lines(text: &str) -> Vec<Value> {
    // The last line may be half written.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// `imagelet events -f -o json`, into a file.
struct Follower {
    part: Part,
    file: PathBuf,
}

impl Follower {
    fn start(daemon: &Daemon, folder: &Path, name: &str) -> Self {
        let file = folder.join(name);
        let part = Part::start(daemon.command().args(["events", "-f", "-o", "json"]), "of imagelet", file.clone());
        Self { part, file }
    }

    fn heard(&self) -> Vec<Value> {
        lines(&std::fs::read_to_string(&self.file).unwrap())
    }

    fn heard_of(&self, reason: &str) -> bool {
        self.heard().iter().any(|line| line["reason"] == reason)
    }
}

#[test]
fn events_are_kept_for_whoever_asks_later() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("app:v1", &Image::marked("app", 1000));
    let daemon = daemon(folder.path());
    assert_eq!(daemon.run(["events", "-o", "json"]).ok(), "");
    daemon.run(["pull", &name]).ok();
    daemon.run(["pull", "127.0.0.1:1/away:v1"]).refused(&[]);
    let told = lines(&daemon.run(["events", "-o", "json"]).ok());
    let of =
        |line: &Value| [&line["type"], &line["kind"], &line["reason"]].map(|word| word.as_str().unwrap().to_owned());
    assert_eq!(
        told.iter().map(of).collect::<Vec<_>>(),
        [
            ["event", "Normal", "Pulling"],
            ["event", "Normal", "Pulled"],
            ["event", "Normal", "Pulling"],
            ["event", "Warning", "Failed"]
        ]
    );
    assert!(told[0]["message"].as_str().unwrap().contains(&name), "{told:?}");
    assert_eq!((&told[3]["class"], &told[3]["hop"]), (&"connection-refused".into(), &"connect".into()));
    let table = daemon.run(["events"]).ok();
    assert!(table.starts_with("TIME ") && table.lines().count() == 5, "{table}");
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    let told = lines(&daemon.run(["events", "-o", "json"]).ok());
    let collected = told.last().unwrap();
    assert_eq!(collected["reason"], "ImagesCollected");
    let message = collected["message"].as_str().unwrap();
    assert!(message.starts_with("Removed 1 image (") && message.contains(&format!("{name} (")), "{message}");
    let store = folder.path().join("other");
    with_store(&store, ["pin", "x"]).ok();
    with_store(&store, ["events"]).refused(&["hint: ", "imagelet serve"]);
}

#[test]
fn a_follower_hears_how_far_a_pull_is_until_it_is_over() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("slow", 500_000);
    let name = registry.put("slow:v1", &image);
    let layer = &image.layers[0];
    let held = registry.hold("slow", &layer.digest);
    let daemon = daemon(folder.path());
    let followers = ["one", "other"].map(|file| Follower::start(&daemon, folder.path(), file));
    let mut pull = daemon.command().args(["pull", "-q", &name]).stdout(Stdio::null()).spawn().unwrap();
    for follower in &followers {
        wait_until("a pull that fetches", || {
            let heard = follower.heard();
            let fetching = heard.iter().find(|line| line["type"] == "progress" && line["phase"] == "fetching");
            fetching.is_some_and(|line| {
                assert_eq!(line["image"], name.as_str());
                assert_eq!(line["bytesTotal"], layer.bytes.len());
                assert_eq!(
                    (&line["layers"][0]["digest"], &line["layers"][0]["size"]),
                    (&layer.digest.as_str().into(), &layer.bytes.len().into())
                );
                true
            })
        });
    }
    drop(held);
    assert!(pull.wait().unwrap().success());
    for follower in &followers {
        wait_until("the end of the pull", || {
            let heard = follower.heard();
            let done =
                heard.iter().rfind(|line| line["type"] == "progress").is_some_and(|line| line["phase"] == "done");
            done && follower.heard_of("Pulled")
        });
        let over = follower.heard().into_iter().rfind(|line| line["type"] == "progress").unwrap();
        assert_eq!(over["layers"][0]["state"], "done");
        assert_eq!(over["bytesReceived"], over["bytesTotal"]);
    }
    let mut followers = followers;
    assert!(daemon.stop(Signal::TERM).success());
    for follower in &mut followers {
        wait_until("the follower to end with its daemon", || follower.part.ended().is_some());
        assert_eq!(follower.part.ended().unwrap().code(), Some(1));
    }
}

#[test]
fn a_follower_that_does_not_read_loses_the_oldest_events_and_is_told() {
    /// More than are kept, wait for one reader, and fit into the sockets between. Whoever does not read for long is
    /// let go: many callers see to it that this takes a few seconds.
    const EVENTS: usize = 4_096;
    const CALLERS: usize = 16;
    let folder = scratch();
    let daemon = daemon(folder.path());
    let slow = Follower::start(&daemon, folder.path(), "slow");
    daemon.run(["pull", "127.0.0.1:1/first:v1"]).refused(&[]);
    wait_until("the follower", || slow.heard_of("Failed"));
    slow.part.signal(Signal::STOP);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let endpoint: imagelet_runtime::cri::Endpoint = daemon.endpoint().parse().unwrap();
        let images = RemoteImageService::connect(&endpoint, std::time::Duration::from_mins(1)).await.unwrap();
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS {
            let images = images.clone();
            // Names that are long fill the sockets sooner.
            let name = format!("127.0.0.1:1/{}/app-{caller}:v1", "x".repeat(180));
            callers.spawn(async move {
                let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
                for _ in 0..EVENTS / CALLERS {
                    images.pull(&request, no_progress()).await.unwrap_err();
                }
            });
        }
        callers.join_all().await;
    });
    // Whoever reads meanwhile is not held up.
    assert!(daemon.run(["events", "-o", "json"]).ok().lines().count() <= 1000);
    slow.part.signal(Signal::CONT);
    wait_until("what was missed", || slow.heard().iter().any(|line| line["type"] == "missed"));
    daemon.run(["pull", "127.0.0.1:1/last:v1"]).refused(&[]);
    wait_until("the last event", || {
        let heard = slow.heard();
        heard.iter().any(|line| line["message"].as_str().is_some_and(|text| text.contains("last:v1")))
    });
    let heard = slow.heard();
    let missed: u64 = heard.iter().filter_map(|line| line["count"].as_u64()).sum();
    let events = heard.iter().filter(|line| line["type"] == "event").count() as u64;
    assert!(missed > 0 && events < EVENTS as u64, "{missed} missed, {events} heard");
}
