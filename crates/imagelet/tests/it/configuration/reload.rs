//! SIGHUP with bad files: what was in force stays so, it is said, and the next good file is taken.

use std::{fs, path::Path};

use rustix::process::Signal;

use super::{
    assert_none,
    cases::{self, Case, Kind},
    judge, option, put,
};
use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, program, run},
    testbed::{Registry, scratch, wait_until},
};

/// After so many bad files comes a good one.
const GOOD_EVERY: usize = 12;

/// Breaks what is at a path.
type Spoil = fn(&Path);

const REFUSED: &str = "the new configuration is refused; the old one stays in force";
const CREDENTIALS_REFUSED: &str = "the docker configuration does not read";
const TAKEN: &str = "configuration reloaded";

/// Reloads, and waits until it is told that a reload ended so.
fn reload(daemon: &Daemon, word: &str) {
    let count = || daemon.part.log().matches(word).count();
    let before = count();
    daemon.part.signal(Signal::HUP);
    wait_until(word, || count() > before);
}

/// What the daemon said last about a refusal.
fn refusal(daemon: &Daemon, word: &str) -> String {
    let log = daemon.part.log();
    let line = log.lines().rev().find(|line| line.contains(word)).expect("a refusal is told");
    assert!(word == REFUSED || line.contains("config.json"), "the file is not named: {line}");
    let line: serde_json::Value = serde_json::from_str(line).expect("the log is JSON");
    assert_eq!(line["level"], "ERROR", "{line}");
    line["error"].as_str().expect("a refusal has a reason").to_owned()
}

fn thresholds(daemon: &Daemon) -> (u64, u64) {
    let status = daemon.run(["status", "-o", "json"]).json();
    let percent = |key: &str| status[key].as_u64().unwrap_or_else(|| panic!("no {key} in {status}"));
    (percent("gcHighPercent"), percent("gcLowPercent"))
}

fn good(kind: Kind, high: u64, low: u64) -> cases::Content {
    let head = match kind {
        Kind::Own => "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n",
        Kind::Kubelet => "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: 10250\n",
    };
    let text = format!("{head}imageGCHighThresholdPercent: {high}\nimageGCLowThresholdPercent: {low}\n");
    cases::Content::Text(text)
}

