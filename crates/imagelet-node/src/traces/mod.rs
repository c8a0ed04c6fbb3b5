//! Traces of requests for images and of their pulls, exported by OTLP.
//!
//! ```text
//! ensure                     a request, below the caller's span where its call carries a trace (W3C)
//!   queue                    until the pull begins: records, credentials, a slot, the rate
//!   pull                     one pull, in the trace of one of the requests that share it
//!     resolve                the manifest
//!     token                  a request to a token service
//!     layer                  one streaming pass: download, check, decompression, unpacking
//!     commit                 sync and name
//! ```
//!
//! A span carries names, digests, sizes and the stable words of failures: no address of a request, and no secret.

mod export;
mod messages;
mod pull_trace;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    image::shown_name,
    manager::{EnsureError, PodOutcome},
    metrics::{Family, MetricKind, Metrics},
    runtime::Fault,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::messages::{KeyValue, OtlpSpan, SpanStatus, text};
pub(crate) use self::{export::TraceTarget, pull_trace::PullTrace};

/// Spans that wait for their export; more are dropped and counted.
const QUEUE_MAX: usize = 2048;
/// How long the end of a daemon waits for its last spans to be exported.
const LAST_EXPORT_MAX: Duration = Duration::from_millis(500);
const MILLION: u64 = 1_000_000;
const KIND_INTERNAL: i32 = 1;
const KIND_SERVER: i32 = 2;
const STATUS_ERROR: i32 = 2;

/// What happened to spans.
pub(crate) static SPANS: Family = Family {
    name: "imagelet_trace_spans_total",
    help: "Spans of traces by what became of them: exported, failed (the collector refused or did not answer), dropped (the queue was full).",
    kind: MetricKind::Counter,
    labels: &["outcome"],
};

/// Where traces are sent, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    pub target: TraceTarget,
    /// Of a million requests whose caller has no trace. One whose caller has a sampled trace is always traced.
    pub rate_per_million: u32,
}

/// Makes spans. Without settings it makes none and costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<SpanSink>>);

#[derive(Debug)]
struct SpanSink {
    queue: mpsc::Sender<OtlpSpan>,
    metrics: Arc<Metrics>,
    rate_per_million: u32,
    /// Ends the export after what is queued.
    stop: CancellationToken,
    export: Mutex<Option<JoinHandle<()>>>,
}

/// The place of a span in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpanPlace {
    trace: [u8; 16],
    span: [u8; 8],
}

tokio::task_local! {
    /// The request that the task works for, and when it began in nanoseconds since 1970.
    static REQUEST: (SpanPlace, u64);
}

impl Tracer {
    /// Exports in a task of its own, until [`Self::close`] or the last clone is dropped.
    pub fn new(settings: Option<&TraceSettings>, metrics: &Arc<Metrics>) -> Self {
        let Some(settings) = settings else { return Self::default() };
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let stop = CancellationToken::new();
        let export = tokio::spawn(export::run(spans, settings.target.clone(), Arc::clone(metrics), stop.clone()));
        let metrics = Arc::clone(metrics);
        let rate_per_million = settings.rate_per_million;
        Self(Some(Arc::new(SpanSink { queue, metrics, rate_per_million, stop, export: Mutex::new(Some(export)) })))
    }

    /// Exports what is queued, and ends. Later spans are dropped.
    pub async fn close(&self) {
        let Some(sink) = &self.0 else { return };
        sink.stop.cancel();
        let export = sink.export.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(export) = export
            && tokio::time::timeout(LAST_EXPORT_MAX, export).await.is_err()
        {
            tracing::info!("the collector takes too long; the last spans are lost");
        }
    }

    /// Runs a request for an image as a span, below the span of the CRI call that it is made for.
    pub async fn ensure<T>(
        &self,
        image: &str,
        work: impl Future<Output = Result<T, EnsureError>>,
    ) -> Result<T, EnsureError> {
        let Some(span) = self.0.as_ref().and_then(|sink| sink.request(image)) else { return work.await };
        let outcome = REQUEST.scope((span.place, span.span.start_time_unix_nano), work).await;
        span.end_at(outcome.as_ref().err().map(EnsureError::fault));
        outcome
    }

