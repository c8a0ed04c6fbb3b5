//! The two kinds of set: of a namespace, and of the cluster.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::DynamicResourceScope};

use super::SetObject;

/// Which of the two kinds a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetScope {
    /// `ImageSet`: images of one namespace, with its pull secrets.
    Namespace,
    /// `ClusterImageSet`: images of the cluster, with the credentials of each node.
    Cluster,
}

impl SetScope {
    pub(crate) const ALL: [Self; 2] = [Self::Namespace, Self::Cluster];

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Namespace => "ImageSet",
            Self::Cluster => "ClusterImageSet",
        }
    }
}

impl Resource for SetObject {
    type DynamicType = SetScope;
    type Scope = DynamicResourceScope;

    fn kind(scope: &SetScope) -> Cow<'_, str> {
        scope.kind().into()
    }

    fn group(_: &SetScope) -> Cow<'_, str> {
        "imagelet.dev".into()
    }

    fn version(_: &SetScope) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural(scope: &SetScope) -> Cow<'_, str> {
        match scope {
            SetScope::Namespace => "imagesets".into(),
            SetScope::Cluster => "clusterimagesets".into(),
        }
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
