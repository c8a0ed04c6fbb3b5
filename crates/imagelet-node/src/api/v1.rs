//! The wire types of the daemon's own interface.
//!
//! Generated from `crates/imagelet/proto/imagelet.proto` by `cargo xtask gen`; change that instead.
#![allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]

#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CallRequest {
    #[prost(string, tag = "1")]
    pub command: String,
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CallReply {
    #[prost(oneof = "call_reply::Reply", tags = "1, 2, 3")]
    pub reply: Option<call_reply::Reply>,
}
/// Nested message and enum types in `CallReply`.
pub mod call_reply {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Reply {
        #[prost(bytes, tag = "1")]
        Progress(Vec<u8>),
        #[prost(bytes, tag = "2")]
        Result(::prost::bytes::Bytes),
        #[prost(bytes, tag = "3")]
        Failure(Vec<u8>),
    }
}
