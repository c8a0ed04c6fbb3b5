//! `imagelet --endpoint` on the socket of a bare runtime: a crictl for images.

use crate::{
    images::Image,
    program::{Outcome, program, run},
    testbed::{Containerd, Registry, scratch},
};

#[test]
fn images_of_a_bare_containerd_are_listed_pulled_inspected_and_removed() {
    let (registry, folder) = (Registry::start(), scratch());
    let image = Image::busybox("application");
    let name = registry.push("application:v1", &image);
    let other = registry.push("other:v1", &Image::marked("other", 10_000));
    let containerd = Containerd::start(folder.path(), &registry);
    let endpoint = containerd.endpoint();
    let state = folder.path().join("home");
    let ask = |arguments: &[&str]| -> Outcome {
        let mut command = program();
        // Not root's own: what one command learns, the next one reads.
        command.env("XDG_DATA_HOME", &state).env("HOME", &state);
        run(command.args(["--endpoint", &endpoint]).args(arguments))
    };
    assert_eq!(ask(&["ls", "-q"]).ok(), "");
    assert_eq!(ask(&["pull", "-q", &name]).ok().trim(), image.id());
    let pulled = ask(&["pull", "-o", "json", &name, &other]).json();
    assert!(pulled.to_string().contains(image.id()), "{pulled}");

    let table = ask(&["ls"]).ok();
    assert!(table.starts_with("NAME ") && table.contains("application:v1") && table.lines().count() == 3, "{table}");
    let wide = ask(&["ls", "-o", "wide"]).ok();
    assert!(wide.contains(image.id().trim_start_matches("sha256:")), "{wide}");
    let listed = ask(&["ls", "-o", "json"]).json();
    assert_eq!(listed["images"][0]["names"][0], name.as_str());
    assert_eq!(listed["images"][0]["id"], image.id());
    assert!(listed["images"][0]["size"].as_u64().unwrap() > 0);
    let ids = ask(&["ls", "-q"]).ok();
    assert!(ids.lines().count() == 2 && ids.contains(image.id()), "{ids}");

    let found = ask(&["inspect", "-o", "json", &name]).json();
    assert_eq!(found["image"]["id"], image.id());
    let digits = &image.id()["sha256:".len()..][..12];
    assert!(ask(&["inspect", digits]).ok().contains(&name));
    ask(&["inspect", "-q", &name]).ok();
    let absent = ask(&["inspect", "-q", "absent:v1"]);
    assert_eq!((absent.code, absent.stdout.as_str(), absent.stderr.as_str()), (1, "", ""));
    ask(&["inspect", "absent:v1"]).refused(&["error: no image `absent:v1`", "hint: "]);

    let usage = ask(&["df", "-o", "json"]).json();
    assert_eq!(usage["imagesCount"], 2);
    assert!(std::path::Path::new(usage["mountpoint"].as_str().unwrap()).is_absolute(), "{usage}");
    assert!(ask(&["df", "-v"]).ok().contains("application:v1"));

    let away = format!("{}/away:v1", registry.address());
    ask(&["pull", &away]).refused(&["error: ", &away]);
    for unsupported in
        [vec!["mount", name.as_str(), "/mnt"], vec!["verify"], vec!["events"], vec!["untag", name.as_str()]]
    {
        ask(&unsupported).refused(&["error: "]);
    }
    assert_eq!(ask(&["rm", &name]).ok().trim(), image.id());
    ask(&["rm", &name]).refused(&["error: no image"]);
    assert_eq!(ask(&["ls", "-q"]).ok().lines().count(), 1);
    drop(containerd);
    ask(&["ls"]).refused(&["error: could not reach", "hint: "]);
}

#[test]
fn what_a_command_pulls_without_a_daemon_is_pulled_by_imagelet() {
    let (registry, folder) = (Registry::start(), scratch());
    let [first, second] = ["first", "second"].map(|name| registry.push(&format!("{name}:v1"), &Image::busybox(name)));
    let containerd = Containerd::start(folder.path(), &registry);
    let ask = |arguments: &[&str]| -> Outcome {
        let mut command = program();
        command.env("XDG_DATA_HOME", folder.path()).env("HOME", folder.path());
        run(command.args(["--endpoint", &containerd.endpoint()]).args(arguments))
    };
    for name in [&first, &second] {
        ask(&["pull", name]).ok();
        let why = ask(&["why", name, "-o", "json"]).json();
        assert_eq!(why["images"][0]["now"]["origin"], "pulled", "{why:#}");
        assert_eq!(why["images"][0]["history"][0]["what"], "pulled", "{why:#}");
    }
    drop(containerd);
}
