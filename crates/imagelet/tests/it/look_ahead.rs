//! A daemon of a cluster fetches the images of a bound pod before a kubelet requests one, with the secrets of that pod.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagelet_core::{
    credentials::{Credential, Secret},
    image::ImageSpec,
    ports::{ImageService as _, PullRequest, no_progress},
};
use imagelet_runtime::cri::RemoteImageService;
use serde_json::{Value, json};

use crate::{
    artifacts::artifact,
    fake_registry::FakeRegistry,
    http_api::get,
    images::Image,
    kubernetes::Api,
    ports::Port,
    program::{Daemon, write_script},
    testbed::{Registry, scratch, wait_until},
};

const USER: &str = "ada";
const PASSWORD: &str = "open-sesame-17";
const PROVIDER_API: &str = "credentialprovider.kubelet.k8s.io/v1";

fn pod(name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["nodeName"] = "node-1".into();
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

/// The secret of the pods of the namespace, as `kubectl create secret docker-registry` makes it.
fn secret(registry: &Registry) -> Value {
    let auths = json!({"auths": {registry.address(): {"username": USER, "password": PASSWORD}}});
    json!({
        "metadata": {"name": "registry", "namespace": "shop"},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": BASE64_STANDARD.encode(auths.to_string())},
    })
}

/// A kubelet's request for a pull over CRI, with one credential.
fn pull_over_cri(daemon: &Daemon, image: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let endpoint = daemon.endpoint().parse().unwrap();
        let images = RemoteImageService::connect(&endpoint, Duration::from_mins(1)).await.unwrap();
        let credential = Some(Credential::basic("", USER, Secret::new(PASSWORD)));
        let request = PullRequest { image: ImageSpec::new(image), credential, ..PullRequest::default() };
        images.pull(&request, no_progress()).await.unwrap();
    });
}

#[test]
fn all_images_of_a_bound_pod_are_present_before_a_kubelet_requests_them_by_the_secret_of_that_pod_alone() {
    let registry = Registry::start_with_login(&format!("{USER}:{PASSWORD}"));
    let push = |name: &str| registry.push(&format!("{name}:v1"), &Image::marked(name, 1000));
    let [setup, app, never, foreign] = ["setup", "app", "never", "foreign"].map(push);
    let model = registry.push("model:v1", &artifact(&[("weights", b"w")]));
    let (folder, port) = (scratch(), Port::choose());
    let api = Api::start_with_token();
    api.fake.put("/api/v1/secrets", secret(&registry));
    let daemon = api.daemon_with(folder.path(), &port, "kubernetes: {lookAheadMax: 4}\n");

    // Without the secret the registry refuses; the image of another pod's secret does not open for this one.
    api.fake.apply(pod("without", &json!({"containers": [{"name": "main", "image": foreign}]})));
    let counted = |outcome: &str, count: u32| {
        let line = format!("imagelet_look_ahead_images_total{{outcome=\"{outcome}\"}} {count}\n");
        get(&port.address(), "/metrics").body.contains(&line)
    };
    wait_until("the refused look-ahead", || counted("failed", 1));
    wait_until("its event", || !api.fake.events().is_empty());
    let event = &api.fake.events()[0];
    assert_eq!((&event["reason"], &event["regarding"]["name"]), (&json!("LookAheadFailed"), &json!("node-1")));
    let note = event["note"].as_str().unwrap();
    let host = foreign.split('/').next().unwrap();
    assert_eq!(note, format!("could not fetch an image ahead from registry `{host}`: unauthorized at manifest"));
    let own = daemon.run(["events", "-o", "json"]).ok();
    assert!(own.contains(&format!("could not fetch `{foreign}` ahead for the pod `shop/without`: ")), "{own}");
    api.fake.apply(pod(
        "web",
        &json!({
            "initContainers": [{"name": "setup", "image": setup}],
            "containers": [
                {"name": "main", "image": app},
                {"name": "never", "image": never, "imagePullPolicy": "Never"},
            ],
            "volumes": [{"name": "model", "image": {"reference": model}}],
            "imagePullSecrets": [{"name": "registry"}],
        }),
    ));
    wait_until("all images of the pod", || counted("pulled", 3));
    let present = |image: &str| daemon.run(["inspect", "-q", image]).code == 0;
    assert!([&setup, &app, &model].into_iter().all(|image| present(image)));
    assert!(!present(&never) && !present(&foreign));

    // The kubelet's own request is answered without a layer.
    let blobs = registry.blob_requests();
    pull_over_cri(&daemon, &app);
    assert_eq!(registry.blob_requests(), blobs);
    let why = daemon.run(["why", &app]).ok();
    assert!(why.contains("look-ahead for pod shop/web"), "{why}");

    let secrets: Vec<String> = api.fake.requests().into_iter().filter(|it| it.contains("/secrets")).collect();
    assert_eq!(secrets, ["GET /api/v1/namespaces/shop/secrets/registry"]);
    let log = daemon.part.log();
    assert!(!log.contains(PASSWORD) && !log.contains(&BASE64_STANDARD.encode(PASSWORD)), "{log}");
}

