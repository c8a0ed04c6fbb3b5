//! What an operator is told by pins, orders and plans, and what by the exit code.

use std::fs;

use crate::{fake_registry::FakeRegistry, images::Image, program::Daemon, testbed::scratch};

#[test]
fn pins_that_hold_nothing_and_orders_against_a_pin_are_told() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let [web, spare] = ["web", "spare"].map(|name| registry.put(&format!("{name}:v1"), &Image::marked(name, 1000)));
    let config = folder.path().join("config.yaml");
    let text = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\n\
                gc: {enabled: false, leaseFor: 0s}\n";
    fs::write(&config, text).unwrap();
    let store = folder.path().join("store");
    let daemon =
        Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()]);
    for name in [&web, &spare] {
        daemon.run(["pull", name]).ok();
    }

    let pinned = daemon.run(["pin", &web]);
    assert_eq!((pinned.code, pinned.stderr.as_str()), (0, ""));
    let misspelt = daemon.run(["pin", "registry.example/wbe:v1"]);
    assert!(misspelt.stderr.contains("matches no present image"), "{}", misspelt.stderr);
    let short = daemon.run(["pin", "sha256:abcdef"]);
    assert!(short.stderr.contains("hint: fewer than 12 digits"), "{}", short.stderr);
    let held = daemon.run(["pin", &web, "-o", "json"]).json();
    assert_eq!((&held["changed"], held["images"].as_array().unwrap().len()), (&false.into(), 1), "{held:#}");
    let empty = daemon.run(["pin", "a b"]).refused(&["neither a reference nor an id"]);
    assert_eq!(empty.matches("invalid reference format").count(), 1, "told once: {empty}");

    // Asking what a collection would do is no collection, whatever is asked.
    for arguments in [&["why", &web][..], &["df", "-v"]] {
        daemon.run(arguments.iter().copied()).ok();
    }
    let log = daemon.part.log();
    assert!(!log.contains("chose an image") && !log.contains("kept an image"), "{log}");
    let plan = daemon.run(["gc", "--dry-run", "--free", "1k"]).ok();
    assert!(plan.contains("FREES") && plan.contains("room is wanted"), "{plan}");
    let wide = daemon.run(["gc", "--dry-run", "--free", "1k", "-o", "wide"]).ok();
    assert!(wide.contains("room frees=") && wide.contains(" idleSeconds="), "{wide}");
    let idle = daemon.run(["gc", "--dry-run", "--high", "100"]).ok();
    assert!(idle.contains("collecting begins at 100% and ends at 80%: no room is wanted"), "{idle}");

    let short = daemon.run(["gc", "--free", "1Ti"]);
    assert_eq!(short.code, 1, "what was asked for was not reached\n{}", short.stdout);
    assert!(short.stderr.contains("and none was deleted") && short.stdout.contains("not enough"), "{}", short.stderr);
    let status = daemon.run(["status"]).ok();
    assert!(status.contains("removed nothing, which was not enough"), "{status}");
    daemon.run(["gc", "--free", "1Ti", "--dry-run"]).ok();

    let removed = daemon.run(["rm", &web]);
    assert_eq!(removed.code, 0, "{}", removed.stderr);
    assert!(removed.stderr.contains(&format!("warning: `{web}` was pinned by {web}")), "{}", removed.stderr);
    assert_eq!(daemon.run(["rm", &spare]).stderr, "");
}
