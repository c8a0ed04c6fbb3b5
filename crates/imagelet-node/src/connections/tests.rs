//! Connections that send nothing, half a request, or do not read; shares of peers; and what makes room for the next one.

use std::convert::Infallible;

use axum::{
    Extension,
    body::{Body, Bytes},
    routing::{get, post},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    net::{TcpSocket, TcpStream},
};

use super::{
    calls::{ANSWER_WITHIN, BODY_WITHIN, OPENING_WITHIN},
    places::{
        Activity::{self, Busy, Idle, Silent},
        Decision::{self, Enter, InPlaceOf, Refuse},
        HTTP_BODY_BYTES_MAX, Place, SPARE, Share, decide,
    },
    *,
};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n";
/// More than a connection buffers.
const BODY_BYTES: usize = 1 << 20;
const PEER: Peer = peer(1);
/// When the stream of events at `/events` ends by itself.
const STREAM_LASTS: Duration = Duration::from_mins(10);

const fn peer(pid: i32) -> Peer {
    Peer::Process { pid: Some(pid), uid: 0, gid: 0 }
}

fn http(all: usize, each: usize) -> Limits {
    let share = Share { all, each };
    Limits { connections: share, calls: share, ..Limits::of_http(usize::MAX) }
}

fn router() -> Router {
    let slow = async |body: String| {
        tokio::time::sleep(ANSWER_WITHIN * 3).await;
        format!("done with {body}")
    };
    let chunk = || Ok::<_, Infallible>("x".repeat(BODY_BYTES));
    let endless = move || async move { Body::from_stream(futures_util::stream::repeat_with(chunk)) };
    let events = move || async move {
        let (end, chunks) = (CancellationToken::new(), futures_util::stream::iter([chunk(), chunk(), chunk()]));
        let ends = end.clone();
        tokio::spawn(async move {
            tokio::time::sleep(STREAM_LASTS).await;
            ends.cancel();
        });
        (Extension(StreamEnd(end)), Body::from_stream(chunks))
    };
    Router::new()
        .route("/metrics", get(|| async { "x".repeat(BODY_BYTES) }))
        .route("/livez", get(|| async { "ok" }))
        .route("/endless", get(endless))
        .route("/events", get(events))
        .route("/action", post(slow))
        .route("/echo", post(|body: Bytes| async move { body }))
}

/// A place, once the connection that closes for it has closed.
async fn place(places: &Arc<Places>, peer: Peer) -> Option<Place> {
    let (place, displaced) = places.admit(peer)?;
    if let Some(closed) = displaced {
        closed.cancelled().await;
    }
    Some(place)
}

/// A connection that has a place among these.
async fn connected_to(places: &Arc<Places>, peer: Peer) -> Option<DuplexStream> {
    let place = place(places, peer).await?;
    let (client, server) = tokio::io::duplex(1024);
    tokio::spawn(calls::serve(server, place, router(), CancellationToken::new()));
    tokio::task::yield_now().await;
    Some(client)
}

async fn connected() -> DuplexStream {
    connected_to(&Arc::new(Places::new(http(8, 8))), PEER).await.unwrap()
}

