//! A collector in this process, over gRPC and over HTTP, and what it receives.

use std::{collections::BTreeMap, sync::Mutex};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use imagelet_core::{
    error::RuntimeError,
    image::{ByteSize, Digest},
    manager::EnsureError,
    ports::{LayerState, PullEnd, PullEvent, PullProgress, PullTimes, TokenExchange, unwatched},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest as ExportRequest,
        ExportTraceServiceResponse as ExportAnswer,
    },
    common::v1::any_value::Value,
    trace::v1::{Span, status::StatusCode},
};
use prost::Message as _;
use tokio::{net::TcpListener, time::Instant};

use super::*;

type Received = Arc<Mutex<Vec<ExportRequest>>>;

/// A collector over HTTP that takes all spans.
async fn collector() -> (String, Received) {
    collector_that_answers(&ExportAnswer::default()).await
}

async fn collector_that_answers(answer: &ExportAnswer) -> (String, Received) {
    let received = Received::default();
    let plain = async |State((received, answer)): State<(Received, Vec<u8>)>, headers: HeaderMap, body: Bytes| {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        let names: std::collections::BTreeSet<&str> = headers.keys().map(http::HeaderName::as_str).collect();
        assert_eq!(Vec::from_iter(names), ["content-length", "content-type", "host"]);
        received.lock().unwrap().push(ExportRequest::decode(body).unwrap());
        answer
    };
    let state = (Arc::clone(&received), answer.encode_to_vec());
    let router = Router::new().route("/v1/traces", post(plain)).with_state(state);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum_serve(listener, router).await });
    (address, received)
}

async fn axum_serve(listener: TcpListener, router: Router) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper_util::service::TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let io = hyper_util::rt::TokioIo::new(stream);
            drop(hyper::server::conn::http1::Builder::new().serve_connection(io, service).await);
        });
    }
}

fn tracer(target: TraceTarget, rate_per_million: u32) -> (Tracer, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new());
    (Tracer::new(Some(&TraceSettings { target, rate_per_million }), &metrics), metrics)
}

/// One pull with two layers, one of them present.
async fn pull_once(tracer: &Tracer, failure: Option<RuntimeError>) -> Result<(), EnsureError> {
    let pull = |watcher: PullWatcher| async move {
        let (mut progress, now) = (
            PullProgress {
                times: PullTimes { began: Some(Instant::now()), ..PullTimes::default() },
                ..PullProgress::default()
            },
            Instant::now,
        );
        let [first, second] = ["one", "two"].map(|text| Digest::of(text.as_bytes()));
        let layers = vec![(first.clone(), ByteSize(10)), (second.clone(), ByteSize(20))];
        let (service, began, ended) = ("auth.test".to_owned(), Instant::now(), now());
        progress.apply(PullEvent::Token(TokenExchange { service, began, ended, is_granted: true }), now());
        progress.apply(PullEvent::Resolved { manifest: Digest::of(b"m"), layers }, now());
        progress.apply(PullEvent::Layer { digest: first, state: LayerState::Present }, now());
        let fetching = LayerState::Fetching { received: ByteSize(5) };
        progress.apply(PullEvent::Layer { digest: second.clone(), state: fetching }, now());
        watcher(&progress);
        if let Some(error) = failure {
            progress.finish(PullEnd::Failed(Arc::new(error)), now());
            watcher(&progress);
            return Err(EnsureError::never_pull("reg.test/app:v1"));
        }
        progress.apply(PullEvent::Layer { digest: second, state: LayerState::Done }, now());
        progress.apply(PullEvent::Committing, now());
        progress.finish(PullEnd::Pulled, now());
        watcher(&progress);
        Ok(())
    };
    tracer.ensure("reg.test/app:v1", unwatched(), pull).await
}

fn has(attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue], key: &str, text: &str) -> bool {
    let value = attributes.iter().find(|one| one.key == key).and_then(|one| one.value.as_ref()?.value.as_ref());
    matches!(value, Some(Value::StringValue(value)) if value == text)
}

