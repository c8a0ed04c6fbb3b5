//! The spans of one pull, created from its progress at its end.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use imagelet_core::ports::{PullEnd, PullProgress};
use opentelemetry::{KeyValue, trace::SpanContext};
use tokio::time::Instant;

use super::{OpenSpan, SpanSink};

/// The progress of a pull for one request. The drop creates the spans; spans of an unfinished pull end as cancelled.
#[derive(Debug)]
pub(super) struct PullTrace {
    pub(super) sink: Arc<SpanSink>,
    pub(super) request: SpanContext,
    pub(super) asked_at: SystemTime,
    pub(super) image: String,
    pub(super) progress: Mutex<PullProgress>,
}

impl PullTrace {
    /// Creates a span that ends at `ended`. `None`: the span ends when it is dropped.
    fn span(&self, above: &SpanContext, name: &'static str, began: Instant, ended: Option<Instant>) -> OpenSpan {
        let mut span = self.sink.below(above, name);
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
            pull.add([
                KeyValue::new("imagelet.manifest", manifest.to_string()),
                KeyValue::new("imagelet.layers", progress.layers.len().cast_signed() as i64),
                KeyValue::new(
                    "imagelet.bytes",
                    progress.layers.iter().map(|layer| layer.size.0).sum::<u64>().cast_signed(),
                ),
            ]);
        }
        let below = pull.context();
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
