//! On Linux 5.10 calls of later kernels do not exist: a pull, a mount and a removal need none of those up to 5.17.

use std::{fs, path::Path};

use crate::{
    fake_registry::FakeRegistry,
    program::{Outcome, program, with_store},
    soundness::{Sample, assert_clean, assert_whole, listing, small_layer},
    testbed::{require_root, scratch},
    trace::under_strace,
    tree,
};

/// Calls that came after 5.10. strace passes over those with `?` that it does not know: in Debian 12, those after 5.17.
const LATER_CALLS: &str = "epoll_pwait2,mount_setattr,?quotactl_fd,landlock_create_ruleset,landlock_add_rule,\
    landlock_restrict_self,?memfd_secret,?process_mrelease,?futex_waitv,?set_mempolicy_home_node,?cachestat,\
    ?fchmodat2,?futex_wake,?futex_wait,?futex_requeue,?statmount,?listmount,?mseal,?open_tree_attr";

/// Runs a command where those calls fail as unknown ones do. Answers also the calls that it tried.
fn run_on_oldest(store: &Path, arguments: &[&str]) -> (Outcome, String) {
    let (trace, inject) = (format!("trace={LATER_CALLS}"), format!("inject={LATER_CALLS}:error=ENOSYS"));
    let options = ["-qq", "-e", &trace, "-e", &inject];
    let (outcome, calls) = under_strace(program().arg("--store").arg(store).args(arguments), &options);
    let answered = calls.lines().filter(|line| line.contains(" = "));
    let answered: Vec<&str> = answered.filter(|line| !line.ends_with("(INJECTED)")).collect();
    assert!(answered.is_empty(), "the kernel itself answered: {answered:?}");
    (outcome, calls)
}

#[test]
fn the_oldest_kernel_pulls_mounts_and_removes() {
    require_root("mounting");
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let (store, target) = (folder.path().join("store"), folder.path().join("target"));
    fs::create_dir(&target).unwrap();
    let place = target.to_str().unwrap();
    let layers = vec![small_layer("lower", 70_000), small_layer("upper", 3_000)];
    let sample = Sample::put(&registry, "app:v1", layers);
    let (pulled, calls) = run_on_oldest(&store, &["pull", "-q", &sample.name]);
    assert_eq!(pulled.ok().trim(), sample.id());
    assert!(calls.contains("landlock_create_ruleset"), "the pull looked for Landlock: {calls}");
    let listed = listing(with_store(&store, ["ls", "--all", "-o", "json"]));
    assert_whole(&store, &listed, &[&sample], &[&sample], "without later calls");
    run_on_oldest(&store, &["mount", &sample.name, place]).0.ok();
    tree::assert_same(&tree::read(&target), &sample.merged());
    run_on_oldest(&store, &["unmount", place]).0.ok();
    run_on_oldest(&store, &["verify"]).0.ok();
    run_on_oldest(&store, &["rm", &sample.name]).0.ok();
    assert_clean(&store, &[].into(), "after the removal");
}
