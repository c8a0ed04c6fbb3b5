//! The objects of the fake API server that clients read by their names: secrets and service accounts.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use http::Method;
use serde_json::{Value, json};

/// Objects by `KIND/NAMESPACE/NAME`.
#[derive(Debug, Default)]
pub(super) struct NamedObjects {
    objects: Mutex<BTreeMap<String, Value>>,
}

impl NamedObjects {
    /// Creates or replaces an object of a kind as paths spell it.
    pub(super) fn put(&self, kind: &str, mut object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().expect("the object has a name").to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{kind}/{namespace}/{name}");
        let before = objects.get(&key).and_then(|old| old["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok());
        object["metadata"]["resourceVersion"] = (before.unwrap_or(100) + 1).to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{name}").into();
        }
        objects.insert(key, object);
    }

    /// The answer to a request, with its status; `None`: it is for no such object.
    pub(super) fn answer(&self, method: &Method, path: &[&str]) -> Option<(u16, Value)> {
        let (&Method::GET, ["api", "v1", "namespaces", namespace, kind @ ("secrets" | "serviceaccounts"), name]) =
            (method, path)
        else {
            return None;
        };
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let found = objects.get(&format!("{kind}/{namespace}/{name}")).cloned();
        let absent = || {
            let message = format!("{kind} \"{name}\" not found");
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": message})
        };
        Some(found.map_or_else(|| (404, absent()), |object| (200, object)))
    }
}
