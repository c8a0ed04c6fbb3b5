//! The listening socket from a service manager (`sd_listen_fds(3)`).

use listenfd::ListenFd;
use tokio::net::UnixListener;

use crate::{config::variable, failure::Failure};

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
