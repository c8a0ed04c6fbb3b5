//! A runtime that lies, hangs, answers garbage or goes away: what is asked of it fails and says so, and once it is sane
//! again everything works, in the same process.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::{
    HELD_MAX, resident,
    wire::{
        CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RESET, answer, block, frame, message,
        message_head, serve, trailers,
    },
};
use crate::{
    images::Image,
    program::Daemon,
    testbed::{Containerd, Registry, scratch, wait_until},
};

/// What each call to the runtime may take here.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What the runtime does with whoever connects.
type Behaviour = Arc<dyn Fn(&mut UnixStream) -> io::Result<()> + Send + Sync>;

/// A socket between imagelet and a real runtime; passes everything on unless it misbehaves.
struct Between {
    path: PathBuf,
    upstream: PathBuf,
    misbehaviour: Mutex<Option<Behaviour>>,
    open: Mutex<Vec<UnixStream>>,
}

impl Between {
    fn start(path: PathBuf, upstream: PathBuf) -> Arc<Self> {
        let listener = UnixListener::bind(&path).unwrap();
        let between = Arc::new(Self { path, upstream, misbehaviour: Mutex::default(), open: Mutex::default() });
        let accepting = Arc::clone(&between);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (between, stream) = (Arc::clone(&accepting), stream.unwrap());
                thread::spawn(move || between.meet(stream));
            }
        });
        between
    }

    fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Changes its ways; who is connected is cut off.
    fn turn(&self, misbehaviour: Option<Behaviour>) {
        *self.misbehaviour.lock().unwrap() = misbehaviour;
        for stream in self.open.lock().unwrap().drain(..) {
            drop(stream.shutdown(std::net::Shutdown::Both));
        }
    }

    fn meet(&self, mut stream: UnixStream) {
        let misbehaviour = self.misbehaviour.lock().unwrap().clone();
        self.open.lock().unwrap().push(stream.try_clone().unwrap());
        // Either end may go at any time.
        drop(match misbehaviour {
            Some(misbehave) => misbehave(&mut stream),
            None => self.pass_on(&stream),
        });
        // The copy above keeps it open otherwise.
        drop(stream.shutdown(std::net::Shutdown::Both));
    }

    fn pass_on(&self, stream: &UnixStream) -> io::Result<()> {
        let upstream = UnixStream::connect(&self.upstream)?;
        self.open.lock().unwrap().push(upstream.try_clone()?);
        let (mut from, mut to) = (upstream.try_clone()?, stream.try_clone()?);
        thread::spawn(move || {
            drop(io::copy(&mut from, &mut to));
            drop(to.shutdown(std::net::Shutdown::Both));
        });
        io::copy(&mut stream.try_clone()?, &mut upstream.try_clone()?)?;
        upstream.shutdown(std::net::Shutdown::Both)
    }
}

/// Speaks HTTP/2 and gives each call this answer.
fn answering(respond: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Behaviour {
    Arc::new(move |stream| serve(stream, &respond))
}

/// A good message, and what stands in it.
fn told(content: &'static [u8]) -> Behaviour {
    answering(move |stream| [answer(stream), message(stream, content), trailers(stream, "0", "")].concat())
}

fn waits(stream: &mut UnixStream) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(drop)
}

fn misbehaviours() -> Vec<(&'static str, Behaviour)> {
    let long = "x".repeat(15_000);
    let status = |status: &'static str, message: &'static str| {
        answering(move |stream| [answer(stream), trailers(stream, status, message)].concat())
    };
    vec![
        ("goes at once", Arc::new(|_| Ok(()))),
        ("says nothing", Arc::new(waits)),
        (
            "speaks HTTP/1.1",
            Arc::new(|stream| {
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
                waits(stream)
            }),
        ),
        (
            "makes noise",
            Arc::new(|stream| {
                stream.write_all(&[0xa5; 70_000])?;
                waits(stream)
            }),
        ),
        ("never answers a call", answering(|_| Vec::new())),
        ("says farewell to each call", answering(|_| frame(GOAWAY, 0, 0, &[0; 8]))),
        ("takes each call back", answering(|stream| frame(RESET, 0, stream, &[0, 0, 0, 2]))),
        (
            "closes its half in the middle",
            Arc::new(|stream| {
                let mut preface = [0; 24];
                stream.read_exact(&mut preface)?;
                stream.write_all(&[frame(super::SETTINGS, 0, 0, &[]), answer(1), message_head(0, 900)].concat())?;
                stream.shutdown(std::net::Shutdown::Write)?;
                waits(stream)
            }),
        ),
        ("ends without a status", answering(|stream| [answer(stream), frame(DATA, END_STREAM, stream, &[])].concat())),
        (
            "answers as a web server",
            answering(|stream| {
                let headers = block(&[(":status", "502"), ("content-type", "text/html")]);
                [frame(HEADERS, END_HEADERS, stream, &headers), frame(DATA, END_STREAM, stream, b"<html>")].concat()
            }),
        ),
        ("has a status that is none", status("99", "")),
        ("has a status that is no number", status("abc", "")),
        ("succeeds without a message", status("0", "")),
        (
            "fails with a long text",
            answering(|stream| [answer(stream), trailers(stream, "2", &"e".repeat(6_000))].concat()),
        ),
        ("fails with text for a terminal", status("2", "%1b]0;owned%07%1b[31m%00%ff")),
        (
            "announces four gigabytes",
            answering(|stream| [answer(stream), frame(DATA, 0, stream, &message_head(0, u32::MAX))].concat()),
        ),
        (
            "sends more than any message may have",
            answering(|stream| {
                let mut bytes = answer(stream);
                bytes.extend(frame(DATA, 0, stream, &message_head(0, 17 << 20)));
                (0..4).for_each(|_| bytes.extend(frame(DATA, 0, stream, &[0; 16_000])));
                bytes
            }),
        ),
        (
            "packs what nobody asked to be packed",
            answering(|stream| {
                [
                    answer(stream),
                    frame(DATA, 0, stream, &[&message_head(1, 3)[..], b"xyz"].concat()),
                    trailers(stream, "0", ""),
                ]
                .concat()
            }),
        ),
        (
            "sends headers without an end",
            answering(move |stream| {
                let mut bytes = frame(HEADERS, 0, stream, &block(&[(":status", "200"), ("x", &long)]));
                (0..400).for_each(|_| bytes.extend(frame(CONTINUATION, 0, stream, &block(&[("x", &long)]))));
                bytes
            }),
        ),
        ("answers what is no protobuf", told(&[0xff; 32])),
        (
            "answers two messages",
            answering(|stream| {
                [answer(stream), message(stream, &[]), message(stream, &[]), trailers(stream, "0", "")].concat()
            }),
        ),
        ("drips", answering(|stream| [answer(stream), frame(DATA, 0, stream, &message_head(0, 1_000))].concat())),
    ]
}

