//! Accepts HTTP connections within limits of number and time, and answers one request on each.
//!
//! A scraper or a probe connects again for its next request, so an idle connection has no use. A call begins when its
//! request is complete: until then its connection makes room for another one. A stream of events lasts longer than other
//! answers, until its [`StreamEnd`], and so does an action.

use std::{
    convert::Infallible,
    net::IpAddr,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse as _};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;

use crate::connections::{AcceptFailures, Calls, ConnectionLimits, ConnectionTable, LineLimit};

/// How long a client may take to send the request head, from its connection on.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to send the body after that.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// The longest body: a pin, a collection, or a login.
const BODY_BYTES_MAX: usize = 64 << 10;
/// How long a connection may last: request, response, and the time to read the response; after an action once more.
const CONNECTION_MAX: Duration = Duration::from_secs(30);
/// The longest request head; a scraper's has a few hundred bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Log lines about refused connections: a peer that repeats its request must not fill a disk.
const REFUSALS_LOGGED_MAX: u32 = 2;
const REFUSALS_LOGGED_OVER: Duration = Duration::from_secs(30);

/// Extension of a response whose body has no end of its own: the connection closes when this is cancelled.
#[derive(Clone, Debug)]
pub(super) struct StreamEnd(pub(super) CancellationToken);

/// Serves until `stop` is cancelled and the running requests have ended.
pub(super) async fn serve(listener: TcpListener, router: Router, limits: ConnectionLimits, stop: CancellationToken) {
    let (mut failures, open) = (AcceptFailures::new("http"), TaskTracker::new());
    let table = ConnectionTable::<IpAddr>::new(limits);
    let mut refusals = LineLimit::new(REFUSALS_LOGGED_MAX, REFUSALS_LOGGED_OVER);
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tokio::time::sleep(failures.report(&error)).await;
                continue;
            }
        };
        failures.clear();
        let Some(connection) = table.enter(peer.ip()).await else {
            if let Some(suppressed) = refusals.take(Instant::now()) {
                let (all, each) = (limits.open.all, limits.open.each);
                tracing::warn!(
                    %peer, all, each, suppressed, "every HTTP connection, or each of this address, is busy; one is refused"
                );
            }
            continue;
        };
        let (router, stopped) = (router.clone(), stop.child_token());
        open.spawn(async move {
            tokio::select! {
                () = answer(stream, router, connection.calls(), stopped.cancelled()) => {}
                () = connection.displaced() => tracing::debug!(%peer, "an HTTP connection is closed for another one"),
            }
            drop(connection);
        });
    }
    drop(listener);
    table.close_every_silent();
    open.close();
    open.wait().await;
}

