//! Whether a container of a pod is still to be created, first or again.

use imagelet_core::manager::PodRole;
use k8s_openapi::api::core::v1::ContainerState;

use super::object::ContainerSpec;

/// Whether the container does not exist yet, or is going to be created again. `of_pod` is the restart policy of the pod.
///
/// A container without a status waits, and so does one in back-off, whether for its image or after a crash.
pub(super) fn waits(role: PodRole, container: &ContainerSpec, state: Option<&ContainerState>, of_pod: &str) -> bool {
    match state {
        Some(ContainerState { running: Some(_), .. }) => false,
        Some(ContainerState { terminated: Some(ended), .. }) => match restart_policy(role, container, of_pod) {
            "Never" => false,
            "OnFailure" => ended.exit_code != 0,
            // An absent policy is `Always`, as in the API server.
            _ => true,
        },
        Some(_) | None => true,
    }
}

/// When a container that ended is created again.
fn restart_policy<'a>(role: PodRole, container: &'a ContainerSpec, of_pod: &'a str) -> &'a str {
    let is_policy = |text: &&str| ["Always", "OnFailure", "Never"].contains(text);
    // The rules decide by the exit code, and are the kubelet's to read.
    if container.restart_policy_rules.iter().flatten().next().is_some() {
        return "Always";
    }
    match (role, container.restart_policy.as_deref().filter(is_policy)) {
        // Created by a person, once.
        (PodRole::Ephemeral, _) => "Never",
        (_, Some(own)) => own,
        // It has to succeed once.
        (PodRole::Init, None) if !["OnFailure", "Never"].contains(&of_pod) => "OnFailure",
        (_, None) => of_pod,
    }
}
