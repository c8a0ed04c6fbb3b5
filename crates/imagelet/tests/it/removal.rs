//! Removals over CRI: what stands against one, what does not, and what others see meanwhile, over both backends.

use std::{path::Path, time::Duration};

use imagelet_core::{
    error::RuntimeErrorKind,
    image::ImageSpec,
    ports::{ContainerService as _, ContainerState, ImageService as _},
};
use imagelet_runtime::cri::{Endpoint, RemoteContainerService, RemoteImageService};

use crate::{
    between::before,
    images::Image,
    program::{Daemon, program, run, write_store_config},
    relay::{connect, in_runtime, pull, request},
    scripted::{self, Runtime, Script},
    testbed::{Containerd, Registry, scratch, wait_until},
    wire::pods::TestPods,
};

const FIRST: &str = "reg.test/first:v1";
const SECOND: &str = "reg.test/second:v1";

fn embedded(folder: &Path, settings: &str) -> Daemon {
    let config = folder.join("config.yaml");
    let head = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {enabled: false}\n";
    std::fs::write(&config, format!("{head}{settings}")).unwrap();
    let store = folder.join("store");
    Daemon::start(folder, ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()])
}

async fn is_present(images: &RemoteImageService, name: &str) -> bool {
    images.status(&ImageSpec::new(name)).await.unwrap().is_some()
}

/// What was pulled a moment ago, and so is leased, goes when that is ordered; what is pinned does, too, and is told.
async fn what_is_ordered_goes(daemon: &Daemon, names: &[String; 2]) {
    let images = connect(daemon).await;
    for name in names {
        pull(&images, &request(name)).await.unwrap();
    }
    daemon.run(["pin", &names[1]]).ok();
    for name in names {
        images.remove(&ImageSpec::new(name)).await.unwrap();
        assert!(!is_present(&images, name).await);
    }
    let log = daemon.part.log();
    assert!(log.contains("PinnedImageRemoved") && log.contains(&format!("pinned by {}", names[1])), "{log}");
    let why = daemon.run(["why", &names[0]]).ok();
    assert!(why.contains("CRI"), "it is on record who ordered it: {why}");
}

#[test]
fn a_removal_over_cri_obeys_uses_and_neither_pins_nor_leases_and_takes_used_images_where_that_is_wanted() {
    let (registry, folders) = (Registry::start(), [scratch(), scratch(), scratch()]);
    registry.push("pause:3.9", &Image::busybox("pause"));
    let image = Image::busybox("used");
    let name = registry.push("used:v1", &image);
    let ordered = ["leased", "pinned"].map(|it| registry.push(&format!("{it}:v1"), &Image::marked(it, 1000)));
    let containerd = Containerd::start(folders[0].path(), &registry);
    let endpoint = containerd.endpoint();
    let taking = "cri: {removeInUse: true}\n";
    let (careful, bold) =
        (before(folders[0].path(), &endpoint, "", ""), before(folders[1].path(), &endpoint, "", taking));
    in_runtime(async {
        what_is_ordered_goes(&careful, &ordered).await;
        let (careful, bold) = (connect(&careful).await, connect(&bold).await);
        pull(&careful, &request(&name)).await.unwrap();
        let pods = TestPods::connect(&endpoint.parse::<Endpoint>().unwrap(), folders[0].path()).await.unwrap();
        let sandbox = pods.run_sandbox("web").await.unwrap();
        let container = pods.run_container(&sandbox, image.id(), &["/bin/sleep", "3600"]).await.unwrap();
        for text in [name.as_str(), image.id()] {
            let refused = careful.remove(&ImageSpec::new(text)).await.unwrap_err();
            assert_eq!(refused.kind(), RuntimeErrorKind::InUse, "{refused}");
            let text = refused.to_string();
            assert_eq!(text, "rpc error: code = FailedPrecondition desc = the image is in use by default/web/main");
        }
        assert!(is_present(&careful, &name).await);
        // containerd takes the names away; its container keeps its files.
        bold.remove(&ImageSpec::new(&name)).await.unwrap();
        bold.remove(&ImageSpec::new(&name)).await.unwrap();
        assert!(!is_present(&careful, &name).await && !is_present(&bold, image.id()).await);
        let runtime =
            RemoteContainerService::connect(&endpoint.parse().unwrap(), Duration::from_mins(1)).await.unwrap();
        let listed = runtime.containers().await.unwrap();
        let state = listed.iter().find(|one| one.id == container).map(|one| one.state);
        assert_eq!(state, Some(ContainerState::Running));
        // And the image comes back under the container that still runs.
        assert_eq!(pull(&careful, &request(&name)).await.unwrap(), image.id());
        pods.remove_sandbox(&sandbox).await.unwrap();
    });

    // What the embedded store has mounted stays either way: the kernel holds it.
    let daemon = embedded(folders[2].path(), taking);
    let target = folders[2].path().join("mnt");
    std::fs::create_dir(&target).unwrap();
    in_runtime(async {
        what_is_ordered_goes(&daemon, &ordered).await;
        let images = connect(&daemon).await;
        pull(&images, &request(&name)).await.unwrap();
        daemon.run(["mount", &name, target.to_str().unwrap()]).ok();
        let refused = images.remove(&ImageSpec::new(&name)).await.unwrap_err();
        assert_eq!(refused.kind(), RuntimeErrorKind::InUse, "{refused}");
        assert!(is_present(&images, &name).await);
        daemon.run(["unmount", target.to_str().unwrap()]).ok();
        images.remove(&ImageSpec::new(&name)).await.unwrap();
        assert!(!is_present(&images, &name).await);
    });
}

