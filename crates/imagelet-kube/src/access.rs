//! The API server's address and the credentials for it: from a kubeconfig, or from the service account of this pod.

use std::{path::PathBuf, time::Duration};

use imagelet_core::trusted_files;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::api_error::{ApiError, Cause};

const CONNECT_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiAccess {
    Kubeconfig(PathBuf),
    InCluster,
}

impl ApiAccess {
    /// Creates a client with the current credentials in the files.
    ///
    /// # Errors
    /// If the files cannot be read, or if other users can change them.
    pub async fn connect(&self) -> Result<Client, ApiError> {
        let client = self.config().await.and_then(|mut config| {
            config.connect_timeout = Some(CONNECT_MAX);
            // The client does not retry, because the watch retries with waits of its own.
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
            // Only a trusted file is read, because it names programs to execute and the server to trust.
            trusted_files::open(&path)?;
            Ok::<_, Cause>(Kubeconfig::read_from(&path)?)
        });
        Ok(Config::from_custom_kubeconfig(read.await??, &KubeConfigOptions::default()).await?)
    }
}
