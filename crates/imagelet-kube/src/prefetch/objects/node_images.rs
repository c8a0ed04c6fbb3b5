//! `NodeImages`: the report of one node about the sets that select it.

use k8s_openapi::{ClusterResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::set_status::NodeCounts;
use crate::metadata::{narrow, resource};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeImages {
    #[serde(deserialize_with = "narrow")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) sets: Vec<SetReport>,
}

resource!(NodeImages, ClusterResourceScope, (), |()| ["imagelet.dev", "v1alpha1", "NodeImages", "nodeimages"]);

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct SetReport {
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) phase: SetPhase,
    pub(crate) images: Vec<ImageReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ImageReport {
    pub(crate) reference: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<String>,
    pub(crate) phase: ImagePhase,
    /// Compressed bytes that a running pull has received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_total: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) class: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) hop: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum SetPhase {
    #[default]
    Waiting,
    Paused,
    Pulling,
    Ready,
    Failed,
    Expired,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum ImagePhase {
    /// The pull has not started, or was interrupted and continues later.
    #[default]
    Pending,
    Pulling,
    Present,
    /// The image was fetched, and a collection or an operator removed it since.
    Removed,
    Failed,
}

impl SetPhase {
    /// Whether the node has no work for the set until a change or a retry.
    pub(crate) fn is_finished(self) -> bool {
        matches!(self, Self::Ready | Self::Failed | Self::Expired)
    }

    pub(crate) fn count(self, counts: &mut NodeCounts) {
        let count = match self {
            Self::Ready => &mut counts.ready,
            Self::Pulling => &mut counts.pulling,
            Self::Failed | Self::Expired => &mut counts.failed,
            Self::Waiting | Self::Paused => &mut counts.waiting,
        };
        *count += 1;
    }
}
