//! One provider: match rules, service account tokens, plugin runs, response cache (`docs/spec/pull.md §7.3, §7.6`).

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex},
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, WeakShared},
};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    cache::{Cache, CacheKey, PluginAccount},
    config::{ProviderEntry, TokenAttributes},
    exec::{Output, Plugin},
    meters,
    plugin_protocol::{CacheKeyType, REQUEST_KIND, Request, Response, ResponseError},
    redact::{redact, texts_of},
};
use crate::{
    credentials::{
        CredentialQuery, CredentialSource, DockerConfig, ObjectIdentity, Secret, TokenRequest, TokenSource,
        registry_match::matches,
    },
    lock::locked,
    metrics::Metrics,
    text::PlainError,
};

/// The maximum length of an invalid cache key type in an error. An invalid version may be longer.
const KEY_TYPE_SHOWN_MAX: usize = 64;
const VERSION_SHOWN_MAX: usize = 128;

pub(super) struct Provider {
    pub(super) entry: ProviderEntry,
    pub(super) plugin: Plugin,
    pub(super) tokens: Arc<dyn TokenSource>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) permits: Arc<Semaphore>,
    pub(super) cache: Mutex<Cache>,
    pub(super) runs: Mutex<Runs>,
}

/// Why a provider has no credential: it does not apply, or it failed. The kubelet's text, which contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProviderError {
    #[error("no pattern matches")]
    NotForImage,
    #[error("Service account name is empty")]
    NoServiceAccount,
    #[error("required annotation {0} not found")]
    AnnotationMissing(String),
    #[error(
        "failed to get credential from external registry credential provider: error execing credential provider \
         plugin {name} for image {image}: {error}: {stderr}"
    )]
    Run { name: String, image: String, error: String, stderr: String },
    #[error("failed to get credential from external registry credential provider: {0}")]
    Response(ResponseError),
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    CacheKeyType(String),
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when \
         service account cache type is not set to 'Token'"
    )]
    TokenReturned,
    #[error("failed to get service account: {0}")]
    ServiceAccount(PlainError),
    #[error("failed to get service account token: {0}")]
    Token(PlainError),
}

impl ProviderError {
    /// The metric label of a failure. `None`: the provider does not apply.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::NotForImage | Self::NoServiceAccount | Self::AnnotationMissing(_) => None,
            Self::Run { .. } => Some("run"),
            Self::Response(_) | Self::CacheKeyType(_) => Some("response"),
            Self::TokenReturned => Some("token_returned"),
            Self::ServiceAccount(_) | Self::Token(_) => Some("service_account"),
        }
    }
}

#[derive(Clone)]
struct CheckedAnswer {
    key_type: CacheKeyType,
    auth: DockerConfig,
}

type Run = BoxFuture<'static, Result<CheckedAnswer, ProviderError>>;

/// The running plugins. Equal parallel lookups share a run. If all its lookups are dropped, the run is cancelled.
#[derive(Default)]
pub(super) struct Runs {
    /// Key → the repository in the request, and the run.
    by_key: HashMap<CacheKey, (String, WeakShared<Run>)>,
    /// The cache key type of the last response. The next response probably has the same type.
    learned: Option<CacheKeyType>,
}

impl Provider {
    pub(super) async fn ask(
        self: &Arc<Self>,
        query: &CredentialQuery,
    ) -> Result<(DockerConfig, CredentialSource), ProviderError> {
        if !self.entry.match_images.iter().any(|pattern| matches(pattern, &query.repository)) {
            return Err(ProviderError::NotForImage);
        }
        let account = match &self.entry.token_attributes {
            None => None,
            Some(rules) => self.service_account(rules, query).await?.map(Arc::new),
        };
        let auth = match self.cached(&query.repository, account.as_deref()) {
            Some(auth) => auth,
            None => self.given(&query.repository, account.as_ref()).await?,
        };
        let source = account
            .map_or(CredentialSource::Node, |account| CredentialSource::ServiceAccount(account.identity.clone()));
        Ok((auth, source))
    }

