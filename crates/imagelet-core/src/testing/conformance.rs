//! The promises of every [`ImageService`], checked on a live service.

use std::sync::{Arc, Mutex};

use crate::{
    error::RuntimeErrorKind,
    image::{Digest, Image, ImageId, ImageSpec},
    ports::{ImageDetails, ImageService, Listing, Progress, PullEvent, PullRequest, no_progress},
};

/// Images that the service under test can pull: two different images, and a second tag of the first image.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is what one kind of service cannot do")]
pub struct PromisedImages {
    /// A full name with tag.
    pub first: String,
    pub first_again: String,
    /// A full name of another image, with tag.
    pub second: String,
    /// A name that the registry does not have.
    pub absent: String,
    /// Whether the service reports progress; CRI cannot.
    pub reports_progress: bool,
    /// Whether a single name can be removed; CRI cannot.
    pub untags: bool,
    /// Whether shared layers of images are reported; CRI cannot.
    pub reports_layers: bool,
    pub reports_configs: bool,
}

/// Runs all checks. The store has none of these images before the checks, and none after them.
///
/// # Panics
/// On the first violation.
pub async fn run(service: &dyn ImageService, images: &PromisedImages) {
    nothing_is_found_before(service, images).await;
    an_estimate_has_what_a_pull_would_fetch(service, images).await;
    let first = a_pulled_image_is_listed_at_once(service, images).await;
    every_name_of_an_image_finds_it(service, images, &first).await;
    details_are_those_of_the_image(service, images, &first).await;
    two_names_are_one_image(service, images, &first).await;
    layers_of_each_image_are_reported(service, images, &first).await;
    what_is_pulled_by_digest_has_no_tag(service, images).await;
    a_failed_pull_leaves_no_image(service, images).await;
    an_empty_name_is_refused(service).await;
    the_filesystems_of_images_and_containers_are_reported(service).await;
    a_name_can_go_alone(service, images, &first).await;
    a_removed_image_is_gone_at_once(service, images, &first).await;
    a_dropped_pull_leaves_no_image(service, images).await;
}

async fn pull(service: &dyn ImageService, name: &str) -> ImageId {
    let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
    service.pull(&request, no_progress()).await.unwrap_or_else(|error| panic!("pull {name}: {}", error.chain()))
}

async fn status(service: &dyn ImageService, name: &str) -> Option<Image> {
    service.status(&ImageSpec::new(name)).await.unwrap_or_else(|error| panic!("status of {name}: {}", error.chain()))
}

async fn list(service: &dyn ImageService) -> Listing {
    service.list(None).await.unwrap_or_else(|error| panic!("list: {}", error.chain()))
}

async fn nothing_is_found_before(service: &dyn ImageService, images: &PromisedImages) {
    for name in [&images.first, &images.first_again, &images.second, &images.absent] {
        assert_eq!(status(service, name).await, None, "{name} before it was pulled");
        service.remove(&ImageSpec::new(name)).await.expect("removing an absent image is success");
    }
}

async fn a_pulled_image_is_listed_at_once(service: &dyn ImageService, images: &PromisedImages) -> ImageId {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink: Progress = {
        let events = Arc::clone(&events);
        Arc::new(move |event| events.lock().expect("no other user").push(event))
    };
    let request = PullRequest { image: ImageSpec::new(&images.first), ..PullRequest::default() };
    let id = service.pull(&request, sink).await.unwrap_or_else(|error| panic!("first pull: {}", error.chain()));
    if images.reports_progress {
        let events = events.lock().expect("no other user");
        assert!(
            matches!(
                events.iter().find(|event| !matches!(event, PullEvent::Route(_))),
                Some(PullEvent::Resolved { .. })
            ),
            "progress begins with the manifest: {events:?}"
        );
    }
    let listed: Vec<Arc<Image>> = list(service).await.iter().filter(|image| image.id == id).cloned().collect();
    assert_eq!(listed.len(), 1, "an image is listed once");
    assert_eq!(listed[0].tags, std::slice::from_ref(&images.first), "a pulled image has the tag it was pulled by");
    assert!(listed[0].size.0 > 0, "a size is never zero");
    assert_eq!(pull(service, &images.first).await, id, "a second pull gives the same id");
    id
}

