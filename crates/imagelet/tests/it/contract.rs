//! What every image service promises, asked of a real containerd through the client.

use std::time::Duration;

use imagelet_core::testing::conformance;
use imagelet_cri::{Endpoint, RemoteImageService};

use crate::{
    images::Image,
    testbed::{Containerd, Registry, scratch},
};

#[test]
fn containerd_seen_through_the_client_keeps_the_contract() {
    let (registry, folder) = (Registry::start(), scratch());
    let first = Image::marked("first", 100_000);
    let images = conformance::Images {
        first: registry.push("first:v1", &first),
        first_again: registry.push("first:again", &first),
        second: registry.push("second:v1", &Image::marked("second", 100_000)),
        absent: format!("{}/absent:v1", registry.address()),
        reports_progress: false,
        untags: false,
    };
    let containerd = Containerd::start(folder.path(), &registry);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
        let service = RemoteImageService::connect(&endpoint, Duration::from_secs(60)).await.unwrap();
        conformance::run(&service, &images).await;
    });
}
