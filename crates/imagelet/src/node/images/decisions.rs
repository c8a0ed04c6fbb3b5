//! The last happenings of all images: what was pulled, removed and refused, and why.

use std::sync::Arc;

use async_trait::async_trait;
use imagelet_core::image::ImageKey;
use serde::{Deserialize, Serialize};

use super::why::{WhyHappening, happening};
use crate::{
    api::Steps,
    failure::Failure,
    node::{command::Command, local::LocalNode},
};

/// A longer answer is not useful; `why` has the whole history of one image.
pub(crate) const DECISIONS_MAX: u64 = 500;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DecisionsRequest {
    /// At most this many, up to 500.
    pub(crate) limit: u64,
}

/// The last happenings of all images, the latest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Decisions {
    pub(crate) decisions: Vec<DecisionRow>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DecisionRow {
    /// Empty for a failed pull.
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) happening: WhyHappening,
}

#[async_trait]
impl Command for DecisionsRequest {
    const NAME: &'static str = "decisions";
    type Answer = Decisions;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Decisions, Failure> {
        let log = Arc::clone(&node.parts.decisions);
        let max = usize::try_from(self.limit.min(DECISIONS_MAX)).unwrap_or_default();
        let read = tokio::task::spawn_blocking(move || log.recent(max)).await.map_err(|error| Failure::of(&error))?;
        let read = read.map_err(|error| Failure::because("could not read the log of decisions", &error))?;
        let row = |it: imagelet_core::audit_log::RecentHappening| DecisionRow {
            id: if it.key.is_empty() { String::new() } else { ImageKey::parse(&it.key).id().to_string() },
            happening: happening(it.happening),
        };
        Ok(Decisions { decisions: read.into_iter().map(row).collect() })
    }
}
