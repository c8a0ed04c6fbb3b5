//! `pull`: ensures images, with progress on stderr and the images' ids on stdout.

mod doctor;
mod registry_login;

use std::{
    io::{BufRead as _, ErrorKind},
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex},
};

use futures_util::{StreamExt as _, stream};
use imagelet_core::{
    credentials::Secret,
    durable::read_at_most,
    image::{ByteSize, Reference, shown_name},
    lock::locked,
    printable::printable,
};
use serde_json::json;

pub(super) use self::{
    doctor::doctor,
    registry_login::{log_in, log_out},
};
use crate::{
    cli::{LoginArgs, PullArgs},
    manifests::decode,
    output::{Format, exit_code, print, print_failure},
    progress::Screen,
};
use imagelet_node::{
    api::{Hidden, Login, PullRequest, Pulled, RemovedForPull, Step},
    config::Environment,
    failure::Failure,
    node::Node,
};

const REQUESTS_AT_ONCE: usize = 4;
const LOGIN_LENGTH_MAX: u64 = 64 << 10;

pub(super) fn read(arguments: &PullArgs, environment: &Environment) -> Result<Vec<PullRequest>, Failure> {
    let request = PullRequest {
        policy: arguments.policy.clone(),
        login: login(&arguments.login, environment)?,
        platform: arguments.platform.as_ref().map(ToString::to_string),
        ..PullRequest::default()
    };
    let request = |image: &String| {
        image.parse::<Reference>().map_err(|error| Failure {
            reason: "InvalidImageName".into(),
            ..Failure::because(format!("`{}` names no image", shown_name(image)), &error)
        })?;
        Ok(PullRequest { image: image.clone(), ..request.clone() })
    };
    arguments.images.iter().map(request).collect()
}

pub(super) fn read_manifest(path: &Path, length_max: usize) -> Result<String, Failure> {
    let failed = |what: &str| Failure::new("Failed", format!("`{}` is {what}", path.display()));
    let limit = length_max as u64;
    let bytes = if path == Path::new("-") {
        read_at_most(std::io::stdin().lock(), limit)
    } else {
        std::fs::File::open(path).and_then(|file| read_at_most(file, limit))
    };
    let bytes = bytes.map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => failed(&format!("longer than {}", ByteSize(limit))),
        _ => unread(path, &error),
    })?;
    decode(bytes).ok_or_else(|| failed("neither UTF-8 nor UTF-16"))
}

fn login(arguments: &LoginArgs, environment: &Environment) -> Result<Option<Login>, Failure> {
    let text = match (&arguments.creds_file, arguments.creds.as_deref()) {
        (Some(path), _) => Some(std::fs::File::open(path).and_then(first_line).map_err(|error| unread(path, &error))?),
        (None, Some("-")) => Some(first_line(std::io::stdin())?),
        (None, Some(text)) => Some(Secret::new(text)),
        (None, None) => environment.logins.creds.clone(),
    };
    let Some(text) = text else { return Ok(None) };
    let (user, password) = text
        .expose()
        .split_once(':')
        .ok_or_else(|| Failure::invalid("the credentials are not of the form USER:PASS"))?;
    Ok(Some(Login { user: user.into(), password: Some(Hidden(Secret::new(password))) }))
}

pub(super) fn unread(path: &Path, error: &std::io::Error) -> Failure {
    Failure::because(format!("could not read `{}`", path.display()), error)
}

fn first_line(source: impl std::io::Read) -> std::io::Result<Secret> {
    secret_of(|text| std::io::BufReader::new(source.take(LOGIN_LENGTH_MAX)).read_until(b'\n', text))
}

/// Reads a secret, and removes the line end that editors and tools append.
fn secret_of(read: impl FnOnce(&mut Vec<u8>) -> std::io::Result<usize>) -> std::io::Result<Secret> {
    let mut text = zeroize::Zeroizing::new(Vec::new());
    read(&mut text)?;
    while text.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        text.pop();
    }
    Ok(Secret::from_bytes(std::mem::take(&mut *text)))
}

