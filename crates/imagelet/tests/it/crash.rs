//! The daemon is killed in the middle of pulls: it comes back at once, lists nothing half done, and leaves no bytes.

use std::{process::Stdio, thread, time::Duration};

use tokio::time::Instant;

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Random},
    program::{Daemon, with_store},
    testbed::scratch,
    tree,
};

/// How soon a killed daemon answers again.
const RESTART_MAX: Duration = Duration::from_secs(1);
/// Pulls that the daemon is killed in.
const KILLS: usize = 10;
/// What an empty store may take: indexes, not content.
const REST_MAX: u64 = 1 << 20;
/// The moments of the kills.
const SEED: &str = "the power goes at random";

#[test]
fn a_daemon_killed_during_pulls_comes_back_clean() {
    let (folder, registry, mut random) = (scratch(), FakeRegistry::start(), Random::new(SEED));
    let store = folder.path().join("store");
    let arguments = ["--store", store.to_str().unwrap()];
    let mut daemon = Daemon::start(folder.path(), arguments);
    let before = tree::disk_usage(&store);

    let mut interrupted = 0;
    for round in 0..KILLS {
        let image = Image::marked(&format!("round {round}"), 4_000_000);
        let name = registry.put(&format!("round{round}:v1"), &image);
        for layer in &image.layers {
            registry.spoil(&format!("round{round}"), &layer.digest, |answer| answer.pause = Duration::from_millis(4));
        }
        let mut pull =
            daemon.command().args(["pull", &name]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let moment = Duration::from_millis(random.below(400));
        thread::sleep(moment);
        daemon.part.kill();
        pull.wait().unwrap();

        let started = Instant::now();
        daemon = Daemon::start(folder.path(), arguments);
        let listed = daemon.run(["ls", "-q", "--all"]).ok();
        let took = started.elapsed();
        assert!(took < RESTART_MAX, "seed `{SEED}` round {round} ({moment:?}): answered after {took:?}");
        let whole = listed.lines().any(|id| !id.is_empty() && image.id().contains(id));
        let shown = daemon.run(["inspect", "-q", &name]).code == 0;
        interrupted += usize::from(
            !shown && registry.requests().iter().any(|request| request.contains(&format!("round{round}/blobs"))),
        );
        assert_eq!(whole, shown, "seed `{SEED}` round {round} ({moment:?}): listed and shown differ:\n{listed}");
        assert!(listed.lines().count() <= 1, "seed `{SEED}` round {round} ({moment:?}):\n{listed}");

        assert_eq!(daemon.run(["pull", &name]).ok().trim(), image.id(), "seed `{SEED}` round {round} ({moment:?})");
        daemon.run(["rm", &name]).ok();
    }

    assert!(interrupted > 0, "seed `{SEED}`: no kill met a pull between its first byte and its last");
    daemon.run(["gc", "--all-unused"]).ok();
    assert!(daemon.stop(rustix::process::Signal::TERM).success());
    with_store(&store, ["gc", "--all-unused"]).ok();
    let after = tree::disk_usage(&store);
    assert!(after <= before + REST_MAX, "{before} bytes before, {after} after {KILLS} killed pulls");
}
