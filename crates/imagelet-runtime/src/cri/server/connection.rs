//! Serves the calls of accepted connections, each within its caller's deadline.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{codegen::http, service::Routes, transport::server::Connected};
use tower::{ServiceExt as _, service_fn};

use super::{deadline, with_body};

/// Most calls of one connection at a time.
const STREAMS_MAX: u32 = 256;
/// A client that is silent for this long is pinged.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The longest headers of a call; tokens and trace headers fit.
const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// Serves connections until `stop` is cancelled and the running calls have ended.
///
/// Tonic's server is not used: it ends a late call with `Cancelled`, at the time at which `DeadlineExceeded` is due, and
/// no layer inside it is always first.
pub async fn serve<C>(connections: impl Stream<Item = C>, routes: Routes, stop: CancellationToken)
where
    C: Connected + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    C::ConnectInfo: Send,
{
    let (routes, open, builder) = (routes.prepare(), TaskTracker::new(), http2());
    {
        let mut connections = std::pin::pin!(connections.take_until(stop.cancelled()));
        while let Some(connection) = connections.next().await {
            open.spawn(serve_connection(connection, builder.clone(), routes.clone(), stop.clone()));
        }
    }
    open.close();
    open.wait().await;
}

fn http2() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(SILENCE_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX);
    builder
}

async fn serve_connection<C>(connection: C, builder: Builder<TokioExecutor>, routes: Routes, stop: CancellationToken)
where
    C: Connected + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    C::ConnectInfo: Send,
{
    let caller = connection.connect_info();
    let calls = service_fn(move |request: http::Request<_>| {
        let mut request = with_body(request);
        request.extensions_mut().insert(caller.clone());
        deadline::within(deadline::limit(request.headers()), routes.clone().oneshot(request))
    });
    let served = builder.serve_connection(TokioIo::new(connection), TowerToHyperService::new(calls));
    let mut served = std::pin::pin!(served);
    let result = tokio::select! {
        result = &mut served => result,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
