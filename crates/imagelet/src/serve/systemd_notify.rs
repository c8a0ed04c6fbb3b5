//! Reports the state of the daemon to systemd (`sd_notify(3)`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

/// The daemon answers.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The daemon reads its configuration again; `ready` reports the end of that.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now, NotifyState::Status("reading the configuration")]),
        Err(error) => tracing::warn!(%error, "could not read the monotonic clock"),
    }
}

/// The daemon stops.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Reports that the daemon is alive, twice as often as systemd wants, from a task among those that do its work.
pub(super) async fn watchdog(stop: CancellationToken) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let mut clock = tokio::time::interval((limit / 2).max(Duration::from_millis(1)));
    while stop.run_until_cancelled(clock.tick()).await.is_some() {
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "could not notify systemd");
    }
}
