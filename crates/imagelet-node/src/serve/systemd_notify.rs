//! Reports the state of the daemon to systemd (`sd_notify(3)`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

use crate::config::is_empty_variable;

pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now, NotifyState::Status("reading the configuration")]),
        Err(error) => tracing::warn!(%error, "could not read the monotonic clock"),
    }
}

pub(super) fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Notifies systemd at half of its watchdog interval. If the work blocks its threads, it also blocks this task.
pub(super) async fn watchdog(stop: CancellationToken) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let mut clock = tokio::time::interval((limit / 2).max(Duration::from_millis(1)));
    while stop.run_until_cancelled(clock.tick()).await.is_some() {
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if is_empty_variable("NOTIFY_SOCKET") {
        return;
    }
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "could not notify systemd");
    }
}
