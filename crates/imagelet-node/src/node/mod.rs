//! The interface to a node, whose store is in this process or behind a daemon's socket.

mod command;
mod daemon;
mod events;
mod gauges;
mod gc;
mod images;
mod local;
mod prefetch;
mod pulls;
mod remote;
mod status;

use std::sync::Arc;

use crate::{
    api::{EventLine, EventsRequest, Steps},
    failure::Failure,
};
pub use command::{AnswerTime, Command};
pub(crate) use daemon::unless_stopped;
pub use daemon::{Calls, Daemon};
pub(crate) use events::{follower, send_events};
pub use gauges::declare as declare_metrics;
pub(crate) use gauges::measure_process;
pub use gc::Collection;
pub(crate) use gc::SpaceByCollection;
pub use images::{
    DecisionRow, Decisions, DecisionsRequest, FolderWatch, Images, NodePlace, USES_UNKNOWN, Why, WhyHappening,
    WhyImage, WhyNext, WhyRequest,
};
pub(crate) use images::{act_now, import_arrivals, predict_all};
pub use local::{LocalNode, NodeStatus};
pub use pulls::Pulls;
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

    /// Passes each event to `hear` until the daemon or the client disconnects. `note` reports a silent daemon.
    pub async fn follow(
        &self,
        asked: &EventsRequest,
        hear: &(dyn Fn(EventLine) + Send + Sync),
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), Failure> {
        match self {
            Self::Local(node) => {
                let backend = &node.pulls.images.place.backend;
                Err(Failure::new("Unsupported", format!("there are no events of {backend}")).or_hint(
                    "a daemon has them: `imagelet serve`, then `imagelet events` or `--endpoint` with its socket",
                ))
            }
            Self::Remote(node) => node.follow(asked, hear, note).await,
        }
    }
}
