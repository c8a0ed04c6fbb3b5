//! Between a kubelet and what keeps the images: every call over CRI goes the way of all requests, over both backends.

use std::{path::Path, sync::Arc, time::Duration};

use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    error::{RuntimeError, RuntimeErrorKind},
    events::PodIdentity,
    image::ImageSpec,
    ports::{ImageService as _, PullRequest, no_progress},
};
use imagelet_runtime::cri::{Endpoint, RemoteImageService};
use rustix::process::Signal;

use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::Image,
    program::{Daemon, write_store_config},
    testbed::{Containerd, Registry, require_root, scratch, wait_until},
    wire::pods::TestPods,
};

/// How long a call over the socket may take.
const CALL_MAX: Duration = Duration::from_mins(1);

/// Callers of one image at once.
const CALLERS: usize = 50;

pub(crate) fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

pub(crate) async fn connect(daemon: &Daemon) -> RemoteImageService {
    let endpoint: Endpoint = daemon.endpoint().parse().unwrap();
    RemoteImageService::connect(&endpoint, CALL_MAX).await.unwrap()
}

pub(crate) fn embedded(folder: &Path) -> Daemon {
    let config = write_store_config(folder, "");
    Daemon::start(folder, ["--config", &config, "--store", folder.join("store").to_str().unwrap()])
}

pub(crate) fn before_containerd(folder: &Path, containerd: &Containerd) -> Daemon {
    let config = folder.join("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageService: {{cri: {{endpoint: '{}'}}}}\n\
         store: {{directory: '{}'}}\n",
        containerd.endpoint(),
        folder.join("state").display()
    );
    std::fs::write(&config, text).unwrap();
    Daemon::start(folder, ["--config", config.to_str().unwrap()])
}

pub(crate) fn request(name: &str) -> PullRequest {
    PullRequest { image: ImageSpec::new(name), ..PullRequest::default() }
}

pub(crate) fn by(name: &str, user: &str, password: &str) -> PullRequest {
    let kind = CredentialKind::Basic { username: user.into(), password: Secret::new(password) };
    let server_address = format!("http://{}", name.split('/').next().unwrap());
    PullRequest { credential: Some(Credential { kind, server_address }), ..request(name) }
}

pub(crate) async fn pull(images: &RemoteImageService, request: &PullRequest) -> Result<String, RuntimeError> {
    images.pull(request, no_progress()).await.map(|id| id.to_string())
}

async fn pull_by_many(daemon: &Daemon, name: &str) -> Vec<String> {
    let mut callers = tokio::task::JoinSet::new();
    let name: Arc<str> = name.into();
    for number in 0..CALLERS {
        let (images, name) = (connect(daemon).await, Arc::clone(&name));
        callers.spawn(async move {
            let (name_of_pod, uid) = (format!("web-{number}").into(), format!("uid-{number}").into());
            let pod = PodIdentity { namespace: "default".into(), name: name_of_pod, uid };
            pull(&images, &PullRequest { pod, ..request(&name) }).await.unwrap()
        });
    }
    callers.join_all().await
}

#[test]
fn fifty_callers_of_one_image_fetch_each_blob_of_it_once() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("many", 500_000);
    let name = registry.put("many:v1", &image);
    let held = registry.hold("many", &image.layers[0].digest);
    let daemon = embedded(folder.path());
    std::thread::scope(|scope| {
        let callers = scope.spawn(|| in_runtime(pull_by_many(&daemon, &name)));
        held.until_asked();
        // All are on board before the first byte comes.
        wait_until("all callers", || daemon.run(["status", "-o", "json"]).json()["pulls"][0]["askers"] == CALLERS);
        drop(held);
        let ids = callers.join().unwrap();
        assert_eq!(ids, vec![image.id(); CALLERS]);
    });
    let requests = registry.requests();
    for blob in image.layers.iter().chain([&image.config]) {
        let asked = requests.iter().filter(|request| request.ends_with(&blob.digest)).count();
        assert_eq!(asked, 1, "{requests:?}");
    }
}

#[test]
fn fifty_callers_of_one_image_of_containerd_fetch_each_blob_of_it_once() {
    let (registry, folder) = (Registry::start(), scratch());
    let image = Image::marked("many", 500_000);
    let name = registry.push("many:v1", &image);
    let containerd = Containerd::start(folder.path(), &registry);
    let daemon = before_containerd(folder.path(), &containerd);
    let ids = in_runtime(pull_by_many(&daemon, &name));
    assert_eq!(ids, vec![image.id(); CALLERS]);
    assert_eq!(registry.blob_requests(), image.layers.len() + 1);
}