pub(super) async fn run(
    node: &Node,
    requests: Vec<PullRequest>,
    quiet: bool,
    format: Format,
) -> Result<ExitCode, Failure> {
    let screen = Screen::of_stderr(quiet);
    let outcomes = stream::iter(requests).map(|request| pull(node, request, screen.clone()));
    let (mut pulled, mut failures) = (Vec::new(), Vec::new());
    for (image, removed, outcome) in outcomes.buffered(REQUESTS_AT_ONCE).collect::<Vec<_>>().await {
        match outcome {
            Ok(one) => pulled.push(Pulled { removed, ..one }),
            Err(failure) => {
                print_failure(&failure);
                failures.push(json!({ "image": image, "failure": failure, "removed": removed }));
            }
        }
    }
    print(format, &json!({ "images": pulled, "failures": failures }), |out| {
        pulled.iter().try_for_each(|one| writeln!(out, "{}", one.id))
    })?;
    Ok(exit_code(!failures.is_empty()))
}

/// Pulls an image. Returns its name, the images removed to make room, even if the pull failed, and the outcome.
async fn pull(
    node: &Node,
    request: PullRequest,
    screen: Screen,
) -> (String, Vec<RemovedForPull>, Result<Pulled, Failure>) {
    let image = request.image.clone();
    let removed = Arc::<Mutex<Vec<RemovedForPull>>>::default();
    let shown = screen.show(&image, None);
    let steps = {
        let (removed, steps) = (Arc::clone(&removed), Arc::clone(&shown.steps));
        move |step| {
            if let Step::Removed(image) = &step {
                locked(&removed).push(image.clone());
            }
            steps(step);
        }
    };
    let outcome = Box::pin(node.ask(request, Arc::new(steps))).await;
    drop(shown);
    if let Ok(pulled) = &outcome {
        screen.say(&outcome_line(pulled));
    }
    let removed = std::mem::take(&mut *locked(&removed));
    (image, removed, outcome)
}

fn outcome_line(pulled: &Pulled) -> String {
    let image = printable(&pulled.image);
    if let Some(warning) = &pulled.warning {
        return format!("warning: {}", printable(warning));
    }
    if pulled.present {
        return format!("{image} is present");
    }
    let size = pulled.size.map_or_else(String::new, |size| format!(" ({})", ByteSize(size)));
    format!("{image} pulled{size} in {}", seconds(pulled.took_ms))
}

pub(super) fn seconds(milliseconds: u64) -> String {
    format!("{}.{:01}s", milliseconds / 1000, milliseconds % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imagelet_node::config::LoginVariables;

    #[test]
    fn credentials_come_from_the_flag_or_the_environment_and_do_not_print() {
        let logins = LoginVariables { creds: Some(Secret::new("env:pw:with:colons")), ..LoginVariables::default() };
        let environment = Environment { logins, ..Environment::default() };
        let read = |line: &str| match crate::cli::Cli::read(line.split(' ')).expect("a command line").command {
            crate::cli::Command::Pull(arguments) => arguments.login,
            other => panic!("another command: {other:?}"),
        };
        let found = login(&read("i pull a"), &environment).ok().flatten().expect("a login");
        assert_eq!(found.user, "env");
        assert_eq!(found.password.as_ref().map(|password| password.0.expose()), Some("pw:with:colons"));
        assert!(!format!("{found:?}").contains("pw"), "{found:?}");
        let flag = login(&read("i pull a --creds bob:x"), &environment).ok().flatten().expect("a login");
        assert_eq!(flag.user, "bob");
        let failure = login(&read("i pull a --creds hunter2"), &environment).expect_err("refused");
        assert!(!failure.to_string().contains("hunter2"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("login");
        std::fs::write(&path, "eve:from a file\r\nmore\n").expect("a file");
        let arguments = read(&format!("i pull a --creds-file {}", path.display()));
        let found = login(&arguments, &environment).ok().flatten().expect("a login");
        assert_eq!(found.password.as_ref().map(|password| password.0.expose()), Some("from a file"));
        std::fs::remove_file(&path).expect("it goes");
        let failure = login(&arguments, &environment).expect_err("refused");
        assert!(failure.to_string().contains("login"), "{failure}");
    }

    #[test]
    fn the_outcome_of_a_pull_is_one_line() {
        let pulled = Pulled { image: "a".into(), size: Some(1_500_000), took_ms: 2345, ..Pulled::default() };
        assert_eq!(outcome_line(&pulled), "a pulled (1.5MB) in 2.3s");
        assert_eq!(outcome_line(&Pulled { present: true, ..pulled }), "a is present");
    }
}
