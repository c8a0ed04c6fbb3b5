//! A crash at any step of a pull leaves no secret behind.

use std::{collections::BTreeSet, fs, process::Command};

use super::{Marker, Scene, Seen, look_at};
use crate::program::run;

#[test]
fn a_crash_at_any_step_of_a_pull_leaves_no_secret_behind() {
    let mut scene = Scene::new();
    let password = Marker::plain("the password of a pull that crashes");
    let own = (scene.token.clone(), scene.signature.clone());
    let markers = [&password, &own.0, &own.1];
    let pull = |scene: &Scene, armed: &str| -> Command {
        let mut command = scene.command();
        command.env("IMAGELET_FAILPOINT", armed).env("IMAGELET_CREDS", format!("u:{}", password.text));
        command.args(["pull", "--policy", "Always", &scene.name("redirect")]);
        command
    };
    let steps = scene.folder.path().join("steps");
    run(&mut pull(&scene, &format!("log:{}", steps.display()))).ok();
    let steps: BTreeSet<String> = fs::read_to_string(steps).unwrap().lines().map(str::to_owned).collect();
    assert!(steps.len() > 10, "{steps:?}");
    let mut seen = Seen::default();
    for step in &steps {
        // Another store, so that each step is reached again.
        scene.folder = crate::testbed::scratch();
        let outcome = run(&mut pull(&scene, step));
        assert_eq!(outcome.code, -1, "it goes on behind {step}: {}", outcome.stderr);
        look_at(&mut seen, step, &outcome, &markers);
        seen.look_below(scene.folder.path(), &markers, &[]);
        // Whoever comes next mends what is left, and tells it.
        let next = run(scene.command().args(["pin", "nothing", "-o", "json"]));
        look_at(&mut seen, &format!("pin behind {step}"), &next, &markers);
        seen.look_below(scene.folder.path(), &markers, &[]);
    }
    scene.assert_used(&password);
    seen.assert_nothing(10 * steps.len());
}
