//! Propagates a caller's trace (W3C trace context): calls to the runtime get the trace headers of the incoming call.

use tonic::{
    Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
};
use tracing::Instrument as _;

use crate::cri::convert::{Call, code_name};

const PARENT: &str = "traceparent";
const COMPANIONS: [(&str, usize); 2] = [("tracestate", 512), ("baggage", 8192)];
const PARENT_LENGTH_MAX: usize = 256;

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
    pub(crate) fn of(metadata: &MetadataMap) -> Self {
        let parent = metadata.get(PARENT).filter(|parent| read_parent(parent.as_bytes()).is_some());
        let Some(parent) = parent else { return Self::default() };
        let companions = COMPANIONS.into_iter().filter_map(|(name, length_max)| {
            metadata.get(name).filter(|value| value.len() <= length_max).map(|value| (name, value.clone()))
        });
        Self([(PARENT, parent.clone())].into_iter().chain(companions).collect())
    }

    pub(crate) fn id(&self) -> Option<&str> {
        self.0.first().and_then(|(_, parent)| parent.to_str().ok()?.get(3..35))
    }

    /// Runs a call within the trace. Tasks that the call spawns are outside the trace.
    pub(crate) async fn scope<T>(self, call: impl Future<Output = T>) -> T {
        CURRENT.scope(self, call).await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerTrace {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub is_sampled: bool,
}

/// The caller's span of the CRI call that this task answers, or `None` outside a call and without a trace.
pub fn current_trace() -> Option<CallerTrace> {
    CURRENT.try_with(|current| read_parent(current.0.first()?.1.as_bytes())).ok()?
}

pub(crate) fn inject(metadata: &mut MetadataMap) {
    // `try_with` fails outside the scope of an incoming call. Then no header is added.
    let _ = CURRENT.try_with(|current| {
        for (name, value) in &current.0 {
            metadata.insert(*name, value.clone());
        }
    });
}

/// Parses a `traceparent` of the form `00-TRACE-SPAN-FLAGS`. Later versions of the format may append fields.
fn read_parent(header: &[u8]) -> Option<CallerTrace> {
    let mut parts = header.split(|byte| *byte == b'-');
    let ([version], trace) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let (span, [flags]) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let length_fits = if version == 0 { parts.next().is_none() } else { header.len() <= PARENT_LENGTH_MAX };
    let is_valid = length_fits && version != 0xff && trace != [0; 16] && span != [0; 8];
    is_valid.then_some(CallerTrace { trace, span, is_sampled: flags & 1 == 1 })
}

fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| char::from(digit).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    (text.len() == 2 * N).then_some(bytes)
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
