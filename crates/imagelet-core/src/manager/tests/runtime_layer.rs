//! The layer between the manager and its runtime, and how pull errors are shown, as the vectors have them.

use super::*;
use crate::{
    image::Reference,
    ports::{Container, ContainerImage, ContainerState, Sandbox},
};

fn named(id: &str, size: u64) -> Image {
    Image {
        id: ImageId::new(id),
        tags: vec![normal(id)],
        digests: Vec::new(),
        size: ByteSize(size),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    }
}

/// In full, with its default tag.
fn normal(name: &str) -> String {
    let parsed = default_tag(name).and_then(|name| name.parse::<Reference>());
    parsed.map_or_else(|_| name.to_owned(), |reference| reference.to_string())
}

/// A runtime that knows what the vector says, and fails where it says so.
fn runtime(input: &Value) -> (FakeRuntime, RuntimeManager) {
    let fake = FakeRuntime::new();
    if let Some(error) = text(&input["runtime_error"]) {
        for call in ["list", "status", "pull", "remove"] {
            // A removal by id does not fail for want of a status.
            fake.fail(call, RuntimeErrorKind::Other, &error);
        }
    }
    let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
    (fake, runtime)
}

async fn ids(fake: &FakeRuntime) -> Vec<String> {
    fake.heal();
    fake.list(None).await.unwrap().iter().map(|image| image.id.to_string()).collect()
}

async fn pulls(input: &Value, expected: &Value, name: &str) {
    let store = Arc::new(Scripted::default());
    let mut keyring = Keyring::new();
    for user in texts(&input["credentials"]) {
        let credential = Credential::basic("", user, Secret::new(""));
        for registry in ["docker.io", "r"] {
            keyring.add_credential(registry, CredentialSource::Node, credential.clone());
        }
    }
    store.lock().pull_error = text(&input["runtime_error"]);
    let results = input["attempt_results"].as_array().map(Vec::as_slice).unwrap_or_default();
    store.lock().attempts = results.iter().map(text).collect();
    let settings = PullSettings { node_policy: NodePolicy::KUBELET, ..Wanted::default().settings };
    let node =
        TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, Wanted { settings, keyring, ..Wanted::default() });
    // A bare `r/x` would be Docker's.
    let image = text(&input["image"]).unwrap();
    let asked = if image.starts_with("r/") { format!("docker.io/{image}") } else { image.clone() };
    let result = node.ensure(&EnsureRequest { policy: PullPolicy::Always, ..request(&asked) }).await;
    let shown = store.lock().shown.clone();
    let users: Vec<String> = shown
        .iter()
        .flatten()
        .filter_map(|credential| match &credential.kind {
            CredentialKind::Basic { username, .. } => Some(username.clone()),
            _ => None,
        })
        .collect();
    if let Some(attempts) = expected["attempts"].as_u64() {
        assert_eq!(shown.len() as u64, attempts, "{name}");
    }
    if let Some(used) = expected.get("credentials_used") {
        assert_eq!(users.last().cloned(), text(used), "{name}");
    }
    match (text(&expected["error_text"]), expected["error"] == true) {
        (None, false) => {
            let id = result.unwrap_or_else(|error| panic!("{name}: {error}")).id;
            if let Some(wanted) = text(&expected["image_ref"]) {
                // The scripted store's id is the name it was handed.
                assert_eq!(id.as_str(), default_tag(&wanted).unwrap(), "{name}");
            }
        }
        (wanted, _) => {
            let error = result.expect_err(name);
            let source = std::error::Error::source(&error).expect("the store's error").to_string();
            assert_eq!(source, wanted.or(text(&input["runtime_error"])).unwrap(), "{name}");
        }
    }
}

