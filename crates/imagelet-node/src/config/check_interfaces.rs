//! The rules of the keys about the interfaces of the node: the kubelet's endpoints and traces, HTTP, and Kubernetes.

use std::{net::IpAddr, num::NonZeroUsize};

use imagelet_core::text::quoted;
use imagelet_kube::ApiAccess;

use super::{
    environment::Environment,
    keys_and_defaults::{HttpKeys, KubeletKeys, KubernetesKeys, TracingKeys},
    settings::{HttpSettings, KubernetesSettings},
    violations::Violations,
};
use crate::traces::TraceSettings;

const COLLECTOR_DEFAULT: &str = "localhost:4317";
const NODE_NAME_LENGTH_MAX: usize = 253;
const LOOK_AHEAD_MAX: i32 = 256;

/// Returns the limit of images in the Node's status, and the endpoint of the kubelet's image service.
pub(super) fn kubelet(keys: &KubeletKeys, found: &mut Violations) -> (Option<usize>, String) {
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

pub(super) fn http(keys: &HttpKeys, found: &mut Violations) -> HttpSettings {
    let HttpKeys { address, token_file, host_names, actions } = keys;
    let host = address.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    found.rule(address.is_empty() || host.is_some(), "http.address", format!("`{address}`"), "must be HOST:PORT");
    let token_file = found.path("http.tokenFile", token_file);
    let has_token = token_file.is_some();
    // Only an IP address is checked now. A host name is checked when the daemon binds to it.
    let ip = host.and_then(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
    if ip.is_some_and(|ip| !ip.is_loopback()) && !has_token {
        found.add_of(
            &["http.address", "http.tokenFile"],
            format!("http.address `{address}` is not loopback and needs http.tokenFile"),
        );
    }
    if *actions && !has_token {
        found.add_of(&["http.actions", "http.tokenFile"], "http.actions needs http.tokenFile");
    }
    for name in host_names {
        let is_name = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c));
        found.rule(is_name, "http.hostNames", format!("`{name}`"), "must be a host name without port");
    }
    HttpSettings {
        address: Some(address.clone()).filter(|address| !address.is_empty()),
        token_file,
        host_names: host_names.clone(),
        actions: *actions,
    }
}

pub(super) fn kubernetes(
    keys: &KubernetesKeys,
    environment: &Environment,
    found: &mut Violations,
) -> Option<KubernetesSettings> {
    let KubernetesKeys { node_name, kubeconfig, look_ahead_max, events, progress_events } = keys;
    let kubeconfig = found.path("kubernetes.kubeconfig", kubeconfig);
    found.between("kubernetes.lookAheadMax", look_ahead_max, 0..=LOOK_AHEAD_MAX);
    if node_name.is_empty() {
        if kubeconfig.is_some() {
            let both = ["kubernetes.kubeconfig", "kubernetes.nodeName"];
            found.add_of(&both, "kubernetes.kubeconfig needs kubernetes.nodeName");
        }
        return None;
    }
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_name = node_name.len() <= NODE_NAME_LENGTH_MAX && node_name.bytes().all(is_of_name);
    found.rule(is_name, "kubernetes.nodeName", format!("`{node_name}`"), "must be the name of a Node");
    if kubeconfig.is_none() && !environment.is_in_cluster() {
        let message = "kubernetes.nodeName needs kubernetes.kubeconfig, as imagelet does not run in a pod";
        found.add_of(&["kubernetes.nodeName", "kubernetes.kubeconfig"], message);
    }
    let access = kubeconfig.map_or(ApiAccess::InCluster, ApiAccess::Kubeconfig);
    let look_ahead_max = usize::try_from(*look_ahead_max).ok().and_then(NonZeroUsize::new);
    let (events, progress_events) = (*events, *progress_events);
    Some(KubernetesSettings { access, node: node_name.clone(), look_ahead_max, events, progress_events })
}

#[cfg(test)]
mod tests {
    use super::*;
    use imagelet_core::credentials::Variables;

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

