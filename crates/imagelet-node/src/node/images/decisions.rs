//! The last acts on all images, from the audit log.

use std::sync::Arc;

use async_trait::async_trait;
use imagelet_core::{audit_log::Act, image::ImageKey};
use serde::{Deserialize, Serialize};

use super::{
    Images,
    why::{WhyHappening, happening},
};
use crate::{
    api::{Steps, at_most},
    failure::Failure,
    node::Command,
};

const DECISIONS_MAX: u64 = 500;

api_documents! {
    DecisionsRequest {
        /// Most rows; 100 unless given.
        #[cfg_attr(test, schemars(range(max = 500)))]
        limit: Option<u64>,
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

#[async_trait]
impl Command for DecisionsRequest {
    const NAME: &'static str = "decisions";
    type Service = Images;
    type Answer = Decisions;

    async fn run(self, images: &Images, _steps: Steps) -> Result<Decisions, Failure> {
        let log = Arc::clone(&images.log);
        let max = at_most("limit", self.limit.unwrap_or(100), DECISIONS_MAX)?;
        let read = tokio::task::spawn_blocking(move || log.recent(max)).await?;
        let read = read.map_err(|error| Failure::because("could not read the log of decisions", &error))?;
        let row = |act: Act| DecisionRow {
            id: act.keys.first().map_or_else(String::new, |key| ImageKey::parse(key).id().to_string()),
            happening: happening(act),
        };
        Ok(Decisions { decisions: read.into_iter().map(row).collect() })
    }
}
