//! The commands of the API, each with how it runs on a local node.

use serde::{Serialize, de::DeserializeOwned};

use super::LocalNode;
use crate::{api::Steps, failure::Failure};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerTime {
    /// `--timeout` limits it.
    Limited,
    /// No limit while the daemon works and answers other calls.
    WhileAlive,
    /// No limit; a silence is only reported.
    Unlimited,
}

/// A command: the type holds its arguments; its answer is `Answer`.
pub trait Command: Serialize + DeserializeOwned + Send + Sync {
    const NAME: &'static str;
    const TIME: AnswerTime = AnswerTime::Limited;
    type Answer: Serialize + DeserializeOwned + Send;

    fn run(self, node: &LocalNode, steps: Steps) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}
