//! Traces of requests for images and of their pulls, exported by OTLP.
//!
//! ```text
//! ensure                     a request, below the caller's span if its call carries a trace (W3C)
//!   queue                    until the pull begins: records, credentials, a slot, the rate
//!   pull                     one pull, in the trace of each request that shares it
//!     resolve                the manifest
//!     token                  a request to a token service
//!     layer                  one streaming pass: download, check, decompression, unpacking
//!     commit                 sync and name
//! ```
//!
//! A span contains names, digests, sizes and stable words of failures. A span contains no request URL and no secret.

mod export;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    error::Fault,
    image::shown_name,
    lock::locked,
    manager::{EnsureError, PodOutcome},
    metrics::{Family, MetricKind, Metrics},
    ports::{PullEnd, PullProgress, PullWatcher},
};
use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

pub(crate) use self::export::TraceTarget;

/// Further spans are dropped and counted.
const QUEUE_MAX: usize = 2048;
const LAST_EXPORT_MAX: Duration = Duration::from_millis(500);
const MILLION: u128 = 1_000_000;

pub(crate) static SPANS: Family = Family {
    name: "imagelet_trace_spans_total",
    help: "Spans of traces by what became of them: exported, failed (the collector refused or did not answer), dropped (the queue was full).",
    kind: MetricKind::Counter,
    labels: &["outcome"],
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    pub target: TraceTarget,
    /// How many requests in a million are sampled. If the caller sends a trace, the flag of the trace decides instead.
    pub rate_per_million: u32,
}

/// Creates spans. Without settings, a tracer creates no span and has no cost.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<SpanSink>>);

#[derive(Debug)]
struct SpanSink {
    /// The queue and the export task, which ends once the queue is closed and empty. `None`: the tracer is closed.
    export: Mutex<Option<(mpsc::Sender<SpanData>, JoinHandle<()>)>>,
    metrics: Arc<Metrics>,
    rate_per_million: u32,
}

/// A running request. Its pulls become spans below the request's span. `None`: the request is not sampled.
#[derive(Clone, Debug)]
pub struct RequestTrace(Option<(Arc<SpanSink>, SpanContext, SystemTime)>);

impl RequestTrace {
    fn of(span: Option<&OpenSpan>) -> Self {
        Self(span.map(|span| (Arc::clone(&span.sink), span.span.span_context.clone(), span.span.start_time)))
    }

    /// Returns a watcher that creates the spans of a pull from its progress, when its last clone is dropped.
    pub fn watch(&self, image: &str, watcher: PullWatcher) -> PullWatcher {
        let Some((sink, request, asked_at)) = self.0.clone() else { return watcher };
        let image = shown_name(image).into_owned();
        let trace = PullTrace { sink, request, asked_at, image, progress: Mutex::default() };
        Arc::new(move |progress| {
            locked(&trace.progress).clone_from(progress);
            watcher(progress);
        })
    }
}

impl Tracer {
    /// The export ends at [`Self::close`], or when the last clone of the tracer is dropped.
    pub fn new(settings: Option<&TraceSettings>, metrics: &Arc<Metrics>) -> Self {
        let Some(settings) = settings else { return Self::default() };
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let export = tokio::spawn(export::run(spans, settings.target.clone(), Arc::clone(metrics)));
        let (export, rate_per_million) = (Mutex::new(Some((queue, export))), settings.rate_per_million);
        Self(Some(Arc::new(SpanSink { export, metrics: Arc::clone(metrics), rate_per_million })))
    }

    /// Exports the queued spans and ends the export task. Spans that end later are dropped.
    pub async fn close(&self) {
        let Some(sink) = &self.0 else { return };
        let Some((queue, export)) = locked(&sink.export).take() else { return };
        drop(queue);
        if tokio::time::timeout(LAST_EXPORT_MAX, export).await.is_err() {
            tracing::info!("the collector takes too long; the last spans are lost");
        }
    }

    pub async fn ensure<T, F: Future<Output = Result<T, EnsureError>>>(
        &self,
        image: &str,
        watcher: PullWatcher,
        work: impl FnOnce(PullWatcher) -> F,
    ) -> Result<T, EnsureError> {
        let span = self.0.as_ref().and_then(|sink| sink.request(image));
        let outcome = work(RequestTrace::of(span.as_ref()).watch(image, watcher)).await;
        if let Some(span) = span {
            span.end_at(outcome.as_ref().err().map(EnsureError::fault));
        }
        outcome
    }

    pub async fn ensure_pod<F: Future<Output = Vec<PodOutcome>>>(
        &self,
        pod: &str,
        work: impl FnOnce(RequestTrace) -> F,
    ) -> Vec<PodOutcome> {
        let mut span = self.0.as_ref().and_then(|sink| sink.request(""));
        if let Some(span) = &mut span {
            span.span.attributes = vec![KeyValue::new("k8s.pod.name", pod.to_owned())];
        }
        let outcomes = work(RequestTrace::of(span.as_ref())).await;
        if let Some(span) = span {
            span.end_at(outcomes.iter().find_map(|outcome| match outcome {
                PodOutcome::Failed(error) => Some(error.fault()),
                _ => None,
            }));
        }
        outcomes
    }
}

