//! What crictl prints of our answers: its columns, filters and ids, made here as its documentation and vectors say.

use std::{cmp::Ordering, sync::Arc};

use imagelet_core::testing::{FakeRuntime, vectors};
use imagelet_cri::{Handlers, RuntimeServer, listen, routes, v1};
use serde_json::Value;
use tokio_stream::wrappers::UnixListenerStream;

/// Name and tag of each row.
fn rows(repo_tags: &[String], image_name: &str) -> Vec<[String; 2]> {
    if repo_tags.is_empty() {
        return vec![[image_name.to_owned(), "<none>".to_owned()]];
    }
    let row = |tag: &String| match tag.rsplit_once(':') {
        None => ["errorRepoTag".to_owned(), "errorRepoTag".to_owned()],
        Some(("<none>", tag)) => [image_name.to_owned(), tag.to_owned()],
        Some((name, tag)) => [name.to_owned(), tag.to_owned()],
    };
    repo_tags.iter().map(row).collect()
}

/// Name and digest of the first digest.
fn digest(repo_digests: &[String]) -> [String; 2] {
    let texts = match repo_digests.first().map(|digest| digest.split('@').collect::<Vec<_>>()) {
        None => ["<none>", "<none>"],
        Some(parts) if parts.len() == 2 => return [parts[0].to_owned(), parts[1].to_owned()],
        Some(_) => ["errorName", "errorRepoDigest"],
    };
    texts.map(str::to_owned)
}

fn short(id: &str) -> &str {
    let bare = id.strip_prefix("sha256:").unwrap_or(id);
    bare.get(..13).unwrap_or(bare)
}

/// `USER[:PASSWORD]`
fn credentials(text: &str) -> Option<(&str, &str)> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    (!user.is_empty()).then_some((user, password))
}

/// By first tag, else first digest, else id.
fn order(one: &v1::Image, other: &v1::Image) -> Ordering {
    if let (Some(one), Some(other)) = (one.repo_tags.first(), other.repo_tags.first()) {
        return one.cmp(other);
    }
    match (one.repo_digests.first(), other.repo_digests.first()) {
        (Some(one), Some(other)) => one.cmp(other),
        _ => one.id.cmp(&other.id),
    }
}

/// Goes by the order of the list, which crictl has sorted before, and not by time.
fn filtered(mut images: Vec<v1::Image>, filters: &[String]) -> Vec<v1::Image> {
    for filter in filters {
        let (kind, value) = filter.split_once('=').expect("KEY=VALUE");
        let named = |image: &v1::Image| {
            image.id == value || image.repo_tags.iter().chain(&image.repo_digests).any(|name| name == value)
        };
        let place = images.iter().position(named);
        images = match (kind, place) {
            ("before", Some(place)) => images.split_off(place + 1),
            ("since", Some(place)) => {
                images.truncate(place);
                images
            }
            ("dangling", _) => {
                images.retain(|image| image.repo_tags.is_empty() == (value == "true"));
                images
            }
            // The vectors' expressions are plain words.
            ("reference", _) => {
                images.retain(|image| digest(&image.repo_digests)[0].contains(value));
                images
            }
            (other, _) => panic!("no such filter: {other}"),
        };
    }
    images
}

fn texts(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn columns_filters_and_credentials_are_as_the_vectors_say() {
    let cases = vectors("cri-crictl-output.json");
    assert_eq!(cases.len(), 26);
    for case in cases {
        let (input, expected, name) = (&case["input"], &case["expected"], case["name"].as_str().unwrap());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        match name.split(':').next().unwrap() {
            "tag column" => {
                let rows = rows(&texts(&input["repo_tags"]), input["image_name"].as_str().unwrap());
                assert_eq!(serde_json::to_value(rows).unwrap(), expected["rows"], "{name}");
            }
            "digest column" => {
                let wanted = [text(&expected["name"]), text(&expected["digest"])];
                assert_eq!(digest(&texts(&input["repo_digests"])), wanted, "{name}");
            }
            "creds" => {
                let given = text(&input["creds"]);
                let read = credentials(&given);
                assert_eq!(read.is_none(), expected["error"] == true, "{name}");
                let wanted = (text(&expected["username"]), text(&expected["password"]));
                assert_eq!(read.unwrap_or_default(), (wanted.0.as_str(), wanted.1.as_str()), "{name}");
            }
            "filter" => {
                let image = |image: &Value| v1::Image {
                    id: text(&image["id"]),
                    repo_tags: texts(&image["repo_tags"]),
                    repo_digests: texts(&image["repo_digests"]),
                    ..v1::Image::default()
                };
                let images = input["images"].as_array().unwrap().iter().map(image).collect();
                let kept = filtered(images, &texts(&input["filters"]));
                let ids: Vec<String> = kept.into_iter().map(|image| image.id).collect();
                assert_eq!(ids, texts(&expected["ids"]), "{name}");
            }
            "id column" => assert_eq!(short(&text(&input["id"])), text(&expected["text"]), "{name}"),
            other => panic!("no such part: {other}"),
        }
    }
}

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
    let mut client = v1::image_service_client::ImageServiceClient::new(channel);
    let mut images = client.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner().images;
    let mut printed = Vec::new();
    images.sort_by(order);
    for image in filtered(images, &["dangling=false".to_owned()]) {
        let [name, digest] = digest(&image.repo_digests);
        assert!(digest.starts_with("sha256:") && short(&image.id).len() == 13);
        let size = imagelet_core::image::ByteSize(image.size).to_string();
        printed.extend(rows(&image.repo_tags, &name).into_iter().map(|[name, tag]| format!("{name} {tag} {size}")));
    }
    printed.sort();
    let wanted = ["docker.io/library/busybox latest 1.15MB", "registry.test/b v1 742kB", "registry.test/b v2 742kB"];
    assert_eq!(printed, wanted);
    server.abort();
}
