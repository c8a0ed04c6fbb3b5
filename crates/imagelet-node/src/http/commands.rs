//! The commands and their routes on the socket: the body contains the arguments, and the answer is a stream of lines.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    response::Response,
    routing::{MethodRouter, get, post},
};
use imagelet_core::{image::ByteSize, ports::MountedImage};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use crate::{
    api::{
        BODY_BYTES_MAX, COMMANDS, CollectRequest, Collected, Disk, DiskRequest, EventsRequest, ExportRequest, Exported,
        ImageList, ImportRequest, Imported, InspectRequest, Inspected, ListRequest, MountRequest, PinChanged,
        PinRequest, Pins, PinsRequest, PodEnsured, PodRequest, PullRequest, Pulled, PullsRequest, Queue, QueueRequest,
        RemoveRequest, Removed, RunningPulls, Status, StatusRequest, Steps, UnmountRequest, UnpinRequest, UntagRequest,
        Usage, UsageRequest, VERSION, Verified, VerifyRequest, streamed,
    },
    failure::Failure,
    node::{
        AnswerTime, Command, Daemon, Decisions, DecisionsRequest, LocalNode, Why, WhyRequest, follower, send_events,
        unless_stopped,
    },
};

const LINES_MAX: usize = 64;

/// Implements [`Command`] for each line: name, arguments, time limit and answer of a command, and the call that runs it.
macro_rules! commands {
    (|$request:ident, $node:ident, $steps:ident|
        $($name:literal $arguments:ident, $time:ident -> $answer:ident = $run:expr;)*) => {
        $(#[async_trait]
        impl Command for $arguments {
            const NAME: &'static str = $name;
            const TIME: AnswerTime = AnswerTime::$time;
            type Answer = $answer;

            #[allow(unused_variables, reason = "not every command has arguments or reports steps")]
            async fn run(self, $node: &LocalNode, $steps: Steps) -> Result<$answer, Failure> {
                let $request = self;
                $run
            }
        })*

        fn commands() -> Vec<(&'static str, MethodRouter<Daemon>)> {
            vec![$(command::<$arguments>()),*]
        }
    };
}

commands! { |request, node, steps|
    "ensure" PodRequest, Unlimited -> PodEnsured = request.run_on(&node.pulls, steps).await;
    "pull" PullRequest, Unlimited -> Pulled = request.run_on(&node.pulls, steps).await;
    "list" ListRequest, Limited -> ImageList = request.run_on(&node.pulls.images).await;
    "inspect" InspectRequest, Limited -> Inspected = request.run_on(&node.pulls.images).await;
    "usage" UsageRequest, Limited -> Usage = node.collection.usage().await;
    "remove" RemoveRequest, WhileAlive -> Removed = request.run_on(&node.collection).await;
    "untag" UntagRequest, WhileAlive -> Removed = request.run_on(&node.pulls.images).await;
    "collect" CollectRequest, WhileAlive -> Collected = request.run_on(&node.collection, steps).await;
    "pin" PinRequest, Limited -> PinChanged = request.run_on(&node.pulls.images).await;
    "unpin" UnpinRequest, Limited -> PinChanged = request.run_on(&node.pulls.images).await;
    "pins" PinsRequest, Limited -> Pins = node.pulls.images.pins().await;
    "mount" MountRequest, Limited -> MountedImage = request.run_on(&node.pulls.images).await;
    "unmount" UnmountRequest, Limited -> MountedImage = request.run_on(&node.pulls.images).await;
    "export" ExportRequest, Unlimited -> Exported = request.run_on(&node.pulls.images, steps).await;
    "import" ImportRequest, Unlimited -> Imported = request.run_on(&node.pulls.images, steps).await;
    "verify" VerifyRequest, WhileAlive -> Verified = request.run_on(&node.pulls.images, steps).await;
    "status" StatusRequest, Limited -> Status = node.report().await;
    "disk" DiskRequest, Limited -> Disk = node.collection.disk(request).await;
    "queue" QueueRequest, Limited -> Queue = Ok(node.pulls.queue());
    "pulls" PullsRequest, Limited -> RunningPulls = Ok(RunningPulls { pulls: node.pulls.since(0).1 });
    "decisions" DecisionsRequest, Limited -> Decisions = request.run_on(&node.pulls.images).await;
    "why" WhyRequest, Limited -> Why = request.run_on(node).await;
}

pub(super) fn routes() -> Router<Daemon> {
    let events = [(EventsRequest::NAME, post(follow)), ("{command}", post(unknown))];
    let router = Router::new().route(COMMANDS, get(|| async { [VERSION] }));
    let routes = commands().into_iter().chain(events);
    routes.fold(router, |router, (name, run)| router.route(&format!("{COMMANDS}/{name}"), run))
}

fn command<C: Command>() -> (&'static str, MethodRouter<Daemon>) {
    let run: fn(Daemon, Bytes) -> Response = run::<C>;
    (C::NAME, post(async move |State(daemon): State<Daemon>, body: Bytes| run(daemon, body)))
}

fn run<C: Command>(daemon: Daemon, body: Bytes) -> Response {
    streamed(|replies| async move {
        let command: C = read(C::NAME, body)?;
        let steps = Arc::new(move |step| replies.report(&step));
        unless_stopped(&daemon.calls.working, command.run(&daemon.node, steps)).await
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
