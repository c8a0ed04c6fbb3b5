//! What critest asks of an image service, asked of the daemon's socket over both backends (`docs/spec/cri.md §7.3`).
//!
//! Names of the images and of the two registries are ours: the tests have no network. A test is named after what it
//! proves; the last test holds their list against critest's.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use imagelet_core::ports::{ContainerService as _, ImageService as _};
use imagelet_runtime::cri::{Endpoint, RemoteContainerService, RemoteImageService};
use imagelet_vectors::vectors;
use prost::Message as _;
use tempfile::TempDir;

use crate::{
    images::{Blob, Image},
    program::Daemon,
    source::repository,
    testbed::{Containerd, Registry, scratch},
    wire::{
        ImageServiceClient,
        pods::{TestPods, image_volume},
        v1,
    },
};

/// How long a call may take on a machine that does other things, too.
const CALL_MAX: Duration = Duration::from_mins(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Embedded,
    Containerd,
}

/// A daemon with its registry, and a client of its socket.
struct Bed {
    backend: Backend,
    client: ImageServiceClient,
    registry: Registry,
    daemon: Daemon,
    containerd: Option<Containerd>,
    folder: TempDir,
}

/// Runs one behaviour over the embedded store, then over containerd behind the daemon.
#[expect(clippy::needless_pass_by_value, reason = "closures are written where it is called")]
fn over_both(behaviour: impl AsyncFn(&mut Bed)) {
    for backend in [Backend::Embedded, Backend::Containerd] {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let (folder, registry) = (scratch(), Registry::start());
            let containerd = (backend == Backend::Containerd).then(|| Containerd::start(folder.path(), &registry));
            let config = folder.path().join("config.yaml");
            let text = format!(
                "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {{enabled: false}}\n\
                 store: {{directory: {}}}\n",
                folder.path().join("store").display()
            );
            std::fs::write(&config, text).unwrap();
            let endpoint = containerd.as_ref().map(Containerd::endpoint);
            let runtime = endpoint.iter().flat_map(|endpoint| ["--runtime-endpoint", endpoint]);
            let daemon =
                Daemon::start(folder.path(), ["--config", config.to_str().unwrap()].into_iter().chain(runtime));
            let channel = tonic::transport::Endpoint::new(daemon.endpoint()).unwrap().connect().await.unwrap();
            let client = ImageServiceClient::new(channel);
            let mut bed = Bed { backend, client, registry, daemon, containerd, folder };
            behaviour(&mut bed).await;
        });
    }
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() }
}

/// The same name in what counts as another registry: it is reached by another name.
fn elsewhere(name: &str) -> String {
    name.replacen("127.0.0.1", "localhost", 1)
}

impl Bed {
    /// Pushes an image of its own and answers its name.
    fn offer(&self, name: &str) -> String {
        self.registry.push(name, &Image::marked(name, 2000))
    }

    async fn pull(&mut self, image: &str) -> String {
        let request = v1::PullImageRequest { image: Some(spec(image)), ..v1::PullImageRequest::default() };
        let pulled = self.client.pull_image(request).await;
        pulled.unwrap_or_else(|error| panic!("{:?}: pull {image}: {error}", self.backend)).into_inner().image_ref
    }

    async fn status(&mut self, image: &str) -> Option<v1::Image> {
        let request = v1::ImageStatusRequest { image: Some(spec(image)), verbose: false };
        let status = self.client.image_status(request).await;
        status.unwrap_or_else(|error| panic!("{:?}: status of {image}: {error}", self.backend)).into_inner().image
    }

    /// As critest's helper asks: with a filter that has no image in it.
    async fn list(&mut self) -> Vec<v1::Image> {
        let request = v1::ListImagesRequest { filter: Some(v1::ImageFilter { image: None }) };
        self.client.list_images(request).await.unwrap().into_inner().images
    }

    /// As critest's helper does: by the id that the name has.
    async fn remove(&mut self, image: &str) {
        if let Some(found) = self.status(image).await {
            self.client.remove_image(v1::RemoveImageRequest { image: Some(spec(&found.id)) }).await.unwrap();
        }
    }

    async fn pulled(&mut self, image: &str) -> v1::Image {
        let reference = self.pull(image).await;
        let found = self.status(image).await.unwrap_or_else(|| panic!("{image} is not there"));
        assert_eq!(found.id, reference, "a pull answers with the id");
        found
    }
}

