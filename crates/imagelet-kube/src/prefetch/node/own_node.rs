//! The Node object of an agent: its labels, and the condition that the agent writes.
//!
//! The agent compares with the condition in the API, also after a restart and after a change by another client.

use jiff::Timestamp;
use k8s_openapi::{
    ClusterResourceScope,
    api::core::v1::NodeCondition,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::images_ready::{CONDITION, ImagesReady};
use crate::metadata::resource;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnNode {
    metadata: ObjectMeta,
    status: OwnNodeStatus,
}

resource!(OwnNode, ClusterResourceScope, (), |()| ["", "v1", "Node", "nodes"]);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct OwnNodeStatus {
    conditions: Option<Vec<NodeCondition>>,
}

impl OwnNode {
    fn condition(&self) -> Option<&NodeCondition> {
        self.status.conditions.iter().flatten().find(|it| it.type_ == CONDITION)
    }

    /// The condition in the API. `None`: absent. An unknown condition has no message, so it equals no wanted one.
    pub(super) fn images_ready(&self) -> Option<ImagesReady> {
        let NodeCondition { status, reason, message, .. } = self.condition()?;
        let message = message.clone().unwrap_or_default();
        Some(match (status.as_str(), reason.as_deref()) {
            ("True", Some(ImagesReady::PRESENT)) => ImagesReady { is_ready: true, message },
            ("False", Some(ImagesReady::MISSING)) => ImagesReady { is_ready: false, message },
            _ => ImagesReady { is_ready: false, message: String::new() },
        })
    }

    /// Changes only this condition. With the uid, the API server rejects the patch of a recreated Node.
    pub(super) fn patch(&self, wanted: Option<&ImagesReady>, now: Timestamp) -> Value {
        let written = |ImagesReady { is_ready, message }: &ImagesReady| {
            let (status, reason) =
                if *is_ready { ("True", ImagesReady::PRESENT) } else { ("False", ImagesReady::MISSING) };
            let same = self.condition().filter(|before| before.status == status);
            let changed_at = same.map_or(Some(Time(now)), |before| before.last_transition_time.clone());
            json!({
                "type": CONDITION, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": Time(now), "lastTransitionTime": changed_at,
            })
        };
        let condition = wanted.map_or_else(|| json!({"type": CONDITION, "$patch": "delete"}), written);
        json!({"metadata": {"uid": self.metadata.uid}, "status": {"conditions": [condition]}})
    }
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    fn node(conditions: &Value) -> OwnNode {
        let metadata = json!({"name": "node-1", "uid": "u1", "labels": {"pool": "gpu"}});
        from_value(json!({"metadata": metadata, "status": {"conditions": conditions, "images": [{"names": ["a"]}]}}))
            .unwrap()
    }

    #[test]
    fn the_condition_has_the_time_of_its_last_change_and_ends_with_the_last_gated_set() {
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
        let written = |status: &str, reason: &str| {
            json!([{"type": "Ready", "status": "True"}, {
                "type": CONDITION, "status": status, "reason": reason, "message": "old",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }])
        };
        let ready = ImagesReady { is_ready: true, message: "new".into() };
        for (conditions, found, changed_at) in [
            (json!(null), None, "2026-02-01T00:00:00Z"),
            (json!([{"type": "Ready", "status": "True"}]), None, "2026-02-01T00:00:00Z"),
            (written("True", "ImagesPresent"), Some((true, "old")), "2026-01-01T00:00:00Z"),
            (written("False", "ImagesMissing"), Some((false, "old")), "2026-02-01T00:00:00Z"),
            // By another client.
            (written("Unknown", "ImagesMissing"), Some((false, "")), "2026-02-01T00:00:00Z"),
            (written("True", "ByHand"), Some((false, "")), "2026-01-01T00:00:00Z"),
        ] {
            let node = node(&conditions);
            let in_api = node.images_ready();
            assert_eq!(in_api.as_ref().map(|it| (it.is_ready, it.message.as_str())), found, "{conditions}");
            let condition = json!({
                "type": CONDITION, "status": "True", "reason": "ImagesPresent", "message": "new",
                "lastHeartbeatTime": "2026-02-01T00:00:00Z", "lastTransitionTime": changed_at,
            });
            let patch = |condition| json!({"metadata": {"uid": "u1"}, "status": {"conditions": [condition]}});
            assert_eq!(node.patch(Some(&ready), now), patch(condition), "{conditions}");
            assert_eq!(node.patch(None, now), patch(json!({"type": CONDITION, "$patch": "delete"})));
        }
    }
}
