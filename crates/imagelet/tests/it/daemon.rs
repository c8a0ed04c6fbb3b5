//! The daemon as an operator meets it: one owner, signals, a configuration that is read again.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio, thread, time::Duration};

use rustix::process::Signal;
use tokio::time::Instant;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, program, run, with_store},
    testbed::{scratch, wait_until},
    tree,
};

#[test]
fn a_second_user_of_a_store_is_told_who_holds_it() {
    let folder = scratch();
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let owner = daemon.part.id().to_string();
    with_store(&store, ["--lock-timeout", "0", "pull", "127.0.0.1:1/app:v1"])
        .refused(&[store.to_str().unwrap(), &owner]);
    let second = scratch();
    let mut other = Daemon::spawn(second.path(), ["--store", store.to_str().unwrap(), "--lock-timeout", "1s"]);
    wait_until("the second daemon to give up", || other.part.ended().is_some());
    assert_eq!(other.part.ended().and_then(|status| status.code()), Some(1));
    assert!(other.part.log().contains(&owner), "the owner is not told:\n{}", other.part.log());
    assert!(daemon.stop(Signal::TERM).success());
    with_store(&store, ["ls"]).ok();
}

#[test]
fn a_stop_gives_running_pulls_up_and_leaves_nothing_half_done() {
    for signal in [Signal::TERM, Signal::INT] {
        let (folder, registry) = (scratch(), FakeRegistry::start());
        let store = folder.path().join("store");
        let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
        let before = tree::disk_usage(&store);
        let image = Image::marked("slow", 8_000_000);
        let name = registry.put("slow:v1", &image);
        registry.spoil("slow", &image.layers[0].digest, |answer| answer.pause = Duration::from_millis(200));
        let mut pull =
            daemon.command().args(["pull", &name]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the pull to begin", || registry.requests().iter().any(|request| request.contains("/blobs/")));
        assert!(daemon.stop(signal).success(), "a stop by {signal:?} is no failure");
        assert!(!pull.wait().unwrap().success(), "the pull was given up");
        assert!(!folder.path().join("imagelet.sock").exists(), "the socket is left behind");
        assert_eq!(with_store(&store, ["ls", "-q", "--all"]).ok(), "");
        let after = tree::disk_usage(&store);
        assert!(after <= before + (1 << 20), "{before} bytes before, {after} after");
    }
}

#[test]
fn a_stop_ends_a_slow_pull_and_frees_the_store_for_the_next_within_two_seconds() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let image = Image::marked("slow", 8_000_000);
    let name = registry.put("slow:v1", &image);
    registry.spoil("slow", &image.layers[0].digest, |answer| answer.pause = Duration::from_secs(1));
    let mut pulls: Vec<_> = (0..3)
        .map(|_| {
            let mut pull = daemon.command();
            pull.args(["pull", &name]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    wait_until("the pull to begin", || registry.requests().iter().any(|request| request.contains("/blobs/")));
    let began = Instant::now();
    assert!(daemon.stop(Signal::TERM).success());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "the stop took {took:?}");
    assert_eq!(with_store(&store, ["ls", "-q", "--all"]).ok(), "");
    for pull in &mut pulls {
        assert!(!pull.wait().unwrap().success(), "the pull was given up");
    }
}

fn write_config(path: &Path, high: u8) {
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageGCHighThresholdPercent: {high}\n\
         imageGCLowThresholdPercent: 10\n"
    );
    fs::write(path, text).unwrap();
}

#[test]
fn a_reload_takes_a_good_file_and_refuses_a_bad_one() {
    let folder = scratch();
    let (store, config) = (folder.path().join("store"), folder.path().join("config.yaml"));
    write_config(&config, 90);
    let daemon =
        Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()]);
    let reloads = |word: &str| daemon.part.log().matches(word).count();

    write_config(&config, 80);
    daemon.part.signal(Signal::HUP);
    wait_until("the reload", || reloads("configuration reloaded") == 1);

    fs::write(&config, "kind: ImageletConfiguration\nimageGCHighThresholdPercent: 180\n").unwrap();
    daemon.part.signal(Signal::HUP);
    wait_until("the refusal", || reloads("imageGCHighThresholdPercent") > 0);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(reloads("configuration reloaded"), 1, "a bad file was taken:\n{}", daemon.part.log());
    daemon.run(["ls"]).ok();

    write_config(&config, 70);
    daemon.part.signal(Signal::HUP);
    wait_until("the second reload", || reloads("configuration reloaded") == 2);
    assert!(daemon.stop(Signal::TERM).success());
}

