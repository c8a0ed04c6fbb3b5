//! The rules of the keys below `kubernetes`: the node's name, and the access to its API server.

use std::num::NonZeroUsize;

use imagelet_kube::ApiAccess;

use super::{
    environment::Environment, keys_and_defaults::KubernetesKeys, settings::KubernetesSettings, violations::Violations,
};

const NAME_LENGTH_MAX: usize = 253;
const LOOK_AHEAD_MAX: i32 = 256;

pub(super) fn check(
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
    let is_name = node_name.len() <= NAME_LENGTH_MAX && node_name.bytes().all(is_of_name);
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
            let settings = check(&keys, environment, &mut found);
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
            let settings = check(&keys, &Environment::default(), &mut found).unwrap();
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
