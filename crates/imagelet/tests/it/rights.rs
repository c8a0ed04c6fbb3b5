//! Who gets an image that is on the node: those to whom its registry grants it now; digests that are known open nothing.

use std::{fs, path::Path};

use imagelet_core::{error::RuntimeErrorKind, image::ImageSpec, ports::ImageService as _};

use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::Image,
    program::Daemon,
    relay::{before_containerd, by, connect, embedded, in_runtime, pull, request},
    testbed::{Containerd, Registry, scratch},
};

/// A daemon over a store of its own, with these settings.
fn daemon(folder: &Path, settings: &str) -> Daemon {
    let config = folder.join("config.yaml");
    let head = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {enabled: false}\n\
                pulls: {retryBudget: 2s}\n";
    fs::write(&config, format!("{head}{settings}\n")).unwrap();
    let store = folder.join("store");
    Daemon::start(folder, ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()])
}

fn manifest(image: &Image) -> Answer {
    Answer::ok(&image.manifest.media_type, &image.manifest.bytes)
}

/// Whether any file below the folder has the text.
fn is_written(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return is_written(&path, text);
        }
        let bytes = fs::read(&path).unwrap();
        path.is_file() && bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn a_private_image_is_not_opened_by_a_registry_that_only_names_its_id() {
    const PASSWORD: &str = "zebra-lantern-42";
    let (registry, evil) = (Registry::start_with_login(&format!("alice:{PASSWORD}")), FakeRegistry::start());
    let image = Image::marked("private", 1000);
    let name = registry.push("private:v1", &image);
    // The manifest of the private image, and nothing that it names.
    let theirs = evil.name("thief/app:v1");
    let digest = evil.name(&format!("thief/app@{}", image.manifest.digest));
    evil.answer("/v2/thief/app/manifests/v1", manifest(&image));
    evil.answer(&format!("/v2/thief/app/manifests/{}", image.manifest.digest), manifest(&image));
    let folder = scratch();
    let daemon = embedded(folder.path());
    in_runtime(async {
        let images = connect(&daemon).await;
        assert_eq!(pull(&images, &by(&name, "alice", PASSWORD)).await.unwrap(), image.id());
        for theirs in [&theirs, &digest] {
            let error = pull(&images, &request(theirs)).await.unwrap_err();
            assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{theirs}: {error}");
            assert_eq!(images.status(&ImageSpec::new(theirs)).await.unwrap(), None, "{theirs}");
        }
    });
    daemon.run(["pull", "--policy", "IfNotPresent", &theirs]).refused(&["thief/app"]);
    assert_eq!(daemon.run(["ls", "--all", "-o", "json"]).json().to_string().matches("thief").count(), 0);
    let records = folder.path().join("store/state");
    assert!(is_written(&records, "private"), "the pull of the private image is on record");
    assert!(!is_written(&records.join("image_manager/pulled"), "thief"), "a right is on record for the attacker");
    // A registry that sends the configuration opens the layers that it names.
    let blob = Answer::ok("application/octet-stream", &image.config.bytes);
    evil.answer(&format!("/v2/thief/app/blobs/{}", image.config.digest), blob);
    in_runtime(async { assert_eq!(pull(&connect(&daemon).await, &request(&theirs)).await.unwrap(), image.id()) });
}

