//! Sends spans to a collector in batches, by gRPC or as protobuf over HTTP.

use std::{error::Error, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use imagelet_core::metrics::Metrics;
use prost::Message as _;
use tokio::{
    net::{TcpStream, UnixStream},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::{
    SPANS,
    messages::{
        ExportAnswer, ExportRequest, InstrumentationScope, OtlpSpan, Resource, ResourceSpans, ScopeSpans, text,
    },
};

const BATCH_MAX: usize = 512;
/// What comes within this time is sent together.
const BATCH_WAIT: Duration = Duration::from_millis(500);
/// A collector that takes longer loses the batch.
const SEND_MAX: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// One warning for so many batches that fail in a row.
const WARN_EVERY: u64 = 60;
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const HTTP_PATH: &str = "/v1/traces";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceTarget {
    /// `HOST:PORT`, gRPC without TLS.
    Grpc(String),
    /// A unix socket, gRPC.
    GrpcSocket(PathBuf),
    /// `HOST:PORT`, protobuf over HTTP.
    Http(String),
}

/// Exports until the last sender is gone, or what is queued at a stop.
pub(super) async fn run(
    mut spans: mpsc::Receiver<OtlpSpan>,
    target: TraceTarget,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let (mut batch, mut failed) = (Vec::new(), 0u64);
    let mut channel = None;
    loop {
        tokio::select! {
            received = spans.recv_many(&mut batch, BATCH_MAX) => if received == 0 {
                return;
            },
            () = stop.cancelled(), if !spans.is_closed() => {
                spans.close();
                continue;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(BATCH_WAIT) => {}
            () = stop.cancelled() => {}
        }
        while batch.len() < BATCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        let count = batch.len() as f64;
        let request = export_request(std::mem::take(&mut batch));
        let sent = tokio::time::timeout(SEND_MAX, send(&target, &mut channel, request)).await;
        let outcome = match sent.unwrap_or_else(|_| Err(format!("no answer within {} s", SEND_MAX.as_secs()))) {
            Ok(()) => {
                failed = 0;
                "exported"
            }
            Err(error) => {
                channel = None;
                if failed.is_multiple_of(WARN_EVERY) {
                    tracing::warn!(?target, error, "traces are not exported");
                }
                failed += 1;
                "failed"
            }
        };
        metrics.add(&SPANS, &[outcome], count);
    }
}

fn export_request(spans: Vec<OtlpSpan>) -> ExportRequest {
    let version = env!("CARGO_PKG_VERSION");
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let attributes = vec![text("service.name", "imagelet"), text("service.version", version), text("host.name", node)];
    let scope = InstrumentationScope { name: "imagelet".into(), version: version.into() };
    ExportRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        }],
    }
}

async fn send(target: &TraceTarget, channel: &mut Option<Channel>, request: ExportRequest) -> Result<(), String> {
    let answer = match target {
        TraceTarget::Http(address) => post(address, &request).await?,
        grpc => {
            let channel = match channel {
                Some(channel) => channel.clone(),
                None => channel.insert(connect(grpc).await?).clone(),
            };
            let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
            client.ready().await.map_err(|error| cause(&error))?;
            let codec = ProstCodec::<ExportRequest, ExportAnswer>::default();
            let sent = client.unary(tonic::Request::new(request), PathAndQuery::from_static(GRPC_PATH), codec).await;
            sent.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?.into_inner()
        }
    };
    match answer.partial_success {
        Some(partial) if partial.rejected_spans > 0 => {
            Err(format!("the collector rejected {} spans: {}", partial.rejected_spans, partial.error_message))
        }
        _ => Ok(()),
    }
}

async fn connect(target: &TraceTarget) -> Result<Channel, String> {
    let failed = |error: tonic::transport::Error| cause(&error);
    match target {
        TraceTarget::GrpcSocket(path) => {
            let path = path.clone();
            let connector = service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            Endpoint::from_static("http://localhost").connect_with_connector(connector).await.map_err(failed)
        }
        TraceTarget::Grpc(address) | TraceTarget::Http(address) => {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
            endpoint.connect_timeout(SEND_MAX).connect().await.map_err(failed)
        }
    }
}

