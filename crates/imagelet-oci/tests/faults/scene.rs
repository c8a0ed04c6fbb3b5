//! An engine, a registry with a fault, and healthy hosts after it.

use std::{fmt::Write as _, path::Path, sync::Arc, time::Duration};

use imagelet_core::{
    credentials::{Credential, Secret},
    error::RuntimeError,
    image::{ImageId, ImageSpec},
    ports::{ImageService as _, Progress, PullRequest, no_progress},
};
use imagelet_oci::{
    Durability, Engine, EngineConfig, PathReport, PathStep, RegistryConfig, RegistryTimeouts, check_path,
    testing::{FaultRegistry, RegistryFault, TestImage},
};

/// The deadline of each stage.
pub(crate) const HOP: Duration = Duration::from_secs(2);
/// No pull takes longer, whatever fails.
const HANGS: Duration = Duration::from_secs(100);
const PASSWORD: &str = "hunter2pass";

pub(crate) struct Scene {
    /// The registry is the last, its mirrors come before it.
    pub(crate) hosts: Vec<FaultRegistry>,
    registry: RegistryConfig,
    _folder: tempfile::TempDir,
    engine: Arc<Engine>,
}

impl Scene {
    /// The first of `count` hosts has the fault.
    pub(crate) async fn start(fault: &RegistryFault, count: usize) -> Self {
        let image = TestImage::of_size(200_000);
        let mut hosts = vec![FaultRegistry::start(Some(fault), &image).await];
        while hosts.len() < count {
            hosts.push(FaultRegistry::start(None, &image).await);
        }
        let origin = hosts.last().expect("at least one host");
        origin.require("user", PASSWORD);
        let folder = tempfile::tempdir().expect("a folder");
        write_hosts(&folder.path().join("hosts"), &hosts);
        let registry = RegistryConfig {
            hosts_dirs: vec![folder.path().join("hosts")],
            timeouts: RegistryTimeouts {
                dial: HOP,
                header: HOP,
                progress: HOP,
                silence_max: None,
                retry_budget: Duration::from_secs(2),
            },
            ..RegistryConfig::default()
        };
        let mut config = EngineConfig::new(folder.path().join("store"));
        (config.durability, config.registry) = (Durability::Background, registry.clone());
        let engine = Engine::open(config).await.expect("the store opens");
        Self { hosts, registry, _folder: folder, engine }
    }

    pub(crate) async fn pull(&self) -> Result<ImageId, RuntimeError> {
        self.pull_with(no_progress()).await
    }

    pub(crate) async fn pull_with(&self, progress: Progress) -> Result<ImageId, RuntimeError> {
        let credential = credential();
        let image = ImageSpec::new(self.name());
        let request = PullRequest { image, credential: Some(credential), ..PullRequest::default() };
        let pull = self.engine.pull(&request, progress);
        tokio::time::timeout(HANGS, pull).await.expect("the pull hangs")
    }

    /// The name of the image at the last host.
    fn name(&self) -> String {
        format!("{}/{}", self.hosts.last().expect("a host").address(), TestImage::NAME)
    }

    /// Walks the path of the pull.
    pub(crate) async fn check_path(&self) -> (Vec<PathStep>, PathReport) {
        let (mut steps, reference) = (Vec::new(), self.name().parse().expect("a reference"));
        let mut report = |step| steps.push(step);
        let config = self.registry.clone();
        let found = check_path(config, &reference, &[credential()], None, &mut report).await;
        (steps, found)
    }

    pub(crate) async fn remove(&self) {
        self.engine.remove(&ImageSpec::new(self.name())).await.expect("the image is removed");
    }

    /// Secrets that reached an origin they do not belong to.
    pub(crate) fn leaks(&self) -> Vec<String> {
        self.hosts.iter().flat_map(FaultRegistry::leaks).collect()
    }
}

fn credential() -> Credential {
    Credential::basic("", "user", Secret::new(PASSWORD))
}

/// `hosts.toml` of the last host, with the others as its mirrors.
fn write_hosts(root: &Path, hosts: &[FaultRegistry]) {
    let (origin, mirrors) = hosts.split_last().expect("at least one host");
    let folder = root.join(origin.address());
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut text = format!("server = \"{}\"\n", origin.url());
    let settings = |host: &FaultRegistry| {
        let file = format!("{}.pem", host.address());
        let authority = host.authority().map(|pem| {
            std::fs::write(folder.join(&file), pem).expect("a file");
            format!("ca = \"{file}\"\n")
        });
        authority.unwrap_or_default()
    };
    text += &settings(origin);
    let key = |host: &FaultRegistry| format!("{} = \"{}\"\n", FaultRegistry::KEY_HEADER, host.key());
    write!(text, "[header]\n{}", key(origin)).expect("a string takes all");
    for mirror in mirrors {
        let url = mirror.url();
        let (settings, key) = (settings(mirror), key(mirror));
        write!(text, "[host.\"{url}\"]\n{settings}[host.\"{url}\".header]\n{key}").expect("a string takes all");
    }
    std::fs::write(folder.join("hosts.toml"), text).expect("a file");
}
