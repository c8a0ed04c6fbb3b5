//! Which host sent what: `why` names mirrors and registry of a pull with their bytes and failures.

use std::{fs, path::Path, time::Duration};

use serde_json::Value;

use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::Image,
    program::Daemon,
    relay::{connect, in_runtime, pull, request},
    testbed::scratch,
};

const PASSWORD: &str = "correct-horse";
/// Where the mirror breaks off.
const CUT_AT: usize = 300_000;

/// The daemon of a node whose registry has a mirror.
fn node(folder: &Path, origin: &str, mirror: &str) -> Daemon {
    let certs = folder.join("certs.d").join(origin);
    fs::create_dir_all(&certs).unwrap();
    let hosts =
        format!("server = \"http://{origin}\"\n[host.\"http://{mirror}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
    fs::write(certs.join("hosts.toml"), hosts).unwrap();
    let config = folder.join("config.yaml");
    fs::write(&config, format!("registry: {{configPath: {}}}\n", folder.join("certs.d").display())).unwrap();
    Daemon::start(folder, ["--store", folder.join("store").to_str().unwrap(), "--config", config.to_str().unwrap()])
}

/// Rows of the hosts of the last event of an image.
fn hosts(daemon: &Daemon, name: &str) -> Vec<Value> {
    let why = daemon.run(["why", "-o", "json", name]).json();
    let history = why["images"][0]["history"].as_array().unwrap().clone();
    let of_pull = history.iter().rfind(|it| it["what"].as_str().unwrap().starts_with("pull")).unwrap();
    of_pull["hosts"].as_array().cloned().unwrap_or_default()
}

#[test]
fn why_names_the_mirror_that_broke_off_and_the_registry_that_went_on_with_their_bytes() {
    let (origin, mirror, folder) = (FakeRegistry::start(), FakeRegistry::start(), scratch());
    let image = Image::marked("app", 900_000);
    let name = origin.put("team/app:v1", &image);
    let (address, mirror_address) = (origin.name(""), mirror.name(""));
    let (address, mirror_address) = (address.trim_end_matches('/'), mirror_address.trim_end_matches('/'));
    // A mirror finds the registry in the query.
    let serve = |path: &str, answer: Answer| mirror.answer(&format!("/v2/team/app/{path}?ns={address}"), answer);
    serve("manifests/v1", Answer::ok(&image.manifest.media_type, &image.manifest.bytes));
    serve(&format!("blobs/{}", image.config.digest), Answer::ok("application/octet-stream", &image.config.bytes));
    let layer = &image.layers[0];
    let cut = Answer { cut_at: Some(CUT_AT), ..Answer::ok("application/octet-stream", &layer.bytes) };
    serve(&format!("blobs/{}", layer.digest), cut);

    let daemon = node(folder.path(), address, mirror_address);
    daemon.run(["pull", "-q", "--creds", &format!("user:{PASSWORD}"), &name]).ok();
    let rows = hosts(&daemon, &name);
    let row = |host: &str| rows.iter().find(|row| row["host"] == host).unwrap_or_else(|| panic!("{host}: {rows:?}"));
    let (from_mirror, from_origin) = (row(mirror_address), row(address));
    assert_eq!((from_mirror["manifest"].as_bool(), from_origin["manifest"].as_bool()), (Some(true), Some(false)));
    assert_eq!((from_mirror["blobs"].as_u64(), from_origin["blobs"].as_u64()), (Some(2), Some(1)));
    let bytes = |row: &Value| row["bytes"].as_u64().unwrap();
    let config = image.config.bytes.len() as u64;
    assert_eq!(bytes(from_mirror), CUT_AT as u64 + config, "{rows:?}");
    assert_eq!(bytes(from_mirror) + bytes(from_origin), layer.bytes.len() as u64 + config, "{rows:?}");
    assert!(from_mirror["failures"]["connection-lost"].as_u64().unwrap_or_default() > 0, "{rows:?}");
    assert!(from_origin.get("failures").is_none(), "{rows:?}");

    let why = daemon.run(["why", &name]).ok();
    for word in [mirror_address, address, "manifest", "of 2 blobs", "of 1 blob", "connection-lost"] {
        assert!(why.contains(word), "`{word}` is missing:\n{why}");
    }
    let log = fs::read_dir(folder.path().join("store/state/decisions")).unwrap();
    for text in log.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).chain([why]) {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[test]
fn why_shows_a_pull_of_wrong_bytes_as_failed_with_its_host() {
    let (origin, mirror, folder) = (FakeRegistry::start(), FakeRegistry::start(), scratch());
    let (address, mirror_address) = (origin.name(""), mirror.name(""));
    let (address, mirror_address) = (address.trim_end_matches('/'), mirror_address.trim_end_matches('/'));
    let daemon = node(folder.path(), address, mirror_address);
    // Larger than what is read into memory at once, and a blob in one piece.
    for (number, spoiled) in ["layer", "config"].into_iter().enumerate() {
        let image = Image::marked(spoiled, 900_000);
        let repository = format!("team/app{number}");
        let name = origin.put(&format!("{repository}:v1"), &image);
        let blob = if spoiled == "layer" { &image.layers[0] } else { &image.config };
        origin.spoil(&repository, &blob.digest, |answer| answer.body[0] ^= 1);
        daemon.run(["pull", "-q", &name]).refused(&[&blob.digest]);
        let why = daemon.run(["why", &name]).ok();
        for word in ["pull failed", "digest-mismatch", address] {
            assert!(why.contains(word), "`{word}` is missing for a {spoiled}:\n{why}");
        }
        let rows = hosts(&daemon, &name);
        let row = rows.iter().find(|row| row["host"] == address).unwrap_or_else(|| panic!("{rows:?}"));
        assert!(row["failures"]["digest-mismatch"].as_u64() > Some(0), "{rows:?}");
        // A page of a login is no image that was built wrongly.
        let page = Answer::ok("text/html", b"<html>log in</html>");
        origin.answer(&format!("/v2/{repository}/manifests/v2"), page);
        let failure = daemon.run(["pull", "-q", "-o", "json", &name.replace(":v1", ":v2")]);
        assert!(failure.stdout.contains("answer-invalid"), "{failure:?}");
        assert!(!failure.stderr.contains("build and push"), "{failure:?}");
    }
}

/// A registry that reads a blob whole, or fetches an image, before it begins each answer.
#[test]
fn a_registry_that_takes_seconds_to_begin_each_answer_serves_a_command_and_a_kubelet_and_is_asked_once_for_each() {
    const DELAY: Duration = Duration::from_millis(2500);
    let (origin, folders) = (FakeRegistry::start(), [scratch(), scratch()]);
    let names = ["command", "kubelet"].map(|way| origin.put(&format!("team/{way}:v1"), &Image::marked(way, 2000)));
    let address = origin.name("");
    let address = address.trim_end_matches('/');
    origin.delay(DELAY);
    let daemon = |folder: &Path, timeout: &str| {
        let config = folder.join("config.yaml");
        fs::write(&config, format!("registry: {{headTimeout: {timeout}, configPath: /nonexistent}}\n")).unwrap();
        let store = folder.join("store");
        Daemon::start(folder, ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()])
    };
    // A deadline that is too short ends the pull of a kubelet, which asks again by itself.
    let hasty = daemon(folders[0].path(), "1s");
    in_runtime(async {
        let error = pull(&connect(&hasty).await, &request(&names[1])).await.unwrap_err();
        assert!(error.chain().contains("the connection brought no byte for 1 s"), "{}", error.chain());
    });
    drop(hasty);
    let asked_before = origin.requests().len();
    let patient = daemon(folders[1].path(), "20s");
    let outcome = patient.run(["pull", &names[0]]);
    assert!(outcome.stderr.contains(&format!("waiting for {address}")), "{outcome:?}");
    outcome.ok();
    in_runtime(async { pull(&connect(&patient).await, &request(&names[1])).await.unwrap() });
    let requests = origin.requests().split_off(asked_before);
    for path in ["/team/command/", "/team/kubelet/"] {
        let asked = requests.iter().filter(|request| request.contains(path)).count();
        assert_eq!(asked, 3, "a manifest, a configuration and a layer: {requests:?}");
    }
}

#[test]
fn why_names_the_hosts_of_a_pull_that_failed_and_the_class_of_each() {
    let (origin, mirror, folder) = (FakeRegistry::start(), FakeRegistry::start(), scratch());
    let (address, mirror_address) = (origin.name(""), mirror.name(""));
    let (address, mirror_address) = (address.trim_end_matches('/'), mirror_address.trim_end_matches('/'));
    mirror.answer(&format!("/v2/team/app/manifests/v1?ns={address}"), Answer::status(403, "{}"));
    let daemon = node(folder.path(), address, mirror_address);
    let name = origin.name("team/app:v1");
    daemon.run(["pull", "-q", &name]).refused(&["team/app"]);
    let rows = hosts(&daemon, &name);
    let classes = |host: &str| {
        let row = rows.iter().find(|row| row["host"] == host).unwrap_or_else(|| panic!("{host}: {rows:?}"));
        row["failures"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(classes(mirror_address), ["forbidden"]);
    assert_eq!(classes(address), ["image-unknown"]);
}
