//! The secrets and service accounts of the fake API server, which clients read by name, and the issued tokens.

use std::{collections::BTreeMap, sync::Mutex};

use http::Method;
use imagelet_core::lock::locked;
use serde_json::{Value, json};

/// Objects by `KIND/NAMESPACE/NAME`.
#[derive(Debug, Default)]
pub(super) struct NamedObjects {
    objects: Mutex<BTreeMap<String, Value>>,
    /// The granted requests for tokens.
    tokens: Mutex<Vec<Value>>,
    events: Mutex<Vec<Value>>,
}

impl NamedObjects {
    /// `kind` is the plural: `secrets`, `serviceaccounts`.
    pub(super) fn put(&self, kind: &str, mut object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().expect("the object has a name").to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let mut objects = locked(&self.objects);
        let key = format!("{kind}/{namespace}/{name}");
        let before = objects.get(&key).and_then(|old| old["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok());
        object["metadata"]["resourceVersion"] = (before.unwrap_or(100) + 1).to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{name}").into();
        }
        objects.insert(key, object);
    }

    pub(super) fn tokens(&self) -> Vec<Value> {
        locked(&self.tokens).clone()
    }

    /// The HTTP status and the answer. `None`: the request is for other objects, or the object is absent.
    pub(super) fn answer(&self, method: &Method, path: &[&str], body: &[u8]) -> Option<(u16, Value)> {
        if let (&Method::POST, ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]) =
            (method, path)
        {
            return Some(self.issue(namespace, name, body));
        }
        if let ["apis", "events.k8s.io", "v1", "namespaces", "default", "events", name @ ..] = path {
            return Some(self.record(method, name.first().copied(), body));
        }
        let (&Method::GET, ["api", "v1", "namespaces", namespace, kind @ ("secrets" | "serviceaccounts"), name]) =
            (method, path)
        else {
            return None;
        };
        let objects = locked(&self.objects);
        let found = objects.get(&format!("{kind}/{namespace}/{name}")).cloned();
        found.map(|object| (200, object))
    }

    pub(super) fn events(&self) -> Vec<Value> {
        locked(&self.events).clone()
    }

    /// Creates an event, or replaces the series of an event.
    fn record(&self, method: &Method, name: Option<&str>, body: &[u8]) -> (u16, Value) {
        let refused = |code: u16| (code, json!({"kind": "Status", "code": code, "message": "events"}));
        let Ok(object) = serde_json::from_slice::<Value>(body) else { return refused(400) };
        let mut events = locked(&self.events);
        let mut known = events.iter_mut();
        match (method, name) {
            (&Method::POST, None) if known.any(|it| it["metadata"]["name"] == object["metadata"]["name"]) => {
                refused(409)
            }
            (&Method::POST, None) => {
                events.push(object.clone());
                (201, object)
            }
            (&Method::PATCH, Some(name)) => match known.find(|it| it["metadata"]["name"] == name) {
                Some(event) => {
                    event["series"] = object["series"].clone();
                    (200, event.clone())
                }
                None => refused(404),
            },
            _ => refused(405),
        }
    }

    /// Issues a token that is valid for 20 minutes.
    fn issue(&self, namespace: &str, name: &str, body: &[u8]) -> (u16, Value) {
        let refused = |code: u16, message: &str| (code, json!({"kind": "Status", "code": code, "message": message}));
        let Ok(mut request) = serde_json::from_slice::<Value>(body) else {
            return refused(400, "the body is not JSON");
        };
        let objects = locked(&self.objects);
        let Some(account) = objects.get(&format!("serviceaccounts/{namespace}/{name}")) else {
            return refused(404, "serviceaccounts not found");
        };
        if request["metadata"]["uid"] != account["metadata"]["uid"] {
            return refused(409, "the UID in the token request does not match the UID of the service account");
        }
        let mut tokens = locked(&self.tokens);
        tokens.push(request.clone());
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(20);
        request["spec"]["expirationSeconds"] = 1200.into();
        let token = format!("token-{}-of-{name}", tokens.len());
        request["status"] = json!({"token": token, "expirationTimestamp": expires.to_string()});
        (201, request)
    }
}
