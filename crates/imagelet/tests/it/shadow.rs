//! Shadow mode beside a real runtime: it plans, tells and records, and nothing that changes anything reaches the runtime.

use std::{fs, path::Path, time::Duration};

use serde_json::Value;

use crate::{
    images::Image,
    program::Daemon,
    testbed::{Containerd, Disk, Registry, scratch, wait_until_within},
};

/// Several collections by the clock of a second, on a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_mins(1);

fn config(folder: &Path, mode: &str) -> String {
    let path = folder.join(format!("{mode}.yaml"));
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\nimageMaximumGCAge: 2s\n\
         store: {{directory: {}}}\ngc: {{mode: {mode}, period: 1s, leaseFor: 0s, enabled: {}}}\n",
        folder.join("state").display(),
        mode == "shadow"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn census(daemon: &Daemon) -> Vec<(String, Value)> {
    let listed = daemon.run(["ls", "--all", "-o", "json"]).json();
    let rows = listed["images"].as_array().unwrap();
    rows.iter().map(|row| (row["id"].as_str().unwrap().to_owned(), row["names"].clone())).collect()
}

/// The lines in which containerd tells of a call that changes images.
fn changes(log: &str) -> Vec<&str> {
    log.lines().filter(|line| ["PullImage", "RemoveImage", "ImageDelete"].iter().any(|it| line.contains(it))).collect()
}

#[test]
fn beside_containerd_shadow_mode_tells_what_it_would_do_and_changes_nothing() {
    let (disk, registry, folder) = (Disk::new(512), Registry::start(), scratch());
    let containerd = Containerd::start(disk.path(), &registry);
    let names = ["one", "two", "three"].map(|name| registry.push(&format!("{name}:v1"), &Image::busybox(name)));
    {
        let enforcing = config(folder.path(), "enforce");
        let daemon =
            Daemon::start(folder.path(), ["--runtime-endpoint", &containerd.endpoint(), "--config", &enforcing]);
        for name in &names {
            daemon.run(["pull", name]).ok();
        }
    }
    assert!(!changes(&containerd.log()).is_empty(), "containerd tells of the pulls:\n{}", containerd.log());
    let before_log = containerd.log().len();

    let shadow = config(folder.path(), "shadow");
    let daemon = Daemon::start(folder.path(), ["--runtime-endpoint", &containerd.endpoint(), "--config", &shadow]);
    let before = census(&daemon);
    assert_eq!(before.len(), 3);
    daemon.run(["pin", &names[2]]).ok();
    let mut status = Value::Null;
    let told = wait_until_within(SETTLES_WITHIN, || {
        status = daemon.run(["status", "-o", "json"]).json();
        status["lastCollection"]["images"] == 2
    });
    assert!(told, "{status:#}");
    assert_eq!((&status["gcMode"], &status["lastCollection"]["outcome"]), (&"shadow".into(), &"shadow".into()));
    let text = daemon.run(["status"]).ok();
    assert!(text.contains("Shadow mode:") && text.contains("would have removed 2 images"), "{text}");

    for arguments in [&["gc", "--all-unused", "--now"][..], &["gc"], &["gc", "--free", "1Gi"]] {
        daemon.run(arguments.iter().copied()).refused(&["`shadow`", "--enforce"]);
    }
    let plan = daemon.run(["gc", "--dry-run", "--all-unused", "--now", "-o", "json"]).json();
    let removed = plan["images"].as_array().unwrap().iter().filter(|row| row["verdict"] == "remove").count();
    assert_eq!(removed, 2, "{plan:#}");
    let why = daemon.run(["why", &names[0], "-o", "json"]).json();
    let image = &why["images"][0];
    assert_eq!((&image["next"]["verdict"], &image["next"]["mode"]), (&"remove".into(), &"shadow".into()), "{why:#}");
    let kept = daemon.run(["why", &names[2]]).ok();
    assert!(kept.contains("pinned by"), "{kept}");

    assert_eq!(census(&daemon), before, "the same images with the same names");
    let log = containerd.log();
    assert_eq!(changes(&log[before_log..]), Vec::<&str>::new(), "nothing that changes images reached containerd");
    assert!(daemon.part.log().contains("in shadow mode"), "{}", daemon.part.log());

    daemon.run(["gc", "--all-unused", "--now", "--enforce"]).ok();
    assert_eq!(census(&daemon).len(), 1);
    assert!(!changes(&containerd.log()[before_log..]).is_empty(), "the log would have told");
}
