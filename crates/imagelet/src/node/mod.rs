//! One way to ask a node, whether its store is in this process or behind a daemon's socket.

mod collect;
mod local;
mod pods;
mod remote;
mod room;
mod verify;
mod words;

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};

pub(crate) use collect::collect;
pub(crate) use local::{LocalNode, NodeParts};
pub(crate) use pods::{PodEnsured, PodImageRequest, PodImageRow, PodRequest};
pub(crate) use remote::{RemoteNode, Spoken};
pub(crate) use room::RoomByCollection;
pub(crate) use verify::{Verified, VerifiedImage, VerifiedPart, VerifyRequest};
#[cfg(test)]
pub(crate) use verify::{VerifiedFinding, VerifiedLayer};
pub(crate) use words::*;

use crate::{
    api::{Handler, ProgressDocuments, Refusal},
    failure::Failure,
};

/// Hears how far a command is. Must not block.
pub(crate) type Steps = Arc<dyn Fn(Step) + Send + Sync>;

/// Hears nothing.
pub(crate) fn no_steps() -> Steps {
    Arc::new(|_| {})
}

/// A node to ask.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// Its parts are in this process.
    Local(Arc<LocalNode>),
    /// A daemon has them.
    Remote(RemoteNode),
}

/// A command: its arguments are this type, its answer is `Answer`.
#[async_trait]
pub(crate) trait Command: Serialize + DeserializeOwned + Send + Sync {
    /// Its name on the socket.
    const NAME: &'static str;
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send;

    /// Runs it where the parts are.
    async fn run(self, node: &LocalNode, steps: Steps) -> Result<Self::Answer, Failure>;
}

impl Node {
    /// Runs a command and answers alike, wherever the node is.
    pub(crate) async fn ask<C: Command>(&self, command: C, steps: Steps) -> Result<C::Answer, Failure> {
        match self {
            Self::Local(node) => command.run(node, steps).await,
            Self::Remote(node) => node.ask(command, steps).await,
        }
    }
}

#[async_trait]
impl Handler for LocalNode {
    async fn handle(&self, command: &str, body: &[u8], progress: ProgressDocuments) -> Result<Vec<u8>, Refusal> {
        match command {
            PodRequest::NAME => answer::<PodRequest>(self, body, progress).await,
            PullRequest::NAME => answer::<PullRequest>(self, body, progress).await,
            ListRequest::NAME => answer::<ListRequest>(self, body, progress).await,
            InspectRequest::NAME => answer::<InspectRequest>(self, body, progress).await,
            UsageRequest::NAME => answer::<UsageRequest>(self, body, progress).await,
            RemoveRequest::NAME => answer::<RemoveRequest>(self, body, progress).await,
            UntagRequest::NAME => answer::<UntagRequest>(self, body, progress).await,
            CollectRequest::NAME => answer::<CollectRequest>(self, body, progress).await,
            PinRequest::NAME => answer::<PinRequest>(self, body, progress).await,
            UnpinRequest::NAME => answer::<UnpinRequest>(self, body, progress).await,
            PinsRequest::NAME => answer::<PinsRequest>(self, body, progress).await,
            MountRequest::NAME => answer::<MountRequest>(self, body, progress).await,
            UnmountRequest::NAME => answer::<UnmountRequest>(self, body, progress).await,
            VerifyRequest::NAME => answer::<VerifyRequest>(self, body, progress).await,
            StatusRequest::NAME => answer::<StatusRequest>(self, body, progress).await,
            unknown => Err(Refusal::Unknown(format!("no command `{}`", unknown.escape_debug()))),
        }
    }
}

async fn answer<C: Command>(node: &LocalNode, body: &[u8], progress: ProgressDocuments) -> Result<Vec<u8>, Refusal> {
    // The parser's message may repeat a value, and a value may be a password.
    let read = |error: serde_json::Error| {
        Refusal::Unknown(format!("the arguments of `{}` do not read (column {})", C::NAME, error.column()))
    };
    let command: C =
        if body.is_empty() { serde_json::from_slice(b"{}") } else { serde_json::from_slice(body) }.map_err(read)?;
    let steps: Steps = Arc::new(move |step| {
        if let Ok(document) = serde_json::to_vec(&step) {
            progress(document);
        }
    });
    let document = |value: Result<Vec<u8>, serde_json::Error>| value.unwrap_or_default();
    match command.run(node, steps).await {
        Ok(result) => Ok(document(serde_json::to_vec(&result))),
        Err(failure) => Err(Refusal::Failed(document(serde_json::to_vec(&failure)))),
    }
}