    /// The pod's service account with a token. `None`: the pod has none, and the plugin does not require one.
    async fn service_account(
        &self,
        rules: &TokenAttributes,
        query: &CredentialQuery,
    ) -> Result<Option<PluginAccount>, ProviderError> {
        let Some(name) = query.service_account.as_deref().filter(|name| !name.is_empty()) else {
            return if rules.require_service_account.unwrap_or(true) {
                Err(ProviderError::NoServiceAccount)
            } else {
                Ok(None)
            };
        };
        let found = self.tokens.service_account(&query.namespace, name).await.map_err(ProviderError::ServiceAccount)?;
        let mut annotations = BTreeMap::new();
        for key in &rules.required_annotations {
            match found.annotations.get(key) {
                Some(value) => drop(annotations.insert(key.clone(), value.clone())),
                None => return Err(ProviderError::AnnotationMissing(key.clone())),
            }
        }
        let optional = rules.optional_annotations.iter().filter_map(|key| found.annotations.get_key_value(key));
        annotations.extend(optional.map(|(key, value)| (key.clone(), value.clone())));
        let request = TokenRequest {
            namespace: query.namespace.clone(),
            service_account: name.to_owned(),
            service_account_uid: found.uid.clone(),
            audience: rules.audience.clone(),
            pod_name: query.pod_name.clone(),
            pod_uid: query.pod_uid.clone(),
        };
        let issued = self.tokens.token(&request).await.map_err(ProviderError::Token)?;
        Ok(Some(PluginAccount {
            identity: ObjectIdentity { uid: found.uid, namespace: query.namespace.clone(), name: name.to_owned() },
            annotations,
            token: issued.token,
            is_per_token: rules.cache_type == "Token",
        }))
    }

    fn cached(&self, repository: &str, account: Option<&PluginAccount>) -> Option<DockerConfig> {
        let types = [CacheKeyType::Image, CacheKeyType::Registry, CacheKeyType::Global];
        let keys: Vec<CacheKey> =
            types.into_iter().filter_map(|one| CacheKey::new(one.base(repository), account).ok()).collect();
        locked(&self.cache).find(&keys, Instant::now())
    }

    /// Gets a new response: from a shared run if its response covers this image, or from a run for this image.
    async fn given(
        self: &Arc<Self>,
        repository: &str,
        account: Option<&Arc<PluginAccount>>,
    ) -> Result<DockerConfig, ProviderError> {
        let guess = locked(&self.runs).learned.unwrap_or(CacheKeyType::Image);
        match self.join(guess, repository, account).await {
            (asked, Ok(given)) if given.key_type.base(&asked) == given.key_type.base(repository) => Ok(given.auth),
            (asked, Err(error)) if asked == repository => Err(error),
            // The shared response does not cover this image, or the run for another image failed.
            _ => self.join(CacheKeyType::Image, repository, account).await.1.map(|given| given.auth),
        }
    }

    async fn join(
        self: &Arc<Self>,
        guess: CacheKeyType,
        repository: &str,
        account: Option<&Arc<PluginAccount>>,
    ) -> (String, Result<CheckedAnswer, ProviderError>) {
        let Ok(key) = CacheKey::for_run(guess.base(repository), account.map(AsRef::as_ref)) else {
            return (repository.to_owned(), self.run(repository, account.map(AsRef::as_ref)).await);
        };
        let (asked, run) = {
            let mut runs = locked(&self.runs);
            // A lookup does not join a finished run.
            let running = |run: &WeakShared<Run>| run.upgrade().filter(|run| run.peek().is_none());
            let found = runs.by_key.get(&key).and_then(|(asked, run)| Some((asked.clone(), running(run)?)));
            found.unwrap_or_else(|| {
                let (provider, asked, account) = (Arc::clone(self), repository.to_owned(), account.cloned());
                let run = async move { provider.run(&asked, account.as_deref()).await }.boxed().shared();
                let weak = run.downgrade().expect("a future that was not polled is not done");
                runs.by_key.retain(|_, (_, run)| run.upgrade().is_some());
                runs.by_key.insert(key, (repository.to_owned(), weak));
                (repository.to_owned(), run)
            })
        };
        (asked, run.await)
    }

