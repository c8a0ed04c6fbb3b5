//! The client of the API server: `kube`'s client with limits for the time and the length of answers.
//!
//! The first request connects. A reconnection reads the credentials from the files again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as HttpBody, Frame};
use imagelet_core::lock::locked;
use kube::{Client, client::Body};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::StreamExt as _;
use tower::{BoxError, service_fn};

use crate::{
    access::ApiAccess,
    api_error::{ApiError, LINE_LENGTH_MAX},
};

/// Limits of the wait for an answer and of the silence in a watch. The API server sends a bookmark each minute.
const ANSWER_MAX: Duration = Duration::from_mins(1);
const SILENCE_MAX: Duration = Duration::from_mins(3);
/// Minimum time between the starts of two watches of a collection. The library restarts a closed watch at once.
const WATCH_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Rejected(StatusCode),
    Failed,
    Watching,
    Heard,
}

struct Connection<C> {
    connect: C,
    client: Mutex<Option<Client>>,
    watches: Mutex<HashMap<String, Instant>>,
}

impl ApiAccess {
    pub fn client(&self) -> Client {
        let access = self.clone();
        lazy(move || {
            let access = access.clone();
            async move { access.connect().await }.boxed()
        })
    }
}

/// A client that connects with its first request, and again after a failed or unauthorized request.
pub(crate) fn lazy(
    connect: impl Fn() -> BoxFuture<'static, Result<Client, ApiError>> + Send + Sync + 'static,
) -> Client {
    let connection = Arc::new(Connection { connect, client: Mutex::default(), watches: Mutex::default() });
    let service = service_fn(move |request| {
        let connection = Arc::clone(&connection);
        async move { connection.send(request).await }
    });
    Client::new(service, "default")
}

impl<C: Fn() -> BoxFuture<'static, Result<Client, ApiError>>> Connection<C> {
    async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<Response<impl HttpBody<Data = Bytes, Error = BoxError> + use<C>>, BoxError> {
        let watched = is_watch(&request).then(|| request.uri().path().to_owned());
        let last = watched.as_ref().and_then(|path| locked(&self.watches).get(path).copied());
        if let Some(last) = last {
            sleep_until(last + WATCH_EVERY).await;
        }
        let sent = timeout(ANSWER_MAX, async { Ok::<_, BoxError>(self.client().await?.send(request).await?) });
        let answer = sent.await.unwrap_or_else(|_| Err(ApiError::Silent(ANSWER_MAX).into()));
        let is_accepted = answer.as_ref().is_ok_and(|answer| answer.status() != StatusCode::UNAUTHORIZED);
        if !is_accepted {
            // The next request reconnects: the files may have newer credentials, and the connection may be broken.
            *locked(&self.client) = None;
        } else if let Some(path) = watched {
            locked(&self.watches).insert(path, Instant::now());
        }
        Ok(answer?.map(bounded))
    }

    async fn client(&self) -> Result<Client, BoxError> {
        if let Some(client) = locked(&self.client).clone() {
            return Ok(client);
        }
        let client = (self.connect)().await?;
        Ok(locked(&self.client).insert(client).clone())
    }
}

pub(crate) fn observed(client: Client, observe: impl Fn(Answer) + Clone + Send + Sync + 'static) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let (client, observe, is_watch) = (client.clone(), observe.clone(), is_watch(&request));
        async move {
            let answer = client.send(request).await;
            match &answer {
                Err(_) => observe(Answer::Failed),
                Ok(answer) if !answer.status().is_success() => observe(Answer::Rejected(answer.status())),
                Ok(_) if is_watch => observe(Answer::Watching),
                Ok(_) => {}
            }
            let heard = move |frame| {
                observe(Answer::Heard);
                frame
            };
            answer.map(|answer| answer.map(|body| body.map_frame(heard)))
        }
    });
    Client::new(service, "default")
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("watch=true"))
}

fn bounded(body: Body) -> impl HttpBody<Data = Bytes, Error = BoxError> {
    let mut length = 0;
    let frames = body.into_data_stream().timeout(SILENCE_MAX).map(move |bytes| {
        let bytes = bytes.map_err(|_| ApiError::Silent(SILENCE_MAX))??;
        length = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => bytes.len() - end - 1,
            None => length + bytes.len(),
        };
        if length > LINE_LENGTH_MAX { Err(ApiError::TooLarge.into()) } else { Ok(Frame::data(bytes)) }
    });
    StreamBody::new(frames)
}