/// Reads until the connection closes; returns the text and the elapsed time.
async fn read_all(mut client: impl AsyncRead + Unpin) -> (String, Duration) {
    let (started, mut read) = (Instant::now(), Vec::new());
    drop(client.read_to_end(&mut read).await);
    (String::from_utf8_lossy(&read).into_owned(), started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_whole_and_its_connection_closed() {
    let mut client = connected().await;
    client.write_all(REQUEST).await.unwrap();
    let (answer, took) = read_all(client).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{}", &answer[..200]);
    assert_eq!((answer.matches('x').count() >= BODY_BYTES, took), (true, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_or_half_a_head_is_cut() {
    for half in [&b""[..], b"GET /metrics HTTP/1.1\r\nHost:", b"PRI * HTTP/2.0"] {
        for limits in [Limits::of_socket(usize::MAX), http(8, 8)] {
            let mut client = connected_to(&Arc::new(Places::new(limits)), PEER).await.unwrap();
            client.write_all(half).await.unwrap();
            let took = read_all(client).await.1;
            assert!(took == OPENING_WITHIN || half.starts_with(b"PRI") && limits.is_http, "{took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_one_byte_a_second_is_cut() {
    let (mut reader, mut writer) = tokio::io::split(connected().await);
    let slow = tokio::spawn(async move {
        for byte in REQUEST {
            if writer.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let started = Instant::now();
    let mut read = Vec::new();
    drop(reader.read_to_end(&mut read).await);
    assert_eq!(started.elapsed(), OPENING_WITHIN);
    slow.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_given_up_and_a_stream_of_events_after_its_own_end() {
    for (path, after, is_whole) in [
        ("/metrics", ANSWER_WITHIN * 2, false),
        ("/events", STREAM_LASTS / 2, true),
        ("/events", STREAM_LASTS + ANSWER_WITHIN * 2, false),
    ] {
        let mut client = connected().await;
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes()).await.unwrap();
        tokio::time::sleep(after).await;
        let (answer, _) = read_all(client).await;
        assert_eq!(answer.len() > BODY_BYTES, is_whole, "{path} after {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_announced_and_does_not_come_holds_no_connection() {
    let mut client = connected().await;
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 1000\r\n\r\n").await.unwrap();
    let (answer, took) = read_all(client).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && took < ANSWER_WITHIN, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_or_is_too_long_is_refused() {
    let too_long = HTTP_BODY_BYTES_MAX + 1;
    for (length, sent, status, after) in [(1000, 0, "408", BODY_WITHIN), (too_long, too_long, "413", Duration::ZERO)] {
        let (reader, mut writer) = tokio::io::split(connected().await);
        let request =
            format!("POST /echo HTTP/1.1\r\nHost: node\r\nContent-Length: {length}\r\n\r\n{}", "a".repeat(sent));
        let sending = tokio::spawn(async move {
            drop(writer.write_all(request.as_bytes()).await);
            std::future::pending::<()>().await;
        });
        let (answer, took) = read_all(reader).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && took == after, "{took:?}: {answer}");
        sending.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn an_action_is_answered_however_long_it_takes() {
    let mut client = connected().await;
    client.write_all(b"POST /action HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\nit").await.unwrap();
    let (answer, took) = read_all(client).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("done with it"), "{answer}");
    assert_eq!(took, ANSWER_WITHIN * 3);
}

#[tokio::test(start_paused = true)]
async fn a_head_without_end_is_refused() {
    let mut client = connected().await;
    client.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
    while client.write_all(&[b'a'; 1024]).await.is_ok() {}
    assert!(read_all(client).await.1 < OPENING_WITHIN);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_call_closes_first_and_one_with_a_running_call_never() {
    let places = Arc::new(Places::new(http(3, 3)));
    let mut busy = connected_to(&places, PEER).await.unwrap();
    busy.write_all(b"GET /endless HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
    let mut started = connected_to(&places, PEER).await.unwrap();
    started.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n").await.unwrap();
    let _silent = connected_to(&places, PEER).await.unwrap();
    drop(busy.read_u8().await);
    // One of the two without a call makes room at once, the older one.
    let mut clients = vec![connected_to(&places, PEER).await.expect("a place")];
    assert_eq!(started.read(&mut [0]).await.unwrap_or(0), 0, "it is closed");
    for _ in 0..2 {
        let client = clients.last_mut().unwrap();
        client.write_all(b"GET /endless HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        drop(client.read_u8().await);
        clients.extend(connected_to(&places, PEER).await);
    }
    assert!(place(&places, PEER).await.is_none(), "all have a running call");
}

#[tokio::test(start_paused = true)]
async fn a_peer_at_its_share_closes_its_own_connections_alone() {
    let other = peer(2);
    let places = Arc::new(Places::new(http(4, 2)));
    let mut kubelet = connected_to(&places, other).await.unwrap();
    let mut own = Vec::new();
    for _ in 0..3 {
        own.push(connected_to(&places, PEER).await.unwrap());
    }
    assert_eq!(own[0].read(&mut [0]).await.unwrap_or(0), 0, "the peer loses one of its own");
    kubelet.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
    assert!(read_all(kubelet).await.0.ends_with("ok"));
}

#[tokio::test]
async fn no_peer_takes_the_calls_of_others() {
    let share = Share { all: 3, each: 2 };
    let places = Arc::new(Places::new(Limits { calls: share, ..http(9, 9) }));
    let other = peer(2);
    let mut running = Vec::new();
    for (peer, status) in [(PEER, "200"), (PEER, "200"), (PEER, "503"), (other, "200"), (other, "503")] {
        let mut client = connected_to(&places, peer).await.unwrap();
        client.write_all(b"GET /endless HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        client.read_exact(&mut head).await.unwrap();
        assert_eq!(&head[9..], status.as_bytes(), "{peer:?}");
        running.push(client);
    }
}

#[test]
fn the_peer_with_the_most_connections_makes_room_and_no_running_call_is_cut() {
    type Case = (&'static [(i32, Activity)], i32, Decision);
    // Peers by number; the connections are numbered from 0, the oldest first. Four in all, three of each.
    let cases: [Case; 11] = [
        (&[], 1, Enter),
        (&[(2, Silent), (2, Busy), (1, Idle)], 1, Enter),
        (&[(1, Silent), (2, Idle), (2, Idle), (2, Idle)], 1, InPlaceOf(1)),
        (&[(1, Idle), (2, Idle), (2, Idle), (2, Silent)], 3, InPlaceOf(3)),
        (&[(1, Idle), (2, Busy), (2, Busy), (2, Silent)], 3, InPlaceOf(3)),
        // Of peers with equally many: silent before idle, then by age.
        (&[(1, Idle), (2, Silent), (3, Silent), (4, Idle)], 5, InPlaceOf(1)),
        (&[(1, Idle), (2, Idle), (3, Busy), (4, Idle)], 5, InPlaceOf(0)),
        // A peer at its own share closes one of its own.
        (&[(1, Silent), (2, Idle), (2, Silent), (2, Busy)], 2, InPlaceOf(2)),
        (&[(2, Busy), (2, Busy), (2, Busy)], 2, Refuse),
        (&[(1, Silent), (2, Busy), (2, Busy), (2, Busy)], 2, Refuse),
        (&[(1, Busy), (2, Busy), (2, Busy), (1, Busy)], 3, Refuse),
    ];
    for (open, new, wanted) in cases {
        let open: Vec<_> = (0..).zip(open).map(|(number, (of, activity))| (number, peer(*of), *activity)).collect();
        assert_eq!(decide(&open, peer(new), Share { all: 4, each: 3 }), wanted, "{new} beside {open:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn exactly_one_connection_closes_for_the_next_one() {
    let places = Arc::new(Places::new(http(4, 4)));
    let mut open = Vec::new();
    for pid in 1..=4 {
        open.push(connected_to(&places, peer(pid)).await.unwrap());
    }
    assert!(connected_to(&places, peer(5)).await.is_some());
    let mut closed = 0;
    for client in &mut open {
        closed += usize::from(tokio::time::timeout(Duration::from_secs(1), client.read_u8()).await.is_ok());
    }
    assert_eq!(closed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_enters_when_the_other_one_has_closed_which_begins_no_call_any_more() {
    let places = Arc::new(Places::new(http(1, 1)));
    let silent = place(&places, PEER).await.unwrap();
    let entering = tokio::spawn({
        let places = Arc::clone(&places);
        async move { place(&places, PEER).await }
    });
    silent.close.cancelled().await;
    tokio::task::yield_now().await;
    assert!(!entering.is_finished() && !silent.begin_call(), "its descriptor is still open");
    drop(silent);
    let called = entering.await.unwrap().unwrap();
    assert!(called.begin_call() && places.admit(PEER).is_none(), "it is busy");
    assert!(!called.close.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn at_the_socket_a_call_begins_before_its_body_and_over_http_after_it() {
    let calls = Share { all: 1, each: 1 };
    for (limits, other) in [(Limits::of_socket(usize::MAX), "503"), (http(8, 8), "200")] {
        let places = Arc::new(Places::new(Limits { calls, ..limits }));
        let mut first = connected_to(&places, PEER).await.unwrap();
        first.write_all(b"POST /echo HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut second = connected_to(&places, PEER).await.unwrap();
        second.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        let (answer, _) = read_all(second).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {other} ")), "{answer}");
        first.write_all(b"it").await.unwrap();
        let (answer, _) = read_all(first).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("it"), "{answer}");
    }
}

/// A client with this address.
async fn connected_from(address: [u8; 4], server: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    socket.connect(server).await.unwrap()
}

#[tokio::test]
async fn an_address_whose_requests_hold_its_share_leaves_the_other_connections_to_others() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let server = listener.local_addr().unwrap();
    let limits = http(8, 4);
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, router(), limits, stop.clone()));
    // Half heads, bodies that do not come, and whole requests whose responses are not read.
    let requests: [&[u8]; 3] = [
        b"GET /live",
        b"POST /action HTTP/1.1\r\nHost: node\r\nContent-Length: 1000\r\n\r\n",
        b"GET /endless HTTP/1.1\r\nHost: node\r\n\r\n",
    ];
    let mut held = Vec::new();
    for request in requests {
        for _ in 0..=limits.connections.all {
            let mut client = connected_from([127, 0, 0, 2], server).await;
            // A client that was refused cannot write.
            drop(client.write_all(request).await);
            // Its request runs before the next one comes.
            if request == requests[2] {
                drop(client.read_u8().await);
            }
            held.push(client);
        }
        let mut probe = connected_from([127, 0, 0, 3], server).await;
        probe.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        let (answer, _) = read_all(probe).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok"), "{answer:?}");
    }
    let mut own = connected_from([127, 0, 0, 2], server).await;
    drop(own.write_all(REQUEST).await);
    assert_eq!(read_all(own).await.0, "", "the address has its share");
    drop(held);
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_busy_peer_that_floods_takes_no_place_in_the_queue_of_others() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let server = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, router(), http(4, 2), stop.clone()));
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut busy = connected_from([127, 0, 0, 2], server).await;
        busy.write_all(b"GET /endless HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        drop(busy.read_u8().await);
        held.push(busy);
        // The next peer finds every place taken.
        held.push(connected_from([127, 0, 0, 4], server).await);
    }
    for _ in 0..50 {
        held.push(connected_from([127, 0, 0, 2], server).await);
    }
    let mut probe = connected_from([127, 0, 0, 3], server).await;
    probe.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
    let (answer, _) = read_all(probe).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
    drop(held);
    stop.cancel();
    serving.await.unwrap();
}

/// Fails with these errors, the last first, and then waits.
struct Fails(std::sync::Mutex<Vec<Errno>>);

impl Listener for Fails {
    const NAME: &'static str = "test";
    type Stream = DuplexStream;

    async fn next(&self) -> io::Result<(DuplexStream, Peer)> {
        let next = self.0.lock().unwrap().pop();
        match next {
            Some(errno) => Err(errno.into()),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_reserve_of_descriptors_is_refilled_when_a_connection_ends() {
    let places = Arc::new(Places::new(Limits { spare: 2, ..http(4, 4) }));
    let mut acceptor = Acceptor::new(Fails(vec![Errno::MFILE; 2].into()), Arc::clone(&places));
    let ending = place(&places, PEER).await.unwrap();
    let second = Duration::from_secs(1);
    let accepting = async { tokio::time::timeout(second, acceptor.accept()).await.is_err() };
    let end = async {
        tokio::task::yield_now().await;
        drop(ending);
    };
    assert!(tokio::join!(accepting, end).0, "the listener waits");
    assert_eq!(acceptor.spare.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_without_descriptors_a_failed_accept_closes_a_connection_and_only_one() {
    for (errno, closed) in [(Errno::NOMEM, vec![]), (Errno::MFILE, vec![0]), (Errno::NFILE, vec![0])] {
        let places = Arc::new(Places::new(http(4, 4)));
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(place(&places, PEER).await.unwrap());
        }
        let mut acceptor = Acceptor::new(Fails(vec![errno].into()), Arc::clone(&places));
        tokio::time::timeout(PAUSE * 2, acceptor.accept()).await.unwrap_err();
        let found: Vec<_> = (0..open.len()).filter(|index| open[*index].close.is_cancelled()).collect();
        assert_eq!(found, closed, "{errno}");
    }
}

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
        let limits = (Limits::of_socket(files), Limits::of_http(files));
        assert_eq!(limits.0.connections, Share { all: socket, each }, "{files}");
        assert_eq!([limits.1.connections, limits.1.calls], [Share { all: http, each: http / 2 }; 2], "{files}");
        assert!(files < 64 || socket + http + SPARE <= files / 2, "{files}");
    }
}

#[test]
fn a_flood_of_connections_is_logged_with_the_number_of_suppressed_lines() {
    let mut limit = LineLimit { since: Some(Instant::now()), ..LineLimit::default() };
    let taken: Vec<_> = (0..4).map(|_| limit.take()).collect();
    assert_eq!(taken, [Some(0), Some(0), None, None]);
    limit.since = None;
    assert_eq!(limit.take(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_failed_accept_is_followed_by_a_pause_where_the_next_one_would_fail_too() {
    for (errno, pause) in [(Errno::CONNABORTED, Duration::ZERO), (Errno::MFILE, PAUSE)] {
        let places = Arc::new(Places::new(http(4, 4)));
        let mut acceptor = Acceptor::new(Fails(vec![errno; 3].into()), places);
        let waited = tokio::time::timeout(PAUSE * 10, acceptor.accept()).await;
        assert!(waited.is_err() && acceptor.listener.0.lock().unwrap().is_empty());
        let mut acceptor = Acceptor::new(Fails(vec![errno; 3].into()), Arc::clone(&acceptor.places));
        let passed = tokio::time::timeout(pause + PAUSE / 2, acceptor.accept()).await;
        let left = acceptor.listener.0.lock().unwrap().len();
        assert!(passed.is_err() && left == usize::from(!pause.is_zero()), "{errno}: {left}");
    }
}
