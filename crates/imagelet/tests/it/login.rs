//! `login` and `logout`, and the pull between them, at a registry that wants a login.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
};

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
fn a_login_at_a_registry_that_does_not_answer_ends_by_a_signal_and_in_the_time_given() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let registry = silent.local_addr().unwrap().to_string();
    let log_in = |options: &[&str]| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writeln!(writer, "{PASSWORD}").unwrap();
        drop(writer);
        let mut command = program();
        command.args(options).args(["login", "-u", USER, "--password-stdin", &registry]).stdin(Stdio::from(reader));
        command
    };
    run(&mut log_in(&["--timeout", "1s"])).refused(&["no login", "no answer within 1s"]);
    let (_first, _) = silent.accept().unwrap();

    let mut child = log_in(&[]).spawn().unwrap();
    let (mut asked, _) = silent.accept().unwrap();
    assert!(asked.read(&mut [0; 1024]).unwrap() > 0);
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_login_whose_password_does_not_come_ends_by_a_signal() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut command = program();
    command.args(["login", "-u", USER, "--password-stdin", "127.0.0.1:1"]).stdin(Stdio::from(reader));
    let mut child = command.spawn().unwrap();
    let process = rustix::process::Pid::from_child(&child);
    // It catches the signal once it waits; before that the signal ends it as well.
    let status = loop {
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert!(!status.success());
}

#[test]
fn a_login_without_a_terminal_or_with_a_path_in_the_registry_is_refused_with_the_way() {
    run(program().env("HOME", "/nonexistent").args(["login", "r.example"]))
        .refused(&["no terminal", "--password-stdin"]);
    run(program().args(["login", "-u", "a", "--password-stdin", "r.example/team"])).refused(&["names no registry"]);
}
