//! Pulls on a real terminal of 80 columns and 24 lines: countdown, many layers, and output for plain terminals.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::Value;

use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::{Image, Layer, noise},
    program::{program, run, with_store},
    testbed::{scratch, wait_until},
};

/// Runs a program on a terminal of its own, and follows what its screen shows. Each argument before `--` is a list of
/// texts: once all of them are on the screen, the screen is printed. At the end it prints everything that was written.
const ON_TERMINAL: &str = r#"
import fcntl, json, os, pty, re, select, struct, sys, termios, time
LINES, COLUMNS = 24, 80
SEQUENCE = r"\x1b\[([?\d;]*)([A-Za-z])|."
stages, command = [json.loads(stage) for stage in sys.argv[1:sys.argv.index("--")]], sys.argv[sys.argv.index("--") + 1:]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in (0, 1, 2):
        os.dup2(slave, number)
    os.execv(command[0], command)
os.close(slave)
screen, line, column, scrolled, written = [""] * LINES, 0, 0, 0, ""
def feed(text):
    global line, column, scrolled
    for part in re.finditer(SEQUENCE, text, re.S):
        token = part[0]
        if token[0] == "\x1b":
            count = int(part[1]) if part[1].isdigit() else 1
            if part[2] == "A": line = max(0, line - count)
            elif part[2] == "B": line = min(LINES - 1, line + count)
            elif part[2] == "G": column = count - 1
            elif part[2] == "K": screen[line] = "" if part[1] == "2" else screen[line][:column]
            elif part[2] == "J":
                screen[line] = screen[line][:column]
                for below in range(line + 1, LINES): screen[below] = ""
        elif token == "\r": column = 0
        elif token == "\n":
            if line == LINES - 1:
                screen.append("")
                screen.pop(0)
                scrolled += 1
            else: line += 1
        else:
            if column == COLUMNS:
                feed("\r\n")
            screen[line] = screen[line].ljust(column)[:column] + token + screen[line][column + 1:]
            column += 1
def shown():
    return {"screen": [row.rstrip() for row in screen], "scrolled": scrolled}
end = time.monotonic() + 60
while True:
    ready, _, _ = select.select([master], [], [], max(0, end - time.monotonic()))
    if not ready: raise SystemExit(f"{stages[:1]} is not shown: {screen}")
    try: got = os.read(master, 65536).decode(errors="replace")
    except OSError: break
    if not got: break
    written += got
    for token in re.finditer(SEQUENCE, got, re.S):
        feed(token[0])
        if stages and all(any(text in row for row in screen) for text in stages[0]):
            print(json.dumps(shown()), flush=True)
            stages.pop(0)
_, status = os.waitpid(pid, 0)
print(json.dumps({**shown(), "written": written, "code": os.waitstatus_to_exitcode(status), "missed": stages}), flush=True)
"#;

/// A program on a terminal.
struct OnTerminal {
    python: Child,
    shown: BufReader<ChildStdout>,
}

impl OnTerminal {
    fn start(stages: &[&[&str]], environment: &[(&str, &str)], arguments: &[&str]) -> Self {
        let stages = stages.iter().map(|texts| serde_json::to_string(texts).unwrap());
        let mut python = Command::new("python3");
        python.env_remove("NO_COLOR").env("TERM", "xterm").envs(environment.iter().copied());
        python.args(["-c", ON_TERMINAL]).args(stages).arg("--").arg(program().get_program()).args(arguments);
        let mut python = python.stdout(Stdio::piped()).spawn().unwrap();
        let shown = BufReader::new(python.stdout.take().unwrap());
        Self { python, shown }
    }

    /// The screen once the next texts are on it; after the last of them, all that was written.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.shown.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the terminal ended early: {line:?}"))
    }

    fn end(mut self) -> Value {
        let end = self.next();
        assert!(self.python.wait().unwrap().success());
        assert_eq!(end["missed"], Value::Array(Vec::new()), "{end}");
        end
    }
}

