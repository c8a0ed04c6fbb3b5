//! The contents of the files that `install` writes.

use std::{fmt::Write as _, path::Path};

use super::{Request, SOCKET};

const SERVICE: &str = include_str!("imagelet.service");
pub(super) const SOCKET_UNIT: &str = include_str!("imagelet.socket");
/// The program of the package, which the unit names.
const PACKAGED_PROGRAM: &str = "/usr/bin/imagelet";

/// The kubelet exits at start when its image socket is absent, so systemd orders the two.
pub(super) const KUBELET_UNIT: &str =
    "[Unit]\nRequires=imagelet.socket\nWants=imagelet.service\nAfter=imagelet.socket imagelet.service\n";

/// The unit of the daemon, for a program at this path.
pub(super) fn service_unit(program: &Path) -> String {
    SERVICE.replace(PACKAGED_PROGRAM, &program.display().to_string())
}

/// The kubelet's own key, as a drop-in of its configuration.
pub(super) fn kubelet_configuration() -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nimageServiceEndpoint: unix://{SOCKET}\n"
    )
}

/// The daemon's configuration over a runtime.
pub(super) fn configuration(endpoint: &str, request: &Request) -> String {
    let mut text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageService:\n  cri:\n    endpoint: {}\n",
        quoted(endpoint)
    );
    if let Some(name) = &request.node_name {
        let _ = writeln!(text, "kubernetes:\n  nodeName: {}", quoted(name));
        if let Some(path) = &request.kubeconfig {
            let _ = writeln!(text, "  kubeconfig: {}", quoted(path));
        }
    }
    text
}

/// A text of YAML: JSON's strings are among them.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
