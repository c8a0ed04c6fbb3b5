//! The objects of the fake API server by collection, with the history that a watch replays.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use serde_json::{Value, json};
use tokio::sync::watch;

/// Namespace and name. The namespace is empty for an object of the cluster.
pub(super) type ObjectKey = (String, String);

/// One change of one object, or a bookmark.
#[derive(Clone, Debug)]
pub(super) struct Change {
    version: u64,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// The objects of one collection, and their changes since the oldest known version.
#[derive(Debug)]
pub(super) struct ObjectLog {
    /// Versions before this one are forgotten.
    oldest: u64,
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    changes: VecDeque<Change>,
    /// The version of the last change. A new version wakes the waiting watches.
    changed: watch::Sender<u64>,
}

/// All objects of the server, with one resource version for all of them.
#[derive(Debug)]
pub(super) struct ObjectStore {
    pub(super) version: u64,
    collections: BTreeMap<String, ObjectLog>,
    /// Additional API groups with their versions.
    installed: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// The object changed since the version that the writer knows.
    Version,
    /// The object was recreated with the same name.
    Uid,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    /// The namespace, or an empty text for all namespaces.
    pub(super) namespace: String,
    /// A dotted path of a field, and its value.
    pub(super) field: Option<(String, String)>,
}

impl ObjectStore {
    pub(super) fn new(version: u64) -> Self {
        Self { version, collections: BTreeMap::new(), installed: BTreeSet::new() }
    }

    /// Adds a group with its version, as a `CustomResourceDefinition` does.
    pub(super) fn install(&mut self, group: &str) {
        self.installed.insert(group.to_owned());
    }

    /// Whether the server has this collection: `/api/v1/pods`, `/apis/GROUP/VERSION/RESOURCE`.
    pub(super) fn has(&self, collection: &str) -> bool {
        let group = collection.rsplit_once('/').map_or("", |(group, _)| group);
        matches!(group, "/api/v1" | "/apis/coordination.k8s.io/v1" | "/apis/events.k8s.io/v1")
            || self.installed.contains(group)
    }

    pub(super) fn log(&mut self, collection: &str) -> &mut ObjectLog {
        self.collections.entry(collection.to_owned()).or_insert_with(|| ObjectLog {
            oldest: 0,
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            changed: watch::Sender::new(self.version),
        })
    }

    pub(super) fn get(&self, collection: &str, key: &ObjectKey) -> Option<Arc<Value>> {
        self.collections.get(collection)?.objects.get(key).cloned()
    }

    /// Creates or replaces an object; `None` removes it. Returns the stored or removed object. A write that changes
    /// nothing gets no new version.
    pub(super) fn set(&mut self, collection: &str, key: &ObjectKey, object: Option<Value>) -> Option<Arc<Value>> {
        let before = self.get(collection, key);
        if before.is_none() && object.is_none() {
            return None;
        }
        let version = self.version + 1;
        let after = object.map(|object| stamped(object, key, before.as_deref(), version));
        if let (Some(before), Some(after)) = (&before, &after)
            && without_version(before) == without_version(after)
        {
            return Some(Arc::clone(before));
        }
        self.version = version;
        let log = self.log(collection);
        let after = after.map(Arc::new);
        match &after {
            Some(object) => log.objects.insert(key.clone(), Arc::clone(object)),
            None => log.objects.remove(key),
        };
        log.changes.push_back(Change { version, before: before.clone(), after: after.clone() });
        log.changed.send_replace(version);
        after.or(before)
    }

    /// Sends a bookmark to the watches of all collections.
    pub(super) fn bookmark(&mut self) {
        // The version grows as if other objects of the cluster had changed.
        self.version += 10;
        for log in self.collections.values_mut() {
            log.changes.push_back(Change { version: self.version, before: None, after: None });
            log.changed.send_replace(self.version);
        }
    }

    pub(super) fn forget(&mut self) {
        self.version += 1;
        for log in self.collections.values_mut() {
            log.oldest = self.version;
            log.changes.clear();
        }
    }
}

impl ObjectLog {
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn list(&self, selector: &Selector) -> Vec<Arc<Value>> {
        self.objects.values().filter(|object| selector.selects(object)).cloned().collect()
    }

    /// The events after a version. If the version is forgotten, the error is the oldest known version.
    pub(super) fn events_after(&self, version: u64, selector: &Selector, collection: &str) -> Result<Vec<Value>, u64> {
        if version < self.oldest {
            return Err(self.oldest);
        }
        let first = self.changes.partition_point(|change| change.version <= version);
        Ok(self.changes.range(first..).filter_map(|change| change.event(selector, collection)).collect())
    }
}

impl Selector {
    fn selects(&self, object: &Value) -> bool {
        let is_in = self.namespace.is_empty() || object["metadata"]["namespace"] == *self.namespace;
        is_in
            && self.field.as_ref().is_none_or(|(path, value)| {
                let found = path.split('.').fold(object, |object, field| &object[field]);
                found == value.as_str()
            })
    }
}

impl Change {
    /// The event for a watch, or `None` if the watch does not select the object.
    fn event(&self, selector: &Selector, collection: &str) -> Option<Value> {
        if self.before.is_none() && self.after.is_none() {
            let metadata = json!({"resourceVersion": self.version.to_string(), "creationTimestamp": null});
            let mut object = json!({"kind": kind_of(collection), "apiVersion": "v1", "metadata": metadata});
            if collection == "/api/v1/pods" {
                object["spec"] = json!({"containers": null});
                object["status"] = json!({});
            }
            return Some(json!({"type": "BOOKMARK", "object": object}));
        }
        let was_selected = self.before.as_ref().filter(|object| selector.selects(object));
        let is_selected = self.after.as_ref().filter(|object| selector.selects(object));
        let (kind, object) = match (was_selected, is_selected) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
        };
        let mut object = Value::clone(object);
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        Some(json!({"type": kind, "object": object}))
    }
}

pub(super) fn kind_of(collection: &str) -> &'static str {
    match collection.rsplit('/').next().unwrap_or_default() {
        "pods" => "Pod",
        "nodes" => "Node",
        "secrets" => "Secret",
        "leases" => "Lease",
        "imagesets" => "ImageSet",
        "clusterimagesets" => "ClusterImageSet",
        "nodeimages" => "NodeImages",
        _ => "Object",
    }
}

/// The object with the metadata that the server sets.
fn stamped(mut object: Value, key: &ObjectKey, before: Option<&Value>, version: u64) -> Value {
    let (namespace, name) = key;
    let metadata = &mut object["metadata"];
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.as_str().into();
    }
    metadata["name"] = name.as_str().into();
    metadata["resourceVersion"] = version.to_string().into();
    for (field, value) in [
        ("uid", json!(format!("uid-{name}-{version}"))),
        ("creationTimestamp", json!("2026-01-01T00:00:00Z")),
        ("generation", json!(1)),
    ] {
        if metadata[field].is_null() {
            metadata[field] = before.map_or(Value::Null, |before| before["metadata"][field].clone());
        }
        if metadata[field].is_null() {
            metadata[field] = value;
        }
    }
    if let Some(before) = before
        && before["spec"] != object["spec"]
    {
        let generation = before["metadata"]["generation"].as_u64().unwrap_or_default();
        object["metadata"]["generation"] = (generation + 1).into();
    }
    object
}

fn without_version(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = Value::Null;
    object
}
