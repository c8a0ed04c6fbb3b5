//! The client of the API server: requests with a bound on time and size, and a new connection after a failed one.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{HeaderName, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use imagelet_core::metrics::{Family, MetricKind, Metrics};
use kube::{Client, client::Body};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::{
    access::ApiAccess,
    api_error::{ApiError, ApiStatus},
};

/// The longest answer: a list of the pods of a node, which are a few hundred of some 20 kB.
pub(crate) const ANSWER_LENGTH_MAX: usize = 32 << 20;
/// The longest object that may hold a secret: the API server stores at most 1 MiB of one, which base64 makes a third longer.
pub(crate) const SECRET_LENGTH_MAX: usize = 2 << 20;
/// The longest answer that is an error.
const ERROR_LENGTH_MAX: usize = 64 << 10;
const ANSWER_MAX: Duration = Duration::from_mins(1);
/// The waits after answers of 403 to a request for what a pod needs.
///
/// The node authorizer grants a secret, a service account or a token once its own watch has brought the pod that names it,
/// which may be some milliseconds after the watch of this node has.
const GRANT_WAITS: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(200), Duration::from_secs(1)];

pub(crate) static ERRORS: Family = Family {
    name: "imagelet_controller_api_errors_total",
    help: "Requests of the controller to the API server that failed, by the HTTP status, or unreachable, silent, expired, credentials, invalid.",
    kind: MetricKind::Counter,
    labels: &["cause"],
};

/// A client of the API server. Cheap to clone; its clones share the connection.
#[derive(Clone)]
pub struct ApiClient {
    shared: Arc<SharedClient>,
    answer_max: Duration,
    /// `None`: failures are not counted.
    metrics: Option<Arc<Metrics>>,
    grant_waits: &'static [Duration],
}

struct SharedClient {
    access: Option<ApiAccess>,
    /// `None`: the next request connects.
    client: Mutex<Option<Client>>,
}

impl ApiClient {
    /// A client that connects with its first request.
    pub fn new(access: ApiAccess) -> Self {
        Self::of(SharedClient { access: Some(access), client: Mutex::default() })
    }

    fn of(shared: SharedClient) -> Self {
        Self { shared: Arc::new(shared), answer_max: ANSWER_MAX, metrics: None, grant_waits: &[] }
    }

    /// The same client, which waits for an answer for so long.
    #[must_use]
    pub(crate) fn waiting(self, answer_max: Duration) -> Self {
        Self { answer_max, ..self }
    }

    /// The same client, which counts failed requests as those of the controller.
    #[must_use]
    pub(crate) fn counting(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// The same client for what bound pods need: a secret or token that the API server does not grant yet is requested again.
    #[must_use]
    pub(crate) fn for_pods(self) -> Self {
        Self { grant_waits: &GRANT_WAITS, ..self }
    }

    /// A client of a server in this process.
    #[cfg(any(test, feature = "test-util"))]
    pub fn connected(client: Client) -> Self {
        Self::of(SharedClient { access: None, client: Mutex::new(Some(client)) })
    }

    /// Gives the connection up where the error says that it is of no use: the next one has the credentials that the files
    /// hold then.
    pub(crate) fn heed(&self, error: &ApiError) {
        if error.ends_connection() && self.shared.access.is_some() {
            *self.current() = None;
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.get_as(path, None).await
    }

    /// Reads one document in the form that is accepted.
    pub(crate) async fn get_as<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: Option<&'static str>,
    ) -> Result<T, ApiError> {
        self.document(get_request(path, accept)?).await
    }

    /// Sends a whole object and reads the answer.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        object: &impl Serialize,
    ) -> Result<T, ApiError> {
        self.send_as("application/json", method, path, object).await
    }

    pub(crate) async fn merge(&self, path: &str, fields: &Value) -> Result<(), ApiError> {
        self.send_as::<IgnoredAny>("application/merge-patch+json", Method::PATCH, path, fields).await.map(drop)
    }

