//! A daemon or runtime that does not answer: a command ends in time and says who was silent, a pull and a stream go on
//! and say so once.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    pin::Pin,
    process::{Command, Stdio},
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustix::process::Signal;

use crate::{
    between::before,
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, Outcome, program, run},
    scripted::{Runtime, Script},
    testbed::{Part, scratch, wait_until},
};

/// Every command that has an answer to wait for, but pulls.
const COMMANDS: [&[&str]; 16] = [
    &["ls"],
    &["ls", "-o", "json"],
    &["inspect", "app"],
    &["df"],
    &["rm", "app"],
    &["untag", "app"],
    &["gc", "--dry-run"],
    &["gc", "--all-unused"],
    &["pin", "app"],
    &["unpin", "app"],
    &["pins"],
    &["verify"],
    &["status"],
    &["why", "app"],
    &["events"],
    &["unmount", "/nowhere"],
];

fn asked(socket: &Path, arguments: &[&str]) -> Outcome {
    run(program().args(["--timeout", "1s", "--endpoint"]).arg(format!("unix://{}", socket.display())).args(arguments))
}

/// A body of which nothing comes.
struct Never;

impl Body for Never {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Something that knows our interface, begins each answer, and sends nothing after the headers.
struct Stalling {
    socket: PathBuf,
    _serving: tokio::runtime::Runtime,
}

impl Stalling {
    fn start(folder: &Path) -> Self {
        let socket = folder.join("stalling.sock");
        let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = serving.block_on(async { tokio::net::UnixListener::bind(&socket) }).unwrap();
        serving.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(answer)));
            }
        });
        Self { socket, _serving: serving }
    }
}

async fn answer(_: Request<Incoming>) -> Result<Response<Never>, Infallible> {
    Ok(Response::builder().header("x-imagelet-version", "0.1.0").body(Never).unwrap())
}

#[test]
fn a_command_does_not_wait_for_ever_for_a_socket_that_answers_nothing() {
    let folder = scratch();
    let socket = folder.path().join("deaf.sock");
    // The kernel takes connections; nothing reads from them.
    let _deaf = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let name = socket.to_str().unwrap();
    for arguments in COMMANDS.into_iter().chain([&["pull", "app"][..]]) {
        let told = asked(&socket, arguments).refused(&[name, "did not answer", "within 1s"]);
        assert!(told.contains("hint: "), "{arguments:?}: {told}");
    }
}

#[test]
fn a_command_does_not_wait_for_ever_for_an_answer_that_has_begun() {
    let folder = scratch();
    let stalling = Stalling::start(folder.path());
    let name = stalling.socket.to_str().unwrap();
    for arguments in COMMANDS {
        // What works for long is waited for while the daemon answers other calls, as this one does.
        if ["rm", "untag", "gc", "verify"].contains(&arguments[0]) {
            continue;
        }
        let asked = asked(&stalling.socket, arguments);
        asked.refused(&[name, "did not answer `", "within 1s", "--timeout"]);
    }
}

#[test]
fn a_pull_that_stalls_says_so_once_and_goes_on() {
    let folder = scratch();
    let stalling = Stalling::start(folder.path());
    let mut pull = program();
    pull.args(["--timeout", "1s", "--endpoint"]).arg(format!("unix://{}", stalling.socket.display()));
    let mut pull = Part::start(pull.args(["pull", "app"]), "of imagelet", folder.path().join("pull.log"));
    let note = "no progress of `pull` for 1s";
    wait_until("the note", || pull.log().contains(note));
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(pull.log().matches(note).count(), 1, "{}", pull.log());
    assert_eq!(pull.ended(), None, "a stall ends no pull");
}

#[test]
fn a_daemon_that_stands_still_ends_commands_and_is_waited_for_by_a_stream() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = registry.put("web:v1", &Image::marked("web", 1000));
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let (out, errors) = (folder.path().join("events"), folder.path().join("errors"));
    let mut follower = daemon.command();
    follower.args(["--timeout", "1s", "events", "-f"]).stdin(Stdio::null());
    follower.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&errors).unwrap());
    let mut follower = Follower(follower.spawn().unwrap());
    let said = |path: &Path| std::fs::read_to_string(path).unwrap();
    daemon.run(["pull", &image]).ok();
    wait_until("an event", || said(&out).contains("Successfully pulled"));
    assert_eq!(said(&errors), "", "a daemon where nothing happens is no stall");

    daemon.part.signal(Signal::STOP);
    let socket = folder.path().join("imagelet.sock");
    for arguments in [&["ls"][..], &["gc"], &["rm", "web:v1"]] {
        asked(&socket, arguments).refused(&[socket.to_str().unwrap(), "did not answer", "within 1s"]);
    }
    let note = "does not answer; `events` waits for it";
    wait_until("the note", || said(&errors).contains(note));
    assert_eq!(said(&errors).matches(note).count(), 1, "{}", said(&errors));
    daemon.part.signal(Signal::CONT);
    daemon.run(["rm", &image]).ok();
    daemon.run(["pull", &image]).ok();
    wait_until("the stream to go on", || said(&out).matches("Successfully pulled").count() == 2);
    assert!(follower.0.try_wait().unwrap().is_none());
}

/// A child that does not outlive the test.
struct Follower(std::process::Child);

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_runtime_that_hangs_is_named_with_what_was_asked() {
    let folder = scratch();
    let runtime = Runtime::start(folder.path(), Script { list_delay: Duration::from_hours(1), ..Script::default() });
    let mut command: Command = program();
    command.env("XDG_DATA_HOME", folder.path().join("home")).args(["--timeout", "1s", "--endpoint"]);
    let told = run(command.arg(runtime.endpoint()).arg("ls"));
    told.refused(&[&runtime.endpoint(), "did not answer `", "within 1s"]);
}

#[test]
fn a_daemon_whose_runtime_is_silent_says_so_in_its_status() {
    let folder = scratch();
    let runtime = folder.path().join("deaf.sock");
    // The kernel takes connections, and nothing is ever read.
    let _deaf = std::os::unix::net::UnixListener::bind(&runtime).unwrap();
    let endpoint = format!("unix://{}", runtime.display());
    let daemon = before(folder.path(), &endpoint, "", "");
    let status = daemon.run(["status", "-o", "json"]).json();
    let problems = status["problems"].to_string();
    assert!(problems.contains("no answer within 4 s") && problems.contains(&endpoint), "{status:#}");
    assert_eq!(status["imagesUnknown"], true);
    let refused = daemon.run(["--timeout", "1s", "ls"]);
    refused.refused(&["did not answer `list` within 1s", "hint: `imagelet status`"]);
}
