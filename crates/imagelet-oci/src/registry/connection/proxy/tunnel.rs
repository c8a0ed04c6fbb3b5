//! A tunnel through a proxy to one host: HTTP `CONNECT`, or SOCKS5.

use std::{convert::Infallible, future::ready, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{Request, Uri, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::{client::legacy::connect::proxy::SocksV5, rt::TokioIo};
use tokio::time::timeout;
use tower::{Service as _, service_fn};

use super::url::Proxy;
use crate::registry::connection::{ConnectError, HttpError, stream::RegistryConnection};

pub(crate) const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Turns a connection to the proxy into a tunnel to `host` (`HOST:PORT`).
pub(crate) async fn tunnel(
    proxy: &Proxy,
    stream: RegistryConnection,
    host: &str,
) -> Result<RegistryConnection, ConnectError> {
    let connecting = async {
        if proxy.is_socks() { socks_tunnel(proxy, stream, host).await } else { http_tunnel(proxy, stream, host).await }
    };
    timeout(TUNNEL_TIMEOUT, connecting).await.map_err(|_| ConnectError::TunnelLate { host: host.to_owned() })?
}

async fn http_tunnel(
    proxy: &Proxy,
    stream: RegistryConnection,
    host: &str,
) -> Result<RegistryConnection, ConnectError> {
    let broken = |error: hyper::Error| ConnectError::ProxyBroken(HttpError::new(error));
    let handshake = http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(broken)?;
    let request = Request::connect(host).header(header::HOST, host).body(Empty::<Bytes>::new());
    let mut request =
        request.map_err(|_| ConnectError::TunnelRefused("the name of the host is not valid".to_owned()))?;
    if let Some(authorization) = proxy.authorization.clone() {
        request.headers_mut().insert(header::PROXY_AUTHORIZATION, authorization);
    }
    let exchange = pin!(async {
        let response = sender.send_request(request).await.map_err(broken)?;
        if !response.status().is_success() {
            return Err(ConnectError::ProxyRefused(response.status()));
        }
        let stream = hyper::upgrade::on(response).await.map_err(broken)?;
        Ok(RegistryConnection::over(TokioIo::new(stream)))
    });
    // One task polls both. If two do, hyper may lose a request that is sent while the connection fails, and the answer
    // never comes (hyperium/hyper#4122).
    match select(exchange, connection.with_upgrades()).await {
        Either::Left((tunnel, _)) => tunnel,
        Either::Right((_, exchange)) => exchange.await,
    }
}

async fn socks_tunnel(
    proxy: &Proxy,
    stream: RegistryConnection,
    host: &str,
) -> Result<RegistryConnection, ConnectError> {
    let problem = |problem: &dyn std::fmt::Display| ConnectError::TunnelRefused(problem.to_string());
    let uri = |authority: &str| format!("socks5://{authority}/").parse::<Uri>().map_err(|error| problem(&error));
    // The SOCKS client calls its connector once, to reach the proxy. The connector returns the existing connection.
    let mut stream = Some(TokioIo::new(stream));
    let connected = service_fn(move |_: Uri| ready(Ok::<_, Infallible>(stream.take().expect("called once"))));
    let mut socks = SocksV5::new(uri("proxy")?, connected);
    if let Some((user, password)) = &proxy.login {
        socks = socks.with_auth(user.clone(), password.expose().to_owned());
    }
    let stream = socks.call(uri(host)?).await.map_err(|error| problem(&error))?;
    Ok(stream.into_inner())
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::net::UnixStream as StdUnixStream, thread};

    use tokio::net::UnixStream;

    use super::*;

    /// Whether the request is lost depends on the timing of threads, so the test sends many.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_proxy_that_answers_before_the_request_without_http_is_refused_at_once() {
        let proxy = Proxy::parse("http://proxy:3128").expect("a proxy");
        for call in 0..20_000 {
            let (ours, mut theirs) = StdUnixStream::pair().expect("two streams");
            ours.set_nonblocking(true).expect("a stream");
            let ours = RegistryConnection::over(UnixStream::from_std(ours).expect("a stream"));
            let answers = thread::spawn(move || {
                drop(theirs.write_all(b"SSH-2.0-OpenSSH_9.9\r\n"));
                theirs
            });
            let refused = tunnel(&proxy, ours, "registry.example:443").await.map(drop);
            assert!(matches!(refused, Err(ConnectError::ProxyBroken(_))), "call {call}: {refused:?}");
            drop(answers.join());
        }
    }
}