    /// Writes the fields that a field manager owns, whichever manager has them so far (server-side apply).
    pub(crate) async fn apply(&self, path: &str, manager: &str, fields: &Value) -> Result<(), ApiError> {
        let path = format!("{path}?fieldManager={manager}&force=true");
        // JSON is valid YAML.
        self.send_as::<IgnoredAny>("application/apply-patch+yaml", Method::PATCH, &path, fields).await.map(drop)
    }

    async fn send_as<T: DeserializeOwned>(
        &self,
        content: &'static str,
        method: Method,
        path: &str,
        object: &impl Serialize,
    ) -> Result<T, ApiError> {
        let body = serde_json::to_vec(object).map_err(ApiError::Decode)?;
        self.document(request(method, path, Some((header::CONTENT_TYPE, content)), body)?).await
    }

    /// Reads an object that may hold a secret, as text.
    pub(crate) async fn get_secret(&self, path: &str) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        self.secret_text(|| get_request(path, None)).await
    }

    /// Sends an object and reads the answer, which may hold a secret, as text.
    pub(crate) async fn send_for_secret(&self, path: &str, object: &Value) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        let content = Some((header::CONTENT_TYPE, "application/json"));
        self.secret_text(|| request(Method::POST, path, content.clone(), object.to_string().into())).await
    }

    /// Deletes an object, if it still is this one; an absent one counts as deleted.
    pub(crate) async fn delete(&self, path: &str, uid: &str) -> Result<(), ApiError> {
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
        });
        match self.send::<IgnoredAny>(Method::DELETE, path, &options).await {
            Ok(_) | Err(ApiError::Rejected { code: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Opens an answer without an end.
    pub(crate) async fn open(&self, path: &str, accept: Option<&'static str>) -> Result<Body, ApiError> {
        let answer = self.bounded(self.exchange(get_request(path, accept)?)).await?;
        Ok(answer.into_body())
    }

    async fn document<T: DeserializeOwned>(&self, request: Request<Body>) -> Result<T, ApiError> {
        let answer = async {
            let text = self.text(request, ANSWER_LENGTH_MAX).await?;
            serde_json::from_slice(&text).map_err(ApiError::Decode)
        };
        self.bounded(answer).await
    }

    async fn secret_text(
        &self,
        request: impl Fn() -> Result<Request<Body>, ApiError>,
    ) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        let mut waits = self.grant_waits.iter();
        loop {
            match (self.bounded(self.text(request()?, SECRET_LENGTH_MAX)).await, waits.next()) {
                (Err(ApiError::Rejected { code: 403, .. }), Some(wait)) => tokio::time::sleep(*wait).await,
                (answer, _) => return answer,
            }
        }
    }

    async fn text(&self, request: Request<Body>, length_max: usize) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        read(self.exchange(request).await?.into_body(), length_max).await
    }

    async fn bounded<T>(&self, answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        let late = |_| ApiError::Silent(self.answer_max);
        let answer = tokio::time::timeout(self.answer_max, answer).await.map_err(late).and_then(|answer| answer);
        if let (Err(error), Some(metrics)) = (&answer, &self.metrics) {
            metrics.increment(&ERRORS, &[&error.cause()]);
        }
        answer.inspect_err(|error| self.heed(error))
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let client = self.client().await?;
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

    async fn client(&self) -> Result<Client, ApiError> {
        if let Some(client) = self.current().clone() {
            return Ok(client);
        }
        let Some(access) = &self.shared.access else {
            return Err(ApiError::Unreachable("the client has no server".into()));
        };
        let client = access.connect().await?;
        Ok(self.current().insert(client).clone())
    }

    fn current(&self) -> MutexGuard<'_, Option<Client>> {
        self.shared.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiClient").field("access", &self.shared.access).finish_non_exhaustive()
    }
}

fn get_request(path: &str, accept: Option<&'static str>) -> Result<Request<Body>, ApiError> {
    request(Method::GET, path, accept.map(|accept| (header::ACCEPT, accept)), Vec::new())
}

