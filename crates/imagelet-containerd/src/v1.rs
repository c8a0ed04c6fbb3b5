//! The wire types of containerd's own interface.
//!
//! Generated from `crates/imagelet-containerd/proto` by `cargo xtask gen`; change that instead.
#![allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications
)]

pub mod content {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Info {
        #[prost(string, tag = "1")]
        pub digest: ::prost::alloc::string::String,
        #[prost(int64, tag = "2")]
        pub size: i64,
        #[prost(btree_map = "string, string", tag = "5")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct InfoRequest {
        #[prost(string, tag = "1")]
        pub digest: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct InfoResponse {
        #[prost(message, optional, tag = "1")]
        pub info: ::core::option::Option<Info>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct UpdateRequest {
        #[prost(message, optional, tag = "1")]
        pub info: ::core::option::Option<Info>,
        #[prost(message, optional, tag = "2")]
        pub update_mask: ::core::option::Option<super::types::FieldMask>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ListContentResponse {
        #[prost(message, repeated, tag = "1")]
        pub info: ::prost::alloc::vec::Vec<Info>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct WriteContentRequest {
        #[prost(int32, tag = "1")]
        pub action: i32,
        #[prost(string, tag = "2")]
        pub r#ref: ::prost::alloc::string::String,
        #[prost(int64, tag = "3")]
        pub total: i64,
        #[prost(string, tag = "4")]
        pub expected: ::prost::alloc::string::String,
        #[prost(int64, tag = "5")]
        pub offset: i64,
        #[prost(bytes = "vec", tag = "6")]
        pub data: ::prost::alloc::vec::Vec<u8>,
        #[prost(btree_map = "string, string", tag = "7")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct WriteContentResponse {
        #[prost(int32, tag = "1")]
        pub action: i32,
        #[prost(string, tag = "6")]
        pub digest: ::prost::alloc::string::String,
    }
}
pub mod images {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Image {
        #[prost(string, tag = "1")]
        pub name: ::prost::alloc::string::String,
        #[prost(btree_map = "string, string", tag = "2")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
        #[prost(message, optional, tag = "3")]
        pub target: ::core::option::Option<super::types::Descriptor>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct GetImageRequest {
        #[prost(string, tag = "1")]
        pub name: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct GetImageResponse {
        #[prost(message, optional, tag = "1")]
        pub image: ::core::option::Option<Image>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ListImagesResponse {
        #[prost(message, repeated, tag = "1")]
        pub images: ::prost::alloc::vec::Vec<Image>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct CreateImageRequest {
        #[prost(message, optional, tag = "1")]
        pub image: ::core::option::Option<Image>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct UpdateImageRequest {
        #[prost(message, optional, tag = "1")]
        pub image: ::core::option::Option<Image>,
        #[prost(message, optional, tag = "2")]
        pub update_mask: ::core::option::Option<super::types::FieldMask>,
    }
}
pub mod introspection {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Plugin {
        #[prost(string, tag = "2")]
        pub id: ::prost::alloc::string::String,
        #[prost(btree_map = "string, string", tag = "5")]
        pub exports:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
        #[prost(string, repeated, tag = "6")]
        pub capabilities: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
        #[prost(message, optional, tag = "7")]
        pub init_err: ::core::option::Option<InitError>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct InitError {
        #[prost(string, tag = "2")]
        pub message: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct PluginsRequest {
        #[prost(string, repeated, tag = "1")]
        pub filters: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct PluginsResponse {
        #[prost(message, repeated, tag = "1")]
        pub plugins: ::prost::alloc::vec::Vec<Plugin>,
    }
}
pub mod leases {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Lease {
        #[prost(string, tag = "1")]
        pub id: ::prost::alloc::string::String,
        #[prost(btree_map = "string, string", tag = "3")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct CreateRequest {
        #[prost(string, tag = "1")]
        pub id: ::prost::alloc::string::String,
        #[prost(btree_map = "string, string", tag = "3")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct DeleteRequest {
        #[prost(string, tag = "1")]
        pub id: ::prost::alloc::string::String,
        #[prost(bool, tag = "2")]
        pub sync: bool,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct ListRequest {
        #[prost(string, repeated, tag = "1")]
        pub filters: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ListResponse {
        #[prost(message, repeated, tag = "1")]
        pub leases: ::prost::alloc::vec::Vec<Lease>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Resource {
        #[prost(string, tag = "1")]
        pub id: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub r#type: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct AddResourceRequest {
        #[prost(string, tag = "1")]
        pub id: ::prost::alloc::string::String,
        #[prost(message, optional, tag = "2")]
        pub resource: ::core::option::Option<Resource>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct ListResourcesRequest {
        #[prost(string, tag = "1")]
        pub id: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ListResourcesResponse {
        #[prost(message, repeated, tag = "1")]
        pub resources: ::prost::alloc::vec::Vec<Resource>,
    }
}
pub mod namespaces {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Namespace {
        #[prost(string, tag = "1")]
        pub name: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ListNamespacesResponse {
        #[prost(message, repeated, tag = "1")]
        pub namespaces: ::prost::alloc::vec::Vec<Namespace>,
    }
}
pub mod snapshots {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct PrepareSnapshotRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub key: ::prost::alloc::string::String,
        #[prost(string, tag = "3")]
        pub parent: ::prost::alloc::string::String,
        #[prost(btree_map = "string, string", tag = "4")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct PrepareSnapshotResponse {
        #[prost(message, repeated, tag = "1")]
        pub mounts: ::prost::alloc::vec::Vec<super::types::Mount>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct CommitSnapshotRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub name: ::prost::alloc::string::String,
        #[prost(string, tag = "3")]
        pub key: ::prost::alloc::string::String,
        #[prost(btree_map = "string, string", tag = "4")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
        #[prost(string, tag = "5")]
        pub parent: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct RemoveSnapshotRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub key: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct StatSnapshotRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub key: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Info {
        #[prost(string, tag = "1")]
        pub name: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub parent: ::prost::alloc::string::String,
        #[prost(int32, tag = "3")]
        pub kind: i32,
        #[prost(message, optional, tag = "4")]
        pub created_at: ::core::option::Option<super::types::Timestamp>,
        #[prost(btree_map = "string, string", tag = "6")]
        pub labels:
            ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct StatSnapshotResponse {
        #[prost(message, optional, tag = "1")]
        pub info: ::core::option::Option<Info>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct ListSnapshotsRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: ::prost::alloc::string::String,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ListSnapshotsResponse {
        #[prost(message, repeated, tag = "1")]
        pub info: ::prost::alloc::vec::Vec<Info>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct UsageRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub key: ::prost::alloc::string::String,
    }
    #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct UsageResponse {
        #[prost(int64, tag = "1")]
        pub size: i64,
        #[prost(int64, tag = "2")]
        pub inodes: i64,
    }
}
pub mod types {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Descriptor {
        #[prost(string, tag = "1")]
        pub media_type: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub digest: ::prost::alloc::string::String,
        #[prost(int64, tag = "3")]
        pub size: i64,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Mount {
        #[prost(string, tag = "1")]
        pub r#type: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub source: ::prost::alloc::string::String,
        #[prost(string, repeated, tag = "4")]
        pub options: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct FieldMask {
        #[prost(string, repeated, tag = "1")]
        pub paths: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    }
    #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Timestamp {
        #[prost(int64, tag = "1")]
        pub seconds: i64,
        #[prost(int32, tag = "2")]
        pub nanos: i32,
    }
}
