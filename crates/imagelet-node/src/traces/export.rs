//! Sends spans to a collector in batches, by gRPC or as protobuf over HTTP.

use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use imagelet_core::metrics::Metrics;
use opentelemetry::KeyValue;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use tokio::{net::UnixStream, sync::mpsc};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use super::SPANS;

const BATCH_MAX: usize = 512;
/// What comes within this time is sent together.
const BATCH_WAIT: Duration = Duration::from_millis(500);
/// A collector that takes longer loses the batch.
const SEND_MAX: Duration = Duration::from_secs(10);
/// One warning for so many batches that fail in a row.
const WARN_EVERY: u64 = 60;
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
    mut spans: mpsc::Receiver<SpanData>,
    target: TraceTarget,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let (mut batch, mut failed) = (Vec::new(), 0u64);
    let exporter = match exporter(&target) {
        Ok(exporter) => exporter,
        Err(error) => return tracing::error!(?target, error, "could not set up the export of traces"),
    };
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
        let sent = tokio::time::timeout(SEND_MAX, exporter.export(std::mem::take(&mut batch))).await;
        let sent = sent.map(|sent| sent.map_err(|error| error.to_string()));
        let outcome = match sent.unwrap_or_else(|_| Err(format!("no answer within {} s", SEND_MAX.as_secs()))) {
            Ok(()) => {
                failed = 0;
                "exported"
            }
            Err(error) => {
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

fn exporter(target: &TraceTarget) -> Result<SpanExporter, String> {
    let builder = SpanExporter::builder();
    let built = match target {
        TraceTarget::Http(address) => builder
            .with_http()
            .with_http_client(HyperClient::with_default_connector(SEND_MAX, None))
            .with_endpoint(format!("http://{address}{HTTP_PATH}"))
            .build(),
        TraceTarget::Grpc(address) => {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
            builder.with_tonic().with_channel(endpoint.connect_timeout(SEND_MAX).connect_lazy()).build()
        }
        TraceTarget::GrpcSocket(path) => {
            let path = path.clone();
            let connector = service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
            builder.with_tonic().with_channel(channel).build()
        }
    };
    let mut exporter = built.map_err(|error| error.to_string())?;
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let attributes = [
        KeyValue::new("service.name", "imagelet"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("host.name", node),
    ];
    exporter.set_resource(&Resource::builder_empty().with_attributes(attributes).build());
    Ok(exporter)
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
    async fn a_collector_that_is_away_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let (grpc, http) = (TraceTarget::Grpc(address.clone()), TraceTarget::Http(address));
        for target in [grpc, http, TraceTarget::GrpcSocket("/nonexistent/otel.sock".into())] {
            assert!(exporter(&target).unwrap().export(Vec::new()).await.is_err(), "{target:?}");
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
