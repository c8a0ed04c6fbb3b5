//! The checked configuration, as the rest of the program reads it.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::{
    credentials::{LoginFile, ProviderOptions},
    gc::{GcPolicy, KeepRules},
    hold::HoldPolicy,
    image::PinnedNames,
    inventory::PinPattern,
    manager::PullSettings,
    records::VerificationPolicy,
    text::named_enum,
};
use imagelet_kube::ApiAccess;
use imagelet_oci::{EngineConfig, RegistryConfig};
use imagelet_runtime::{ImportMode, cri::Endpoint};
use serde::{Deserialize, Serialize};

use super::{
    environment::Environment,
    keys_and_defaults::{CriCallers, ImportFolder},
};
use crate::traces::TraceSettings;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub collection: CollectionSettings,
    pub pulls: PullSettings,
    pub records: RecordRules,
    pub interfaces: Interfaces,
    pub images: ImageSettings,
    pub node: NodeSettings,
    pub credentials: CredentialSettings,
    pub environment: Environment,
}

impl Settings {
    pub fn hold(&self) -> HoldPolicy {
        self.images.backend.engine().hold
    }

    pub(crate) fn named_docker_config(&self) -> Option<&Path> {
        self.credentials.docker_config.as_deref().or(self.environment.logins.docker_config.as_deref())
    }

    /// The login files of a command: only the configured file, or those of podman, skopeo, buildah and docker.
    pub(crate) fn logins_of_command(&self) -> Vec<LoginFile> {
        if let Some(named) = &self.credentials.docker_config {
            return vec![LoginFile::Docker(named.clone())];
        }
        let of_containers = self.environment.logins.containers_auth.iter().cloned().map(LoginFile::Containers);
        let of_docker = self.docker_config_of_command().map(LoginFile::Docker);
        let older = self.environment.folders.home.as_ref().map(|home| LoginFile::DockerCfg(home.join(".dockercfg")));
        of_containers.chain(of_docker).chain(older).collect()
    }

    /// The docker configuration that a command reads and `login` writes. The working directory is not searched.
    pub fn docker_config_of_command(&self) -> Option<PathBuf> {
        let home = || Some(self.environment.folders.home.as_ref()?.join(".docker/config.json"));
        self.named_docker_config().map(Path::to_owned).or_else(home)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecordRules {
    /// Which present images need a credential check. `None`: the feature gate is off, and pulls are not recorded.
    pub verification: Option<VerificationPolicy>,
    /// How long a pull record is valid. `None`: the record does not expire.
    pub age_max: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Interfaces {
    pub socket: PathBuf,
    pub callers: CriCallers,
    pub http: HttpSettings,
    pub traces: Option<TraceSettings>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ImageSettings {
    pub backend: Backend,
    pub pinned: PinnedNames,
    /// Names of sandbox images, which a collection keeps. `None`: no names, as in the kubelet.
    pub sandbox_images: Option<Vec<PinPattern>>,
    pub registry: RegistryConfig,
    pub import_folder: Option<ImportFolder>,
    pub detection_period: Duration,
    /// How long a pull with `Always` may use a present image while its registry is unreachable; `None`: never.
    pub stale_max: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CredentialSettings {
    /// `None`: the default places are searched.
    pub docker_config: Option<PathBuf>,
    pub providers: Option<ProviderOptions>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    pub access: ApiAccess,
    pub node: String,
    /// `None`: pods that are bound to the node but not started cause no pulls.
    pub look_ahead_max: Option<NonZeroUsize>,
    pub events: bool,
    pub progress_events: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CollectionSettings {
    pub policy: GcPolicy,
    pub period: Option<Duration>,
    pub for_pulls: bool,
    pub mode: CollectionMode,
    pub rules: KeepRules,
    /// The kubelet's root directory. The images in the kubelet's pull records are adopted.
    pub adopt_from: Option<PathBuf>,
    pub lease_for: Duration,
    pub decisions_max: Option<NonZeroU64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpSettings {
    pub address: Option<String>,
    pub token_file: Option<PathBuf>,
    /// Accepted names in `Host` headers, in addition to the built-in names.
    pub host_names: Vec<String>,
    pub actions: bool,
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum CollectionMode {
        Enforce = "enforce",
        Shadow = "shadow",
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// Limit of the images in the Node's status. `None`: the status contains all images.
    pub status_images_max: Option<usize>,
    pub image_endpoint: String,
    /// Timeout of every call to the runtime except pulls.
    pub request_timeout: Duration,
    pub kubernetes: Option<KubernetesSettings>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    Embedded(StoreSettings),
    Cri(RuntimeSettings),
}

impl Backend {
    pub fn engine(&self) -> &EngineConfig {
        let (Self::Embedded(StoreSettings { engine, .. }) | Self::Cri(RuntimeSettings { engine, .. })) = self;
        engine
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    pub engine: EngineConfig,
    /// Endpoint and call timeout of the runtime that runs containers from the store; `None`: no runtime.
    pub runtime: Option<(Endpoint, Duration)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeSettings {
    pub endpoint: Endpoint,
    /// How long a pull may make no progress. `None`: unlimited.
    pub stall_max: Option<Duration>,
    pub import: ImportMode,
    /// The settings of the engine that imports images. The engine's directory also contains the node's state.
    pub engine: EngineConfig,
}
