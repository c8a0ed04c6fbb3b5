//! `login` and `logout`: manage logins in the docker configuration that pulls read.

use std::{
    io::{BufRead, IsTerminal as _, Read as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use imagelet_core::{
    credentials::{Credential, DockerLogins, LoginPlace, Secret, registry_host},
    image::DOCKER_HUB,
    printable::printable,
    text::duration_text,
};
use imagelet_node::{config::Settings, failure::Failure, serve::HELPER_MAX};
use imagelet_oci::{LoginCheck, check_login};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::json;
use tokio::sync::oneshot;

use super::{LOGIN_LENGTH_MAX, secret_of};
use crate::{
    cli::RegistryLoginArgs,
    commands::images_write::note,
    output::print,
    sources::{Context, command_sources},
};

pub(crate) async fn log_in(arguments: RegistryLoginArgs, context: &Context) -> Result<ExitCode, Failure> {
    let registry = registry_host(arguments.registry.as_deref().unwrap_or(DOCKER_HUB))?;
    let settings = command_sources(context)?.settings()?;
    let logins = logins(&settings)?;
    let user = match arguments.username {
        Some(user) => user,
        None => question("Username: ", false).await?.expose().to_owned(),
    };
    let password = if arguments.password_stdin {
        from_stdin(|stdin, text| stdin.read_to_end(text)).await?
    } else {
        question("Password: ", true).await?
    };
    if user.is_empty() || password.expose().is_empty() {
        return Err(Failure::invalid("a login has a user and a password, and neither is empty"));
    }
    let credential = Credential::basic(registry.clone(), &user, password.clone());
    let patience = context.global.timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(Duration::MAX);
    let checked =
        tokio::time::timeout(patience, check_login(settings.images.registry.clone(), &registry, &credential)).await;
    let checked = checked.map_err(|_| {
        let why = format!("no login for `{registry}` was kept: no answer within {}", duration_text(patience));
        Failure::new("TimedOut", why)
    })?;
    let checked = checked.map_err(|error| {
        let fault = error.fault();
        Failure::because(format!("no login for `{registry}` was kept"), &error).at(fault.class, fault.stage)
    })?;
    if checked == LoginCheck::NotAsked {
        note(&format!("warning: `{registry}` asks for no credential, so that the login could not be checked"));
    }
    let place = logins.store(&registry, &user, &password).await?;
    let kept = match place {
        LoginPlace::Helper(program) => program,
        LoginPlace::File(path) => {
            let kept = path.display().to_string();
            note(&format!(
                "note: the password is kept in `{kept}`, not encrypted; a credential helper (`credsStore`) would hide it"
            ));
            kept
        }
    };
    Ok(print(context.global.output, &json!({ "registry": registry, "keptIn": kept }), |out| {
        writeln!(out, "Login for {registry} succeeded.")
    })?)
}

pub(crate) async fn log_out(registry: Option<&str>, context: &Context) -> Result<ExitCode, Failure> {
    let registry = registry_host(registry.unwrap_or(DOCKER_HUB))?;
    let removed = logins(&command_sources(context)?.settings()?)?.erase(&registry).await?;
    Ok(print(context.global.output, &json!({ "registry": registry, "removed": removed }), |out| {
        if removed {
            writeln!(out, "The login for {registry} was removed.")
        } else {
            writeln!(out, "There was no login for {registry}.")
        }
    })?)
}

fn logins(settings: &Settings) -> Result<DockerLogins, Failure> {
    let path = settings.docker_config_of_command().ok_or_else(|| {
        Failure::invalid("no docker configuration is known to keep the login in")
            .or_hint("set HOME, DOCKER_CONFIG, or `credentials.dockerConfig` in the file that IMAGELET_CONFIG names")
    })?;
    Ok(DockerLogins::new(path, settings.environment.variables.clone(), HELPER_MAX))
}

/// Reads stdin in a separate thread, which may block until the process ends. The command need not wait for it.
async fn from_stdin(
    read: impl FnOnce(&mut dyn BufRead, &mut Vec<u8>) -> std::io::Result<usize> + Send + 'static,
) -> Result<Secret, Failure> {
    let (sender, answer) = oneshot::channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock().take(LOGIN_LENGTH_MAX);
        let _ = sender.send(secret_of(|text| read(&mut stdin, text)));
    });
    Ok(answer.await??)
}

/// `is_hidden` hides the typed answer until the future has ended or is dropped.
async fn question(text: &str, is_hidden: bool) -> Result<Secret, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::invalid("stdin is no terminal to ask for user and password")
            .or_hint("give both: `-u USER --password-stdin`"));
    }
    let _echo = is_hidden.then(HiddenInput::start).transpose()?;
    let mut stderr = std::io::stderr();
    write!(stderr, "{}", printable(text)).and_then(|()| stderr.flush())?;
    let answer = from_stdin(|stdin, line| stdin.read_until(b'\n', line)).await?;
    if is_hidden {
        drop(writeln!(stderr));
    }
    Ok(answer)
}

struct HiddenInput(Termios);

impl HiddenInput {
    fn start() -> std::io::Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // The call fails if the terminal has been closed. Then there is nothing to restore.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}
