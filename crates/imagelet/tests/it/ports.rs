//! Loopback ports that stay ours from the choice of a number to the end of the program that listens there.

use std::{
    fmt,
    fs::{self, File},
    net::TcpListener,
    ops::RangeInclusive,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::fs::{FlockOperation, flock};

/// Below the range from which the kernel takes ports for connections and for listeners that leave the choice to it.
/// A number out of that range can be given to anybody between the choice and the start of a program; and who dials it
/// meanwhile may be connected to himself.
const NUMBERS: RangeInclusive<u16> = 12_000..=31_999;

/// How many numbers this process has looked at: none is chosen twice, as a test may count on nobody being where a
/// program of its own has ended.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);

/// A number on which nobody listens and which no other process chooses, while this value lives.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _mark: File,
}

impl Port {
    pub(crate) fn choose() -> Self {
        let kernel = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = kernel.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a range of ports");
        let folder = std::env::temp_dir().join("imagelet-it-ports");
        fs::create_dir_all(&folder).unwrap();
        for _ in NUMBERS {
            // Test processes that run side by side begin at different places, so that they seldom meet.
            let place = std::process::id().wrapping_add(LOOKED_AT.fetch_add(1, Ordering::Relaxed)) % 20_000;
            let number = NUMBERS.start() + u16::try_from(place).expect("it is small");
            if number >= first {
                continue;
            }
            let mark = File::create(folder.join(number.to_string())).unwrap();
            let is_ours = flock(&mark, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_ours && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _mark: mark };
            }
        }
        panic!("no port from {NUMBERS:?} below {first} is free");
    }

    /// `127.0.0.1:NUMBER`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(formatter)
    }
}

#[test]
fn no_port_is_chosen_twice() {
    let first = Port::choose();
    let number = first.number;
    drop(first);
    let second = Port::choose();
    assert_ne!(second.number, number);
    // Nobody else gets it while it is ours, and a program can listen there.
    let mark = File::create(std::env::temp_dir().join("imagelet-it-ports").join(second.to_string())).unwrap();
    assert!(flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err());
    TcpListener::bind(second.address()).unwrap();
}
