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

pub mod containerd {
    pub mod services {
        pub mod content {
            pub mod v1 {
                /// A blob.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct Info {
                    /// ALGORITHM:HEX.
                    #[prost(string, tag = "1")]
                    pub digest: ::prost::alloc::string::String,
                    /// Length in bytes.
                    #[prost(int64, tag = "2")]
                    pub size: i64,
                    /// What is known of it, and what it refers to.
                    #[prost(btree_map = "string, string", tag = "5")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                }
                /// Asks for one blob.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct InfoRequest {
                    /// Which.
                    #[prost(string, tag = "1")]
                    pub digest: ::prost::alloc::string::String,
                }
                /// One blob.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct InfoResponse {
                    /// It.
                    #[prost(message, optional, tag = "1")]
                    pub info: ::core::option::Option<Info>,
                }
                /// Changes a blob's labels.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct UpdateRequest {
                    /// Which, with its new labels.
                    #[prost(message, optional, tag = "1")]
                    pub info: ::core::option::Option<Info>,
                    /// Which labels: "labels.KEY" each.
                    #[prost(message, optional, tag = "2")]
                    pub update_mask: ::core::option::Option<super::super::super::types::FieldMask>,
                }
                /// The blob as it is now.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct UpdateResponse {
                    /// It.
                    #[prost(message, optional, tag = "1")]
                    pub info: ::core::option::Option<Info>,
                }
                /// Asks for all blobs.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct ListContentRequest {
                    /// Expressions, any of which a blob has to match; none match all.
                    #[prost(string, repeated, tag = "1")]
                    pub filters: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
                }
                /// A part of the list.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct ListContentResponse {
                    /// Blobs.
                    #[prost(message, repeated, tag = "1")]
                    pub info: ::prost::alloc::vec::Vec<Info>,
                }
                /// A step of a write.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct WriteContentRequest {
                    /// What it does.
                    #[prost(enumeration = "WriteAction", tag = "1")]
                    pub action: i32,
                    /// The write's name, unique among those under way.
                    #[prost(string, tag = "2")]
                    pub r#ref: ::prost::alloc::string::String,
                    /// The blob's length, where it is known.
                    #[prost(int64, tag = "3")]
                    pub total: i64,
                    /// The blob's digest, where it is known.
                    #[prost(string, tag = "4")]
                    pub expected: ::prost::alloc::string::String,
                    /// Where the bytes go; has to be what is written so far.
                    #[prost(int64, tag = "5")]
                    pub offset: i64,
                    /// The bytes.
                    #[prost(bytes = "vec", tag = "6")]
                    pub data: ::prost::alloc::vec::Vec<u8>,
                    /// The blob's labels, with the last step.
                    #[prost(btree_map = "string, string", tag = "7")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                }
                /// What became of a step.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct WriteContentResponse {
                    /// The step's action.
                    #[prost(enumeration = "WriteAction", tag = "1")]
                    pub action: i32,
                    /// How much is written.
                    #[prost(int64, tag = "4")]
                    pub offset: i64,
                    /// How much is expected.
                    #[prost(int64, tag = "5")]
                    pub total: i64,
                    /// The digest of the blob that was made.
                    #[prost(string, tag = "6")]
                    pub digest: ::prost::alloc::string::String,
                }
                /// What a step of a write does.
                #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
                #[repr(i32)]
                pub enum WriteAction {
                    /// Says how far the write is.
                    Stat = 0,
                    /// Appends.
                    Write = 1,
                    /// Appends, checks length and digest, and makes the blob.
                    Commit = 2,
                }
                impl WriteAction {
                    /// String value of the enum field names used in the ProtoBuf definition.
                    ///
                    /// The values are not transformed in any way and thus are considered stable
                    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
                    pub fn as_str_name(&self) -> &'static str {
                        match self {
                            Self::Stat => "STAT",
                            Self::Write => "WRITE",
                            Self::Commit => "COMMIT",
                        }
                    }
                    /// Creates an enum from field names used in the ProtoBuf definition.
                    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
                        match value {
                            "STAT" => Some(Self::Stat),
                            "WRITE" => Some(Self::Write),
                            "COMMIT" => Some(Self::Commit),
                            _ => None,
                        }
                    }
                }
            }
        }
        pub mod images {
            pub mod v1 {
                /// A record.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct Image {
                    /// Unique in its namespace.
                    #[prost(string, tag = "1")]
                    pub name: ::prost::alloc::string::String,
                    /// What is known of it.
                    #[prost(btree_map = "string, string", tag = "2")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                    /// What it names: an index or a manifest.
                    #[prost(message, optional, tag = "3")]
                    pub target: ::core::option::Option<super::super::super::types::Descriptor>,
                }
                /// Asks for one record.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct GetImageRequest {
                    /// Which.
                    #[prost(string, tag = "1")]
                    pub name: ::prost::alloc::string::String,
                }
                /// One record.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct GetImageResponse {
                    /// It.
                    #[prost(message, optional, tag = "1")]
                    pub image: ::core::option::Option<Image>,
                }
                /// Asks for records.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct ListImagesRequest {
                    /// Expressions, any of which a record has to match; none match all.
                    #[prost(string, repeated, tag = "1")]
                    pub filters: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
                }
                /// Records.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct ListImagesResponse {
                    /// They.
                    #[prost(message, repeated, tag = "1")]
                    pub images: ::prost::alloc::vec::Vec<Image>,
                }
                /// Makes a record.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct CreateImageRequest {
                    /// The record.
                    #[prost(message, optional, tag = "1")]
                    pub image: ::core::option::Option<Image>,
                }
                /// The record as it is.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct CreateImageResponse {
                    /// It.
                    #[prost(message, optional, tag = "1")]
                    pub image: ::core::option::Option<Image>,
                }
                /// Changes a record.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct UpdateImageRequest {
                    /// The record with its new fields.
                    #[prost(message, optional, tag = "1")]
                    pub image: ::core::option::Option<Image>,
                    /// Which of them: "target", "labels.KEY".
                    #[prost(message, optional, tag = "2")]
                    pub update_mask: ::core::option::Option<super::super::super::types::FieldMask>,
                }
                /// The record as it is now.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct UpdateImageResponse {
                    /// It.
                    #[prost(message, optional, tag = "1")]
                    pub image: ::core::option::Option<Image>,
                }
            }
        }
        pub mod introspection {
            pub mod v1 {
                /// A plugin.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct Plugin {
                    /// What it serves as: "io.containerd.snapshotter.v1".
                    #[prost(string, tag = "1")]
                    pub r#type: ::prost::alloc::string::String,
                    /// Unique for its type.
                    #[prost(string, tag = "2")]
                    pub id: ::prost::alloc::string::String,
                    /// Facts by name, such as its root folder.
                    #[prost(btree_map = "string, string", tag = "5")]
                    pub exports: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                    /// What it can do beyond what all of its type can.
                    #[prost(string, repeated, tag = "6")]
                    pub capabilities: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
                    /// Why it does not work; absent where it works.
                    #[prost(message, optional, tag = "7")]
                    pub init_err: ::core::option::Option<InitError>,
                }
                /// Why a plugin does not work.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct InitError {
                    /// A status code of gRPC.
                    #[prost(int32, tag = "1")]
                    pub code: i32,
                    /// For people.
                    #[prost(string, tag = "2")]
                    pub message: ::prost::alloc::string::String,
                }
                /// Asks for plugins.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct PluginsRequest {
                    /// Expressions, any of which a plugin has to match; none match all.
                    #[prost(string, repeated, tag = "1")]
                    pub filters: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
                }
                /// Plugins.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct PluginsResponse {
                    /// They.
                    #[prost(message, repeated, tag = "1")]
                    pub plugins: ::prost::alloc::vec::Vec<Plugin>,
                }
            }
        }
        pub mod leases {
            pub mod v1 {
                /// A lease.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct Lease {
                    /// Unique in its namespace.
                    #[prost(string, tag = "1")]
                    pub id: ::prost::alloc::string::String,
                    /// Its settings, among them when it expires.
                    #[prost(btree_map = "string, string", tag = "3")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                }
                /// Asks for a lease.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct CreateRequest {
                    /// Its id.
                    #[prost(string, tag = "1")]
                    pub id: ::prost::alloc::string::String,
                    /// Its settings.
                    #[prost(btree_map = "string, string", tag = "3")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                }
                /// The lease that was made.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct CreateResponse {
                    /// It.
                    #[prost(message, optional, tag = "1")]
                    pub lease: ::core::option::Option<Lease>,
                }
                /// Ends a lease.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct DeleteRequest {
                    /// Which.
                    #[prost(string, tag = "1")]
                    pub id: ::prost::alloc::string::String,
                    /// Answer after the collection that follows.
                    #[prost(bool, tag = "2")]
                    pub sync: bool,
                }
                /// Asks for leases.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct ListRequest {
                    /// Expressions, any of which a lease has to match; none match all.
                    #[prost(string, repeated, tag = "1")]
                    pub filters: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
                }
                /// Leases.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct ListResponse {
                    /// They.
                    #[prost(message, repeated, tag = "1")]
                    pub leases: ::prost::alloc::vec::Vec<Lease>,
                }
                /// What a lease can hold.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct Resource {
                    /// Its key in its own store.
                    #[prost(string, tag = "1")]
                    pub id: ::prost::alloc::string::String,
                    /// "content", "snapshots/SNAPSHOTTER" or "ingests".
                    #[prost(string, tag = "2")]
                    pub r#type: ::prost::alloc::string::String,
                }
                /// Adds a resource to a lease.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct AddResourceRequest {
                    /// The lease.
                    #[prost(string, tag = "1")]
                    pub id: ::prost::alloc::string::String,
                    /// What it holds from now on.
                    #[prost(message, optional, tag = "2")]
                    pub resource: ::core::option::Option<Resource>,
                }
                /// Asks what a lease holds.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct ListResourcesRequest {
                    /// The lease.
                    #[prost(string, tag = "1")]
                    pub id: ::prost::alloc::string::String,
                }
                /// What a lease holds.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct ListResourcesResponse {
                    /// They.
                    #[prost(message, repeated, tag = "1")]
                    pub resources: ::prost::alloc::vec::Vec<Resource>,
                }
            }
        }
        pub mod namespaces {
            pub mod v1 {
                /// A namespace.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct Namespace {
                    /// Unique.
                    #[prost(string, tag = "1")]
                    pub name: ::prost::alloc::string::String,
                }
                /// Asks for all namespaces.
                #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct ListNamespacesRequest {}
                /// The namespaces.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct ListNamespacesResponse {
                    /// They.
                    #[prost(message, repeated, tag = "1")]
                    pub namespaces: ::prost::alloc::vec::Vec<Namespace>,
                }
            }
        }
        pub mod snapshots {
            pub mod v1 {
                /// Makes a snapshot that can be written.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct PrepareSnapshotRequest {
                    /// Whose.
                    #[prost(string, tag = "1")]
                    pub snapshotter: ::prost::alloc::string::String,
                    /// Its name until it is committed.
                    #[prost(string, tag = "2")]
                    pub key: ::prost::alloc::string::String,
                    /// The committed snapshot below it; empty for none.
                    #[prost(string, tag = "3")]
                    pub parent: ::prost::alloc::string::String,
                    /// What is known of it.
                    #[prost(btree_map = "string, string", tag = "4")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                }
                /// How the snapshot is mounted.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct PrepareSnapshotResponse {
                    /// In this order.
                    #[prost(message, repeated, tag = "1")]
                    pub mounts: ::prost::alloc::vec::Vec<super::super::super::types::Mount>,
                }
                /// Makes a written snapshot permanent.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct CommitSnapshotRequest {
                    /// Whose.
                    #[prost(string, tag = "1")]
                    pub snapshotter: ::prost::alloc::string::String,
                    /// Its name from now on.
                    #[prost(string, tag = "2")]
                    pub name: ::prost::alloc::string::String,
                    /// Its name so far.
                    #[prost(string, tag = "3")]
                    pub key: ::prost::alloc::string::String,
                    /// What is known of it.
                    #[prost(btree_map = "string, string", tag = "4")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                    /// The committed snapshot below it, where it was prepared without one. Only a snapshotter that can rebase reads this.
                    #[prost(string, tag = "5")]
                    pub parent: ::prost::alloc::string::String,
                }
                /// Removes a snapshot.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct RemoveSnapshotRequest {
                    /// Whose.
                    #[prost(string, tag = "1")]
                    pub snapshotter: ::prost::alloc::string::String,
                    /// Which.
                    #[prost(string, tag = "2")]
                    pub key: ::prost::alloc::string::String,
                }
                /// Asks for a snapshot.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct StatSnapshotRequest {
                    /// Whose.
                    #[prost(string, tag = "1")]
                    pub snapshotter: ::prost::alloc::string::String,
                    /// Which.
                    #[prost(string, tag = "2")]
                    pub key: ::prost::alloc::string::String,
                }
                /// A snapshot.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct Info {
                    /// Unique for its snapshotter and namespace.
                    #[prost(string, tag = "1")]
                    pub name: ::prost::alloc::string::String,
                    /// The snapshot below it; empty for none.
                    #[prost(string, tag = "2")]
                    pub parent: ::prost::alloc::string::String,
                    /// What it is.
                    #[prost(enumeration = "Kind", tag = "3")]
                    pub kind: i32,
                    /// When it was prepared or committed.
                    #[prost(message, optional, tag = "4")]
                    pub created_at: ::core::option::Option<super::super::super::types::Timestamp>,
                    /// What is known of it.
                    #[prost(btree_map = "string, string", tag = "6")]
                    pub labels: ::prost::alloc::collections::BTreeMap<
                        ::prost::alloc::string::String,
                        ::prost::alloc::string::String,
                    >,
                }
                /// A snapshot.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct StatSnapshotResponse {
                    /// It.
                    #[prost(message, optional, tag = "1")]
                    pub info: ::core::option::Option<Info>,
                }
                /// Asks for all snapshots.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct ListSnapshotsRequest {
                    /// Whose.
                    #[prost(string, tag = "1")]
                    pub snapshotter: ::prost::alloc::string::String,
                    /// Expressions, any of which a snapshot has to match; none match all.
                    #[prost(string, repeated, tag = "2")]
                    pub filters: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
                }
                /// A part of the list.
                #[derive(Clone, PartialEq, ::prost::Message)]
                pub struct ListSnapshotsResponse {
                    /// Snapshots.
                    #[prost(message, repeated, tag = "1")]
                    pub info: ::prost::alloc::vec::Vec<Info>,
                }
                /// Asks what a snapshot occupies.
                #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct UsageRequest {
                    /// Whose.
                    #[prost(string, tag = "1")]
                    pub snapshotter: ::prost::alloc::string::String,
                    /// Which.
                    #[prost(string, tag = "2")]
                    pub key: ::prost::alloc::string::String,
                }
                /// What a snapshot occupies.
                #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
                pub struct UsageResponse {
                    /// Bytes on the disk.
                    #[prost(int64, tag = "1")]
                    pub size: i64,
                    /// Files and folders.
                    #[prost(int64, tag = "2")]
                    pub inodes: i64,
                }
                /// What a snapshot is.
                #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
                #[repr(i32)]
                pub enum Kind {
                    /// Not known.
                    Unknown = 0,
                    /// One to read.
                    View = 1,
                    /// One that can be written.
                    Active = 2,
                    /// One that others can stand on.
                    Committed = 3,
                }
                impl Kind {
                    /// String value of the enum field names used in the ProtoBuf definition.
                    ///
                    /// The values are not transformed in any way and thus are considered stable
                    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
                    pub fn as_str_name(&self) -> &'static str {
                        match self {
                            Self::Unknown => "UNKNOWN",
                            Self::View => "VIEW",
                            Self::Active => "ACTIVE",
                            Self::Committed => "COMMITTED",
                        }
                    }
                    /// Creates an enum from field names used in the ProtoBuf definition.
                    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
                        match value {
                            "UNKNOWN" => Some(Self::Unknown),
                            "VIEW" => Some(Self::View),
                            "ACTIVE" => Some(Self::Active),
                            "COMMITTED" => Some(Self::Committed),
                            _ => None,
                        }
                    }
                }
            }
        }
    }
    pub mod types {
        /// Names a document or blob.
        #[derive(Clone, PartialEq, ::prost::Message)]
        pub struct Descriptor {
            /// What its bytes are.
            #[prost(string, tag = "1")]
            pub media_type: ::prost::alloc::string::String,
            /// ALGORITHM:HEX.
            #[prost(string, tag = "2")]
            pub digest: ::prost::alloc::string::String,
            /// Length in bytes.
            #[prost(int64, tag = "3")]
            pub size: i64,
            /// What its publisher says of it.
            #[prost(btree_map = "string, string", tag = "5")]
            pub annotations:
                ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
        }
        /// One call of mount(2), as a snapshotter wants it.
        #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
        pub struct Mount {
            /// The file system's name, or "bind".
            #[prost(string, tag = "1")]
            pub r#type: ::prost::alloc::string::String,
            /// What is mounted.
            #[prost(string, tag = "2")]
            pub source: ::prost::alloc::string::String,
            /// Where below the mount point; empty for the mount point itself.
            #[prost(string, tag = "3")]
            pub target: ::prost::alloc::string::String,
            /// Options in the form of mount(8).
            #[prost(string, repeated, tag = "4")]
            pub options: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
        }
        /// Which fields an update changes; on the wire equal to the well-known message of this name.
        #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
        pub struct FieldMask {
            /// Names of fields; an entry of a map as FIELD.KEY.
            #[prost(string, repeated, tag = "1")]
            pub paths: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
        }
        /// A moment; on the wire equal to the well-known message of this name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
        pub struct Timestamp {
            /// Since 1970.
            #[prost(int64, tag = "1")]
            pub seconds: i64,
            /// Beyond them.
            #[prost(int32, tag = "2")]
            pub nanos: i32,
        }
    }
}
