//! `imagelet pull` of an operator beside pods: what holds pods back does not hold it back, and its outcome counts.

use std::fs;

use serde_json::Value;

use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::Image,
    program::{Daemon, write_store_config},
    testbed::scratch,
};

#[test]
fn a_command_asks_a_registry_that_pods_wait_for_and_its_success_lets_them_in() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let image = Image::marked("by hand", 3000);
    let name = registry.put("team/app:v1", &image);
    let limited = Answer { retry_after: Some("86400"), ..Answer::status(503, "{}") };
    registry.answer("/v2/team/app/manifests/v1", limited);
    let store = format!("directory: {}", folder.path().join("store").display());
    let daemon = Daemon::start(folder.path(), ["--config", &write_store_config(folder.path(), &store)]);
    let secret = folder.path().join("secret.yaml");
    let auths = format!(r#"{{"auths": {{"{}": {{"username": "u", "password": "p"}}}}}}"#, registry.name(""));
    let text = format!(
        "kind: Secret\nmetadata: {{name: login}}\ntype: kubernetes.io/dockerconfigjson\n\
         stringData: {{.dockerconfigjson: '{auths}'}}\n"
    );
    fs::write(&secret, text).unwrap();
    // A registry's wait holds for one account, a circuit for all: each account here meets the wait once.
    let pod = |pod: &str, logs_in: bool| {
        let path = folder.path().join(format!("{pod}.yaml"));
        let login = if logs_in { "  imagePullSecrets: [{name: login}]\n" } else { "" };
        let text = format!(
            "kind: Pod\nmetadata: {{name: {pod}, uid: {pod}}}\nspec:\n{login}  containers:\n  \
             - {{name: app, image: '{name}', imagePullPolicy: Always}}\n"
        );
        fs::write(&path, text).unwrap();
        let (path, secret) = (path.to_str().unwrap(), secret.to_str().unwrap());
        let secrets = if logs_in { &["--secret", secret][..] } else { &[] };
        let outcome = daemon.run([&["ensure", "-o", "json", "-f", path], secrets].concat());
        let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let row = &answer["pods"][0]["images"][0];
        [&row["reason"], &row["message"]].map(|text| text.as_str().unwrap().to_owned())
    };
    assert_eq!(pod("first", true)[0], "RegistryUnavailable");
    let [reason, message] = pod("second", false);
    assert_eq!(reason, "ImagePullBackOff", "{message}");

    // A command is let through at once, and what it meets counts.
    let asked = || registry.requests().iter().filter(|request| request.ends_with("/manifests/v1")).count();
    let before = asked();
    daemon.run(["pull", "-q", "--creds", "operator:p", &name]).refused(&["answered 503"]);
    assert!(asked() > before, "the command did not ask the registry");

    // A day is cut to five minutes, and the row names no image: a circuit is everybody's.
    let status = daemon.run(["status", "-o", "json"]).json();
    let row = &status["registries"][0];
    assert_eq!(
        (&row["registry"], &row["class"]),
        (&registry.name("").trim_end_matches('/').into(), &"registry-failed".into())
    );
    let remaining = row["remainingSeconds"].as_u64().unwrap_or_default();
    assert!((240..=300).contains(&remaining), "{row:#}");
    assert!(row["nextAttemptAt"].as_str().is_some_and(|at| at.ends_with('Z')) && !row.to_string().contains("team"));
    let text = daemon.run(["status"]).ok();
    assert!(text.contains("REGISTRY") && text.contains("registry-failed"), "{text}");

    registry.put("team/app:v1", &image);
    assert_eq!(pod("second", false)[0], "ImagePullBackOff", "a pod still waits");
    assert_eq!(daemon.run(["pull", "-q", &name]).ok().trim(), image.id());
    let status = daemon.run(["status", "-o", "json"]).json();
    assert_eq!(status["registries"].to_string(), "[]");
    assert_eq!([pod("first", false)[0].as_str(), pod("second", false)[0].as_str()], ["", ""]);
}
