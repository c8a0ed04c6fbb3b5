//! The daemon's interface on its socket: the documents of each command, and the transport of commands.

/// Documents of the API are stable: fields are added, never renamed or removed, and readers skip unknown fields. Times
/// are RFC 3339, sizes are bytes, and names of durations contain the unit. A test compares them with `openapi.json`.
macro_rules! api_documents {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase", default)]
        #[allow(unreachable_pub, reason = "rooms use it for documents of their own")]
        $(#[$meta])*
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
    )*};
}

mod events;
mod fields;
mod overview;
mod steps;
mod transport;
mod types;

pub use events::{EventLine, EventsRequest, LayerProgress, NodeEvent, PullProgressRow, PullRetry, RemovedForPull};
pub use fields::{Hidden, moment};
pub(crate) use fields::{at_most, milliseconds_of, since_epoch};
pub use overview::{
    Disk, DiskRequest, DiskSample, ImagePage, OpenCircuits, PullsRequest, Queue, QueueRequest, RunningPulls,
};
pub use steps::{LayerSize, Step, Steps, no_steps, progress, silences, watcher};
pub(crate) use transport::{BODY_BYTES_MAX, COMMANDS, Line, READ_WITHIN, VERSION, streamed};
pub use types::*;
