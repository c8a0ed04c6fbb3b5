//! Whether an image is used, pulled or refused: the table of `docs/spec/pull.md §2.5`. Touches nothing.

use super::request::PullPolicy;

/// What is known of an image on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Not looked up, as the policy does not depend on it.
    Unchecked,
    /// It is not here.
    Absent,
    /// It is here, and the client may use it.
    Usable,
    /// It is here, and the client has to show the registry that it may use it.
    Guarded,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Return what is here.
    Use,
    /// Ask the registry.
    Pull,
    /// Fail.
    Refuse,
}

/// Whether the store is asked at all.
pub(crate) fn wants_look(policy: &PullPolicy) -> bool {
    matches!(policy, PullPolicy::IfNotPresent | PullPolicy::Never)
}

/// Chooses.
pub(crate) fn decide(policy: &PullPolicy, presence: Presence) -> Decision {
    match (policy, presence) {
        (PullPolicy::Always | PullPolicy::Other(_), _) => Decision::Pull,
        (_, Presence::Usable) => Decision::Use,
        (PullPolicy::IfNotPresent, _) => Decision::Pull,
        (PullPolicy::Never, _) => Decision::Refuse,
    }
}
