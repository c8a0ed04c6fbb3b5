//! Requests to the API server outside of the watch: bounded in size and time, with the credentials that the files hold.

use std::{fmt, time::Duration};

use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use crate::{
    access::ApiAccess,
    api_error::{ApiError, ApiStatus},
};

/// The longest answer that is an error.
const ERROR_LENGTH_MAX: usize = 64 << 10;

/// Sends single requests. Any number at a time.
pub(crate) struct ApiClient {
    access: ApiAccess,
    /// How long an answer may take.
    answer_max: Duration,
    /// `None`: the files are read before the next request.
    client: Mutex<Option<Client>>,
}

impl ApiClient {
    pub(crate) fn new(access: ApiAccess, answer_max: Duration) -> Self {
        Self { access, answer_max, client: Mutex::default() }
    }

    /// The object at this path. It may hold a secret.
    pub(crate) async fn get(&self, path: &str, length_max: usize) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        self.answer(Request::get(path).body(Body::empty()), length_max).await
    }

    /// The answer to an object that is created at this path. It may hold a secret.
    pub(crate) async fn post(
        &self,
        path: &str,
        object: &serde_json::Value,
        length_max: usize,
    ) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        self.answer(request.body(Body::from(object.to_string().into_bytes())), length_max).await
    }

    /// Merges fields into the object at this path.
    pub(crate) async fn patch(
        &self,
        path: &str,
        fields: &serde_json::Value,
        length_max: usize,
    ) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        let request = Request::patch(path).header(header::CONTENT_TYPE, "application/merge-patch+json");
        self.answer(request.body(Body::from(fields.to_string().into_bytes())), length_max).await
    }

    async fn answer(
        &self,
        request: Result<Request<Body>, http::Error>,
        length_max: usize,
    ) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        let answer = async {
            let client = self.client().await?;
            let answer = send(&client, request).await?;
            read(answer.into_body(), length_max).await
        };
        let late = |_| ApiError::Silent(self.answer_max);
        let answer = tokio::time::timeout(self.answer_max, answer).await.map_err(late).flatten();
        if matches!(answer, Err(ApiError::Unreachable(_) | ApiError::Silent(_) | ApiError::Rejected { code: 401, .. }))
        {
            // The next client has the credentials that the files hold then.
            *self.client.lock().await = None;
        }
        answer
    }

    async fn client(&self) -> Result<Client, ApiError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        Ok(client.insert(self.access.connect().await?).clone())
    }
}

impl fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiClient").field("access", &self.access).finish_non_exhaustive()
    }
}

/// The answer to a request, unless it is an error.
pub(crate) async fn send(
    client: &Client,
    request: Result<Request<Body>, http::Error>,
) -> Result<Response<Body>, ApiError> {
    let request = request.map_err(|error| ApiError::Unreachable(error.into()))?;
    let answer = client.send(request).await.map_err(|error| ApiError::Unreachable(error.into()))?;
    let code = answer.status();
    if code.is_success() {
        return Ok(answer);
    }
    // A proxy on the way answers with a page.
    let text = read(answer.into_body(), ERROR_LENGTH_MAX).await.unwrap_or_default();
    let status: ApiStatus = serde_json::from_slice(&text).unwrap_or_default();
    Err(status.into_error(code.as_u16()))
}

/// A body of at most this many bytes.
pub(crate) async fn read(body: Body, length_max: usize) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    match Limited::new(body, length_max).collect().await {
        Ok(whole) => Ok(Zeroizing::new(whole.to_bytes().into())),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::TooLarge { max: length_max }),
        Err(error) => Err(ApiError::Unreachable(error)),
    }
}

/// A text as one part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
