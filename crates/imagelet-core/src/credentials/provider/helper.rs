//! Credential helpers of docker configurations: `docker-credential-NAME get`, `store` and `erase`, run like plugins.
//! Only the node's configuration can name a helper. A pull secret cannot, because a pod must not choose a program.

use std::{ffi::OsStr, path::PathBuf, time::Duration};

use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::{
    exec::{Output, Plugin, RunError, Variables, executable},
    redact::{redact, texts_of},
};
use crate::{
    credentials::{Credential, CredentialKind, Secret},
    printable::{one_line, printable_start},
    trusted_files,
};

const RUNS_MAX: usize = 8;
const NAME_LENGTH_MAX: usize = 64;
/// A helper that uses Docker's library prints this text if it has no credential for a server.
const NOT_FOUND: &str = "credentials not found in native keychain";
/// The user name in a response whose secret is an identity token.
const TOKEN_USER: &str = "<token>";

#[derive(Debug)]
pub(crate) struct CredentialHelpers {
    environment: Variables,
    limit: Duration,
    permits: Semaphore,
}

/// A helper failed. The text contains no secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelperError {
    #[error("the credential helper `{program}` is in no folder of the PATH of imagelet (`{path}`)")]
    Missing { program: String, path: String },
    #[error("{0}")]
    Failed(String),
}

impl CredentialHelpers {
    /// A helper gets only these variables.
    pub(crate) fn new(environment: Variables, limit: Duration) -> Self {
        Self { environment, limit, permits: Semaphore::new(RUNS_MAX) }
    }

    pub(crate) async fn ask(&self, name: &str, server: &str) -> Result<Option<Credential>, HelperError> {
        let (program, answer) = self.run(name, "get", server.as_bytes(), None).await?;
        credential(&program, answer)
    }

    pub(crate) async fn store(
        &self,
        name: &str,
        server: &str,
        user: &str,
        password: &Secret,
    ) -> Result<(), HelperError> {
        let entry = Entrusted { server, user, secret: password.expose() };
        let document = Zeroizing::new(serde_json::to_vec(&entry).unwrap_or_default());
        self.run(name, "store", &document, Some(password)).await.map(drop)
    }

    /// Removes the helper's credential for a server. Succeeds even if the helper has no such credential.
    pub(crate) async fn erase(&self, name: &str, server: &str) -> Result<(), HelperError> {
        self.run(name, "erase", server.as_bytes(), None).await.map(drop)
    }

    /// Runs a helper. Returns the program and the response. No error shows `secret`, which is a part of `input`.
    async fn run(
        &self,
        name: &str,
        act: &str,
        input: &[u8],
        secret: Option<&Secret>,
    ) -> Result<(String, Option<Answer>), HelperError> {
        if !is_name(name) {
            return Err(no_helper(name));
        }
        let program = format!("docker-credential-{name}");
        let folders = self.environment.0.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let folders = folders.unwrap_or_default();
        let found = tokio::task::spawn_blocking({
            let program = program.clone();
            move || find(&program, &folders)
        });
        let path = found.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        let environment = self.environment.clone();
        let plugin = Plugin { path, args: vec![act.to_owned()], environment, limit: self.limit };
        let _permit = self.permits.acquire().await.expect("nothing closes it");
        let answer = finish(&program, self.limit, plugin.run(input).await, secret)?;
        Ok((program, answer))
    }
}

fn no_helper(name: &str) -> HelperError {
    HelperError::Failed(format!("`{}` names no credential helper", printable_start(name, NAME_LENGTH_MAX)))
}

