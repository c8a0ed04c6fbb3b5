//! The daemon under systemd: the listening socket (`sd_listen_fds(3)`), and the reports of its state (`sd_notify(3)`).

use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{is_empty_variable, variable},
    failure::Failure,
};

const NAMES: [&str; 3] = ["imagelet.socket", "imagelet", "cri"];

pub(super) fn taken_over() -> Result<Option<UnixListener>, Failure> {
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut inherited = ListenFd::from_env();
    if inherited.len() == 0 {
        return Ok(None);
    }
    let failed =
        |error: std::io::Error| Failure::because("could not take over the socket of the service manager", &error);
    let index = chosen(&names);
    let Some(listener) = inherited.take_unix_listener(index).map_err(failed)? else { return Ok(None) };
    // Child processes must not inherit the socket.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    UnixListener::from_std(listener).map(Some).map_err(failed)
}

/// The index of imagelet's socket: the first socket with a name in `NAMES`, else the first socket.
fn chosen(names: &str) -> usize {
    names.split(':').position(|name| NAMES.contains(&name)).unwrap_or(0)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_sockets_the_one_with_our_name_is_taken() {
        for (names, index) in
            [("", 0), ("imagelet.socket", 0), ("metrics:imagelet.socket", 1), ("a:b:cri", 2), ("a:b", 0)]
        {
            assert_eq!(chosen(names), index, "{names}");
        }
    }
}