#[test]
fn a_configuration_that_others_may_change_is_refused_at_the_start_and_at_a_reload() {
    let folder = scratch();
    let config = folder.path().join("config.yaml");
    let kubelet = folder.path().join("kubelet.yaml");
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    write_config(&config, 90);
    fs::write(&kubelet, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n").unwrap();
    let store = folder.path().join("store");
    let arguments = [("--store", &store), ("--config", &config), ("--kubelet-config", &kubelet)]
        .map(|(flag, path)| [flag, path.to_str().unwrap()]);
    for path in [&config, &kubelet] {
        set_mode(path, 0o666);
        let told = format!("every user may write to `{}` (mode 0666)", path.display());
        let hint = format!("hint: chmod go-w {}", path.display());
        run(program().arg("serve").args(arguments.iter().flatten())).refused(&[&told, &hint]);
        run(program().args(["config", "check", arguments[1][1], "--kubelet-config", arguments[2][1]]))
            .refused(&[&told]);
        set_mode(path, 0o644);
    }

    let daemon = Daemon::start(folder.path(), arguments.iter().flatten());
    let logged = |word: &str| daemon.part.log().matches(word).count();
    set_mode(&config, 0o646);
    daemon.part.signal(Signal::HUP);
    wait_until("the refusal", || logged("the old one stays in force") == 1);
    assert!(logged("every user may write to") == 1 && logged("configuration reloaded") == 0, "{}", daemon.part.log());
    set_mode(&config, 0o644);
    daemon.part.signal(Signal::HUP);
    wait_until("the reload", || logged("configuration reloaded") == 1);
    assert!(daemon.stop(Signal::TERM).success());
}

#[test]
fn a_pin_survives_a_restart() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let store = folder.path().join("store");
    let name = registry.put("base:v1", &Image::marked("base", 1000));
    let pattern = format!("{}*", name.split(':').take(2).collect::<Vec<_>>().join(":"));
    let arguments = ["--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    daemon.run(["pull", &name]).ok();
    daemon.run(["pin", &pattern]).ok();
    assert!(daemon.stop(Signal::TERM).success());
    let daemon = Daemon::start(folder.path(), arguments);
    assert!(daemon.run(["pins"]).ok().contains(&pattern));
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    daemon.run(["inspect", "-q", &name]).ok();
    daemon.run(["unpin", &pattern]).ok();
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert_eq!(daemon.run(["inspect", "-q", &name]).code, 1);
}

/// The threads that unpack, and whether each may still gain privileges.
fn unpacking_threads(daemon: &Daemon) -> Vec<bool> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.part.id())).unwrap();
    tasks
        .filter_map(|task| {
            let path = task.unwrap().path();
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let status = fs::read_to_string(path.join("status")).ok()?;
            (name == "layer\n").then(|| !status.contains("NoNewPrivs:\t1"))
        })
        .collect()
}

#[test]
fn layers_are_unpacked_on_confined_threads_and_status_says_so() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let told = daemon.run(["status", "-o", "json"]).json()["unpacking"].as_str().expect("it is told").to_owned();
    // Where securityfs is not mounted, nothing but the kernel's answer to the program says whether it has Landlock.
    if let Ok(modules) = fs::read_to_string("/sys/kernel/security/lsm") {
        assert_eq!(
            told.starts_with("confined to the layer's folder (Landlock ABI "),
            modules.contains("landlock"),
            "{told}"
        );
    }
    assert!(daemon.run(["status"]).ok().contains(&told), "{told}");

    let image = Image::marked("slow", 8_000_000);
    let name = registry.put("slow:v1", &image);
    registry.spoil("slow", &image.layers[0].digest, |answer| answer.pause = Duration::from_millis(200));
    let mut pull = daemon.command().args(["pull", &name]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // One inflates, one writes; a thread that was just made is confined a moment later.
    wait_until("two confined threads", || {
        let threads = unpacking_threads(&daemon);
        threads.len() >= 2 && threads.iter().all(|may_gain| !may_gain)
    });
    drop(pull.kill());
    pull.wait().unwrap();
    assert!(daemon.stop(Signal::TERM).success());
}
