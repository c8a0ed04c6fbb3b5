//! Tells the service manager how the daemon is (`sd_notify(3)`).

use std::{
    ffi::OsString,
    os::unix::{ffi::OsStrExt as _, net::UnixDatagram},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::config::Environment;

/// Whoever started the daemon and wants to hear of it.
#[derive(Clone, Debug)]
pub(super) struct ServiceManager {
    /// `None`: nobody does.
    socket: Option<OsString>,
    /// Without a word within this time the daemon is taken for hung.
    patience: Option<Duration>,
}

impl ServiceManager {
    pub(super) fn new(environment: &Environment) -> Self {
        Self { socket: environment.notify_socket.clone(), patience: environment.watchdog }
    }

    /// It answers.
    pub(super) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// It reads its configuration again; `ready` says when that is over.
    pub(super) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let microseconds = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=reading the configuration"));
    }

    /// It stops.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping");
    }

    /// Says that the daemon is alive, twice as often as is wanted, from a task among those that do its work.
    pub(super) async fn keep_calm(self, stop: CancellationToken) {
        let (Some(patience), Some(_)) = (self.patience, &self.socket) else { return };
        let mut clock = tokio::time::interval((patience / 2).max(Duration::from_millis(1)));
        loop {
            tokio::select! {
                _ = clock.tick() => self.tell("WATCHDOG=1"),
                () = stop.cancelled() => return,
            }
        }
    }

    fn tell(&self, state: &str) {
        let Some(address) = &self.socket else { return };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            // A manager that does not read must not hold the daemon up.
            socket.set_nonblocking(true)?;
            match address.as_bytes() {
                [b'@', name @ ..] => {
                    use std::os::linux::net::SocketAddrExt as _;
                    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                    socket.send_to_addr(state.as_bytes(), &address)
                }
                _ => socket.send_to(state.as_bytes(), address),
            }
        });
        if let Err(error) = sent {
            tracing::warn!(%error, "could not notify the service manager");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(manager: &UnixDatagram) -> String {
        let mut words = [0; 256];
        let length = manager.recv(&mut words).expect("words");
        String::from_utf8_lossy(&words[..length]).into_owned()
    }

    #[tokio::test]
    async fn the_service_manager_hears_of_each_turn() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let environment = Environment {
            notify_socket: Some(path.into_os_string()),
            watchdog: Some(Duration::from_millis(20)),
            ..Environment::default()
        };
        let manager = ServiceManager::new(&environment);
        manager.ready("serving");
        assert_eq!(heard(&socket), "READY=1\nSTATUS=serving");
        manager.reloading();
        let reloading = heard(&socket);
        let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("the moment");
        assert!(since.lines().next().expect("a line").parse::<u64>().expect("a number") > 0, "{reloading}");
        manager.stopping();
        assert_eq!(heard(&socket), "STOPPING=1\nSTATUS=stopping");
        let stop = CancellationToken::new();
        let calm = tokio::spawn(manager.keep_calm(stop.clone()));
        let beats = tokio::task::spawn_blocking(move || [heard(&socket), heard(&socket)]).await.expect("two beats");
        assert_eq!(beats, ["WATCHDOG=1", "WATCHDOG=1"]);
        stop.cancel();
        calm.await.expect("it ends");
    }

    #[test]
    fn a_manager_that_is_away_holds_nobody_up() {
        let environment = Environment { notify_socket: Some("/nonexistent/notify".into()), ..Environment::default() };
        ServiceManager::new(&environment).ready("serving");
        ServiceManager::new(&Environment::default()).stopping();
    }
}