async fn answer<S>(stream: S, router: Router, calls: Calls<IpAddr>, stop: impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Each connection carries one request.
    let (action_end, stream_end) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let found = (Arc::clone(&action_end), Arc::clone(&stream_end));
    let service = service_fn(move |request: Request<Incoming>| {
        let (calls, mut router, (action_end, stream_end)) = (calls.clone(), router.clone(), found.clone());
        async move {
            let is_action = !reads(request.method());
            let request = match complete(request).await {
                Ok(request) => request,
                Err(status) => return Ok(status.into_response()),
            };
            let Some(call) = calls.begin() else { return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response()) };
            let end = CancellationToken::new();
            if is_action {
                drop(action_end.set(end.clone()));
            }
            let response = router.call(request).await?;
            end.cancel();
            if let Some(StreamEnd(end)) = response.extensions().get() {
                drop(stream_end.set(end.clone()));
            }
            Ok::<_, Infallible>(response.map(|body| Body::new(call.until_read(body))))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let served = async {
        tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = stop => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let deadline = async {
        tokio::time::sleep(CONNECTION_MAX).await;
        if let Some(end) = action_end.get() {
            end.cancelled().await;
            tokio::time::sleep(CONNECTION_MAX).await;
        }
        if let Some(end) = stream_end.get() {
            end.cancelled().await;
        } else {
            tracing::debug!("an HTTP connection lasted longer than {CONNECTION_MAX:?} and is closed");
        }
    };
    tokio::select! {
        biased;
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        }
        () = deadline => {}
    }
}

fn reads(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// The request with its whole body; that of a reading request is ignored.
///
/// # Errors
/// The status of a body that is too long, or does not come.
async fn complete(request: Request<Incoming>) -> Result<Request<Body>, StatusCode> {
    let (head, body) = request.into_parts();
    if reads(&head.method) {
        return Ok(Request::from_parts(head, Body::empty()));
    }
    match tokio::time::timeout(BODY_WITHIN, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Ok(Err(_)) => Err(StatusCode::BAD_REQUEST),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
        net::{TcpSocket, TcpStream},
    };

    use super::*;
    use crate::connections::{Limit, http_limits};

    const LIMITS: ConnectionLimits = ConnectionLimits { open: LIMIT, calls: LIMIT };
    const LIMIT: Limit = Limit { all: 8, each: 8 };
    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n";
    /// More than a connection buffers.
    const BODY_BYTES: usize = 1 << 20;

    fn router() -> Router {
        let slow = async |body: String| {
            tokio::time::sleep(CONNECTION_MAX * 3).await;
            format!("done with {body}")
        };
        let chunk = || Ok::<_, Infallible>("x".repeat(BODY_BYTES));
        let endless = move || async move { Body::from_stream(futures_util::stream::repeat_with(chunk)) };
        Router::new()
            .route("/metrics", get(|| async { "x".repeat(BODY_BYTES) }))
            .route("/livez", get(|| async { "ok" }))
            .route("/endless", get(endless))
            .route("/action", post(slow))
    }

    /// A served connection; its peer closes when the response has ended.
    async fn connected() -> DuplexStream {
        let (client, server) = tokio::io::duplex(1024);
        let open = ConnectionTable::new(LIMITS).enter(IpAddr::from([127, 0, 0, 1])).await.unwrap();
        let answering = answer(server, router(), open.calls(), std::future::pending());
        tokio::spawn(async move {
            answering.await;
            drop(open);
        });
        client
    }

    /// Reads until the connection closes; returns the text and the elapsed time.
    async fn read_all(mut client: impl AsyncRead + Unpin) -> (String, Duration) {
        let (started, mut read) = (Instant::now(), Vec::new());
        drop(client.read_to_end(&mut read).await);
        (String::from_utf8(read).unwrap(), started.elapsed())
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
        for half in [&b""[..], b"GET /metrics HTTP/1.1\r\nHost:"] {
            let mut client = connected().await;
            client.write_all(half).await.unwrap();
            assert_eq!(read_all(client).await, (String::new(), HEAD_WITHIN));
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
        assert_eq!(started.elapsed(), HEAD_WITHIN);
        slow.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_is_given_up() {
        let mut client = connected().await;
        client.write_all(REQUEST).await.unwrap();
        tokio::time::sleep(CONNECTION_MAX * 2).await;
        let (answer, _) = read_all(client).await;
        assert!(answer.len() < BODY_BYTES, "the rest of the answer was thrown away");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_lasts_until_its_end_although_its_client_does_not_read() {
        let end = CancellationToken::new();
        let handler = {
            let end = end.clone();
            move || async move { (axum::Extension(StreamEnd(end)), "x".repeat(BODY_BYTES)) }
        };
        let (mut client, server) = tokio::io::duplex(1024);
        let open = ConnectionTable::new(LIMITS).enter(IpAddr::from([127, 0, 0, 1])).await.unwrap();
        let router = Router::new().route("/metrics", get(handler));
        let answering = tokio::spawn(async move {
            answer(server, router, open.calls(), std::future::pending()).await;
        });
        client.write_all(REQUEST).await.unwrap();
        tokio::time::sleep(CONNECTION_MAX * 10).await;
        assert!(!answering.is_finished());
        end.cancel();
        answering.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_announced_and_does_not_come_holds_no_connection() {
        let mut client = connected().await;
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 1000\r\n\r\n").await.unwrap();
        let (answer, took) = read_all(client).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && took < CONNECTION_MAX, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_or_is_too_long_is_refused() {
        let too_long = BODY_BYTES_MAX + 1;
        for (length, sent, status, after) in
            [(1000, 0, "408", BODY_WITHIN), (too_long, too_long, "413", Duration::ZERO)]
        {
            let (reader, mut writer) = tokio::io::split(connected().await);
            let request =
                format!("POST /action HTTP/1.1\r\nHost: node\r\nContent-Length: {length}\r\n\r\n{}", "a".repeat(sent));
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
        assert_eq!(took, CONNECTION_MAX * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_without_end_is_refused() {
        let mut client = connected().await;
        client.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
        while client.write_all(&[b'a'; 1024]).await.is_ok() {}
        assert!(read_all(client).await.1 < HEAD_WITHIN);
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
        let limits = http_limits(usize::MAX);
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
            for _ in 0..=limits.open.all {
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
    async fn a_scraper_is_answered_while_idle_clients_hold_every_connection() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = LIMITS;
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router(), limits, stop.clone()));
        let without_body = b"POST /action HTTP/1.1\r\nHost: node\r\nContent-Length: 1000\r\n\r\n";
        let mut waiting = Vec::new();
        for _ in 0..limits.open.all * 2 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(without_body).await.unwrap();
            waiting.push(client);
        }
        let mut scraper = TcpStream::connect(address).await.unwrap();
        scraper.write_all(REQUEST).await.unwrap();
        assert!(
            read_all(scraper).await.0.starts_with("HTTP/1.1 200 "),
            "bodies that do not come hold every connection"
        );
        let mut idle = Vec::new();
        for _ in 0..limits.open.all * 3 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET /met").await.unwrap();
            idle.push(client);
        }
        let mut scraper = TcpStream::connect(address).await.unwrap();
        scraper.write_all(REQUEST).await.unwrap();
        let (answer, _) = read_all(scraper).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.len() > BODY_BYTES, "{} bytes", answer.len());
        // The oldest was closed; the others may still finish their request.
        let mut newest = idle.pop().unwrap();
        newest.write_all(&REQUEST[8..]).await.unwrap();
        assert!(read_all(newest).await.0.starts_with("HTTP/1.1 200 "));
        assert_eq!(read_all(idle.swap_remove(0)).await.0, "");
        stop.cancel();
        server.await.unwrap();
    }
}
