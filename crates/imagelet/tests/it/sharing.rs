//! One store, many commands: those that look need not wait, those that change it wait for one another, and a typo makes none.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown, symlink},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};
use tokio::time::Instant;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, Outcome, program, run, with_store},
    read_only::census,
    testbed::{require_root, scratch, wait_until},
};

/// Commands that look, at an image or at none.
fn looking(image: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["ls"],
        vec!["ls", "-o", "json", "--all"],
        vec!["inspect", image],
        vec!["df", "-v"],
        vec!["why", image],
        vec!["status"],
        vec!["pins"],
        vec!["gc", "--dry-run"],
        vec!["gc", "--dry-run", "--all-unused", "--now"],
        vec!["verify", "-q"],
    ]
}

#[test]
fn a_mistyped_store_is_refused_and_not_made() {
    let folder = scratch();
    let (missing, empty) = (folder.path().join("typo"), folder.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    let changing = [
        vec!["rm", "x"],
        vec!["untag", "x:v1"],
        vec!["gc", "--all-unused", "--now"],
        vec!["verify", "--repair"],
        vec!["unpin", "x"],
        vec!["unmount", "/mnt"],
    ];
    for command in looking("x").into_iter().chain(changing) {
        for store in [&missing, &empty] {
            with_store(store, &command).refused(&["is no imagelet store", store.to_str().unwrap(), "hint:"]);
        }
        assert!(!missing.exists(), "{command:?} made a store");
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "{command:?} left something");
    }
    // What fills a store makes it.
    with_store(&missing, ["pin", "x"]).ok();
    assert_eq!(with_store(&missing, ["ls", "-q"]).ok(), "");
    with_store(&missing, ["rm", "x"]).refused(&["no image `x`"]);
}

#[test]
fn before_the_first_pull_the_default_place_is_without_images_and_a_look_makes_no_store() {
    const NOBODY: u32 = 65534;
    require_root("running as another user");
    let folder = scratch();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (binary, home) = (folder.path().join("imagelet"), folder.path().join("home"));
    fs::copy(program().get_program(), &binary).unwrap();
    fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let by_user = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.env_clear().env("HOME", &home).env("XDG_RUNTIME_DIR", home.join("run")).stdin(Stdio::null());
        run(command.uid(NOBODY).gid(NOBODY).args(arguments))
    };
    for command in looking("x").into_iter().filter(|command| !command.contains(&"x")) {
        let told = by_user(&command).ok();
        assert!(!told.contains("sha256:"), "{told}");
    }
    by_user(&["inspect", "x"]).refused(&["no image `x`"]);
    by_user(&["rm", "x"]).refused(&["is no imagelet store"]);
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "a look made something");
    by_user(&["pin", "x"]).ok();
    assert!(home.join(".local/share/imagelet/layers").is_dir());
}

#[test]
fn looking_changes_nothing_of_a_store_that_could_be_written() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let store = folder.path().join("store");
    let name = registry.put("app:v1", &Image::marked("looked at", 1000));
    with_store(&store, ["pull", "-q", &name]).ok();
    // What a crash leaves, and what the next owner would take away or set aside.
    fs::create_dir(store.join("tmp/1-1")).unwrap();
    fs::create_dir(store.join("trash/1-2")).unwrap();
    fs::write(store.join("names.new"), "half").unwrap();
    fs::create_dir(store.join("layers").join("0".repeat(64))).unwrap();
    let before = census(&store);
    let in_store = |command: &[&str]| with_store(&store, command);
    for command in looking(&name) {
        in_store(&command).ok();
        assert_eq!(census(&store), before, "{command:?} changed something");
    }
    fs::write(store.join("names.json"), "{").unwrap();
    let before = census(&store);
    assert_eq!(in_store(&["ls", "-q"]).ok().lines().count(), 1, "the names are read from the records");
    assert_eq!(census(&store), before, "damaged names were set aside by a look");
    in_store(&["pull", "-q", &name]).ok();
    assert!(!store.join("tmp/1-1").exists(), "the owner takes leftovers away");
}