fn write_config(folder: &Path) -> String {
    let path = folder.join("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nruntimeRequestTimeout: {}s\nregistryPullQPS: 0\n",
        TIMEOUT.as_secs()
    );
    fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

/// A daemon over containerd, with somebody between them, and the name of an image to pull.
struct Scene {
    daemon: Daemon,
    between: Arc<Between>,
    name: String,
    _containerd: Containerd,
    _registry: Registry,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn start() -> Self {
        let (folder, registry) = (scratch(), Registry::start());
        registry.push("pause:3.9", &Image::busybox("pause"));
        let name = registry.push("app:v1", &Image::marked("app", 1 << 16));
        let containerd = Containerd::start(folder.path(), &registry);
        let upstream = PathBuf::from(containerd.endpoint().strip_prefix("unix://").unwrap());
        let between = Between::start(folder.path().join("between.sock"), upstream);
        let config = write_config(folder.path());
        let daemon = Daemon::start(folder.path(), ["--runtime-endpoint", &between.endpoint(), "--config", &config]);
        wait_until("the first list", || daemon.run(["ls"]).code == 0);
        Self { daemon, between, name, _containerd: containerd, _registry: registry, _folder: folder }
    }
}

#[test]
fn a_runtime_gone_bad_is_told_of_and_taken_back_once_it_is_sane() {
    let scene = Scene::start();
    let (daemon, between, name) = (&scene.daemon, &scene.between, scene.name.as_str());
    daemon.run(["pull", name]).ok();
    let present = |daemon: &Daemon| {
        let listed = daemon.run(["ls"]);
        listed.code == 0 && listed.stdout.contains("app")
    };
    assert!(present(daemon));
    let memory = resident(daemon.part.id());

    for (what, misbehave) in misbehaviours() {
        between.turn(Some(misbehave));
        for command in [&["ls"][..], &["inspect", name], &["gc", "--all-unused", "--now"]] {
            let outcome = daemon.run(command);
            // An empty message is a good answer to some calls; none of them is taken for «nothing is in use».
            assert!(outcome.code == 1 || outcome.code == 0, "{what}, {command:?}: {outcome:?}");
            if outcome.code == 1 {
                assert!(outcome.stderr.starts_with("error: "), "{what}, {command:?}: {outcome:?}");
                assert!(!outcome.stderr.contains(['\u{1b}', '\0']), "{what}, {command:?}: {outcome:?}");
                assert!(outcome.stderr.len() < 16 << 10, "{what}, {command:?}: {} bytes", outcome.stderr.len());
            }
        }
        // What needs no runtime is answered while it is bad.
        daemon.run(["status"]).ok();
        let held = resident(daemon.part.id()).saturating_sub(memory);
        assert!(held < HELD_MAX, "a runtime that {what} makes the daemon hold {held} bytes");
        between.turn(None);
        wait_until(&format!("the runtime after it {what}"), || present(daemon));
    }
    let log = daemon.part.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(!log.contains('\u{1b}'), "a runtime's control characters are in the log");
    assert!(scene.daemon.stop(rustix::process::Signal::TERM).success());
}

/// Misbehaviour that ends a call for certain.
const ENDS_A_CALL: [&str; 9] = [
    "goes at once",
    "takes each call back",
    "ends without a status",
    "answers as a web server",
    "has a status that is none",
    "has a status that is no number",
    "succeeds without a message",
    "fails with text for a terminal",
    "answers what is no protobuf",
];

#[test]
fn a_pull_from_a_runtime_that_dies_fails_and_the_next_one_works() {
    let scene = Scene::start();
    let (daemon, between, name) = (&scene.daemon, &scene.between, scene.name.as_str());
    let mut tried = 0;
    for (what, misbehave) in misbehaviours() {
        // A pull has no deadline, so who hangs is not waited for here.
        if !ENDS_A_CALL.contains(&what) {
            continue;
        }
        tried += 1;
        between.turn(Some(misbehave));
        let outcome = daemon.run(["pull", "--policy", "Always", name]);
        assert_eq!(outcome.code, 1, "{what}: {outcome:?}");
        assert!(!outcome.stderr.contains(['\u{1b}', '\0']), "{what}: {outcome:?}");
        between.turn(None);
        wait_until(&format!("a pull after the runtime {what}"), || {
            daemon.run(["pull", "--policy", "Always", name]).code == 0
        });
    }
    assert_eq!(tried, ENDS_A_CALL.len());
    assert!(scene.daemon.stop(rustix::process::Signal::TERM).success());
}
