//! Answers one request to the fake API server for an object or a collection.

use std::{collections::BTreeMap, sync::Arc};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::object_store::{Conflict, ObjectKey, ObjectStore, Selector, kind_of};

/// Collections with a `status` subresource.
const WITH_STATUS: [&str; 4] = ["pods", "nodes", "imagesets", "clusterimagesets"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPath {
    /// `/api/v1/pods`, `/apis/GROUP/VERSION/RESOURCE`.
    pub(super) collection: String,
    /// The namespace. It is empty for all namespaces and for an object of the cluster.
    pub(super) namespace: String,
    /// The name of the object, or `None` for the whole collection.
    pub(super) name: Option<String>,
    pub(super) is_status: bool,
}

impl ObjectPath {
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match &parts[..] {
            ["api", version, rest @ ..] => (format!("/api/{version}"), rest),
            ["apis", group, version, rest @ ..] => (format!("/apis/{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (resource, name, is_status) = match rest {
            [resource] => (resource, None, false),
            [resource, name] => (resource, Some((*name).to_owned()), false),
            [resource, name, "status"] => (resource, Some((*name).to_owned()), true),
            _ => return None,
        };
        Some(Self { collection: format!("{group}/{resource}"), namespace: namespace.to_owned(), name, is_status })
    }

    pub(super) fn selector(&self, query: &BTreeMap<String, String>) -> Selector {
        let field = query.get("fieldSelector").and_then(|text| text.split_once('='));
        Selector {
            namespace: self.namespace.clone(),
            field: field.map(|(path, value)| (path.to_owned(), value.to_owned())),
        }
    }

    fn has_status(&self) -> bool {
        WITH_STATUS.iter().any(|resource| self.collection.ends_with(&format!("/{resource}")))
    }
}

/// The answer to a request: the HTTP status and a document.
pub(super) type Document = (StatusCode, Value);

/// A `Status` document.
pub(super) fn failure(code: u16, reason: &str, message: &str) -> Document {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message});
    (StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), status)
}

/// Executes a request that is neither a list nor a watch.
pub(super) fn answer(
    store: &mut ObjectStore,
    method: &Method,
    path: &ObjectPath,
    content_type: &str,
    body: &[u8],
) -> Document {
    let absent = || failure(404, "NotFound", "the server could not find the requested resource");
    let object = serde_json::from_slice::<Value>(body);
    if *method == Method::POST && path.name.is_none() {
        let Ok(object) = object else { return failure(400, "BadRequest", "the body is not JSON") };
        return create(store, path, object);
    }
    let Some(name) = &path.name else { return absent() };
    let key = (path.namespace.clone(), name.clone());
    let before = store.get(&path.collection, &key);
    let resource = path.collection.rsplit('/').next().unwrap_or_default();
    let not_found = || failure(404, "NotFound", &format!("{resource} \"{name}\" not found"));
    match *method {
        Method::GET => before.map_or_else(not_found, |object| (StatusCode::OK, Value::clone(&object))),
        Method::DELETE => {
            let Some(before) = before else { return not_found() };
            let options = object.unwrap_or_default();
            if let Err(conflict) = is_same(&options["preconditions"], &before) {
                return conflicting(&conflict, name);
            }
            store.set(&path.collection, &key, None);
            (StatusCode::OK, Value::clone(&before))
        }
        Method::PUT | Method::PATCH => {
            let Ok(given) = object else { return failure(400, "BadRequest", "the body is not JSON") };
            let is_apply = content_type.starts_with("application/apply-patch");
            let Some(before) = before else {
                let creates = *method == Method::PATCH && is_apply && !path.is_status;
                return if creates { created(store, path, &key, given) } else { not_found() };
            };
            if let Err(conflict) = is_same(&given["metadata"], &before) {
                return conflicting(&conflict, name);
            }
            let merge = match content_type {
                _ if is_apply || *method == Method::PUT => Merge::Whole,
                "application/strategic-merge-patch+json" => Merge::Strategic,
                _ => Merge::Fields,
            };
            let after = changed(path, &before, &given, merge);
            let stored = store.set(&path.collection, &key, Some(after));
            (StatusCode::OK, stored.map(|object| Value::clone(&object)).unwrap_or_default())
        }
        _ => absent(),
    }
}

