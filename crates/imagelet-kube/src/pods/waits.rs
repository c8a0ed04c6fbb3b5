//! Whether a container of a pod will still be created, for the first time or again.

use imagelet_core::manager::PodRole;
use k8s_openapi::api::core::v1::ContainerState;

use super::object::ContainerSpec;

/// Whether the container will be created. A container in back-off waits, too. `of_pod` is the pod's restart policy.
pub(super) fn waits(role: PodRole, container: &ContainerSpec, state: Option<&ContainerState>, of_pod: &str) -> bool {
    match state {
        Some(ContainerState { running: Some(_), .. }) => false,
        Some(ContainerState { terminated: Some(ended), .. }) => match restart_policy(role, container, of_pod) {
            "Never" => false,
            "OnFailure" => ended.exit_code != 0,
            // The API server also takes an absent restart policy as `Always`.
            _ => true,
        },
        Some(_) | None => true,
    }
}

fn restart_policy<'a>(role: PodRole, container: &'a ContainerSpec, of_pod: &'a str) -> &'a str {
    let is_policy = |text: &&str| ["Always", "OnFailure", "Never"].contains(text);
    // Restart rules depend on the exit code. Only the kubelet evaluates them, so a new start is assumed.
    if container.restart_policy_rules.iter().flatten().next().is_some() {
        return "Always";
    }
    match (role, container.restart_policy.as_deref().filter(is_policy)) {
        // An ephemeral container is created by a user and runs once.
        (PodRole::Ephemeral, _) => "Never",
        (_, Some(own)) => own,
        // An init container must succeed once.
        (PodRole::Init, None) if !["OnFailure", "Never"].contains(&of_pod) => "OnFailure",
        (_, None) => of_pod,
    }
}
