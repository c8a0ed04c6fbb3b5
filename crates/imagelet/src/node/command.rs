//! A command of the API, and how it runs where the parts of a node are.

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};

use super::LocalNode;
use crate::{api::Steps, failure::Failure};

/// How long a daemon may take for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerTime {
    /// As long as `--timeout` says.
    Limited,
    /// As long as it works, and answers other calls meanwhile.
    WhileAlive,
    /// As long as it takes; a silence is only reported.
    Unlimited,
}

/// A command: its arguments are this type, its answer is `Answer`.
#[async_trait]
pub(crate) trait Command: Serialize + DeserializeOwned + Send + Sync {
    /// Its name on the socket.
    const NAME: &'static str;
    /// How long its answer may take.
    const TIME: AnswerTime = AnswerTime::Limited;
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send;

    /// Runs it where the parts are.
    async fn run(self, node: &LocalNode, steps: Steps) -> Result<Self::Answer, Failure>;
}
