//! Where the API server is, and the credentials for it: a kubeconfig, or the service account of this pod.

use std::{path::PathBuf, time::Duration};

use imagelet_core::trusted_files;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::api_error::{ApiError, Cause};

/// An API server that does not accept a connection within this time is away.
const CONNECT_MAX: Duration = Duration::from_secs(10);

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
        let client = self.config().await.and_then(|mut config| {
            config.connect_timeout = Some(CONNECT_MAX);
            // Attempts are repeated by the watch alone, with its own waits.
            config.default_retry = false;
            Ok(Client::try_from(config)?)
        });
        client.map_err(|source| ApiError::Credentials {
            what: match self {
                Self::Kubeconfig(path) => format!("use the kubeconfig `{}`", path.display()),
                Self::InCluster => "use the service account of this pod".to_owned(),
            },
            source,
        })
    }

    async fn config(&self) -> Result<Config, Cause> {
        let Self::Kubeconfig(path) = self else { return Ok(Config::incluster()?) };
        let path = path.clone();
        let read = tokio::task::spawn_blocking(move || {
            // The file names programs that are run, and the server that is believed.
            trusted_files::open(&path)?;
            Ok::<_, Cause>(Kubeconfig::read_from(&path)?)
        });
        Ok(Config::from_custom_kubeconfig(read.await??, &KubeConfigOptions::default()).await?)
    }
}
