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
        let failed = |what: String| move |source: Cause| ApiError::Credentials { what, source };
        let mut config = match self {
            Self::Kubeconfig(path) => {
                let what = format!("use the kubeconfig `{}`", path.display());
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || {
                    // The file names programs that are run, and the server that is believed.
                    trusted_files::open(&path)?;
                    Ok::<_, Cause>(Kubeconfig::read_from(&path)?)
                });
                let config = async {
                    Ok::<_, Cause>(Config::from_custom_kubeconfig(read.await??, &KubeConfigOptions::default()).await?)
                };
                config.await.map_err(failed(what))?
            }
            Self::InCluster => {
                let config = Config::incluster().map_err(Cause::from);
                config.map_err(failed("use the service account of this pod".to_owned()))?
            }
        };
        config.connect_timeout = Some(CONNECT_MAX);
        // Attempts are repeated by the watch alone, with its own waits.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(Cause::from);
        client.map_err(failed("set up the client of the API server".to_owned()))
    }
}
