//! TCP connections by happy eyeballs (RFC 8305): address families alternate, and the first connection is used.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use imagelet_core::error::Stage;
use rustix::net::sockopt;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::ConnectError;
use crate::registry::path_check::steps::record;

/// The delay after which the next address is tried in parallel, as RFC 8305 recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Maximum number of addresses of one name, so that all attempts start within the default deadline.
const ADDRESSES_MAX: usize = 16;
const SHOWN_MAX: usize = 4;
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The first [`SHOWN_MAX`] texts, and how many `things` are left out.
pub(super) fn listed(texts: impl ExactSizeIterator<Item = impl ToString>, separator: &str, things: &str) -> String {
    let more = texts.len().saturating_sub(SHOWN_MAX);
    let text = texts.take(SHOWN_MAX).map(|text| text.to_string()).collect::<Vec<_>>().join(separator);
    if more == 0 { text } else { format!("{text}{separator}and {more} more{things}") }
}

/// Connects to a host. The limit covers the name lookup and all addresses.
pub(crate) async fn dial(host: &str, port: u16, limit: Duration) -> Result<TcpStream, ConnectError> {
    let connecting = async {
        let unresolved = |source| ConnectError::Unresolved { host: host.to_owned(), source };
        let began = Instant::now();
        let found = tokio::net::lookup_host((host, port)).await.map_err(unresolved)?;
        let addresses = interleaved(found.take(ADDRESSES_MAX).collect());
        record(Stage::Dns, began, &host, listed(addresses.iter().map(SocketAddr::ip), ", ", ""));
        let began = Instant::now();
        if addresses.is_empty() {
            return Err(unresolved(io::ErrorKind::NotFound.into()));
        }
        let stream = race(addresses, connect).await.map_err(ConnectError::AllFailed)?;
        let peer = stream.peer_addr().map_or_else(|_| String::new(), |peer| peer.to_string());
        record(Stage::Connect, began, &format_args!("{host}:{port}"), peer);
        Ok(stream)
    };
    let late = |_| ConnectError::DialLate { host: host.to_owned(), limit };
    timeout(limit, connecting).await.map_err(late)?
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
    Ok(stream)
}

/// Alternates the address families, the resolver's preferred family first. Keeps the order within each family.
fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let prefers_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (preferred, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == prefers_v6);
    let mut other = other.into_iter();
    let mut order: Vec<SocketAddr> =
        preferred.into_iter().flat_map(|address| [Some(address), other.next()]).flatten().collect();
    order.extend(other);
    order
}

