//! The requests of the command line: apply, list and delete sets.

use imagelet_core::printable::printable;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::ObjectList,
};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::objects::{FailureCount, NodeCounts, PREFETCH_GROUP, SetName, SetObject, SetRejection, SetScope};
use crate::{
    api_error::{ApiError, code},
    names::{NAMESPACE_LENGTH_MAX, is_name, shown},
};

const SETS_MAX: usize = 5000;
const PAGE_SETS: u32 = 100;
const FIELD_MANAGER: &str = "imagelet-cli";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDocument {
    name: SetName,
    object: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DocumentFields {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: Value,
    /// The status in the output of `kubectl get -o yaml` is accepted and not sent.
    #[serde(default, rename = "status")]
    _status: IgnoredAny,
}

impl SetDocument {
    /// Parses a document. A namespaced set without a namespace gets `namespace`.
    ///
    /// # Errors
    /// If the document is not a set or breaks a rule. The error names the field.
    pub fn read(document: Value, namespace: &str) -> Result<Self, SetRejection> {
        let no_fields = |error: serde_json::Error| SetRejection(shown(&error.to_string()));
        let [group, kind] = ["apiVersion", "kind"].map(|field| document[field].as_str().unwrap_or_default());
        let is_set = |scope: &SetScope| group == PREFETCH_GROUP && kind == scope.kind();
        let scope = SetScope::ALL.into_iter().find(is_set).ok_or_else(|| {
            let kind = shown(&format!("{group} {kind}"));
            SetRejection(format!("`{kind}` is no set; there are ImageSet and ClusterImageSet of {PREFETCH_GROUP}"))
        })?;
        let DocumentFields { api_version, kind, metadata, spec, .. } =
            DocumentFields::deserialize(document).map_err(no_fields)?;
        let own = metadata.namespace.filter(|own| !own.is_empty()).unwrap_or_else(|| namespace.to_owned());
        let namespace = Some(own).filter(|_| scope == SetScope::Namespace);
        let ObjectMeta { name, labels, annotations, .. } = metadata;
        let metadata = ObjectMeta { name, namespace, labels, annotations, ..ObjectMeta::default() };
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec});
        let set = SetObject::deserialize(&object).map_err(no_fields)?.read(scope)?;
        let name = set.map(|set| set.name).ok_or_else(|| SetRejection("the set is being deleted".to_owned()))?;
        Ok(Self { name, object })
    }

    /// `ImageSet NAMESPACE/NAME` or `ClusterImageSet NAME`.
    pub fn name(&self) -> String {
        self.name.to_string()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetRow {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub images: usize,
    /// Whether a node is only ready if it has these images.
    pub gate: bool,
    #[serde(flatten)]
    pub nodes: NodeCounts,
    pub complete: bool,
    /// The message of the condition `Complete`, or why the condition is absent.
    pub message: String,
    /// `CLASS at HOP on N nodes, first NODE: IMAGE: MESSAGE`, the most frequent failure first.
    pub failures: Vec<String>,
}

pub struct PrefetchApi {
    pub client: Client,
}

impl PrefetchApi {
    /// Creates or changes a set.
    pub async fn apply(&self, document: &SetDocument) -> Result<(), ApiError> {
        let name = &document.name;
        let manager = PatchParams::apply(FIELD_MANAGER).force();
        name.api(&self.client).patch(&name.name, &manager, &Patch::Apply(&document.object)).await?;
        Ok(())
    }

    /// All sets, sorted by kind, namespace and name. `namespace` and `name` filter the result.
    ///
    /// # Errors
    /// If the API server rejects the list, is unreachable or has more than 5,000 sets of a kind.
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

    /// Deletes a set of `namespace`. With `None`, deletes a cluster-wide set. Returns whether the set existed.
    pub async fn remove(&self, namespace: Option<&str>, name: &str) -> Result<bool, ApiError> {
        let scope = if namespace.is_some() { SetScope::Namespace } else { SetScope::Cluster };
        let set = SetName { scope, namespace: namespace.unwrap_or_default().to_owned(), name: name.to_owned() };
        if !set.is_valid() {
            return Ok(false);
        }
        match set.api(&self.client).delete(name, &DeleteParams::default()).await {
            Err(error) if code(&error) == Some(404) => Ok(false),
            deleted => Ok(deleted.map(|_| true)?),
        }
    }
}

async fn list(api: &Api<SetObject>) -> Result<Vec<SetObject>, ApiError> {
    let (mut objects, mut page) = (Vec::new(), ListParams::default().limit(PAGE_SETS));
    loop {
        let ObjectList { metadata, items, .. } = api.list(&page).await?;
        objects.extend(items);
        match metadata.continue_.filter(|token| !token.is_empty()) {
            Some(_) if objects.len() >= SETS_MAX => return Err(ApiError::TooMany { max: SETS_MAX }),
            Some(token) => page = page.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

fn row(object: &SetObject, scope: SetScope) -> SetRow {
    let SetName { namespace, name, .. } = object.name(scope);
    let row = SetRow { kind: scope.kind(), namespace: shown(&namespace), name: shown(&name), ..SetRow::default() };
    let set = match object.read(scope) {
        Ok(Some(set)) => set,
        Ok(None) => return SetRow { message: "is being deleted".to_owned(), ..row },
        Err(error) => return SetRow { message: format!("invalid: {error}"), ..row },
    };
    let complete = set.status.condition("Complete").filter(|_| set.is_observed());
    let message = complete.map_or("the controller has not seen this spec yet", |complete| &complete.message);
    let failure = |it: &FailureCount| {
        let FailureCount { class, hop, nodes, node, image, message } = it;
        let plural = if *nodes == 1 { "" } else { "s" };
        let text = format!("{class} at {hop} on {nodes} node{plural}, first {node}: {image}: {message}");
        printable(&text)
    };
    SetRow {
        images: set.spec.images.len(),
        gate: set.spec.gate,
        nodes: set.status.nodes,
        complete: complete.is_some_and(|complete| complete.status == "True"),
        message: shown(message),
        failures: set.status.failures.iter().map(failure).collect(),
        ..row
    }
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