fn is_name(name: &str) -> bool {
    (1..=NAME_LENGTH_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn find(program: &str, folders: &OsStr) -> Result<PathBuf, HelperError> {
    for folder in std::env::split_paths(folders).filter(|folder| folder.is_absolute()) {
        if let Ok(path) = executable(&folder, program) {
            trusted_files::check_program(&path).map_err(|error| {
                let error = error.to_string().replace('\n', "; ");
                HelperError::Failed(format!("the credential helper `{program}` is not run: {error}"))
            })?;
            return Ok(path);
        }
    }
    Err(HelperError::Missing { program: program.to_owned(), path: folders.to_string_lossy().into_owned() })
}

#[derive(serde::Serialize)]
struct Entrusted<'a> {
    #[serde(rename = "ServerURL")]
    server: &'a str,
    #[serde(rename = "Username")]
    user: &'a str,
    #[serde(rename = "Secret")]
    secret: &'a str,
}

type Answer = Zeroizing<Vec<u8>>;

/// The result of a run: the response, or `None` if the helper has no credential for the server.
fn finish(
    program: &str,
    limit: Duration,
    output: Output,
    secret: Option<&Secret>,
) -> Result<Option<Answer>, HelperError> {
    let answer = Zeroizing::new(output.stdout);
    let text = match output.result {
        Ok(()) => return Ok(Some(answer)),
        Err(_) if answer.trim_ascii() == NOT_FOUND.as_bytes() => return Ok(None),
        Err(RunError::TimedOut) => format!("did not answer within {} s", limit.as_secs_f32()),
        Err(error) => {
            let known = texts_of(&answer);
            let complaint = Zeroizing::new([&answer[..], &output.stderr].join(&b' '));
            let text = redact(&complaint, known.iter().chain(secret).map(Secret::expose));
            let line = one_line(text.trim());
            let said = if line.is_empty() { line } else { format!(": {line}") };
            format!("failed: {error}{said}")
        }
    };
    Err(HelperError::Failed(format!("the credential helper `{program}` {text}")))
}

#[derive(serde::Deserialize)]
struct HelperCredential {
    #[serde(rename = "Username", default)]
    username: String,
    #[serde(rename = "Secret", default)]
    secret: Zeroizing<String>,
}

fn credential(program: &str, answer: Option<Answer>) -> Result<Option<Credential>, HelperError> {
    let Some(answer) = answer else { return Ok(None) };
    let HelperCredential { username, secret } = serde_json::from_slice(&answer).map_err(|_| {
        let wanted = "answered with no JSON object of `Username` and `Secret`";
        HelperError::Failed(format!("the credential helper `{program}` {wanted}"))
    })?;
    let secret = Secret::new(secret.as_str());
    Ok(match username.as_str() {
        _ if secret.expose().is_empty() => None,
        TOKEN_USER => Some(Credential { kind: CredentialKind::IdentityToken(secret), server_address: String::new() }),
        user => Some(Credential::basic("", user, secret)),
    })
}

#[cfg(feature = "fuzzing")]
pub fn helper_answer(stdout: &[u8], stderr: &[u8], succeeds: bool) -> Result<Option<Credential>, String> {
    let result = if succeeds { Ok(()) } else { Err(RunError::TooLong) };
    let output = Output { stdout: stdout.to_vec(), stderr: stderr.to_vec(), result };
    let answer = finish("docker-credential-x", Duration::from_secs(1), output, None);
    answer.and_then(|answer| credential("docker-credential-x", answer)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn ran(code: i32, stdout: &str, stderr: &str) -> Result<Option<Credential>, String> {
        let status = std::process::ExitStatus::from_raw(code << 8);
        let result = if code == 0 { Ok(()) } else { Err(RunError::Failed(status)) };
        let output = Output { stdout: stdout.into(), stderr: stderr.into(), result };
        let answer = finish("docker-credential-x", Duration::from_secs(1), output, None);
        answer.and_then(|answer| credential("docker-credential-x", answer)).map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_is_a_credential_a_token_or_nothing() {
        let basic = Credential::basic("", "u", Secret::new("p"));
        let token = Credential { kind: CredentialKind::IdentityToken(Secret::new("t")), server_address: String::new() };
        for (stdout, wanted) in [
            (r#"{"ServerURL":"r.io","Username":"u","Secret":"p"}"#, Some(basic)),
            (r#"{"ServerURL":"r.io","Username":"<token>","Secret":"t"}"#, Some(token)),
            (r#"{"Username":"","Secret":""}"#, None),
            ("{}", None),
        ] {
            assert_eq!(ran(0, stdout, ""), Ok(wanted), "{stdout}");
        }
        assert_eq!(ran(1, "credentials not found in native keychain\n", ""), Ok(None));
    }

    #[test]
    fn a_complaint_names_the_helper_and_shows_no_secret() {
        for (code, stdout, stderr, wanted) in [
            (0, "hello", "", "answered with no JSON object"),
            (0, r#"{"Username":5,"Secret":"hunter2-hunter2"}"#, "", "answered with no JSON object"),
            (1, "", "token=hunter2-hunter2 expired\nlog in", "exit status 1: token=[redacted] expired log in"),
            (2, r#"{"Secret":"hunter2-hunter2"}"#, "hunter2-hunter2", "exit status 2"),
            (3, "", "", "failed: exit status 3"),
        ] {
            let message = ran(code, stdout, stderr).expect_err("a failure");
            assert!(message.contains(wanted) && message.contains("`docker-credential-x`"), "{message}");
            assert!(!message.contains("hunter2") && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_helper_that_knows_no_login_has_forgotten_it_and_its_name_is_shown_plainly() {
        let status = std::process::ExitStatus::from_raw(1 << 8);
        let confirmed = |stdout: &str| {
            let output = Output { stdout: stdout.into(), stderr: Vec::new(), result: Err(RunError::Failed(status)) };
            finish("docker-credential-x", Duration::from_secs(1), output, None).is_ok()
        };
        assert!(confirmed("credentials not found in native keychain\n"));
        assert!(!confirmed("locked"));
        let refused = no_helper("a\tb\u{1b}[1m\u{202e}").to_string();
        assert!(refused.contains("`a?b?[1m?`"), "{refused}");
    }

    #[tokio::test]
    async fn a_name_that_leaves_its_folder_is_refused_and_one_that_is_nowhere_is_named() {
        let variables = Variables(vec![("PATH".into(), "/nonexistent:relative".into())]);
        let helpers = CredentialHelpers::new(variables, Duration::from_secs(1));
        for name in ["", "../sh", "a/b", "a b", &"x".repeat(65), "ü"] {
            let message = helpers.ask(name, "r.io").await.expect_err("refused").to_string();
            assert!(message.ends_with("names no credential helper"), "{message}");
        }
        let message = helpers.ask("ecr-login", "r.io").await.expect_err("missing").to_string();
        assert!(
            message.contains("`docker-credential-ecr-login`") && message.contains("`/nonexistent:relative`"),
            "{message}"
        );
    }
}
