//! The connection to containerd's socket: made when it is needed, and each call on it with namespace, lease and deadline.

use std::{path::Path, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Uri},
};
use tower::service_fn;

use crate::{ContainerdError, NAMESPACE, lease::LeaseId};

/// How long a call may take that reads or writes the database.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(30);
/// How long a call may take that walks or removes trees: a commit measures one, the end of a lease removes what it held.
pub(crate) const TREE_CALL_MAX: Duration = Duration::from_mins(10);

/// The socket, and under which lease calls are sent. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    channel: Channel,
    socket: Arc<Path>,
    lease: Option<MetadataValue<Ascii>>,
    namespace: MetadataValue<Ascii>,
}

impl Connection {
    /// Whether anything listens shows at the first call.
    pub(crate) fn new(socket: &Path) -> Self {
        let socket: Arc<Path> = socket.into();
        let dialled = Arc::clone(&socket);
        // The URI only makes the `:authority`; the connector dials the socket whatever it says.
        let channel =
            Channel::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_: Uri| {
                let socket = Arc::clone(&dialled);
                async move { UnixStream::connect(&*socket).await.map(TokioIo::new) }
            }));
        Self { channel, socket, lease: None, namespace: MetadataValue::from_static(NAMESPACE) }
    }

    /// The same with all calls under a lease.
    pub(crate) fn under(&self, lease: &LeaseId) -> Self {
        Self { lease: Some(lease.header()), ..self.clone() }
    }

    /// The same with all calls within another namespace. `None`: none has such a name.
    pub(crate) fn within(&self, namespace: &str) -> Option<Self> {
        Some(Self { namespace: namespace.parse().ok()?, ..self.clone() })
    }

    /// For the stubs.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Sends one call and waits for its answer.
    pub(crate) async fn call<Q, A, F>(
        &self,
        (call, subject): (&'static str, &str),
        deadline: Duration,
        message: Q,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, ContainerdError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let send = |request| {
            let sent = send(request);
            async { sent.await.map(Response::into_inner) }
        };
        self.read((call, subject), deadline, message, send).await
    }

    /// Sends one call and reads its answer, which may be of several messages; the deadline covers all of them.
    pub(crate) async fn read<Q, A, F>(
        &self,
        (call, subject): (&'static str, &str),
        deadline: Duration,
        message: Q,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, ContainerdError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let mut request = Request::new(message);
        // The peer receives the deadline and stops working for a call that has ended.
        request.set_timeout(deadline);
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        if let Some(lease) = &self.lease {
            request.metadata_mut().insert("containerd-lease", lease.clone());
        }
        let named = || named(call, subject);
        // A call is large, and would be in each future around it.
        match tokio::time::timeout(deadline, Box::pin(send(request))).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(ContainerdError::of_status(&self.socket, named(), &status)),
            Err(_) => Err(ContainerdError::timed_out(&self.socket, named(), deadline)),
        }
    }

    /// An answer that no containerd gives.
    pub(crate) fn odd(&self, call: &str, subject: &str, why: impl Into<String>) -> ContainerdError {
        ContainerdError::odd(&self.socket, named(call, subject), why)
    }
}

fn named(call: &str, subject: &str) -> String {
    if subject.is_empty() { call.to_owned() } else { format!("{call} of `{subject}`") }
}
