//! `login` and `logout`: logins in the docker configuration that pulls read.

use std::{
    io::{BufRead as _, IsTerminal as _, Read as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use imagelet_core::credentials::{Credential, DockerLogins, LoginPlace, Secret, registry_host};
use imagelet_oci::{LoginCheck, check_login};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    cli::{Global, RegistryLoginArgs, ServeArgs},
    commands::{images_write::note, interrupted},
    config::{Environment, Settings},
    failure::Failure,
    output::{print, printable},
    serve::sources,
};

const DEFAULT_REGISTRY: &str = "docker.io";
/// Time limit of a credential helper, which may ask the user.
const HELPER_MAX: Duration = Duration::from_mins(1);
const LINE_LENGTH_MAX: u64 = 64 << 10;

pub(crate) async fn log_in(
    arguments: RegistryLoginArgs,
    global: &Global,
    environment: &Environment,
) -> Result<ExitCode, Failure> {
    let registry = registry_host(arguments.registry.as_deref().unwrap_or(DEFAULT_REGISTRY))?;
    let settings = settings(global, environment)?;
    let logins = logins(&settings)?;
    let asked = async {
        let user = match arguments.username {
            Some(user) => user,
            None => question("Username: ", false).await?.expose().to_owned(),
        };
        let password = if arguments.password_stdin { whole_stdin()? } else { question("Password: ", true).await? };
        Ok::<_, Failure>((user, password))
    };
    let (user, password) = tokio::select! {
        asked = asked => asked?,
        code = interrupted() => return Ok(code),
    };
    if user.is_empty() || password.expose().is_empty() {
        return Err(Failure::new("InvalidArgument", "a login has a user and a password, and neither is empty"));
    }
    let credential = Credential::basic(registry.clone(), &user, password.clone());
    let checked = check_login(settings.registry.clone(), &registry, &credential).await.map_err(|error| {
        let fault = error.fault();
        Failure::because(format!("no login for `{registry}` was kept"), &error).at(fault.class, fault.hop)
    })?;
    if checked == LoginCheck::NotAsked {
        note(&format!("warning: `{registry}` asks for no credential, so that the login could not be checked"));
    }
    let place = logins.store(&registry, &user, &password).await?;
    let (kept, is_plain) = match &place {
        LoginPlace::File(path) => (path.display().to_string(), true),
        LoginPlace::Helper(program) => (program.clone(), false),
    };
    if is_plain {
        note(&format!(
            "note: the password is kept in `{kept}`, not encrypted; a credential helper (`credsStore`) would hide it"
        ));
    }
    Ok(print(global.output, &json!({ "registry": registry, "keptIn": kept }), |out| {
        writeln!(out, "Login for {registry} succeeded.")
    })?)
}

pub(crate) async fn log_out(
    registry: Option<&str>,
    global: &Global,
    environment: &Environment,
) -> Result<ExitCode, Failure> {
    let registry = registry_host(registry.unwrap_or(DEFAULT_REGISTRY))?;
    let removed = logins(&settings(global, environment)?)?.erase(&registry).await?;
    Ok(print(global.output, &json!({ "registry": registry, "removed": removed }), |out| {
        if removed {
            writeln!(out, "The login for {registry} was removed.")
        } else {
            writeln!(out, "There was no login for {registry}.")
        }
    })?)
}

fn settings(global: &Global, environment: &Environment) -> Result<Settings, Failure> {
    let arguments = ServeArgs { config: environment.config.clone(), ..ServeArgs::default() };
    Ok(sources(&arguments, global.store.as_ref(), environment)?.settings()?)
}

/// The file that a pull of a command reads.
fn logins(settings: &Settings) -> Result<DockerLogins, Failure> {
    let Environment { home, docker_config, variables, .. } = &settings.environment;
    let configured = settings.docker_config.as_ref().or(docker_config.as_ref()).cloned();
    let path = configured.or_else(|| home.as_ref().map(|home| home.join(".docker/config.json")));
    let path: PathBuf = path.ok_or_else(|| {
        Failure::new("InvalidArgument", "no docker configuration is known to keep the login in")
            .or_hint("set HOME, DOCKER_CONFIG, or `credentials.dockerConfig` in the file that IMAGELET_CONFIG names")
    })?;
    Ok(DockerLogins::new(path, variables.0.clone(), HELPER_MAX))
}

/// All of stdin, without the line end that tools write.
fn whole_stdin() -> Result<Secret, Failure> {
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    std::io::stdin().lock().take(LINE_LENGTH_MAX).read_to_end(&mut bytes)?;
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    Ok(Secret::from_bytes(std::mem::take(&mut *bytes)))
}

/// Asks on a terminal. Dropping the future restores the terminal; the thread that reads ends with the process.
async fn question(text: &str, is_hidden: bool) -> Result<Secret, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::new("InvalidArgument", "stdin is no terminal to ask for user and password")
            .or_hint("give both: `-u USER --password-stdin`"));
    }
    let _echo = is_hidden.then(HiddenInput::start).transpose()?;
    let mut stderr = std::io::stderr();
    write!(stderr, "{}", printable(text)).and_then(|()| stderr.flush())?;
    let (sender, answer) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = zeroize::Zeroizing::new(Vec::new());
        let read = std::io::stdin().lock().take(LINE_LENGTH_MAX).read_until(b'\n', &mut line);
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
        let _ = sender.send(read.map(|_| Secret::from_bytes(std::mem::take(&mut *line))));
    });
    let answer = answer.await.map_err(|error| Failure::of(&error))??;
    if is_hidden {
        drop(writeln!(stderr));
    }
    Ok(answer)
}

/// A terminal that does not show what is typed, until this is dropped.
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
        // The terminal may have gone; nothing is left to restore then.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}
