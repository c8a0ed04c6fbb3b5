//! The spans of one pull, from what its store reports of it.

use std::{collections::HashMap, time::SystemTime};

use imagelet_core::{
    image::Digest,
    runtime::{LayerState, PullEnd, PullEvent},
};

use super::{
    OpenSpan,
    messages::{number, text},
    nanoseconds,
};

/// The open spans of a pull. Dropped before its end, all of them end as cancelled.
#[derive(Debug)]
pub struct PullTrace {
    /// Before `pull`, so that they are sent first.
    part: Option<OpenSpan>,
    layers: HashMap<Digest, OpenSpan>,
    pull: OpenSpan,
}

impl PullTrace {
    pub(super) fn new(pull: OpenSpan) -> Self {
        let resolve = pull.sink.below(pull.place, "resolve");
        Self { part: Some(resolve), layers: HashMap::new(), pull }
    }

    pub fn step(&mut self, event: &PullEvent) {
        match event {
            PullEvent::Route(way) => {
                self.pull.add([text("imagelet.way", way.code())]);
            }
            PullEvent::Resolved { manifest, layers } => {
                self.end_part();
                self.pull.add([
                    text("imagelet.manifest", manifest.to_string()),
                    number("imagelet.layers", layers.len() as u64),
                    number("imagelet.bytes", layers.iter().map(|(_, size)| size.0).sum()),
                ]);
            }
            PullEvent::Layer { digest, state: LayerState::Fetching { .. } } => {
                let pull = &self.pull;
                self.layers.entry(digest.clone()).or_insert_with(|| {
                    let mut layer = pull.sink.below(pull.place, "layer");
                    layer.add([text("imagelet.layer", digest.to_string())]);
                    layer
                });
            }
            PullEvent::Layer { digest, state: LayerState::Done } => {
                if let Some(layer) = self.layers.remove(digest) {
                    layer.end(None);
                }
            }
            PullEvent::Layer { state: LayerState::Present, .. }
            | PullEvent::Hosts(_)
            | PullEvent::Retry { .. }
            | PullEvent::Waits { .. }
            | PullEvent::Warning { .. }
            | PullEvent::Head { .. }
            | PullEvent::Removed(_) => {}
            PullEvent::Token { service, began, is_granted } => {
                let mut token = self.pull.sink.below(self.pull.place, "token");
                token.span.start_time_unix_nano = nanoseconds(SystemTime::now() - began.elapsed());
                if token.span.start_time_unix_nano < self.pull.span.start_time_unix_nano {
                    // Obtained while the pull waited in its queue.
                    token.span.parent_span_id.clone_from(&self.pull.span.parent_span_id);
                }
                token.add([text("imagelet.token.service", service)]);
                token.end((!is_granted).then_some("Denied"));
            }
            PullEvent::Committing => {
                self.end_part();
                self.part = Some(self.pull.sink.below(self.pull.place, "commit"));
            }
        }
    }

    pub fn end(mut self, end: PullEnd<'_>) {
        let fault = match end {
            PullEnd::Pulled => None,
            PullEnd::Failed(error) => Some(error.fault()),
            // Open spans say so themselves.
            PullEnd::Cancelled => return,
        };
        if fault.is_none() {
            self.end_part();
        }
        let Self { part, layers, pull } = self;
        drop((part, layers));
        pull.end_at(fault);
    }

    fn end_part(&mut self) {
        if let Some(part) = self.part.take() {
            part.end(None);
        }
    }
}