async fn an_estimate_has_what_a_pull_would_fetch(service: &dyn ImageService, images: &PromisedImages) {
    let Some(store) = service.local() else { return };
    let request = PullRequest { image: ImageSpec::new(&images.second), ..PullRequest::default() };
    let estimate =
        async || store.estimate(&request).await.unwrap_or_else(|error| panic!("estimate: {}", error.chain()));
    let Some(before) = estimate().await else { return };
    assert_eq!(status(service, &images.second).await, None, "an estimate brings no image");
    assert!(before.bytes_missing.0 > 0 && before.layers_missing > 0, "nothing of it is here: {before:?}");
    assert!(before.bytes_missing <= before.bytes_total, "{before:?}");
    let resolved = Arc::new(Mutex::new(None));
    let sink: Progress = {
        let resolved = Arc::clone(&resolved);
        Arc::new(move |event| {
            if let PullEvent::Resolved { manifest, .. } = event {
                *resolved.lock().expect("no other user") = Some(manifest);
            }
        })
    };
    let id = service.pull(&request, sink).await.unwrap_or_else(|error| panic!("pull: {}", error.chain()));
    if images.reports_progress {
        assert_eq!(resolved.lock().expect("no other user").as_ref(), Some(&before.manifest), "the manifest pulled");
    }
    let after = estimate().await.expect("who estimated once does so again");
    assert_eq!((after.bytes_missing.0, after.layers_missing), (0, 0), "all of it is here: {after:?}");
    assert_eq!((after.manifest, after.bytes_total), (before.manifest, before.bytes_total));
    let absent = PullRequest { image: ImageSpec::new(&images.absent), ..PullRequest::default() };
    let error = store.estimate(&absent).await.expect_err("a pull would fail, so does its estimate");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
    service.remove(&ImageSpec::new(id.as_str())).await.expect("remove");
}

async fn every_name_of_an_image_finds_it(service: &dyn ImageService, images: &PromisedImages, id: &ImageId) {
    let image = status(service, &images.first).await.expect("found by tag");
    assert_eq!(&image.id, id);
    assert!(!image.digests.is_empty(), "a pulled image has its digest");
    let names: Vec<String> =
        image.digests.iter().cloned().chain([id.to_string(), id.as_str()[..23].to_owned()]).collect();
    for name in names {
        assert_eq!(status(service, &name).await.as_ref(), Some(&image), "found by {name}");
    }
    let filtered = service.list(Some(&ImageSpec::new(&images.first))).await.expect("a filtered list");
    assert_eq!(*filtered, [Arc::new(image)], "a filter keeps what it names, and nothing else");
    let none = service.list(Some(&ImageSpec::new(&images.absent))).await.expect("a filtered list");
    assert!(none.is_empty(), "a filter that names nothing here keeps nothing");
}

async fn two_names_are_one_image(service: &dyn ImageService, images: &PromisedImages, id: &ImageId) {
    assert_eq!(&pull(service, &images.first_again).await, id);
    let mut tags = status(service, id.as_str()).await.expect("found by id").tags;
    tags.sort();
    let mut wanted = vec![images.first.clone(), images.first_again.clone()];
    wanted.sort();
    assert_eq!(tags, wanted);
    let second = pull(service, &images.second).await;
    assert_ne!(&second, id);
    assert!(list(service).await.iter().any(|image| image.id == second));
    service.remove(&ImageSpec::new(second.as_str())).await.expect("remove by id");
    assert_eq!(status(service, &images.second).await, None);
    assert!(status(service, &images.first).await.is_some(), "the other image stays");
}