/// Tries all addresses. Attempts start [`ATTEMPT_DELAY`] apart, or earlier if one fails. Returns the first success.
async fn race<T, F: Future<Output = io::Result<T>>>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, Vec<(SocketAddr, io::Error)>> {
    let mut left = addresses.iter().copied();
    let mut running = FuturesUnordered::new();
    let mut failed = Vec::new();
    loop {
        if let Some(address) = left.next() {
            let attempt = connect(address);
            running.push(async move { (address, attempt.await) });
        }
        tokio::select! {
            ended = running.next() => match ended {
                Some((_, Ok(connection))) => return Ok(connection),
                Some((address, Err(error))) => failed.push((address, error)),
                None => break,
            },
            () = sleep(ATTEMPT_DELAY), if left.len() > 0 => {}
        }
    }
    failed.sort_by_key(|(address, _)| addresses.iter().position(|other| other == address));
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::{
        registry::tests::failover::fault,
        testing::{FaultRegistry, TestImage},
    };

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts
            .iter()
            .map(|text| if text.contains(':') { format!("[{text}]:5000") } else { format!("{text}:5000") })
            .map(|text| text.parse().expect("an address"))
            .collect()
    }

    #[test]
    fn both_families_take_turns_in_the_order_of_the_resolver() {
        for (found, order) in [
            (&[][..], &[][..]),
            (&["10.0.0.1"], &["10.0.0.1"]),
            (&["10.0.0.2", "10.0.0.1"], &["10.0.0.2", "10.0.0.1"]),
            (&["2::1", "2::2", "2::3", "10.0.0.1"], &["2::1", "10.0.0.1", "2::2", "2::3"]),
            (&["10.0.0.1", "2::1", "2::2", "2::3"], &["10.0.0.1", "2::1", "2::2", "2::3"]),
            (&["2::1", "10.0.0.1", "10.0.0.2"], &["2::1", "10.0.0.1", "10.0.0.2"]),
        ] {
            assert_eq!(interleaved(addresses(found)), addresses(order), "{found:?}");
        }
    }

    /// What an address does, and after how many milliseconds.
    #[derive(Clone, Copy)]
    enum End {
        Connects(u64),
        Fails(u64),
        Never,
    }

    /// The winner or the failed addresses, the milliseconds it took, and when each attempt started.
    async fn run(ends: &[End]) -> (Result<usize, Vec<usize>>, u128, Vec<u128>) {
        let addresses: Vec<SocketAddr> = (1..).take(ends.len()).map(|port| ([10, 0, 0, 1], port).into()).collect();
        let index_of = |address: &SocketAddr| addresses.iter().position(|other| other == address).expect("one of them");
        let (began, starts) = (Instant::now(), RefCell::new(Vec::new()));
        let winner = race(addresses.clone(), |address| {
            starts.borrow_mut().push(began.elapsed().as_millis());
            let index = index_of(&address);
            let end = ends[index];
            async move {
                match end {
                    End::Connects(after) => sleep(Duration::from_millis(after)).await,
                    End::Fails(after) => {
                        sleep(Duration::from_millis(after)).await;
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    End::Never => std::future::pending().await,
                }
                Ok(index)
            }
        })
        .await
        .map_err(|failed| failed.iter().map(|(address, _)| index_of(address)).collect());
        (winner, began.elapsed().as_millis(), starts.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_connection_wins_and_a_dead_address_costs_its_head_start() {
        use End::{Connects, Fails, Never};
        for (ends, winner, took, starts) in [
            (&[Connects(100), Connects(0)][..], Ok(0), 100, &[0][..]),
            (&[Never, Connects(20)], Ok(1), 270, &[0, 250]),
            (&[Connects(400), Connects(300)], Ok(0), 400, &[0, 250]),
            (&[Connects(900), Connects(300)], Ok(1), 550, &[0, 250]),
            (&[Fails(10), Connects(20)], Ok(1), 30, &[0, 10]),
            (&[Never, Fails(10), Never, Connects(5)], Ok(3), 515, &[0, 250, 260, 510]),
            (&[Fails(300), Fails(10)], Err(vec![0, 1]), 300, &[0, 250]),
        ] {
            assert_eq!(run(ends).await, (winner, took, starts.to_vec()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn any_number_of_dead_addresses_starts_within_the_default_deadline() {
        let ends = [End::Never; ADDRESSES_MAX];
        let limit = crate::registry::RegistryTimeouts::default().dial;
        assert!(timeout(limit, run(&ends)).await.is_err());
        let mut ends = ends;
        ends[ADDRESSES_MAX - 1] = End::Connects(1000);
        let (winner, took, _) = timeout(limit, run(&ends)).await.expect("within the deadline");
        assert_eq!((winner, took), (Ok(ADDRESSES_MAX - 1), 4750));
    }

    #[tokio::test]
    async fn a_refused_connection_names_its_addresses() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        dial("127.0.0.1", port, Duration::from_secs(30)).await.expect("it listens");
        drop(listener);
        let error = dial("127.0.0.1", port, Duration::from_secs(30)).await.unwrap_err();
        let refused = io::ErrorKind::ConnectionRefused;
        assert!(matches!(&error, ConnectError::AllFailed(tried) if tried[0].1.kind() == refused), "{error}");
        assert!(error.to_string().starts_with(&format!("127.0.0.1:{port}: ")), "{error}");
        let many = (0..9).map(|last| (([10, 0, 0, last], 1).into(), io::ErrorKind::TimedOut.into())).collect();
        assert!(ConnectError::AllFailed(many).to_string().ends_with("; and 5 more addresses"));
    }

    #[tokio::test]
    async fn a_host_that_drops_packets_costs_one_deadline() {
        let full = FaultRegistry::start(Some(fault("dial-dropped")), &TestImage::of_size(1)).await;
        let port = full.address().parse::<SocketAddr>().unwrap().port();
        let began = Instant::now();
        let error = dial("127.0.0.1", port, Duration::from_secs(2)).await.unwrap_err();
        assert!(matches!(error, ConnectError::DialLate { .. }) && began.elapsed() >= Duration::from_secs(2), "{error}");
        assert_eq!(error.to_string(), "no connection to `127.0.0.1` within 2 s");
    }
}
