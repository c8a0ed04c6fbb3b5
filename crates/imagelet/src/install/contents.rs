//! The contents of the files that `install` writes.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{InstallArgs, SOCKET};

pub(super) const BASE_LENGTH_MAX: usize = 256 << 10;
const NODES_MAX: usize = 10_000;

const SERVICE: &str = include_str!("imagelet.service");
pub(super) const SOCKET_UNIT: &str = include_str!("imagelet.socket");
const PACKAGED_PROGRAM: &str = "/usr/bin/imagelet";

/// systemd starts imagelet before the kubelet, because the kubelet exits at its start if its image socket is absent.
pub(super) const KUBELET_UNIT: &str =
    "[Unit]\nRequires=imagelet.socket\nWants=imagelet.service\nAfter=imagelet.socket imagelet.service\n";

pub(super) fn service_unit(program: &Path) -> String {
    SERVICE.replace(PACKAGED_PROGRAM, &program.display().to_string())
}

pub(super) fn kubelet_configuration() -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nimageServiceEndpoint: unix://{SOCKET}\n"
    )
}

/// A mapping without `imageService`, which only the installation sets.
pub(super) fn base_configuration(text: &str) -> Result<Map<String, Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: NODES_MAX, max_total_scalar_bytes: BASE_LENGTH_MAX },
        with_snippet: false,
    };
    let keys: Option<Map<String, Value>> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    let keys = keys.unwrap_or_default();
    if keys.contains_key("imageService") {
        return Err("`imageService` is set by the installation".into());
    }
    if keys.get("kubernetes").is_some_and(|below| !below.is_object()) {
        return Err("`kubernetes` must be a mapping".into());
    }
    Ok(keys)
}

pub(super) fn configuration(endpoint: &str, request: &InstallArgs, base: &Map<String, Value>) -> String {
    let mut keys = base.clone();
    keys.insert("apiVersion".into(), "imagelet.dev/v1alpha1".into());
    keys.insert("kind".into(), "ImageletConfiguration".into());
    keys.insert("imageService".into(), json!({"cri": {"endpoint": endpoint}}));
    if let Some(name) = &request.node_name {
        let below = keys.entry("kubernetes").or_insert_with(|| json!({}));
        below["nodeName"] = name.as_str().into();
        if let Some(path) = &request.kubeconfig {
            below["kubeconfig"] = path.display().to_string().into();
        }
    }
    serde_saphyr::to_string(&keys).expect("a tree of JSON can be written as YAML")
}
