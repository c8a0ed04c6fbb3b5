//! A node behind a daemon's socket.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::{Command, EventsRequest, ListRequest, PackedList, Step, Steps, Told};
use crate::{
    api::{BODY_BYTES_MAX, CallError, Client},
    failure::Failure,
};

/// A daemon says within this time that it is there.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// A daemon to ask.
#[derive(Clone, Debug)]
pub(crate) struct RemoteNode {
    socket: PathBuf,
    client: Client,
}

impl RemoteNode {
    /// The daemon that listens at this path, asked with the first command.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), client: Client::new(socket) }
    }

    /// What is at the socket. Answers within a bound.
    pub(crate) async fn probe(&self) -> Probed {
        // No daemon knows this command; only those that speak our interface say so in its words.
        match tokio::time::timeout(PROBE_MAX, self.client.probe()).await {
            Err(_) => Probed::Silent(std::io::ErrorKind::TimedOut.into()),
            Ok(Err(CallError::Absent(error))) if error.kind() == std::io::ErrorKind::NotFound => Probed::Missing,
            Ok(Err(CallError::Absent(error))) => Probed::Silent(error),
            Ok(Err(CallError::NotOurs)) => Probed::OtherCri,
            Ok(_) => Probed::Ours,
        }
    }

    /// Nothing answers at the socket.
    pub(crate) fn unreachable(&self, error: &std::io::Error) -> Failure {
        Failure::because(format!("could not reach the daemon at `{}`", self.socket.display()), error)
            .or_hint("start it with `imagelet serve`, or work without one: `--store DIR`")
    }

    pub(super) async fn ask<C: Command>(&self, command: C, steps: Steps) -> Result<C::Answer, Failure> {
        let progress = move |document: &[u8]| {
            if let Ok(step) = serde_json::from_slice::<Step>(document) {
                steps(step);
            }
        };
        self.call(C::NAME, &command, &progress).await
    }

    pub(super) async fn list(&self, brief: bool) -> Result<PackedList, Failure> {
        let asked = ListRequest { brief, packed: true };
        let answer = self.document(ListRequest::NAME, &asked, &|_| {}).await?;
        PackedList::of_answer(answer).map_err(|why| self.unreadable(why))
    }

    pub(super) async fn follow(
        &self,
        asked: &EventsRequest,
        hear: &(dyn Fn(Told) + Send + Sync),
    ) -> Result<(), Failure> {
        let told = |document: &[u8]| {
            // A later version may tell what this one does not know.
            if let Ok(told) = serde_json::from_slice::<Told>(document) {
                hear(told);
            }
        };
        let _: serde_json::Value = self.call(EventsRequest::NAME, asked, &told).await?;
        Ok(())
    }

    async fn call<A: DeserializeOwned>(
        &self,
        name: &str,
        arguments: &(impl Serialize + Sync),
        progress: &(dyn Fn(&[u8]) + Send + Sync),
    ) -> Result<A, Failure> {
        let document = self.document(name, arguments, progress).await?;
        serde_json::from_slice(&document).map_err(|error| self.unreadable(error.to_string()))
    }

    fn unreadable(&self, why: String) -> Failure {
        let socket = self.socket.display();
        Failure {
            causes: vec![why],
            ..Failure::new("Failed", format!("could not read the answer of the daemon at `{socket}`"))
        }
    }

    async fn document(
        &self,
        name: &str,
        arguments: &(impl Serialize + Sync),
        progress: &(dyn Fn(&[u8]) + Send + Sync),
    ) -> Result<Bytes, Failure> {
        let socket = self.socket.display();
        let body = serde_json::to_vec(arguments)
            .map_err(|_| Failure::new("Failed", format!("could not write the arguments of `{name}`")))?;
        if body.len() > BODY_BYTES_MAX {
            let message = format!(
                "`{name}` has {} bytes to tell the daemon at `{socket}`; it takes {BODY_BYTES_MAX}",
                body.len()
            );
            return Err(Failure::new("InvalidArgument", message)
                .or_hint("shorten annotations and secrets, or work without the daemon: `--store DIR`"));
        }
        match self.client.call(name, body, progress).await {
            Ok(document) => Ok(document),
            Err(CallError::Failed(document)) => Err(serde_json::from_slice(&document).unwrap_or_else(|_| {
                Failure::new("Failed", format!("the daemon at `{socket}` failed without a reason"))
            })),
            Err(CallError::Absent(error)) => Err(self.unreachable(&error)),
            Err(CallError::NotOurs) => {
                Err(Failure::new("Unsupported", format!("whoever listens at `{socket}` is no imagelet")))
            }
            Err(CallError::Broken(why)) => Err(Failure {
                causes: vec![why],
                ..Failure::new("Unavailable", format!("the daemon at `{socket}` gave the command up"))
            }),
        }
    }
}

/// What is at a socket.
#[derive(Debug)]
pub(crate) enum Probed {
    /// An imagelet.
    Ours,
    /// Something else, a CRI runtime at best.
    OtherCri,
    /// No socket.
    Missing,
    /// A socket on which nothing answers, or that this user may not use.
    Silent(std::io::Error),
}
