//! A reload of the configuration: which new settings are applied at once, and which wait for the next start.

use imagelet_core::gc::GcPolicy;

use super::wiring::{self, Role};
use crate::{
    config::{Backend, Settings},
    failure::Failure,
    http::HttpAccess,
    node::LocalNode,
};

/// Applies the new settings. Invalid settings change nothing.
pub(super) async fn reload(new: Result<Settings, Failure>, node: &LocalNode, access: &HttpAccess) {
    let checked = async {
        let new = new?;
        // All checks precede the first change. `configure_providers` checks the providers before it replaces them.
        let policy = access.next(&new.interfaces.http)?;
        wiring::configure_providers(&node.pulls.providers, &new).await?;
        Ok::<_, Failure>((new, policy))
    };
    let (mut new, policy) = match checked.await {
        Ok(read) => read,
        Err(failure) => {
            let error = failure.to_string();
            return tracing::error!(error, "the new configuration is refused; the old one stays in force");
        }
    };
    let old = node.pulls.images.settings();
    // The registry clients hold the old rules, so the content of the old rules is replaced.
    let new_rules =
        std::mem::replace(&mut new.images.registry.proxies.rules, old.images.registry.proxies.rules.clone());
    old.images.registry.proxies.rules.replace(&new_rules);
    old.images.registry.bandwidth.set(new.images.registry.bandwidth.rate());
    new.images.registry.bandwidth = old.images.registry.bandwidth.clone();
    let (new, waiting) = in_force(&old, new);
    if !waiting.is_empty() {
        tracing::warn!(settings = waiting.join(", "), "these settings take effect with the next start");
    }
    let keyring = &node.pulls.images.keyring;
    keyring.replace(wiring::keyring(&new, Role::Daemon)).await;
    // The keyring reads its files now, so that the reload logs their errors.
    keyring.keyring().await;
    access.replace(policy);
    node.apply(new);
    tracing::info!("configuration reloaded");
}

fn in_force(running: &Settings, new: Settings) -> (Settings, Vec<&'static str>) {
    // The pattern has no `..`, so that the compiler demands a decision on each new group of settings.
    let Settings { collection, pulls, records, interfaces, images, node, credentials: _, environment: _ } = running;
    let (mut new, mut waiting) = (new, Vec::new());
    if keep(&mut waiting, "compatibility", &mut new.pulls.node_policy, &pulls.node_policy) {
        // The defaults of these values depend on `compatibility`, so their running values are kept too.
        let GcPolicy { bytes, age_min, age_max, .. } = new.collection.policy;
        new.collection.policy = GcPolicy { bytes, age_min, age_max, ..collection.policy };
        (new.collection.for_pulls, new.collection.lease_for) = (collection.for_pulls, collection.lease_for);
        new.images.sandbox_images.clone_from(&images.sandbox_images);
    }
    keep(&mut waiting, "socket", &mut new.interfaces.socket, &interfaces.socket);
    keep(&mut waiting, "http.address", &mut new.interfaces.http.address, &interfaces.http.address);
    if new.interfaces.http.token_file.is_none() {
        keep(&mut waiting, "http.tokenFile", &mut new.interfaces.http.token_file, &interfaces.http.token_file);
    }
    if keep(&mut waiting, "store, imageService, runtimeImport", &mut new.images.backend, &images.backend) {
        keep(&mut waiting, "importFolder", &mut new.images.import_folder, &images.import_folder);
    }
    if matches!(images.backend, Backend::Cri(_)) {
        // Imports into a runtime use the sandbox images that the daemon read at its start.
        keep(&mut waiting, "sandboxImage", &mut new.images.sandbox_images, &images.sandbox_images);
    }
    keep(&mut waiting, "imageService.pinnedImages", &mut new.images.pinned, &images.pinned);
    keep(&mut waiting, "registry", &mut new.images.registry, &images.registry);
    keep(&mut waiting, "pull limits", &mut new.pulls, pulls);
    keep(&mut waiting, "gc.decisions", &mut new.collection.decisions_max, &collection.decisions_max);
    keep(&mut waiting, "kubernetes", &mut new.node.kubernetes, &node.kubernetes);
    keep(&mut waiting, "staleOnOutage", &mut new.images.stale_max, &images.stale_max);
    keep(&mut waiting, "runtimeRequestTimeout", &mut new.node.request_timeout, &node.request_timeout);
    keep(&mut waiting, "imagePullCredentialsVerificationPolicy", &mut new.records.verification, &records.verification);
    keep(&mut waiting, "credentialRecordMaxAge", &mut new.records.age_max, &records.age_max);
    keep(&mut waiting, "tracing", &mut new.interfaces.traces, &interfaces.traces);
    (new, waiting)
}

