//! Liveness and readiness: named checks, each with a deadline.

use std::{io::Write as _, path::Path, time::Duration};

use imagelet_core::{image::counted, printable::printable};
use imagelet_kube::WatchReport;
use rustix::fs::{Mode, OFlags};

use crate::node::{Images, LocalNode};

const CHECK_MAX: Duration = Duration::from_secs(5);
const PASSES_MISSED_MAX: u32 = 3;
/// One block of a file system. If the file system is full, the write of the block fails.
const BLOCK: [u8; 4096] = [0; 4096];

/// The name and the result of a check: `Ok` with a detail, which may be empty, or `Err` with the reason.
pub(super) type Checked = (&'static str, Result<String, String>);

pub(super) fn live() -> Vec<Checked> {
    vec![("ping", Ok(String::new()))]
}

pub(super) async fn ready(node: &LocalNode) -> Vec<Checked> {
    let stored = &node.pulls.images;
    let runtime = async { stored.runtime.filesystem().await.map(drop).map_err(|error| error.chain()) };
    let state = async {
        if stored.place.is_read_only {
            return Ok(());
        }
        let state = stored.place.state.clone();
        tokio::task::spawn_blocking(move || check_writable(&state)).await.unwrap_or_else(|error| Err(error.to_string()))
    };
    let (runtime, state) = tokio::join!(in_time(runtime), in_time(state));
    let images = if stored.local().is_some() { "store" } else { "runtime" };
    let silent = |checked: Result<(), String>| checked.map(|()| String::new());
    let mut checks =
        vec![(images, silent(runtime)), ("state", silent(state)), ("inventory", silent(check_inventory(stored)))];
    checks.extend(node.status.agent.as_ref().map(|agent| ("pods", check_pods(&agent.health().report()))));
    checks
}

/// Fails until the pods were listed once. A later outage of the API server is no failure: the known pods stay in use.
fn check_pods(watch: &WatchReport) -> Result<String, String> {
    let failure = watch.failure.as_deref().unwrap_or("the API server has not answered yet");
    if !watch.is_listed {
        return Err(format!("the pods of this node are not known yet: {failure}"));
    }
    let WatchReport { pods, waiting, restarts, .. } = watch;
    let age = watch.heard_at.map_or(0, |at| at.elapsed().as_secs());
    let sync = if watch.in_sync { "in sync".to_owned() } else { format!("not in sync, {failure}") };
    Ok(format!("{sync}; {}, {waiting} waiting; last answer {age} s ago; {restarts} restarts", counted(*pods, "pod")))
}

async fn in_time(check: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let late = || Err(format!("no answer within {} s", CHECK_MAX.as_secs()));
    tokio::time::timeout(CHECK_MAX, check).await.unwrap_or_else(|_| late())
}

pub(super) fn report(probe: &str, checks: &[Checked], is_verbose: bool) -> (bool, String) {
    let failed: Vec<_> = checks.iter().filter(|(_, checked)| checked.is_err()).map(|(name, _)| *name).collect();
    let is_ok = failed.is_empty();
    if !is_verbose {
        let text = if is_ok { "ok\n".to_owned() } else { format!("failed: {}\n", failed.join(", ")) };
        return (is_ok, text);
    }
    let lines = checks.iter().map(|(name, checked)| match checked {
        Ok(more) if more.is_empty() => format!("[+]{name} ok\n"),
        Ok(more) => format!("[+]{name} ok: {}\n", printable(more)),
        Err(why) => format!("[-]{name} failed: {}\n", printable(why)),
    });
    let end = if is_ok { "passed" } else { "failed" };
    (is_ok, lines.chain([format!("{probe} check {end}\n")]).collect())
}

/// Checks that the state is writable. The written file has no name, so that nothing stays on the disk.
fn check_writable(state: &Path) -> Result<(), String> {
    // The folder of the state is created with the first change, so an existing parent is checked instead.
    let state = state.ancestors().find(|folder| folder.exists()).unwrap_or(state);
    let failed = |error: std::io::Error| format!("could not write below `{}`: {error}", state.display());
    match rustix::fs::open(state, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR) {
        Ok(file) => std::fs::File::from(file).write_all(&BLOCK).map_err(failed),
        // The file system does not support unnamed files, so only the permission to write is checked.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            rustix::fs::access(state, rustix::fs::Access::WRITE_OK).map_err(|error| failed(error.into()))
        }
        Err(error) => Err(failed(error.into())),
    }
}

fn check_inventory(images: &Images) -> Result<(), String> {
    let Some(snapshot) = images.inventory.snapshot() else {
        return Err("no pass over the images has succeeded yet".into());
    };
    let age = snapshot.taken_at.elapsed().unwrap_or_default();
    let age_max = images.settings().images.detection_period.saturating_mul(PASSES_MISSED_MAX) + CHECK_MAX;
    if age > age_max {
        return Err(format!(
            "the last pass over the images is {} s old; the limit is {} s",
            age.as_secs(),
            age_max.as_secs()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_report_names_failed_checks_and_with_verbose_all_with_reasons() {
        let checks: [Checked; 2] = [("store", Ok(String::new())), ("runtime", Err("away\u{1b}".into()))];
        assert_eq!(report("readyz", &checks[..1], false), (true, "ok\n".into()));
        assert_eq!(report("readyz", &checks, false), (false, "failed: runtime\n".into()));
        let text = "[+]store ok\n[-]runtime failed: away?\nreadyz check failed\n";
        assert_eq!(report("readyz", &checks, true), (false, text.into()));
        assert_eq!(report("livez", &live(), true), (true, "[+]ping ok\nlivez check passed\n".into()));
    }

    #[test]
    fn an_api_server_that_is_away_fails_the_check_of_pods_only_before_their_first_list() {
        let failure = Some("could not reach the API server".to_owned());
        let before = WatchReport { failure: failure.clone(), restarts: 3, ..WatchReport::default() };
        assert_eq!(
            check_pods(&before),
            Err("the pods of this node are not known yet: could not reach the API server".into())
        );
        let unknown = "the pods of this node are not known yet: the API server has not answered yet";
        assert_eq!(check_pods(&WatchReport::default()), Err(unknown.into()));
        let heard_at = Instant::now().checked_sub(Duration::from_secs(7));
        let listed =
            WatchReport { is_listed: true, in_sync: true, heard_at, restarts: 3, pods: 12, waiting: 2, failure: None };
        let text = "in sync; 12 pods, 2 waiting; last answer 7 s ago; 3 restarts";
        assert_eq!(check_pods(&listed), Ok(text.into()));
        let checks = [("pods", check_pods(&listed))];
        assert_eq!(report("readyz", &checks, true), (true, format!("[+]pods ok: {text}\nreadyz check passed\n")));
        let away = WatchReport { in_sync: false, failure, ..listed };
        let text = "not in sync, could not reach the API server; 12 pods, 2 waiting; last answer 7 s ago; 3 restarts";
        assert_eq!(check_pods(&away), Ok(text.into()));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named_and_a_check_leaves_nothing_in_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(check_writable(folder.path()), Ok(()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(check_writable(&folder.path().join("later/state")), Ok(()));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let failed = check_writable(&file.join("state")).unwrap_err();
        assert!(failed.contains(file.to_str().unwrap()) && failed.contains("Not a directory"), "{failed}");
    }
}