/// An image whose configuration names a user.
fn with_user(user: &str) -> Image {
    let mut image = Image::marked(user, 1000);
    let mut config: serde_json::Value = serde_json::from_slice(&image.config.bytes).unwrap();
    config["config"]["User"] = user.into();
    image.config = Blob::new(serde_json::to_vec(&config).unwrap(), &image.config.media_type);
    let (digest, size) = (image.config.digest.clone(), image.config.bytes.len());
    image.with_manifest(move |manifest| {
        manifest["config"]["digest"] = digest.into();
        manifest["config"]["size"] = size.into();
    })
}

#[test]
fn public_image_with_tag_should_be_pulled_and_removed() {
    over_both(async |bed| {
        let name = bed.offer("test-image-tag:test");
        let image = bed.pulled(&name).await;
        assert_eq!(image.repo_tags, std::slice::from_ref(&name));
        bed.remove(&name).await;
        assert_eq!((bed.status(&name).await, bed.status(&image.id).await), (None, None));
    });
}

#[test]
fn public_image_should_timeout_if_requested() {
    over_both(async |bed| {
        let name = bed.offer("test-image-tag:test");
        let socket = bed.folder.path().join("imagelet.sock");
        let stream = TokioIo::new(tokio::net::UnixStream::connect(socket).await.unwrap());
        // A client that leaves the clock to the server: the code is the server's.
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let asked =
            v1::PullImageRequest { image: Some(spec(&name)), ..v1::PullImageRequest::default() }.encode_to_vec();
        let framed = [&[0, 0, 0, 0, u8::try_from(asked.len()).unwrap()], asked.as_slice()].concat();
        let request = http::Request::post("http://localhost/runtime.v1.ImageService/PullImage")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "1m")
            .body(http_body_util::Full::new(bytes::Bytes::from(framed)))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "4", "{:?}: DeadlineExceeded", bed.backend);
        assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty(), "no reference");
        connection.abort();
    });
}

#[test]
fn public_image_without_tag_should_be_pulled_and_removed() {
    over_both(async |bed| {
        let name = bed.offer("test-image-latest:latest");
        let bare = name.trim_end_matches(":latest");
        let image = bed.pulled(bare).await;
        assert_eq!(image.repo_tags, std::slice::from_ref(&name));
        bed.remove(bare).await;
        assert_eq!((bed.status(bare).await, bed.status(&name).await), (None, None));
    });
}

#[test]
fn public_image_with_digest_should_be_pulled_and_removed() {
    over_both(async |bed| {
        let image = Image::marked("digest", 2000);
        let name = bed.registry.push("test-image-digest:v1", &image);
        let by_digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
        let found = bed.pulled(&by_digest).await;
        assert_eq!(found.repo_tags, Vec::<String>::new());
        assert_eq!(found.repo_digests, std::slice::from_ref(&by_digest));
        bed.remove(&by_digest).await;
        assert_eq!(bed.status(&by_digest).await, None);
    });
}

#[test]
fn image_status_should_support_all_kinds_of_references() {
    over_both(async |bed| {
        let name = bed.offer("test-image-tag:all");
        let image = bed.pulled(&name).await;
        assert!(!image.repo_digests.is_empty());
        for reference in [vec![image.id.clone()], image.repo_tags.clone(), image.repo_digests.clone()].concat() {
            assert_eq!(bed.status(&reference).await.as_ref(), Some(&image), "{reference}");
        }
    });
}

/// The user and the name that an image's status tells.
async fn user(bed: &mut Bed, user: &str) -> (i64, String) {
    let repository = format!("test-image-user-{}", user.replace(':', "-"));
    let name = bed.registry.push(&format!("{repository}:v1"), &with_user(user));
    let image = bed.pulled(&name).await;
    (image.uid.unwrap_or(0), image.username)
}

#[test]
fn image_status_of_an_image_with_a_uid_only() {
    over_both(async |bed| assert_eq!(user(bed, "1002").await, (1002, String::new())));
}

#[test]
fn image_status_of_an_image_with_a_username_only() {
    over_both(async |bed| assert_eq!(user(bed, "www-data").await, (0, "www-data".into())));
}

#[test]
fn image_status_of_an_image_with_a_uid_and_a_group() {
    over_both(async |bed| assert_eq!(user(bed, "1003:users").await, (1003, String::new())));
}