fn request(
    method: Method,
    path: &str,
    header: Option<(HeaderName, &'static str)>,
    body: Vec<u8>,
) -> Result<Request<Body>, ApiError> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    request.body(Body::from(body)).map_err(|error| ApiError::Unreachable(error.into()))
}

async fn read(body: Body, max: usize) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    match Limited::new(body, max).collect().await {
        Ok(whole) => Ok(Zeroizing::new(whole.to_bytes().into())),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::TooLarge { max }),
        Err(error) => Err(ApiError::Unreachable(error)),
    }
}

/// A text as part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        testing::{ApiFault, FakeApi, FakeApiOptions},
        watch::{Collection, ObjectCache, ObjectWatch, WatchHealth, WatchPace},
    };

    struct Bed {
        fake: FakeApi,
        client: ApiClient,
        _folder: tempfile::TempDir,
    }

    impl Bed {
        /// A client that is connected.
        async fn new() -> Self {
            let fake = FakeApi::start(FakeApiOptions::default()).await;
            let folder = tempfile::tempdir().unwrap();
            let client = ApiClient::new(ApiAccess::Kubeconfig(fake.kubeconfig(folder.path())));
            let bed = Self { fake, client, _folder: folder };
            bed.client.get::<Value>("/api/v1/pods").await.unwrap();
            bed
        }

        fn is_connected(&self) -> bool {
            self.client.current().is_some()
        }
    }

    /// Objects of which nothing is kept.
    #[derive(Debug)]
    struct NoObjects;

    impl ObjectCache for NoObjects {
        type Object = Value;

        fn replace(&mut self, _objects: Vec<Value>) {}

        fn change(&mut self, _object: &Value) -> bool {
            false
        }

        fn remove(&mut self, _object: &Value) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn an_answer_of_the_api_server_ends_no_connection_unless_it_refuses_the_credentials() {
        for (code, stays) in
            [(403, true), (404, true), (409, true), (422, true), (429, true), (500, true), (401, false)]
        {
            let bed = Bed::new().await;
            bed.fake.plant(ApiFault::Status(code, "no".into()));
            bed.client.get::<Value>("/api/v1/pods").await.unwrap_err();
            assert_eq!(bed.is_connected(), stays, "{code}");
        }
        let bed = Bed::new().await;
        bed.fake.plant(ApiFault::Text("<html>a login page</html>".into()));
        bed.client.get::<Value>("/api/v1/pods").await.unwrap_err();
        assert!(bed.is_connected());
        let impatient = bed.client.clone().waiting(Duration::from_millis(1));
        bed.fake.plant(ApiFault::Hang);
        impatient.get::<Value>("/api/v1/pods").await.unwrap_err();
        assert!(!bed.is_connected(), "an API server that does not answer may be behind a broken connection");
    }

    #[tokio::test]
    async fn a_watch_that_is_refused_leaves_the_connection_to_the_others() {
        for (code, stays) in [(403, true), (404, true), (500, true), (401, false)] {
            let bed = Bed::new().await;
            bed.fake.plant(ApiFault::Status(code, "no".into()));
            let (collection, health) = (Collection::of("pods", "/api/v1/pods"), Arc::new(WatchHealth::unmeasured()));
            // After the first failure it waits for longer than the test.
            let pace = WatchPace {
                wait_first: Duration::from_hours(1),
                wait_max: Duration::from_hours(1),
                absent: Duration::from_hours(1),
                ..WatchPace::default()
            };
            let watch = ObjectWatch { client: bed.client.clone(), collection, pace, health: Arc::clone(&health) };
            let watching = tokio::spawn(async move { watch.run(NoObjects, |_| {}).await });
            let until = SystemTime::now() + Duration::from_secs(30);
            while health.report().restarts == 0 {
                assert!(SystemTime::now() < until, "{:?}", health.report());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(bed.is_connected(), stays, "{code}");
            watching.abort();
        }
    }
}
