//! Loopback ports that stay ours from the choice of a number to the end of the program that listens there.

use std::{
    fmt,
    fs::{self, File},
    net::TcpListener,
    ops::RangeInclusive,
};

use rustix::fs::{FlockOperation, flock};

/// Below the range from which the kernel takes ports for connections and for listeners that leave the choice to it.
/// A number out of that range can be given to anybody between the choice and the start of a program; and who dials it
/// meanwhile may be connected to himself.
const NUMBERS: RangeInclusive<u16> = 12_000..=31_999;

/// A number on which nobody listens and which no other test chooses, while this value lives.
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
        // Test processes that run side by side begin at different places, so that they seldom meet.
        let offset = u16::try_from(std::process::id() % 20_000).expect("it is small");
        let numbers = NUMBERS.map(|number| 12_000 + (number - 12_000 + offset) % 20_000);
        for number in numbers.filter(|number| *number < first) {
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
fn a_port_is_chosen_once_and_again_when_it_is_free() {
    let first = Port::choose();
    let second = Port::choose();
    assert_ne!(first.number, second.number);
    let held = TcpListener::bind(first.address()).unwrap();
    let number = first.number;
    drop(first);
    assert_ne!(Port::choose().number, number, "somebody listens there");
    drop(held);
}
