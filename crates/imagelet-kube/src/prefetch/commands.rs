//! The requests of the command line: apply, list and delete sets.

use std::{collections::BTreeMap, fmt::Debug};

use imagelet_core::printable::printable;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    core::ObjectList,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::objects::{FailureCount, ImageSet, PREFETCH_GROUP, SetName, SetObject, SetRejection, SetScope};
use crate::{
    api_error::{ApiError, code},
    names::{NAMESPACE_LENGTH_MAX, is_name, shown},
};

const SETS_MAX: usize = 5000;
const PAGE_SETS: u32 = 100;
/// The name by which the command line owns the fields that it writes.
const FIELD_MANAGER: &str = "imagelet-cli";

/// A set to apply, checked before anything is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDocument {
    name: SetName,
    object: Value,
}

/// The fields of a document; a misspelled one is refused.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DocumentFields {
    api_version: String,
    kind: String,
    metadata: DocumentMetadata,
    spec: Value,
    /// What `kubectl get -o yaml` prints is not sent.
    #[serde(default, rename = "status")]
    _status: serde::de::IgnoredAny,
}

#[derive(Debug, Deserialize)]
struct DocumentMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl SetDocument {
    /// Reads a document; a namespaced set without a namespace is in this one.
    ///
    /// # Errors
    /// When it is no set, or breaks a rule: the error names the field.
    pub fn read(document: Value, namespace: &str) -> Result<Self, SetRejection> {
        let no_fields = |error: serde_json::Error| SetRejection(shown(&error.to_string()));
        let kind = format!("{} {}", text(&document["apiVersion"]), text(&document["kind"]));
        let is_set = |scope: &SetScope| kind == format!("{PREFETCH_GROUP} {}", scope.kind());
        let scope = SetScope::ALL.into_iter().find(is_set).ok_or_else(|| {
            let kind = shown(&kind);
            SetRejection(format!("`{kind}` is no set; there are ImageSet and ClusterImageSet of {PREFETCH_GROUP}"))
        })?;
        let fields = DocumentFields::deserialize(document).map_err(no_fields)?;
        let DocumentFields { api_version, kind, metadata, spec, _status } = fields;
        let mut of_object = json!({"name": metadata.name});
        if scope == SetScope::Namespace {
            let own = Some(metadata.namespace.as_str()).filter(|own| !own.is_empty());
            of_object["namespace"] = own.unwrap_or(namespace).into();
        }
        if !metadata.labels.is_empty() {
            of_object["labels"] = json!(metadata.labels);
        }
        if !metadata.annotations.is_empty() {
            of_object["annotations"] = json!(metadata.annotations);
        }
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": of_object, "spec": spec});
        let set = ImageSet::read(&SetObject::deserialize(&object).map_err(no_fields)?, scope)?;
        let set = set.ok_or_else(|| SetRejection("the set is being deleted".to_owned()))?;
        Ok(Self { name: set.name, object })
    }

    /// `ImageSet NAMESPACE/NAME` or `ClusterImageSet NAME`.
    pub fn name(&self) -> String {
        self.name.to_string()
    }
}

/// One set with its status, for people and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetRow {
    /// `ImageSet` or `ClusterImageSet`.
    pub kind: &'static str,
    /// Empty for a set of the cluster.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Number of images.
    pub images: usize,
    /// Nodes that it selects; zero before the controller has seen it.
    pub wanted: usize,
    /// Nodes that have fetched all images.
    pub ready: usize,
    /// Nodes that pull.
    pub pulling: usize,
    /// Nodes on which an image failed.
    pub failed: usize,
    /// Nodes that have not begun.
    pub waiting: usize,
    /// All nodes are ready.
    pub complete: bool,
    /// The message of the condition `Complete`, or why it is absent.
    pub message: String,
    /// `CLASS at HOP on N nodes, first NODE: IMAGE: MESSAGE`, the most frequent first.
    pub failures: Vec<String>,
}

/// The requests of the command line.
pub struct PrefetchApi {
    client: Client,
}

impl PrefetchApi {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates or changes a set.
    ///
    /// # Errors
    /// When the API server rejects it or cannot be reached.
    pub async fn apply(&self, document: &SetDocument) -> Result<(), ApiError> {
        let name = &document.name;
        let manager = PatchParams::apply(FIELD_MANAGER).force();
        name.api(&self.client).patch(&name.name, &manager, &Patch::Apply(&document.object)).await?;
        Ok(())
    }

