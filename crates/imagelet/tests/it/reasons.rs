//! Reasons as users see them: the page of codes is whole, and an image's history can be asked for after it is gone.

use std::{collections::BTreeSet, fs};

use imagelet_core::audit_log::ActCode;

use crate::{
    images::Image,
    program::{Daemon, write_store_config},
    source::{repository, without_comments_and_strings},
    testbed::{Registry, scratch},
};

/// The words between backticks in the first column of a page's tables.
fn first_column(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// The codes in the source of a function that matches each value: `=> "code"`, or `("code", …` of a reason.
fn codes(path: &str, function: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(repository().join(path)).unwrap();
    let from = text.find(function).expect("the function is there");
    let body = &text[from..from + text[from..].find("\n    }\n").expect("it ends")];
    assert!(without_comments_and_strings(body).contains("match self"), "{path}");
    let code = |line: &str| {
        let line = line.trim_start();
        let arm = line.strip_prefix("Self::").and_then(|arm| arm.split_once("=> "));
        let value = arm.map_or(line, |(_, value)| value);
        let is_code = arm.is_some() || line.starts_with("(\"");
        let code = value.trim_start_matches('(').strip_prefix('"').filter(|_| is_code)?;
        Some(code.split('"').next()?.to_owned())
    };
    body.lines().filter_map(code).collect()
}

#[test]
fn the_page_of_codes_names_each_code_and_no_other() {
    let page = fs::read_to_string(repository().join("docs/why.md")).unwrap();
    let codes_part = page.split("## The codes").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let mut expected = codes("crates/imagelet-core/src/inventory/reason.rs", "fn parts(");
    assert!(expected.contains("in_use") && expected.len() >= 16, "{expected:?}");
    expected.extend(ActCode::ALL.map(|code| code.name().to_owned()));
    assert_eq!(first_column(codes_part), expected);
}

#[test]
fn the_history_of_an_image_outlives_the_image() {
    let (registry, folder) = (Registry::start(), scratch());
    let [web, spare] = ["web", "spare"].map(|name| registry.push(&format!("{name}:v1"), &Image::busybox(name)));
    let config = folder.path().join("config.yaml");
    let text =
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\ngc: {leaseFor: 0s}\n";
    fs::write(&config, text).unwrap();
    let store = folder.path().join("store");
    let arguments = ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let id = {
        let daemon = Daemon::start(folder.path(), arguments);
        daemon.run(["pull", &web]).ok();
        daemon.run(["pull", &spare]).ok();
        daemon.run(["pin", &spare]).ok();
        let plan = daemon.run(["gc", "--dry-run", "--all-unused", "--now", "-o", "json"]).json();
        let first = &plan["images"][0];
        assert_eq!((first["verdict"].as_str(), first["code"].as_str()), (Some("remove"), Some("unused")), "{plan:#}");
        assert!(first["inputs"]["idleSeconds"].is_u64(), "{plan:#}");
        daemon.run(["gc", "--all-unused", "--now"]).ok();
        let why = daemon.run(["why", &web, "-o", "json"]).json();
        let image = &why["images"][0];
        let told: Vec<_> = image["history"].as_array().unwrap().iter().map(|it| it["code"].as_str().unwrap()).collect();
        assert_eq!((told.first(), told.last()), (Some(&"pulled"), Some(&"unused")), "{why:#}");
        assert!(image["now"].is_null(), "{why:#}");
        assert_eq!(image["history"].as_array().unwrap().last().unwrap()["what"], "removed", "{why:#}");
        let kept = daemon.run(["why", &spare, "-o", "json"]).json();
        assert_eq!(kept["images"][0]["next"]["code"], "pinned", "{kept:#}");
        let codes: Vec<_> =
            kept["images"][0]["history"].as_array().unwrap().iter().map(|it| it["code"].as_str().unwrap()).collect();
        assert!(codes.contains(&"pinned_on_request") && codes.contains(&"pulled"), "{codes:?}");
        daemon.run(["why", "registry.example/never:v1"]).refused(&["no record of"]);
        let usage = daemon.run(["df", "-v", "-o", "json"]).json();
        assert_eq!(usage["images"][0]["nextCode"], "pinned", "{usage:#}");
        image["id"].as_str().unwrap().to_owned()
    };
    // A daemon started anew answers for its predecessor, by a few digits of the id, too.
    let daemon = Daemon::start(folder.path(), arguments);
    let text = daemon.run(["why", &id[..20]]).ok();
    assert!(text.contains("removed") && text.contains(&web) && text.contains("unused"), "{text}");
    daemon.run(["rm", &spare]).ok();
    let text = daemon.run(["why", &spare]).ok();
    assert!(text.contains("asked for by command"), "{text}");
}

/// What happened to an image, as `why` shows it: `what` of each line, oldest first.
fn story(daemon: &Daemon, image: &str) -> Vec<String> {
    let why = daemon.run(["why", image, "-o", "json"]).json();
    let history = why["images"][0]["history"].as_array().unwrap().clone();
    let moments: Vec<_> = history.iter().map(|it| it["at"].as_str().unwrap().to_owned()).collect();
    assert!(moments.is_sorted(), "{why:#}");
    history.iter().map(|it| it["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn collections_that_remove_nothing_leave_no_line() {
    let (registry, folder) = (Registry::start(), scratch());
    let [base, web] = ["base", "web"].map(|name| registry.push(&format!("{name}:v1"), &Image::busybox(name)));
    let store = folder.path().join("store");
    let config = write_store_config(folder.path(), "");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
    let collect = || daemon.run(["gc", "--high", "100"]).ok();
    daemon.run(["pull", &base]).ok();
    for _ in 0..4 {
        collect();
    }
    daemon.run(["pull", &web]).ok();
    collect();
    assert_eq!(story(&daemon, &web), ["pulled"]);
    assert_eq!(story(&daemon, &base), ["pulled"]);
    daemon.run(["rm", &web]).ok();
    daemon.run(["pull", &web]).ok();
    collect();
    assert_eq!(story(&daemon, &web), ["pulled", "removed", "pulled"]);
}
