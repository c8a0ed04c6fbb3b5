//! What the process does to itself at its start: no secret in core files or in what the system shows, as many open files as it may.

use std::{
    ffi::{OsStr, OsString},
    io::Write as _,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command as Program,
};

use imagelet_core::credentials::Secret;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
};

use crate::{
    cli::{Cli, Command, PullArgs},
    config::Environment,
};

/// A pipe holds this much without a reader.
const PIPE_HOLDS: usize = 64 << 10;

/// No core file of this process: credentials are in its memory. The limit goes to its children, too, and leaves out
/// those systems that hand cores to a program; the flag does not, and leaves out nothing.
pub(crate) fn forbid_core_dumps() {
    let limited = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let flagged = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(error) = limited.and(flagged) {
        tracing::warn!(%error, "could not switch core dumps off");
    }
}

/// As many open files as the system allows this process at most: a shell gives 1024, few for many pulls at once. Programs
/// that it starts get the same limit; those that cannot deal with large descriptors have none in the first place.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

/// Takes the login of `pull` out of the command line and the environment, which the system shows to others: the program
/// starts anew with the login in a pipe. Where that cannot be, it goes on as it was started.
pub(crate) fn hide_login(arguments: &[OsString], cli: &Cli, environment: &Environment) {
    let Command::Pull(pull) = &cli.command else { return };
    let Some(login) = visible(pull, environment) else { return };
    let Some(pipe) = in_pipe(&login) else { return };
    let file = format!("--creds-file=/dev/fd/{}", pipe.as_raw_fd());
    let Some(arguments) = without_login(arguments, &file) else { return };
    let mut program = Program::new("/proc/self/exe");
    program.arg0(&arguments[0]).args(&arguments[1..]).env_remove("IMAGELET_CREDS");
    drop(login);
    // Returns only where it failed; then everything is as before.
    let error = program.exec();
    tracing::warn!(%error, "could not hide the credentials of the command line");
}

/// The login that others can see, if there is one that fits on a line.
fn visible(pull: &PullArgs, environment: &Environment) -> Option<Secret> {
    let login = match (&pull.creds_file, pull.creds.as_deref()) {
        (Some(_), _) | (None, Some("-")) => return None,
        (None, Some(text)) => Secret::new(text),
        (None, None) => environment.creds.clone()?,
    };
    (login.expose().len() < PIPE_HOLDS && !login.expose().contains(['\n', '\r'])).then_some(login)
}

/// A pipe that the next program reads the login from.
fn in_pipe(login: &Secret) -> Option<OwnedFd> {
    let (reader, mut writer) = std::io::pipe().ok()?;
    writer.write_all(login.expose().as_bytes()).ok()?;
    let reader = OwnedFd::from(reader);
    fcntl_setfd(&reader, FdFlags::empty()).ok()?;
    Some(reader)
}

/// The command line with a file in place of the login; `None` where its place cannot be determined.
fn without_login(arguments: &[OsString], file: &str) -> Option<Vec<OsString>> {
    let mut kept: Vec<OsString> = Vec::with_capacity(arguments.len() + 1);
    let mut is_named = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            kept.push(argument.clone());
            kept.extend(rest.by_ref().cloned());
        } else if argument == "--creds" {
            rest.next()?;
            kept.push(file.into());
            is_named = true;
        } else if argument.as_encoded_bytes().starts_with(b"--creds=") {
            kept.push(file.into());
            is_named = true;
        } else {
            kept.push(argument.clone());
        }
    }
    if !is_named {
        let command = kept.iter().position(|argument| argument == OsStr::new("pull"))?;
        kept.insert(command + 1, file.into());
    }
    // What is not read as the same command is not run.
    let Ok(Cli { command: Command::Pull(pull), .. }) = Cli::read(kept.iter().cloned()) else { return None };
    (pull.creds.is_none() && pull.creds_file.is_some()).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> Option<String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let kept = without_login(&arguments, "--creds-file=F")?;
        Some(kept.iter().map(|argument| argument.to_str().expect("text")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_login_is_taken_out_of_any_command_line() {
        for (line, expected) in [
            ("i pull a --creds u:p", "i pull a --creds-file=F"),
            ("i --store /s pull --creds=u:p -q a", "i --store /s pull --creds-file=F -q a"),
            ("i pull a", "i pull --creds-file=F a"),
            ("i -o json pull --creds u:p -- a", "i -o json pull --creds-file=F -- a"),
        ] {
            assert_eq!(rewritten(line).as_deref(), Some(expected), "{line}");
        }
        // A store called `pull` is not guessed at.
        assert_eq!(rewritten("i --store pull pull a"), None);
    }

    #[test]
    fn only_what_others_can_see_is_hidden() {
        let environment = Environment { creds: Some(Secret::new("env:pw")), ..Environment::default() };
        let seen = |line: &str, environment: &Environment| {
            let Ok(Cli { command: Command::Pull(pull), .. }) = Cli::read(line.split(' ')) else { panic!("no pull") };
            visible(&pull, environment).map(|login| login.expose().to_owned())
        };
        assert_eq!(seen("i pull a --creds u:p", &environment).as_deref(), Some("u:p"));
        assert_eq!(seen("i pull a", &environment).as_deref(), Some("env:pw"));
        assert_eq!(seen("i pull a --creds -", &environment), None);
        assert_eq!(seen("i pull a --creds-file F", &environment), None);
        assert_eq!(seen("i pull a", &Environment::default()), None);
    }
}
