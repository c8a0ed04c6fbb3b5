//! Requests whose answers may contain a secret. Answers are limited in length, overwritten after use, and never logged.

use std::time::Duration;

use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body, core::Status};
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::api_error::ApiError;

/// A pull waits for the answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Maximum length of an object with a secret. The API server stores at most 1 MiB, and base64 adds a third.
const LENGTH_MAX: usize = 2 << 20;
/// The waits before the retries of a 403 answer. The node authorizer permits a pod's objects after its own watch has
/// received the pod. This may be some milliseconds after this node has received the pod.
const GRANT_WAITS: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(200), Duration::from_secs(1)];

/// Reads an object, or sends `object` with POST.
pub(super) async fn send(client: &Client, path: &str, object: Option<&str>) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let method = if object.is_some() { Method::POST } else { Method::GET };
    let (mut waits, object) = (GRANT_WAITS.iter(), object.unwrap_or_default());
    loop {
        let request = Request::builder().method(&method).uri(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(object.as_bytes().to_vec())).map_err(kube::Error::HttpError)?;
        let answer = timeout(ANSWER_MAX, answer(client, request)).await.map_err(|_| ApiError::Silent(ANSWER_MAX))?;
        match (answer, waits.next()) {
            (Err(error), Some(wait)) if error.code() == Some(403) => tokio::time::sleep(*wait).await,
            (answer, _) => return answer,
        }
    }
}

async fn answer(client: &Client, request: Request<Body>) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let answer = client.send(request).await?;
    let code = answer.status();
    let text = Limited::new(answer.into_body(), LENGTH_MAX).collect().await.map_err(kube::Error::Service)?;
    let text = Zeroizing::new(Vec::from(text.to_bytes()));
    if code.is_success() {
        return Ok(text);
    }
    // A proxy between agent and server may answer with a page instead of a `Status`.
    let status = serde_json::from_slice(&text).unwrap_or_else(|_| Status::failure("", ""));
    Err(kube::Error::Api(Box::new(status.with_code(code.as_u16()))).into())
}
