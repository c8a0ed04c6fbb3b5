//! Connections that send nothing, half a request, or do not read; shares of peers; and what makes room for the next one.

use std::convert::Infallible;

use axum::{
    body::{Body, Bytes},
    routing::{get, post},
};
use http::header;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    net::{TcpSocket, TcpStream},
};

use super::{
    calls::{ANSWER_WITHIN, BODY_WITHIN, OPENING_WITHIN},
    places::{HTTP_BODY_BYTES_MAX, Share},
    *,
};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n";
/// More than a connection buffers.
const BODY_BYTES: usize = 1 << 20;
const PEER: Peer = Peer::Process { pid: Some(1), uid: 0, gid: 0 };

fn http(all: usize, each: usize) -> Limits {
    let share = Share { all, each };
    Limits { connections: share, calls: share, ..Limits::of_http() }
}

fn router() -> Router {
    let slow = async |body: String| {
        tokio::time::sleep(ANSWER_WITHIN * 3).await;
        format!("done with {body}")
    };
    let chunk = || Ok::<_, Infallible>("x".repeat(BODY_BYTES));
    let endless = move || async move { Body::from_stream(futures_util::stream::repeat_with(chunk)) };
    let events = move || async move {
        let chunks = futures_util::stream::iter([chunk(), chunk(), chunk()]);
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks))
    };
    Router::new()
        .route("/metrics", get(|| async { "x".repeat(BODY_BYTES) }))
        .route("/livez", get(|| async { "ok" }))
        .route("/endless", get(endless))
        .route("/events", get(events))
        .route("/action", post(slow))
        .route("/echo", post(|body: Bytes| async move { body }))
}

/// A connection that has a place among these.
async fn connected_to(places: &Arc<Places>, peer: Peer) -> Option<DuplexStream> {
    let place = places.place(peer).await?;
    let (client, server) = tokio::io::duplex(1024);
    tokio::spawn(Connection { place, router: router(), stop: CancellationToken::new() }.serve(server));
    // It is subscribed to displacements.
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
        for limits in [Limits::of_socket(), http(8, 8)] {
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
async fn an_answer_that_is_not_read_is_given_up_and_a_stream_of_events_has_its_own_end() {
    for (path, is_whole) in [("/metrics", false), ("/events", true)] {
        let mut client = connected().await;
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes()).await.unwrap();
        tokio::time::sleep(ANSWER_WITHIN * 2).await;
        let (answer, _) = read_all(client).await;
        assert_eq!(answer.len() > BODY_BYTES, is_whole, "{path}");
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
    let mut answered = connected_to(&places, PEER).await.unwrap();
    answered.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n").await.unwrap();
    let mut silent = connected_to(&places, PEER).await.unwrap();
    drop(busy.read_u8().await);
    // The two without a call make room at once.
    let mut clients = vec![connected_to(&places, PEER).await.expect("a place")];
    assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0, "it is closed");
    for _ in 0..2 {
        let client = clients.last_mut().unwrap();
        client.write_all(b"GET /endless HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        drop(client.read_u8().await);
        clients.extend(connected_to(&places, PEER).await);
    }
    assert!(places.place(PEER).await.is_none(), "all have a running call");
}

#[tokio::test(start_paused = true)]
async fn a_peer_at_its_share_closes_its_own_connections_alone() {
    let other = Peer::Process { pid: Some(2), uid: 0, gid: 0 };
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
    let other = Peer::Process { pid: Some(2), uid: 0, gid: 0 };
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

#[test]
fn a_flood_of_connections_is_logged_with_the_number_of_suppressed_lines() {
    let mut limit = LineLimit { since: Some(Instant::now()), ..LineLimit::new(2) };
    let taken: Vec<_> = (0..4).map(|_| limit.take()).collect();
    assert_eq!(taken, [Some(0), Some(0), None, None]);
    limit.since = None;
    assert_eq!(limit.take(), Some(2));
}

#[test]
fn a_failed_accept_is_followed_by_a_pause_where_the_next_one_would_fail_too() {
    let pauses = |errno: Errno| [0, 1, 9].map(|before| pause_after(&errno.into(), before));
    assert_eq!(pauses(Errno::CONNABORTED), [Duration::ZERO; 3]);
    assert_eq!(pauses(Errno::MFILE), [PAUSE_FIRST, PAUSE_FIRST * 2, PAUSE_MAX]);
}