/// Shows each bad file of a kind to a running daemon.
fn all_are_refused(kind: Kind) {
    let folder = scratch();
    let (path, store) = (folder.path().join("settings.yaml"), folder.path().join("store"));
    let mut in_force = (95, 41);
    put(&path, &good(kind, in_force.0, in_force.1));
    let arguments = [option(kind), path.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    assert_eq!(thresholds(&daemon), in_force);
    let mut wrong = Vec::new();
    let all = cases::all().into_iter();
    let bad: Vec<Case> = all.filter(|case| case.kind == kind && !case.is_hidden_by_flags()).collect();
    for (number, case) in bad.iter().enumerate() {
        put(&path, &case.content);
        reload(&daemon, REFUSED);
        wrong.extend(judge(case, &path, &refusal(&daemon, REFUSED)).map(|why| format!("{}: {why}", case.what)));
        if thresholds(&daemon) != in_force {
            wrong.push(format!("{}: the old thresholds are gone", case.what));
        }
        if number % GOOD_EVERY == 0 {
            in_force.1 += 1;
            put(&path, &good(kind, in_force.0, in_force.1));
            reload(&daemon, TAKEN);
            assert_eq!(thresholds(&daemon), in_force, "a good file after `{}`", case.what);
        }
    }
    assert_none(&wrong);
    let taken = daemon.part.log().matches(TAKEN).count();
    assert_eq!(taken, bad.len().div_ceil(GOOD_EVERY), "a bad file was taken");
    put(&path, &good(kind, 60, 50));
    reload(&daemon, TAKEN);
    assert_eq!(thresholds(&daemon), (60, 50));
    assert!(daemon.stop(Signal::TERM).success());
}

#[test]
fn a_running_daemon_refuses_each_bad_file_and_goes_on_with_the_old_one() {
    all_are_refused(Kind::Own);
}

#[test]
fn a_running_daemon_refuses_each_bad_file_of_the_kubelet() {
    all_are_refused(Kind::Kubelet);
}

#[test]
fn two_files_that_contradict_one_another_are_refused_at_the_one_to_mend() {
    let folder = scratch();
    let (own, kubelet) = (folder.path().join("own.yaml"), folder.path().join("kubelet.yaml"));
    let store = folder.path().join("store");
    fs::write(&own, "imageGCHighThresholdPercent: 90\n").unwrap();
    put(&kubelet, &good(Kind::Kubelet, 50, 40));
    let paths = [own.to_str().unwrap(), kubelet.to_str().unwrap(), store.to_str().unwrap()];
    let arguments = ["--config", paths[0], "--kubelet-config", paths[1], "--store", paths[2]];
    let daemon = Daemon::start(folder.path(), arguments);
    assert_eq!(thresholds(&daemon), (90, 40), "our own file wins");
    fs::write(&own, "# nothing\nimageGCHighThresholdPercent: 30\n").unwrap();
    reload(&daemon, REFUSED);
    let message = refusal(&daemon, REFUSED);
    assert!(message.contains(&format!("{}:5: ", kubelet.display())) && message.contains("less than"), "{message}");
    assert_eq!(thresholds(&daemon), (90, 40));
    put(&kubelet, &good(Kind::Kubelet, 50, 20));
    reload(&daemon, TAKEN);
    assert_eq!(thresholds(&daemon), (30, 20));
}

#[test]
fn the_thresholds_of_a_kubelet_with_drop_ins_are_in_force_at_the_start_and_after_a_reload() {
    let folder = scratch();
    let (kubelet, drop_ins) = (folder.path().join("kubelet.yaml"), folder.path().join("kubelet.conf.d"));
    let drop_in = |name: &str, more: &str| {
        let text = format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{more}");
        fs::write(drop_ins.join(name), text).unwrap();
    };
    fs::create_dir(&drop_ins).unwrap();
    put(&kubelet, &good(Kind::Kubelet, 90, 80));
    drop_in("10-platform.conf", "imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\n");
    drop_in(
        "50-team.conf",
        "imageGCLowThresholdPercent: 50\nevictionHard: {imagefs.available: 7%}\nimageGCLowThresholdPercent: 55\n---\n",
    );
    let store = folder.path().join("store");
    let arguments = ["--kubelet-config", kubelet.to_str().unwrap(), "--config-dir", drop_ins.to_str().unwrap()];
    let unit = ["--store", store.to_str().unwrap(), "--cgroup-driver=systemd", "--eviction-soft=", "--v=2"];
    let daemon = Daemon::start(folder.path(), arguments.into_iter().chain(unit));
    assert_eq!(thresholds(&daemon), (70, 55));
    let shown = run(program().args(["config", "show", "-o", "json"]).args(arguments)).json();
    let low = shown["settings"].as_array().unwrap().iter().find(|one| one["key"] == "imageGCLowThresholdPercent");
    assert_eq!(low.unwrap()["source"], format!("{}:5", drop_ins.join("50-team.conf").display()));
    let log = daemon.part.log();
    assert!(log.contains("say nothing about images are ignored: --cgroup-driver, --eviction-soft, --v"), "{log}");

    drop_in("90-local.conf", "imageGCHighThresholdPercent: 75\n");
    reload(&daemon, TAKEN);
    assert_eq!(thresholds(&daemon), (75, 55));
    drop_in("90-local.conf", "imageGCHighThresholdPercent: 40\n");
    reload(&daemon, REFUSED);
    let message = refusal(&daemon, REFUSED);
    assert!(message.contains("50-team.conf:5: ") && message.contains("less than"), "{message}");
    assert_eq!(thresholds(&daemon), (75, 55));
    fs::remove_dir_all(&drop_ins).unwrap();
    reload(&daemon, REFUSED);
    assert!(refusal(&daemon, REFUSED).contains(drop_ins.to_str().unwrap()));
    assert_eq!(thresholds(&daemon), (75, 55), "a kubelet does not start without the folder");
}

#[test]
fn each_reload_names_what_waits_for_a_restart_and_takes_the_rest() {
    let folder = scratch();
    let (config, store) = (folder.path().join("own.yaml"), folder.path().join("store"));
    fs::write(&config, "imageGCHighThresholdPercent: 90\n").unwrap();
    let arguments = ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    for (round, high) in [(1, 91), (2, 92)] {
        fs::write(&config, format!("compatibility: kubelet\nimageGCHighThresholdPercent: {high}\n")).unwrap();
        reload(&daemon, TAKEN);
        assert_eq!(thresholds(&daemon).0, high);
        assert_eq!(daemon.part.log().matches("\"settings\":\"compatibility\"").count(), round, "{}", daemon.part.log());
    }
}

#[test]
fn credentials_that_do_not_read_leave_the_old_ones_in_force() {
    let folder = scratch();
    let registry = Registry::start_with_login("anna:pw");
    let image = Image::marked("credentials", 1000);
    let (name, second) = (registry.push("app:v1", &image), registry.push("second:v1", &image));
    let login = |auth: &str| format!(r#"{{"auths": {{"{}": {{"auth": "{auth}"}}}}}}"#, registry.address());
    let (docker, config) = (folder.path().join("config.json"), folder.path().join("config.yaml"));
    // anna:pw, and anna:no.
    let (right, false_one) = (login("YW5uYTpwdw=="), login("YW5uYTpubw=="));
    fs::write(&docker, &right).unwrap();
    fs::write(&config, format!("credentials: {{dockerConfig: {}}}\n", docker.display())).unwrap();
    let store = folder.path().join("store");
    let arguments = ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    let pull = |name: &str| daemon.run(["pull", "-q", "--policy", "Always", name]);
    pull(&name).ok();

    let bad: [(&str, Spoil); 5] = [
        ("no JSON", |path| fs::write(path, "auths: {}").unwrap()),
        ("cut off", |path| fs::write(path, "{\"auths\": {\"r\": {\"auth\": \"c2Vj").unwrap()),
        ("another type", |path| fs::write(path, "{\"auths\": [\"s3cr3t\"]}").unwrap()),
        ("no text", |path| fs::write(path, b"{\"auths\": \"\xff\"}").unwrap()),
        ("a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    for (what, spoil) in bad {
        spoil(&docker);
        reload(&daemon, CREDENTIALS_REFUSED);
        let told = refusal(&daemon, CREDENTIALS_REFUSED);
        assert!(!told.contains("s3cr3t") && !told.contains("c2Vj"), "{what}: {told}");
        pull(&name).ok();
    }
    fs::remove_dir(&docker).unwrap();
    fs::write(&docker, false_one).unwrap();
    reload(&daemon, TAKEN);
    pull(&name).refused(&[&name]);
    fs::write(&docker, right).unwrap();
    reload(&daemon, TAKEN);
    // The refused one is held back for a while.
    pull(&second).ok();
}

#[test]
fn a_broken_registry_configuration_refuses_that_registry_alone_until_it_is_mended() {
    let folder = scratch();
    let (broken, whole) = (FakeRegistry::start(), FakeRegistry::start());
    let image = Image::marked("hosts", 1000);
    let other = whole.put("app:v1", &image);
    let (certs, config) = (folder.path().join("certs.d"), folder.path().join("config.yaml"));
    let directory = certs.join(broken.name("").trim_end_matches('/'));
    let file = directory.join("hosts.toml");
    fs::create_dir_all(&directory).unwrap();
    fs::write(&config, format!("registryPullQPS: 0\nregistry: {{configPath: {}}}\n", certs.display())).unwrap();
    let store = folder.path().join("store");
    let arguments = ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    let host = "[host.\"http://127.0.0.1:1\"]\n";
    let large = format!("# {}", "x".repeat(1 << 20));
    let bad: Vec<(&str, Vec<u8>, &str)> = vec![
        ("no TOML", b"server = \"x\"\n\nhosts: {}\n".to_vec(), "line 3"),
        ("a key twice", b"server = \"http://a\"\nserver = \"http://b\"\n".to_vec(), "line 2"),
        ("a server that is no text", b"server = 5\n".to_vec(), "`server`"),
        ("hosts that are no table", b"host = [1]\n".to_vec(), "`host`"),
        ("a host that is no table", b"[host]\na = 1\n".to_vec(), "`host.a`"),
        ("a capability that is no text", format!("{host}capabilities = [5]\n").into_bytes(), ".capabilities"),
        ("a flag that is no flag", format!("{host}skip_verify = \"no\"\n").into_bytes(), "skip_verify"),
        ("a certificate that is not there", format!("{host}ca = \"none.pem\"\n").into_bytes(), "none.pem"),
        ("a header no wire carries", format!("{host}header = {{x = \"a\\nb\"}}\n").into_bytes(), "header `x`"),
        ("a URL that is none", b"[host.\"http://:x\"]\n".to_vec(), "host"),
        ("no text", b"server = \"\xff\"\n".to_vec(), "UTF-8"),
        ("too large", large.into_bytes(), "1.05MB"),
    ];
    for (number, (what, text, word)) in bad.into_iter().enumerate() {
        fs::write(&file, text).unwrap();
        // A failure holds its image back, and no other.
        let name = broken.put(&format!("app{number}:v1"), &image);
        let stderr = daemon.run(["pull", "-q", "--policy", "Always", &name]).refused(&[file.to_str().unwrap(), word]);
        assert!(stderr.contains("hint:"), "{what}: {stderr}");
        daemon.run(["pull", "-q", "--policy", "Always", &other]).ok();
    }
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    daemon.run(["pull", &broken.put("first:v1", &image)]).refused(&[file.to_str().unwrap()]);
    fs::remove_dir(&file).unwrap();
    daemon.run(["pull", "-q", &broken.put("second:v1", &image)]).ok();
}

#[test]
fn a_bandwidth_holds_for_running_pulls_and_a_reload_changes_it() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("large:v1", &Image::marked("large", 4 << 20));
    let (config, store) = (folder.path().join("config.yaml"), folder.path().join("store"));
    let limit = |rate: &str| fs::write(&config, format!("pulls: {{bandwidth: {rate}}}\n")).unwrap();
    // The image takes minutes.
    limit("16Ki");
    let arguments = ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    std::thread::scope(|scope| {
        let pulling = scope.spawn(|| daemon.run(["pull", "-q", &name]));
        wait_until("the layer", || registry.requests().iter().filter(|one| one.contains("/blobs/")).count() > 1);
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert!(!pulling.is_finished(), "the limit does not hold");
        limit("'0'");
        reload(&daemon, TAKEN);
        assert!(!daemon.part.log().contains("take effect with the next start"), "{}", daemon.part.log());
        pulling.join().unwrap().ok();
    });
}
