//! Steps at which a test can abort the process, to check what a crash at that step leaves behind.
//!
//! [`failpoint!`](crate::failpoint!) marks a step and names it. Without `debug_assertions`, as in every release,
//! [`COMPILED_IN`] is false and no failpoint is compiled. Otherwise the variable `IMAGELET_FAILPOINT` decides: `NAME`
//! aborts the first time that step is reached, `NAME:N` the N-th time, `log:FILE` appends each step's name to a file.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

pub const COMPILED_IN: bool = cfg!(debug_assertions);

const VARIABLE: &str = "IMAGELET_FAILPOINT";

/// Aborts the process at this step if a test has armed the step. Each step has a unique name.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        if $crate::failpoint::COMPILED_IN {
            $crate::failpoint::reach($name);
        }
    };
}

enum Armed {
    Abort { name: String, left: AtomicUsize },
    Log(File),
}

#[doc(hidden)]
pub fn reach(name: &str) {
    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
    if !COMPILED_IN {
        return;
    }
    match ARMED.get_or_init(armed) {
        Some(Armed::Abort { name: wanted, left }) if wanted == name && left.fetch_sub(1, Ordering::SeqCst) == 1 => {
            std::process::abort();
        }
        Some(Armed::Abort { .. }) | None => {}
        Some(Armed::Log(file)) => {
            // One write, so that the lines of several threads do not mix.
            let mut file = file;
            file.write_all(format!("{name}\n").as_bytes()).expect("a test's own file can be written");
        }
    }
}

/// Observes one sync of a folder, or of a whole file system (`None`).
type SyncObserver = Box<dyn FnMut(Option<&Path>) -> io::Result<()>>;

thread_local! {
    static SYNCS: RefCell<Option<SyncObserver>> = const { RefCell::new(None) };
}

/// Lets a test observe each later sync of its thread and make the sync fail.
pub fn observe_syncs(observer: impl FnMut(Option<&Path>) -> io::Result<()> + 'static) {
    SYNCS.set(Some(Box::new(observer)));
}

/// Reports a sync to the test that observes this thread. If the test returns an error, the sync fails with it.
#[doc(hidden)]
pub fn synced(folder: Option<&Path>) -> io::Result<()> {
    if !COMPILED_IN {
        return Ok(());
    }
    SYNCS.with_borrow_mut(|observer| observer.as_mut().map_or(Ok(()), |observer| observer(folder)))
}

pub(crate) fn reach_in(room: &str, step: &str) {
    if COMPILED_IN {
        reach(&format!("{room}.{step}"));
    }
}

/// Reads the environment, not the configuration, because failpoints are only for tests.
fn armed() -> Option<Armed> {
    let wanted = std::env::var_os(VARIABLE)?.into_string().ok()?;
    if let Some(path) = wanted.strip_prefix("log:") {
        let file = File::options().create(true).append(true).open(path);
        return Some(Armed::Log(file.expect("a test's own file can be opened")));
    }
    let (name, count) = wanted.split_once(':').unwrap_or((&wanted, "1"));
    let left = AtomicUsize::new(count.parse().expect("a test gives a number"));
    Some(Armed::Abort { name: name.to_owned(), left })
}
