//! `ls` shows every image, whatever names it has, over a runtime and over the embedded store.

use crate::{
    between::before,
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, Outcome, program, run},
    scripted::{self, Runtime, Script},
    testbed::scratch,
    wire::v1,
};

/// The row of a table that begins with this name, its cells apart.
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let line = table.lines().find(|line| line.split("   ").next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("no row `{name}`:\n{table}"));
    line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn images_without_a_tag_are_listed_by_digest_in_use_or_not() {
    let manifest = |digit: &str| format!("reg.test/app@sha256:{}", digit.repeat(64));
    let (used, idle) = (manifest("a"), manifest("b"));
    let by_digest = |name: &str| v1::Image {
        repo_tags: Vec::new(),
        repo_digests: vec![name.to_owned()],
        ..scripted::image(name, 1_500_000)
    };
    let nameless = v1::Image { repo_tags: Vec::new(), ..scripted::image("nameless", 7) };
    let images = vec![scripted::image("reg.test/tagged:v1", 3), by_digest(&used), by_digest(&idle), nameless];
    let containers = vec![scripted::container("web", &used)];
    let folder = scratch();
    let runtime = Runtime::start(folder.path(), Script { images, containers, ..Script::default() });
    let daemon = before(folder.path(), &runtime.endpoint(), "", "gc: {enabled: false}\n");
    let direct = |arguments: &[&str]| -> Outcome {
        let state = folder.path().join("home");
        run(program().env("XDG_DATA_HOME", state).args(["--endpoint", &runtime.endpoint()]).args(arguments))
    };
    for asked in [&direct as &dyn Fn(&[&str]) -> Outcome, &|arguments: &[&str]| daemon.run(arguments)] {
        let table = asked(&["ls"]).ok();
        assert_eq!(table.lines().count(), 5, "{table}");
        let cells = row(&table, "reg.test/app@sha256:aaaaaaaaaaaa…");
        assert_eq!((cells[2], cells[5]), ("1.5MB", "in use"), "{table}");
        assert_eq!(row(&table, "reg.test/app@sha256:bbbbbbbbbbbb…")[5], "-", "{table}");
        assert_eq!(row(&table, "<none>")[2], "7B", "{table}");
        let names: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        let expected = ["reg.test/app@sha256:aaaaaaaaaaaa…", "reg.test/app@sha256:bbbbbbbbbbbb…", "reg.test/tagged:v1"];
        assert_eq!(names[1..], expected);
        assert_eq!(row(&asked(&["ls", "-o", "wide"]).ok(), &used)[5], "in use", "a wide table has the name in full");
        assert_eq!(row(&asked(&["ls", "--digests"]).ok(), "reg.test/app@sha256:aaaaaaaaaaaa…")[1], &used[13..]);
        assert_eq!(asked(&["ls", "-q"]).ok().lines().count(), 4);
        let document = asked(&["ls", "-o", "json"]).json();
        let listed = document["images"].as_array().unwrap();
        assert_eq!(listed.len(), 4, "{document:#}");
        assert!(
            listed
                .iter()
                .any(|image| image["digests"][0] == used.as_str() && image["inUseBy"] != serde_json::json!([]))
        );
        assert_eq!(asked(&["ls", "--all"]).ok().lines().count(), 5, "the flag of earlier versions is still understood");
        let usage = asked(&["df", "-v"]).ok();
        assert!(usage.contains("reg.test/app@sha256:bbbbbbbbbbbb…"), "{usage}");
        let plan = asked(&["gc", "--dry-run", "--all-unused", "--now"]).ok();
        assert!(plan.contains("reg.test/app@sha256:bbbbbbbbbbbb…"), "{plan}");
    }
}

#[test]
fn an_image_that_was_pulled_by_digest_is_listed_by_it() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = Image::marked("web", 1000);
    let name = registry.put("web:v1", &image);
    let by_digest = format!("{}@{}", name.strip_suffix(":v1").unwrap(), image.manifest.digest);
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    daemon.run(["pull", &by_digest]).ok();
    let short = &by_digest[..by_digest.find("sha256:").unwrap() + 7 + 12];
    let table = daemon.run(["ls"]).ok();
    assert!(table.contains(&format!("\n{short}…   ")), "{table}");
    assert_eq!(daemon.run(["ls", "-q"]).ok().trim(), image.id());
}