impl SpanSink {
    fn request(self: &Arc<Self>, image: &str) -> Option<OpenSpan> {
        let (trace, parent, is_sampled) = if let Some(caller) = imagelet_runtime::cri::current_trace() {
            (TraceId::from_bytes(caller.trace), SpanId::from_bytes(caller.span), caller.is_sampled)
        } else {
            let trace = RandomIdGenerator::default().new_trace_id();
            let number = u128::from_be_bytes(trace.to_bytes());
            (trace, SpanId::INVALID, number % MILLION < self.rate_per_million.into())
        };
        is_sampled.then(|| {
            let mut span = OpenSpan::new(self, trace, parent, "ensure");
            if parent != SpanId::INVALID {
                span.span.span_kind = SpanKind::Server;
            }
            span.add([KeyValue::new("imagelet.image", shown_name(image).into_owned())]);
            span
        })
    }
}

/// A running span. The drop sends the span to the export. A span whose end is not set is sent as cancelled.
#[derive(Debug)]
struct OpenSpan {
    sink: Arc<SpanSink>,
    span: SpanData,
    ended: Option<SystemTime>,
}

impl OpenSpan {
    fn new(sink: &Arc<SpanSink>, trace: TraceId, parent: SpanId, name: &'static str) -> Self {
        let (id, now) = (RandomIdGenerator::default().new_span_id(), SystemTime::now());
        let span = SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: now,
            end_time: now,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("imagelet")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        };
        Self { sink: Arc::clone(sink), span, ended: None }
    }

    fn add(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.span.attributes.extend(attributes);
    }

    /// Ends the span with the class and stage of a failure. The text is omitted, because a registry may have sent it.
    fn end_at(mut self, fault: Option<Fault>) {
        if let Some(fault) = &fault {
            self.add([
                KeyValue::new("error.type", fault.class.name()),
                KeyValue::new("imagelet.hop", fault.stage.name()),
            ]);
        }
        self.end(fault.map(|fault| fault.class.name()));
    }

    fn end(mut self, failure: Option<&'static str>) {
        self.span.status = failure.map_or(Status::Unset, Status::error);
        self.ended = self.ended.or(Some(SystemTime::now()));
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let mut span = self.span.clone();
        span.end_time = self.ended.unwrap_or_else(SystemTime::now).max(span.start_time);
        if self.ended.is_none() {
            span.status = Status::error("Cancelled");
        }
        // A pull must not wait for space in the queue, so the span is dropped if the queue is full.
        if locked(&self.sink.export).as_ref().is_none_or(|(queue, _)| queue.try_send(span).is_err()) {
            self.sink.metrics.increment(&SPANS, &["dropped"]);
        }
    }
}

/// The progress of a pull for one request. The drop creates the spans; spans of an unfinished pull end as cancelled.
struct PullTrace {
    sink: Arc<SpanSink>,
    request: SpanContext,
    asked_at: SystemTime,
    image: String,
    progress: Mutex<PullProgress>,
}

impl PullTrace {
    /// Creates a span that ends at `ended`. `None`: the span ends when it is dropped.
    fn span(&self, above: &SpanContext, name: &'static str, began: Instant, ended: Option<Instant>) -> OpenSpan {
        let mut span = OpenSpan::new(&self.sink, above.trace_id(), above.span_id(), name);
        span.span.start_time = time_of(began);
        span.ended = ended.map(time_of);
        span
    }
}

impl Drop for PullTrace {
    fn drop(&mut self) {
        let progress = std::mem::take(self.progress.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Some(began) = progress.times.began else { return };
        let mut queue = self.span(&self.request, "queue", began, Some(began));
        queue.span.start_time = self.asked_at;
        drop(queue);
        let mut pull = self.span(&self.request, "pull", began, None);
        pull.add([KeyValue::new("imagelet.image", self.image.clone())]);
        pull.add(progress.route.as_ref().map(|route| KeyValue::new("imagelet.way", route.code())));
        if let Some((_, manifest)) = &progress.times.resolved {
            let bytes: u64 = progress.layers.iter().map(|layer| layer.size.0).sum();
            pull.add([
                KeyValue::new("imagelet.manifest", manifest.to_string()),
                KeyValue::new("imagelet.layers", progress.layers.len().cast_signed() as i64),
                KeyValue::new("imagelet.bytes", bytes.cast_signed()),
            ]);
        }
        let below = pull.span.span_context.clone();
        drop(self.span(&below, "resolve", began, progress.times.resolved.as_ref().map(|(at, _)| *at)));
        for token in &progress.tokens {
            // A token obtained while the pull waited in its queue belongs to the request.
            let above = if token.began < began { &self.request } else { &below };
            let mut span = self.span(above, "token", token.began, None);
            span.add([KeyValue::new("imagelet.token.service", token.service.clone())]);
            span.ended = Some(time_of(token.ended));
            span.end((!token.is_granted).then_some("Denied"));
        }
        for layer in &progress.layers {
            let Some(began) = layer.began else { continue };
            let mut span = self.span(&below, "layer", began, layer.ended);
            span.add([KeyValue::new("imagelet.layer", layer.digest.to_string())]);
        }
        if let Some(began) = progress.times.committing {
            let ended = progress.times.end.as_ref().filter(|(_, end)| matches!(end, PullEnd::Pulled));
            drop(self.span(&below, "commit", began, ended.map(|(at, _)| *at)));
        }
        match progress.times.end {
            Some((at, PullEnd::Pulled)) => pull.ended = Some(time_of(at)),
            Some((_, PullEnd::Failed(error))) => pull.end_at(Some(error.fault())),
            // The drop of `pull` ends its span as cancelled.
            Some((_, PullEnd::Cancelled)) | None => {}
        }
    }
}

fn time_of(at: Instant) -> SystemTime {
    SystemTime::now() - at.elapsed()
}
