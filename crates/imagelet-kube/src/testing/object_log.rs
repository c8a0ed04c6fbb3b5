//! The objects of the fake API server with their history, as a watch replays it.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

/// One change of one pod, or a bookmark.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
    pub(super) is_bookmark: bool,
}

/// Pods by namespace and name, and their changes since the oldest version that is kept.
#[derive(Debug, Default)]
pub(super) struct ObjectLog {
    pub(super) version: u64,
    /// Versions before this one are forgotten.
    pub(super) oldest: u64,
    pub(super) pods: BTreeMap<(String, String), Value>,
    pub(super) changes: VecDeque<Change>,
}

impl ObjectLog {
    /// Creates or replaces a pod, or removes it with `None`. Returns the object as stored, or as it was.
    pub(super) fn set(&mut self, namespace: &str, name: &str, pod: Option<Value>) -> Option<Value> {
        let key = (namespace.to_owned(), name.to_owned());
        let before = self.pods.get(&key).cloned();
        if before.is_none() && pod.is_none() {
            return None;
        }
        self.version += 1;
        let stamped = |mut pod: Value| {
            pod["metadata"]["namespace"] = namespace.into();
            pod["metadata"]["name"] = name.into();
            pod["metadata"]["resourceVersion"] = self.version.to_string().into();
            if pod["metadata"]["uid"].is_null() {
                pod["metadata"]["uid"] = format!("uid-{name}-{}", self.version).into();
            }
            pod
        };
        let after = pod.map(stamped);
        match &after {
            Some(pod) => self.pods.insert(key, pod.clone()),
            None => self.pods.remove(&key),
        };
        let change = Change { version: self.version, before: before.clone(), after: after.clone(), is_bookmark: false };
        self.changes.push_back(change);
        after.or(before)
    }

    pub(super) fn bookmark(&mut self) {
        // Other objects of the cluster change, too.
        self.version += 10;
        self.changes.push_back(Change { version: self.version, before: None, after: None, is_bookmark: true });
    }

    pub(super) fn forget(&mut self) {
        self.oldest = self.version + 1;
        self.version += 1;
        self.changes.clear();
    }

    pub(super) fn list(&self, node: Option<&str>) -> Vec<Value> {
        self.pods.values().filter(|pod| is_on(pod, node)).cloned().collect()
    }
}

impl Change {
    /// The event for a watch of one node's pods; `None`: the change is not about them.
    pub(super) fn event(&self, node: Option<&str>) -> Option<Value> {
        if self.is_bookmark {
            let metadata = json!({"resourceVersion": self.version.to_string(), "creationTimestamp": null});
            let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": null}, "status": {}});
            return Some(json!({"type": "BOOKMARK", "object": object}));
        }
        let was_on = self.before.as_ref().filter(|pod| is_on(pod, node));
        let is_on = self.after.as_ref().filter(|pod| is_on(pod, node));
        let (kind, mut object) = match (was_on, is_on) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", after.clone()),
            (Some(_), Some(after)) => ("MODIFIED", after.clone()),
            (Some(before), None) => ("DELETED", before.clone()),
        };
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        Some(json!({"type": kind, "object": object}))
    }
}

fn is_on(pod: &Value, node: Option<&str>) -> bool {
    node.is_none_or(|node| pod["spec"]["nodeName"] == node)
}
