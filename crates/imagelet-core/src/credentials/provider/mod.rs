//! Credential provider plugins, as the kubelet runs them (`docs/spec/pull.md §7`).
//!
//! [`CredentialProvider`] is the port to all credential sources other than configuration documents. Nothing is written
//! to disk. A plugin receives the image, and on request a service account token, only on its standard input.

mod cache;
mod config;
mod exec;
mod helper;
mod meters;
mod plugin;
mod plugin_protocol;
mod redact;
mod validate;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use async_trait::async_trait;
use config::ProviderConfig;
pub use exec::Variables;
use futures_util::future::join_all;
pub(super) use helper::{CredentialHelpers, HelperError};
pub(super) use meters::FAMILIES as PROVIDER_FAMILIES;
use tokio::sync::Semaphore;

#[cfg(feature = "fuzzing")]
pub use self::{config::provider_names, helper::helper_answer, plugin_protocol::plugin_answer};

use self::{
    config::go_text,
    exec::{Plugin, executable},
    plugin::{Provider, ProviderError},
};
use super::{CredentialSource, DockerConfig, Keyring, TokenSource, TrackedCredential};
use crate::{metrics::Metrics, text::PlainError, trusted_files};

/// The kubelet has no limit.
const RUNS_MAX: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialQuery {
    /// The image's normalised repository, without tag and digest.
    pub repository: String,
    pub namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    /// The service account of the pod. `None`: the pod has no service account.
    pub service_account: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provided {
    /// The credentials in the order in which they are tried.
    pub credentials: Vec<TrackedCredential>,
    /// The error of each failed provider, in the order of the configuration. Contains no secret.
    pub failures: Vec<String>,
}

/// Supplies credentials that are in no docker configuration. A failure does not end a pull.
#[async_trait]
pub trait CredentialProvider: fmt::Debug + Send + Sync {
    /// Returns all credentials for a repository. A drop of the future cancels the work.
    async fn provide(&self, query: &CredentialQuery) -> Provided;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoProviders;

#[async_trait]
impl CredentialProvider for NoProviders {
    async fn provide(&self, _query: &CredentialQuery) -> Provided {
        Provided::default()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProviderOptions {
    pub config: PathBuf,
    pub binaries: PathBuf,
    pub limit: Duration,
    pub environment: Variables,
}

/// The node's providers. Serves parallel lookups, and can be reconfigured while in use.
#[derive(Debug)]
pub struct Providers {
    tokens: Arc<dyn TokenSource>,
    metrics: Arc<Metrics>,
    permits: Arc<Semaphore>,
    set: RwLock<Arc<ProviderSet>>,
}

#[derive(Debug, Default)]
struct ProviderSet {
    providers: Vec<Arc<Provider>>,
    made_of: Option<(ProviderConfig, ProviderOptions)>,
}

impl Providers {
    pub fn new(tokens: Arc<dyn TokenSource>, metrics: Arc<Metrics>) -> Self {
        let permits = Arc::new(Semaphore::new(RUNS_MAX));
        for family in meters::FAMILIES {
            metrics.declare(family);
        }
        Self { tokens, metrics, permits, set: RwLock::default() }
    }

    /// Reads the configuration for the next lookups. `None` removes all providers. Running lookups finish with the old
    /// providers. An unchanged configuration keeps its cache. After an error the old providers stay. Blocks the thread.
    pub fn configure(&self, options: Option<&ProviderOptions>) -> Result<(), PlainError> {
        let set = match options {
            None => ProviderSet::default(),
            Some(options) => {
                let config = ProviderConfig::read(&options.config).map_err(PlainError)?;
                if self.set().made_of.as_ref() == Some(&(config.clone(), options.clone())) {
                    return inspect(&config, options);
                }
                self.load(config, options)?
            }
        };
        self.metrics.clear(&meters::CONFIG);
        if let Some((config, _)) = &set.made_of {
            self.metrics.set(&meters::CONFIG, &[&config.hash], 1.0);
        }
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        Ok(())
    }

    pub fn names(&self) -> Vec<String> {
        self.set().providers.iter().map(|provider| provider.entry.name.clone()).collect()
    }

    fn load(&self, config: ProviderConfig, options: &ProviderOptions) -> Result<ProviderSet, PlainError> {
        validate::check(&config, true)
            .map_err(|findings| PlainError(format!("failed to validate credential provider config: {findings}")))?;
        inspect(&config, options)?;
        let providers = config.providers.iter().map(|entry| {
            let plugin = Plugin {
                path: options.binaries.join(&entry.name),
                args: entry.args.clone(),
                environment: options.environment.with(&entry.env),
                limit: options.limit,
            };
            Arc::new(Provider {
                entry: entry.clone(),
                plugin,
                tokens: Arc::clone(&self.tokens),
                metrics: Arc::clone(&self.metrics),
                permits: Arc::clone(&self.permits),
                cache: Mutex::default(),
                runs: Mutex::default(),
            })
        });
        let providers = providers.collect();
        Ok(ProviderSet { providers, made_of: Some((config, options.clone())) })
    }

    fn set(&self) -> Arc<ProviderSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Checks that every executable exists, and that only root and this user may change it.
fn inspect(config: &ProviderConfig, options: &ProviderOptions) -> Result<(), PlainError> {
    let folder = &options.binaries;
    let failed = |what: &str, path: &Path, error: &io::Error| {
        PlainError(match error.kind() {
            io::ErrorKind::NotFound => format!("plugin binary {what} {} did not exist", path.display()),
            _ => format!("error inspecting binary {what} {}: {}", path.display(), go_text(error)),
        })
    };
    // A replaced program would run as this user and receive the node's credentials.
    trusted_files::check_folder(folder).map_err(|error| failed("directory", folder, &error))?;
    for provider in &config.providers {
        let path = executable(folder, &provider.name).map_err(|(path, error)| failed("executable", &path, &error))?;
        trusted_files::check_program(&path).map_err(|error| failed("executable", &path, &error))?;
    }
    Ok(())
}

#[async_trait]
impl CredentialProvider for Providers {
    async fn provide(&self, query: &CredentialQuery) -> Provided {
        let set = self.set();
        if set.providers.is_empty() {
            return Provided::default();
        }
        let answers = join_all(set.providers.iter().map(|provider| provider.ask(query))).await;
        self.collect(query, set.providers.iter().zip(answers))
    }
}

impl Providers {
    fn collect<'a>(
        &self,
        query: &CredentialQuery,
        answers: impl Iterator<Item = (&'a Arc<Provider>, Result<(DockerConfig, CredentialSource), ProviderError>)>,
    ) -> Provided {
        let (mut keyring, mut failures) = (Keyring::new(), Vec::new());
        for (provider, answer) in answers {
            let name = provider.entry.name.as_str();
            match answer {
                Ok((auth, source)) => keyring.add(&source, auth),
                Err(ProviderError::NotForImage) => {}
                Err(error) => {
                    let image = query.repository.as_str();
                    let Some(reason) = error.reason() else {
                        tracing::debug!(provider = name, image, reason = %error, "a credential provider was not asked");
                        continue;
                    };
                    self.metrics.increment(&meters::FAILURES, &[name, reason]);
                    tracing::error!(provider = name, image, %error, "Failed to provide credentials for image");
                    failures.push(format!("credential provider `{name}`: {}", error.to_string().trim_end()));
                }
            }
        }
        Provided { credentials: keyring.lookup_at(&query.repository), failures }
    }
}

#[cfg(test)]
mod tests;
