//! What a process did to its files and in which order, as strace saw it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    program::{Outcome, run},
    testbed::scratch,
};

/// The calls that change files, sync them, or speak to others; `?` passes over those an architecture lacks.
const CALLS: &str = "?open,openat,?creat,write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,ftruncate,\
    ?truncate,fallocate,?mkdir,mkdirat,?symlink,symlinkat,?link,linkat,?mknod,mknodat,fsync,fdatasync,syncfs,\
    sync_file_range,?rename,?renameat,renameat2,?unlink,unlinkat,?rmdir,connect";

/// One call that succeeded; `began` and `ended` are lines of the trace, as others may run meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) began: usize,
    pub(crate) ended: usize,
    pub(crate) act: Act,
}

/// What a call did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Made, or wrote into.
    Write(PathBuf),
    /// `fsync` or `fdatasync`.
    Sync(PathBuf),
    /// `syncfs`.
    SyncAll,
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Remove(PathBuf),
    /// The first thing that a network hears.
    Connect,
    /// Said on stdout.
    Reply,
}

/// Runs `program`'s arguments under strace and answers what it did.
pub(crate) fn traced(program: &Command) -> (Outcome, Vec<Event>) {
    let (outcome, text) = under_strace(program, &["-y", "-s", "8", "-e", &format!("trace={CALLS}")]);
    (outcome, events(&text))
}

/// Runs `program`'s arguments under strace with these options. Answers also what strace wrote.
pub(crate) fn under_strace(program: &Command, options: &[&str]) -> (Outcome, String) {
    let folder = scratch();
    let file = folder.path().join("trace");
    let mut command = Command::new("strace");
    command.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["-f", "-e", "signal=none"]).args(options).arg("-o").arg(&file);
    command.arg(program.get_program()).args(program.get_args()).stdin(std::process::Stdio::null());
    let outcome = run(&mut command);
    let text =
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("strace wrote no trace: {error}\n{}", outcome.stderr));
    (outcome, text)
}

/// Reads the text of `strace -f -y`.
pub(crate) fn events(text: &str) -> Vec<Event> {
    let mut unfinished: HashMap<&str, (usize, String)> = HashMap::new();
    let mut events = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((process, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if let Some(head) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(process, (at, head.trim_end().to_owned()));
            continue;
        }
        let (began, call) = match rest.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
            Some((_, tail)) => match unfinished.remove(process) {
                Some((began, head)) => (began, format!("{head}{tail}")),
                None => continue,
            },
            None => (at, rest.to_owned()),
        };
        if let Some(act) = act(&call) {
            events.push(Event { began, ended: at, act });
        }
    }
    events.sort_by_key(|event| event.began);
    events
}

/// What a whole call did; `None` when it failed or changed nothing.
fn act(call: &str) -> Option<Act> {
    let (head, result) = call.rsplit_once(" = ")?;
    let (name, arguments) = head.trim_end().strip_suffix(')')?.split_once('(')?;
    // A connection that is still being made has been asked for.
    let in_progress = name == "connect" && result.contains("EINPROGRESS");
    if result.starts_with('-') && !in_progress {
        return None;
    }
    let places = Places::read(arguments);
    match name {
        "open" | "openat" | "creat" => {
            let makes = name == "creat" || arguments.contains("O_CREAT") || arguments.contains("O_TRUNC");
            makes.then(|| places.named.first().cloned().map(Act::Write)).flatten()
        }
        "fsync" | "fdatasync" => places.open.first().cloned().map(Act::Sync),
        "syncfs" => Some(Act::SyncAll),
        "rename" | "renameat" | "renameat2" => match &places.named[..] {
            [from, to] => Some(Act::Rename { from: from.clone(), to: to.clone() }),
            _ => None,
        },
        "unlink" | "unlinkat" | "rmdir" => places.named.first().cloned().map(Act::Remove),
        "connect" => arguments.contains("AF_INET").then_some(Act::Connect),
        "write" | "writev" if arguments.starts_with("1<") => Some(Act::Reply),
        // A link or symbolic link is made at its last name.
        "mkdir" | "mkdirat" | "symlink" | "symlinkat" | "link" | "linkat" | "mknod" | "mknodat" | "truncate" => {
            places.named.last().cloned().map(Act::Write)
        }
        // The file written to is the second of these two.
        "copy_file_range" => places.open.get(1).cloned().map(Act::Write),
        "sync_file_range" => None,
        _ => places.open.first().cloned().map(Act::Write),
    }
}

/// The paths in the arguments of a call.
#[derive(Debug, Default)]
struct Places {
    /// Of open files: `3</a/b>`.
    open: Vec<PathBuf>,
    /// By name, below the directory before it: `AT_FDCWD</a>, "b"`.
    named: Vec<PathBuf>,
}

impl Places {
    fn read(arguments: &str) -> Self {
        let mut places = Self::default();
        let mut base = PathBuf::new();
        for argument in arguments.split(", ") {
            if let Some(name) = argument.strip_prefix('"') {
                let name = name.rsplit_once('"').map_or(name, |(name, _)| name);
                places.named.push(base.join(name));
            } else if let Some((file, path)) = argument.split_once('<') {
                let is_file = file == "AT_FDCWD" || file.bytes().all(|byte| byte.is_ascii_digit());
                if let Some(path) = path.strip_suffix('>').filter(|_| is_file) {
                    base = PathBuf::from(path);
                    places.open.push(base.clone());
                }
            }
        }
        places
    }
}

impl Event {
    /// Whether it wrote at or below this path.
    pub(crate) fn writes_below(&self, path: &Path) -> bool {
        matches!(&self.act, Act::Write(written) if written.starts_with(path))
    }
}
