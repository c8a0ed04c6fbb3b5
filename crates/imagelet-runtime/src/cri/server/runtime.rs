//! The runtime service of the socket: a proxy to the runtime, or the answers of a store without a runtime.
//!
//! A client with one endpoint for both CRI services also sends its calls for version, status and lists to this service.
//! A call that would change a container is rejected, because imagelet runs no containers.

use std::{future::ready, path::Path, sync::Arc, time::Duration};

use imagelet_core::error::RuntimeError;
use tonic::{
    Status,
    body::Body,
    codegen::{Service as _, http},
};

use super::unary;
use crate::cri::{
    Endpoint,
    channel::Peer,
    convert::{CGROUPS_BY_FILES, CGROUPS_BY_SYSTEMD},
    v1,
};

/// The kubelet starts only if the runtime reports this version.
const API_VERSION: &str = "0.1.0";
const READS: [&str; 19] = [
    "Version",
    "Status",
    "RuntimeConfig",
    "ListPodSandbox",
    "StreamPodSandboxes",
    "PodSandboxStatus",
    "ListContainers",
    "StreamContainers",
    "ContainerStatus",
    // The calls of `crictl stats`, `statsp`, `metricsp` and `events`.
    "ContainerStats",
    "ListContainerStats",
    "StreamContainerStats",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
    "StreamPodSandboxMetrics",
    EVENTS,
];
/// This call has no time limit, because its answer starts only when the next event occurs.
const EVENTS: &str = "GetContainerEvents";
const HEADERS_PASSED: [&str; 7] =
    ["content-type", "te", "grpc-timeout", "traceparent", "tracestate", "baggage", "user-agent"];
/// This folder exists if systemd is the init system. systemd then manages the cgroups.
const SYSTEMD: &str = "/run/systemd/system";

#[derive(Clone, Debug)]
pub struct RuntimeServer(Arc<Behind>);

#[derive(Debug)]
enum Behind {
    Peer(Peer),
    NoRuntime { version: String },
}

impl RuntimeServer {
    /// Forwards read-only calls to the runtime, also their unknown fields. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn behind(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        Ok(Self(Arc::new(Behind::Peer(Peer::new(endpoint, timeout)?))))
    }

    /// Answers without a runtime: imagelet's version, a status that is not ready, and empty lists.
    pub fn without_runtime(version: &str) -> Self {
        Self(Arc::new(Behind::NoRuntime { version: version.to_owned() }))
    }

    pub(super) async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        let call = path.rsplit('/').next().unwrap_or_default();
        if !READS.contains(&call) {
            let message =
                format!("`{call}` is for a container runtime; imagelet serves images and starts no containers");
            return Status::unimplemented(message).into_http();
        }
        match self.0.as_ref() {
            Behind::Peer(peer) => pass_on(peer, (call != EVENTS).then_some(peer.timeout), request).await,
            Behind::NoRuntime { version } => answer_for_none(call, version, request).await,
        }
    }
}

/// Without a limit, the call runs until the client or the runtime ends it.
async fn pass_on(peer: &Peer, limit: Option<Duration>, request: http::Request<Body>) -> http::Response<Body> {
    let (came, body) = request.into_parts();
    let mut call = http::Request::new(body);
    *call.method_mut() = came.method;
    *call.version_mut() = http::Version::HTTP_2;
    // The channel adds the authority to this path.
    if let Some(path) = came.uri.path_and_query() {
        *call.uri_mut() = http::Uri::from(path.clone());
    }
    for name in HEADERS_PASSED {
        if let Some(value) = came.headers.get(name) {
            call.headers_mut().insert(name, value.clone());
        }
    }
    let mut channel = peer.channel.clone();
    let sent = async {
        std::future::poll_fn(|context| channel.poll_ready(context)).await?;
        channel.call(call).await
    };
    let sent = match limit {
        Some(limit) => tokio::time::timeout(limit, sent).await,
        None => Ok(sent.await),
    };
    match sent {
        Ok(Ok(answer)) => {
            peer.note(None);
            answer
        }
        Ok(Err(error)) => {
            let status = Status::from_error(Box::new(error));
            let error = peer.error(crate::cri::convert::Call::Runtime("RuntimeService"), &status);
            tracing::warn!(error = error.chain(), "a call could not be passed on to the runtime");
            crate::cri::convert::status_from_error(&error).into_http()
        }
        Err(_) => Status::deadline_exceeded("the runtime did not answer in time").into_http(),
    }
}

fn absent(kind: &str) -> v1::RuntimeCondition {
    v1::RuntimeCondition {
        r#type: kind.to_owned(),
        status: false,
        reason: "NoContainerRuntime".into(),
        message: "imagelet serves images from a store of its own; no container runtime stands behind it".into(),
    }
}

async fn answer_for_none(call: &str, version: &str, request: http::Request<Body>) -> http::Response<Body> {
    match call {
        "Version" => {
            let answer = v1::VersionResponse {
                version: API_VERSION.into(),
                runtime_name: "imagelet".into(),
                runtime_version: version.to_owned(),
                runtime_api_version: "v1".into(),
            };
            unary(call, request, |()| ready(Ok(answer.clone()))).await
        }
        "Status" => {
            let answer = |request: v1::StatusRequest| {
                let version = ("imagelet".to_owned(), serde_json::json!({ "version": version }).to_string());
                let conditions = vec![absent("RuntimeReady"), absent("NetworkReady")];
                ready(Ok(v1::StatusResponse {
                    status: Some(v1::RuntimeStatus { conditions }),
                    info: request.verbose.then_some(version).into_iter().collect(),
                }))
            };
            unary(call, request, answer).await
        }
        "RuntimeConfig" => {
            // The answer is the cgroup driver that any container runtime on this machine needs.
            let cgroup_driver = if Path::new(SYSTEMD).is_dir() { CGROUPS_BY_SYSTEMD } else { CGROUPS_BY_FILES };
            let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver });
            unary(call, request, |()| ready(Ok(v1::RuntimeConfigResponse { linux }))).await
        }
        "ContainerStatus" | "PodSandboxStatus" | "ContainerStats" | "PodSandboxStats" => {
            Status::not_found("there are no containers here").into_http()
        }
        EVENTS => Status::unimplemented(format!("`{call}` is not answered here")).into_http(),
        // Each remaining call returns a list, and an empty message is a valid empty list of any type.
        _ => unary(call, request, |()| ready(Ok(()))).await,
    }
}
