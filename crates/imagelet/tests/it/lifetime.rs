//! What a failed pull takes it gives back: files, threads and the store's space.

use std::{collections::BTreeSet, fs, path::PathBuf, thread, time::Duration};

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::Daemon,
    soundness::assert_clean,
    testbed::{scratch, wait_until_within},
};

/// Pulls that fail.
const FAILURES: usize = 100;
/// Askers at once.
const ASKERS: usize = 4;
/// An idle connection, or a thread that came or went meanwhile.
const SLACK: usize = 2;
/// How soon all is given back: threads without work end after ten seconds.
const SETTLED_MAX: Duration = Duration::from_secs(30);

fn count(daemon: &Daemon, what: &str) -> usize {
    fs::read_dir(PathBuf::from(format!("/proc/{}/{what}", daemon.part.id()))).unwrap().count()
}

/// Serves an image that fails in its own way: absent, cut off, of another digest.
fn bad(registry: &FakeRegistry, number: usize) -> String {
    let repository = format!("bad{number}");
    let image = Image::marked(&repository, 60_000);
    let name = registry.put(&format!("{repository}:v1"), &image);
    match number % 3 {
        0 => registry.name(&format!("{repository}:absent")),
        1 => {
            registry.spoil(&repository, &image.layers[0].digest, |answer| answer.cut_at = Some(20_000));
            name
        }
        _ => {
            registry.spoil(&repository, &image.layers[0].digest, |answer| answer.body[30_000] ^= 1);
            name
        }
    }
}

#[test]
fn a_daemon_opens_as_many_files_as_its_hard_limit_allows() {
    let folder = scratch();
    let store = folder.path().join("store");
    let daemon = Daemon::start_with_files(folder.path(), (256, 3000), ["--store", store.to_str().unwrap()]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.part.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit of open files");
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[3..5], ["3000", "3000"], "{line}");
}

#[test]
fn a_hundred_failed_pulls_leave_a_daemon_as_it_was() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let store = folder.path().join("store");
    // The kubelet's rate would make a hundred pulls last twenty seconds.
    let config = folder.path().join("config.yaml");
    let text = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nregistryPullQPS: 0\nserializeImagePulls: false\npulls: {retryBudget: 2s}\n";
    fs::write(&config, text).unwrap();
    let daemon =
        Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()]);
    let ask = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let name = bad(&registry, number);
            daemon.run(["pull", &name]).refused(&[&name]);
        }
    };
    // The first of each kind makes what stays: connections' pools, a runtime's threads.
    ask(0..3);
    thread::sleep(Duration::from_millis(200));
    let (files, threads) = (count(&daemon, "fd"), count(&daemon, "task"));
    thread::scope(|scope| {
        let share = FAILURES / ASKERS;
        for asker in 0..ASKERS {
            let ask = &ask;
            scope.spawn(move || ask(3 + asker * share..3 + (asker + 1) * share));
        }
    });
    let mut now = (0, 0);
    let settled = wait_until_within(SETTLED_MAX, || {
        now = (count(&daemon, "fd"), count(&daemon, "task"));
        now.0 <= files + SLACK && now.1 <= threads + SLACK
    });
    assert!(settled, "{files} files and {threads} threads before, {now:?} after {FAILURES} failed pulls");
    assert_clean(&store, &BTreeSet::new(), "after failed pulls");
    assert_eq!(daemon.run(["ls", "-q", "--all"]).ok(), "");
}