#[test]
fn without_a_number_of_images_nothing_is_fetched_ahead_and_no_secret_is_read() {
    let registry = Registry::start_with_login(&format!("{USER}:{PASSWORD}"));
    let app = registry.push("app:v1", &Image::marked("app", 1000));
    let (folder, port) = (scratch(), Port::choose());
    let api = Api::start_with_token();
    api.fake.put("/api/v1/secrets", secret(&registry));
    let daemon = api.daemon_with(folder.path(), &port, "");
    let spec = json!({"containers": [{"name": "main", "image": app}], "imagePullSecrets": [{"name": "registry"}]});
    api.fake.apply(pod("web", &spec));
    wait_until("the pod", || get(&port.address(), "/readyz?verbose").body.contains("1 pod, 1 waiting"));
    assert_eq!(daemon.run(["inspect", "-q", &app]).code, 1);
    // The pods of the node, and what prefetches: its sets and the node itself.
    let credentials = ["/secrets", "/serviceaccounts"];
    let requests = api.fake.requests();
    assert!(!requests.iter().any(|request| credentials.iter().any(|kind| request.contains(kind))), "{requests:?}");
}

#[test]
fn a_pod_that_waits_for_a_pull_has_one_event_about_its_progress_and_status_and_why_say_the_same() {
    let (registry, folder, port) = (FakeRegistry::start(), scratch(), Port::choose());
    let api = Api::start_with_token();
    let image = Image::marked("slow", 300_000);
    let name = registry.put("slow:v1", &image);
    let held = registry.hold("slow", &image.layers[0].digest);
    let daemon = api.daemon_with(folder.path(), &port, "kubernetes: {lookAheadMax: 1}\n");
    api.fake.apply(pod("web", &json!({"containers": [{"name": "main", "image": name}]})));
    held.until_asked();
    let events = || api.fake.objects("/api/v1/events");
    wait_until("the event of the pod", || !events().is_empty());
    let event = &events()[0];
    assert_eq!((&event["involvedObject"]["name"], &event["reason"]), (&json!("web"), &json!("PullProgress")));
    let note = event["message"].as_str().unwrap();
    let line = note.strip_prefix(&format!("image {name}: ")).unwrap_or_else(|| panic!("{note}"));
    let amount = line.split(", ").next().unwrap();
    assert!(amount.starts_with("0.0 of "), "{note}");
    for command in [&["status"][..], &["why", &name]] {
        let shown = daemon.run(command).ok();
        assert!(shown.contains(amount), "{command:?}: {shown}");
    }
    // No kubelet reports the end of a look-ahead.
    drop(held);
    let is_end = |event: &Value| event["message"].as_str().unwrap().starts_with(&format!("image {name}: pulled in "));
    wait_until("the end of the pull", || events().iter().all(is_end));
    assert_eq!(events().len(), 1);
}

#[test]
fn a_credential_provider_gets_a_token_of_the_service_account_of_the_pod() {
    let registry = Registry::start_with_login(&format!("{USER}:{PASSWORD}"));
    let app = registry.push("app:v1", &Image::marked("app", 1000));
    let (folder, port) = (scratch(), Port::choose());
    let api = Api::start_with_token();
    api.fake.put("/api/v1/serviceaccounts", json!({"metadata": {"namespace": "shop", "name": "builder"}}));
    let answer = json!({
        "kind": "CredentialProviderResponse", "apiVersion": PROVIDER_API, "cacheKeyType": "Registry",
        "auth": {registry.address(): {"username": USER, "password": PASSWORD}}
    });
    let plugins = folder.path().join("bin");
    std::fs::create_dir(&plugins).unwrap();
    write_script(
        &plugins.join("exchange"),
        &format!("grep -q '\"serviceAccountToken\":\"token-1-of-builder\"' || exit 1\necho '{answer}'\n"),
    );
    let provider = json!({
        "name": "exchange", "matchImages": [registry.address()], "defaultCacheDuration": "1h", "apiVersion": PROVIDER_API,
        "tokenAttributes": {
            "serviceAccountTokenAudience": "registry.example", "cacheType": "Token", "requireServiceAccount": true,
        },
    });
    let kind = "CredentialProviderConfig";
    let config = json!({"kind": kind, "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]});
    let providers = folder.path().join("providers.json");
    std::fs::write(&providers, config.to_string()).unwrap();
    let more = format!(
        "kubernetes: {{lookAheadMax: 4}}\nimageCredentialProviderConfigPath: {}\nimageCredentialProviderBinDir: {}\n",
        providers.display(),
        plugins.display()
    );
    let daemon = api.daemon_with(folder.path(), &port, &more);
    let spec = json!({"containers": [{"name": "main", "image": app}], "serviceAccountName": "builder"});
    api.fake.apply(pod("web", &spec));
    wait_until("the image", || daemon.run(["inspect", "-q", &app]).code == 0);
    let [requested] = &api.fake.token_requests()[..] else { panic!("{:?}", api.fake.token_requests()) };
    assert_eq!(requested["spec"]["audiences"], json!(["registry.example"]));
    assert_eq!(requested["spec"]["boundObjectRef"]["name"], "web");
    let log = daemon.part.log();
    assert!(!log.contains("token-1-of-builder") && !log.contains(PASSWORD), "{log}");
}
