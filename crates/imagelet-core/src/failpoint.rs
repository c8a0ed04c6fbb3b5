//! Steps at which a test can end the process, to see what a crash right there leaves behind.
//!
//! A crate names its steps with [`failpoints!`](crate::failpoints) and calls `reach` on each as it gets there. In a build
//! without `debug_assertions`, as every release is, [`COMPILED_IN`] is false and nothing of this is in the program.
//! Otherwise the variable `IMAGELET_FAILPOINT` decides: `NAME` aborts the first time that step is reached, `NAME:N` the
//! N-th time, `log:FILE` appends the name of each step to a file.

use std::{
    fs::File,
    io::Write as _,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Whether this build has failpoints at all.
pub const COMPILED_IN: bool = cfg!(debug_assertions);

/// Who arms one.
const VARIABLE: &str = "IMAGELET_FAILPOINT";

crate::failpoints! {
    /// A pull record or an intent is written, not yet synced.
    RecordWritten = "record.written",
    /// It is synced beside its place.
    RecordSynced = "record.synced",
    /// It is in its place.
    RecordRenamed = "record.renamed",
    /// Its folder is synced.
    RecordDurable = "record.durable",
    /// A pull record or an intent is unlinked.
    RecordRemoved = "record.removed",
    /// The ledger or the pins are written, not yet synced.
    StateWritten = "state.written",
    /// They are synced beside their place.
    StateSynced = "state.synced",
    /// They are in their place.
    StateRenamed = "state.renamed",
    /// Their folder is synced.
    StateDurable = "state.durable",
    /// Half of a line of the decision log is written.
    DecisionHalfWritten = "decision.half-written",
    /// The whole line is.
    DecisionWritten = "decision.written",
}

/// Names the steps of a crate: an enum `Step` with `ALL`, `name` and `reach`.
#[macro_export]
macro_rules! failpoints {
    ($($(#[$document:meta])* $step:ident = $name:literal,)+) => {
        /// A step at which a crash must be harmless.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $($(#[$document])* #[doc = concat!("`", $name, "`")] $step,)+
        }

        impl Step {
            /// Every step there is.
            pub const ALL: &[Step] = &[$(Step::$step),+];

            /// What arms it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Step::$step => $name,)+
                }
            }

            /// Ends the process here when a test wants that.
            #[inline]
            pub fn reach(self) {
                if $crate::failpoint::COMPILED_IN {
                    $crate::failpoint::reach(self.name());
                }
            }
        }
    };
}

/// What the environment asks for.
enum Armed {
    Abort { name: String, left: AtomicUsize },
    Log(File),
}

/// What [`Step::reach`] does in a build that has failpoints.
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

/// The environment is read here and not where the configuration is: no user ever sets this.
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