#[test]
fn a_pull_ends_when_its_last_caller_hangs_up() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("slow", 500_000);
    let name = registry.put("slow:v1", &image);
    let held = registry.hold("slow", &image.layers[0].digest);
    let daemon = embedded(folder.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let call = || {
        let (images, asked) = (runtime.block_on(connect(&daemon)), request(&name));
        runtime.spawn(async move { pull(&images, &asked).await })
    };
    let pulls = || daemon.run(["status", "-o", "json"]).json()["pulls"].clone();
    let (one, other) = (call(), call());
    wait_until("both callers", || pulls()[0]["askers"] == 2);
    one.abort();
    wait_until("the one that stays", || pulls()[0]["askers"] == 1);
    other.abort();
    wait_until("the end of the pull", || pulls().as_array().unwrap().is_empty());
    drop(held);
    assert_eq!(daemon.run(["ls", "-q", "--all"]).ok(), "");
}

#[test]
fn credentials_of_a_call_open_that_pull_and_are_kept_nowhere() {
    const PASSWORD: &str = "zebra-lantern-42";
    let (registry, folder) = (Registry::start_with_login(&format!("alice:{PASSWORD}")), scratch());
    let image = Image::marked("private", 1000);
    let name = registry.push("private:v1", &image);
    let daemon = embedded(folder.path());
    in_runtime(async {
        let images = connect(&daemon).await;
        for refused in [request(&name), by(&name, "alice", "wrong")] {
            assert_eq!(pull(&images, &refused).await.unwrap_err().kind(), RuntimeErrorKind::Denied);
        }
        assert_eq!(pull(&images, &by(&name, "alice", PASSWORD)).await.unwrap(), image.id());
        // Its bytes are here now, and still nobody gets it by that: neither by its tag nor by its digest.
        let digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
        assert_eq!(pull(&images, &by(&digest, "alice", PASSWORD)).await.unwrap(), image.id());
        for name in [&name, &digest] {
            for refused in [request(name), by(name, "mallory", PASSWORD)] {
                assert_eq!(pull(&images, &refused).await.unwrap_err().kind(), RuntimeErrorKind::Denied, "{name}");
            }
        }
    });
    let digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
    drop(registry);
    in_runtime(async {
        // Nothing but the registry says who may pull, by a digest as by a tag.
        let images = connect(&daemon).await;
        for (name, user) in [(&digest, "alice"), (&digest, "mallory"), (&name, "alice")] {
            let away = pull(&images, &by(name, user, PASSWORD)).await.unwrap_err();
            assert_eq!(away.kind(), RuntimeErrorKind::RegistryUnavailable, "{name} by {user}");
            assert!(away.to_string().starts_with("RegistryUnavailable: "), "{away}");
        }
    });
    assert!(daemon.stop(Signal::TERM).success());
    let mut files = vec![folder.path().to_owned()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let told = bytes.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes());
            assert!(!told, "the password is in {}", path.display());
        }
    }
}

#[test]
fn a_pinned_image_is_shown_as_pinned_and_its_removal_is_obeyed_and_told() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("base", 1000);
    let name = registry.put("base:v1", &image);
    let other = registry.put("other:v1", &Image::marked("other", 1000));
    let daemon = embedded(folder.path());
    in_runtime(async {
        let images = connect(&daemon).await;
        for name in [&name, &other] {
            pull(&images, &request(name)).await.unwrap();
        }
        daemon.run(["pin", &name]).ok();
        let listed = images.list(None).await.unwrap();
        let pinned = listed.iter().filter(|image| image.pinned);
        assert_eq!(pinned.map(|image| image.id.to_string()).collect::<Vec<_>>(), [image.id()]);
        assert!(images.status(&ImageSpec::new(image.id())).await.unwrap().unwrap().pinned);
        assert!(!images.status(&ImageSpec::new(&other)).await.unwrap().unwrap().pinned);
        images.remove(&ImageSpec::new(image.id())).await.unwrap();
        assert_eq!(images.status(&ImageSpec::new(&name)).await.unwrap(), None);
        // Again, and five times at once: what is gone is gone.
        let spec = ImageSpec::new(&other);
        let removals = (0..5).map(|_| images.remove(&spec));
        for removed in futures_util::future::join_all(removals).await {
            removed.unwrap();
        }
        assert_eq!(*images.list(None).await.unwrap(), []);
    });
    let log = daemon.part.log();
    assert!(log.contains("PinnedImageRemoved") && log.contains(&format!("pinned by {name}")), "{log}");
}