#[test]
fn who_asks_for_an_image_during_its_removal_waits_and_learns_that_it_is_gone() {
    let folder = scratch();
    let images = vec![scripted::image(FIRST, 3000), scripted::image(SECOND, 2000)];
    let script = Script { images, holds_removals: true, ..Script::default() };
    let runtime = Runtime::start(folder.path(), script);
    let daemon = before(folder.path(), &runtime.endpoint(), "", "gc: {enabled: false}\n");
    let clients = tokio::runtime::Runtime::new().unwrap();
    let client = clients.block_on(connect(&daemon));
    let remove = || {
        let client = client.clone();
        clients.spawn(async move { client.remove(&ImageSpec::new(FIRST)).await })
    };
    let first = remove();
    wait_until("the removal", || runtime.with(|script| !script.calls.is_empty()));
    let again = remove();
    let asked = clients.spawn({
        let client = client.clone();
        async move { client.status(&ImageSpec::new(FIRST)).await }
    });
    // Other images are answered at once.
    assert!(clients.block_on(client.status(&ImageSpec::new(SECOND))).unwrap().is_some());
    std::thread::sleep(Duration::from_millis(300));
    assert!(!asked.is_finished(), "it was told that the image is here, which is on its way out");
    runtime.with(|script| script.holds_removals = false);
    clients.block_on(first).unwrap().unwrap();
    clients.block_on(again).unwrap().unwrap();
    assert_eq!(clients.block_on(asked).unwrap().unwrap(), None);
}