fn drawn(shown: &Value) -> Vec<&str> {
    let lines = shown["screen"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
    lines.filter(|line| !line.is_empty()).collect()
}

/// The first twelve digits, as a line shows them.
fn short(digest: &str) -> &str {
    &digest["sha256:".len()..][..12]
}

#[test]
fn a_terminal_counts_down_to_the_next_request_to_a_registry_that_limits_them() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("limited", 1000);
    let name = registry.put("team/app:v1", &image);
    let limited = Answer { retry_after: Some("5"), ..Answer::status(429, "{}") };
    registry.answer("/v2/team/app/manifests/v1", limited.clone());
    let store = folder.path().join("store");
    let arguments = ["--store", store.to_str().unwrap(), "pull", &name];
    let mut terminal = OnTerminal::start(&[&["limits requests, next try in "]], &[], &arguments);
    let shown = terminal.next();
    registry.put("team/app:v1", &image);
    assert!(drawn(&shown)[0].contains("asking the registry"), "{shown:#}");
    let end = terminal.end();
    assert_eq!(end["code"], 0, "{end}");
    let written = end["written"].as_str().unwrap();
    let counted = written.split("next try in ").skip(1).map(|text| text.split(' ').next().unwrap().parse().unwrap());
    let mut counted: Vec<u64> = counted.collect();
    counted.dedup();
    assert!(counted.len() > 1 && counted.is_sorted_by(|a, b| a > b) && counted[0] <= 5, "{counted:?}");
    let left = drawn(&end);
    assert!(left.len() == 2 && left[0].contains("app:v1 pulled") && left[1].starts_with("sha256:"), "{left:?}");

    // The same without a terminal: one line, and no control sequence.
    registry.answer("/v2/team/app/manifests/v1", limited);
    let other = folder.path().join("other");
    let pulled = std::thread::scope(|scope| {
        let asked = || registry.requests().iter().filter(|line| line.contains("/manifests/v1")).count();
        let before = asked();
        let pull = scope.spawn(|| with_store(&other, ["pull", &name]));
        wait_until("the request", || asked() > before);
        registry.put("team/app:v1", &image);
        pull.join().unwrap()
    });
    let said: Vec<&str> = pulled.stderr.lines().filter(|line| line.contains("next try")).collect();
    assert!(said.len() == 1 && said[0].ends_with(" s") && !pulled.stderr.contains('\u{1b}'), "{}", pulled.stderr);
}

#[test]
fn sixty_layers_fit_the_terminal_and_those_under_way_stay_in_sight() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let slow = [7, 31, 58];
    let layer = |number: usize| {
        let content = noise(&number.to_string(), if slow.contains(&number) { 400_000 } else { 100 });
        Layer::gzip().file(&format!("file-{number}"), content, 0o644)
    };
    let layers: Vec<Layer> = (0..60).map(layer).collect();
    let image = Image::oci(&layers);
    let name = registry.put("a-long-team-name/with-a-long-project/and-a-long-application:v1.2.3", &image);
    let repository = "a-long-team-name/with-a-long-project/and-a-long-application";
    let held: Vec<&str> = slow.iter().map(|number| image.layers[*number].digest.as_str()).collect();
    for digest in &held {
        registry.spoil(repository, digest, |answer| answer.stall_at = Some(200_000));
    }
    let store = folder.path().join("store");
    let mut texts: Vec<&str> = held.iter().map(|digest| short(digest)).collect();
    texts.push("57/60");
    let arguments = ["--store", store.to_str().unwrap(), "pull", &name];
    let mut terminal = OnTerminal::start(&[&texts], &[], &arguments);
    let shown = terminal.next();
    // A line that is too wide would take two.
    assert_eq!(drawn(&shown).len(), 4, "the total and the layers under way: {shown:#}");
    for digest in &held {
        registry.spoil(repository, digest, |answer| answer.stall_at = None);
    }
    let end = terminal.end();
    assert_eq!((&end["code"], &end["scrolled"]), (&0.into(), &0.into()), "{end:#}");
    let left = drawn(&end);
    assert!(left.len() <= 3 && left.last().unwrap().starts_with("sha256:"), "{left:#?}");
}

/// A command on a terminal that has written everything.
fn written(environment: &[(&str, &str)], arguments: &[&str]) -> String {
    OnTerminal::start(&[], environment, arguments).end()["written"].as_str().unwrap().to_owned()
}

#[test]
fn no_output_has_colours_where_they_are_unwanted_and_a_dumb_terminal_gets_plain_lines() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("app:v1", &Image::marked("plain", 1000));
    let store = folder.path().join("store");
    let store = store.to_str().unwrap();
    let commands: [(&str, &[&str]); 6] = [
        ("progress", &["--store", store, "pull", "--policy", "Always", &name]),
        ("a table", &["--store", store, "ls"]),
        ("an error of a command", &["--store", store, "inspect", "absent:v1"]),
        ("an error of the command line", &["pul"]),
        ("help", &["pull", "--help"]),
        ("a log", &["--log-level", "debug", "--store", store, "pull", "-q", "--policy", "Always", &name]),
    ];
    let is_coloured = |text: &str| {
        let codes = text.split("\u{1b}[").skip(1).filter_map(|part| part.split_once('m')).map(|(code, _)| code);
        { codes }.any(|code| code.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'))
    };
    for (what, arguments) in commands {
        let plain = written(&[("NO_COLOR", "1")], arguments);
        assert!(!is_coloured(&plain), "{what} with NO_COLOR: {plain:?}");
        let dumb = written(&[("TERM", "dumb"), ("CI", "true")], arguments);
        assert!(!dumb.contains('\u{1b}') && !dumb.trim().is_empty(), "{what} on a dumb terminal: {dumb:?}");
        let piped = run(program().args(arguments));
        assert!(!(piped.stdout + &piped.stderr).contains('\u{1b}'), "{what} without a terminal");
        if ["a log", "help", "an error of the command line"].contains(&what) {
            let colours = written(&[], arguments);
            assert!(is_coloured(&colours), "{what} has colours where they are wanted: {colours:?}");
        }
    }
}
