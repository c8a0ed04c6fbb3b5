//! A node that a kubelet ran until now: what it pulled is adopted, what somebody else brought is not, and its folder stays
//! as it is.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::image::Digest;
use serde_json::Value;

use crate::{
    images::Image,
    program::{Daemon, program, run},
    testbed::{Containerd, Disk, Registry, scratch, wait_until, wait_until_within},
};

/// The folder of a kubelet, as the kubelet writes it.
struct Kubelet {
    root: PathBuf,
}

impl Kubelet {
    fn new(root: PathBuf) -> Self {
        for folder in ["pulling", "pulled"] {
            fs::create_dir_all(root.join("image_manager").join(folder)).unwrap();
        }
        Self { root }
    }

    fn place(&self, folder: &str, key: &str) -> PathBuf {
        self.root.join("image_manager").join(folder).join(format!("sha256-{}", Digest::of(key.as_bytes()).hex()))
    }

    fn record(id: &str) -> String {
        format!(
            "{{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
             \"lastUpdatedTime\":\"2026-01-02T02:04:05Z\",\"imageRef\":\"{id}\",\
             \"credentialMapping\":{{\"reg.example/app\":{{\"nodePodsAccessible\":true}}}}}}\n"
        )
    }

    fn pulled(&self, id: &str, content: &str) {
        fs::write(self.place("pulled", id), content).unwrap();
    }

    /// Each file and link with all that a change would show.
    fn state(&self) -> BTreeMap<PathBuf, (Vec<u8>, u32, i64, i64, u64)> {
        let folders = ["pulling", "pulled"].map(|folder| self.root.join("image_manager").join(folder));
        let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let seen = entries.map(|entry| {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = fs::read(&path).unwrap();
            (path, (content, meta.mode(), meta.mtime(), meta.mtime_nsec(), meta.ino()))
        });
        seen.collect()
    }
}

fn write_config(path: &Path, state: &Path, adopt_from: &str) -> String {
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\n\
         store: {{directory: {}}}\ndetection: {{period: 1s}}\n\
         gc: {{enabled: false, leaseFor: 0s, onlyOwned: true, adoptFrom: '{adopt_from}'}}\n",
        state.display()
    );
    fs::write(path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The origin of each image, by the last part of its first name.
fn by_name<'a>(document: &'a Value, field: &str) -> BTreeMap<String, &'a Value> {
    let rows = document["images"].as_array().unwrap().iter();
    rows.map(|row| (row["names"][0].as_str().unwrap().rsplit('/').next().unwrap().to_owned(), &row[field])).collect()
}

fn history(why: &Value) -> Vec<(&str, &str)> {
    let history = why["images"][0]["history"].as_array().unwrap().iter();
    history.map(|it| (it["what"].as_str().unwrap(), it["by"].as_str().unwrap())).collect()
}

