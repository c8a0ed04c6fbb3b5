//! Performs the steps of a pull at each host separately, and reports each step. Writes nothing.

pub(super) mod steps;

use std::{sync::Arc, time::Duration};

use imagelet_core::{
    credentials::Credential,
    error::{ErrorClass, RuntimeError, Stage},
    image::{Platform, Reference},
    ports::{Patience, RegistryHost},
};
use tokio::time::Instant;

pub use self::steps::PathStep;
use self::steps::recording;
use super::{
    PullSession, Registry, RegistryConfig, Resolved,
    hosts::{ConfiguredHosts, Host},
};
use crate::manifest::{CONFIG_BYTES_MAX, Descriptor};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// The bytes of all compressed layers, if a host has the manifest.
    pub layer_bytes: Option<u64>,
    /// Whether at least one host serves the whole image.
    pub is_served: bool,
}

/// The hosts that a pull of an image may ask, except the image's registry.
pub async fn registry_hosts(config: &RegistryConfig, reference: &Reference) -> Vec<RegistryHost> {
    Registry::for_check(config.clone()).other_hosts(reference).await
}

/// Requests an image as a pull does, from each of its hosts in turn: the manifest, the configuration, the first byte of
/// each layer. Nothing is retried or stored. Unusable settings are reported as a failed step. If `platform` is `None`,
/// it is this machine's. Then an image without an index may be for another platform.
pub async fn check_path(
    config: RegistryConfig,
    reference: &Reference,
    credentials: &[Credential],
    platform: Option<&Platform>,
    report: &mut (dyn FnMut(PathStep) + Send),
) -> PathReport {
    let wanted = platform.cloned().unwrap_or_else(Platform::host);
    let registry = Registry::for_check(config);
    let began = Instant::now();
    let mut walk = Walk { report, place: String::new(), found: PathReport::default() };
    let ConfiguredHosts { hosts, warnings } = match registry.configured_hosts(reference).await {
        Ok(found) => found,
        Err(error) => {
            walk.failed("configuration", began.elapsed(), error);
            return walk.found;
        }
    };
    let places: Vec<String> = hosts.iter().map(|host| host.origin.to_string()).collect();
    for warning in warnings {
        walk.passed("configuration", Duration::ZERO, format!("warning: {warning}"));
    }
    walk.passed("mirrors", began.elapsed(), format!("in this order: {}", places.join(", ")));
    for host in hosts {
        walk.place = host.origin.authority();
        walk.check_host(&registry, host, reference, credentials, (&wanted, platform.is_some())).await;
    }
    walk.found
}

struct Walk<'a> {
    report: &'a mut (dyn FnMut(PathStep) + Send),
    place: String,
    found: PathReport,
}

impl Walk<'_> {
    async fn check_host(
        &mut self,
        registry: &Registry,
        host: Host,
        reference: &Reference,
        credentials: &[Credential],
        (platform, is_given): (&Platform, bool),
    ) {
        let can_resolve = host.capabilities.resolve || reference.digest().is_some();
        if !host.capabilities.pull || !can_resolve {
            return self.passed("configuration", Duration::ZERO, "not asked: its capabilities do not allow it".into());
        }
        let (shared, reference) = (Arc::clone(&registry.shared), reference.canonical());
        let session = PullSession::new(shared, reference.clone(), vec![host], credentials, Patience::FULL);
        let Some((resolved, took)) = self.timed(session.clone().resolve(&reference, platform)).await else { return };
        let layers = &resolved.manifest.layers;
        self.found.layer_bytes = Some(layers.iter().map(|layer| layer.size).sum());
        self.passed(Stage::Manifest.name(), took, resolved.root.digest.to_string());
        let served = self.check_content(&session, &resolved, (platform, is_given)).await;
        self.found.is_served |= served.is_some();
    }

    /// Checks the configuration and the layers at one host. Returns `None` after it has reported a failed step.
    async fn check_content(
        &mut self,
        session: &PullSession,
        resolved: &Resolved,
        (platform, is_given): (&Platform, bool),
    ) -> Option<()> {
        let described = &resolved.manifest.config;
        let (bytes, took) = self.timed(session.fetch_blob_bytes(described, CONFIG_BYTES_MAX)).await?;
        self.passed(Stage::Blob.name(), took, format!("configuration {}", described.digest));
        let config = resolved.manifest.read_config(&bytes);
        let fits = config.and_then(|config| resolved.check_platform(&config.platform, platform, is_given));
        let fits = fits.and_then(|other| resolved.manifest.check_layers().map(|()| other));
        let other = fits.map_err(|error| self.failed("platform", Duration::ZERO, error)).ok()?;
        let by = if resolved.is_named { "by the index" } else { "without an index" };
        let other = other.map(|other| format!(", {by}; {other}")).unwrap_or_default();
        self.passed("platform", Duration::ZERO, format!("{platform}{other}"));
        for layer in &resolved.manifest.layers {
            let (first, took) = self.timed(first_byte(session, layer)).await?;
            let read = if first { "first byte" } else { "empty" };
            self.passed(Stage::Blob.name(), took, format!("layer {}: {read}", layer.digest));
        }
        Some(())
    }

    /// Runs one request, and reports its connections. Returns its result and time, or `None` after a reported failure.
    async fn timed<T>(&mut self, request: impl Future<Output = Result<T, RuntimeError>>) -> Option<(T, Duration)> {
        let began = Instant::now();
        let (outcome, steps) = recording(request).await;
        let took = began.elapsed().saturating_sub(steps.iter().map(|step| step.took).sum());
        steps.into_iter().for_each(&mut self.report);
        match outcome {
            Ok(found) => return Some((found, took)),
            Err(error) if error.fault().class == ErrorClass::PlatformMissing => {
                self.passed(Stage::Manifest.name(), took, String::new());
                self.failed("platform", took, error);
            }
            Err(error) => self.failed(error.fault().stage.name(), took, error),
        }
        None
    }

    fn passed(&mut self, name: &'static str, took: Duration, detail: String) {
        (self.report)(PathStep { name, host: self.place.clone(), detail, took, error: None });
    }

    fn failed(&mut self, name: &'static str, took: Duration, error: RuntimeError) {
        let detail = error.fault().class.to_string();
        (self.report)(PathStep { name, host: self.place.clone(), detail, took, error: Some(error) });
    }
}

async fn first_byte(session: &PullSession, layer: &Descriptor) -> Result<bool, RuntimeError> {
    if layer.size == 0 {
        return Ok(false);
    }
    session.blob(layer).stream(0..1).next().await.map(|chunk| chunk.is_some())
}