#[test]
fn many_look_while_a_daemon_owns_the_store_and_who_wants_to_change_it_is_told_after_a_wait() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let name = registry.put("app:v1", &Image::marked("shared", 1000));
    daemon.run(["pull", "-q", &name]).ok();
    for command in looking(&name) {
        with_store(&store, &command).ok();
    }
    let lists = thread::scope(|scope| {
        let lists: Vec<_> = (0..8).map(|_| scope.spawn(|| with_store(&store, ["ls", "-q"]))).collect();
        lists.into_iter().map(|list| list.join().unwrap().ok()).collect::<Vec<_>>()
    });
    assert!(lists.iter().all(|list| list.lines().count() == 1), "{lists:?}");
    let owner = format!("`imagelet serve` (pid {})", daemon.part.id());
    let told = with_store(&store, ["--lock-timeout", "3s", "rm", &name]).refused(&[&owner, "hint:"]);
    let waiting: Vec<_> = told.lines().filter(|line| line.contains("waiting for it for at most 3 s")).collect();
    assert_eq!(waiting.len(), 1, "the wait is told once:\n{told}");
    assert!(waiting[0].contains(&owner), "{told}");
    let told = with_store(&store, ["--lock-timeout", "0", "rm", &name]).refused(&[&owner]);
    assert!(!told.contains("waiting"), "{told}");
    assert_eq!(daemon.run(["ls", "-q"]).ok().lines().count(), 1, "it was removed all the same");
    assert!(daemon.stop(Signal::TERM).success());
}

#[test]
fn lists_and_pulls_side_by_side_in_one_store_all_succeed() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let store = folder.path().join("store");
    with_store(&store, ["pin", "nothing"]).ok();
    let image = |number| Image::marked(&format!("side {number}"), 50_000);
    let names: Vec<String> = (0..4).map(|number| registry.put(&format!("app{number}:v1"), &image(number))).collect();
    thread::scope(|scope| {
        let store = &store;
        let pulls: Vec<_> =
            names.iter().map(|name| scope.spawn(move || with_store(store, ["pull", "-q", name]))).collect();
        let lists: Vec<_> = (0..8).map(|_| scope.spawn(move || with_store(store, ["ls"]))).collect();
        for list in lists {
            let listed = list.join().unwrap();
            assert_eq!(listed.stderr, "", "a list complains");
            listed.ok();
        }
        for pull in pulls {
            assert!(pull.join().unwrap().ok().starts_with("sha256:"));
        }
    });
    assert_eq!(with_store(&store, ["ls", "-q"]).ok().lines().count(), 4);
    let verified = with_store(&store, ["verify", "-o", "json"]).json();
    assert_eq!(verified["damaged"], false, "{verified}");
    // What each remembers of its pull is there, too.
    for name in &names {
        let told = with_store(&store, ["why", "-o", "json", name]).json().to_string();
        assert!(told.contains("\"pulled\""), "the pull of {name} is forgotten: {told}");
    }
}

#[test]
fn who_looks_beside_a_writer_sees_whole_images_and_no_damage() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let stable = registry.put("stable:v1", &Image::marked("stays", 10_000));
    let moving = registry.put("moving:v1", &Image::marked("comes and goes", 10_000));
    daemon.run(["pull", "-q", &stable]).ok();
    let is_over = AtomicBool::new(false);
    let check = |outcome: &Outcome, what: &str| {
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{what}\n{}", outcome.stdout);
    };
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) {
                daemon.run(["pull", "-q", &moving]).ok();
                daemon.run(["rm", &moving]).ok();
                rounds += 1;
            }
            rounds
        });
        for _ in 0..25 {
            let listed = with_store(&store, ["ls", "-o", "json"]);
            check(&listed, "ls");
            assert!(listed.stdout.contains("stable:v1"), "{}", listed.stdout);
            check(&with_store(&store, ["inspect", &stable]), "inspect");
            check(&with_store(&store, ["df"]), "df");
            check(&with_store(&store, ["verify", "-q", &stable]), "verify");
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(changes.join().unwrap() > 2, "nothing came and went");
    });
    assert!(daemon.stop(Signal::TERM).success());
}

#[test]
fn damage_that_a_check_beside_a_daemon_finds_is_shown_and_marked_when_the_store_is_free() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let store = folder.path().join("store");
    let name = registry.put("app:v1", &Image::marked("decays", 1000));
    with_store(&store, ["pull", "-q", &name]).ok();
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let layer = fs::read_dir(store.join("layers")).unwrap().next().unwrap().unwrap().path();
    let file = fs::read_dir(layer.join("fs")).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_file());
    fs::remove_file(file.expect("the image has a file")).unwrap();
    let verify = || with_store(&store, ["--lock-timeout", "1s", "verify", "-q"]);
    verify().refused(&["not marked in the store", "imagelet serve"]);
    assert!(!layer.join("damaged").exists(), "a look marked it");
    assert!(daemon.stop(Signal::TERM).success());
    verify().refused(&["verify --repair"]);
    assert!(layer.join("damaged").exists(), "it is not marked");
    assert_eq!(with_store(&store, ["ls", "-q"]).ok(), "");
}