#[test]
fn an_image_of_the_embedded_store_in_use_is_not_removed() {
    require_root("mounting");
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("used:v1", &Image::marked("used", 1000));
    let daemon = embedded(folder.path());
    let target = folder.path().join("mnt");
    std::fs::create_dir(&target).unwrap();
    let target = target.to_str().unwrap();
    in_runtime(async {
        let images = connect(&daemon).await;
        pull(&images, &request(&name)).await.unwrap();
        daemon.run(["mount", &name, target]).ok();
        let refused = images.remove(&ImageSpec::new(&name)).await.unwrap_err();
        assert_eq!(refused.kind(), RuntimeErrorKind::InUse);
        assert!(
            refused.to_string().contains("FailedPrecondition") && refused.to_string().contains(target),
            "{refused}"
        );
        daemon.run(["unmount", target]).ok();
        images.remove(&ImageSpec::new(&name)).await.unwrap();
    });
}

#[test]
fn failures_of_a_registry_come_in_the_words_that_a_kubelet_reads() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let broken = registry.put("broken:v1", &Image::marked("broken", 1000));
    registry.answer("/v2/broken/manifests/v1", Answer::status(503, "{}"));
    let daemon = embedded(folder.path());
    in_runtime(async {
        let images = connect(&daemon).await;
        for (name, kind, begins) in [
            (registry.name("absent:v1"), RuntimeErrorKind::NotFound, "rpc error: code = NotFound desc = "),
            (broken, RuntimeErrorKind::RegistryUnavailable, "RegistryUnavailable: "),
            ("127.0.0.1:1/app:v1".to_owned(), RuntimeErrorKind::RegistryUnavailable, "RegistryUnavailable: "),
            (
                "reg.test/UPPER:v1".to_owned(),
                RuntimeErrorKind::InvalidArgument,
                "rpc error: code = InvalidArgument desc = ",
            ),
        ] {
            let error = pull(&images, &request(&name)).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error}");
            assert!(error.to_string().starts_with(begins), "{name}: {error}");
        }
    });
}

#[test]
fn what_is_here_is_answered_and_started_without_its_registry_after_a_restart() {
    let (registry, folder) = (Registry::start(), scratch());
    let pause = registry.push("pause:3.9", &Image::busybox("pause"));
    let image = Image::busybox("application");
    let name = registry.push("application:v1", &image);
    let containerd = Containerd::start(folder.path(), &registry);
    let daemon = before_containerd(folder.path(), &containerd);
    in_runtime(async {
        let images = connect(&daemon).await;
        for name in [&pause, &name] {
            pull(&images, &request(name)).await.unwrap();
        }
    });
    assert!(daemon.stop(Signal::TERM).success());
    drop(registry);
    let daemon = before_containerd(folder.path(), &containerd);
    in_runtime(async {
        let images = connect(&daemon).await;
        let found = images.status(&ImageSpec::new(&name)).await.unwrap().expect("it is here");
        assert_eq!(found.id.as_str(), image.id());
        assert_eq!(images.list(None).await.unwrap().len(), 2);
        let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        let sandbox = pods.run_sandbox("web").await.unwrap();
        pods.run_container(&sandbox, found.id.as_str(), &["/bin/sleep", "3600"]).await.unwrap();
        let used = daemon.run(["inspect", "-o", "json", &name]).json();
        assert_eq!(used["image"]["inUseBy"][0], "default/web/main", "{used}");
        pods.remove_sandbox(&sandbox).await.unwrap();
    });
}

#[test]
fn the_embedded_store_answers_without_its_registry_after_a_restart() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("here", 1000);
    let name = registry.put("here:v1", &image);
    let daemon = embedded(folder.path());
    in_runtime(async { pull(&connect(&daemon).await, &request(&name)).await.unwrap() });
    assert!(daemon.stop(Signal::TERM).success());
    let asked = registry.requests().len();
    let daemon = embedded(folder.path());
    in_runtime(async {
        let images = connect(&daemon).await;
        assert_eq!(images.status(&ImageSpec::new(&name)).await.unwrap().unwrap().id.as_str(), image.id());
        assert_eq!(images.list(None).await.unwrap().len(), 1);
    });
    assert_eq!(registry.requests().len(), asked, "somebody asked the registry");
}

