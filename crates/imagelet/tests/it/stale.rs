//! A registry that is away while its image is here, seen through the program.

use std::fs;

use rustix::process::Signal;

use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::Image,
    program::{Daemon, Outcome},
    testbed::scratch,
};

struct Node {
    folder: tempfile::TempDir,
    daemon: Daemon,
}

impl Node {
    fn start(more: &str) -> Self {
        let folder = scratch();
        let text = format!(
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {{enabled: false}}\n\
             pulls: {{retryBudget: 2s}}\n{more}\n"
        );
        fs::write(folder.path().join("config.yaml"), text).unwrap();
        let daemon = Self::daemon(&folder);
        Self { folder, daemon }
    }

    fn daemon(folder: &tempfile::TempDir) -> Daemon {
        let (store, config) = (folder.path().join("store"), folder.path().join("config.yaml"));
        Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()])
    }

    fn restarted(self) -> Self {
        self.daemon.stop(Signal::TERM);
        let daemon = Self::daemon(&self.folder);
        Self { daemon, ..self }
    }

    fn always(&self, name: &str) -> Outcome {
        self.daemon.run(["pull", "--policy", "Always", name])
    }
}

/// Serves this in place of the tag of `app:v1`.
fn answer(registry: &FakeRegistry, answer: Answer) {
    registry.answer("/v2/app/manifests/v1", answer);
}

#[test]
fn an_image_is_used_while_its_registry_is_away_and_its_no_is_believed() {
    let registry = FakeRegistry::start();
    let image = Image::marked("app", 1000);
    let name = registry.put("app:v1", &image);
    let mut node = Node::start("staleOnOutage: {enabled: true}");
    assert_eq!(node.always(&name).ok().trim(), image.id());
    for round in ["at once", "after a restart"] {
        answer(&registry, Answer::status(503, "busy"));
        let outcome = node.always(&name);
        let told = "used although its registry is unavailable";
        assert!(outcome.stderr.contains("warning: ") && outcome.stderr.contains(told), "{round}: {}", outcome.stderr);
        assert_eq!(outcome.ok().trim(), image.id(), "{round}");
        assert!(node.daemon.part.log().contains("503"), "{round}: the log does not tell what the registry said");
        node = node.restarted();
    }
    // Whoever is told no now is held back; each question is another pod's.
    for status in [401, 403, 404] {
        let node = Node::start("staleOnOutage: {enabled: true}");
        registry.put("app:v1", &image);
        node.always(&name).ok();
        answer(&registry, Answer::status(status, "{}"));
        let stderr = node.always(&name).refused(&[&name]);
        assert!(!stderr.contains("used although"), "{status}: {stderr}");
    }
}

#[test]
fn a_tag_that_has_moved_to_layers_that_do_not_come_is_no_outage() {
    let registry = FakeRegistry::start();
    let name = registry.put("app:v1", &Image::marked("old", 1000));
    let node = Node::start("staleOnOutage: {enabled: true}");
    node.always(&name).ok();
    let new = Image::marked("new", 1000);
    registry.put("app:v1", &new);
    registry.spoil("app", &new.layers[0].digest, |answer| answer.status = 503);
    let stderr = node.always(&name).refused(&[&name, "503"]);
    assert!(!stderr.contains("used although"), "{stderr}");
}

#[test]
fn unless_it_is_set_a_registry_that_is_away_fails_the_pull_and_nothing_is_kept_for_it() {
    let registry = FakeRegistry::start();
    let name = registry.put("app:v1", &Image::marked("app", 1000));
    let node = Node::start("");
    node.always(&name).ok();
    answer(&registry, Answer::status(503, "busy"));
    node.always(&name).refused(&[&name, "503"]);
    assert!(!node.folder.path().join("store/state/verified-names.json").exists());
}