async fn pods(input: &Value) -> Vec<Value> {
    let (fake, runtime) = runtime(input);
    for (number, created) in input["sandbox_created_at"].as_array().unwrap().iter().enumerate() {
        fake.add_sandbox(Sandbox {
            id: number.to_string(),
            name: number.to_string(),
            namespace: "ns".into(),
            uid: number.to_string(),
            attempt: 0,
            ready: true,
            created_at: SystemTime::UNIX_EPOCH + Duration::from_secs(created.as_u64().unwrap()),
            runtime_handler: String::new(),
        });
    }
    let age = |created: SystemTime| created.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    runtime.pods().await.unwrap().into_iter().map(|pod| age(pod.created_at).into()).collect()
}

/// The image id of the one container, unless it was skipped.
async fn container_image(input: &Value) -> Option<String> {
    let (fake, runtime) = runtime(input);
    let said = &input["container"];
    let field = |key: &str| text(&said[key]).unwrap_or_default();
    fake.add_container(Container {
        id: field("id"),
        sandbox_id: String::new(),
        name: "c".into(),
        image: ContainerImage {
            spec: ImageSpec::new(text(&said["image"]["image"]).unwrap_or_default()),
            reference: field("image_ref"),
            id: field("image_id"),
        },
        state: ContainerState::Running,
        created_at: SystemTime::UNIX_EPOCH,
        labels: std::collections::BTreeMap::new(),
    });
    let pods = runtime.pods().await.unwrap();
    pods.into_iter().flat_map(|pod| pod.containers).map(|container| container.image.id).next()
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_the_runtime_layer_holds() {
    let cases = vectors("cri-runtime-layer.json");
    assert_eq!(cases.len(), 24);
    for case in cases {
        let (input, expected, name) = (&case["input"], &case["expected"], case["name"].as_str().unwrap());
        let (fake, runtime) = runtime(input);
        let is_error = expected["error"] == true;
        match input["op"].as_str().unwrap() {
            "PullImage" => pulls(input, expected, name).await,
            "ListImages" => {
                let pinned = input["pinned"].as_object();
                for id in texts(&input["images"]) {
                    fake.insert(named(&id, 1));
                }
                for (id, pinned) in pinned.into_iter().flatten() {
                    fake.insert(Image { pinned: pinned == &Value::Bool(true), ..named(id, 1) });
                }
                let listed = runtime.list(None).await;
                assert_eq!(listed.is_err(), is_error, "{name}");
                for image in listed.unwrap_or_default().iter() {
                    let known = texts(&expected["ids_unordered"]).contains(&image.id.to_string());
                    assert!(known || expected["pinned"][image.id.as_str()] == image.pinned, "{name}: {image:?}");
                }
                let wanted = texts(&expected["ids_unordered"]).len().max(pinned.map_or(0, serde_json::Map::len));
                assert_eq!(ids(&fake).await.len(), wanted, "{name}");
            }
            "GetImageRef" | "GetImageSize" => {
                let status = &input["status"];
                if let Some(id) = text(&status["id"]) {
                    let (mut image, digests) =
                        (named(&id, status["size"].as_u64().unwrap()), texts(&status["repo_digests"]));
                    if status.get("repo_tags").is_some() {
                        (image.tags, image.digests) = (texts(&status["repo_tags"]), digests);
                    }
                    fake.insert(image);
                }
                let asked = text(&status["id"]).unwrap_or("busybox".into());
                let found = runtime.status(&ImageSpec::new(asked)).await;
                assert_eq!(found.is_err(), is_error, "{name}");
                let found = found.ok().flatten();
                if let Some(size) = expected["size"].as_u64() {
                    assert_eq!(found.as_ref().map(|image| image.size.0), Some(size), "{name}");
                }
                if let Some(reference) = text(&expected["image_ref"]) {
                    assert_eq!(found.map(|image| image.id.to_string()).unwrap_or_default(), reference, "{name}");
                }
            }
            "RemoveImage" => {
                for id in texts(&input["local"]) {
                    fake.insert(named(&id, 1));
                }
                let spec = ImageSpec {
                    runtime_handler: text(&input["runtime_handler"]).unwrap_or_default(),
                    ..ImageSpec::new(text(&input["image"]).unwrap())
                };
                assert_eq!(runtime.remove(&spec).await.is_err(), is_error, "{name}");
                if let Some(wanted) = text(&expected["request_image_spec"]["image"]) {
                    // Unlike the kubelet's, a removal here keeps its handler (C7): the image of another stays.
                    assert_eq!(fake.take_calls(), [format!("remove {wanted}")], "{name}");
                } else {
                    assert_eq!(ids(&fake).await, texts(&expected["local_after"]), "{name}");
                }
            }
            "ImageStats" => {
                let sizes = input["sizes"].as_array().map(Vec::as_slice).unwrap_or_default();
                for (number, size) in sizes.iter().enumerate() {
                    fake.insert(named(&number.to_string(), size.as_u64().unwrap()));
                }
                let total =
                    runtime.list(None).await.map(|images| images.iter().map(|image| image.size).sum::<ByteSize>());
                assert_eq!(total.is_err(), is_error, "{name}");
                assert_eq!(total.ok().map(|total| total.0), expected["total_storage_bytes"].as_u64(), "{name}");
            }
            "GetPods" => assert_eq!(Value::Array(pods(input).await), expected["created_at_order"], "{name}"),
            "toKubeContainer" => {
                let wanted = if expected["skipped"] == true { None } else { text(&expected["image_id"]) };
                assert_eq!(container_image(input).await, wanted, "{name}");
            }
            other => panic!("no such operation: {other}"),
        }
    }
}

#[test]
fn every_vector_of_well_known_pull_errors_holds() {
    let cases = vectors("cri-pull-error-mapping.json");
    assert_eq!(cases.len(), 8);
    for case in cases {
        let field = |value: &Value| text(value).unwrap();
        let source = Arc::new(RuntimeError::other(field(&case["input"]["error"])));
        let error = EnsureError::from_pull(&field(&case["input"]["image"]), source, false);
        assert_eq!(error.reason(), field(&case["expected"]["reason"]), "{}", case["name"]);
        assert_eq!(error.message(), field(&case["expected"]["message"]), "{}", case["name"]);
    }
}

#[tokio::test]
async fn an_image_is_pinned_while_one_of_its_names_is_as_the_vectors_say() {
    let case = vectors("cri-image-store.json").into_iter().find(|case| case["name"] == "pin life cycle").unwrap();
    let fake = FakeRuntime::new();
    let mut pinned = std::collections::BTreeSet::new();
    let steps = case["input"]["steps"].as_array().unwrap().iter();
    for (step, wanted) in steps.zip(case["expected"]["after_each_step"].as_array().unwrap()) {
        let name = step["ref"].as_str().unwrap();
        let op = step["op"].as_str().unwrap();
        if op == "add" {
            fake.preload(name, "content", 1);
        }
        match op {
            "unpin" => pinned.remove(name),
            "add" if step["pinned"] == false => false,
            _ => pinned.insert(name),
        };
        let names = crate::image::PinnedNames::exactly(pinned.iter().copied());
        let mut runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(NoContainers));
        runtime.pinned = Arc::new(names.clone());
        if op == "pin+delete" {
            assert!(names.pins(&normal(name)));
            runtime.local().expect("the fake").untag(name).await.unwrap();
        }
        let image = Arc::clone(&runtime.list(None).await.unwrap()[0]);
        assert_eq!(Value::Bool(image.pinned), wanted["image_pinned"], "{step}");
        let by_name: serde_json::Map<String, Value> = ["ref-1", "ref-2"]
            .into_iter()
            .filter(|name| image.tags.contains(&normal(name)))
            .map(|name| (name.to_owned(), names.pins(&normal(name)).into()))
            .collect();
        assert_eq!(Value::Object(by_name), wanted["ref_pinned"], "{step}");
    }
}
