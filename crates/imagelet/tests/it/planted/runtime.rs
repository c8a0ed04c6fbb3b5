//! What a kubelet sends along for a pull is seen nowhere, whatever the runtime or the registry says about it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use imagelet_runtime::cri::listen;
use rustix::process::Signal;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status, transport::Server};

use super::{Marker, Scene, Seen, TRACE, look_at, pod_of, registry::WAYS, run_watched, secrets_of};
use crate::{
    program::Daemon,
    wire::{
        ImageService, ImageServiceClient, ImageServiceServer, Streamed,
        v1::{
            AuthConfig, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec, ImageStatusRequest, ImageStatusResponse,
            ListImagesRequest, ListImagesResponse, PullImageRequest, PullImageResponse, RemoveImageRequest,
            RemoveImageResponse, StreamImagesRequest, StreamImagesResponse,
        },
    },
};

/// How the runtime repeats what it is shown; an image's name says which way.
const ECHOES: [&str; 7] = ["plain", "quoted", "header", "coded", "details", "missing", "denied"];

/// A runtime that refuses each pull, and repeats in its refusal what it was shown.
#[derive(Clone, Debug, Default)]
struct EchoRuntime {
    /// What it was shown, so that a test can tell that it was.
    shown: Arc<Mutex<Vec<String>>>,
}

impl ImageService for EchoRuntime {
    async fn list_images(&self, _: Request<ListImagesRequest>) -> Result<Response<ListImagesResponse>, Status> {
        Ok(Response::new(ListImagesResponse::default()))
    }
    async fn stream_images(
        &self,
        _: Request<StreamImagesRequest>,
    ) -> Result<Response<Streamed<StreamImagesResponse>>, Status> {
        Err(Status::unimplemented("no streams here"))
    }
    async fn image_status(&self, _: Request<ImageStatusRequest>) -> Result<Response<ImageStatusResponse>, Status> {
        Ok(Response::new(ImageStatusResponse::default()))
    }
    async fn pull_image(&self, request: Request<PullImageRequest>) -> Result<Response<PullImageResponse>, Status> {
        let request = request.into_inner();
        let (image, auth) = (request.image.unwrap_or_default().image, request.auth.unwrap_or_default());
        let basic = format!("{}:{}", auth.username, auth.password);
        let secrets = [&auth.password, &auth.auth, &auth.identity_token, &auth.registry_token];
        self.shown.lock().unwrap().push(format!("{secrets:?}"));
        let joined = secrets.map(String::as_str).join(" and ");
        let failed = |why: String| Status::unknown(format!("failed to pull {image}: {why}"));
        Err(match ECHOES.into_iter().find(|echo| image.contains(echo)).unwrap_or_default() {
            "quoted" => failed(format!("{secrets:?}")),
            "header" => failed(format!("401 for Authorization: Basic {}", STANDARD.encode(basic))),
            "coded" => failed(format!("bad credentials {:?}", secrets.map(|secret| STANDARD.encode(secret)))),
            "details" => Status::with_details(Code::Unknown, "see the details", joined.into()),
            "missing" => Status::not_found(joined),
            "denied" => Status::permission_denied(format!("RegistryUnavailable: {joined}")),
            _ => failed(format!("{joined} for {}", auth.server_address)),
        })
    }
    async fn remove_image(&self, _: Request<RemoveImageRequest>) -> Result<Response<RemoveImageResponse>, Status> {
        Ok(Response::new(RemoveImageResponse {}))
    }
    async fn image_fs_info(&self, _: Request<ImageFsInfoRequest>) -> Result<Response<ImageFsInfoResponse>, Status> {
        Ok(Response::new(ImageFsInfoResponse::default()))
    }
}

/// The secrets of an `AuthConfig`.
struct Login {
    password: Marker,
    auth: Marker,
    identity: Marker,
    registry: Marker,
}

impl Login {
    fn new() -> Self {
        Self {
            password: Marker::plain("the password of an AuthConfig"),
            auth: Marker::plain("the auth of an AuthConfig"),
            identity: Marker::plain("the identity token of an AuthConfig"),
            registry: Marker::plain("the registry token of an AuthConfig"),
        }
    }

    fn markers(&self) -> [&Marker; 4] {
        [&self.password, &self.auth, &self.identity, &self.registry]
    }

