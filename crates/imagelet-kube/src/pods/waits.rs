//! Whether a container of a pod is still to be created, first or again.

use imagelet_core::manager::PodRole;

use super::object::{ContainerPhase, ContainerSpec, ContainerStatus};

/// When a container that ended is created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    Always,
    OnFailure,
    Never,
}

impl Restart {
    /// The pod's policy; an absent one is `Always`, as in the API server.
    pub(super) fn of_pod(text: &str) -> Self {
        Self::parse(text).unwrap_or(Self::Always)
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }

    fn of_container(role: PodRole, container: &ContainerSpec, of_pod: Self) -> Self {
        let own = Self::parse(&container.restart_policy);
        let restart = match (role, own) {
            // Created by a person, once.
            (PodRole::Ephemeral, _) => Self::Never,
            (_, Some(own)) => own,
            // It has to succeed once.
            (PodRole::Init, None) if of_pod == Self::Always => Self::OnFailure,
            (_, None) => of_pod,
        };
        // The rules decide by the exit code, and are the kubelet's to read.
        if container.restart_policy_rules.is_empty() { restart } else { Self::Always }
    }
}

/// Whether the container does not exist yet, or is going to be created again.
///
/// A container without a status waits, and so does one in back-off, whether for its image or after a crash.
pub(super) fn waits(
    role: PodRole,
    container: &ContainerSpec,
    status: Option<&ContainerStatus>,
    of_pod: Restart,
) -> bool {
    match status.map(|status| &status.state) {
        Some(ContainerPhase { running: Some(_), .. }) => false,
        Some(ContainerPhase { terminated: Some(ended), .. }) => match Restart::of_container(role, container, of_pod) {
            Restart::Always => true,
            Restart::OnFailure => ended.exit_code != 0,
            Restart::Never => false,
        },
        Some(_) | None => true,
    }
}