    #[test]
    fn an_open_address_and_actions_need_a_token() {
        let keys = |address: &str, token_file: &str, actions| HttpKeys {
            address: address.into(),
            token_file: token_file.into(),
            actions,
            ..HttpKeys::default()
        };
        for (given, expected) in [
            (keys("", "", false), None),
            (keys("127.0.0.1:9100", "", false), None),
            (keys("[::1]:9100", "", false), None),
            (keys("localhost:9100", "", false), None),
            (keys("0.0.0.0:9100", "/etc/imagelet/token", true), None),
            (
                keys("0.0.0.0:9100", "", false),
                Some("http.address `0.0.0.0:9100` is not loopback and needs http.tokenFile"),
            ),
            (keys("[::]:9100", "", false), Some("http.address `[::]:9100` is not loopback")),
            (keys("192.0.2.7:9100", "", false), Some("is not loopback")),
            (keys("127.0.0.1:9100", "", true), Some("http.actions needs http.tokenFile")),
            (keys("127.0.0.1", "", false), Some("must be HOST:PORT")),
            (keys("127.0.0.1:9100", "token", false), Some("http.tokenFile `token` must be an absolute path")),
        ] {
            let mut found = Violations::default();
            let settings = http(&given, &mut found);
            let messages: Vec<_> = found.0.iter().map(|it| it.message.as_str()).collect();
            match expected {
                None => assert_eq!(
                    (messages.len(), settings.address.is_some()),
                    (0, !given.address.is_empty()),
                    "{given:?}"
                ),
                Some(words) => assert!(messages.len() == 1 && messages[0].contains(words), "{given:?}: {messages:?}"),
            }
        }
    }

    #[test]
    fn a_host_name_has_neither_port_nor_scheme() {
        for (name, is_name) in
            [("node-1.example", true), ("a_b", true), ("", false), ("a:1", false), ("http://a", false)]
        {
            let mut found = Violations::default();
            http(&HttpKeys { host_names: vec![name.into()], ..HttpKeys::default() }, &mut found);
            assert_eq!(found.0.is_empty(), is_name, "{name}");
        }
    }

    #[test]
    fn a_node_needs_a_kubeconfig_or_a_pod_and_a_kubeconfig_needs_a_node() {
        let inside = Environment {
            variables: Variables(vec![("KUBERNETES_SERVICE_HOST".into(), "10.96.0.1".into())]),
            ..Environment::default()
        };
        let outside = Environment::default();
        let long = "a".repeat(254);
        for (node, kubeconfig, environment, expected) in [
            ("", "", &outside, Ok(None)),
            ("", "", &inside, Ok(None)),
            ("node-1.example", "", &inside, Ok(Some(ApiAccess::InCluster))),
            ("node-1", "/etc/kubeconfig", &inside, Ok(Some(ApiAccess::Kubeconfig("/etc/kubeconfig".into())))),
            ("node-1", "/etc/kubeconfig", &outside, Ok(Some(ApiAccess::Kubeconfig("/etc/kubeconfig".into())))),
            ("node-1", "", &outside, Err("needs kubernetes.kubeconfig, as imagelet does not run in a pod")),
            ("", "/etc/kubeconfig", &outside, Err("kubernetes.kubeconfig needs kubernetes.nodeName")),
            ("node-1", "kubeconfig", &outside, Err("kubernetes.kubeconfig `kubeconfig` must be an absolute path")),
            ("Node", "/etc/kubeconfig", &outside, Err("kubernetes.nodeName `Node` must be the name of a Node")),
            ("a,b=c", "/etc/kubeconfig", &outside, Err("must be the name of a Node")),
            (&long, "/etc/kubeconfig", &outside, Err("must be the name of a Node")),
        ] {
            let mut found = Violations::default();
            let keys =
                KubernetesKeys { node_name: node.into(), kubeconfig: kubeconfig.into(), ..KubernetesKeys::default() };
            let settings = kubernetes(&keys, environment, &mut found);
            match expected {
                Ok(access) => {
                    assert!(found.0.is_empty(), "{keys:?}: {:?}", found.0);
                    assert_eq!(settings.map(|it| it.access), access, "{keys:?}");
                }
                Err(words) => {
                    let [violation] = &found.0[..] else { panic!("{keys:?}: {:?}", found.0) };
                    assert!(violation.message.contains(words), "{keys:?}: {}", violation.message);
                }
            }
        }
    }

    #[test]
    fn a_number_of_images_is_fetched_ahead_or_none() {
        for (images, expected) in [(0, Ok(None)), (1, Ok(Some(1))), (256, Ok(Some(256))), (-1, Err(())), (257, Err(()))]
        {
            let mut found = Violations::default();
            let (node_name, kubeconfig) = ("node-1".into(), "/etc/kubeconfig".into());
            let keys = KubernetesKeys { node_name, kubeconfig, look_ahead_max: images, ..KubernetesKeys::default() };
            let settings = kubernetes(&keys, &Environment::default(), &mut found).unwrap();
            if let Ok(max) = expected {
                assert_eq!((settings.look_ahead_max.map(NonZeroUsize::get), found.0.len()), (max, 0));
            } else {
                let [violation] = &found.0[..] else { panic!("{images}: {:?}", found.0) };
                let rule = format!("kubernetes.lookAheadMax {images} must be between 0 and 256, inclusive");
                assert!(violation.message.contains(&rule), "{}", violation.message);
            }
        }
    }
}
