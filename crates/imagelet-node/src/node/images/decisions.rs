//! The last acts on all images, as the audit log has them.

use std::sync::Arc;

use imagelet_core::{audit_log::Act, image::ImageKey};
use serde::{Deserialize, Serialize};

use super::why::{WhyHappening, happening};
use crate::{
    api::Steps,
    failure::Failure,
    node::{Command, LocalNode},
};

/// A longer answer is not useful: `why` has the whole history of one image.
pub(crate) const DECISIONS_MAX: u64 = 500;

api_documents! {
    DecisionsRequest {
        /// At most this many, up to 500.
        limit: u64,
    }
    /// The last acts on all images, the latest first.
    Decisions {
        decisions: Vec<DecisionRow>,
    }
    DecisionRow {
        /// Empty for a failed pull.
        id: String,
        #[serde(flatten)]
        happening: WhyHappening,
    }
}

impl Command for DecisionsRequest {
    const NAME: &'static str = "decisions";
    type Answer = Decisions;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Decisions, Failure> {
        let log = Arc::clone(&node.parts.decisions);
        let max = usize::try_from(self.limit.min(DECISIONS_MAX)).unwrap_or_default();
        let read = tokio::task::spawn_blocking(move || log.recent(max)).await?;
        let read = read.map_err(|error| Failure::because("could not read the log of decisions", &error))?;
        let row = |act: Act| DecisionRow {
            id: act.keys.first().map_or_else(String::new, |key| ImageKey::parse(key).id().to_string()),
            happening: happening(act),
        };
        Ok(Decisions { decisions: read.into_iter().map(row).collect() })
    }
}
