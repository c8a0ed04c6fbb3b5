//! Speaks HTTP/2 on one connection, in as few turns of the scheduler as it takes.
//!
//! Nearly all calls of this interface are answered from memory. So a call is tried where its request was read, and what
//! has ended by then leaves with the same write to the socket; a task of its own has only what waits for something.

use std::{
    convert::Infallible,
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use hyper::{
    body::{Body, Incoming},
    rt::Executor,
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::http::{Request, Response};

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Calls under way on it.
    pub streams_max: u32,
    /// How long its peer may say nothing before it is asked whether it is still there.
    pub silent_max: Duration,
    /// The longest headers of a call.
    pub headers_bytes_max: u32,
}

/// How connections are spoken on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connections(http2::Builder<AtOnce>);

impl Connections {
    /// Keeps to these limits.
    pub fn new(limits: ConnectionLimits) -> Self {
        let mut http = http2::Builder::new(AtOnce);
        http.timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams_max)
            .keep_alive_interval(limits.silent_max)
            .max_header_list_size(limits.headers_bytes_max)
            // No caller of this interface reads it.
            .auto_date_header(false);
        Self(http)
    }

    /// Answers the calls of one connection until its peer goes away. From `stop` on no more calls are taken, and it ends
    /// with the last of those under way. Needs a tokio runtime around it.
    pub async fn serve<S, A, F, B>(&self, stream: S, answer: A, stop: impl Future<Output = ()>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
        A: Fn(Request<Incoming>) -> F,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let service = service_fn(move |request| {
            let answering = answer(request);
            async move { Ok::<_, Infallible>(answering.await) }
        });
        let mut connection = pin!(self.0.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = stop => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error = &error as &dyn Error, "a connection ended early");
        }
    }
}

/// Runs what ends at once on the spot, and the rest in a task of its own.
#[derive(Clone, Copy, Debug)]
struct AtOnce;

impl<C: Future<Output = ()> + Send + 'static> Executor<C> for AtOnce {
    fn execute(&self, call: C) {
        let mut call = Box::pin(call);
        // Whoever would be woken by this look is looked at again as soon as its task runs.
        let look = || call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match catch_unwind(AssertUnwindSafe(look)) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => drop(tokio::spawn(call)),
            // As a task would: the call is reset, and the others of the connection go on.
            Err(_) => tracing::error!("a call ended in a panic"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn what_ends_at_once_runs_on_the_spot_and_what_waits_goes_on_by_itself() {
        let done = Arc::new(AtomicUsize::new(0));
        let count = |done: &Arc<AtomicUsize>| {
            let done = Arc::clone(done);
            move || done.fetch_add(1, Ordering::SeqCst)
        };
        let counted = count(&done);
        AtOnce.execute(async move { assert_eq!(counted(), 0) });
        assert_eq!(done.load(Ordering::SeqCst), 1, "there was no turn of the scheduler in between");
        AtOnce.execute(async { panic!("this one is reset") });

        let (gate, ended, counted) = (Arc::new(Notify::new()), Arc::new(Notify::new()), count(&done));
        let waits = {
            let (gate, ended) = (Arc::clone(&gate), Arc::clone(&ended));
            async move {
                gate.notified().await;
                counted();
                ended.notify_one();
            }
        };
        AtOnce.execute(waits);
        assert_eq!(done.load(Ordering::SeqCst), 1);
        // Nobody was there to be woken by the first look, and still it goes on.
        gate.notify_waiters();
        gate.notify_one();
        ended.notified().await;
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }
}