    /// All sets, by kind, namespace and name. Sets of one namespace with `namespace`; only sets of this name with `name`.
    ///
    /// # Errors
    /// When the API server rejects the list, cannot be reached or has more than 5,000 sets of a kind.
    pub async fn sets(&self, namespace: Option<&str>, name: Option<&str>) -> Result<Vec<SetRow>, ApiError> {
        let mut rows = Vec::new();
        for scope in SetScope::ALL {
            let api = match namespace.filter(|_| scope == SetScope::Namespace) {
                Some(namespace) if !is_name(namespace, NAMESPACE_LENGTH_MAX) => continue,
                Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &scope),
                None => Api::all_with(self.client.clone(), &scope),
            };
            rows.extend(list(&api).await?.iter().map(|object| row(object, scope)));
        }
        rows.retain(|row| name.is_none_or(|name| row.name == name));
        rows.sort_by(|a, b| (a.kind, &a.namespace, &a.name).cmp(&(b.kind, &b.namespace, &b.name)));
        Ok(rows)
    }

    /// Deletes a set: of this namespace, or with `None` of the cluster. Returns false for an absent one.
    ///
    /// # Errors
    /// When the API server rejects that or cannot be reached.
    pub async fn remove(&self, namespace: Option<&str>, name: &str) -> Result<bool, ApiError> {
        let scope = if namespace.is_some() { SetScope::Namespace } else { SetScope::Cluster };
        let set = SetName { scope, namespace: namespace.unwrap_or_default().to_owned(), name: name.to_owned() };
        if !set.is_valid() {
            return Ok(false);
        }
        let Some(found) = set.api(&self.client).get_opt(name).await? else { return Ok(false) };
        delete(&set.api(&self.client), name, found.metadata.uid.unwrap_or_default()).await?;
        Ok(true)
    }
}