async fn post(address: &str, request: &ExportRequest) -> Result<ExportAnswer, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| cause(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| cause(&error))?;
    let exchange = async {
        let request = Request::post(HTTP_PATH)
            .header(header::HOST, address)
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(Bytes::from(request.encode_to_vec())))
            .map_err(|error| cause(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| cause(&error))?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| cause(&*error))?;
        match status {
            StatusCode::OK => ExportAnswer::decode(body.to_bytes()).map_err(|error| cause(&error)),
            status => Err(format!("the collector answered {status}")),
        }
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        closed = connection => match closed {
            Ok(()) => exchange.await,
            Err(error) => Err(cause(&error)),
        },
    }
}

/// Why a request failed, without the texts by which tonic and hyper pass a cause on.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut texts = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let is_layer = error.is::<tonic::transport::Error>() || error.is::<hyper::Error>();
        if !is_layer || next.is_none() {
            texts.push(error.to_string());
        }
    }
    texts.join(": ")
}

impl FromStr for TraceTarget {
    type Err = String;

    /// gRPC's names: `HOST:PORT`, `dns:HOST:PORT`, `dns:///HOST:PORT`, `unix:PATH`; and `http://HOST:PORT` for HTTP.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
            return if path.is_absolute() {
                Ok(Self::GrpcSocket(path))
            } else {
                Err("the path of a unix socket is absolute".into())
            };
        }
        if let Some(rest) = text.strip_prefix("http://") {
            return authority(rest.strip_suffix(HTTP_PATH).unwrap_or(rest).trim_end_matches('/')).map(Self::Http);
        }
        let rest = text.strip_prefix("dns:").unwrap_or(text);
        authority(rest.trim_start_matches('/')).map(Self::Grpc)
    }
}

fn authority(text: &str) -> Result<String, String> {
    let is_right = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    if is_right && is_plain { Ok(text.to_owned()) } else { Err("a collector is HOST:PORT".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_collector_that_is_away_is_reported_with_the_cause() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let (grpc, http) = (TraceTarget::Grpc(address.clone()), TraceTarget::Http(address));
        for target in [grpc, http, TraceTarget::GrpcSocket("/nonexistent/otel.sock".into())] {
            let error = send(&target, &mut None, export_request(Vec::new())).await.unwrap_err();
            assert!(error.contains("(os error ") && !error.contains("transport error"), "{target:?}: {error}");
            assert!(!error.contains("Some("), "{target:?}: {error}");
        }
    }

    #[test]
    fn a_collector_is_named_as_for_the_kubelet_or_by_a_url() {
        let grpc = |address: &str| Ok(TraceTarget::Grpc(address.to_owned()));
        for (text, target) in [
            ("localhost:4317", grpc("localhost:4317")),
            ("dns:otel.example:4317", grpc("otel.example:4317")),
            ("dns:///otel.example:4317", grpc("otel.example:4317")),
            ("[::1]:4317", grpc("[::1]:4317")),
            ("unix:/run/otel.sock", Ok(TraceTarget::GrpcSocket("/run/otel.sock".into()))),
            ("unix:///run/otel.sock", Ok(TraceTarget::GrpcSocket("/run/otel.sock".into()))),
            ("http://localhost:4318", Ok(TraceTarget::Http("localhost:4318".to_owned()))),
            ("http://localhost:4318/v1/traces", Ok(TraceTarget::Http("localhost:4318".to_owned()))),
            ("unix:otel.sock", Err(())),
            ("localhost", Err(())),
            ("https://localhost:4318", Err(())),
            ("user:pw@host:4317", Err(())),
            ("http://host:4318/other", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(text.parse::<TraceTarget>().map_err(drop), target, "{text}");
        }
    }
}