/// Issues a token of a service account. The token is valid for 20 minutes.
pub(super) fn issue_token(account: Option<&Value>, granted: &mut Vec<Value>, body: &[u8]) -> Document {
    let Ok(mut request) = serde_json::from_slice::<Value>(body) else {
        return failure(400, "BadRequest", "the body is not JSON");
    };
    let Some(account) = account else { return failure(404, "NotFound", "serviceaccounts not found") };
    let metadata = &account["metadata"];
    if request["metadata"]["uid"] != metadata["uid"] {
        let why = "the UID in the token request does not match the UID of the service account";
        return failure(409, "Conflict", why);
    }
    granted.push(request.clone());
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(20);
    request["spec"]["expirationSeconds"] = 1200.into();
    let token = format!("token-{}-of-{}", granted.len(), metadata["name"].as_str().unwrap_or_default());
    request["status"] = json!({"token": token, "expirationTimestamp": expires.to_string()});
    (StatusCode::CREATED, request)
}

fn create(store: &mut ObjectStore, path: &ObjectPath, object: Value) -> Document {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let key = (path.namespace.clone(), name.clone());
    if store.get(&path.collection, &key).is_some() {
        let resource = path.collection.rsplit('/').next().unwrap_or_default();
        return failure(409, "AlreadyExists", &format!("{resource} \"{name}\" already exists"));
    }
    created(store, path, &key, object)
}

fn created(store: &mut ObjectStore, path: &ObjectPath, key: &ObjectKey, mut object: Value) -> Document {
    if path.has_status()
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    if kind_of(&path.collection) == "Pod" {
        object["status"] = json!({"phase": "Pending"});
    }
    let stored = store.set(&path.collection, key, Some(object));
    (StatusCode::CREATED, stored.map(|object| Value::clone(&object)).unwrap_or_default())
}

/// How a write changes `spec`, or `status` in a request for the status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Merge {
    /// Replaces the whole `spec` or `status`, because one manager owns it.
    Whole,
    /// Replaces only the fields that the write has.
    Fields,
    /// Replaces only the fields that the write has, and merges conditions by type.
    Strategic,
}

fn changed(path: &ObjectPath, before: &Value, given: &Value, merge: Merge) -> Value {
    let mut after = before.clone();
    let part = if path.is_status { "status" } else { "spec" };
    for (field, value) in given.as_object().into_iter().flatten() {
        let is_other_part = field == "status" && path.has_status();
        match field.as_str() {
            field if path.is_status && field != part => {}
            "metadata" => {
                for kept in ["labels", "annotations"] {
                    if !value[kept].is_null() {
                        after["metadata"][kept] = value[kept].clone();
                    }
                }
            }
            "status" if is_other_part && !path.is_status => {}
            "spec" | "status" if merge != Merge::Whole => {
                for (inner, value) in value.as_object().into_iter().flatten() {
                    match value.as_array().filter(|_| merge == Merge::Strategic && inner == "conditions") {
                        Some(conditions) => merge_conditions(&mut after[field][inner], conditions),
                        None => after[field][inner] = value.clone(),
                    }
                }
            }
            _ => after[field] = value.clone(),
        }
    }
    after
}

/// A condition with `$patch: delete` removes the condition of the same type.
fn merge_conditions(conditions: &mut Value, given: &[Value]) {
    let mut merged = conditions.as_array().cloned().unwrap_or_default();
    for one in given {
        let before = merged.iter().position(|it| it["type"] == one["type"]).map(|at| merged.remove(at));
        if one["$patch"] != "delete" {
            let mut condition = before.unwrap_or_default();
            for (field, value) in one.as_object().into_iter().flatten() {
                condition[field] = value.clone();
            }
            merged.push(condition);
        }
    }
    *conditions = merged.into();
}

/// Compares the uid and the version in a write, if present, with those of the object.
fn is_same(named: &Value, object: &Arc<Value>) -> Result<(), Conflict> {
    let differs = |field: &str| named[field].as_str().is_some_and(|value| object["metadata"][field] != value);
    if differs("uid") {
        return Err(Conflict::Uid);
    }
    if differs("resourceVersion") {
        return Err(Conflict::Version);
    }
    Ok(())
}

