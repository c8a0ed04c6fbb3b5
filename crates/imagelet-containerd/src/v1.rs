//! The wire types and client stubs of containerd's own interface.
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
                /// Generated client implementations.
                pub mod content_client {
                    #![allow(
                        unused_variables,
                        dead_code,
                        missing_docs,
                        clippy::wildcard_imports,
                        clippy::let_unit_value
                    )]
                    use tonic::codegen::http::Uri;
                    use tonic::codegen::*;
                    /// Keeps content.
                    #[derive(Debug, Clone)]
                    pub struct ContentClient<T> {
                        inner: tonic::client::Grpc<T>,
                    }
                    impl ContentClient<tonic::transport::Channel> {
                        /// Attempt to create a new client by connecting to a given endpoint.
                        pub async fn connect<D>(dst: D) -> Result<Self, tonic::transport::Error>
                        where
                            D: TryInto<tonic::transport::Endpoint>,
                            D::Error: Into<StdError>,
                        {
                            let conn = tonic::transport::Endpoint::new(dst)?.connect().await?;
                            Ok(Self::new(conn))
                        }
                    }
                    impl<T> ContentClient<T>
                    where
                        T: tonic::client::GrpcService<tonic::body::Body>,
                        T::Error: Into<StdError>,
                        T::ResponseBody: Body<Data = Bytes> + std::marker::Send + 'static,
                        <T::ResponseBody as Body>::Error: Into<StdError> + std::marker::Send,
                    {
                        pub fn new(inner: T) -> Self {
                            let inner = tonic::client::Grpc::new(inner);
                            Self { inner }
                        }
                        pub fn with_origin(inner: T, origin: Uri) -> Self {
                            let inner = tonic::client::Grpc::with_origin(inner, origin);
                            Self { inner }
                        }
                        pub fn with_interceptor<F>(inner: T, interceptor: F) -> ContentClient<InterceptedService<T, F>>
                        where
                            F: tonic::service::Interceptor,
                            T::ResponseBody: Default,
                            T: tonic::codegen::Service<
                                    http::Request<tonic::body::Body>,
                                    Response = http::Response<
                                        <T as tonic::client::GrpcService<tonic::body::Body>>::ResponseBody,
                                    >,
                                >,
                            <T as tonic::codegen::Service<http::Request<tonic::body::Body>>>::Error:
                                Into<StdError> + std::marker::Send + std::marker::Sync,
                        {
                            ContentClient::new(InterceptedService::new(inner, interceptor))
                        }
                        /// Compress requests with the given encoding.
                        ///
                        /// This requires the server to support it otherwise it might respond with an
                        /// error.
                        #[must_use]
                        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.send_compressed(encoding);
                            self
                        }
                        /// Enable decompressing responses.
                        #[must_use]
                        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.accept_compressed(encoding);
                            self
                        }
                        /// Limits the maximum size of a decoded message.
                        ///
                        /// Default: `4MB`
                        #[must_use]
                        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_decoding_message_size(limit);
                            self
                        }
                        /// Limits the maximum size of an encoded message.
                        ///
                        /// Default: `usize::MAX`
                        #[must_use]
                        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_encoding_message_size(limit);
                            self
                        }
                        /// Describes one blob.
                        pub async fn info(
                            &mut self,
                            request: impl tonic::IntoRequest<super::InfoRequest>,
                        ) -> std::result::Result<tonic::Response<super::InfoResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.content.v1.Content/Info");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.content.v1.Content", "Info"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Changes the labels of a blob.
                        pub async fn update(
                            &mut self,
                            request: impl tonic::IntoRequest<super::UpdateRequest>,
                        ) -> std::result::Result<tonic::Response<super::UpdateResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.content.v1.Content/Update");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.content.v1.Content", "Update"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Lists all blobs.
                        pub async fn list(
                            &mut self,
                            request: impl tonic::IntoRequest<super::ListContentRequest>,
                        ) -> std::result::Result<
                            tonic::Response<tonic::codec::Streaming<super::ListContentResponse>>,
                            tonic::Status,
                        > {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.content.v1.Content/List");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.content.v1.Content", "List"));
                            self.inner.server_streaming(req, path, codec).await
                        }
                        /// Writes a blob in steps, each of them answered.
                        pub async fn write(
                            &mut self,
                            request: impl tonic::IntoStreamingRequest<Message = super::WriteContentRequest>,
                        ) -> std::result::Result<
                            tonic::Response<tonic::codec::Streaming<super::WriteContentResponse>>,
                            tonic::Status,
                        > {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.content.v1.Content/Write");
                            let mut req = request.into_streaming_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.content.v1.Content", "Write"));
                            self.inner.streaming(req, path, codec).await
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
                /// Generated client implementations.
                pub mod images_client {
                    #![allow(
                        unused_variables,
                        dead_code,
                        missing_docs,
                        clippy::wildcard_imports,
                        clippy::let_unit_value
                    )]
                    use tonic::codegen::http::Uri;
                    use tonic::codegen::*;
                    /// Keeps image records.
                    #[derive(Debug, Clone)]
                    pub struct ImagesClient<T> {
                        inner: tonic::client::Grpc<T>,
                    }
                    impl ImagesClient<tonic::transport::Channel> {
                        /// Attempt to create a new client by connecting to a given endpoint.
                        pub async fn connect<D>(dst: D) -> Result<Self, tonic::transport::Error>
                        where
                            D: TryInto<tonic::transport::Endpoint>,
                            D::Error: Into<StdError>,
                        {
                            let conn = tonic::transport::Endpoint::new(dst)?.connect().await?;
                            Ok(Self::new(conn))
                        }
                    }
                    impl<T> ImagesClient<T>
                    where
                        T: tonic::client::GrpcService<tonic::body::Body>,
                        T::Error: Into<StdError>,
                        T::ResponseBody: Body<Data = Bytes> + std::marker::Send + 'static,
                        <T::ResponseBody as Body>::Error: Into<StdError> + std::marker::Send,
                    {
                        pub fn new(inner: T) -> Self {
                            let inner = tonic::client::Grpc::new(inner);
                            Self { inner }
                        }
                        pub fn with_origin(inner: T, origin: Uri) -> Self {
                            let inner = tonic::client::Grpc::with_origin(inner, origin);
                            Self { inner }
                        }
                        pub fn with_interceptor<F>(inner: T, interceptor: F) -> ImagesClient<InterceptedService<T, F>>
                        where
                            F: tonic::service::Interceptor,
                            T::ResponseBody: Default,
                            T: tonic::codegen::Service<
                                    http::Request<tonic::body::Body>,
                                    Response = http::Response<
                                        <T as tonic::client::GrpcService<tonic::body::Body>>::ResponseBody,
                                    >,
                                >,
                            <T as tonic::codegen::Service<http::Request<tonic::body::Body>>>::Error:
                                Into<StdError> + std::marker::Send + std::marker::Sync,
                        {
                            ImagesClient::new(InterceptedService::new(inner, interceptor))
                        }
                        /// Compress requests with the given encoding.
                        ///
                        /// This requires the server to support it otherwise it might respond with an
                        /// error.
                        #[must_use]
                        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.send_compressed(encoding);
                            self
                        }
                        /// Enable decompressing responses.
                        #[must_use]
                        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.accept_compressed(encoding);
                            self
                        }
                        /// Limits the maximum size of a decoded message.
                        ///
                        /// Default: `4MB`
                        #[must_use]
                        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_decoding_message_size(limit);
                            self
                        }
                        /// Limits the maximum size of an encoded message.
                        ///
                        /// Default: `usize::MAX`
                        #[must_use]
                        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_encoding_message_size(limit);
                            self
                        }
                        /// Describes one record.
                        pub async fn get(
                            &mut self,
                            request: impl tonic::IntoRequest<super::GetImageRequest>,
                        ) -> std::result::Result<tonic::Response<super::GetImageResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.images.v1.Images/Get");
                            let mut req = request.into_request();
                            req.extensions_mut().insert(GrpcMethod::new("containerd.services.images.v1.Images", "Get"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Lists the records of the namespace.
                        pub async fn list(
                            &mut self,
                            request: impl tonic::IntoRequest<super::ListImagesRequest>,
                        ) -> std::result::Result<tonic::Response<super::ListImagesResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.images.v1.Images/List");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.images.v1.Images", "List"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Makes a record.
                        pub async fn create(
                            &mut self,
                            request: impl tonic::IntoRequest<super::CreateImageRequest>,
                        ) -> std::result::Result<tonic::Response<super::CreateImageResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.images.v1.Images/Create");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.images.v1.Images", "Create"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Changes a record.
                        pub async fn update(
                            &mut self,
                            request: impl tonic::IntoRequest<super::UpdateImageRequest>,
                        ) -> std::result::Result<tonic::Response<super::UpdateImageResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.images.v1.Images/Update");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.images.v1.Images", "Update"));
                            self.inner.unary(req, path, codec).await
                        }
                    }
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
                /// Generated client implementations.
                pub mod introspection_client {
                    #![allow(
                        unused_variables,
                        dead_code,
                        missing_docs,
                        clippy::wildcard_imports,
                        clippy::let_unit_value
                    )]
                    use tonic::codegen::http::Uri;
                    use tonic::codegen::*;
                    /// Describes the daemon.
                    #[derive(Debug, Clone)]
                    pub struct IntrospectionClient<T> {
                        inner: tonic::client::Grpc<T>,
                    }
                    impl IntrospectionClient<tonic::transport::Channel> {
                        /// Attempt to create a new client by connecting to a given endpoint.
                        pub async fn connect<D>(dst: D) -> Result<Self, tonic::transport::Error>
                        where
                            D: TryInto<tonic::transport::Endpoint>,
                            D::Error: Into<StdError>,
                        {
                            let conn = tonic::transport::Endpoint::new(dst)?.connect().await?;
                            Ok(Self::new(conn))
                        }
                    }
                    impl<T> IntrospectionClient<T>
                    where
                        T: tonic::client::GrpcService<tonic::body::Body>,
                        T::Error: Into<StdError>,
                        T::ResponseBody: Body<Data = Bytes> + std::marker::Send + 'static,
                        <T::ResponseBody as Body>::Error: Into<StdError> + std::marker::Send,
                    {
                        pub fn new(inner: T) -> Self {
                            let inner = tonic::client::Grpc::new(inner);
                            Self { inner }
                        }
                        pub fn with_origin(inner: T, origin: Uri) -> Self {
                            let inner = tonic::client::Grpc::with_origin(inner, origin);
                            Self { inner }
                        }
                        pub fn with_interceptor<F>(
                            inner: T,
                            interceptor: F,
                        ) -> IntrospectionClient<InterceptedService<T, F>>
                        where
                            F: tonic::service::Interceptor,
                            T::ResponseBody: Default,
                            T: tonic::codegen::Service<
                                    http::Request<tonic::body::Body>,
                                    Response = http::Response<
                                        <T as tonic::client::GrpcService<tonic::body::Body>>::ResponseBody,
                                    >,
                                >,
                            <T as tonic::codegen::Service<http::Request<tonic::body::Body>>>::Error:
                                Into<StdError> + std::marker::Send + std::marker::Sync,
                        {
                            IntrospectionClient::new(InterceptedService::new(inner, interceptor))
                        }
                        /// Compress requests with the given encoding.
                        ///
                        /// This requires the server to support it otherwise it might respond with an
                        /// error.
                        #[must_use]
                        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.send_compressed(encoding);
                            self
                        }
                        /// Enable decompressing responses.
                        #[must_use]
                        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.accept_compressed(encoding);
                            self
                        }
                        /// Limits the maximum size of a decoded message.
                        ///
                        /// Default: `4MB`
                        #[must_use]
                        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_decoding_message_size(limit);
                            self
                        }
                        /// Limits the maximum size of an encoded message.
                        ///
                        /// Default: `usize::MAX`
                        #[must_use]
                        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_encoding_message_size(limit);
                            self
                        }
                        /// Lists its plugins.
                        pub async fn plugins(
                            &mut self,
                            request: impl tonic::IntoRequest<super::PluginsRequest>,
                        ) -> std::result::Result<tonic::Response<super::PluginsResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.introspection.v1.Introspection/Plugins",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut().insert(GrpcMethod::new(
                                "containerd.services.introspection.v1.Introspection",
                                "Plugins",
                            ));
                            self.inner.unary(req, path, codec).await
                        }
                    }
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
                /// Generated client implementations.
                pub mod leases_client {
                    #![allow(
                        unused_variables,
                        dead_code,
                        missing_docs,
                        clippy::wildcard_imports,
                        clippy::let_unit_value
                    )]
                    use tonic::codegen::http::Uri;
                    use tonic::codegen::*;
                    /// Keeps leases.
                    #[derive(Debug, Clone)]
                    pub struct LeasesClient<T> {
                        inner: tonic::client::Grpc<T>,
                    }
                    impl LeasesClient<tonic::transport::Channel> {
                        /// Attempt to create a new client by connecting to a given endpoint.
                        pub async fn connect<D>(dst: D) -> Result<Self, tonic::transport::Error>
                        where
                            D: TryInto<tonic::transport::Endpoint>,
                            D::Error: Into<StdError>,
                        {
                            let conn = tonic::transport::Endpoint::new(dst)?.connect().await?;
                            Ok(Self::new(conn))
                        }
                    }
                    impl<T> LeasesClient<T>
                    where
                        T: tonic::client::GrpcService<tonic::body::Body>,
                        T::Error: Into<StdError>,
                        T::ResponseBody: Body<Data = Bytes> + std::marker::Send + 'static,
                        <T::ResponseBody as Body>::Error: Into<StdError> + std::marker::Send,
                    {
                        pub fn new(inner: T) -> Self {
                            let inner = tonic::client::Grpc::new(inner);
                            Self { inner }
                        }
                        pub fn with_origin(inner: T, origin: Uri) -> Self {
                            let inner = tonic::client::Grpc::with_origin(inner, origin);
                            Self { inner }
                        }
                        pub fn with_interceptor<F>(inner: T, interceptor: F) -> LeasesClient<InterceptedService<T, F>>
                        where
                            F: tonic::service::Interceptor,
                            T::ResponseBody: Default,
                            T: tonic::codegen::Service<
                                    http::Request<tonic::body::Body>,
                                    Response = http::Response<
                                        <T as tonic::client::GrpcService<tonic::body::Body>>::ResponseBody,
                                    >,
                                >,
                            <T as tonic::codegen::Service<http::Request<tonic::body::Body>>>::Error:
                                Into<StdError> + std::marker::Send + std::marker::Sync,
                        {
                            LeasesClient::new(InterceptedService::new(inner, interceptor))
                        }
                        /// Compress requests with the given encoding.
                        ///
                        /// This requires the server to support it otherwise it might respond with an
                        /// error.
                        #[must_use]
                        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.send_compressed(encoding);
                            self
                        }
                        /// Enable decompressing responses.
                        #[must_use]
                        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.accept_compressed(encoding);
                            self
                        }
                        /// Limits the maximum size of a decoded message.
                        ///
                        /// Default: `4MB`
                        #[must_use]
                        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_decoding_message_size(limit);
                            self
                        }
                        /// Limits the maximum size of an encoded message.
                        ///
                        /// Default: `usize::MAX`
                        #[must_use]
                        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_encoding_message_size(limit);
                            self
                        }
                        /// Makes a lease.
                        pub async fn create(
                            &mut self,
                            request: impl tonic::IntoRequest<super::CreateRequest>,
                        ) -> std::result::Result<tonic::Response<super::CreateResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.leases.v1.Leases/Create");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.leases.v1.Leases", "Create"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Ends a lease; what only it held goes with the next collection.
                        pub async fn delete(
                            &mut self,
                            request: impl tonic::IntoRequest<super::DeleteRequest>,
                        ) -> std::result::Result<tonic::Response<()>, tonic::Status> {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.leases.v1.Leases/Delete");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.leases.v1.Leases", "Delete"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Lists the leases of the namespace.
                        pub async fn list(
                            &mut self,
                            request: impl tonic::IntoRequest<super::ListRequest>,
                        ) -> std::result::Result<tonic::Response<super::ListResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path =
                                http::uri::PathAndQuery::from_static("/containerd.services.leases.v1.Leases/List");
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.leases.v1.Leases", "List"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Holds a resource, whether it is there or not.
                        pub async fn add_resource(
                            &mut self,
                            request: impl tonic::IntoRequest<super::AddResourceRequest>,
                        ) -> std::result::Result<tonic::Response<()>, tonic::Status> {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.leases.v1.Leases/AddResource",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.leases.v1.Leases", "AddResource"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Lists what a lease holds.
                        pub async fn list_resources(
                            &mut self,
                            request: impl tonic::IntoRequest<super::ListResourcesRequest>,
                        ) -> std::result::Result<tonic::Response<super::ListResourcesResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.leases.v1.Leases/ListResources",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.leases.v1.Leases", "ListResources"));
                            self.inner.unary(req, path, codec).await
                        }
                    }
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
                /// Generated client implementations.
                pub mod namespaces_client {
                    #![allow(
                        unused_variables,
                        dead_code,
                        missing_docs,
                        clippy::wildcard_imports,
                        clippy::let_unit_value
                    )]
                    use tonic::codegen::http::Uri;
                    use tonic::codegen::*;
                    /// Keeps namespaces.
                    #[derive(Debug, Clone)]
                    pub struct NamespacesClient<T> {
                        inner: tonic::client::Grpc<T>,
                    }
                    impl NamespacesClient<tonic::transport::Channel> {
                        /// Attempt to create a new client by connecting to a given endpoint.
                        pub async fn connect<D>(dst: D) -> Result<Self, tonic::transport::Error>
                        where
                            D: TryInto<tonic::transport::Endpoint>,
                            D::Error: Into<StdError>,
                        {
                            let conn = tonic::transport::Endpoint::new(dst)?.connect().await?;
                            Ok(Self::new(conn))
                        }
                    }
                    impl<T> NamespacesClient<T>
                    where
                        T: tonic::client::GrpcService<tonic::body::Body>,
                        T::Error: Into<StdError>,
                        T::ResponseBody: Body<Data = Bytes> + std::marker::Send + 'static,
                        <T::ResponseBody as Body>::Error: Into<StdError> + std::marker::Send,
                    {
                        pub fn new(inner: T) -> Self {
                            let inner = tonic::client::Grpc::new(inner);
                            Self { inner }
                        }
                        pub fn with_origin(inner: T, origin: Uri) -> Self {
                            let inner = tonic::client::Grpc::with_origin(inner, origin);
                            Self { inner }
                        }
                        pub fn with_interceptor<F>(
                            inner: T,
                            interceptor: F,
                        ) -> NamespacesClient<InterceptedService<T, F>>
                        where
                            F: tonic::service::Interceptor,
                            T::ResponseBody: Default,
                            T: tonic::codegen::Service<
                                    http::Request<tonic::body::Body>,
                                    Response = http::Response<
                                        <T as tonic::client::GrpcService<tonic::body::Body>>::ResponseBody,
                                    >,
                                >,
                            <T as tonic::codegen::Service<http::Request<tonic::body::Body>>>::Error:
                                Into<StdError> + std::marker::Send + std::marker::Sync,
                        {
                            NamespacesClient::new(InterceptedService::new(inner, interceptor))
                        }
                        /// Compress requests with the given encoding.
                        ///
                        /// This requires the server to support it otherwise it might respond with an
                        /// error.
                        #[must_use]
                        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.send_compressed(encoding);
                            self
                        }
                        /// Enable decompressing responses.
                        #[must_use]
                        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.accept_compressed(encoding);
                            self
                        }
                        /// Limits the maximum size of a decoded message.
                        ///
                        /// Default: `4MB`
                        #[must_use]
                        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_decoding_message_size(limit);
                            self
                        }
                        /// Limits the maximum size of an encoded message.
                        ///
                        /// Default: `usize::MAX`
                        #[must_use]
                        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_encoding_message_size(limit);
                            self
                        }
                        /// Lists all.
                        pub async fn list(
                            &mut self,
                            request: impl tonic::IntoRequest<super::ListNamespacesRequest>,
                        ) -> std::result::Result<tonic::Response<super::ListNamespacesResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.namespaces.v1.Namespaces/List",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.namespaces.v1.Namespaces", "List"));
                            self.inner.unary(req, path, codec).await
                        }
                    }
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
                /// Generated client implementations.
                pub mod snapshots_client {
                    #![allow(
                        unused_variables,
                        dead_code,
                        missing_docs,
                        clippy::wildcard_imports,
                        clippy::let_unit_value
                    )]
                    use tonic::codegen::http::Uri;
                    use tonic::codegen::*;
                    /// Keeps the snapshots of each snapshotter.
                    #[derive(Debug, Clone)]
                    pub struct SnapshotsClient<T> {
                        inner: tonic::client::Grpc<T>,
                    }
                    impl SnapshotsClient<tonic::transport::Channel> {
                        /// Attempt to create a new client by connecting to a given endpoint.
                        pub async fn connect<D>(dst: D) -> Result<Self, tonic::transport::Error>
                        where
                            D: TryInto<tonic::transport::Endpoint>,
                            D::Error: Into<StdError>,
                        {
                            let conn = tonic::transport::Endpoint::new(dst)?.connect().await?;
                            Ok(Self::new(conn))
                        }
                    }
                    impl<T> SnapshotsClient<T>
                    where
                        T: tonic::client::GrpcService<tonic::body::Body>,
                        T::Error: Into<StdError>,
                        T::ResponseBody: Body<Data = Bytes> + std::marker::Send + 'static,
                        <T::ResponseBody as Body>::Error: Into<StdError> + std::marker::Send,
                    {
                        pub fn new(inner: T) -> Self {
                            let inner = tonic::client::Grpc::new(inner);
                            Self { inner }
                        }
                        pub fn with_origin(inner: T, origin: Uri) -> Self {
                            let inner = tonic::client::Grpc::with_origin(inner, origin);
                            Self { inner }
                        }
                        pub fn with_interceptor<F>(
                            inner: T,
                            interceptor: F,
                        ) -> SnapshotsClient<InterceptedService<T, F>>
                        where
                            F: tonic::service::Interceptor,
                            T::ResponseBody: Default,
                            T: tonic::codegen::Service<
                                    http::Request<tonic::body::Body>,
                                    Response = http::Response<
                                        <T as tonic::client::GrpcService<tonic::body::Body>>::ResponseBody,
                                    >,
                                >,
                            <T as tonic::codegen::Service<http::Request<tonic::body::Body>>>::Error:
                                Into<StdError> + std::marker::Send + std::marker::Sync,
                        {
                            SnapshotsClient::new(InterceptedService::new(inner, interceptor))
                        }
                        /// Compress requests with the given encoding.
                        ///
                        /// This requires the server to support it otherwise it might respond with an
                        /// error.
                        #[must_use]
                        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.send_compressed(encoding);
                            self
                        }
                        /// Enable decompressing responses.
                        #[must_use]
                        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
                            self.inner = self.inner.accept_compressed(encoding);
                            self
                        }
                        /// Limits the maximum size of a decoded message.
                        ///
                        /// Default: `4MB`
                        #[must_use]
                        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_decoding_message_size(limit);
                            self
                        }
                        /// Limits the maximum size of an encoded message.
                        ///
                        /// Default: `usize::MAX`
                        #[must_use]
                        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                            self.inner = self.inner.max_encoding_message_size(limit);
                            self
                        }
                        /// Makes a snapshot that can be written, and says how it is mounted.
                        pub async fn prepare(
                            &mut self,
                            request: impl tonic::IntoRequest<super::PrepareSnapshotRequest>,
                        ) -> std::result::Result<tonic::Response<super::PrepareSnapshotResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.snapshots.v1.Snapshots/Prepare",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.snapshots.v1.Snapshots", "Prepare"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Makes a written snapshot one that others can stand on.
                        pub async fn commit(
                            &mut self,
                            request: impl tonic::IntoRequest<super::CommitSnapshotRequest>,
                        ) -> std::result::Result<tonic::Response<()>, tonic::Status> {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.snapshots.v1.Snapshots/Commit",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.snapshots.v1.Snapshots", "Commit"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Removes a snapshot that nothing stands on.
                        pub async fn remove(
                            &mut self,
                            request: impl tonic::IntoRequest<super::RemoveSnapshotRequest>,
                        ) -> std::result::Result<tonic::Response<()>, tonic::Status> {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.snapshots.v1.Snapshots/Remove",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.snapshots.v1.Snapshots", "Remove"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Describes a snapshot.
                        pub async fn stat(
                            &mut self,
                            request: impl tonic::IntoRequest<super::StatSnapshotRequest>,
                        ) -> std::result::Result<tonic::Response<super::StatSnapshotResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.snapshots.v1.Snapshots/Stat",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.snapshots.v1.Snapshots", "Stat"));
                            self.inner.unary(req, path, codec).await
                        }
                        /// Lists all snapshots of a snapshotter.
                        pub async fn list(
                            &mut self,
                            request: impl tonic::IntoRequest<super::ListSnapshotsRequest>,
                        ) -> std::result::Result<
                            tonic::Response<tonic::codec::Streaming<super::ListSnapshotsResponse>>,
                            tonic::Status,
                        > {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.snapshots.v1.Snapshots/List",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.snapshots.v1.Snapshots", "List"));
                            self.inner.server_streaming(req, path, codec).await
                        }
                        /// Says what a snapshot occupies, without its parents.
                        pub async fn usage(
                            &mut self,
                            request: impl tonic::IntoRequest<super::UsageRequest>,
                        ) -> std::result::Result<tonic::Response<super::UsageResponse>, tonic::Status>
                        {
                            self.inner
                                .ready()
                                .await
                                .map_err(|e| tonic::Status::unknown(format!("Service was not ready: {}", e.into())))?;
                            let codec = crate::bounded::BoundedCodec::default();
                            let path = http::uri::PathAndQuery::from_static(
                                "/containerd.services.snapshots.v1.Snapshots/Usage",
                            );
                            let mut req = request.into_request();
                            req.extensions_mut()
                                .insert(GrpcMethod::new("containerd.services.snapshots.v1.Snapshots", "Usage"));
                            self.inner.unary(req, path, codec).await
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
