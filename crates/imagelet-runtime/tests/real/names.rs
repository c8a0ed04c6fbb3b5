//! Names that are replaced before a removal.

use std::{sync::Arc, time::Duration};

use imagelet_core::{
    error::RuntimeErrorKind,
    image::{ByteSize, Image, ImageSpec, ImageUser},
    ports::RemovableNames as _,
    testing::FakeRuntime,
};
use imagelet_runtime::containerd::{ContainerdNames, LeaseId, v1::images::Image as Record};

use crate::{node::Node, sizes::put};

#[tokio::test]
async fn a_name_that_is_given_to_another_image_while_cri_is_awaited_stays() {
    const NAME: &str = "registry/app:v1";
    let (node, cri) = (Node::start().await, FakeRuntime::new());
    let client = node.client();
    let lease = LeaseId::unique();
    client.create_lease(&lease, Duration::from_hours(1)).await.unwrap();
    let leased = client.under(&lease);
    let id = put(&leased, "registry/app", &["one".to_owned()]).await;
    put(&leased, "registry/other", &["two".to_owned()]).await;
    let target = async |name: &str| client.image(name).await.unwrap().and_then(|record| record.target);
    let (own, other) = (target(NAME).await.unwrap(), target("registry/other:v1").await);

    let names = ContainerdNames { client: node.client(), cri: Arc::new(cri.clone()) };
    let removed = id.clone();
    let making = tokio::spawn(async move { names.make_removable(&removed).await });
    node.until("the normal name", async || target("docker.io/registry/app:v1").await.is_some()).await;
    let moved = Record { name: NAME.to_owned(), target: other.clone(), ..Record::default() };
    client.update_image(moved).await.unwrap();
    cri.insert(Image {
        id,
        tags: vec!["docker.io/registry/app:v1".to_owned()],
        digests: vec![format!("docker.io/registry/app@{}", own.digest)],
        size: ByteSize(1),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    });
    let error = making.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Remains, "{error:?}");
    assert_eq!(error.to_string(), "its names changed: `registry/app:v1` was given to another image");
    assert_eq!(target(NAME).await, other);
}