#[test]
fn image_status_of_an_image_with_a_username_and_a_group() {
    over_both(async |bed| assert_eq!(user(bed, "www-data:100").await, (0, "www-data".into())));
}

#[test]
fn list_image_should_get_exactly_3_images_in_the_result_list() {
    over_both(async |bed| {
        let names: Vec<String> = (1..=3).map(|number| bed.offer(&format!("test-image-{number}:latest"))).collect();
        let mut ids = Vec::new();
        for name in &names {
            ids.push(bed.pulled(name).await.id);
        }
        let listed = bed.list().await;
        for (name, id) in names.iter().zip(&ids) {
            let found: Vec<_> = listed.iter().filter(|image| &image.id == id).collect();
            assert_eq!(found.len(), 1, "{name}");
            assert_eq!(found[0].repo_tags, std::slice::from_ref(name));
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3);
    });
}

/// Three tags of one image, pulled.
async fn three_tags(bed: &mut Bed) -> (String, Vec<String>) {
    let image = Image::marked("tags", 2000);
    let names: Vec<String> = (1..=3).map(|tag| bed.registry.push(&format!("test-image-tags:{tag}"), &image)).collect();
    let mut ids = Vec::new();
    for name in &names {
        ids.push(bed.pulled(name).await.id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "three names of one image");
    (ids.remove(0), names)
}

#[test]
fn list_image_should_get_exactly_3_repo_tags_in_the_result_image() {
    over_both(async |bed| {
        let (id, names) = three_tags(bed).await;
        let listed: Vec<_> = bed.list().await.into_iter().filter(|image| image.id == id).collect();
        assert_eq!(listed.len(), 1);
        let mut tags = listed[0].repo_tags.clone();
        tags.sort();
        assert_eq!(tags, names);
    });
}

#[test]
fn removing_image_by_one_tag_should_remove_all_tags() {
    over_both(async |bed| {
        let (id, names) = three_tags(bed).await;
        bed.remove(&names[0]).await;
        for reference in names.iter().chain([&id]) {
            assert_eq!(bed.status(reference).await, None, "{reference}");
        }
        // Also where a caller does not ask for the id first.
        let (_, names) = three_tags(bed).await;
        bed.client.remove_image(v1::RemoveImageRequest { image: Some(spec(&names[1])) }).await.unwrap();
        assert!(bed.list().await.iter().all(|image| image.repo_tags.iter().all(|tag| !names.contains(tag))));
    });
}

#[test]
fn removing_image_from_one_registry_should_remove_all_tags_from_other_registries() {
    over_both(async |bed| {
        let name = bed.offer("pause:3.9");
        let other = elsewhere(&name);
        let id = bed.pulled(&name).await.id;
        assert_eq!(bed.pulled(&other).await.id, id);
        let mut tags = bed.status(&id).await.unwrap().repo_tags;
        tags.sort();
        assert_eq!(tags, [name.clone(), other.clone()]);
        bed.remove(&name).await;
        for reference in [&name, &other, &id] {
            assert_eq!(bed.status(reference).await, None, "{reference}");
        }
    });
}

#[test]
fn should_not_list_or_get_image_status_immediately_after_removal() {
    over_both(async |bed| {
        let name = bed.offer("test-image-tag:test");
        let id = bed.pulled(&name).await.id;
        bed.remove(&id).await;
        assert!(bed.list().await.iter().all(|image| image.id != id));
        assert_eq!(bed.status(&id).await, None);
    });
}

#[test]
fn should_list_and_get_image_status_immediately_after_pulling() {
    over_both(async |bed| {
        let name = bed.offer("test-image-tag:test");
        let id = bed.pull(&name).await;
        assert_eq!(bed.list().await.iter().filter(|image| image.id == id).count(), 1);
        assert!(bed.status(&name).await.is_some());
    });
}

#[test]
fn should_not_fail_on_simultaneous_remove_image_calls() {
    over_both(async |bed| {
        let name = bed.offer("test-image-tag:test");
        let id = bed.pulled(&name).await.id;
        let calls = (0..5).map(|_| {
            let (mut client, id) = (bed.client.clone(), id.clone());
            tokio::spawn(async move {
                client.remove_image(v1::RemoveImageRequest { image: Some(spec(&id)) }).await.expect("it succeeds");
                let status = v1::ImageStatusRequest { image: Some(spec(&id)), verbose: false };
                client.image_status(status).await.expect("it succeeds").into_inner().image
            })
        });
        let calls: Vec<_> = calls.collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), None, "gone right after each return");
        }
    });
}

