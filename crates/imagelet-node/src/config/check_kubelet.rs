//! The rules of the kubelet's keys about the node, with the kubelet's texts and in its order.

use imagelet_core::text::quoted;

use super::{
    keys_and_defaults::{KubeletKeys, TracingKeys},
    violations::Violations,
};
use crate::traces::TraceSettings;

const COLLECTOR_DEFAULT: &str = "localhost:4317";

/// Returns the limit of images in the Node's status, and the endpoint of the kubelet's image service.
pub(super) fn check(keys: &KubeletKeys, found: &mut Violations) -> (Option<usize>, String) {
    let images_max = keys.node_status_max_images;
    found.rule(images_max >= -1, "nodeStatusMaxImages (--node-status-max-images)", images_max, "must be -1 or greater");
    found.rule(keys.max_pods >= 0, "maxPods (--max-pods)", keys.max_pods, "must not be a negative number");
    if !keys.feature_gates.image_maximum_gc_age && keys.image_maximum_gc_age.0 != 0 {
        found.add_of(
            &["imageMaximumGCAge", "featureGates.ImageMaximumGCAge"],
            "ImageMaximumGCAge feature gate is required for Kubelet configuration option imageMaximumGCAge",
        );
    }
    let endpoint = &keys.container_runtime_endpoint;
    if endpoint.is_empty() {
        found.add("containerRuntimeEndpoint", "the containerRuntimeEndpoint was not specified or empty");
    }
    let image_endpoint = if keys.image_service_endpoint.is_empty() { endpoint } else { &keys.image_service_endpoint };
    (usize::try_from(images_max).ok(), image_endpoint.clone())
}

/// The trace settings. As in the kubelet, a sampling rate without an endpoint means a collector on this host.
pub(super) fn traces(keys: &TracingKeys, found: &mut Violations) -> Option<TraceSettings> {
    let rate = keys.sampling_rate_per_million.unwrap_or_default();
    let key = "tracing.samplingRatePerMillion";
    if rate < 0 {
        found.add_bare(&[key], &format!("{key}: Invalid value: {rate}: sampling rate must be positive"));
    } else if rate > 1_000_000 {
        let limit = "sampling rate per million must be less than or equal to one million";
        found.add_bare(&[key], &format!("{key}: Invalid value: {rate}: {limit}"));
    }
    let endpoint = match &keys.endpoint {
        Some(endpoint) if !endpoint.is_empty() => endpoint.as_str(),
        _ if rate > 0 => COLLECTOR_DEFAULT,
        _ => return None,
    };
    match endpoint.parse() {
        Ok(target) => Some(TraceSettings { target, rate_per_million: u32::try_from(rate).unwrap_or_default() }),
        Err(why) => {
            let shown = quoted(endpoint);
            // Go's URL parser rejects an invalid scheme with this text, and the kubelet prints the text.
            let is_scheme = |text: &str| text.bytes().all(|c| c.is_ascii_alphanumeric() || b"+-.".contains(&c));
            let is_url = endpoint.split_once("://").is_none_or(|(scheme, _)| is_scheme(scheme));
            let why =
                if is_url { why } else { format!("parse {shown}: first path segment in URL cannot contain colon") };
            found.add_bare(&["tracing.endpoint"], &format!("tracing.endpoint: Invalid value: {shown}: {why}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_does_not_parse_is_refused_with_its_value() {
        for (endpoint, why) in [
            ("localhost:4317", None),
            ("unix:///run/x.sock", None),
            ("", None),
            (
                "dn%2s://localhost:4317",
                Some("parse \"dn%2s://localhost:4317\": first path segment in URL cannot contain colon"),
            ),
            ("localhost:port", Some("a collector is HOST:PORT")),
            ("unix:x.sock", Some("the path of a unix socket is absolute")),
        ] {
            let mut found = Violations::default();
            let keys = TracingKeys { endpoint: Some(endpoint.into()), ..TracingKeys::default() };
            assert_eq!(traces(&keys, &mut found).is_some(), why.is_none() && !endpoint.is_empty());
            let expected = why.map(|why| format!("tracing.endpoint: Invalid value: {endpoint:?}: {why}"));
            assert_eq!(found.0.first().map(|it| &it.message), expected.as_ref());
        }
    }
}
