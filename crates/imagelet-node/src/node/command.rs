//! The interface of the commands of the API.

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};

use super::LocalNode;
use crate::{api::Steps, failure::Failure};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerTime {
    /// The call fails if the answer takes longer than `--timeout`.
    Limited,
    /// The call has no time limit, but fails if the daemon stops answering other calls.
    WhileAlive,
    /// The call has no time limit. If the daemon is silent, the command only reports that it waits.
    Unlimited,
}

/// A command of the API. A type that implements this trait contains the arguments of the command.
#[async_trait]
pub trait Command: Serialize + DeserializeOwned + Default + Send + Sync + 'static {
    const NAME: &'static str;
    const TIME: AnswerTime;
    type Answer: Serialize + DeserializeOwned + Send;

    async fn run(self, node: &LocalNode, steps: Steps) -> Result<Self::Answer, Failure>;
}
