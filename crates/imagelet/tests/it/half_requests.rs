//! Clients that connect and never finish a request, and a process without free descriptors, silence neither the CRI
//! socket nor the metrics.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use imagelet_core::{error::RuntimeError, image::ImageSpec, ports::ImageService as _};
use imagelet_runtime::cri::{Endpoint, RemoteImageService};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::{
    ports::Port,
    program::{Daemon, write_store_config},
    testbed::{http, scratch, wait_until},
};

/// Open files of the daemon: the limit of a service whose unit sets one, and less than the half requests need.
const FILES_MAX: usize = 256;
/// Half requests at each of the two listeners.
const HALF_REQUESTS: usize = 300;
/// Calls on new connections while no descriptor is free.
const CALLS: usize = 20;
/// A daemon has fewer connections than this before its descriptors are used up.
const CONNECTIONS_MAX: usize = 64;
/// What the log says of a failed accept.
const WARNING: &str = "could not accept a connection";

fn arguments(folder: &Path, port: &Port) -> [String; 6] {
    let store = folder.join("store").to_str().unwrap().to_owned();
    ["--config".into(), write_store_config(folder, ""), "--store".into(), store, "--http".into(), port.address()]
}

/// `ImageStatus` of an absent image, over a connection of its own, which is returned.
async fn asked(daemon: &Daemon) -> Result<RemoteImageService, RuntimeError> {
    let endpoint: Endpoint = daemon.endpoint().parse().unwrap();
    let images = RemoteImageService::connect(&endpoint, Duration::from_secs(30)).await?;
    let found = images.status(&ImageSpec::new("registry.example/app:v1")).await?;
    assert!(found.is_none());
    Ok(images)
}

#[test]
fn half_requests_at_both_listeners_silence_neither() {
    let (folder, port) = (scratch(), Port::choose());
    let daemon = Daemon::start_with_files_max(folder.path(), arguments(folder.path(), &port), FILES_MAX);
    wait_until("the HTTP listener", || TcpStream::connect(port.address()).is_ok());
    let socket = folder.path().join("imagelet.sock");
    let (mut over_http, mut at_socket) = (Vec::new(), Vec::new());
    for number in 0..HALF_REQUESTS {
        let half = |whole: &'static [u8]| &whole[..if number % 2 == 0 { 0 } else { whole.len() / 2 }];
        let mut client = TcpStream::connect(port.address()).unwrap();
        // A client that was closed for another one cannot write; that is as good.
        drop(client.write_all(half(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")));
        over_http.push(client);
        let mut client = UnixStream::connect(&socket).unwrap();
        drop(client.write_all(half(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")));
        at_socket.push(client);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Err(error) = runtime.block_on(asked(&daemon)) {
        panic!("ImageStatus is not answered: {}", error.chain());
    }
    let mut scraper = TcpStream::connect(port.address()).unwrap();
    scraper.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).expect("the metrics are answered");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("imagelet_"), "{answer}");
    assert_eq!(daemon.part.log().matches(WARNING).count(), 0, "descriptors stayed free");
    // Nor do they hold up the end.
    assert!(daemon.stop(Signal::TERM).success());
    drop((over_http, at_socket));
}

#[test]
fn the_socket_answers_while_a_daemon_has_no_free_descriptor() {
    let (folder, port) = (scratch(), Port::choose());
    let daemon = Daemon::start(folder.path(), arguments(folder.path(), &port));
    wait_until("the HTTP listener", || TcpStream::connect(port.address()).is_ok());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // What a start opens, and what its first pass opens for a moment, is open or closed before.
    wait_until("the end of its start", || daemon.part.log().contains("\"serving\""));
    daemon.run(["status"]).ok();
    // From now on it may open no number above those it opened itself; what it inherited may lie far above.
    let open: BTreeSet<usize> = fs::read_dir(format!("/proc/{}/fd", daemon.part.id()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let last = open.range(..FILES_MAX / 2).next_back().expect("it has open files");
    let limit = Rlimit { current: Some(*last as u64 + 1), maximum: getrlimit(Resource::Nofile).maximum };
    let id = Pid::from_raw(daemon.part.id().cast_signed());
    prlimit(id, Resource::Nofile, limit).unwrap();
    // Connections of clients that make calls fill what is free below, as pulls would.
    let mut clients = Vec::new();
    while !daemon.part.log().contains(WARNING) {
        assert!(clients.len() < CONNECTIONS_MAX, "there are free descriptors");
        clients.push(runtime.block_on(asked(&daemon)).expect("a call is answered"));
    }
    for _ in 0..CALLS {
        let answered = runtime.block_on(asked(&daemon));
        assert!(answered.is_ok(), "{}", answered.unwrap_err().chain());
    }
    let warnings = daemon.part.log().matches(WARNING).count();
    assert!((1..=2 * 2).contains(&warnings), "{warnings} warnings in the log");

    let limit = Rlimit { current: getrlimit(Resource::Nofile).current, ..limit };
    prlimit(id, Resource::Nofile, limit).unwrap();
    assert_eq!(http(&port.address(), "GET", "/metrics", "", &[]).status, 200);
    assert!(daemon.stop(Signal::TERM).success());
}
