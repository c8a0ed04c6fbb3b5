//! Short soaks over the program of these tests: `tests/soak/soak.py` for half a minute, and `large.py` with images of 100 MB.

use std::process::Command;

use crate::{
    program::{program, run},
    source::repository,
    testbed::{require_root, scratch},
};

const MINUTES: &str = "0.5";
/// What has to have succeeded: pulls, pods and all storms.
const OPERATIONS: [&str; 9] = [
    "pull",
    "pod",
    "restart",
    "kill",
    "fill",
    "restart before containerd",
    "kill before containerd",
    "restart of containerd",
    "step of the clock",
];

#[test]
fn amid_random_operations_storms_and_faults_every_invariant_holds() {
    require_root("a file system and namespaces of its own");
    let (folder, scripts) = (scratch(), repository().join("tests/soak"));
    run(Command::new("python3").arg(scripts.join("selfcheck.py"))).ok();
    let mut soak = Command::new("python3");
    soak.arg(scripts.join("soak.py")).arg(program().get_program()).args(["--minutes", MINUTES]);
    soak.arg("--report").arg(folder.path().join("soak.html"));
    let outcome = run(&mut soak);
    // The report with its plots is gone with the folder; what was violated is in the text.
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    let succeeded = outcome.stdout.split("; refused or failed").next().unwrap_or_default();
    for operation in OPERATIONS {
        assert!(succeeded.contains(&format!("'{operation}': ")), "{operation}: {}", outcome.stdout);
    }
}

#[test]
fn large_images_come_whole_amid_resets_kills_and_a_disk_that_has_room_for_three() {
    require_root("a file system and namespaces of its own");
    let mut soak = Command::new("python3");
    soak.arg(repository().join("tests/soak/large.py")).arg(program().get_program());
    // The syncs of a busy machine are no subject of a test, and what a kill costs is more than 3 % of so small an image.
    soak.args(["--images", "2", "--gigabytes", "0.1", "--alone", "1", "--slower-max", "1000", "--on-its-way", "32"]);
    let outcome = run(&mut soak);
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("fetched again: "), "{}", outcome.stdout);
}
