//! What people type who know docker: templates, filters, moments, and the tabulator key.

use std::process::Command;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, program, run, with_store},
    testbed::{scratch, wait_until},
};

#[test]
fn images_are_listed_by_template_and_by_filter() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let web = registry.put("team/web:v1", &Image::marked("web", 1000).labelled("org.example.kind", "test"));
    let job = registry.put("job:v2", &Image::marked("job", 1000));
    let store = folder.path().join("store");
    with_store(&store, ["pull", &web, &job]).ok();
    with_store(&store, ["pin", &job]).ok();
    let listed = |arguments: &[&str]| with_store(&store, ["images"].iter().chain(arguments)).ok();
    assert_eq!(listed(&["--format", "{{.Repository}}:{{.Tag}}"]), format!("{job}\n{web}\n"));
    assert_eq!(
        listed(&["--format", "{{.Tag}}", "--filter", &format!("reference={}", web.trim_end_matches(":v1"))]),
        "v1\n"
    );
    assert_eq!(listed(&["--format", "{{.Tag}}", "--filter", "pinned=true"]), "v2\n");
    assert_eq!(listed(&["--format", "{{.Tag}}", "--filter", "dangling=true"]), "");
    assert_eq!(listed(&["-q", "--filter", "unused=true"]).lines().count(), 2);
    assert!(listed(&["--format", "table {{.Tag}}\\t{{.Size}}"]).starts_with("TAG   SIZE\nv2    "));
    let rows = listed(&["--format", "json"]);
    let row: serde_json::Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!((row["Tag"].as_str(), rows.lines().count()), (Some("v2"), 2), "{rows}");
    with_store(&store, ["ls", "--format", "{{.Repositories}}"]).refused(&[
        "no field `.Repositories`",
        "`.Repository` is near",
        "hint: ",
    ]);

    let inspected = |template: &str| with_store(&store, ["inspect", "--format", template, &web]).ok();
    assert_eq!(inspected("{{.Config.Labels}}"), "{\"org.example.kind\":\"test\"}\n");
    assert_eq!(inspected("{{json .Config.Volumes}}"), "null\n", "a field that the configuration leaves out");
    with_store(&store, ["inspect", "--format", "{{.Config.Wrong}}", &web]).refused(&["no field `.Config.Wrong`"]);
    assert_eq!(inspected("{{.Architecture}} {{join .RepoTags \",\"}}"), format!("amd64 {web}\n"));
}

#[test]
fn events_and_the_history_of_an_image_begin_at_a_moment() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let web = registry.put("web:v1", &Image::marked("web", 1000));
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    daemon.run(["pull", &web]).ok();
    let reasons = |since: &str| daemon.run(["events", "--since", since, "--format", "{{.reason}}"]).ok();
    assert!(reasons("1h").lines().any(|reason| reason == "Pulled"), "{}", reasons("1h"));
    assert_eq!(reasons("2100-01-01T00:00:00Z"), "");
    let history = |since: &str| {
        let why = daemon.run(["why", "--since", since, "-o", "json", &web]).json();
        why["images"][0]["history"].as_array().unwrap().len()
    };
    assert!(history("1h") > 0);
    assert_eq!(history("2100-01-01T00:00:00Z"), 0);
    let text = daemon.run(["why", "--since", "2100-01-01T00:00:00Z", &web]).ok();
    assert!(text.contains("Nothing happened") && text.contains("present"), "{text}");
}

#[test]
fn bash_completes_commands_and_the_names_of_images_behind_a_colon() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let web = registry.put("team/web:v1", &Image::marked("web", 1000));
    let store = folder.path().join("store");
    with_store(&store, ["pull", &web]).ok();
    let script = folder.path().join("imagelet.bash");
    std::fs::write(&script, run(program().args(["completions", "bash"])).ok()).unwrap();
    // As readline calls it: the line, and what it takes for the last word.
    let completed = |line: &str, word: &str| {
        let text = "source \"$0\"; COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; _imagelet imagelet \"$2\" x; printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut bash = Command::new("bash");
        let binary = std::path::Path::new(env!("CARGO_BIN_EXE_imagelet")).parent().unwrap().to_owned();
        bash.env_clear().env("PATH", format!("{}:/usr/bin:/bin", binary.display())).env("IMAGELET_STORE", &store);
        run(bash.args(["--norc", "-c", text]).arg(&script).args([line, word])).stdout
    };
    // On a busy machine the shell may give up waiting for names.
    let completes = |line: &str, word: &str, name: &str| {
        wait_until(&format!("`{line}` to complete"), || completed(line, word) == format!("{name}\n"));
    };
    completes("imagelet unmo", "unmo", "unmount");
    let (host, rest) = web.split_once(':').unwrap();
    completes(&format!("imagelet rm {}", &host[..5]), &host[..5], &web);
    completes(&format!("imagelet rm {host}:{}", &rest[..1]), &rest[..1], rest);
    let elsewhere = format!("imagelet --store {} rm {}", folder.path().join("none").display(), &host[..5]);
    assert_eq!(completed(&elsewhere, &host[..5]), "\n", "another store has no such image");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = run(program().args(["completions", shell])).ok();
        assert!(script.contains("IMAGELET_COMPLETE"), "{shell}: {script}");
    }
}
