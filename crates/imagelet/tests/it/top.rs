//! `imagelet top` on a real terminal, and without one.

use std::{path::Path, process::Command};

use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, program, run, with_store, write_store_config},
    testbed::scratch,
};

/// Runs a program on a terminal of its own: waits for a text, makes the terminal larger, waits for a second text,
/// presses a key, and prints what was written and how it ended.
const ON_TERMINAL: &str = r#"
import fcntl, json, os, pty, select, struct, sys, termios, time
first, second, key, command = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
master, slave = pty.openpty()
def resize(lines, columns):
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
resize(24, 80)
before = termios.tcgetattr(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in (0, 1, 2):
        os.dup2(slave, number)
    os.execv(command[0], command)
written = b""
def read_until(is_there, what):
    global written
    start, end = len(written), time.monotonic() + 60
    while not is_there(written[start:]):
        ready, _, _ = select.select([master], [], [], max(0, end - time.monotonic()))
        if not ready:
            raise SystemExit(f"{what!r} is not shown: {written!r}")
        written += os.read(master, 65536)
    return written[start:].decode()
# Whole frames: the start of the next one is there. The first after a change of the size may be of the size before.
frames = lambda text, count: (lambda read: sum(text.encode() in it for it in read.split(b"\x1b[H")[1:-1]) >= count, text)
shown = [read_until(*frames(first, 1))]
resize(50, 160)
shown.append(read_until(*frames(second, 2)))
os.write(master, b"xyz" + key.encode())
shown.append(read_until(lambda read: b"\x1b[?1049l" in read, "the end"))
_, status = os.waitpid(pid, 0)
print(json.dumps({"shown": shown, "code": os.waitstatus_to_exitcode(status), "restored": termios.tcgetattr(slave) == before}))
"#;

fn daemon(folder: &Path) -> Daemon {
    let config = write_store_config(folder, "");
    Daemon::start(folder, ["--config", &config, "--store", folder.join("store").to_str().unwrap()])
}

/// The lines of each whole frame, without control sequences.
fn frames(text: &str) -> Vec<Vec<String>> {
    let mut frames: Vec<&str> = text.split("\u{1b}[H").skip(1).collect();
    frames.pop().expect("the frame whose start ends the one before");
    let plain = |line: &str| {
        let parts = line.split('\u{1b}');
        parts
            .enumerate()
            .map(
                |(at, part)| if at == 0 { part } else { part.split_once(['m', 'K', 'J']).map_or("", |(_, rest)| rest) },
            )
            .collect()
    };
    // The terminal puts a return of its own before each end of a line.
    frames.iter().map(|frame| frame.split('\n').map(|line| plain(line.trim_end_matches('\r'))).collect()).collect()
}

#[test]
fn top_is_live_follows_the_size_of_its_terminal_and_gives_it_back() {
    for key in ["q", "\u{3}"] {
        let (folder, registry) = (scratch(), FakeRegistry::start());
        let daemon = daemon(folder.path());
        daemon.run(["pull", &registry.put("first:v1", &Image::marked("first", 1000))]).ok();
        let slow = Image::marked("held", 2_000_000);
        let name = registry.put("held:v1", &slow);
        let held = registry.hold("held", &slow.layers[0].digest);
        let mut pull = daemon.command().args(["pull", "-q", &name]).spawn().unwrap();
        held.until_asked();
        let mut python = Command::new("python3");
        python.env("TERM", "xterm").arg("-c").arg(ON_TERMINAL).args(["1 running", "1 running", key]);
        let ended = run(python.arg(program().get_program()).args(["--endpoint", &daemon.endpoint(), "top"]));
        let ended: Value = serde_json::from_str(&ended.ok()).unwrap();
        assert_eq!((&ended["code"], &ended["restored"]), (&0.into(), &true.into()), "{ended}");
        let shown: Vec<&str> = ended["shown"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        assert!(shown[0].starts_with("\u{1b}[?1049h\u{1b}[?25l"), "{shown:?}");
        assert!(shown[2].ends_with("\u{1b}[?25h\u{1b}[?1049l"), "{shown:?}");
        for (text, narrower, lines, columns) in [(shown[0], 0, 24, 80), (shown[1], 80, 50, 160)] {
            let frames = frames(text);
            let widest = |frame: &[String]| frame.iter().map(|line| line.chars().count()).max().unwrap();
            for frame in &frames {
                assert!(frame.len() <= lines, "{} lines", frame.len());
                assert!(widest(frame) <= columns, "{} columns: {frame:?}", widest(frame));
            }
            assert!(widest(frames.last().unwrap()) > narrower, "the size is not used: {frames:?}");
        }
        drop(held);
        assert!(pull.wait().unwrap().success());
    }
}

#[test]
fn without_a_terminal_top_prints_one_frame_without_colours_or_a_document() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let daemon = daemon(folder.path());
    let name = registry.put("app:v1", &Image::marked("app", 1000));
    daemon.run(["pull", &name]).ok();
    daemon.run(["pull", "127.0.0.1:1/away:v1"]).refused(&[]);
    for arguments in [&["top"][..], &["top", "--once"]] {
        let text = daemon.run(arguments).ok();
        assert!(text.starts_with("imagelet top  ") && !text.contains('\u{1b}'), "{text}");
        for words in
            ["\nDisk  ", "% [", "\nPulls  none is running\n", "\nQueue  ", "\nRegistries  ", "\nDecisions\n", &name]
        {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
        assert!(text.contains("pull failed 127.0.0.1:1/away:v1"), "{text}");
    }
    let document = daemon.run(["top", "-o", "json"]).json();
    // The usage of the disk is recorded also without HTTP.
    assert_eq!(document["disk"]["history"].as_array().map(Vec::len), Some(1), "{document}");
    assert_eq!(document["decisions"][1]["what"], "pulled", "{document}");
    assert!(document["disk"]["capacity"].as_u64() > Some(0) && document["pulls"].is_array(), "{document}");
    // A store without a daemon has a disk and decisions as well.
    drop(daemon);
    let alone = with_store(&folder.path().join("store"), ["top"]).ok();
    assert!(alone.contains(&name) && !alone.contains("known after"), "{alone}");
    with_store(&folder.path().join("none"), ["top"]).refused(&[]);
}
