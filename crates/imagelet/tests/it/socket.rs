//! The daemon's socket: whose it is, who may take it, who used it, and what the service manager hears.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::{
            fs::PermissionsExt as _,
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    },
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use imagelet_core::ports::ImageService as _;
use imagelet_runtime::cri::{Endpoint, RemoteImageService};
use rustix::process::Signal;

use crate::{
    program::{Daemon, program, write_store_config},
    testbed::{Part, scratch, wait_until},
};

fn arguments(folder: &Path) -> [String; 4] {
    let store = folder.join("store").to_str().unwrap().to_owned();
    ["--config".into(), write_store_config(folder, ""), "--store".into(), store]
}

fn images_at(socket: &Path) -> Result<usize, String> {
    let endpoint: Endpoint = format!("unix://{}", socket.display()).parse().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let images = RemoteImageService::connect(&endpoint, Duration::from_mins(1)).await;
        let listed = images.map_err(|error| error.chain())?.list(None).await;
        listed.map(|images| images.len()).map_err(|error| error.chain())
    })
}

/// Starts the daemon as systemd does: with a socket as its descriptor 3, and a place to tell how it is.
fn activated(folder: &Path, listener: &UnixListener, notified: &Path, more: &[&str]) -> Part {
    let serve = program().get_program().to_owned();
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=imagelet.socket exec \"$0\" \"$@\"";
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/nonexistent");
    command.env("NOTIFY_SOCKET", notified).env("WATCHDOG_USEC", "400000");
    command.args(["-c", script]).arg(serve).arg("serve").args(arguments(folder)).args(more);
    let stdin = Stdio::from(OwnedFd::from(listener.try_clone().unwrap()));
    Part::start_with_stdin(&mut command, stdin, "dash", folder.join("imagelet.log"))
}

#[test]
fn a_socket_of_the_service_manager_outlives_its_daemons() {
    let folder = scratch();
    let socket = folder.path().join("s.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let notified = folder.path().join("notify");
    let manager = UnixDatagram::bind(&notified).unwrap();
    manager.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let hear = |word: &str| loop {
        let mut words = [0; 512];
        let length = manager.recv(&mut words).unwrap_or_else(|error| panic!("no `{word}`: {error}"));
        let words = String::from_utf8_lossy(&words[..length]).into_owned();
        if words.starts_with(word) {
            return words;
        }
        assert!(words.starts_with("WATCHDOG=1"), "`{words}` before `{word}`");
    };
    for _ in 0..2 {
        // The call is there before the daemon is.
        let early = std::thread::spawn({
            let socket = socket.clone();
            move || images_at(&socket)
        });
        let mut daemon = activated(folder.path(), &listener, &notified, &[]);
        assert_eq!(early.join().unwrap(), Ok(0), "{}", daemon.log());
        assert!(hear("READY=1").contains("STATUS=serving"));
        hear("WATCHDOG=1");
        daemon.signal(Signal::HUP);
        assert!(hear("RELOADING=1").contains("\nMONOTONIC_USEC="));
        hear("READY=1");
        daemon.signal(Signal::TERM);
        hear("STOPPING=1");
        wait_until("the daemon to stop", || daemon.ended().is_some());
        assert!(daemon.ended().unwrap().success(), "{}", daemon.log());
        assert!(socket.exists(), "the socket is the service manager's");
    }
}

#[test]
fn a_taken_http_address_ends_the_start_before_any_socket_is_served() {
    let folder = scratch();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = folder.path().join("run");
    let mut command = program();
    command.arg("serve").arg("--socket").arg(run.join("s.sock")).args(["--http", &address]);
    crate::program::run(command.args(arguments(folder.path()))).refused(&["could not listen on", &address]);
    assert!(!run.exists(), "the socket was made before the failure");

    let socket = folder.path().join("s.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let _client = UnixStream::connect(&socket).unwrap();
    let mut daemon = activated(folder.path(), &listener, &folder.path().join("notify"), &["--http", &address]);
    wait_until("the daemon to end", || daemon.ended().is_some());
    assert!(!daemon.ended().unwrap().success());
    assert!(daemon.log().contains(&format!("could not listen on `{address}`")), "{}", daemon.log());
    listener.set_nonblocking(true).unwrap();
    listener.accept().expect("the client waits for the next daemon");
}

#[test]
fn the_socket_of_a_live_daemon_is_not_taken_and_that_of_a_dead_one_is() {
    let (folder, other) = (scratch(), scratch());
    let mut daemon = Daemon::start(folder.path(), arguments(folder.path()));
    let socket = folder.path().join("imagelet.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    // Another daemon with a store of its own, on the same socket.
    let mut command = program();
    command.arg("serve").arg("--socket").arg(&socket).args(arguments(other.path()));
    crate::program::run(&mut command).refused(&[
        "could not listen on",
        "another daemon is listening",
        socket.to_str().unwrap(),
    ]);
    assert_eq!(images_at(&socket), Ok(0));
    daemon.part.kill();
    assert!(socket.exists(), "a killed daemon leaves its socket");
    assert!(images_at(&socket).is_err());
    let daemon = Daemon::start(folder.path(), arguments(folder.path()));
    assert_eq!(images_at(&socket), Ok(0));
    assert!(daemon.stop(Signal::TERM).success());
    assert!(!socket.exists());
}

#[test]
fn the_socket_answers_the_paths_of_the_http_api() {
    let folder = scratch();
    let _daemon = Daemon::start(folder.path(), arguments(folder.path()));
    for (path, status, words) in [
        ("status", "200", "\"process\":\"daemon\""),
        ("images?limit=1", "200", "\"total\":0"),
        ("images?size=1", "400", "there is no parameter `size`"),
        ("images/absent.example/app:v1", "404", "no image"),
    ] {
        let mut stream = UnixStream::connect(folder.path().join("imagelet.sock")).unwrap();
        write!(stream, "GET /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(words), "{path}: {answer}");
    }
}

#[test]
fn who_uses_the_socket_is_on_record_once() {
    let folder = scratch();
    let daemon = Daemon::start(folder.path(), arguments(folder.path()));
    let socket = folder.path().join("imagelet.sock");
    for _ in 0..5 {
        images_at(&socket).unwrap();
    }
    let told: Vec<serde_json::Value> = daemon
        .part
        .log()
        .lines()
        .filter(|line| line.contains("connects for the first time"))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["uid"], rustix::process::geteuid().as_raw());
    assert!(told[0]["pid"].as_i64().unwrap() > 0, "{told:?}");
}