/// All objects of a collection, page by page.
async fn list(api: &Api<SetObject>) -> Result<Vec<SetObject>, ApiError> {
    let (mut objects, mut page) = (Vec::new(), ListParams::default().limit(PAGE_SETS));
    loop {
        let ObjectList { metadata, items, .. } = api.list(&page).await?;
        objects.extend(items);
        let next = metadata.continue_.filter(|token| !token.is_empty());
        match next {
            Some(_) if objects.len() >= SETS_MAX => return Err(ApiError::TooMany { max: SETS_MAX }),
            Some(token) => page = page.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// Deletes an object, if it still is this one; an absent one counts as deleted. No object has an empty uid.
pub(super) async fn delete<K>(api: &Api<K>, name: &str, uid: String) -> Result<(), kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let options = DeleteParams::default().preconditions(Preconditions { uid: Some(uid), ..Preconditions::default() });
    match api.delete(name, &options).await {
        Err(error) if code(&error) != Some(404) => Err(error),
        _ => Ok(()),
    }
}

fn row(object: &SetObject, scope: SetScope) -> SetRow {
    let [namespace, name] =
        [&object.metadata.namespace, &object.metadata.name].map(|text| shown(text.as_deref().unwrap_or_default()));
    let row = SetRow { kind: scope.kind(), namespace, name, ..SetRow::default() };
    let set = match ImageSet::read(object, scope) {
        Ok(Some(set)) => set,
        Ok(None) => return SetRow { message: "is being deleted".to_owned(), ..row },
        Err(error) => return SetRow { message: format!("invalid: {error}"), ..row },
    };
    let status = &set.status;
    let message = status.conditions.iter().find(|it| it.r#type == "Complete").map(|it| shown(&it.message));
    let message = if status.observed_generation == set.generation { message } else { None };
    let failure = |it: &FailureCount| {
        let FailureCount { class, hop, nodes, node, image, message } = it;
        let plural = if *nodes == 1 { "" } else { "s" };
        let text = format!("{class} at {hop} on {nodes} node{plural}, first {node}: {image}: {message}");
        printable(&text)
    };
    SetRow {
        images: set.spec.images.len(),
        wanted: status.nodes.wanted,
        ready: status.nodes.ready,
        pulling: status.nodes.pulling,
        failed: status.nodes.failed,
        waiting: status.nodes.waiting,
        complete: status.has("Complete") && message.is_some(),
        message: message.unwrap_or_else(|| "the controller has not seen this spec yet".to_owned()),
        failures: status.failures.iter().map(failure).collect(),
        ..row
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeApi, FakeApiOptions};

    fn document(kind: &str, spec: &Value) -> Value {
        json!({"apiVersion": PREFETCH_GROUP, "kind": kind, "metadata": {"name": "web"}, "spec": spec})
    }

    #[tokio::test]
    async fn a_set_is_applied_listed_and_removed() {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.install("/apis/imagelet.dev/v1alpha1");
        let api = PrefetchApi { client: fake.client() };
        let spec = json!({"images": [{"reference": "app:v1"}], "keep": true});
        for kind in ["ImageSet", "ClusterImageSet"] {
            api.apply(&SetDocument::read(document(kind, &spec), "shop").unwrap()).await.unwrap();
        }
        let rows = api.sets(None, None).await.unwrap();
        let names: Vec<(&str, &str, usize)> = rows.iter().map(|row| (row.kind, &*row.namespace, row.images)).collect();
        assert_eq!(names, [("ClusterImageSet", "", 1), ("ImageSet", "shop", 1)]);
        assert_eq!(rows[0].message, "the controller has not seen this spec yet");
        assert_eq!(api.sets(Some("other"), Some("web")).await.unwrap().len(), 1);
        let stored = fake.object("/apis/imagelet.dev/v1alpha1/imagesets", "shop", "web").unwrap();
        assert_eq!(stored["spec"], spec);
        assert!(api.remove(Some("shop"), "web").await.unwrap());
        assert!(!api.remove(Some("shop"), "web").await.unwrap());
        assert!(!api.remove(None, "../web").await.unwrap());
        assert!(api.remove(None, "web").await.unwrap());
        assert_eq!(api.sets(None, None).await.unwrap(), []);
    }

    #[tokio::test]
    async fn an_object_without_a_uid_is_not_deleted() {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.install("/apis/imagelet.dev/v1alpha1");
        fake.put("/apis/imagelet.dev/v1alpha1/clusterimagesets", json!({"metadata": {"name": "web"}}));
        let sets = Api::<SetObject>::all_with(fake.client(), &SetScope::Cluster);
        let error = delete(&sets, "web", String::new()).await.unwrap_err();
        assert_eq!(code(&error), Some(409));
    }

    #[tokio::test]
    async fn more_sets_of_a_kind_than_are_read_are_an_error() {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.install("/apis/imagelet.dev/v1alpha1");
        let api = PrefetchApi { client: fake.client() };
        for number in 1..=5_001 {
            let set = json!({"metadata": {"namespace": "shop", "name": format!("set-{number}")}});
            fake.put("/apis/imagelet.dev/v1alpha1/imagesets", set);
            if number == 5_000 {
                assert_eq!(api.sets(None, None).await.unwrap().len(), 5_000);
            }
        }
        let error = api.sets(None, None).await.unwrap_err();
        assert_eq!(error.to_string(), "the API server lists more than 5000 objects");
    }

    #[test]
    fn what_is_no_set_is_refused_by_the_field_before_anything_is_sent() {
        let images = json!({"images": [{"reference": "app:v1"}]});
        let mut other_group = document("ImageSet", &images);
        other_group["apiVersion"] = "v1".into();
        let mut misspelled = document("ImageSet", &images);
        misspelled["metdata"] = json!({});
        for (document, why) in [
            (document("Pod", &images), "is no set"),
            (other_group, "is no set"),
            (misspelled, "unknown field `metdata`"),
            (document("ImageSet", &json!({"image": []})), "unknown field `image`"),
            (document("ImageSet", &json!({"images": []})), "spec.images has 0 items; there may be 1 to 64"),
            (
                document("ClusterImageSet", &json!({"images": [{"reference": "app:v1", "pullSecret": "login"}]})),
                "spec.images[0].pullSecret: a ClusterImageSet is pulled with the credentials of the node",
            ),
        ] {
            let error = SetDocument::read(document, "shop").unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let read = SetDocument::read(document("ImageSet", &images), "shop").unwrap();
        assert_eq!(read.name(), "ImageSet shop/web");
    }
}
