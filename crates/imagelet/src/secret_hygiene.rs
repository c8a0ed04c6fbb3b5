//! Hardens the process at its start: no secret in core files or process listings, and the highest limit of open files.

use std::{
    ffi::OsString,
    io::Write as _,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command as Program,
};

use imagelet_core::credentials::Secret;
use imagelet_node::config::Environment;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
};

use crate::cli::{Cli, LoginArgs};

/// Number of bytes that a pipe holds before a write to it blocks.
const PIPE_HOLDS: usize = 64 << 10;

/// Disables core dumps, also for children. The limit does not stop dumps into a pipe, but the dumpable flag does.
pub(crate) fn forbid_core_dumps() {
    let limited = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let flagged = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(error) = limited.and(flagged) {
        tracing::warn!(%error, "could not switch core dumps off");
    }
}

/// Raises the soft limit of open files to the hard limit, also for children. Many pulls need more than 1024 files.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

/// Removes the login from the command line and the environment, because other processes can read both. The program
/// executes itself again, and reads the login from a pipe. On failure, the program continues unchanged.
pub(crate) fn hide_login(arguments: &[OsString], cli: &Cli, environment: &Environment) {
    let Some(login) = cli.command.login().and_then(|given| visible(given, environment)) else { return };
    let Some(pipe) = in_pipe(&login) else { return };
    let file = format!("--creds-file=/dev/fd/{}", pipe.as_raw_fd());
    let Some(arguments) = without_login(arguments, &file) else { return };
    let mut program = Program::new("/proc/self/exe");
    program.arg0(&arguments[0]).args(&arguments[1..]).env_remove("IMAGELET_CREDS");
    drop(login);
    let error = program.exec();
    tracing::warn!(%error, "could not hide the credentials of the command line");
}

/// The login that other processes can read. `None`: no login exists, or it does not fit into one line of a pipe.
fn visible(given: &LoginArgs, environment: &Environment) -> Option<Secret> {
    let login = match (&given.creds_file, given.creds.as_deref()) {
        (Some(_), _) | (None, Some("-")) => return None,
        (None, Some(text)) => Secret::new(text),
        (None, None) => environment.logins.creds.clone()?,
    };
    (login.expose().len() < PIPE_HOLDS && !login.expose().contains(['\n', '\r'])).then_some(login)
}

fn in_pipe(login: &Secret) -> Option<OwnedFd> {
    let (reader, mut writer) = std::io::pipe().ok()?;
    writer.write_all(login.expose().as_bytes()).ok()?;
    let reader = OwnedFd::from(reader);
    fcntl_setfd(&reader, FdFlags::empty()).ok()?;
    Some(reader)
}

/// Replaces the login in the command line with the flag in `file`, or adds this flag. `None`: the result is not certain.
fn without_login(arguments: &[OsString], file: &str) -> Option<Vec<OsString>> {
    let has_value = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"--creds=");
    let mut kept = arguments.to_vec();
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    match arguments[..end].iter().position(|argument| argument == "--creds" || has_value(argument)) {
        Some(at) if has_value(&arguments[at]) => kept[at] = file.into(),
        Some(at) => {
            kept.get(at + 1)?;
            drop(kept.splice(at..at + 2, [file.into()]));
        }
        None => kept.insert(end, file.into()),
    }
    // The new command line is used only if clap finds `--creds-file` in it, and no `--creds`.
    let parsed = Cli::read(kept.iter().cloned()).ok()?;
    let given = parsed.command.login()?;
    (given.creds.is_none() && given.creds_file.is_some()).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imagelet_node::config::LoginVariables;

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
            ("i pull a", "i pull a --creds-file=F"),
            ("i pull -- a", "i pull --creds-file=F -- a"),
            ("i -o json pull --creds u:p -- a", "i -o json pull --creds-file=F -- a"),
            ("i doctor a --creds u:p", "i doctor a --creds-file=F"),
            ("i doctor a", "i doctor a --creds-file=F"),
            ("i --store pull pull a", "i --store pull pull a --creds-file=F"),
        ] {
            assert_eq!(rewritten(line).as_deref(), Some(expected), "{line}");
        }
        // No login follows the flag.
        assert_eq!(rewritten("i pull a --creds-file --creds"), None);
    }

    #[test]
    fn only_what_others_can_see_is_hidden() {
        let logins = LoginVariables { creds: Some(Secret::new("env:pw")), ..LoginVariables::default() };
        let environment = Environment { logins, ..Environment::default() };
        let seen = |line: &str, environment: &Environment| {
            let cli = Cli::read(line.split(' ')).expect("a command line");
            let given = cli.command.login().expect("a command with a login");
            visible(given, environment).map(|login| login.expose().to_owned())
        };
        assert_eq!(seen("i pull a --creds u:p", &environment).as_deref(), Some("u:p"));
        assert_eq!(seen("i pull a", &environment).as_deref(), Some("env:pw"));
        assert_eq!(seen("i pull a --creds -", &environment), None);
        assert_eq!(seen("i pull a --creds-file F", &environment), None);
        assert_eq!(seen("i pull a", &Environment::default()), None);
    }
}
