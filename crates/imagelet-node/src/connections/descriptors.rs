//! Divides the process's descriptors: limits for each listener, and a reserve for the CRI socket.

use std::{
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Resource, getrlimit},
};

use super::table::{ConnectionLimits, Limit};

/// Connections at the CRI socket; a kubelet needs one or two.
const SOCKET_MAX: usize = 512;
/// Divisor of the open files limit for the CRI socket; pulls keep the larger part.
const SOCKET_PART: usize = 4;
/// Connections over HTTP; a scraper and a probe need one each.
const HTTP_MAX: usize = 32;
/// Divisor of the open files limit for HTTP.
const HTTP_PART: usize = 8;
const LISTENER_MIN: usize = 4;
/// Concurrent calls of one process; a kubelet of 110 pods stays well below.
const CALLS_EACH_MAX: usize = 512;
const CALLS_ALL_MAX: usize = 2048;
/// Reserved descriptors: a kubelet's connections and a few commands.
const SPARE: usize = 8;

pub(crate) fn open_files_max() -> usize {
    getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Limits of the CRI socket. One process may have half of all connections.
pub(crate) fn socket_limits(files_max: usize) -> ConnectionLimits {
    let all = (files_max / SOCKET_PART).clamp(LISTENER_MIN, SOCKET_MAX);
    ConnectionLimits { open: Limit { all, each: all / 2 }, calls: Limit { all: CALLS_ALL_MAX, each: CALLS_EACH_MAX } }
}

/// Limits of HTTP. One address may have half of all connections: the rest answers probes of other addresses while its
/// requests run. Clients behind one NAT address share that half.
pub(crate) fn http_limits(files_max: usize) -> ConnectionLimits {
    let all = (files_max / HTTP_PART).clamp(LISTENER_MIN, HTTP_MAX);
    let limit = Limit { all, each: all / 2 };
    ConnectionLimits { open: limit, calls: limit }
}

/// Open descriptors that are closed when an accept finds no free one.
#[derive(Debug)]
pub(crate) struct SpareDescriptors(Mutex<Vec<OwnedFd>>);

impl SpareDescriptors {
    pub(crate) fn new() -> Self {
        let spare = Self(Mutex::new(Vec::with_capacity(SPARE)));
        spare.restore();
        spare
    }

    /// Closes one. `false`: the reserve is empty.
    pub(crate) fn spend(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }

    /// Refills the reserve as far as descriptors are free.
    pub(crate) fn restore(&self) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while spare.len() < SPARE {
            match rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(opened) => spare.push(opened),
                Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_listeners_leave_more_than_half_of_the_descriptors() {
        for (files, socket, each, http) in [
            (usize::MAX, 512, 256, 32),
            (2048, 512, 256, 32),
            (1024, 256, 128, 32),
            (256, 64, 32, 32),
            (64, 16, 8, 8),
            (0, 4, 2, 4),
        ] {
            let limits = (socket_limits(files), http_limits(files));
            assert_eq!((limits.0.open.all, limits.0.open.each, limits.1.open.all), (socket, each, http), "{files}");
            assert_eq!((limits.1.open.each, limits.1.calls), (http / 2, limits.1.open), "{files}");
            assert!(files < 64 || socket + http + SPARE <= files / 2, "{files}");
        }
    }

    #[test]
    fn a_spent_reserve_fills_up_again() {
        let spare = SpareDescriptors::new();
        assert_eq!((0..SPARE + 2).filter(|_| spare.spend()).count(), SPARE);
        spare.restore();
        assert!(spare.spend());
    }
}
