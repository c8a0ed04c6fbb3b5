//! What an operator says shall stay: rules and pins of the configuration, over the embedded store.

use std::{collections::BTreeMap, ffi::OsStr, fs, path::Path};

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Outcome, program, run},
    testbed::scratch,
};

/// Runs a command without a daemon, under a configuration.
fn under<S: AsRef<OsStr>>(config: &Path, arguments: impl IntoIterator<Item = S>) -> Outcome {
    run(program().env("IMAGELET_CONFIG", config).args(arguments))
}

/// A store with a configuration beside it.
fn configured(folder: &Path, gc: &str) -> std::path::PathBuf {
    let path = folder.join("config.yaml");
    let store = folder.join("store");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nstore: {{directory: {}}}\n\
         gc:\n  enabled: false\n  leaseFor: 0s\n{gc}",
        store.display()
    );
    fs::write(&path, text).unwrap();
    path
}

/// Verdict and reason of each image, by the last part of its first name.
fn decided(outcome: Outcome) -> BTreeMap<String, String> {
    let collected = outcome.json();
    let rows = collected["images"].as_array().unwrap().iter().map(|row| {
        let name = row["names"][0].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (name, format!("{}: {}", row["verdict"].as_str().unwrap(), row["reason"].as_str().unwrap()))
    });
    rows.collect()
}

#[test]
fn rules_of_the_configuration_keep_and_a_dry_run_names_them() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let mut names = Vec::new();
    for tag in ["1.0", "1.9", "1.10", "nightly"] {
        names.push(registry.put(&format!("team/app:{tag}"), &Image::marked(tag, 100)));
    }
    names.push(registry.put("tools/kept:v1", &Image::marked("kept", 100).labelled("keep", "yes")));
    names.push(registry.put("tools/gone:v1", &Image::marked("gone", 100).labelled("keep", "no")));
    names.push(registry.put("base/os:v1", &Image::marked("base", 100)));
    let config = configured(
        folder.path(),
        "  keep:\n  - {repository: '*/team/app', lastTags: 1}\n  - label: keep=y*\n  - image: '*/base/*'\n",
    );
    for name in &names {
        under(&config, ["pull", "-q", name]).ok();
    }
    let tags = "kept by the rule `repository: */team/app, lastTags: 1`";
    let plan = decided(under(&config, ["gc", "--all-unused", "--now", "--dry-run", "-o", "json"]));
    for (name, decision) in [
        ("app:1.10", format!("keep: {tags}")),
        ("app:nightly", format!("keep: {tags}")),
        ("kept:v1", "keep: kept by the rule `label: keep=y*`".to_owned()),
        ("os:v1", "keep: pinned by `*/base/*`".to_owned()),
    ] {
        assert_eq!(plan[name], decision, "{plan:#?}");
    }
    for name in ["app:1.0", "app:1.9", "gone:v1"] {
        assert!(plan[name].starts_with("remove: unused"), "{plan:#?}");
    }

    under(&config, ["gc", "--all-unused", "--now"]).ok();
    let left: Vec<bool> = names.iter().map(|name| under(&config, ["inspect", "-q", name]).code == 0).collect();
    assert_eq!(left, [false, false, true, true, true, false, true]);
}

#[test]
fn a_pin_of_the_configuration_is_shown_as_its_own_and_not_taken_back_by_a_command() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let name = registry.put("base/os:v1", &Image::marked("base", 100));
    let config = configured(folder.path(), "  keep: [{image: '*/base/*'}, {image: 'x/*', for: 1h}]\n");
    let id = under(&config, ["pull", "-q", &name]).ok().trim().to_owned();
    under(&config, ["pin", "other/*"]).ok();
    let shown = under(&config, ["pins", "-o", "json"]).json();
    let owner = |pattern: &str| {
        let rows = shown["pins"].as_array().unwrap();
        rows.iter().find(|row| row["pattern"] == pattern).map(|row| (row["owner"].clone(), row["images"].clone()))
    };
    assert_eq!(owner("*/base/*"), Some(("configuration".into(), serde_json::json!([id]))), "{shown:#}");
    assert_eq!(owner("other/*"), Some(("operator".into(), serde_json::json!([]))), "{shown:#}");
    assert_eq!(owner("x/*"), None, "a rule for a time pins nothing: {shown:#}");
    under(&config, ["unpin", "*/base/*"]).refused(&["pinned by the configuration", "gc.keep"]);

    // Gone by command and pulled again, it is pinned as before.
    under(&config, ["rm", &name]).ok();
    under(&config, ["pull", "-q", &name]).ok();
    under(&config, ["gc", "--all-unused", "--now"]).ok();
    assert_eq!(under(&config, ["inspect", "-q", &name]).code, 0, "it was collected");
    let config = configured(folder.path(), "");
    under(&config, ["gc", "--all-unused", "--now"]).ok();
    assert_eq!(under(&config, ["inspect", "-q", &name]).code, 1, "it is kept by a rule that is no more");
}
