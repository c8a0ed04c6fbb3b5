//! The transport of commands over the socket: `POST /api/v1/commands/NAME` with JSON arguments, answered by JSON lines.
//!
//! Each line is `{"progress": …}`; the last line is `{"result": …}` or `{"failure": …}`. **Invariant:** this file only
//! moves documents, and depends on no command.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::header;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::task::AbortOnDropHandle;

use crate::failure::Failure;

pub(crate) const COMMANDS: &str = "/api/v1/commands";
/// Clients recognize a daemon with this interface by this header.
pub(crate) const VERSION: (&str, &str) = ("x-imagelet-version", env!("CARGO_PKG_VERSION"));
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Limit of the progress messages that wait for a slow reader. Further messages are dropped.
const PROGRESS_WAITING_MAX: usize = 256;
/// How long a client may read nothing before its call ends.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Line<P, R> {
    Progress(P),
    Result(R),
    Failure(Failure),
}

impl<P: Serialize, R: Serialize> Line<P, R> {
    pub(crate) fn encoded(&self) -> Bytes {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        // JSON has raw line breaks only between tokens, where a space means the same.
        line.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
        line.push(b'\n');
        line.into()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Replies(Sender<Bytes>);

impl Replies {
    /// Sends a message, or drops the message if the buffer is full. A later message repeats the state.
    pub(crate) fn report(&self, document: &impl Serialize) {
        drop(self.0.try_send(Line::<_, ()>::Progress(document).encoded()));
    }

    /// Sends a message once the buffer has space. `false`: the reader has disconnected, or has read nothing for 30 s.
    pub(crate) async fn deliver(&self, document: &impl Serialize) -> bool {
        self.0.send_timeout(Line::<_, ()>::Progress(document).encoded(), READ_WITHIN).await.is_ok()
    }
}

pub(crate) fn streamed<A, F>(run: impl FnOnce(Replies) -> F) -> Response
where
    A: Serialize + Send,
    F: Future<Output = Result<A, Failure>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
    let work = run(Replies(sender.clone()));
    let last_line = async move { work.await.map_or_else(Line::Failure, Line::<(), A>::Result).encoded() };
    streamed_lines(sender, receiver, last_line.boxed())
}

/// This function is not generic, so that it is compiled once for all commands.
fn streamed_lines(sender: Sender<Bytes>, receiver: Receiver<Bytes>, last_line: BoxFuture<'static, Bytes>) -> Response {
    let run = async move { drop(sender.send_timeout(last_line.await, READ_WITHIN).await) };
    // A task runs the command, so a slow reader does not block it. The body owns the task: a disconnect cancels both.
    let task = AbortOnDropHandle::new(tokio::spawn(run));
    let lines = ReceiverStream::new(receiver).map(move |line| {
        let _ = &task;
        Ok::<_, Infallible>(line)
    });
    ([(header::CONTENT_TYPE.as_str(), "application/x-ndjson"), VERSION], Body::from_stream(lines)).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Delivers until it is refused, and records how often.
    async fn flood(replies: Replies, ended: Arc<Mutex<Option<usize>>>) -> Result<(), Failure> {
        let mut delivered = 0;
        while replies.deliver(&1).await {
            delivered += 1;
        }
        *ended.lock().expect("no panic") = Some(delivered);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_halts_no_command_and_one_that_disconnects_cancels_it() {
        let ended = Arc::new(Mutex::new(None));
        let floods = || streamed(|replies| flood(replies, Arc::clone(&ended)));
        let unread = floods();
        tokio::time::sleep(READ_WITHIN + Duration::from_secs(1)).await;
        assert_eq!(ended.lock().expect("no panic").take(), Some(PROGRESS_WAITING_MAX));
        drop(unread);
        drop(floods());
        tokio::time::sleep(READ_WITHIN * 2).await;
        assert_eq!(*ended.lock().expect("no panic"), None, "it is cancelled");
    }
}
