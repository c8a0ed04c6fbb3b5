//! The commands of the API; each names the service of the node that runs it.

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};

use super::NodeService;
use crate::{api::Steps, failure::Failure};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerTime {
    /// `--timeout` limits the time.
    Limited,
    /// No limit while the daemon works and answers other calls.
    WhileAlive,
    /// No limit. A silent daemon is only reported.
    Unlimited,
}

/// A command. The implementing type contains its arguments.
#[async_trait]
pub trait Command: Serialize + DeserializeOwned + Default + Send + Sync + 'static {
    const NAME: &'static str;
    const TIME: AnswerTime = AnswerTime::Limited;
    type Service: NodeService;
    type Answer: Serialize + DeserializeOwned + Send;

    async fn run(self, service: &Self::Service, steps: Steps) -> Result<Self::Answer, Failure>;
}