async fn a_failed_pull_leaves_no_image(service: &dyn ImageService, images: &PromisedImages) {
    let before = list(service).await;
    let request = PullRequest { image: ImageSpec::new(&images.absent), ..PullRequest::default() };
    let error = service.pull(&request, no_progress()).await.expect_err("the registry does not have it");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
    assert_eq!(list(service).await, before);
}

async fn an_empty_name_is_refused(service: &dyn ImageService) {
    let refused = |result: Result<(), crate::error::RuntimeError>, call: &str| {
        let error = result.expect_err("no name means no image");
        assert_eq!(error.kind(), RuntimeErrorKind::InvalidArgument, "{call}: {}", error.chain());
    };
    let none = ImageSpec::default();
    refused(service.pull(&PullRequest::default(), no_progress()).await.map(drop), "pull");
    refused(service.status(&none).await.map(drop), "status");
    refused(service.details(&none).await.map(drop), "details");
    refused(service.remove(&none).await, "remove");
    let all = list(service).await;
    assert_eq!(service.list(Some(&none)).await.expect("a list"), all, "a filter that names nothing keeps everything");
}

async fn the_filesystems_of_images_and_containers_are_reported(service: &dyn ImageService) {
    let filesystems = service.filesystem().await.unwrap_or_else(|error| panic!("filesystem: {}", error.chain()));
    assert!(filesystems.reserved.is_none(), "no pull runs, and none has been promised anything");
    for (kind, usages) in [("images", &filesystems.images), ("writable layers", &filesystems.containers)] {
        assert!(!usages.is_empty(), "{kind} live somewhere");
        for usage in usages {
            // The path must exist, because callers pass it to statvfs.
            assert!(usage.mountpoint.is_dir(), "{kind}: {usage:?}");
            assert!(usage.measured_at > std::time::SystemTime::UNIX_EPOCH, "{kind}: {usage:?}");
            assert!(usage.inodes_used.is_some(), "{kind}: {usage:?}");
        }
    }
}

async fn details_are_those_of_the_image(service: &dyn ImageService, images: &PromisedImages, id: &ImageId) {
    let absent = service.details(&ImageSpec::new(&images.absent)).await.expect("an absent image is no error");
    assert_eq!(absent, None);
    let image = status(service, &images.first).await.expect("found by tag");
    let by = async |name: &str| {
        let details = service.details(&ImageSpec::new(name)).await;
        details.unwrap_or_else(|error| panic!("details of {name}: {}", error.chain())).expect("it is here")
    };
    let details = by(&images.first).await;
    assert_eq!(details.image, image, "as the status says it");
    assert_eq!(by(id.as_str()).await, details, "whatever it is called");
    assert_eq!(details.config.is_some(), images.reports_configs);
    let Some(config) = details.config.clone() else { return };
    let said = ImageDetails::of_config(image, config);
    assert_eq!((&details.chain_id, &details.labels), (&said.chain_id, &said.labels), "as its configuration says it");
    assert!(said.chain_id.is_some(), "it has layers");
    let layers =
        |details: &ImageDetails| -> Vec<Digest> { details.layers.iter().map(|layer| layer.diff_id.clone()).collect() };
    assert_eq!(layers(&details), layers(&said));
}

async fn layers_of_each_image_are_reported(service: &dyn ImageService, images: &PromisedImages, id: &ImageId) {
    let Some(store) = service.local() else {
        assert!(!images.reports_layers);
        return;
    };
    let graph = store.layers().await.unwrap_or_else(|error| panic!("layers: {}", error.chain()));
    assert_eq!(graph.is_some(), images.reports_layers);
    let Some(graph) = graph else { return };
    for image in list(service).await.iter() {
        let parts = graph.parts(&image.id).unwrap_or_else(|| panic!("{} has parts", image.id));
        assert!(parts.count() > 0, "{} has parts", image.id);
    }
    assert!(graph.freed_by([id]).bytes.0 > 0, "no other image has all of it");
    let second = pull(service, &images.second).await;
    let with = store.layers().await.expect("layers").expect("told before");
    assert!(with.freed_by([&second]).bytes.0 > 0, "what was pulled is counted at once");
    service.remove(&ImageSpec::new(second.as_str())).await.expect("remove");
    let without = store.layers().await.expect("layers").expect("told before");
    assert!(without.parts(&second).is_none(), "what was removed is not counted");
}

