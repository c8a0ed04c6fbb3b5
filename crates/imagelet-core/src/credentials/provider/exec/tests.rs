//! Runs of real scripts, good and bad.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, SystemTime},
};

use imagelet_vectors::vectors;
use rustix::process::test_kill_process;

use super::*;

struct Script {
    folder: tempfile::TempDir,
    plugin: Plugin,
}

const ANSWER: &str = r#"{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1"}"#;

impl Script {
    fn new(body: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugin");
        fs::write(&path, format!("#!/bin/sh\ncd '{}'\n{body}", folder.path().display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let path_variable = ("PATH".into(), "/usr/bin:/bin".into());
        let plugin = Plugin {
            path,
            args: Vec::new(),
            environment: Variables(vec![path_variable]),
            limit: Duration::from_secs(20),
        };
        Self { folder, plugin }
    }

    fn limited(mut self, limit: Duration) -> Self {
        self.plugin.limit = limit;
        self
    }

    async fn id(&self, name: &str) -> Pid {
        for _ in 0..1000 {
            let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            if let Some(id) = text.strip_suffix('\n').and_then(|text| text.parse().ok()).and_then(Pid::from_raw) {
                return id;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("the script wrote no `{name}`");
    }

    /// Waits until a process has exited; its other parent may reap it later.
    async fn gone(&self, name: &str) {
        let id = self.id(name).await;
        for _ in 0..500 {
            if test_kill_process(id).is_err() || is_zombie_of_another(id) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{name} {id:?} outlives its plugin");
    }
}

/// Whether it is dead and not yet reaped by another parent.
fn is_zombie_of_another(id: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
    let mut fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default().split(' ');
    let (state, parent) = (fields.next(), fields.next());
    state == Some("Z") && parent != Some(&std::process::id().to_string())
}

/// Whether this process has an unreaped child with this id.
fn is_our_zombie(id: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
    stat.contains(") Z ") && !is_zombie_of_another(id)
}

fn error(output: &Output) -> String {
    output.result.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

#[tokio::test]
async fn a_plugin_gets_its_question_arguments_and_environment_and_is_heard() {
    let mut script = Script::new("cat; echo \"$0 $*\" >&2; env >&2; exit 3");
    script.plugin.args = vec!["--v=5".into(), "a b".into()];
    script.plugin.environment.0.extend([("FOO".into(), "1".into()), ("FOO".into(), "2".into())]);
    let output = script.plugin.run(b"{\"image\":\"a\"}\n").await;
    assert_eq!(output.stdout, b"{\"image\":\"a\"}\n");
    assert_eq!(error(&output), "exit status 3");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with(&format!("{} --v=5 a b\n", script.plugin.path.display())), "{stderr}");
    let mut variables: Vec<&str> = stderr.lines().skip(1).filter(|line| !line.starts_with(['_', 'S', 'O'])).collect();
    variables.sort_unstable();
    assert_eq!(variables[0], "FOO=2", "the last one wins");
    assert!(
        variables[1].starts_with("PATH=") || variables[1].starts_with("PWD="),
        "nothing else is inherited: {stderr}"
    );
}

#[tokio::test]
async fn every_environment_vector_holds() {
    let mut cases = 0;
    for case in vectors("pull-credential-provider-exec.json") {
        let Some(expected) = case["expected"]["child_environment"].as_array() else { continue };
        let pairs = |key: &str| -> Vec<(String, String)> {
            let list = case["input"][key].as_array().expect("a list");
            let pair = |value: &serde_json::Value| {
                let (name, value) = value.as_str().expect("a text").split_once('=').expect("a pair");
                (name.to_owned(), value.to_owned())
            };
            list.iter().map(pair).collect()
        };
        let process = Variables(
            pairs("process_environment").into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        );
        let own: Vec<Variable> =
            pairs("provider_environment").into_iter().map(|(name, value)| Variable { name, value }).collect();
        let found: Vec<serde_json::Value> = process
            .with(&own)
            .0
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()).into())
            .collect();
        assert_eq!(&found, expected, "{}", case["name"]);
        cases += 1;
    }
    assert_eq!(cases, 4);
}

#[tokio::test]
async fn a_plugin_that_takes_too_long_ends_with_all_its_children() {
    let script = Script::new("sleep 600 & echo $! > child; echo $$ > leader; echo waiting >&2; sleep 600");
    let script = script.limited(Duration::from_millis(500));
    let began = std::time::SystemTime::now();
    let output = script.plugin.run(b"").await;
    assert_eq!(error(&output), "context deadline exceeded");
    assert_eq!(output.stderr, b"waiting\n");
    assert!(began.elapsed().unwrap() < Duration::from_secs(10));
    script.gone("child").await;
    script.gone("leader").await;
}

#[tokio::test]
async fn a_child_that_left_the_group_and_holds_the_output_is_not_waited_for() {
    let script = Script::new("setsid sleep 3 & echo $$ > leader; sleep 600").limited(Duration::from_millis(300));
    let began = SystemTime::now();
    let output = script.plugin.run(b"").await;
    assert_eq!(error(&output), "context deadline exceeded");
    assert!(began.elapsed().unwrap() < Duration::from_millis(2500), "{:?}", began.elapsed());
    script.gone("leader").await;
}

#[tokio::test]
async fn an_answer_is_taken_when_its_plugin_ends_though_others_hold_the_output() {
    let script = Script::new(&format!("sleep 600 & echo $! > child; echo '{ANSWER}'"));
    let began = SystemTime::now();
    let output = script.plugin.run(b"").await;
    assert_eq!(error(&output), "");
    assert_eq!(output.stdout, format!("{ANSWER}\n").as_bytes());
    assert!(began.elapsed().unwrap() < Duration::from_secs(10));
    script.gone("child").await;
}

#[tokio::test]
async fn half_an_answer_is_waited_for_until_it_is_whole() {
    let (half, rest) = ANSWER.split_at(20);
    let script = Script::new(&format!("(sleep 1; printf '%s' '{rest}'; sleep 600) & printf '%s' '{half}'"));
    let output = script.plugin.run(b"").await;
    assert_eq!(String::from_utf8(output.stdout).unwrap(), ANSWER);
    assert!(output.result.is_ok());
}

#[tokio::test]
async fn a_failure_is_reported_though_others_hold_the_output() {
    let script = Script::new("sleep 600 & echo broken >&2; exit 4");
    let began = SystemTime::now();
    let output = script.plugin.run(b"").await;
    assert_eq!(error(&output), "exit status 4");
    assert_eq!(output.stderr, b"broken\n");
    assert!(began.elapsed().unwrap() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_plugin_that_does_not_read_is_no_reason_to_hang() {
    let question = vec![b'x'; 4 << 20];
    let closing = Script::new(&format!("exec 0<&-; sleep 0.2; echo '{ANSWER}'"));
    let output = closing.plugin.run(&question).await;
    assert_eq!((error(&output).as_str(), output.stdout.len()), ("", ANSWER.len() + 1));
    let ignoring = Script::new(&format!("echo '{ANSWER}'"));
    assert_eq!(error(&ignoring.plugin.run(&question).await), "");
    let sleeping = Script::new("sleep 600").limited(Duration::from_millis(300));
    assert_eq!(error(&sleeping.plugin.run(&question).await), "context deadline exceeded");
}

#[tokio::test]
async fn an_endless_answer_is_cut_off_and_an_endless_complaint_is_read_and_dropped() {
    let script = Script::new("echo $$ > leader; yes");
    let output = script.plugin.run(b"").await;
    assert_eq!(error(&output), "standard output is longer than 1.05MB");
    script.gone("leader").await;

    let script = Script::new(&format!("yes | head -c 3000000 >&2; echo '{ANSWER}'"));
    let output = script.plugin.run(b"").await;
    assert_eq!((error(&output).as_str(), output.stderr.len()), ("", STDERR_LENGTH_MAX));
}

#[tokio::test]
async fn a_plugin_that_crashes_or_cannot_start_is_reported_as_go_does() {
    assert_eq!(error(&Script::new("kill -9 $$").plugin.run(b"").await), "signal: killed");
    assert_eq!(error(&Script::new("kill -TERM $$").plugin.run(b"").await), "signal: terminated");
    let mut script = Script::new("");
    fs::set_permissions(&script.plugin.path, fs::Permissions::from_mode(0o644)).unwrap();
    let path = script.plugin.path.display().to_string();
    assert_eq!(error(&script.plugin.run(b"").await), format!("fork/exec {path}: permission denied"));
    script.plugin.path.push("none");
    assert_eq!(error(&script.plugin.run(b"").await), format!("fork/exec {path}/none: not a directory"));
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_plugin_and_children_along_and_leaves_no_zombie() {
    let script = Script::new("sleep 600 & echo $! > child; echo $$ > leader; sleep 600");
    let leader = {
        let mut run = pin!(script.plugin.run(b""));
        tokio::select! {
            _ = &mut run => panic!("it waits"),
            leader = async { script.id("child").await; script.id("leader").await } => leader,
        }
    };
    script.gone("child").await;
    script.gone("leader").await;
    for _ in 0..500 {
        if !is_our_zombie(leader) {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{leader:?} is a zombie");
}

#[tokio::test]
async fn a_program_that_is_still_open_for_writing_is_tried_again() {
    let script = Script::new("echo done");
    let writer = fs::File::options().append(true).open(&script.plugin.path).unwrap();
    let child = script.plugin.start();
    // The first try fails; then the writer is gone.
    let (child, ()) = tokio::join!(child, async { drop(writer) });
    assert!(child.unwrap().wait().await.unwrap().success());
    let absent = Plugin { path: script.folder.path().join("absent"), ..script.plugin };
    assert!(matches!(absent.start().await, Err(RunError::Start { .. })));
}