#[test]
fn what_a_kubelet_pulled_is_adopted_and_may_go_and_what_was_found_stays() {
    let (disk, registry, folder) = (Disk::new(512), Registry::start(), scratch());
    let mut containerd = Containerd::start(disk.path(), &registry);
    let kubelet = Kubelet::new(folder.path().join("kubelet"));
    let names = ["good:v1", "broken:v1", "later:v1", "linked:v1", "other:v1", "begun:v1", "loaded:v1"];
    let images: BTreeMap<&str, String> =
        names.iter().map(|name| (*name, registry.push(name, &Image::busybox(name)))).collect();

    // Somebody else fills the runtime: here a command with a state of its own, which adopts nothing.
    let filling = write_config(&folder.path().join("filling.yaml"), &folder.path().join("filling"), "");
    let endpoint = containerd.endpoint();
    let fill = |arguments: &[&str]| {
        run(program().env("IMAGELET_CONFIG", &filling).arg("--endpoint").arg(&endpoint).args(arguments))
    };
    let id = |name: &str| fill(&["pull", "-q", &images[name]]).ok().trim().to_owned();
    let ids: BTreeMap<&str, String> = names.iter().map(|name| (*name, id(name))).collect();

    kubelet.pulled(&ids["good:v1"], &Kubelet::record(&ids["good:v1"]));
    kubelet.pulled(&ids["broken:v1"], &Kubelet::record(&ids["broken:v1"])[..60]);
    kubelet.pulled(&ids["later:v1"], &Kubelet::record(&ids["later:v1"]).replace("v1beta1", "v9"));
    symlink(kubelet.place("pulled", &ids["good:v1"]), kubelet.place("pulled", &ids["linked:v1"])).unwrap();
    kubelet.pulled(&ids["other:v1"], &Kubelet::record(&ids["good:v1"]));
    fs::write(kubelet.root.join("image_manager/pulled/README"), "of somebody else").unwrap();
    kubelet.pulled("sha256:absent", &Kubelet::record("sha256:absent"));
    let intent = format!(
        "{{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1alpha1\",\"image\":\"{}\"}}\n",
        images["begun:v1"]
    );
    fs::write(kubelet.place("pulling", &images["begun:v1"]), intent).unwrap();
    let before = kubelet.state();

    let config =
        write_config(&folder.path().join("config.yaml"), &folder.path().join("state"), kubelet.root.to_str().unwrap());
    let arguments = ["--runtime-endpoint", &endpoint, "--config", &config];
    let mut daemon = Daemon::start(folder.path(), arguments);
    let origins = |daemon: &Daemon| {
        let listed = daemon.run(["ls", "-o", "json"]).json();
        let origins = by_name(&listed, "origin");
        origins.into_iter().map(|(name, origin)| (name, origin.as_str().unwrap().to_owned())).collect::<Vec<_>>()
    };
    let expected = |adopted: &[&str]| {
        let mut all =
            names.map(|name| (name.to_owned(), if adopted.contains(&name) { "adopted" } else { "found" }.to_owned()));
        all.sort();
        all.to_vec()
    };
    let mut shown = Vec::new();
    wait_until("the kubelet's images to be adopted", || {
        shown = origins(&daemon);
        shown == expected(&["good:v1", "broken:v1", "later:v1"])
    });

    // The record dates an image; an unreadable one is reported and dates nothing.
    let by = format!("the kubelet in {}", kubelet.root.display());
    let why = daemon.run(["why", &images["good:v1"], "-o", "json"]).json();
    assert_eq!(why["images"][0]["now"]["firstSeen"], "2026-01-02T02:04:05Z", "{why:#}");
    assert_eq!(history(&why), [("adopted", by.as_str())], "{why:#}");
    let text = daemon.run(["why", &images["good:v1"]]).ok();
    assert!(text.contains(&format!("Origin:            adopted, pulled by {by}, here since 2026-01-02")), "{text}");
    let why = daemon.run(["why", &images["later:v1"], "-o", "json"]).json();
    assert_ne!(why["images"][0]["now"]["firstSeen"], "2026-01-02T02:04:05Z", "{why:#}");
    let log = daemon.part.log();
    let unread = log.lines().find(|line| line.contains("adopted images whose pull record cannot be read"));
    assert!(unread.is_some_and(|line| line.contains("\"images\":2")), "{log}");
    let text = daemon.run(["why", &images["loaded:v1"]]).ok();
    assert!(text.contains("found, neither pulled nor adopted") && text.contains("hint: `imagelet pull"), "{text}");

    // The ledger is written within a minute; what it does not have would be taken over once more.
    let written = wait_until_within(Duration::from_mins(3), || {
        let ledgers = fs::read_dir(folder.path().join("state/runtimes")).unwrap();
        let ledgers = ledgers.map(|entry| entry.unwrap().path().join("inventory/ledger"));
        let text: String = ledgers.filter_map(|path| fs::read_to_string(path).ok()).collect();
        text.matches("\"origin\":\"adopted\"").count() >= 3
    });
    assert!(written, "the ledger was not written");
    // A daemon that is killed and started again knows all this, and reports no adoption twice.
    daemon.part.kill();
    daemon = Daemon::start(folder.path(), arguments);
    wait_until("the pass after the start", || origins(&daemon) == shown);
    let plan = daemon.run(["gc", "--dry-run", "--all-unused", "--now", "-o", "json"]).json();
    let verdicts = by_name(&plan, "verdict");
    let goes: Vec<&str> = verdicts.iter().filter(|(_, it)| **it == "remove").map(|(name, _)| name.as_str()).collect();
    assert_eq!(goes, ["broken:v1", "good:v1", "later:v1"], "{plan:#}");
    assert_eq!(by_name(&plan, "code")["loaded:v1"], "not_owned");

    // What the kubelet pulls from now on is adopted at the next pass.
    let later = Kubelet::record(&ids["loaded:v1"]);
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert_eq!(kubelet.state(), before, "nothing of the kubelet's is changed");
    kubelet.pulled(&ids["loaded:v1"], &later);
    wait_until("what the kubelet pulled since", || {
        origins(&daemon).contains(&("loaded:v1".to_owned(), "adopted".to_owned()))
    });
    let left: Vec<String> = origins(&daemon).into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["begun:v1", "linked:v1", "loaded:v1", "other:v1"]);
    let why = daemon.run(["why", &images["good:v1"], "-o", "json"]).json();
    let whats: Vec<&str> = history(&why).into_iter().map(|(what, _)| what).collect();
    assert_eq!((whats.first(), whats.last()), (Some(&"adopted"), Some(&"removed")), "{why:#}");
    assert_eq!(whats.iter().filter(|what| **what == "adopted").count(), 1, "{why:#}");
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    let left: Vec<String> = origins(&daemon).into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["begun:v1", "linked:v1", "other:v1"]);

    // While the runtime is away no image is reported absent.
    containerd.kill();
    let text = daemon.run(["why", &images["loaded:v1"]]).ok();
    assert!(text.contains("unknown, the runtime does not answer") && !text.contains("not present"), "{text}");
    daemon.run(["why", "registry.example/never:v1"]).refused(&["not known whether it is present"]);
    let status = daemon.run(["status"]).ok();
    let images = status.lines().find(|line| line.starts_with("Images:")).unwrap();
    assert!(images.ends_with("unknown") && status.contains("Problem:"), "{status}");
}