async fn spans_of(received: &Received, count: usize) -> BTreeMap<String, Span> {
    for _ in 0..1000 {
        let spans: Vec<Span> = {
            let received = received.lock().unwrap();
            let scopes = received.iter().flat_map(|request| &request.resource_spans).flat_map(|it| &it.scope_spans);
            scopes.flat_map(|scope| scope.spans.clone()).collect()
        };
        if spans.len() >= count {
            assert_eq!(spans.len(), count);
            return spans.into_iter().map(|span| (span.name.clone(), span)).collect();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{count} spans were not exported: {:?}", received.lock().unwrap());
}

#[tokio::test]
async fn a_pull_is_exported_as_spans_below_its_request() {
    let (address, received) = collector().await;
    let (tracer, metrics) = tracer(TraceTarget::Http(address), 1_000_000);
    pull_once(&tracer, None).await.unwrap();
    let spans = spans_of(&received, 7).await;
    let names: Vec<&str> = spans.keys().map(String::as_str).collect();
    assert_eq!(names, ["commit", "ensure", "layer", "pull", "queue", "resolve", "token"]);
    let parent = |name: &str| spans[name].parent_span_id.clone();
    assert_eq!(parent("ensure"), Vec::<u8>::new());
    assert!(["queue", "pull"].iter().all(|name| parent(name) == spans["ensure"].span_id));
    assert!(["resolve", "token", "layer", "commit"].iter().all(|name| parent(name) == spans["pull"].span_id));
    assert!(
        spans.values().all(|span| span.trace_id == spans["ensure"].trace_id
            && span.status.as_ref().is_none_or(|status| status.code == 0))
    );
    assert!(spans.values().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
    assert!(has(&spans["layer"].attributes, "imagelet.layer", &Digest::of(b"two").to_string()));
    let resource = received.lock().unwrap()[0].resource_spans[0].resource.clone().unwrap();
    assert!(has(&resource.attributes, "service.name", "imagelet"));
    // The collector has them before the exporter has its answer.
    while metrics.value(&SPANS, &["exported"]) < 7.0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!((metrics.value(&SPANS, &["exported"]) - 7.0).abs() < f64::EPSILON, "{}", metrics.render());
}

#[tokio::test]
async fn a_failed_pull_has_the_stable_words_of_its_failure_and_no_text_of_it() {
    let (address, received) = collector().await;
    let (tracer, _) = tracer(TraceTarget::Http(address), 1_000_000);
    let error = RuntimeError::other("https://user:hunter2@reg.test said no");
    pull_once(&tracer, Some(error)).await.unwrap_err();
    let spans = spans_of(&received, 6).await;
    for (name, message) in [("ensure", "not-present"), ("pull", "other"), ("layer", "Cancelled")] {
        let status = spans[name].status.as_ref().map(|status| (status.code, status.message.as_str()));
        assert_eq!(status, Some((StatusCode::Error as i32, message)), "{name}");
    }
    assert!(!format!("{spans:?}").contains("hunter2"), "{spans:?}");
}

#[tokio::test]
async fn the_name_of_an_image_is_exported_without_the_password_that_stands_in_it() {
    let (address, received) = collector().await;
    let (tracer, _) = tracer(TraceTarget::Http(address), 1_000_000);
    let image = "https://user:hunter2@reg.test/app";
    let request = |watcher: PullWatcher| async move {
        watcher(&PullProgress {
            times: PullTimes { began: Some(Instant::now()), ..PullTimes::default() },
            ..PullProgress::default()
        });
        Err::<(), _>(EnsureError::never_pull(image))
    };
    tracer.ensure(image, unwatched(), request).await.unwrap_err();
    let spans = spans_of(&received, 4).await;
    assert!(!format!("{spans:?}").contains("hunter2"), "{spans:?}");
    let name = "https://[redacted]@reg.test/app";
    assert!(["ensure", "pull"].iter().all(|span| has(&spans[*span].attributes, "imagelet.image", name)), "{spans:?}");
}

#[tokio::test]
async fn the_request_of_a_pod_fails_with_an_image_of_it() {
    let (address, received) = collector().await;
    let (tracer, _) = tracer(TraceTarget::Http(address), 1_000_000);
    let outcomes = vec![PodOutcome::Blocked { by: 1 }, PodOutcome::Failed(EnsureError::never_pull("app:v1"))];
    tracer.ensure_pod("web", |_| std::future::ready(outcomes)).await;
    let span = spans_of(&received, 1).await.remove("ensure").unwrap();
    let status = span.status.as_ref().map(|status| (status.code, status.message.as_str()));
    assert_eq!(status, Some((StatusCode::Error as i32, "not-present")));
    assert!(has(&span.attributes, "k8s.pod.name", "web"), "{span:?}");
}

#[tokio::test]
async fn spans_that_the_collector_rejects_count_as_failed() {
    let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "too old".to_owned() };
    let (address, _) = collector_that_answers(&ExportAnswer { partial_success: Some(partial) }).await;
    let (tracer, metrics) = tracer(TraceTarget::Http(address), 1_000_000);
    pull_once(&tracer, None).await.unwrap();
    tracer.close().await;
    for (outcome, count) in [("exported", 4.0), ("failed", 3.0)] {
        assert!((metrics.value(&SPANS, &[outcome]) - count).abs() < f64::EPSILON, "{}", metrics.render());
    }
}

#[tokio::test]
async fn the_last_spans_are_exported_at_the_end() {
    let (address, received) = collector().await;
    let (tracer, metrics) = tracer(TraceTarget::Http(address), 1_000_000);
    pull_once(&tracer, None).await.unwrap();
    tracer.close().await;
    let exported: usize =
        received.lock().unwrap().iter().map(|request| request.resource_spans[0].scope_spans[0].spans.len()).sum();
    assert_eq!(exported, 7);
    pull_once(&tracer, None).await.unwrap();
    tracer.close().await;
    assert!((metrics.value(&SPANS, &["dropped"]) - 7.0).abs() < f64::EPSILON, "{}", metrics.render());
}

#[tokio::test]
async fn nothing_is_traced_without_settings_or_without_a_sample_and_no_collector_holds_a_pull_up() {
    pull_once(&Tracer::default(), None).await.unwrap();
    let (address, received) = collector().await;
    let (unsampled, metrics) = tracer(TraceTarget::Http(address), 0);
    pull_once(&unsampled, None).await.unwrap();
    assert!(received.lock().unwrap().is_empty() && metrics.value(&SPANS, &["exported"]) < 1.0);
    // A listener that never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (tracer, metrics) = tracer(TraceTarget::Grpc(silent.local_addr().unwrap().to_string()), 1_000_000);
    for _ in 0..QUEUE_MAX / 7 + 100 {
        pull_once(&tracer, None).await.unwrap();
    }
    assert!(metrics.value(&SPANS, &["dropped"]) > 0.0, "{}", metrics.render());
}

#[tokio::test]
async fn spans_are_exported_over_grpc() {
    let received = Received::default();
    let service = tower::service_fn({
        let received = Arc::clone(&received);
        move |request: http::Request<axum::body::Body>| {
            let received = Arc::clone(&received);
            async move {
                let keep = tower::service_fn(move |request: tonic::Request<ExportRequest>| {
                    received.lock().unwrap().push(request.into_inner());
                    std::future::ready(Ok::<_, tonic::Status>(tonic::Response::new(ExportAnswer::default())))
                });
                let codec = tonic_prost::ProstCodec::<ExportAnswer, ExportRequest>::default();
                Ok::<_, std::convert::Infallible>(tonic::server::Grpc::new(codec).unary(keep, request).await)
            }
        }
    });
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let routes = tonic::service::Routes::from(Router::new().route_service(path, service));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_routes(routes).serve_with_incoming(incoming));
    let (tracer, metrics) = tracer(TraceTarget::Grpc(address), 1_000_000);
    pull_once(&tracer, None).await.unwrap();
    assert_eq!(spans_of(&received, 7).await["pull"].name, "pull");
    while metrics.value(&SPANS, &["exported"]) < 7.0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
