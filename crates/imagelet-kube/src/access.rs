//! Where the API server is, and the credentials for it: a kubeconfig, or the service account of this pod.

use std::{path::PathBuf, time::Duration};

use imagelet_core::trusted_files;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::api_error::ApiError;

/// An API server that does not accept a connection within this time is away.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How the API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiAccess {
    /// By the current context of this kubeconfig.
    Kubeconfig(PathBuf),
    /// By the service account that Kubernetes mounts into this pod.
    InCluster,
}

impl ApiAccess {
    /// A client with the credentials that the files hold now.
    ///
    /// # Errors
    /// When the files cannot be read, or may be changed by other users.
    pub async fn connect(&self) -> Result<Client, ApiError> {
        let mut config = match self {
            Self::Kubeconfig(path) => {
                let failed = |source: Box<dyn std::error::Error + Send + Sync>| ApiError::Kubeconfig {
                    path: path.clone(),
                    source,
                };
                let read = {
                    let path = path.clone();
                    move || {
                        // The file names programs that are run, and the server that is believed.
                        trusted_files::open(&path)?;
                        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Kubeconfig::read_from(&path)?)
                    }
                };
                let read = tokio::task::spawn_blocking(read).await;
                let kubeconfig = read.map_err(|error| failed(error.into()))?.map_err(failed)?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await
                    .map_err(|error| failed(error.into()))?
            }
            Self::InCluster => Config::incluster().map_err(|error| ApiError::InCluster(error.into()))?,
        };
        config.connect_timeout = Some(CONNECT_MAX);
        // Attempts are repeated by the watch alone, with its own waits.
        config.default_retry = false;
        Client::try_from(config).map_err(ApiError::Setup)
    }
}
