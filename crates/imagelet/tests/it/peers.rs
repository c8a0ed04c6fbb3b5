//! Whoever is at the other end of a socket may be slow, broken or hostile: the daemon answers the others all the same,
//! keeps what it holds for anybody bounded, and gives back what the peer leaves behind.

mod runtime;
mod wire;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RESET, SETTINGS, WINDOW_UPDATE, block,
    call, frame, message, message_head,
};

use crate::{
    program::{Daemon, write_store_config},
    testbed::{scratch, wait_until},
};

/// What any number of hostile peers may make a daemon hold, beyond what it holds anyway.
pub(crate) const HELD_MAX: u64 = 96 << 20;
/// Connections of one kind at once.
const AT_ONCE: usize = 100;
/// A write to a peer that does not read ends here.
const WRITE_MAX: Duration = Duration::from_secs(5);

const LIST: &str = "/runtime.v1.ImageService/ListImages";
const PULL: &str = "/runtime.v1.ImageService/PullImage";

/// Bytes that a process has in memory now.
pub(crate) fn resident(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a running process has memory");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn open_files(id: u32) -> usize {
    fs::read_dir(format!("/proc/{id}/fd")).unwrap().count()
}

fn socket_of(daemon: &Daemon) -> PathBuf {
    PathBuf::from(daemon.endpoint().strip_prefix("unix://").unwrap())
}

/// Everything that a client says before it waits, without regard to answers.
struct Attack {
    name: &'static str,
    bytes: Vec<u8>,
    /// Says no more and listens on.
    half_closes: bool,
}

fn attack(name: &'static str, bytes: Vec<u8>) -> Attack {
    Attack { name, bytes, half_closes: false }
}

/// A connection that has been opened properly.
fn opened(rest: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    bytes.extend(rest.into_iter().flatten());
    bytes
}

fn attacks() -> Vec<Attack> {
    let streams = |count: u32| (0..count).map(|number| 2 * number + 1);
    let flood = |count: usize, frame: Vec<u8>| std::iter::repeat_n(frame, count);
    let long = "x".repeat(15_000);
    let headers_without_end = frame(HEADERS, 0, 1, &block(&[(":method", "POST"), ("x", &long)]));
    let continuation = frame(CONTINUATION, 0, 1, &block(&[("x", &long)]));
    // One entry of the table, and then names of one byte that each stand for it.
    let mut bomb = vec![0x40];
    bomb.extend(&block(&[("bomb", &"y".repeat(3_900))])[1..]);
    bomb.extend([0xbe; 12_000]);
    let nested = [0x0a].repeat(20_000);
    vec![
        attack("nothing at all", Vec::new()),
        attack("half a preface", PREFACE[..10].to_vec()),
        attack("HTTP/1.1", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        attack("noise", (0..100_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        attack("nothing after the preface", PREFACE.to_vec()),
        attack("a call without an end", opened([call(1, LIST), message_head(0, 100).into_frame(1, 0)])),
        Attack { half_closes: true, ..attack("a call that is left half-way", opened([call(1, LIST)])) },
        attack("a message of four gigabytes", opened([call(1, PULL), message_head(0, u32::MAX).into_frame(1, 0)])),
        attack("a message over the limit", opened([call(1, PULL), message_head(0, 17 << 20).into_frame(1, 0)])),
        attack(
            "a packed message",
            opened([call(1, LIST), message_head(1, 3).into_frame(1, 0), b"xyz".to_vec().into_frame(1, END_STREAM)]),
        ),
        attack("no protobuf", opened([call(1, LIST), message(1, &[0xff; 64]), frame(DATA, END_STREAM, 1, &[])])),
        attack("deep protobuf", opened([call(1, PULL), message(1, &nested), frame(DATA, END_STREAM, 1, &[])])),
        attack(
            "no UTF-8",
            opened([call(1, PULL), message(1, b"\x0a\x04\x0a\x02\xff\xfe"), frame(DATA, END_STREAM, 1, &[])]),
        ),
        attack("no such call", opened([call(1, "/runtime.v1.ImageService/Nothing"), frame(DATA, END_STREAM, 1, &[])])),
        attack(
            "no such service",
            opened([call(1, "/runtime.v1alpha2.ImageService/ListImages"), frame(DATA, END_STREAM, 1, &[])]),
        ),
        attack("no path", opened([frame(HEADERS, END_HEADERS, 1, &block(&[(":method", "POST")]))])),
        attack("a long path", opened([call(1, &format!("/{long}")), frame(DATA, END_STREAM, 1, &[])])),
        attack("many calls", opened(streams(2_000).map(|stream| call(stream, PULL)))),
        attack(
            "calls taken back at once",
            opened(streams(5_000).map(|stream| [call(stream, LIST), frame(RESET, 0, stream, &[0, 0, 0, 8])].concat())),
        ),
        attack("headers without an end", opened([headers_without_end].into_iter().chain(flood(400, continuation)))),
        attack("headers that unfold", opened(streams(50).map(|stream| frame(HEADERS, END_HEADERS, stream, &bomb)))),
        attack("pings", opened(flood(20_000, frame(PING, 0, 0, &[0; 8])))),
        attack("settings", opened(flood(20_000, frame(SETTINGS, 0, 0, &[])))),
        attack("a window that overflows", opened(flood(3, frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])))),
        attack(
            "farewell and on",
            opened([frame(GOAWAY, 0, 0, &[0; 8]), call(1, LIST), frame(DATA, END_STREAM, 1, &[])]),
        ),
        attack("an even stream", opened([call(2, LIST)])),
        attack("a frame that is too long", opened([frame(DATA, 0, 1, &vec![0; 1 << 20])])),
    ]
}

/// Bytes as the content of a frame.
trait IntoFrame {
    fn into_frame(self, stream: u32, flags: u8) -> Vec<u8>;
}

impl IntoFrame for Vec<u8> {
    fn into_frame(self, stream: u32, flags: u8) -> Vec<u8> {
        frame(DATA, flags, stream, &self)
    }
}

/// Says it all and leaves the connection open; how much of it the daemon takes is its affair.
fn attack_once(socket: &Path, attack: &Attack) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_write_timeout(Some(WRITE_MAX)).unwrap();
    drop(stream.write_all(&attack.bytes));
    if attack.half_closes {
        drop(stream.shutdown(std::net::Shutdown::Write));
    }
    stream
}

