//! What people type who know docker: filters, moments, and completion in a shell.

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, program, run, with_store},
    testbed::scratch,
};

#[test]
fn images_are_listed_by_filter() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let web = registry.put("team/web:v1", &Image::marked("web", 1000));
    let job = registry.put("job:v2", &Image::marked("job", 1000));
    let store = folder.path().join("store");
    with_store(&store, ["pull", &web, &job]).ok();
    with_store(&store, ["pin", &job]).ok();
    let listed = |filter: &str| {
        let rows = with_store(&store, ["images", "-o", "json", "--filter", filter]).json();
        let names = rows["images"].as_array().unwrap().iter().map(|row| row["names"][0].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(listed(&format!("reference={}", web.trim_end_matches(":v1"))), [web]);
    assert_eq!(listed("pinned=true"), [job]);
    assert!(listed("dangling=true").is_empty());
    assert_eq!(with_store(&store, ["images", "-q", "--filter", "unused=true"]).ok().lines().count(), 2);
}

#[test]
fn events_and_the_history_of_an_image_begin_at_a_moment() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let web = registry.put("web:v1", &Image::marked("web", 1000));
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    daemon.run(["pull", &web]).ok();
    let events = |since: &str| daemon.run(["events", "--since", since, "-o", "json"]).ok();
    assert!(events("1h").contains("\"reason\":\"Pulled\""), "{}", events("1h"));
    assert_eq!(events("2100-01-01T00:00:00Z"), "");
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
fn a_completion_script_names_each_command_in_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(program().args(["completions", shell])).ok();
        assert!(script.contains("unmount") && script.contains("--lock-timeout"), "{shell}: {script}");
    }
}

#[test]
fn each_failed_command_prints_its_failure_as_a_document_where_a_program_asks_for_one() {
    let folder = scratch();
    let store = folder.path().join("store");
    with_store(&store, ["pin", "reg.test/none"]).ok();
    let archive = folder.path().join("out.tar");
    let cases: [(i32, &[&str]); 22] = [
        (1, &["inspect", "absent:v1"]),
        (1, &["inspect", "-q", "absent:v1"]),
        (1, &["rm", "absent:v1"]),
        (1, &["untag", "absent:v1"]),
        (1, &["unpin", "reg.test/other"]),
        (1, &["why", "absent:v1"]),
        (1, &["mount", "absent:v1", "/mnt"]),
        (1, &["unmount", "/nonexistent"]),
        (1, &["export", "absent:v1", archive.to_str().unwrap()]),
        (1, &["import", "/nonexistent.tar"]),
        (1, &["pull", "::"]),
        (1, &["pull", "127.0.0.1:1/app:v1", "--policy", "Never"]),
        (1, &["ensure", "-f", "/nonexistent.yaml"]),
        (1, &["events"]),
        (1, &["verify", "absent:v1"]),
        (1, &["ls", "--filter", "reference=x", "--endpoint", "unix:///nonexistent.sock"]),
        (1, &["config", "check", "/nonexistent.yaml"]),
        (1, &["prefetch", "status", "--kubeconfig", "/nonexistent"]),
        (2, &["frob"]),
        (2, &["pull"]),
        (2, &["gc", "--high", "101"]),
        (2, &["gc", "--low", "90"]),
    ];
    for (code, arguments) in cases {
        let is_of_store = !arguments.contains(&"--endpoint") && (code == 1 || arguments.contains(&"--low"));
        let store = is_of_store.then(|| ["--store", store.to_str().unwrap()]);
        let command = |format: &str| run(program().args(store.iter().flatten()).args(arguments).args(["-o", format]));
        let outcome = command("json");
        let case = format!("{arguments:?}: {outcome:?}");
        assert_eq!(outcome.code, code, "{case}");
        assert_eq!(outcome.stderr.contains("error: "), !arguments.contains(&"-q"), "{case}");
        let document: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{case}"));
        let failure =
            if document["failures"].is_array() { &document["failures"][0]["failure"] } else { &document["failure"] };
        assert!(failure["message"].as_str().is_some_and(|message| !message.is_empty()), "{case}");
        assert!(failure["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{case}");
        let yaml = command("yaml").stdout;
        assert!(yaml.contains("message:") && !yaml.contains('{'), "{arguments:?}: {yaml}");
        let table = command("table");
        assert_eq!((table.code, table.stdout.as_str()), (code, ""), "{arguments:?}");
    }
    // Behind lines of events, the failure is a line.
    for arguments in [&["events", "-o", "json"][..], &["events", "-o", "json", "--since", "yesterday"]] {
        let outcome = with_store(&store, arguments);
        let line: serde_json::Value = serde_json::from_str(outcome.stdout.lines().next().unwrap()).unwrap();
        assert_eq!((line["type"].as_str(), outcome.stdout.lines().count()), (Some("failure"), 1), "{outcome:?}");
    }
}

#[test]
fn the_help_flag_prints_a_screen_and_the_help_command_the_rest_and_the_pages() {
    let printed = |line: &str| run(program().args(line.split_whitespace())).ok();
    for command in ["", "pull", "serve", "gc", "install", "config show", "prefetch", "prefetch apply"] {
        let screen = printed(&format!("{command} --help"));
        assert_eq!(screen, printed(&format!("{command} -h")), "{command}");
        assert!(screen.lines().count() <= 24, "{screen}");
        assert!(!screen.contains("--lock-timeout <"), "{screen}");
        let whole = printed(&format!("help {command}"));
        let first = screen.lines().next().unwrap();
        assert!(whole.starts_with(first) && whole.contains("--lock-timeout <DURATION>"), "{whole}");
        assert!(whole.contains("IMAGELET_STORE stands for it"), "{whole}");
    }
    let list = printed("help");
    assert!(list.contains("\n  registries ") && list.contains("\n  pull "), "{list}");
    assert!(printed("help registries").starts_with("# Registries: mirrors, proxies, deadlines\n"));
    let why = printed("help why");
    assert!(why.starts_with("Show the history of an image") && why.contains("\n# Why an image"), "{why}");
    let unknown = run(program().args(["help", "frob"]));
    assert_eq!((unknown.code, unknown.stdout.as_str()), (2, ""), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("no command or page is named 'frob'"), "{}", unknown.stderr);
}