#[test]
fn remove_image_should_not_return_an_error_if_not_found() {
    over_both(async |bed| {
        for _ in 0..2 {
            bed.client.remove_image(v1::RemoveImageRequest { image: Some(spec(&"0".repeat(64))) }).await.unwrap();
        }
    });
}

/// The ids that a container of containerd has: what its list says, through the daemon's socket.
async fn container_ids(bed: &Bed, image: &str) -> Vec<String> {
    let containerd = bed.containerd.as_ref().expect("there is one").endpoint();
    let behind: Endpoint = containerd.parse().unwrap();
    let pods = TestPods::connect(&behind, bed.folder.path()).await.unwrap();
    let sandbox = pods.run_sandbox("web").await.unwrap();
    let id = pods.run_container(&sandbox, image, &["/bin/sleep", "3600"]).await.unwrap();
    let front: Endpoint = bed.daemon.endpoint().parse().unwrap();
    let service = RemoteContainerService::connect(&front, CALL_MAX).await.unwrap();
    let container = service.containers().await.unwrap().into_iter().find(|container| container.id == id).unwrap();
    pods.remove_sandbox(&sandbox).await.unwrap();
    // containerd 1.6.20 is older than the field `image_id`; critest skips what is empty, and `image_ref` has the id.
    assert_eq!(container.image.id, "", "a containerd that fills it needs a test of it");
    vec![container.image.reference]
}

#[test]
fn should_return_the_same_image_identifier_across_all_apis() {
    over_both(async |bed| {
        let name = bed.registry.push("test-image-tag:test", &Image::busybox("identifier"));
        let reference = bed.pull(&name).await;
        assert_eq!(bed.status(&name).await.unwrap().id, reference);
        assert!(bed.list().await.iter().any(|image| image.id == reference));
        if bed.backend == Backend::Containerd {
            bed.registry.push("pause:3.9", &Image::busybox("pause"));
            assert_eq!(Box::pin(container_ids(bed, &reference)).await, [reference]);
        } else {
            // The embedded store starts no containers: its mounts are what holds an image.
            let target = bed.folder.path().join("mounted");
            std::fs::create_dir(&target).unwrap();
            bed.daemon.run(["mount", &name, target.to_str().unwrap()]).ok();
            let refused =
                bed.client.remove_image(v1::RemoveImageRequest { image: Some(spec(&reference)) }).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "held under the same identifier: {refused}");
            bed.daemon.run(["unmount", target.to_str().unwrap()]).ok();
        }
    });
}

#[test]
fn should_return_the_same_image_identifier_when_pulled_from_different_registries() {
    over_both(async |bed| {
        let name = bed.registry.push("pause:3.9", &Image::busybox("pause"));
        let other = elsewhere(&name);
        let (one, two) = (bed.pull(&name).await, bed.pull(&other).await);
        assert_eq!(one, two);
        assert_eq!(bed.status(&name).await.unwrap().id, one);
        assert_eq!(bed.status(&other).await.unwrap().id, one);
        if bed.backend == Backend::Containerd {
            assert_eq!(Box::pin(container_ids(bed, &other)).await, [one]);
        }
    });
}

#[test]
fn an_image_volume_is_readable_and_holds_its_image() {
    over_both(async |bed| {
        let name = bed.registry.push("volume:v1", &Image::busybox("readable"));
        let id = bed.pulled(&name).await.id;
        if bed.backend == Backend::Containerd {
            return Box::pin(volumes_of_containerd(bed, &name)).await;
        }
        let target = bed.folder.path().join("volume");
        std::fs::create_dir(&target).unwrap();
        let place = target.to_str().unwrap();
        bed.daemon.run(["mount", &name, place]).ok();
        assert_eq!(std::fs::read_to_string(target.join("marker")).unwrap(), "readable");
        let refused = bed.client.remove_image(v1::RemoveImageRequest { image: Some(spec(&id)) }).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
        assert!(bed.status(&id).await.is_some());
        bed.daemon.run(["unmount", place]).ok();
        bed.client.remove_image(v1::RemoveImageRequest { image: Some(spec(&id)) }).await.unwrap();
        assert_eq!(bed.status(&id).await, None);
    });
}

