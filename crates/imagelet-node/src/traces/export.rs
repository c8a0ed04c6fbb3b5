//! Sends spans to a collector in batches, by gRPC or as protobuf over HTTP.

use std::{error::Error as StdError, path::PathBuf, pin::pin, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use imagelet_core::metrics::Metrics;
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient as _, hyper::HyperClient};
use opentelemetry_proto::{
    tonic::collector::trace::v1::{
        ExportTraceServiceRequest as ExportRequest, ExportTraceServiceResponse as ExportAnswer,
        trace_service_client::TraceServiceClient,
    },
    transform::{common::tonic::ResourceAttributesWithSchema, trace::tonic::group_spans_by_resource_and_scope},
};
use opentelemetry_sdk::{Resource, trace::SpanData};
use prost::Message as _;
use tokio::{net::UnixStream, sync::mpsc};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::SPANS;
use crate::failure::Failure;

const BATCH_MAX: usize = 512;
const BATCH_WAIT: Duration = Duration::from_millis(500);
/// Timeout for the export of a batch. After it, the spans of the batch are lost.
const SEND_MAX: Duration = Duration::from_secs(10);
/// While batches fail in a row, one of this many is logged as a warning.
const WARN_EVERY: u64 = 60;
const HTTP_PATH: &str = "/v1/traces";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceTarget {
    /// The `HOST:PORT` of a collector that reads gRPC without TLS.
    Grpc(String),
    /// The path of the unix socket of a collector that reads gRPC.
    GrpcSocket(PathBuf),
    /// The `HOST:PORT` of a collector that reads protobuf over HTTP.
    Http(String),
}

/// The connection to a collector. Environment variables do not change the export, and a batch is never sent twice.
#[expect(clippy::large_enum_variant, reason = "a daemon has one")]
enum Exporter {
    Http(HyperClient, Uri),
    Grpc(TraceServiceClient<Channel>),
}

/// Exports the received spans until the sender is dropped and the queue is empty.
pub(super) async fn run(spans: mpsc::Receiver<SpanData>, target: TraceTarget, metrics: Arc<Metrics>) {
    let mut failed = 0u64;
    let resource = resource();
    let exporter = match Exporter::new(&target) {
        Ok(exporter) => exporter,
        Err(error) => return tracing::error!(?target, error, "could not set up the export of traces"),
    };
    let mut batches = pin!(ReceiverStream::new(spans).chunks_timeout(BATCH_MAX, BATCH_WAIT));
    while let Some(batch) = batches.next().await {
        let count = batch.len() as u64;
        let resource_spans = group_spans_by_resource_and_scope(batch, &resource);
        let sent = tokio::time::timeout(SEND_MAX, exporter.export(ExportRequest { resource_spans })).await;
        let sent = sent.unwrap_or_else(|_| Err(format!("no answer within {} s", SEND_MAX.as_secs())));
        let (rejected, error) = match sent.map(|answer| answer.partial_success.unwrap_or_default()) {
            Ok(partial) => (u64::try_from(partial.rejected_spans).unwrap_or(0).min(count), partial.error_message),
            Err(error) => (count, error),
        };
        if rejected == 0 {
            failed = 0;
        } else {
            if failed.is_multiple_of(WARN_EVERY) {
                tracing::warn!(?target, error, rejected, "traces are not exported");
            }
            failed += 1;
        }
        for (outcome, spans) in [("exported", count - rejected), ("failed", rejected)] {
            metrics.add(&SPANS, &[outcome], spans as f64);
        }
    }
}

impl Exporter {
    fn new(target: &TraceTarget) -> Result<Self, String> {
        let channel = match target {
            TraceTarget::Http(address) => {
                let uri = format!("http://{address}{HTTP_PATH}").parse().map_err(|error| shown(&error))?;
                return Ok(Self::Http(HyperClient::with_default_connector(SEND_MAX, None), uri));
            }
            TraceTarget::Grpc(address) => {
                let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| shown(&error))?;
                endpoint.connect_timeout(SEND_MAX).connect_lazy()
            }
            TraceTarget::GrpcSocket(path) => {
                let path = path.clone();
                let connector = service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
            }
        };
        Ok(Self::Grpc(TraceServiceClient::new(channel)))
    }

    async fn export(&self, request: ExportRequest) -> Result<ExportAnswer, String> {
        let (client, uri) = match self {
            Self::Grpc(client) => {
                let answer = client.clone().export(request).await;
                return answer.map(tonic::Response::into_inner).map_err(|status| shown(&status));
            }
            Self::Http(client, uri) => (client, uri),
        };
        let request = Request::post(uri.clone())
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .body(Bytes::from(request.encode_to_vec()))
            .map_err(|error| shown(&error))?;
        let answer = client.send_bytes(request).await.map_err(|error| shown(&*error))?;
        if !answer.status().is_success() {
            return Err(format!("the collector answered {}", answer.status()));
        }
        // An undecodable answer is treated as an answer without rejected spans.
        Ok(ExportAnswer::decode(answer.into_body()).unwrap_or_default())
    }
}

fn shown(error: &(dyn StdError + 'static)) -> String {
    Failure::of(error).to_string()
}

fn resource() -> ResourceAttributesWithSchema {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let attributes = [
        KeyValue::new("service.name", "imagelet"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("host.name", node),
    ];
    (&Resource::builder_empty().with_attributes(attributes).build()).into()
}

impl FromStr for TraceTarget {
    type Err = String;

    /// Parses gRPC's `HOST:PORT`, `dns:HOST:PORT`, `dns:///HOST:PORT` and `unix:PATH`, and `http://HOST:PORT` for HTTP.
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
    async fn a_collector_that_is_away_is_an_error_with_its_cause() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let (grpc, http) = (TraceTarget::Grpc(address.clone()), TraceTarget::Http(address));
        let socket = TraceTarget::GrpcSocket("/nonexistent/otel.sock".into());
        for (target, cause) in [(grpc, "refused"), (http, "refused"), (socket, "No such file")] {
            let error = Exporter::new(&target).unwrap().export(ExportRequest::default()).await.unwrap_err();
            assert!(error.contains(cause), "{error}");
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
