//! Images that travel as files: `export` and `import`, alone, through a daemon, and with other tools at the other end.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer, noise},
    program::{Daemon, with_store},
    testbed::{scratch, wait_until},
};

fn image() -> Image {
    Image::oci(&[
        Layer::gzip().file("lib/large", noise("archived", 300_000), 0o644),
        Layer::gzip().directory("etc", 0o755).file("etc/conf", "one line\n", 0o600).symlink("etc/link", "conf"),
    ])
}

fn skopeo(arguments: &[&str]) -> String {
    let output =
        Command::new("skopeo").arg("--insecure-policy").args(arguments).output().expect("`make parts` installs skopeo");
    assert!(output.status.success(), "skopeo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Id and names by digest of an image.
fn identity(store: &Path, name: &str) -> (String, Vec<String>) {
    let found = with_store(store, ["inspect", name, "-o", "json"]).json();
    let digests: Vec<String> = serde_json::from_value(found["image"]["digests"].clone()).unwrap();
    (found["image"]["id"].as_str().unwrap().to_owned(), digests)
}

#[test]
fn an_image_crosses_an_air_gap_and_stays_pinned() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = image();
    let name = registry.put("app:v1", &image);
    let [source, target, file] = ["source", "target", "app.tar"].map(|part| folder.path().join(part));
    with_store(&source, ["pull", "-q", &name]).ok();
    let exported = with_store(&source, ["export", "-o", "json", &name, text(&file)]).json();
    assert_eq!(
        (exported["id"].as_str(), exported["digest"].as_str()),
        (Some(image.id()), Some(&*image.manifest.digest))
    );
    drop(registry);

    let imported = with_store(&target, ["import", "--pin", "-o", "json", text(&file)]).json();
    let row = &imported["images"][0];
    assert_eq!((row["id"].as_str(), row["present"].as_bool()), (Some(image.id()), Some(false)));
    assert_eq!(identity(&target, &name), identity(&source, &name));
    with_store(&target, ["gc", "--all-unused", "--now"]).ok();
    with_store(&target, ["inspect", "-q", &name]).ok();
    let why = with_store(&target, ["why", &name]).ok();
    assert!(why.contains("imported by command"), "{why}");
    let again = with_store(&target, ["import", text(&file)]);
    assert!(again.stderr.contains("is present"), "{}", again.stderr);
    with_store(&target, ["verify"]).ok();

    // Without its registry and without kept blobs, the copy has no packed layer to export.
    with_store(&target, ["export", &name, text(&folder.path().join("again.tar"))])
        .refused(&["is not kept in the store", "store.keepBlobs"]);
    with_store(&target, ["import", text(&folder.path().join("none.tar"))]).refused(&["could not open the archive"]);
    with_store(&target, ["import", text(folder.path())]).refused(&["is a folder", "oci:"]);
}

#[test]
fn skopeo_reads_what_is_exported_and_what_it_writes_is_imported_with_every_digest() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = image();
    let name = registry.put("app:v1", &image);
    let at = |part: &str| folder.path().join(part);
    let source = at("source");
    with_store(&source, ["pull", "-q", &name]).ok();
    with_store(&source, ["export", "-q", &name, text(&at("app.tar"))]).ok();
    with_store(&source, ["export", "-q", &name, &format!("oci:{}", text(&at("layout")))]).ok();
    for exported in [format!("oci-archive:{}", text(&at("app.tar"))), format!("oci:{}", text(&at("layout")))] {
        let found: Value = serde_json::from_str(&skopeo(&["inspect", &exported])).unwrap();
        assert_eq!(found["Digest"].as_str(), Some(&*image.manifest.digest), "{exported}");
    }

    let archive = format!("oci-archive:{}", text(&at("app.tar")));
    let named = "registry.example/moved/app:v2";
    let kinds = [
        (format!("oci:{}:{named}", text(&at("copied"))), format!("oci:{}", text(&at("copied"))), true),
        (format!("oci-archive:{}:{named}", text(&at("copied.tar"))), text(&at("copied.tar")).to_owned(), true),
        (format!("docker-archive:{}:{named}", text(&at("saved.tar"))), text(&at("saved.tar")).to_owned(), false),
    ];
    for (number, (written, read, keeps_manifest)) in kinds.iter().enumerate() {
        let flags: &[&str] = if *keeps_manifest { &["--preserve-digests"] } else { &[] };
        skopeo(&[&["copy", "-q"], flags, &[&archive, written]].concat());
        let target = at(&format!("target-{number}"));
        assert_eq!(with_store(&target, ["import", "-q", read]).ok().trim(), image.id(), "{read}");
        let (_, digests) = identity(&target, named);
        let digest = format!("registry.example/moved/app@{}", image.manifest.digest);
        assert_eq!(digests == [digest], *keeps_manifest, "{digests:?}");
        with_store(&target, ["verify"]).ok();
    }
}

#[test]
fn a_daemon_exports_and_imports_what_a_pod_may_use_at_once() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = image();
    let name = registry.put("app:v1", &image);
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", text(&store)]);
    daemon.run(["pull", "-q", &name]).ok();
    let file = folder.path().join("app.tar");
    daemon.run(["export", "-q", &name, text(&file)]).ok();
    daemon.run(["rm", &name]).ok();
    drop(registry);
    assert_eq!(daemon.run(["import", "-q", text(&file)]).ok().trim(), image.id());
    let pod = folder.path().join("pod.yaml");
    fs::write(
        &pod,
        format!(
            "kind: Pod\nmetadata: {{name: p, uid: p}}\nspec:\n  containers:\n  - {{name: app, image: '{name}', imagePullPolicy: Never}}\n"
        ),
    )
    .unwrap();
    assert_eq!(daemon.run(["ensure", "-q", "-f", text(&pod)]).ok().trim(), image.id());
}