#[test]
fn every_call_is_answered_over_both_backends() {
    let (registry, folders) = (Registry::start(), [scratch(), scratch()]);
    let image = Image::busybox("application");
    let name = registry.push("application:v1", &image);
    let again = registry.push("application:again", &image);
    let digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
    let containerd = Containerd::start(folders[1].path(), &registry);
    let daemons = [embedded(folders[0].path()), before_containerd(folders[1].path(), &containerd)];
    for daemon in &daemons {
        in_runtime(async {
            let images = connect(daemon).await;
            let streaming = images.clone().streaming_lists(true);
            assert!(images.list(None).await.unwrap().is_empty() && streaming.list(None).await.unwrap().is_empty());
            for name in [&name, &again, &digest] {
                assert_eq!(pull(&images, &request(name)).await.unwrap(), image.id());
            }
            let listed = images.list(None).await.unwrap();
            assert_eq!((listed.len(), listed[0].id.as_str()), (1, image.id()));
            let mut tags = listed[0].tags.clone();
            tags.sort();
            assert_eq!((tags, &listed[0].digests), (vec![again.clone(), name.clone()], &vec![digest.clone()]));
            assert_eq!(streaming.list(None).await.unwrap(), listed);
            for text in [image.id(), &image.id()["sha256:".len()..][..12], &name, &again, &digest] {
                let found = images.status(&ImageSpec::new(text)).await.unwrap();
                assert_eq!(found.as_ref(), Some(&*listed[0]), "{text}");
                assert_eq!(images.list(Some(&ImageSpec::new(text))).await.unwrap(), listed, "{text}");
            }
            let details = images.details(&ImageSpec::new(&name)).await.unwrap().expect("it is here");
            assert_eq!(details.image, *listed[0]);
            assert_eq!(images.status(&ImageSpec::new("absent:v1")).await.unwrap(), None);
            let places = images.filesystem().await.unwrap();
            assert!(places.images[0].mountpoint.is_dir() && !places.containers.is_empty(), "{places:?}");
            // By one of its names: all of them go.
            images.remove(&ImageSpec::new(&again)).await.unwrap();
            images.remove(&ImageSpec::new(&again)).await.unwrap();
            for text in [image.id(), &name, &again, &digest] {
                assert_eq!(images.status(&ImageSpec::new(text)).await.unwrap(), None, "{text}");
            }
            assert_eq!(*images.list(None).await.unwrap(), []);
        });
    }
}

#[test]
fn a_runtime_that_is_away_is_told_and_found_again() {
    let (registry, folder) = (Registry::start(), scratch());
    let name = registry.push("here:v1", &Image::marked("here", 1000));
    let containerd = Containerd::start(folder.path(), &registry);
    let daemon = before_containerd(folder.path(), &containerd);
    let endpoint: Endpoint = daemon.endpoint().parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let images = runtime.block_on(connect(&daemon));
    runtime.block_on(async { pull(&images, &request(&name)).await.unwrap() });
    let told = runtime.block_on(images.filesystem()).unwrap();
    drop(containerd);
    runtime.block_on(async {
        // The file systems are answered as last known; everything else says what is wrong, and none hangs.
        assert_eq!(images.filesystem().await.unwrap().images[0].mountpoint, told.images[0].mountpoint);
        assert_eq!(images.list(None).await.unwrap_err().kind(), RuntimeErrorKind::Unavailable);
        assert_eq!(images.status(&ImageSpec::new(&name)).await.unwrap_err().kind(), RuntimeErrorKind::Unavailable);
        let failed = pull(&images, &request(&name)).await.unwrap_err();
        assert_eq!(failed.kind(), RuntimeErrorKind::Unavailable, "{failed}");
        // A kubelet that starts now proves the connection by such a call.
        RemoteImageService::connect(&endpoint, CALL_MAX).await.unwrap();
    });
    let status = daemon.run(["status", "-o", "json"]).json();
    assert!(!status["problems"].as_array().unwrap().is_empty(), "{status}");
}