fn keep<T: Clone + PartialEq>(waiting: &mut Vec<&'static str>, name: &'static str, new: &mut T, running: &T) -> bool {
    let differs = new != running;
    if differs {
        new.clone_from(running);
        waiting.push(name);
    }
    differs
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use imagelet_core::gc::GcOrder;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{Environment, Sources};

    const RUNTIME: &str = "unix:///run/containerd/containerd.sock";

    type Keys<'a> = &'a [(&'a str, Value)];

    fn settings(keys: Keys<'_>) -> Settings {
        let mut sources = Sources::new(Environment { root: true, ..Environment::default() });
        for (key, value) in keys {
            sources.add_flag("--test", key, value.clone());
        }
        sources.settings().unwrap_or_else(|error| panic!("{keys:?}: {error}"))
    }

    #[test]
    fn each_reload_names_what_waits_for_a_restart_and_switches_no_part_of_it() {
        let runtime = [("imageService.cri.endpoint", json!(RUNTIME))];
        let cases: &[(&str, Keys<'_>, Keys<'_>)] = &[
            ("compatibility", &[], &[("compatibility", json!("kubelet"))]),
            ("compatibility", &[("compatibility", json!("kubelet"))], &[]),
            ("socket", &[], &[("socket", json!("/run/other.sock"))]),
            ("http.address", &[], &[("http.address", json!("127.0.0.1:9000"))]),
            ("http.tokenFile", &[("http.tokenFile", json!("/etc/token"))], &[]),
            ("store, imageService, runtimeImport", &[], &[("store.directory", json!("/srv/store"))]),
            ("store, imageService, runtimeImport", &[], &runtime),
            (
                "store, imageService, runtimeImport, importFolder",
                &runtime,
                &[("importFolder.directory", json!("/srv/arrivals"))],
            ),
            ("sandboxImage", &runtime, &[runtime[0].clone(), ("sandboxImage", json!("registry.example/pause:1"))]),
            ("imageService.pinnedImages", &[], &[("imageService.pinnedImages", json!(["registry.example/*"]))]),
            ("registry", &[], &[("registry.connectionsPerHost", json!(3))]),
            ("pull limits", &[], &[("registryPullQPS", json!(3))]),
            ("gc.decisions", &[], &[("gc.decisions.maxBytes", json!("1Mi"))]),
            ("staleOnOutage", &[("staleOnOutage.enabled", json!(true))], &[("staleOnOutage.enabled", json!(false))]),
            ("runtimeRequestTimeout", &[], &[("runtimeRequestTimeout", json!("3m0s"))]),
            (
                "imagePullCredentialsVerificationPolicy",
                &[],
                &[("imagePullCredentialsVerificationPolicy", json!("AlwaysVerify"))],
            ),
            ("credentialRecordMaxAge", &[], &[("credentialRecordMaxAge", json!("3h0m0s"))]),
            ("tracing", &[], &[("tracing", json!({"endpoint": "127.0.0.1:4317", "samplingRatePerMillion": 1}))]),
        ];
        for (names, started_with, read) in cases {
            let (started_with, read) = (settings(started_with), settings(read));
            let (first, waiting) = in_force(&started_with, read.clone());
            assert_eq!(waiting.join(", "), *names);
            assert_eq!(first, started_with, "{names}: a part of it is switched");
            let (second, waiting) = in_force(&first, read);
            assert_eq!(waiting.join(", "), *names, "the second reload");
            let (_, waiting) = in_force(&second, started_with);
            assert!(waiting.is_empty(), "{waiting:?} is taken back");
        }
    }

    #[test]
    fn what_waits_for_a_restart_does_not_delay_the_other_settings() {
        let read = settings(&[
            ("compatibility", json!("kubelet")),
            ("imageGCHighThresholdPercent", json!(90)),
            ("detection.period", json!("20s")),
            ("http.hostNames", json!(["node.example"])),
            ("sandboxImage", json!("registry.example/pause:1")),
        ]);
        let (next, waiting) = in_force(&settings(&[]), read);
        assert_eq!(waiting, ["compatibility"]);
        assert_eq!((next.collection.policy.high().get(), next.collection.policy.order), (90, GcOrder::Cost));
        assert_eq!(next.images.detection_period, Duration::from_secs(20));
        assert_eq!(next.interfaces.http.host_names, ["node.example"]);
        let (next, _) = in_force(&settings(&[]), settings(&[("sandboxImage", json!("registry.example/pause:1"))]));
        assert_eq!(
            next.images.sandbox_images.map(|images| images.len()),
            Some(1),
            "a store of this process reads them anew"
        );
    }
}
