//! `pull` and `ensure`: images that shall be there, with progress on stderr and their ids on stdout.

use std::{
    io::{BufRead as _, Read as _},
    path::Path,
    process::ExitCode,
};

use futures_util::{StreamExt as _, stream};
use imagelet_core::{
    credentials::Secret,
    image::{ByteSize, Reference},
};
use serde_json::json;

use super::upkeep::complain;
use crate::{
    cli::{Command, EnsureArgs, Format, Policy, PullArgs},
    config::Environment,
    failure::Failure,
    node::{Hidden, Login, Node, PodImages, PullRequest, Pulled},
    output::print,
    progress::Screen,
};

/// Images of one command that are asked for at once; the node has its own bounds.
const REQUESTS_AT_ONCE: usize = 4;
/// A manifest or a secret longer than this is none.
const FILE_LENGTH_MAX: u64 = 1 << 20;
/// So is a password.
const LOGIN_LENGTH_MAX: u64 = 64 << 10;

/// What a command asks to be there. Empty for commands that ask for nothing.
#[derive(Debug, Default)]
pub(super) struct Asked {
    requests: Vec<PullRequest>,
    notes: Vec<String>,
    quiet: bool,
}

impl Asked {
    /// Reads names, files and credentials of the command line.
    pub(super) fn read(command: &Command, environment: &Environment) -> Result<Self, Failure> {
        match command {
            Command::Pull(arguments) => Self::of_pull(arguments, environment),
            Command::Ensure(arguments) => Self::of_pod(arguments),
            _ => Ok(Self::default()),
        }
    }

    fn of_pull(arguments: &PullArgs, environment: &Environment) -> Result<Self, Failure> {
        let login = login(arguments.creds.as_deref(), environment)?;
        let policy = match arguments.policy {
            Policy::Always => "Always",
            Policy::IfNotPresent => "IfNotPresent",
            Policy::Never => "Never",
        };
        let request = |image: &String| {
            image.parse::<Reference>().map_err(|error| Failure {
                causes: vec![error.to_string()],
                ..Failure::new("InvalidImageName", format!("`{image}` names no image"))
            })?;
            Ok(PullRequest {
                image: image.clone(),
                policy: policy.into(),
                login: login.clone(),
                platform: arguments.platform.as_ref().map(ToString::to_string),
                ..PullRequest::default()
            })
        };
        let requests = arguments.images.iter().map(request).collect::<Result<_, Failure>>()?;
        Ok(Self { requests, notes: Vec::new(), quiet: arguments.quiet })
    }

    fn of_pod(arguments: &EnsureArgs) -> Result<Self, Failure> {
        let pod = read_file(&arguments.file)?;
        let secrets = arguments.secrets.iter().map(|file| Ok((file.display().to_string(), read_file(file)?)));
        let secrets: Vec<(String, String)> = secrets.collect::<Result<_, Failure>>()?;
        let name = arguments.file.display().to_string();
        let images = PodImages::read((&name, &pod), &secrets).map_err(|error| Failure::of(&error))?;
        let missing = |secret| format!("the pull secret `{secret}` was not given with --secret; going on without it");
        Ok(Self {
            requests: images.requests,
            notes: images.secrets_missing.into_iter().map(missing).collect(),
            quiet: arguments.quiet,
        })
    }
}

fn read_file(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::because(format!("could not read `{}`", path.display()), &error);
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_LENGTH_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(FILE_LENGTH_MAX + 1).read_to_string(&mut text))
            .map_err(failed)?;
    }
    if text.len() as u64 > FILE_LENGTH_MAX {
        return Err(Failure::new("Failed", format!("`{}` is longer than {FILE_LENGTH_MAX} bytes", path.display())));
    }
    Ok(text)
}

/// The credentials of the command line, of stdin, or of the environment.
fn login(flag: Option<&str>, environment: &Environment) -> Result<Option<Login>, Failure> {
    let text = match flag {
        Some("-") => {
            let mut line = String::new();
            let mut stdin = std::io::stdin().lock().take(LOGIN_LENGTH_MAX);
            stdin.read_line(&mut line).map_err(|error| Failure::of(&error))?;
            Some(Secret::new(line.trim_end_matches(['\n', '\r'])))
        }
        Some(text) => Some(Secret::new(text)),
        None => environment.creds.clone(),
    };
    let Some(text) = text else { return Ok(None) };
    let (user, password) = text
        .expose()
        .split_once(':')
        .ok_or_else(|| Failure::new("InvalidArgument", "the credentials are not of the form USER:PASS"))?;
    Ok(Some(Login { user: user.into(), password: Some(Hidden(Secret::new(password))) }))
}

/// Asks for all images; one that fails does not keep the others from coming.
pub(super) async fn run(node: &Node, asked: Asked, format: Format) -> Result<ExitCode, Failure> {
    let screen = Screen::of_stderr(asked.quiet);
    for note in &asked.notes {
        screen.say(&format!("warning: {note}"));
    }
    let outcomes = stream::iter(asked.requests)
        .map(|request| pull(node, request, screen.clone()))
        .buffered(REQUESTS_AT_ONCE)
        .collect::<Vec<Result<Pulled, (String, Failure)>>>()
        .await;
    let (mut pulled, mut failures) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(one) => pulled.push(one),
            Err((image, failure)) => {
                complain(&failure);
                failures.push(json!({ "image": image, "failure": failure }));
            }
        }
    }
    let code = if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    print(format, &json!({ "images": pulled, "failures": failures }), |out| {
        pulled.iter().try_for_each(|one| writeln!(out, "{}", one.id))
    })?;
    Ok(code)
}

async fn pull(node: &Node, request: PullRequest, screen: Screen) -> Result<Pulled, (String, Failure)> {
    let image = request.image.clone();
    let shown = screen.show(&image);
    let outcome = node.ask(request, shown.steps.clone()).await;
    drop(shown);
    let pulled = outcome.map_err(|failure| (image, failure))?;
    screen.say(&told(&pulled));
    Ok(pulled)
}

fn told(pulled: &Pulled) -> String {
    let image = crate::output::printable(&pulled.image);
    if pulled.present {
        return format!("{image} is present");
    }
    let size = pulled.size.map_or_else(String::new, |size| format!(" ({})", ByteSize(size)));
    format!("{image} pulled{size} in {}.{:01}s", pulled.took_ms / 1000, pulled.took_ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_come_from_the_flag_or_the_environment_and_do_not_print() {
        let environment = Environment { creds: Some(Secret::new("env:pw:with:colons")), ..Environment::default() };
        let found = login(None, &environment).ok().flatten().expect("a login");
        assert_eq!(found.user, "env");
        assert_eq!(found.password.as_ref().map(|password| password.0.expose()), Some("pw:with:colons"));
        assert!(!format!("{found:?}").contains("pw"), "{found:?}");
        let flag = login(Some("bob:x"), &environment).ok().flatten().expect("a login");
        assert_eq!(flag.user, "bob");
        let failure = login(Some("hunter2"), &environment).expect_err("refused");
        assert!(!failure.to_string().contains("hunter2"));
    }

    #[test]
    fn what_was_done_is_told_in_a_line() {
        let pulled = Pulled { image: "a".into(), size: Some(1_500_000), took_ms: 2345, ..Pulled::default() };
        assert_eq!(told(&pulled), "a pulled (1.5MB) in 2.3s");
        assert_eq!(told(&Pulled { present: true, ..pulled }), "a is present");
    }
}
