//! The rules of the kubelet's keys about the node, in the kubelet's words and order.

use imagelet_core::text::quoted;

use super::{
    keys_and_defaults::{KubeletKeys, TracingKeys},
    settings::NodeSettings,
    violations::Violations,
};
use crate::traces::{TraceSettings, TraceTarget};

/// The kubelet's default collector.
const COLLECTOR_DEFAULT: &str = "localhost:4317";

pub(super) fn check(keys: &KubeletKeys, found: &mut Violations) -> NodeSettings {
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
    tracing_keys(keys, found);
    let image_endpoint = if keys.image_service_endpoint.is_empty() { endpoint } else { &keys.image_service_endpoint };
    NodeSettings { status_images_max: usize::try_from(images_max).ok(), image_endpoint: image_endpoint.clone() }
}

fn tracing_keys(keys: &KubeletKeys, found: &mut Violations) {
    if let Some(rate) = keys.tracing.sampling_rate_per_million {
        let key = "tracing.samplingRatePerMillion";
        if rate < 0 {
            found.add_bare(&[key], format!("{key}: Invalid value: {rate}: sampling rate must be positive"));
        } else if rate > 1_000_000 {
            let limit = "sampling rate per million must be less than or equal to one million";
            found.add_bare(&[key], format!("{key}: Invalid value: {rate}: {limit}"));
        }
    }
    let grpc = keys.tracing.endpoint.as_deref().filter(|endpoint| !is_http(endpoint));
    if let Some(Err(refused)) = grpc.map(check_target) {
        found.add_bare(&["tracing.endpoint"], format!("tracing.endpoint: Invalid value: {refused}"));
    }
}

/// Where spans are sent. As with the kubelet, a rate alone sends them to a collector on this host.
pub(super) fn traces(keys: &TracingKeys, found: &mut Violations) -> Option<TraceSettings> {
    let rate = keys.sampling_rate_per_million.and_then(|rate| u32::try_from(rate).ok()).unwrap_or_default();
    let endpoint = match &keys.endpoint {
        Some(endpoint) if !endpoint.is_empty() => endpoint.as_str(),
        _ if rate > 0 => COLLECTOR_DEFAULT,
        _ => return None,
    };
    match endpoint.parse::<TraceTarget>() {
        Ok(target) => Some(TraceSettings { target, rate_per_million: rate }),
        // What the kubelet refuses was reported in its words.
        Err(_) if !is_http(endpoint) && check_target(endpoint).is_err() => None,
        Err(why) => {
            found.add("tracing.endpoint", format!("tracing.endpoint {}: {why}", quoted(endpoint)));
            None
        }
    }
}

fn is_http(endpoint: &str) -> bool {
    endpoint.starts_with("http://")
}

/// Checks a gRPC address by the rules of Go's `url.Parse`; the error quotes it as Go does.
fn check_target(endpoint: &str) -> Result<(), String> {
    let target = if endpoint.contains("//") { endpoint.to_owned() } else { format!("dns://{endpoint}") };
    let refuse = |why: String| Err(format!("{}: {why}", quoted(&target)));
    let unparsed = |why: &str| refuse(format!("parse {}: {why}", quoted(&target)));
    let unsupported =
        |scheme: &str| refuse(format!("unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract"));
    if target.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return unparsed("net/url: invalid control character in URL");
    }
    if target.starts_with(':') {
        return unparsed("missing protocol scheme");
    }
    let end = target.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).unwrap_or(target.len());
    let is_scheme = target[end..].starts_with(':') && target.starts_with(|c: char| c.is_ascii_alphabetic());
    if !is_scheme {
        let first = target.split('/').next().unwrap_or_default();
        if first.contains(':') {
            return unparsed("first path segment in URL cannot contain colon");
        }
        return unsupported("");
    }
    let (scheme, rest) = (target[..end].to_ascii_lowercase(), &target[end + 1..]);
    let authority = rest.strip_prefix("//").map(|rest| rest.split('/').next().unwrap_or_default()).unwrap_or_default();
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|_| !authority.ends_with(']'));
    if let Some(port) = port.filter(|port| !port.bytes().all(|byte| byte.is_ascii_digit())) {
        return unparsed(&format!("invalid port {} after host", quoted(&format!(":{port}"))));
    }
    if let Some(at) = rest.match_indices('%').map(|(at, _)| at).find(|at| !is_escape(&rest[*at..])) {
        let escape: String = rest[at..].chars().take(3).collect();
        return unparsed(&format!("invalid URL escape {}", quoted(&escape)));
    }
    if matches!(scheme.as_str(), "dns" | "unix" | "unix-abstract") { Ok(()) } else { unsupported(&scheme) }
}

fn is_escape(text: &str) -> bool {
    let digits = text.as_bytes().get(1..3);
    digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_refused_in_gos_words() {
        for good in ["localhost:4317", "dns://localhost:4317", "unix:///run/x.sock", "unix-abstract://x", "", "[::1]:1"]
        {
            assert!(check_target(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            (
                "dn%2s://localhost:4317",
                "\"dn%2s://localhost:4317\": parse \"dn%2s://localhost:4317\": first path segment in URL cannot \
                 contain colon",
            ),
            ("http://x", "\"http://x\": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract"),
            (
                "localhost:port",
                "\"dns://localhost:port\": parse \"dns://localhost:port\": invalid port \":port\" after host",
            ),
            ("://x", "\"://x\": parse \"://x\": missing protocol scheme"),
        ] {
            assert_eq!(check_target(bad).unwrap_err(), why);
        }
    }
}
