//! The commands of the socket. Each is a route: the body contains the arguments, and the answer is a stream of lines.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    response::Response,
    routing::{MethodRouter, get, post},
};
use imagelet_core::image::ByteSize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use crate::{
    api::{
        BODY_BYTES_MAX, COMMANDS, CollectRequest, DiskRequest, EventsRequest, ExportRequest, ImportRequest,
        InspectRequest, ListRequest, MountRequest, PinRequest, PinsRequest, PodRequest, PullRequest, PullsRequest,
        QueueRequest, RemoveRequest, StatusRequest, UnmountRequest, UnpinRequest, UntagRequest, UsageRequest, VERSION,
        VerifyRequest, streamed,
    },
    failure::Failure,
    node::{Command, Daemon, DecisionsRequest, NodeService as _, WhyRequest, follower, send_events, unless_stopped},
};

const LINES_MAX: usize = 64;

pub(super) fn routes() -> Router<Daemon> {
    let commands = [
        command::<PodRequest>(),
        command::<PullRequest>(),
        command::<ListRequest>(),
        command::<InspectRequest>(),
        command::<UsageRequest>(),
        command::<RemoveRequest>(),
        command::<UntagRequest>(),
        command::<CollectRequest>(),
        command::<PinRequest>(),
        command::<UnpinRequest>(),
        command::<PinsRequest>(),
        command::<MountRequest>(),
        command::<UnmountRequest>(),
        command::<ExportRequest>(),
        command::<ImportRequest>(),
        command::<VerifyRequest>(),
        command::<StatusRequest>(),
        command::<DiskRequest>(),
        command::<QueueRequest>(),
        command::<PullsRequest>(),
        command::<DecisionsRequest>(),
        command::<WhyRequest>(),
        (EventsRequest::NAME, post(follow)),
        ("{command}", post(unknown)),
    ];
    let router = Router::new().route(COMMANDS, get(|| async { [VERSION] }));
    commands.into_iter().fold(router, |router, (name, run)| router.route(&format!("{COMMANDS}/{name}"), run))
}

fn command<C: Command>() -> (&'static str, MethodRouter<Daemon>) {
    let run: fn(Daemon, Bytes) -> Response = run::<C>;
    (C::NAME, post(async move |State(daemon): State<Daemon>, body: Bytes| run(daemon, body)))
}

fn run<C: Command>(daemon: Daemon, body: Bytes) -> Response {
    streamed(|replies| async move {
        let command: C = read(C::NAME, body)?;
        let steps = Arc::new(move |step| replies.report(&step));
        unless_stopped(&daemon.calls.working, command.run(C::Service::of(&daemon.node), steps)).await
    })
}

async fn follow(State(daemon): State<Daemon>, body: Bytes) -> Response {
    streamed(|replies| async move {
        let asked: EventsRequest = read(EventsRequest::NAME, body)?;
        let (place, (sender, mut lines)) = (follower()?, mpsc::channel(LINES_MAX));
        let relay = async {
            while let Some(line) = lines.recv().await
                && replies.deliver(&line).await
            {}
            lines.close();
        };
        // The stop of the daemon ends a stream of events at once.
        let sent = async { Ok(tokio::join!(send_events(&daemon.node.pulls, &asked, place, sender), relay)) };
        unless_stopped(&daemon.calls.accepting, sent).await.map(|_| serde_json::json!({}))
    })
}

async fn unknown(Path(command): Path<String>) -> Response {
    let message = format!("no command `{}`", command.escape_debug());
    streamed(|_| async { Err::<(), _>(Failure::new("Unsupported", message)) })
}

fn read<T: DeserializeOwned>(name: &str, body: Bytes) -> Result<T, Failure> {
    // The body may contain a login, so its memory is cleared after use.
    let body = Zeroizing::new(Vec::from(body));
    if body.len() > BODY_BYTES_MAX {
        let (size, limit) = (ByteSize(body.len() as u64), ByteSize(BODY_BYTES_MAX as u64));
        let message = format!("a command's arguments have {size}; the limit is {limit}");
        return Err(Failure::new("InvalidArgument", message));
    }
    let document: &[u8] = if body.is_empty() { b"{}" } else { &body };
    // The parser's message may repeat a value, which may be a password. So the failure names only the column.
    serde_json::from_slice(document).map_err(|error| {
        let message = format!("the arguments of `{name}` do not read (column {})", error.column());
        Failure::new("InvalidArgument", message)
    })
}