    /// Each field alone, all together, and what does not read or is for somebody else.
    fn configs(&self, address: &str) -> Vec<AuthConfig> {
        let none = AuthConfig { server_address: format!("https://{address}"), ..AuthConfig::default() };
        let basic = AuthConfig { username: "anna".into(), password: self.password.text.clone(), ..none.clone() };
        let auth = |text: String| AuthConfig { auth: text, ..none.clone() };
        let coded = auth(STANDARD.encode(format!("anna:{}", self.auth.text)));
        let identity = AuthConfig { identity_token: self.identity.text.clone(), ..none.clone() };
        let registry = AuthConfig { registry_token: self.registry.text.clone(), ..none.clone() };
        let all = AuthConfig {
            auth: coded.auth.clone(),
            identity_token: self.identity.text.clone(),
            registry_token: self.registry.text.clone(),
            ..basic.clone()
        };
        let elsewhere = AuthConfig { server_address: "https://other.example".into(), ..all.clone() };
        let unread = [self.auth.text.clone(), format!("{}!", self.auth.text), STANDARD.encode(&self.auth.text)];
        [basic, coded, identity, registry, all, elsewhere].into_iter().chain(unread.map(auth)).collect()
    }
}

/// Pulls as a kubelet does, and looks at each answer.
async fn pull_as_kubelet(socket: PathBuf, images: &[String], configs: &[AuthConfig], seen: &mut Seen, login: &Login) {
    let mut client = ImageServiceClient::connect(format!("unix://{}", socket.display())).await.unwrap();
    for image in images {
        for auth in configs {
            let spec = ImageSpec { image: image.clone(), ..ImageSpec::default() };
            let request =
                PullImageRequest { image: Some(spec), auth: Some(auth.clone()), ..PullImageRequest::default() };
            let Err(status) = client.pull_image(request).await else { continue };
            let place = format!("the answer for {image}");
            seen.look(&place, format!("{} {status} {status:?}", status.message()).as_bytes(), &login.markers());
            seen.look(&place, status.details(), &login.markers());
        }
    }
}

fn store_arguments(folder: &Path, docker: &Path) -> String {
    let config = folder.join("config.yaml");
    let text = format!(
        "registryPullQPS: 0\npulls: {{retryBudget: 2s}}\ncredentials: {{dockerConfig: {}}}\n",
        docker.display()
    );
    fs::write(&config, text).unwrap();
    config.into_os_string().into_string().expect("temporary directories have plain names")
}

#[test]
fn what_a_kubelet_sends_is_seen_nowhere_though_the_runtime_repeats_it() {
    let scene = Scene::new();
    let login = Login::new();
    let node = Marker::plain("the node's password");
    let secret = Marker::plain("a pull secret's password");
    let creds = Marker::plain("the password of a login");
    let markers: Vec<&Marker> = login.markers().into_iter().chain([&node, &secret, &creds]).collect();
    scene.log_in("node", &node.text);
    let docker = scene.folder.path().join("home/.docker/config.json");
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let runtime = EchoRuntime::default();
    let backend = scene.folder.path().join("runtime.sock");
    let socket = tokio.block_on(listen(&backend)).unwrap();
    let served = Server::builder().add_service(ImageServiceServer::new(runtime.clone()));
    let task = tokio.spawn(served.serve_with_incoming(UnixListenerStream::new(socket)));

    let endpoint = format!("unix://{}", backend.display());
    let state = format!("store: {{directory: {}}}\n", scene.store().display());
    let config = store_arguments(scene.folder.path(), &docker);
    fs::write(&config, fs::read_to_string(&config).unwrap() + &state).unwrap();
    let arguments = ["--runtime-endpoint", &endpoint, "--config", &config];
    let daemon = Daemon::start_with(scene.folder.path(), arguments, &[TRACE]);
    let mut seen = Seen::default();
    let images: Vec<String> = ECHOES.iter().map(|echo| scene.name(echo)).collect();
    let configs = login.configs(&scene.registry.address);
    let kubelet = scene.folder.path().join("imagelet.sock");
    tokio.block_on(pull_as_kubelet(kubelet, &images, &configs, &mut seen, &login));
    for image in &images {
        let mut pull = daemon.command();
        pull.args(["pull", "-o", "json", image]);
        let pulled = run_watched(pull.env("IMAGELET_CREDS", format!("u:{}", creds.text)), "", &mut seen, &markers);
        assert_ne!(pulled.code, 0, "{}", pulled.stdout);
        look_at(&mut seen, "pull", &pulled, &markers);
        look_at(&mut seen, "pull by the node's login", &daemon.run(["pull", image]), &markers);
        let (pod, file) = (scene.folder.path().join("pod.yaml"), scene.folder.path().join("secret.yaml"));
        fs::write(&pod, pod_of(image)).unwrap();
        for (_, content) in secrets_of(&scene, &secret).into_iter().take(2) {
            fs::write(&file, content).unwrap();
            for format in ["table", "json"] {
                let (pod, file) = (pod.to_str().unwrap(), file.to_str().unwrap());
                let ensured = daemon.run(["ensure", "-o", format, "-f", pod, "--secret", file]);
                assert_ne!(ensured.code, 0, "{}", ensured.stdout);
                look_at(&mut seen, "ensure", &ensured, &markers);
            }
            fs::remove_file(&file).unwrap();
        }
    }
    let shown = runtime.shown.lock().unwrap().join("\n");
    for marker in &markers {
        assert!(marker.count(shown.as_bytes()) > 0, "{} was not used", marker.name);
    }
    let refused = daemon.run(["pull", &images[0]]);
    assert!(refused.stderr.contains("[redacted] and"), "the runtime's words are not told: {}", refused.stderr);
    seen.look_at_process(daemon.part.id(), &markers);
    assert!(daemon.stop(Signal::TERM).success());
    task.abort();
    seen.look_below(scene.folder.path(), &markers, &[&docker]);
    seen.assert_nothing(150);
}