/// Another process has a store, and gives it back when this is dropped.
fn held(store: &Path) -> fs::File {
    with_store(store, ["pin", "x"]).ok();
    let lock = fs::File::options().read(true).write(true).open(store.join("lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    fs::write(store.join("lock"), "4711 imagelet pull").unwrap();
    lock
}

#[test]
fn a_daemon_waits_for_a_store_that_is_given_back_and_names_who_keeps_it() {
    let folder = scratch();
    let store = folder.path().join("store");
    let lock = held(&store);
    let arguments = ["--store", store.to_str().unwrap(), "--lock-timeout", "1m"];
    let mut daemon = Daemon::spawn(folder.path(), arguments);
    wait_until("the daemon to wait", || daemon.part.log().contains("waiting for it"));
    assert!(daemon.part.log().contains("`imagelet pull` (pid 4711)"), "{}", daemon.part.log());
    assert_eq!(daemon.part.ended(), None);
    drop(lock);
    wait_until("the daemon to answer", || daemon.run(["status"]).code == 0);
    assert!(daemon.stop(Signal::TERM).success());

    let lock = held(&store);
    let begun = Instant::now();
    let mut daemon = Daemon::spawn(folder.path(), ["--store", store.to_str().unwrap()]);
    wait_until("the daemon to give up", || daemon.part.ended().is_some());
    assert!(begun.elapsed() >= Duration::from_secs(10), "it did not wait");
    assert_eq!(daemon.part.ended().and_then(|status| status.code()), Some(1));
    assert!(daemon.part.log().contains("`imagelet pull` (pid 4711)"), "{}", daemon.part.log());

    // A stop does not wait for the store.
    let mut daemon = Daemon::spawn(folder.path(), arguments);
    wait_until("the daemon to wait", || daemon.part.log().contains("waiting for it"));
    daemon.part.signal(Signal::TERM);
    wait_until("the daemon to stop", || daemon.part.ended().is_some());
    drop(lock);
}

#[test]
fn a_pull_waits_for_the_command_before_it() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let store = folder.path().join("store");
    let name = registry.put("app:v1", &Image::marked("waits", 1000));
    let lock = held(&store);
    let mut pull = program();
    let stderr = folder.path().join("stderr");
    pull.arg("--store").arg(&store).args(["pull", "-q", &name]).stdout(Stdio::null());
    let mut pull = pull.stderr(fs::File::create(&stderr).unwrap()).spawn().unwrap();
    wait_until("the pull to say so", || fs::read_to_string(&stderr).unwrap().contains("at most 30 s"));
    assert!(pull.try_wait().unwrap().is_none());
    drop(lock);
    assert!(pull.wait().unwrap().success(), "{}", fs::read_to_string(&stderr).unwrap());
    assert_eq!(with_store(&store, ["ls", "-q"]).ok().lines().count(), 1);
}

#[test]
fn planted_links_lead_nowhere() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let (store, victim) = (folder.path().join("store"), folder.path().join("victim"));
    let name = registry.put("app:v1", &Image::marked("planted", 1000));
    fs::write(&victim, "precious").unwrap();
    with_store(&store, ["pin", "x"]).ok();
    symlink(&victim, store.join("names.new")).unwrap();
    fs::hard_link(&victim, store.join("records.new")).unwrap();
    with_store(&store, ["pull", "-q", &name]).ok();
    fs::remove_file(store.join("lock")).unwrap();
    symlink(&victim, store.join("lock")).unwrap();
    with_store(&store, ["pull", "-q", &name]).refused(&["could not open the lock"]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

/// `imagelet` with a configuration that names a socket and a store.
fn configured(folder: &Path, socket: &Path) -> impl Fn(&[&str]) -> Outcome {
    let config = folder.join("config.yaml");
    let store = folder.join("store");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nsocket: {}\nstore: {{directory: '{}'}}\n",
        socket.display(),
        store.display()
    );
    fs::write(&config, text).unwrap();
    with_store(&store, ["pin", "x"]).ok();
    move |arguments| run(program().env("IMAGELET_CONFIG", &config).args(arguments))
}

#[test]
fn a_daemon_that_is_configured_and_does_not_answer_is_an_error_and_no_other_store_is_taken() {
    let folder = scratch();
    let socket = folder.path().join("imagelet.sock");
    let run = configured(folder.path(), &socket);
    let refused = |why: &str| {
        run(&["ls"]).refused(&[socket.to_str().unwrap(), "does not answer", why, "--store DIR"]);
    };
    refused("no such socket");
    // A daemon that was killed leaves its socket.
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    drop(listener);
    refused("refused");
    fs::remove_file(&socket).unwrap();
    // One that hangs takes connections and says nothing.
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused("did not answer a first call within 10s");
    drop(listener);
    fs::remove_file(&socket).unwrap();
    // Who names a store wants that one.
    let store = folder.path().join("store");
    run(&["--store", store.to_str().unwrap(), "ls"]).ok();

    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    assert_eq!(run(&["status", "-o", "json"]).json()["process"], "daemon", "the daemon that is there is asked");
    assert!(daemon.stop(Signal::TERM).success());
}
