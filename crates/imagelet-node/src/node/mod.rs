//! One way to ask a node, whether its store is in this process or behind a daemon's socket.

mod command;
mod disk_history;
mod events;
mod gauges;
mod gc;
mod images;
mod local;
mod overview;
mod prefetch;
mod pulls;
mod remote;
mod status;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::{
    api::{
        CollectRequest, DiskRequest, EventLine, EventsRequest, ExportRequest, Handler, ImportRequest, InspectRequest,
        ListRequest, MountRequest, PinRequest, PinsRequest, PodRequest, PullRequest, PullsRequest, QueueRequest,
        RemoveRequest, Replies, StatusRequest, Steps, UnmountRequest, UnpinRequest, UntagRequest, UsageRequest,
        VerifyRequest,
    },
    failure::Failure,
};
pub use command::{AnswerTime, Command};
pub use gauges::declare as declare_metrics;
pub(crate) use gauges::measure_process;
pub(crate) use gc::{SpaceByCollection, collect};
pub(crate) use images::{DECISIONS_MAX, import_arrivals, predict_all};
pub use images::{
    DecisionRow, DecisionsRequest, FolderWatch, USES_UNKNOWN, Why, WhyHappening, WhyHost, WhyImage, WhyNext, WhyRequest,
};
pub use local::{LocalNode, NodeParts};
pub(crate) use overview::sample_disk;
pub use prefetch::PrefetchTarget;
pub use remote::{Probed, RemoteNode, socket_hint};

#[derive(Clone, Debug)]
pub enum Node {
    Local(Arc<LocalNode>),
    Remote(RemoteNode),
}

impl Node {
    pub async fn ask<C: Command>(&self, command: C, steps: Steps) -> Result<C::Answer, Failure> {
        match self {
            Self::Local(node) => command.run(node, steps).await,
            Self::Remote(node) => node.ask(command, steps).await,
        }
    }

    /// Follows the events until the daemon or the reader disconnects.
    pub async fn follow(
        &self,
        asked: &EventsRequest,
        hear: &(dyn Fn(EventLine) + Send + Sync),
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), Failure> {
        match self {
            Self::Local(node) => {
                let backend = &node.parts.backend;
                Err(Failure::new("Unsupported", format!("there are no events of {backend}")).or_hint(
                    "a daemon has them: `imagelet serve`, then `imagelet events` or `--endpoint` with its socket",
                ))
            }
            Self::Remote(node) => node.follow(asked, hear, note).await,
        }
    }
}

#[async_trait]
impl Handler for LocalNode {
    async fn handle(&self, command: &str, body: &[u8], progress: Replies) -> Result<Bytes, Failure> {
        match command {
            EventsRequest::NAME => follow(self, body, &progress).await,
            PodRequest::NAME => answer::<PodRequest>(self, body, progress).await,
            PullRequest::NAME => Box::pin(answer::<PullRequest>(self, body, progress)).await,
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
            ExportRequest::NAME => answer::<ExportRequest>(self, body, progress).await,
            ImportRequest::NAME => answer::<ImportRequest>(self, body, progress).await,
            VerifyRequest::NAME => answer::<VerifyRequest>(self, body, progress).await,
            StatusRequest::NAME => answer::<StatusRequest>(self, body, progress).await,
            DiskRequest::NAME => answer::<DiskRequest>(self, body, progress).await,
            QueueRequest::NAME => answer::<QueueRequest>(self, body, progress).await,
            PullsRequest::NAME => answer::<PullsRequest>(self, body, progress).await,
            DecisionsRequest::NAME => answer::<DecisionsRequest>(self, body, progress).await,
            WhyRequest::NAME => answer::<WhyRequest>(self, body, progress).await,
            unknown => Err(Failure::new("Unsupported", format!("no command `{}`", unknown.escape_debug()))),
        }
    }
}

async fn answer<C: Command>(node: &LocalNode, body: &[u8], progress: Replies) -> Result<Bytes, Failure> {
    let command: C = read(C::NAME, body)?;
    let steps: Steps = Arc::new(move |step| {
        if let Ok(document) = serde_json::to_vec(&step) {
            progress.report(document);
        }
    });
    let answer = command.run(node, steps).await?;
    Ok(serde_json::to_vec(&answer).unwrap_or_default().into())
}

fn read<T: DeserializeOwned>(name: &str, body: &[u8]) -> Result<T, Failure> {
    let read = if body.is_empty() { serde_json::from_slice(b"{}") } else { serde_json::from_slice(body) };
    // The parser's message may repeat a value, and a value may be a password.
    read.map_err(|error| {
        let message = format!("the arguments of `{name}` do not read (column {})", error.column());
        Failure::new("InvalidArgument", message)
    })
}

/// `events` sends everything as progress; its result is empty.
async fn follow(node: &LocalNode, body: &[u8], replies: &Replies) -> Result<Bytes, Failure> {
    let asked: EventsRequest = read(EventsRequest::NAME, body)?;
    events::stream(node, &asked, replies).await?;
    Ok(Bytes::from_static(b"{}"))
}