#[test]
fn hostile_clients_keep_nobody_from_being_served_and_leave_nothing_behind() {
    let folder = scratch();
    let config = write_store_config(folder.path(), "");
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
    daemon.run(["ls"]).ok();
    let socket = socket_of(&daemon);
    let (memory, files) = (resident(daemon.part.id()), open_files(daemon.part.id()));
    for attack in attacks() {
        let open: Vec<UnixStream> = (0..AT_ONCE).map(|_| attack_once(&socket, &attack)).collect();
        let served = daemon.run(["ls", "-q"]);
        assert_eq!(served.code, 0, "during «{}»: {}", attack.name, served.stderr);
        let held = resident(daemon.part.id()).saturating_sub(memory);
        assert!(held < HELD_MAX, "«{}» makes the daemon hold {held} bytes", attack.name);
        drop(open);
        wait_until(attack.name, || open_files(daemon.part.id()) <= files + 5);
    }
    let log = daemon.part.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(log.len() < 4 << 20, "the peers filled {} bytes of the log", log.len());
    assert!(daemon.stop(rustix::process::Signal::TERM).success());
}

#[test]
fn a_client_that_never_says_anything_is_let_go() {
    let folder = scratch();
    let config = write_store_config(folder.path(), "");
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
    let silent = [Vec::new(), PREFACE[..5].to_vec()];
    let mut open: Vec<UnixStream> =
        silent.iter().map(|bytes| attack_once(&socket_of(&daemon), &attack("silence", bytes.clone()))).collect();
    for stream in &mut open {
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let mut rest = Vec::new();
        assert!(stream.read_to_end(&mut rest).is_ok(), "the connection is still open after a minute");
    }
}

/// One who reads nothing of a long list holds up nobody, and no memory without end.
#[test]
fn a_client_that_does_not_read_its_answers_holds_up_nobody() {
    let folder = scratch();
    let config = write_store_config(folder.path(), "");
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
    let socket = socket_of(&daemon);
    let memory = resident(daemon.part.id());
    let calls = |first: u32| {
        (0..200)
            .map(move |number| first + 2 * number)
            .map(|stream| [call(stream, LIST), message(stream, &[]), frame(DATA, END_STREAM, stream, &[])].concat())
    };
    let deaf: Vec<UnixStream> = (0..20).map(|_| attack_once(&socket, &attack("deaf", opened(calls(1))))).collect();
    thread::sleep(Duration::from_millis(200));
    daemon.run(["ls"]).ok();
    let held = resident(daemon.part.id()).saturating_sub(memory);
    assert!(held < HELD_MAX, "{held} bytes are held for those who do not read");
    drop(deaf);
    assert!(daemon.stop(rustix::process::Signal::TERM).success());
}
