//! How long pods take to start, without what their images took (`spec/pull.md §9.4`).

use std::fmt;

/// Hears of pulls by pod. Must not block: it is called on the way of a pull.
pub trait PullRecorder: Send + Sync + fmt::Debug {
    /// A pull for a pod is about to begin.
    fn pull_started(&self, pod_uid: &str);

    /// An image is there for a pod, pulled or found.
    fn pull_finished(&self, pod_uid: &str);
}
