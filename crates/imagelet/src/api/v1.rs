//! The wire types of the daemon's own interface.
//!
//! Generated from `crates/imagelet/proto/imagelet.proto` by `cargo xtask gen`; change that instead.
#![allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications
)]

/// A command and what it needs.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CallRequest {
    /// The command's name as on the command line: `ensure`, `list`, `collect`.
    #[prost(string, tag = "1")]
    pub command: ::prost::alloc::string::String,
    /// A JSON document with the command's arguments; empty where it takes none. At most 1 MiB.
    #[prost(bytes = "vec", tag = "2")]
    pub body: ::prost::alloc::vec::Vec<u8>,
}
/// A step of the answer.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CallReply {
    #[prost(oneof = "call_reply::Reply", tags = "1, 2, 3")]
    pub reply: ::core::option::Option<call_reply::Reply>,
}
/// Nested message and enum types in `CallReply`.
pub mod call_reply {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Reply {
        /// A JSON document: how far the command is. May be dropped when the reader is slow.
        #[prost(bytes, tag = "1")]
        Progress(::prost::alloc::vec::Vec<u8>),
        /// A JSON document: what `-o json` prints. The last message.
        #[prost(bytes, tag = "2")]
        Result(::prost::bytes::Bytes),
        /// A JSON document: why the command failed, with the machine's word for it. The last message.
        #[prost(bytes, tag = "3")]
        Failure(::prost::alloc::vec::Vec<u8>),
    }
}
