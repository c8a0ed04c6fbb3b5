//! Decides whether an image is used, pulled or rejected: the table of `docs/spec/pull.md §2.5`; pure functions.

use super::request::PullPolicy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The image was not looked up, because the policy does not depend on its presence.
    Unchecked,
    Absent,
    /// The image is present, and the client may use it.
    Usable,
    /// The image is present, but the registry must decide on the client's access.
    Guarded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Use,
    Pull,
    Refuse,
}

pub(crate) fn wants_look(policy: &PullPolicy) -> bool {
    matches!(policy, PullPolicy::IfNotPresent | PullPolicy::Never)
}

pub(crate) fn decide(policy: &PullPolicy, presence: Presence) -> Decision {
    match (policy, presence) {
        (PullPolicy::Always | PullPolicy::Other(_), _) => Decision::Pull,
        (_, Presence::Usable) => Decision::Use,
        (PullPolicy::IfNotPresent, _) => Decision::Pull,
        (PullPolicy::Never, _) => Decision::Refuse,
    }
}