#[test]
fn a_credential_that_was_revoked_pulls_a_digest_no_more_than_a_tag() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = Image::marked("private", 1000);
    let name = registry.put("private:v1", &image);
    let digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
    let daemon = embedded(folder.path());
    let alice = |name: &str| by(name, "alice", "zebra-lantern-42");
    let asked = || registry.requests().into_iter().filter(|asked| asked.contains("/manifests/")).collect::<Vec<_>>();
    in_runtime(async {
        let images = connect(&daemon).await;
        for name in [&name, &digest, &digest] {
            assert_eq!(pull(&images, &alice(name)).await.unwrap(), image.id());
        }
        let path = format!("/v2/private/manifests/{}", image.manifest.digest);
        assert_eq!(
            asked(),
            ["GET /v2/private/manifests/v1".to_owned(), format!("HEAD {path}"), format!("HEAD {path}")]
        );
        for (answer, kind) in [(403, RuntimeErrorKind::Denied), (404, RuntimeErrorKind::NotFound)] {
            for path in ["/v2/private/manifests/v1", &path] {
                registry.answer(path, Answer::status(answer, "{}"));
            }
            for name in [&name, &digest] {
                assert_eq!(pull(&images, &alice(name)).await.unwrap_err().kind(), kind, "{name}");
            }
        }
        // What is granted again is had again, and no layer comes twice.
        registry.put("private:v1", &image);
        assert_eq!(pull(&images, &alice(&digest)).await.unwrap(), image.id());
    });
    let layers = registry.requests().iter().filter(|asked| asked.ends_with(&image.layers[0].digest)).count();
    assert_eq!(layers, 1);
}

#[test]
fn a_runtime_hears_of_each_pull_by_digest_with_the_callers_credential() {
    const PASSWORD: &str = "zebra-lantern-42";
    let (registry, folder) = (Registry::start_with_login(&format!("alice:{PASSWORD}")), scratch());
    let image = Image::marked("private", 1000);
    let name = registry.push("private:v1", &image);
    let digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
    let containerd = Containerd::start(folder.path(), &registry);
    let daemon = before_containerd(folder.path(), &containerd);
    in_runtime(async {
        let images = connect(&daemon).await;
        assert_eq!(pull(&images, &by(&digest, "alice", PASSWORD)).await.unwrap(), image.id());
    });
    drop(registry);
    in_runtime(async {
        let images = connect(&daemon).await;
        pull(&images, &by(&digest, "alice", PASSWORD)).await.expect_err("the registry is not there to be asked");
    });
}

#[test]
fn only_where_it_is_set_a_digest_is_had_while_its_registry_is_away_and_the_answer_is_noted() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = Image::marked("private", 1000);
    let name = registry.put("private:v1", &image);
    let digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
    let daemon = daemon(folder.path(), "staleOnOutage: {enabled: true}");
    in_runtime(async {
        let images = connect(&daemon).await;
        let alice = by(&digest, "alice", "zebra-lantern-42");
        assert_eq!(pull(&images, &alice).await.unwrap(), image.id());
        for path in ["v1", &image.manifest.digest] {
            registry.answer(&format!("/v2/private/manifests/{path}"), Answer::status(503, "busy"));
        }
        assert_eq!(pull(&images, &alice).await.unwrap(), image.id());
        let other = pull(&images, &by(&digest, "mallory", "zebra-lantern-42")).await.unwrap_err();
        assert_eq!(other.kind(), RuntimeErrorKind::RegistryUnavailable, "{other}");
    });
    let events = daemon.run(["events", "-o", "json"]).ok();
    assert!(events.contains("used although its registry is unavailable"), "{events}");
}

#[test]
fn an_image_from_before_the_first_record_stays_everybodys_after_a_private_pull_of_the_same_image_and_a_restart() {
    const PASSWORD: &str = "zebra-lantern-43";
    let (private, open) = (Registry::start_with_login(&format!("alice:{PASSWORD}")), FakeRegistry::start());
    let image = Image::marked("shared", 1000);
    let (loaded, theirs) = (open.put("app:v1", &image), private.push("team/app:v1", &image));
    let folder = scratch();
    let daemon = embedded(folder.path());
    in_runtime(async { pull(&connect(&daemon).await, &request(&loaded)).await.unwrap() });
    daemon.stop(rustix::process::Signal::TERM);
    // As on a node whose images are older than the records.
    fs::remove_dir_all(folder.path().join("store/state/image_manager")).unwrap();
    let mut daemon = embedded(folder.path());
    in_runtime(async { pull(&connect(&daemon).await, &by(&theirs, "alice", PASSWORD)).await.unwrap() });
    for _ in 0..2 {
        daemon.run(["pull", "--policy", "Never", &loaded]).ok();
        daemon.stop(rustix::process::Signal::TERM);
        daemon = embedded(folder.path());
    }
}
