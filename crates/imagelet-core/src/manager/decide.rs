//! Whether an image is used, pulled or refused: the table of `spec/pull.md §2.5`. Touches nothing.

use super::request::PullPolicy;

/// What is known of an image on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Nobody looked: the policy does not care.
    Unchecked,
    /// It is not here.
    Absent,
    /// It is here, and the asker may use it.
    Usable,
    /// It is here, and the asker has to show the registry that it may use it.
    Guarded,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Hand out what is here.
    Use,
    /// Ask the registry.
    Pull,
    /// Say no.
    Refuse,
}

/// Whether the store is asked at all.
pub(crate) fn wants_look(policy: PullPolicy) -> bool {
    matches!(policy, PullPolicy::IfNotPresent | PullPolicy::Never)
}

/// Chooses.
pub(crate) fn decide(policy: PullPolicy, presence: Presence) -> Decision {
    match (policy, presence) {
        (PullPolicy::Always | PullPolicy::Other(_), _) => Decision::Pull,
        (_, Presence::Usable) => Decision::Use,
        (PullPolicy::IfNotPresent, _) => Decision::Pull,
        (PullPolicy::Never, _) => Decision::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn every_decision_vector_holds() {
        let cases = vectors("pull-policy-decision.json");
        for case in &cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            let policy: PullPolicy = input["pull_policy"].as_str().expect("a policy").parse().expect("known");
            assert_eq!(Some(wants_look(policy)), expected["image_status_called"].as_bool());
            let presence = match (wants_look(policy), input["present"].as_bool(), input["must_attempt_pull"].as_bool())
            {
                (false, ..) => Presence::Unchecked,
                (true, Some(false), _) => Presence::Absent,
                (true, _, Some(true)) => Presence::Guarded,
                (true, ..) => Presence::Usable,
            };
            let action = match decide(policy, presence) {
                Decision::Use => "use_present",
                Decision::Pull => "pull",
                Decision::Refuse => "ErrImageNeverPull",
            };
            assert_eq!(Some(action), expected["action"].as_str(), "{}", case["name"]);
        }
        assert_eq!(cases.len(), 14);
    }
}