    async fn run(&self, repository: &str, account: Option<&PluginAccount>) -> Result<CheckedAnswer, ProviderError> {
        let request = Request {
            kind: REQUEST_KIND,
            api_version: &self.entry.api_version,
            image: repository,
            token: account.map(|account| account.token.expose()),
            annotations: account.map(|account| &account.annotations),
        };
        let output = {
            let _permit = self.permits.acquire().await.expect("the semaphore is never closed");
            let began = Instant::now();
            let output = self.plugin.run(request.encode().as_bytes()).await;
            self.metrics.observe(&meters::DURATION, &[&self.entry.name], began.elapsed().as_secs_f64());
            output
        };
        if output.result.is_err() {
            self.metrics.increment(&meters::ERRORS, &[&self.entry.name]);
            return Err(self.failed(repository, account, &output));
        }
        let response = match Response::decode(&output.stdout, &self.entry.api_version) {
            Ok(response) => response,
            Err(ResponseError::ApiVersion { expected, actual }) => {
                let actual = self.without_secrets(actual.as_bytes(), account, []);
                let actual = actual.chars().take(VERSION_SHOWN_MAX).collect();
                return Err(ProviderError::Response(ResponseError::ApiVersion { expected, actual }));
            }
            Err(error) => return Err(ProviderError::Response(error)),
        };
        if let Some(account) = account
            && !account.is_per_token
            && response.passwords().contains(account.token.expose())
        {
            return Err(ProviderError::TokenReturned);
        }
        let Some(key_type) = CacheKeyType::from_name(&response.cache_key_type) else {
            // Secrets are removed before the text is shortened, because a shortened secret would not match.
            let shown = self.without_secrets(response.cache_key_type.as_bytes(), account, response.passwords());
            return Err(ProviderError::CacheKeyType(shown.chars().take(KEY_TYPE_SHOWN_MAX).collect()));
        };
        self.keep(repository, account, key_type, &response);
        locked(&self.runs).learned = Some(key_type);
        Ok(CheckedAnswer { key_type, auth: response.auth })
    }

    /// If the response cannot be cached, the lookup still succeeds.
    fn keep(&self, repository: &str, account: Option<&PluginAccount>, key_type: CacheKeyType, response: &Response) {
        let good_for = response.cache_duration.or(self.entry.default_cache_duration).unwrap_or_default().to_std();
        match CacheKey::new(key_type.base(repository), account) {
            Ok(key) => locked(&self.cache).keep(key, response.auth.clone(), good_for, Instant::now()),
            Err(error) => tracing::warn!(provider = self.entry.name, %error, "credentials are used and not kept"),
        }
    }

    fn failed(&self, repository: &str, account: Option<&PluginAccount>, output: &Output) -> ProviderError {
        // Any part of an unreadable response may be a secret.
        let (said, texts) = match Response::decode(&output.stdout, &self.entry.api_version) {
            Ok(said) => (Some(said), Vec::new()),
            Err(_) => (None, texts_of(&output.stdout)),
        };
        let passwords = said.iter().flat_map(Response::passwords).chain(texts.iter().map(Secret::expose));
        ProviderError::Run {
            name: self.entry.name.clone(),
            image: repository.to_owned(),
            error: output.result.as_ref().err().map(ToString::to_string).unwrap_or_default(),
            stderr: self.without_secrets(&output.stderr, account, passwords),
        }
    }

    /// Removes from `said` the `known` secrets, the token, the plugin's variables, and text that looks like a secret.
    fn without_secrets<'a>(
        &'a self,
        said: &[u8],
        account: Option<&'a PluginAccount>,
        known: impl IntoIterator<Item = &'a str>,
    ) -> String {
        let token = account.map(|account| account.token.expose());
        let variables = self.entry.env.iter().map(|variable| variable.value.as_str());
        redact(said, known.into_iter().chain(token).chain(variables))
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("name", &self.entry.name).finish_non_exhaustive()
    }
}