async fn what_is_pulled_by_digest_has_no_tag(service: &dyn ImageService, images: &PromisedImages) {
    let id = pull(service, &images.second).await;
    let name = status(service, &images.second).await.expect("pulled").digests.remove(0);
    service.remove(&ImageSpec::new(id.as_str())).await.expect("remove");
    assert_eq!(pull(service, &name).await, id, "the same content, the same id");
    let image = status(service, &name).await.expect("found by its digest");
    assert_eq!((image.tags.as_slice(), image.digests.as_slice()), ([].as_slice(), std::slice::from_ref(&name)));
    assert_eq!(status(service, &images.second).await, None, "nobody gave it the tag");
    // Concurrent removals all report success.
    let remove = async || {
        service.remove(&ImageSpec::new(id.as_str())).await.expect("all removals of one image succeed");
        assert_eq!(status(service, &name).await, None, "{name} right after its removal");
    };
    tokio::join!(remove(), remove(), remove(), remove(), remove());
}

async fn a_name_can_go_alone(service: &dyn ImageService, images: &PromisedImages, id: &ImageId) {
    let Some(store) = service.local() else {
        assert!(!images.untags);
        return;
    };
    store.untag(&images.first_again).await.expect("untag");
    store.untag(&images.first_again).await.expect("untag again is success");
    assert_eq!(status(service, &images.first_again).await, None);
    assert_eq!(status(service, &images.first).await.map(|image| image.id).as_ref(), Some(id));
}

async fn a_removed_image_is_gone_at_once(service: &dyn ImageService, images: &PromisedImages, id: &ImageId) {
    service.remove(&ImageSpec::new(id.as_str())).await.unwrap_or_else(|error| panic!("remove: {}", error.chain()));
    for name in [images.first.as_str(), images.first_again.as_str(), id.as_str()] {
        assert_eq!(status(service, name).await, None, "{name} after its removal");
    }
    assert!(list(service).await.iter().all(|image| &image.id != id));
    service.remove(&ImageSpec::new(id.as_str())).await.expect("removing it again is success");
}

async fn a_dropped_pull_leaves_no_image(service: &dyn ImageService, images: &PromisedImages) {
    let request = PullRequest { image: ImageSpec::new(&images.second), ..PullRequest::default() };
    let gave_up = {
        let mut pull = service.pull(&request, no_progress());
        tokio::select! {
            biased;
            done = &mut pull => done.is_err(),
            () = tokio::task::yield_now() => true,
        }
    };
    if gave_up {
        // A runtime behind a socket may see the cancel only after the pull. Then the complete image is listed.
        if let Some(image) = status(service, &images.second).await {
            assert!(image.size.0 > 0);
        }
    }
    let id = pull(service, &images.second).await;
    service.remove(&ImageSpec::new(id.as_str())).await.expect("remove");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeRuntime;

    #[tokio::test]
    async fn the_fake_keeps_every_promise() {
        let fake = FakeRuntime::new();
        fake.offer("registry.test/a:v1", "a", 1024);
        fake.offer("registry.test/a:v2", "a", 1024);
        fake.offer("registry.test/b:v1", "b", 2048);
        let images = PromisedImages {
            first: "registry.test/a:v1".into(),
            first_again: "registry.test/a:v2".into(),
            second: "registry.test/b:v1".into(),
            absent: "registry.test/none:v1".into(),
            reports_progress: true,
            untags: true,
            reports_layers: false,
            reports_configs: true,
        };
        run(&fake, &images).await;
        fake.set_estimates(true);
        run(&fake, &images).await;
        fake.set_layers(&ImageId::new("sha256:unlike"), &[("none", 1)]);
        run(&fake, &PromisedImages { reports_layers: true, ..images }).await;
    }
}
