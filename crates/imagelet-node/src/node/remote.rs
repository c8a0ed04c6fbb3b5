//! A node behind a daemon's socket.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use imagelet_core::{image::ByteSize, text::duration_text};
use serde::{Serialize, de::DeserializeOwned};

use super::command::{AnswerTime, Command};
use crate::{
    api::{BODY_BYTES_MAX, CallError, Client, EventLine, EventsRequest, StatusRequest, Step, Steps, Wait},
    failure::Failure,
};

#[derive(Clone, Debug)]
pub struct RemoteNode {
    client: Client,
}

impl RemoteNode {
    /// The daemon at this path; connects with the first command. `patience` is the timeout of an answer that is due.
    pub fn new(socket: &Path, patience: Duration) -> Self {
        Self { client: Client { socket: socket.to_owned(), patience } }
    }

    pub async fn probe(&self) -> Probed {
        match self.client.probe().await {
            Err(CallError::Silent) => {
                let message = format!("it did not answer a first call within {}", self.patience());
                Probed::Silent(std::io::Error::new(std::io::ErrorKind::TimedOut, message))
            }
            Err(CallError::Absent(error)) if error.kind() == std::io::ErrorKind::NotFound => Probed::Missing,
            Err(CallError::Absent(error)) => Probed::Silent(error),
            Err(CallError::NotOurs) => Probed::OtherCri,
            _ => Probed::Ours,
        }
    }

    pub fn unreachable(&self, error: &std::io::Error) -> Failure {
        Failure::because(format!("could not reach a daemon or runtime at `{}`", self.client.socket.display()), error)
            .or_hint(socket_hint(error, "start it, a daemon with `imagelet serve`, or work without one: `--store DIR`"))
    }

    pub(super) async fn ask<C: Command>(&self, command: C, steps: Steps) -> Result<C::Answer, Failure> {
        let progress = |document: &[u8]| {
            if let Ok(step) = serde_json::from_slice::<Step>(document) {
                steps(step);
            }
        };
        let note = |note: &str| steps(Step::Notice { note: note.to_owned() });
        self.call(C::NAME, &command, &progress, C::TIME, &note).await
    }

    pub(super) async fn follow(
        &self,
        asked: &EventsRequest,
        hear: &(dyn Fn(EventLine) + Send + Sync),
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), Failure> {
        let lines = |document: &[u8]| {
            // A later version may send messages that this one does not have.
            if let Ok(line) = serde_json::from_slice::<EventLine>(document) {
                hear(line);
            }
        };
        let time = if asked.follow { AnswerTime::Unlimited } else { AnswerTime::Limited };
        let _: serde_json::Value = self.call(EventsRequest::NAME, asked, &lines, time, note).await?;
        Ok(())
    }

    fn patience(&self) -> String {
        duration_text(self.client.patience)
    }

    async fn call<A: DeserializeOwned>(
        &self,
        name: &str,
        arguments: &(impl Serialize + Sync),
        progress: &(dyn Fn(&[u8]) + Send + Sync),
        time: AnswerTime,
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<A, Failure> {
        let socket = self.client.socket.display();
        let body = serde_json::to_vec(arguments)
            .map_err(|_| Failure::new("Failed", format!("could not write the arguments of `{name}`")))?;
        if body.len() > BODY_BYTES_MAX {
            let (size, limit) = (ByteSize(body.len() as u64), ByteSize(BODY_BYTES_MAX as u64));
            let message = format!("the arguments of `{name}` have {size}; the limit is {limit}");
            return Err(Failure::new("InvalidArgument", message)
                .or_hint("shorten annotations and secrets, or work without the daemon: `--store DIR`"));
        }
        let is_noted = AtomicBool::new(false);
        let goes_on = |answers: bool| {
            match on_silence(time, name == EventsRequest::NAME, answers) {
                Silence::End => return false,
                Silence::Quiet => is_noted.store(false, Ordering::Relaxed),
                Silence::Report if is_noted.swap(true, Ordering::Relaxed) => {}
                Silence::Report if answers => note(&format!(
                    "no progress of `{name}` for {}; the daemon at `{socket}` answers, and the command waits",
                    self.patience()
                )),
                Silence::Report => note(&format!(
                    "the daemon at `{socket}` does not answer; `{name}` waits for it and ends with Ctrl-C"
                )),
            }
            true
        };
        let wait = if time == AnswerTime::Limited { Wait::Whole } else { Wait::Long(&goes_on) };
        match self.client.call(name, body, progress, wait).await {
            Ok(document) => serde_json::from_slice(&document).map_err(|error| Failure {
                causes: vec![error.to_string()],
                ..Failure::new("Failed", format!("could not read the answer of the daemon at `{socket}`"))
            }),
            Err(CallError::Failed(failure)) => Err(failure),
            Err(CallError::Absent(error)) => Err(self.unreachable(&error)),
            Err(CallError::Silent) => {
                let message = format!("the daemon at `{socket}` did not answer `{name}` within {}", self.patience());
                let hint = match name {
                    StatusRequest::NAME => "see `systemctl status imagelet`; `--timeout` sets another limit",
                    _ => "`imagelet status` says whether its runtime answers; `--timeout` sets another limit",
                };
                Err(Failure::new("TimedOut", message).or_hint(hint))
            }
            Err(CallError::NotOurs) => {
                Err(Failure::new("Unsupported", format!("the server at `{socket}` is not imagelet")))
            }
            Err(CallError::Broken(why) | CallError::Unanswered(why)) => Err(Failure {
                causes: vec![why],
                ..Failure::new("Unavailable", format!("the daemon at `{socket}` ended the command"))
            }),
        }
    }
}

/// The hint for a socket that could not be connected to; `is_down` is for a process that does not run.
pub fn socket_hint(error: &std::io::Error, is_down: &'static str) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "run the command as root or as the owner of the socket, or work without a daemon: `--store DIR`"
        }
        _ => is_down,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    End,
    Quiet,
    Report,
}

/// Decides on a silence; `answers`: the daemon answered another call meanwhile.
fn on_silence(time: AnswerTime, are_events: bool, answers: bool) -> Silence {
    match time {
        AnswerTime::Limited => Silence::End,
        AnswerTime::WhileAlive if !answers => Silence::End,
        AnswerTime::Unlimited if are_events && answers => Silence::Quiet,
        AnswerTime::WhileAlive | AnswerTime::Unlimited => Silence::Report,
    }
}

#[derive(Debug)]
pub enum Probed {
    Ours,
    OtherCri,
    Missing,
    /// Nothing answers on the socket, or this user may not connect.
    Silent(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pulls_and_events_outlive_a_daemon_that_does_not_answer() {
        for (time, are_events, answers, expected) in [
            (AnswerTime::Limited, false, true, Silence::End),
            (AnswerTime::Limited, false, false, Silence::End),
            (AnswerTime::WhileAlive, false, true, Silence::Report),
            (AnswerTime::WhileAlive, false, false, Silence::End),
            (AnswerTime::Unlimited, false, true, Silence::Report),
            (AnswerTime::Unlimited, false, false, Silence::Report),
            (AnswerTime::Unlimited, true, true, Silence::Quiet),
            (AnswerTime::Unlimited, true, false, Silence::Report),
        ] {
            assert_eq!(on_silence(time, are_events, answers), expected, "{time:?} {are_events} {answers}");
        }
    }
}
