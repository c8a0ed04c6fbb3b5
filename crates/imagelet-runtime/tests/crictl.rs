//! What a client needs to print a table of images: each answer has whole names, digests and ids.

mod wire;

use std::sync::Arc;

use imagelet_core::testing::FakeRuntime;
use imagelet_runtime::cri::{Handlers, RuntimeServer, listen, routes};
use tokio_stream::wrappers::UnixListenerStream;
use wire::{ImageServiceClient, v1};

#[tokio::test]
async fn our_answers_make_whole_rows() {
    let fake = FakeRuntime::new();
    fake.preload("registry.test/b:v2", "b", 742_000);
    fake.preload("registry.test/b:v1", "b", 742_000);
    fake.preload("busybox", "a", 1_154_361);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let incoming = UnixListenerStream::new(listen(&path).await.unwrap());
    let routes = routes(Arc::new(fake), Handlers::Any, RuntimeServer::without_runtime("1"));
    let server = tokio::spawn(async move {
        tonic::transport::Server::builder().add_routes(routes).serve_with_incoming(incoming).await.unwrap();
    });
    let channel =
        tonic::transport::Endpoint::new(format!("unix://{}", path.display())).unwrap().connect().await.unwrap();
    let mut client = ImageServiceClient::new(channel);
    let images = client.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner().images;
    let mut rows = Vec::new();
    for image in images {
        let is_digest = |text: &str| text.strip_prefix("sha256:").is_some_and(|hash| hash.len() == 64);
        assert!(is_digest(&image.id), "{}", image.id);
        let (repository, digest) = image.repo_digests[0].split_once('@').expect("a name and a digest");
        assert!(is_digest(digest), "{digest}");
        let names: Vec<_> = image.repo_tags.iter().map(|tag| tag.rsplit_once(':').expect("a name and a tag")).collect();
        assert!(names.iter().all(|(name, _)| *name == repository), "{names:?}");
        rows.extend(names.iter().map(|(name, tag)| format!("{name} {tag} {}", image.size)));
    }
    rows.sort();
    let wanted = ["docker.io/library/busybox latest 1154361", "registry.test/b v1 742000", "registry.test/b v2 742000"];
    assert_eq!(rows, wanted);
    server.abort();
}