/// containerd 1.6.20 is older than image volumes: it does not know the field of a mount that names the image, takes the
/// mount for one of an empty host path, and refuses the container. So nothing can be mounted, nor its image reported.
async fn volumes_of_containerd(bed: &Bed, volume: &str) {
    bed.registry.push("pause:3.9", &Image::busybox("pause"));
    let endpoint: Endpoint = bed.containerd.as_ref().expect("there is one").endpoint().parse().unwrap();
    let pods = TestPods::connect(&endpoint, bed.folder.path()).await.unwrap();
    let sandbox = pods.run_sandbox("volumes").await.unwrap();
    let created = pods.create_container(&sandbox, volume, &["/bin/true"], &[image_volume(volume, "/volume", "")]).await;
    pods.remove_sandbox(&sandbox).await.unwrap();
    assert!(created.is_err(), "a containerd that knows image volumes needs the test of the embedded store");
}

#[test]
fn a_container_tells_the_image_of_its_volume() {
    // What a runtime with image volumes reports is read: the reference of the mount, and what the runtime made of it.
    // containerd 1.6.20 cannot be asked, see above; the conversion has its own test. Here: nothing is made up.
    over_both(async |bed| {
        let name = bed.registry.push("app:v1", &Image::busybox("app"));
        bed.pulled(&name).await;
        let front: Endpoint = bed.daemon.endpoint().parse().unwrap();
        let service = RemoteContainerService::connect(&front, CALL_MAX).await.unwrap();
        if bed.backend == Backend::Embedded {
            assert!(service.containers().await.unwrap().is_empty());
            assert!(service.mounted_images("none").await.unwrap().is_empty());
            return;
        }
        bed.registry.push("pause:3.9", &Image::busybox("pause"));
        let behind: Endpoint = bed.containerd.as_ref().expect("there is one").endpoint().parse().unwrap();
        let pods = TestPods::connect(&behind, bed.folder.path()).await.unwrap();
        let sandbox = pods.run_sandbox("plain").await.unwrap();
        let id = pods.run_container(&sandbox, &name, &["/bin/sleep", "3600"]).await.unwrap();
        assert!(service.mounted_images(&id).await.unwrap().is_empty(), "a container without image volumes has none");
        pods.remove_sandbox(&sandbox).await.unwrap();
    });
}

#[test]
fn the_verbose_status_tells_the_configuration_over_both_backends() {
    over_both(async |bed| {
        let name = bed.offer("verbose:v1");
        bed.pull(&name).await;
        let verbose = v1::ImageStatusRequest { image: Some(spec(&name)), verbose: true };
        let info = bed.client.image_status(verbose).await.unwrap().into_inner().info;
        let info: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
        assert_eq!(info["imageSpec"]["config"]["Cmd"][0], "/bin/sleep", "{info}");
        assert_eq!(info["chainID"], info["imageSpec"]["rootfs"]["diff_ids"][0], "one layer is its own chain");
        let front: Endpoint = bed.daemon.endpoint().parse().unwrap();
        let service = RemoteImageService::connect(&front, CALL_MAX).await.unwrap();
        let details = service.details(&imagelet_core::image::ImageSpec::new(&name)).await.unwrap().unwrap();
        assert_eq!((details.layers.len(), details.chain_id.is_some(), details.config.is_some()), (1, true, true));
    });
}

#[test]
fn every_behaviour_of_critest_has_a_test_here() {
    let source = std::fs::read_to_string(repository().join("crates/imagelet/tests/it/critest.rs")).unwrap();
    let ours = |name: &str| match name.rsplit_once(": ") {
        Some((_, "UID only")) => "image_status_of_an_image_with_a_uid_only".to_owned(),
        Some((_, "Username only")) => "image_status_of_an_image_with_a_username_only".to_owned(),
        Some((_, "UID:group")) => "image_status_of_an_image_with_a_uid_and_a_group".to_owned(),
        Some((_, "Username:group")) => "image_status_of_an_image_with_a_username_and_a_group".to_owned(),
        _ => name
            .replace("listImage", "list_image")
            .replace("RemoveImage", "remove_image")
            .replace("repoTags", "repo_tags")
            .replace("3 image in", "3 images in")
            .replace("APIs", "apis")
            .replace(' ', "_"),
    };
    let cases = vectors("cri-critest.json");
    assert_eq!(cases.len(), 19);
    for case in cases {
        let name = ours(case["name"].as_str().unwrap());
        assert!(source.contains(&format!("#[test]\nfn {name}() {{")), "no test is called `{name}`");
    }
}
