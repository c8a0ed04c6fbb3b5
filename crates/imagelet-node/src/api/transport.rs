//! The transport of commands over the daemon's socket: `POST /api/v1/commands/NAME` with the arguments as JSON,
//! answered by lines of JSON.
//!
//! Each line is `{"progress": …}`; the last one is `{"result": …}` or `{"failure": …}`.
//!
//! **Invariant:** this file depends on no command. It only moves documents.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::header;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::task::AbortOnDropHandle;

use crate::failure::Failure;

pub(crate) const COMMANDS: &str = "/api/v1/commands";
/// The header by which a client recognises a daemon with this interface.
pub(crate) const VERSION: (&str, &str) = ("x-imagelet-version", env!("CARGO_PKG_VERSION"));
/// The longest arguments of a command.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Limit of progress messages buffered for a slow reader. Further messages are dropped.
const PROGRESS_WAITING_MAX: usize = 256;
/// A client that reads nothing for this long loses its call.
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
        // A line end between the tokens of an embedded document is only a blank; inside a text it is escaped.
        line.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
        line.push(b'\n');
        line.into()
    }
}

/// Sends the progress of a command.
#[derive(Clone, Debug)]
pub(crate) struct Replies(mpsc::Sender<Bytes>);

impl Replies {
    /// Sends a message, or drops it if the reader is slow: the next message repeats the state.
    pub(crate) fn report(&self, document: &impl Serialize) {
        drop(self.0.try_send(Line::<_, ()>::Progress(document).encoded()));
    }

    /// Sends a message once the reader's buffer has space. `false`: the reader has closed, or reads nothing for 30 s.
    pub(crate) async fn deliver(&self, document: &impl Serialize) -> bool {
        self.0.send_timeout(Line::<_, ()>::Progress(document).encoded(), READ_WITHIN).await.is_ok()
    }
}

/// The answer of a command: its progress and its result.
pub(crate) fn streamed<A, F>(run: impl FnOnce(Replies) -> F) -> Response
where
    A: Serialize + Send,
    F: Future<Output = Result<A, Failure>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
    let work = run(Replies(sender.clone()));
    let run = async move {
        let end = match work.await {
            Ok(answer) => Line::<(), A>::Result(answer),
            Err(failure) => Line::Failure(failure),
        };
        // The result follows the progress through the same channel.
        drop(sender.send_timeout(end.encoded(), READ_WITHIN).await);
    };
    // A separate task, so that a client that does not read cannot block the command. The answer's body owns the task,
    // so that a client that disconnects cancels the command.
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