#[test]
fn what_a_kubelet_sends_is_seen_nowhere_though_the_registry_repeats_it() {
    let scene = Scene::new();
    let login = Login::new();
    let node = Marker::plain("an identity token of the node");
    let node_registry = Marker::plain("a registry token of the node");
    let markers: Vec<&Marker> =
        login.markers().into_iter().chain([&node, &node_registry, &scene.token, &scene.signature]).collect();
    let docker = scene.folder.path().join("docker.json");
    let config = store_arguments(scene.folder.path(), &docker);
    let (store, folder) = (scene.store(), scene.folder.path());
    fs::write(&docker, "{}").unwrap();
    let daemon = Daemon::start_with(folder, ["--store", store.to_str().unwrap(), "--config", &config], &[TRACE]);
    let mut seen = Seen::default();
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let images: Vec<String> = WAYS.iter().map(|way| scene.name(way)).collect();
    let configs = login.configs(&scene.registry.address);
    tokio.block_on(pull_as_kubelet(folder.join("imagelet.sock"), &images, &configs, &mut seen, &login));
    for marker in login.markers() {
        scene.assert_used(marker);
    }

    // Fields of a docker configuration that a kubelet passes over, good ones and broken ones.
    let entry = |fields: &str| format!("{{\"auths\": {{\"{}\": {{{fields}}}}}}}", scene.registry.address);
    let (identity, registry) = (&node.text, &node_registry.text);
    for (number, document) in [
        entry(&format!("\"identitytoken\": \"{identity}\", \"registrytoken\": \"{registry}\"")),
        entry(&format!("\"username\": \"u\", \"password\": \"p\", \"identitytoken\": \"{identity}\"")),
        entry(&format!("\"auth\": \"{identity}\", \"registrytoken\": \"{registry}\"")),
        entry(&format!("\"identitytoken\": [\"{identity}\"], \"registrytoken\": {{\"{registry}\": 1}}, \"auth\": 5")),
        entry(&format!("\"identitytoken\": \"{identity}\", \"registrytoken\": {registry}")),
        format!("{{\"auths\": {{\"https://u:{identity}@[::1/\": {{\"identitytoken\": \"{registry}\"}}}}}}"),
        format!("{{\"credHelpers\": {{\"{identity}\": \"{registry}\"}}, \"identitytoken\": \"{identity}\"}}"),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(&docker, document).unwrap();
        daemon.part.signal(Signal::HUP);
        let reloaded = || daemon.part.log().matches("configuration reloaded").count() > number;
        crate::testbed::wait_until("the reload", reloaded);
        for way in ["basic", "echo-bearer", "token-echo"] {
            let pulled = daemon.run(["pull", "-o", "json", "--policy", "Always", &scene.name(way)]);
            look_at(&mut seen, &format!("pull {way} by docker configuration {number}"), &pulled, &markers);
        }
    }
    seen.look_at_process(daemon.part.id(), &markers);
    assert!(daemon.stop(Signal::TERM).success());
    seen.look_below(scene.folder.path(), &markers, &[&docker]);
    seen.assert_nothing(150);
}
