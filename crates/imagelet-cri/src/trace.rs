//! Propagates a caller's trace: the headers of an incoming call are sent with the calls made for it (W3C trace context).

use tonic::{
    Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
};
use tracing::Instrument as _;

use crate::convert::{Call, code_name};

const PARENT: &str = "traceparent";
/// The other headers of a trace, with their limits.
const COMPANIONS: [(&str, usize); 2] = [("tracestate", 512), ("baggage", 8192)];
/// `00-TRACE-SPAN-FLAGS`; later versions may append to it.
const PARENT_LENGTH: usize = 55;

/// Follows a client's call with a span and an event for the request and the response.
pub(crate) async fn follow<A>(call: Call, sent: impl Future<Output = Result<A, Status>>) -> Result<A, Status> {
    let span = tracing::debug_span!(
        "cri_call",
        otel.kind = "client",
        rpc.system = "grpc",
        rpc.method = call.method(),
        rpc.grpc.status = tracing::field::Empty,
    );
    let followed = async {
        tracing::debug!("message sent");
        let answer = sent.await;
        let code = answer.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        tracing::Span::current().record("rpc.grpc.status", code_name(code).as_str());
        tracing::debug!("message received");
        answer
    };
    followed.instrument(span).await
}

tokio::task_local! {
    static CURRENT: TraceContext;
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TraceContext(Vec<(&'static str, MetadataValue<Ascii>)>);

impl TraceContext {
    /// The trace of a call; empty if its headers are invalid.
    pub(crate) fn of(metadata: &MetadataMap) -> Self {
        let Some(parent) = metadata.get(PARENT).filter(|parent| is_parent(parent.as_bytes())) else {
            return Self::default();
        };
        let companions = COMPANIONS.into_iter().filter_map(|(name, length_max)| {
            metadata.get(name).filter(|value| value.len() <= length_max).map(|value| (name, value.clone()))
        });
        Self([(PARENT, parent.clone())].into_iter().chain(companions).collect())
    }

    pub(crate) fn id(&self) -> Option<&str> {
        self.0.first().and_then(|(_, parent)| parent.to_str().ok()).and_then(|parent| parent.get(3..35))
    }

    /// Runs a call so that the calls it makes belong to the trace. Spawned tasks do not.
    pub(crate) async fn scope<T>(self, call: impl Future<Output = T>) -> T {
        CURRENT.scope(self, call).await
    }
}

/// The span of a caller, from the `traceparent` header of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerTrace {
    /// The trace.
    pub trace: [u8; 16],
    /// The caller's span.
    pub span: [u8; 8],
    /// Whether the caller records the trace.
    pub is_sampled: bool,
}

/// The span of the CRI call that the task answers; `None` outside of a call, or where the call has no trace.
pub fn current_trace() -> Option<CallerTrace> {
    let parent = CURRENT.try_with(|current| current.0.first().map(|(_, parent)| parent.clone())).ok()??;
    let text = parent.to_str().ok()?;
    let flags = u8::from_str_radix(text.get(53..55)?, 16).ok()?;
    Some(CallerTrace { trace: hex(text.get(3..35)?)?, span: hex(text.get(36..52)?)?, is_sampled: flags & 1 == 1 })
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

pub(crate) fn inject(metadata: &mut MetadataMap) {
    // No scope: the call was not made for an incoming one.
    let _ = CURRENT.try_with(|current| {
        for (name, value) in &current.0 {
            metadata.insert(*name, value.clone());
        }
    });
}

fn is_parent(text: &[u8]) -> bool {
    let part = |from: usize, length: usize| text.get(from..from + length).unwrap_or_default();
    let is_hex = |part: &[u8]| part.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
    let dashes = [2, 35, 52].into_iter().all(|at| text.get(at) == Some(&b'-'));
    let (version, trace, span, flags) = (part(0, 2), part(3, 32), part(36, 16), part(53, 2));
    let length_fits = match version {
        b"00" => text.len() == PARENT_LENGTH,
        _ => text.len() == PARENT_LENGTH || text.get(PARENT_LENGTH) == Some(&b'-'),
    };
    let is_none = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
    dashes
        && length_fits
        && text.len() <= 256
        && version != b"ff"
        && [version, trace, span, flags].into_iter().all(is_hex)
        && !is_none(trace)
        && !is_none(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT_SAID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn metadata(fields: &[(&'static str, &str)]) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for (name, value) in fields {
            metadata.insert(*name, value.parse().unwrap());
        }
        metadata
    }

    #[tokio::test]
    async fn a_trace_goes_on_with_the_calls_that_are_made_for_it() {
        let came = metadata(&[("traceparent", PARENT_SAID), ("tracestate", "a=b"), ("baggage", "k=v"), ("other", "x")]);
        let context = TraceContext::of(&came);
        assert_eq!(context.id(), Some("0af7651916cd43dd8448eb211c80319c"));
        assert_eq!(current_trace(), None, "outside of a call");
        let caller = context.clone().scope(async { current_trace() }).await.expect("a caller");
        assert_eq!((caller.trace[..2].to_vec(), caller.span[7], caller.is_sampled), (vec![0x0a, 0xf7], 0x31, true));
        let sent = context
            .scope(async {
                let mut sent = MetadataMap::new();
                inject(&mut sent);
                sent
            })
            .await;
        assert_eq!(sent.len(), 3);
        for (name, value) in [("traceparent", PARENT_SAID), ("tracestate", "a=b"), ("baggage", "k=v")] {
            assert_eq!(sent.get(name).unwrap(), value);
        }
        let mut outside = MetadataMap::new();
        inject(&mut outside);
        assert!(outside.is_empty());
    }

    #[test]
    fn a_trace_that_does_not_read_is_none() {
        let bad = [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ];
        for parent in bad {
            assert!(
                TraceContext::of(&metadata(&[("traceparent", parent), ("baggage", "k=v")])).0.is_empty(),
                "{parent}"
            );
        }
        let later = format!("01{}-more", &PARENT_SAID[2..]);
        let long = "x".repeat(513);
        let context = TraceContext::of(&metadata(&[("traceparent", &later), ("tracestate", &long)]));
        assert_eq!(context.0.len(), 1, "what is too long stays behind");
    }
}
