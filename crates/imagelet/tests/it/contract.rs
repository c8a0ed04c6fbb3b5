//! What every image service promises, asked of a real containerd through the client.

use std::time::Duration;

use imagelet_core::{
    image::ImageSpec,
    ports::{ContainerService as _, ContainerState, ImageService as _, PullRequest, no_progress},
    testing::conformance,
};
use imagelet_runtime::cri::{Endpoint, RemoteContainerService, RemoteImageService};

use crate::{
    images::Image,
    testbed::{Containerd, ContainerdRelease, ContainerdSetup, Registry, scratch},
    wire::pods::TestPods,
};

/// How long a call to containerd may take.
const CALL_MAX: Duration = Duration::from_mins(1);

#[test]
fn containerd_seen_through_the_client_keeps_the_contract() {
    let (registry, folder) = (Registry::start(), scratch());
    let first = Image::marked("first", 100_000);
    let images = conformance::PromisedImages {
        first: registry.push("first:v1", &first),
        first_again: registry.push("first:again", &first),
        second: registry.push("second:v1", &Image::marked("second", 100_000)),
        absent: format!("{}/absent:v1", registry.address()),
        reports_progress: false,
        untags: false,
        reports_layers: false,
        reports_configs: true,
    };
    for release in ContainerdRelease::all() {
        let containerd = ContainerdSetup::new(&release, "unused:v1").start(folder.path());
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
            let service = RemoteImageService::connect(&endpoint, CALL_MAX).await.unwrap();
            conformance::run(&service, &images).await;
        });
    }
}

#[test]
fn a_container_of_containerd_names_its_image_while_it_runs_and_after_it_exited() {
    let (registry, folder) = (Registry::start(), scratch());
    registry.push("pause:3.9", &Image::busybox("pause"));
    let image = Image::busybox("application");
    let name = registry.push("application:v1", &image);
    let containerd = Containerd::start(folder.path(), &registry);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
        let images = RemoteImageService::connect(&endpoint, CALL_MAX).await.unwrap();
        let containers = RemoteContainerService::connect(&endpoint, CALL_MAX).await.unwrap();
        let request = PullRequest { image: ImageSpec::new(&name), ..PullRequest::default() };
        images.pull(&request, no_progress()).await.unwrap();

        let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
        let sandbox = pods.run_sandbox("web").await.unwrap();
        let id = pods.run_container(&sandbox, &name, &["/bin/sleep", "3600"]).await.unwrap();
        let found = containers.containers().await.unwrap();
        assert_eq!(found.iter().map(|one| (&one.id, one.state)).collect::<Vec<_>>(), [(&id, ContainerState::Running)]);
        assert_eq!(
            (found[0].image.spec.image.as_str(), found[0].image.reference.as_str()),
            (name.as_str(), image.id())
        );

        pods.stop_container(&id).await.unwrap();
        let found = containers.containers().await.unwrap();
        assert_eq!(found.iter().map(|one| (&one.id, one.state)).collect::<Vec<_>>(), [(&id, ContainerState::Exited)]);
        assert_eq!(found[0].image.reference, image.id());

        pods.remove_sandbox(&sandbox).await.unwrap();
        assert_eq!(containers.containers().await.unwrap(), []);
    });
}
