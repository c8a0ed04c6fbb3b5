//! Sets for tests.

use serde_json::json;

use super::{ImageSet, SetObject, SetScope};

/// A set of the namespace `shop` with these images.
pub(crate) fn set(name: &str, images: &[&str]) -> ImageSet {
    set_of(SetScope::Namespace, "shop", name, images)
}

/// A set of the cluster, or of this namespace.
pub(crate) fn set_of(scope: SetScope, namespace: &str, name: &str, images: &[&str]) -> ImageSet {
    let images: Vec<_> = images.iter().map(|image| json!({"reference": image})).collect();
    let object = json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"images": images},
    });
    let object: SetObject = serde_json::from_value(object).expect("it is an object");
    object.read(scope).expect("it is valid").expect("it is not being deleted")
}
