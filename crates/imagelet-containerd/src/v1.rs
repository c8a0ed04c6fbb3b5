//! The wire types of containerd's own interface.
//!
//! Generated from `crates/imagelet-containerd/proto` by `cargo xtask gen`; change that instead.
#![allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]

pub mod content {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Info {
        #[prost(string, tag = "1")]
        pub digest: String,
        #[prost(int64, tag = "2")]
        pub size: i64,
        #[prost(btree_map = "string, string", tag = "5")]
        pub labels: std::collections::BTreeMap<String, String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct UpdateRequest {
        #[prost(message, optional, tag = "1")]
        pub info: Option<Info>,
        #[prost(message, optional, tag = "2")]
        pub update_mask: Option<super::types::FieldMask>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct WriteContentRequest {
        #[prost(int32, tag = "1")]
        pub action: i32,
        #[prost(string, tag = "2")]
        pub r#ref: String,
        #[prost(int64, tag = "3")]
        pub total: i64,
        #[prost(string, tag = "4")]
        pub expected: String,
        #[prost(int64, tag = "5")]
        pub offset: i64,
        #[prost(bytes = "vec", tag = "6")]
        pub data: Vec<u8>,
        #[prost(btree_map = "string, string", tag = "7")]
        pub labels: std::collections::BTreeMap<String, String>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct WriteContentResponse {
        #[prost(int32, tag = "1")]
        pub action: i32,
        #[prost(string, tag = "6")]
        pub digest: String,
    }
}
pub mod images {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Image {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(btree_map = "string, string", tag = "2")]
        pub labels: std::collections::BTreeMap<String, String>,
        #[prost(message, optional, tag = "3")]
        pub target: Option<super::types::Descriptor>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct UpdateImageRequest {
        #[prost(message, optional, tag = "1")]
        pub image: Option<Image>,
        #[prost(message, optional, tag = "2")]
        pub update_mask: Option<super::types::FieldMask>,
    }
}
pub mod introspection {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Plugin {
        #[prost(string, tag = "2")]
        pub id: String,
        #[prost(btree_map = "string, string", tag = "5")]
        pub exports: std::collections::BTreeMap<String, String>,
        #[prost(string, repeated, tag = "6")]
        pub capabilities: Vec<String>,
        #[prost(message, optional, tag = "7")]
        pub init_err: Option<InitError>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct InitError {
        #[prost(string, tag = "2")]
        pub message: String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct PluginsRequest {
        #[prost(string, repeated, tag = "1")]
        pub filters: Vec<String>,
    }
}
pub mod leases {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Lease {
        #[prost(string, tag = "1")]
        pub id: String,
        #[prost(btree_map = "string, string", tag = "3")]
        pub labels: std::collections::BTreeMap<String, String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct CreateRequest {
        #[prost(string, tag = "1")]
        pub id: String,
        #[prost(btree_map = "string, string", tag = "3")]
        pub labels: std::collections::BTreeMap<String, String>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct DeleteRequest {
        #[prost(string, tag = "1")]
        pub id: String,
        #[prost(bool, tag = "2")]
        pub sync: bool,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Resource {
        #[prost(string, tag = "1")]
        pub id: String,
        #[prost(string, tag = "2")]
        pub r#type: String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct AddResourceRequest {
        #[prost(string, tag = "1")]
        pub id: String,
        #[prost(message, optional, tag = "2")]
        pub resource: Option<Resource>,
    }
}
pub mod snapshots {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct PrepareSnapshotRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: String,
        #[prost(string, tag = "2")]
        pub key: String,
        #[prost(string, tag = "3")]
        pub parent: String,
        #[prost(btree_map = "string, string", tag = "4")]
        pub labels: std::collections::BTreeMap<String, String>,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct CommitSnapshotRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: String,
        #[prost(string, tag = "2")]
        pub name: String,
        #[prost(string, tag = "3")]
        pub key: String,
        #[prost(btree_map = "string, string", tag = "4")]
        pub labels: std::collections::BTreeMap<String, String>,
        #[prost(string, tag = "5")]
        pub parent: String,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct SnapshotRequest {
        #[prost(string, tag = "1")]
        pub snapshotter: String,
        #[prost(string, tag = "2")]
        pub key: String,
    }
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Info {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "2")]
        pub parent: String,
        #[prost(int32, tag = "3")]
        pub kind: i32,
        #[prost(message, optional, tag = "4")]
        pub created_at: Option<super::types::Timestamp>,
        #[prost(btree_map = "string, string", tag = "6")]
        pub labels: std::collections::BTreeMap<String, String>,
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
        pub media_type: String,
        #[prost(string, tag = "2")]
        pub digest: String,
        #[prost(int64, tag = "3")]
        pub size: i64,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Mount {
        #[prost(string, tag = "1")]
        pub r#type: String,
        #[prost(string, tag = "2")]
        pub source: String,
        #[prost(string, repeated, tag = "4")]
        pub options: Vec<String>,
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct FieldMask {
        #[prost(string, repeated, tag = "1")]
        pub paths: Vec<String>,
    }
    #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Timestamp {
        #[prost(int64, tag = "1")]
        pub seconds: i64,
        #[prost(int32, tag = "2")]
        pub nanos: i32,
    }
}