    /// Runs a request for all images of a pod as a span, which fails with the first of them.
    pub async fn ensure_pod(&self, pod: &str, work: impl Future<Output = Vec<PodOutcome>>) -> Vec<PodOutcome> {
        let Some(mut span) = self.0.as_ref().and_then(|sink| sink.request("")) else { return work.await };
        span.span.attributes = vec![text("k8s.pod.name", pod)];
        let outcomes = REQUEST.scope((span.place, span.span.start_time_unix_nano), work).await;
        span.end_at(outcomes.iter().find_map(|outcome| match outcome {
            PodOutcome::Failed(error) => Some(error.fault()),
            _ => None,
        }));
        outcomes
    }

    /// A pull that begins now, if the request that it is made for is traced.
    pub fn pull(&self, image: &str) -> Option<PullTrace> {
        let sink = self.0.as_ref()?;
        let (request, asked_at) = REQUEST.try_with(|request| *request).ok()?;
        let mut queue = sink.below(request, "queue");
        queue.span.start_time_unix_nano = asked_at;
        queue.end(None);
        let mut pull = sink.below(request, "pull");
        pull.add([text("imagelet.image", shown_name(image))]);
        Some(PullTrace::new(pull))
    }
}

impl SpanSink {
    /// The span of a request; `None`: it is not sampled.
    fn request(self: &Arc<Self>, image: &str) -> Option<OpenSpan> {
        let caller = imagelet_runtime::cri::current_trace();
        let is_sampled = match &caller {
            Some(caller) => caller.is_sampled,
            None => random() % MILLION < u64::from(self.rate_per_million),
        };
        let (trace, parent) = match caller {
            Some(caller) => (caller.trace, Some(caller.span)),
            None => ((u128::from(random()) << 64 | u128::from(random().max(1))).to_be_bytes(), None),
        };
        let place = SpanPlace { trace, span: random_span() };
        is_sampled.then(|| {
            let mut span = OpenSpan::new(self, place, parent, "ensure");
            span.span.kind = if parent.is_some() { KIND_SERVER } else { KIND_INTERNAL };
            span.add([text("imagelet.image", shown_name(image))]);
            span
        })
    }

    fn below(self: &Arc<Self>, above: SpanPlace, name: &'static str) -> OpenSpan {
        let place = SpanPlace { span: random_span(), ..above };
        OpenSpan::new(self, place, Some(above.span), name)
    }
}

/// Ids are unique and no secrets: the standard library's random keys are enough.
fn random() -> u64 {
    RandomState::new().hash_one(SystemTime::now())
}

fn random_span() -> [u8; 8] {
    random().max(1).to_be_bytes()
}

/// A span under way. It ends when it is dropped: as cancelled, unless its end was set.
#[derive(Debug)]
struct OpenSpan {
    sink: Arc<SpanSink>,
    place: SpanPlace,
    /// The message to send; its end is set by the drop.
    span: OtlpSpan,
    is_over: bool,
}

impl OpenSpan {
    fn new(sink: &Arc<SpanSink>, place: SpanPlace, parent: Option<[u8; 8]>, name: &'static str) -> Self {
        let span = OtlpSpan {
            trace_id: place.trace.to_vec(),
            span_id: place.span.to_vec(),
            parent_span_id: parent.map(|span| span.to_vec()).unwrap_or_default(),
            name: name.to_owned(),
            kind: KIND_INTERNAL,
            start_time_unix_nano: nanoseconds(SystemTime::now()),
            ..OtlpSpan::default()
        };
        Self { sink: Arc::clone(sink), place, span, is_over: false }
    }

    fn add(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.span.attributes.extend(attributes);
    }

    /// Ends with class and stage of a failure, whose text may come from outside.
    fn end_at(mut self, fault: Option<Fault>) {
        if let Some(fault) = &fault {
            self.add([text("error.type", fault.class.word()), text("imagelet.hop", fault.stage.word())]);
        }
        self.end(fault.map(|fault| fault.class.word()));
    }

    fn end(mut self, failure: Option<&str>) {
        self.span.status = failure.map(error_status);
        self.is_over = true;
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let mut span = std::mem::take(&mut self.span);
        span.end_time_unix_nano = nanoseconds(SystemTime::now()).max(span.start_time_unix_nano);
        if !self.is_over {
            span.status = Some(error_status("Cancelled"));
        }
        // A full queue never holds a pull up.
        if self.sink.queue.try_send(span).is_err() {
            self.sink.metrics.increment(&SPANS, &["dropped"]);
        }
    }
}

fn error_status(message: &str) -> SpanStatus {
    SpanStatus { message: message.to_owned(), code: STATUS_ERROR }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
