//! `login` and `logout`, and the pull between them, at a registry that wants a login.

use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, process::Stdio};

use serde_json::Value;

use crate::{
    images::Image,
    program::{Outcome, program, run},
    testbed::{Registry, scratch},
};

const USER: &str = "robot";
const PASSWORD: &str = "open-sesame-23";

fn log_in(home: &std::path::Path, registry: &str, password: &str) -> Outcome {
    let mut command = program();
    command.env("HOME", home).args(["login", "-u", USER, "--password-stdin", registry]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    writeln!(writer, "{password}").unwrap();
    drop(writer);
    run(command.stdin(Stdio::from(reader)))
}

#[test]
fn a_login_is_kept_when_the_registry_accepts_it_and_opens_pulls_until_the_logout() {
    let (registry, folder) = (Registry::start_with_login(&format!("{USER}:{PASSWORD}")), scratch());
    let image = registry.push("private:v1", &Image::marked("private", 1000));
    let (home, file) = (folder.path(), folder.path().join(".docker/config.json"));
    let pull = || {
        let mut command = program();
        command
            .env("HOME", home)
            .arg("--store")
            .arg(home.join("store"))
            .args(["pull", "-q", "--policy", "Always", &image]);
        run(&mut command)
    };
    pull().refused(&["without a credential"]);

    let refused = log_in(home, &registry.address(), "wrong-word-1").refused(&["no login", "does not accept"]);
    assert!(!refused.contains("wrong-word-1"), "{refused}");
    assert!(!file.exists(), "a rejected login is kept nowhere");

    let accepted = log_in(home, &format!("http://{}/v2/", registry.address()), PASSWORD);
    assert!(accepted.stderr.contains("not encrypted") && !accepted.stderr.contains(PASSWORD), "{}", accepted.stderr);
    assert_eq!(accepted.ok(), format!("Login for {} succeeded.\n", registry.address()));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(document["auths"][registry.address()]["auth"].is_string(), "{document}");
    pull().ok();

    let log_out = || run(program().env("HOME", home).args(["logout", "-o", "json", &registry.address()])).json();
    assert_eq!(log_out()["removed"], true);
    assert_eq!(log_out()["removed"], false);
    pull().refused(&["without a credential"]);
}

#[test]
fn a_login_without_a_terminal_or_with_a_path_in_the_registry_is_refused_with_the_way() {
    run(program().env("HOME", "/nonexistent").args(["login", "r.example"]))
        .refused(&["no terminal", "--password-stdin"]);
    run(program().args(["login", "-u", "a", "--password-stdin", "r.example/team"])).refused(&["names no registry"]);
}