fn conflicting(conflict: &Conflict, name: &str) -> Document {
    let why = match conflict {
        Conflict::Version => "the object has been modified; please apply your changes to the latest version",
        Conflict::Uid => "the uid does not match",
    };
    failure(409, "Conflict", &format!("Operation cannot be fulfilled on \"{name}\": {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ObjectPath {
        ObjectPath::parse(text).unwrap()
    }

    fn ask(store: &mut ObjectStore, method: &Method, at: &str, content_type: &str, body: &Value) -> (u16, Value) {
        let (code, document) = answer(store, method, &path(at), content_type, body.to_string().as_bytes());
        (code.as_u16(), document)
    }

    const SETS: &str = "/apis/imagelet.dev/v1alpha1/namespaces/shop/imagesets";

    #[test]
    fn a_path_names_a_collection_an_object_or_its_status() {
        let of_set = path(&format!("{SETS}/web/status"));
        assert_eq!(of_set.collection, "/apis/imagelet.dev/v1alpha1/imagesets");
        assert_eq!((of_set.namespace.as_str(), of_set.name.as_deref(), of_set.is_status), ("shop", Some("web"), true));
        let node = path("/api/v1/nodes/node-1");
        assert_eq!((node.collection.as_str(), node.namespace.as_str()), ("/api/v1/nodes", ""));
        assert_eq!(path("/api/v1/pods").name, None);
        assert!(ObjectPath::parse("/healthz").is_none());
    }

    #[test]
    fn a_stale_version_and_another_uid_are_conflicts() {
        let mut store = ObjectStore::new(100);
        let object = json!({"metadata": {"name": "web"}, "spec": {"a": 1}, "status": {"x": 1}});
        let (code, created) = ask(&mut store, &Method::POST, SETS, "application/json", &object);
        assert_eq!((code, &created["metadata"]["generation"]), (201, &json!(1)));
        assert!(created["status"].is_null(), "the status has a request of its own");
        assert_eq!(ask(&mut store, &Method::POST, SETS, "application/json", &object).0, 409);
        let at = format!("{SETS}/web");
        let mut newer = created.clone();
        newer["spec"]["a"] = json!(2);
        let (code, stored) = ask(&mut store, &Method::PUT, &at, "application/json", &newer);
        assert_eq!((code, &stored["metadata"]["generation"]), (200, &json!(2)));
        assert_eq!(ask(&mut store, &Method::PUT, &at, "application/json", &newer).0, 409);
        let other = json!({"preconditions": {"uid": "other"}});
        assert_eq!(ask(&mut store, &Method::DELETE, &at, "application/json", &other).0, 409);
        assert_eq!(ask(&mut store, &Method::DELETE, &at, "application/json", &json!({})).0, 200);
        assert_eq!(ask(&mut store, &Method::GET, &at, "", &json!({})).0, 404);
    }

    #[test]
    fn an_apply_creates_and_replaces_and_without_a_change_there_is_no_version() {
        let mut store = ObjectStore::new(100);
        let (at, apply) = (format!("{SETS}/web"), "application/apply-patch+yaml");
        let object = |spec: Value| json!({"metadata": {"name": "web"}, "spec": spec});
        let status = format!("{at}/status");
        assert_eq!(ask(&mut store, &Method::PATCH, &status, apply, &json!({"status": {"a": 1}})).0, 404);
        assert_eq!(ask(&mut store, &Method::PATCH, &at, apply, &object(json!({"a": 1, "b": 2}))).0, 201);
        let (code, stored) = ask(&mut store, &Method::PATCH, &at, apply, &object(json!({"a": 1})));
        assert_eq!((code, &stored["spec"]), (200, &json!({"a": 1})));
        let version = store.version;
        ask(&mut store, &Method::PATCH, &at, apply, &object(json!({"a": 1})));
        assert_eq!(store.version, version);
        let (_, stored) = ask(&mut store, &Method::PATCH, &status, apply, &json!({"status": {"b": 2}, "spec": {}}));
        assert_eq!((&stored["spec"], &stored["status"]), (&json!({"a": 1}), &json!({"b": 2})));
        assert_eq!(stored["metadata"]["generation"], json!(2), "a status is no other generation");
    }

    #[test]
    fn a_strategic_merge_changes_the_conditions_of_its_types_alone() {
        let mut store = ObjectStore::new(100);
        let key = (String::new(), "node-1".to_owned());
        let of_kubelet = json!({"type": "Ready", "status": "True"});
        let node = json!({"metadata": {"name": "node-1"}, "status": {"conditions": [of_kubelet], "phase": "Running"}});
        store.set("/api/v1/nodes", &key, Some(node));
        let mut merge = |condition: Value| {
            let (at, strategic) = ("/api/v1/nodes/node-1/status", "application/strategic-merge-patch+json");
            let patch = json!({"status": {"conditions": [condition]}});
            let (code, stored) = ask(&mut store, &Method::PATCH, at, strategic, &patch);
            assert_eq!((code, &stored["status"]["phase"]), (200, &json!("Running")));
            stored["status"]["conditions"].clone()
        };
        let first = merge(json!({"type": "A", "status": "False", "reason": "Why"}));
        assert_eq!(first, json!([of_kubelet, {"type": "A", "status": "False", "reason": "Why"}]));
        let second = merge(json!({"type": "A", "status": "True"}));
        assert_eq!(second, json!([of_kubelet, {"type": "A", "status": "True", "reason": "Why"}]));
        assert_eq!(merge(json!({"type": "A", "$patch": "delete"})), json!([of_kubelet]));
    }
}