#[test]
fn a_daemon_imports_what_appears_in_its_folder_pins_it_and_moves_it_away_once() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let at = |part: &str| folder.path().join(part);
    let (one, two) = (image(), Image::marked("two", 1000));
    let (name, other) = (registry.put("app:v1", &one), registry.put("other:v1", &two));
    for name in [&name, &other] {
        with_store(&at("source"), ["pull", "-q", name]).ok();
    }
    with_store(&at("source"), ["export", "-q", &name, text(&at("app.tar"))]).ok();
    with_store(&at("source"), ["export", "-q", &other, &format!("oci:{}", text(&at("layout")))]).ok();
    drop(registry);

    fs::create_dir(at("arrivals")).unwrap();
    let config = at("config.yaml");
    fs::write(&config, format!("importFolder: {{directory: {}}}\n", at("arrivals").display())).unwrap();
    fs::copy(at("app.tar"), at("arrivals/app.tar.part")).unwrap();
    fs::write(at("arrivals/exposed.tar"), "every user may write here").unwrap();
    fs::set_permissions(at("arrivals/exposed.tar"), fs::Permissions::from_mode(0o666)).unwrap();
    let daemon = Daemon::start(folder.path(), ["--store", text(&at("store")), "--config", text(&config)]);
    fs::rename(at("layout"), at("arrivals/layout")).unwrap();
    fs::rename(at("app.tar"), at("arrivals/app.tar")).unwrap();
    wait_until("the archives are moved", || {
        ["done/app.tar", "done/layout/index.json", "failed/exposed.tar"]
            .iter()
            .all(|path| at("arrivals").join(path).exists())
    });
    let reason = fs::read_to_string(at("arrivals/failed/exposed.tar.reason")).unwrap();
    assert!(reason.contains("every user may write"), "{reason}");
    assert!(at("arrivals/app.tar.part").exists() && !at("arrivals/app.tar").exists());

    daemon.run(["gc", "--all-unused", "--now"]).ok();
    for (name, image) in [(&name, &one), (&other, &two)] {
        let found = daemon.run(["inspect", "-o", "json", name]).json();
        assert_eq!(found["image"]["id"].as_str(), Some(image.id()));
        assert_eq!(found["image"]["pinnedBy"].as_array().unwrap().len(), 1, "{found}");
    }
    let why = daemon.run(["why", "-o", "json", &name]).json();
    let history = why["images"][0]["history"].as_array().unwrap();
    let imported: Vec<_> = history.iter().filter(|it| it["code"] == "imported").collect();
    assert_eq!(imported.len(), 1, "{history:?}");
    assert!(imported[0]["reason"].as_str().unwrap().contains("arrivals/app.tar"), "{imported:?}");
    let events = daemon.run(["events"]).ok();
    assert!(events.contains("Imported 1 image from") && events.contains("ImportFailed"), "{events}");
}

#[test]
fn an_archive_whose_pin_fails_is_imported_and_filed_as_imported_and_each_name_is_reported() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let at = |part: &str| folder.path().join(part);
    let image = image();
    let name = registry.put("app:v1", &image);
    with_store(&at("source"), ["pull", "-q", &name]).ok();
    with_store(&at("source"), ["export", "-q", &name, text(&at("app.tar"))]).ok();
    drop(registry);
    fs::create_dir(at("arrivals")).unwrap();
    let config = at("config.yaml");
    fs::write(&config, format!("importFolder: {{directory: {}}}\n", at("arrivals").display())).unwrap();
    let daemon = Daemon::start(folder.path(), ["--store", text(&at("store")), "--config", text(&config)]);
    // A folder cannot be locked as the file of pins is.
    let lock = at("store/state/inventory/pins.lock");
    drop(fs::remove_file(&lock));
    fs::create_dir(&lock).unwrap();

    fs::copy(at("app.tar"), at("arrivals/.app.tar")).unwrap();
    fs::rename(at("arrivals/.app.tar"), at("arrivals/app.tar")).unwrap();
    wait_until("the archive is moved", || !at("arrivals/app.tar").exists());
    assert!(at("arrivals/done/app.tar").exists() && !at("arrivals/failed").exists());
    let found = daemon.run(["inspect", "-o", "json", &name]).json();
    assert_eq!(found["image"]["id"].as_str(), Some(image.id()));
    let failed = format!("cannot pin `{name}`");
    let events = daemon.run(["events", "-o", "json"]).ok();
    assert!(events.contains("Imported 1 image from"), "{events}");
    assert!(events.contains("PinFailed") && events.contains(&failed), "{events}");

    daemon.run(["import", "--pin", text(&at("app.tar"))]).refused(&["is present", &failed]);
    fs::remove_dir(&lock).unwrap();
    daemon.run(["import", "--pin", text(&at("app.tar"))]).ok();
    let found = daemon.run(["inspect", "-o", "json", &name]).json();
    assert_eq!(found["image"]["pinnedBy"], serde_json::json!([name]));
}
