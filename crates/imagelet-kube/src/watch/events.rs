//! The events of a watch: one JSON document a line, of bounded length.

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::api_error::{ApiError, ApiStatus};

/// The longest event. The API server accepts objects of 3 MiB at most.
pub(super) const EVENT_LENGTH_MAX: usize = 4 << 20;
/// A buffer that grew larger for one event is not kept.
const BUFFER_KEPT_MAX: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct WatchEvent<T> {
    pub(super) kind: EventKind,
    pub(super) object: T,
    /// The resource version of the object; may be empty.
    pub(super) version: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// Created or changed.
    Changed,
    /// Gone, or no longer selected.
    Deleted,
    /// Nothing but the resource version.
    Bookmark,
}

#[derive(Deserialize)]
struct WireEvent<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Of each object, whatever else is read of it.
#[derive(Deserialize)]
struct VersionedObject {
    #[serde(default)]
    metadata: VersionMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VersionMetadata {
    resource_version: String,
}

/// The body of a watch's answer, event by event.
#[derive(Debug)]
pub(super) struct EventStream {
    body: Body,
    buffer: BytesMut,
    /// Bytes of the buffer that hold no end of a line.
    searched: usize,
}

impl EventStream {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0 }
    }

    /// The next event; `None`: the server ended the watch.
    pub(super) async fn next<T: DeserializeOwned>(
        &mut self,
        silence_max: Duration,
    ) -> Result<Option<WatchEvent<T>>, ApiError> {
        loop {
            if let Some(found) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + found);
                self.buffer.advance(1);
                self.searched = 0;
                if self.buffer.is_empty() && self.buffer.capacity() > BUFFER_KEPT_MAX {
                    self.buffer = BytesMut::new();
                }
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return decode(&line).map(Some);
            }
            self.searched = self.buffer.len();
            let frame = tokio::time::timeout(silence_max, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| ApiError::Silent(silence_max))? else {
                // What has no end of its line was cut off, and is sent again.
                return Ok(None);
            };
            let frame = frame.map_err(|error| ApiError::Unreachable(error.into()))?;
            let Ok(bytes) = frame.into_data() else { continue };
            if self.buffer.len() + bytes.len() > EVENT_LENGTH_MAX && !bytes.contains(&b'\n') {
                return Err(ApiError::TooLarge { max: EVENT_LENGTH_MAX });
            }
            self.buffer.extend_from_slice(&bytes);
        }
    }
}

fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<WatchEvent<T>, ApiError> {
    let event: WireEvent<'_> = serde_json::from_slice(line).map_err(ApiError::Decode)?;
    if event.r#type == "ERROR" {
        let status: ApiStatus = serde_json::from_str(event.object.get()).map_err(ApiError::Decode)?;
        return Err(status.into_error(500));
    }
    let object = serde_json::from_str(event.object.get()).map_err(ApiError::Decode)?;
    let VersionedObject { metadata } = serde_json::from_str(event.object.get()).map_err(ApiError::Decode)?;
    let kind = match event.r#type.as_str() {
        "DELETED" => EventKind::Deleted,
        "BOOKMARK" => EventKind::Bookmark,
        _ => EventKind::Changed,
    };
    Ok(WatchEvent { kind, object, version: metadata.resource_version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct TestObject {
        #[serde(rename = "metadata")]
        _metadata: serde_json::Value,
    }

    async fn all(text: impl Into<Vec<u8>>) -> Vec<Result<String, String>> {
        let mut events = EventStream::new(Body::from(text.into()));
        let mut found = Vec::new();
        loop {
            match events.next::<TestObject>(Duration::from_secs(1)).await {
                Ok(Some(WatchEvent { kind, version, .. })) => found.push(Ok(match kind {
                    EventKind::Changed => format!("changed at {version}"),
                    EventKind::Deleted => format!("deleted at {version}"),
                    EventKind::Bookmark => format!("at {version}"),
                })),
                Ok(None) => return found,
                Err(error) => {
                    found.push(Err(error.chain()));
                    return found;
                }
            }
        }
    }

    fn event(kind: &str, version: u32) -> String {
        format!(r#"{{"type":"{kind}","object":{{"metadata":{{"resourceVersion":"{version}"}},"spec":{{"x":[1]}}}}}}"#)
    }

    #[tokio::test]
    async fn events_are_lines_and_one_that_is_cut_off_does_not_count() {
        let [added, bookmark, deleted] = [event("ADDED", 1), event("BOOKMARK", 2), event("DELETED", 3)];
        let text = format!("{added}\n\n{bookmark}\r\n{deleted}\n{}", &added[..20]);
        let expected = ["changed at 1", "at 2", "deleted at 3"].map(|text| Ok(text.to_owned()));
        assert_eq!(all(text).await, expected);
        assert_eq!(all("").await, []);
    }

    #[tokio::test]
    async fn an_error_of_the_server_and_what_is_no_event_end_the_watch() {
        let status = |code: u16, message: &str| {
            format!("{{\"type\":\"ERROR\",\"object\":{{\"code\":{code},\"message\":\"{message}\"}}}}\n")
        };
        for (text, expected) in [
            (
                status(410, "too old resource version: 1 (2)"),
                "the API server no longer has the resource version of the list",
            ),
            (
                status(504, "Timeout: Too large resource version: 9"),
                "the API server no longer has the resource version of the list",
            ),
            (status(500, "etcd\\u001b is away"), "the API server answered 500: etcd  is away"),
        ] {
            assert_eq!(all(text).await, [Err(expected.to_owned())]);
        }
        for text in ["<html>\n", "{\"type\":\"ADDED\"}\n", "{\"type\":\"ADDED\",\"object\":5}\n", "\u{0}\n"] {
            let found = all(text).await;
            assert!(
                matches!(&found[..], [Err(error)] if error.starts_with("could not decode the answer")),
                "{found:?}"
            );
        }
        let endless = vec![b'x'; EVENT_LENGTH_MAX + 1];
        assert_eq!(all(endless).await, [Err(ApiError::TooLarge { max: EVENT_LENGTH_MAX }.to_string())]);
    }
}