#[test]
fn an_image_volume_of_a_runtime_holds_its_image_and_is_told_on_the_socket() {
    let folder = scratch();
    let script = Script {
        images: vec![scripted::image(FIRST, 3000), scripted::image(SECOND, 2000)],
        containers: vec![scripted::container("web", FIRST)],
        volumes: [("container-web".to_owned(), vec![scripted::id_of(SECOND)])].into(),
        ..Script::default()
    };
    let runtime = Runtime::start(folder.path(), script);
    let settings = "imageMinimumGCAge: 1ms\ngc: {enabled: false, leaseFor: 0s}\n";
    let daemon = before(folder.path(), &runtime.endpoint(), "", settings);
    in_runtime(async {
        let mut client = crate::pod_life::runtime_client(&daemon).await;
        let asked = crate::wire::v1::ContainerStatusRequest { container_id: "container-web".into() };
        let mounts = client.container_status(asked).await.unwrap().into_inner().status.unwrap().mounts;
        let told = mounts[0].image.as_ref().unwrap();
        assert_eq!(
            (told.image.as_str(), told.image_ref.as_str()),
            (&*scripted::id_of(SECOND), &*scripted::id_of(SECOND))
        );
        let images = connect(&daemon).await;
        let refused = images.remove(&ImageSpec::new(SECOND)).await.unwrap_err();
        assert_eq!(refused.kind(), RuntimeErrorKind::InUse);
        assert!(refused.to_string().ends_with("in use by default/web/web (volume)"), "{refused}");
    });
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert_eq!(runtime.with(|script| script.images.len()), 2);
}

#[test]
fn a_runtime_that_lists_no_containers_any_more_is_not_believed_at_once_when_it_is_ordered_to_remove() {
    let folder = scratch();
    let script = Script {
        images: vec![scripted::image(FIRST, 3000)],
        containers: vec![scripted::container("web", FIRST)],
        ..Script::default()
    };
    let runtime = Runtime::start(folder.path(), script);
    let daemon = before(folder.path(), &runtime.endpoint(), "", "gc: {enabled: false}\n");
    wait_until("a look at the container", || {
        let listed = daemon.run(["ls", "-o", "json"]);
        listed.code == 0 && listed.json()["images"][0]["inUseBy"][0] == "default/web/web"
    });
    runtime.with(|script| script.containers.clear());
    in_runtime(async {
        let refused = connect(&daemon).await.remove(&ImageSpec::new(FIRST)).await.unwrap_err();
        assert_eq!(refused.kind(), RuntimeErrorKind::Unavailable, "{refused}");
        assert!(refused.chain().contains("lists no containers where it listed some"), "{}", refused.chain());
    });
    assert_eq!(runtime.with(|script| script.calls.clone()), Vec::<String>::new());
}

/// A command beside a runtime sees containers go that an earlier command saw, and asks a second time, a minute later.
#[test]
fn a_command_without_a_daemon_looks_twice_where_containers_are_missing() {
    let stories: [(&str, &[&str]); 2] =
        [("all containers ended", &[]), ("the last container of one image ended", &[SECOND])];
    std::thread::scope(|scope| {
        for (story, used) in stories {
            scope.spawn(move || {
                let folder = scratch();
                let script = Script {
                    images: vec![scripted::image(FIRST, 1000), scripted::image(SECOND, 1000)],
                    containers: vec![scripted::container("first", FIRST), scripted::container("second", SECOND)],
                    ..Script::default()
                };
                let runtime = Runtime::start(folder.path(), script);
                let config = write_store_config(
                    folder.path(),
                    &format!("directory: '{}'", folder.path().join("state").display()),
                );
                let text = std::fs::read_to_string(&config).unwrap();
                let endpoint = runtime.endpoint();
                std::fs::write(&config, format!("{text}imageService: {{cri: {{endpoint: '{endpoint}'}}}}\n")).unwrap();
                let imagelet = |arguments: &[&str]| run(program().env("IMAGELET_CONFIG", &config).args(arguments));
                let collect = ["gc", "--all-unused", "--now"];
                imagelet(&collect).ok();
                runtime.with(|script| {
                    assert!(script.calls.is_empty(), "{story}: {:?}", script.calls);
                    script.containers.drain(..2 - used.len());
                });
                let outcome = imagelet(&collect);
                assert!(outcome.stderr.contains("lists fewer containers than before"), "{story}: {outcome:?}");
                outcome.ok();
                let present = runtime
                    .with(|script| script.images.iter().map(|image| image.repo_tags[0].clone()).collect::<Vec<_>>());
                assert_eq!(present, used, "{story}");
            });
        }
    });
}
