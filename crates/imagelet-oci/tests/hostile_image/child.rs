//! Runs a test again in a process of its own, for what is measured of a whole process.

use std::{
    env,
    process::{Command, ExitStatus},
};

/// Set in the child: it is the one that shall do the work.
const MARK: &str = "IMAGELET_HOSTILE_CHILD";

/// Runs `work` in a child process that runs nothing else. `test` is the test's whole name.
pub(crate) fn alone(test: &str, work: impl Future<Output = ()>) {
    if !is_child() {
        let status = run(test, "1");
        assert!(status.success(), "`{test}` failed in its own process: {status}");
        return;
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work);
}

/// Runs one test of this program in a process of its own, with `mark` for it to read.
pub(crate) fn run(test: &str, mark: &str) -> ExitStatus {
    Command::new(env::current_exe().expect("this program has a path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, mark)
        .status()
        .expect("this program can be run")
}

pub(crate) fn is_child() -> bool {
    mark().is_some()
}

/// What the parent said.
pub(crate) fn mark() -> Option<String> {
    env::var_os(MARK).and_then(|text| text.into_string().ok())
}

/// The most memory this process held at once while `work` ran, above what it held before, in bytes.
pub(crate) async fn peak_of<T>(work: impl Future<Output = T>) -> (T, u64) {
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak can be reset");
    let before = field("VmRSS:");
    let answer = work.await;
    (answer, field("VmHWM:").saturating_sub(before))
}

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with(name)).expect("the field");
    line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("a number") * 1024
}
