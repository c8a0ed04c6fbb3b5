//! The client of containerd's socket. It connects on demand and sends each call with namespace, lease and deadline.

use std::{path::Path, sync::Arc, time::Duration};

use prost::Message;
use tokio::net::UnixStream;
use tonic::{
    Code, Request, Status,
    codegen::http::uri::PathAndQuery,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use crate::{
    containerd::{ContainerdError, NAMESPACE, bounded::ANSWER, lease::LeaseId},
    wire::{self, Query, Reply},
};

const CALL_MAX: Duration = Duration::from_secs(30);
/// Time limit of long calls. A commit measures a file tree, and the end of a lease waits for a garbage collection.
const TREE_CALL_MAX: Duration = Duration::from_mins(10);

const TREE_CALLS: [&str; 4] = ["Content.Write", "Leases.Delete", "Snapshots.Commit", "Snapshots.Remove"];

pub(crate) type Answer<A> = Result<A, ContainerdError>;

#[derive(Clone, Debug)]
pub struct ContainerdClient {
    channel: Channel,
    socket: Arc<Path>,
    lease: Option<MetadataValue<Ascii>>,
    namespace: MetadataValue<Ascii>,
}

impl ContainerdClient {
    pub fn new(socket: &Path) -> Self {
        let socket: Arc<Path> = socket.into();
        let dialled = Arc::clone(&socket);
        let channel = wire::channel(move || {
            let socket = Arc::clone(&dialled);
            async move { UnixStream::connect(&*socket).await }
        });
        Self { channel, socket, lease: None, namespace: MetadataValue::from_static(NAMESPACE) }
    }

    /// A client whose calls carry this lease. The lease protects everything that the calls create.
    #[must_use]
    pub fn under(&self, lease: &LeaseId) -> Self {
        Self { lease: Some(lease.header()), ..self.clone() }
    }

    pub(crate) fn within(&self, namespace: &str) -> Answer<Self> {
        let invalid = |_| self.unexpected("Namespaces.List", namespace, "no namespace has such a name");
        Ok(Self { namespace: namespace.parse().map_err(invalid)?, ..self.clone() })
    }

    pub(crate) async fn ask<A: Reply>(&self, call: &'static str, subject: &str, message: impl Query) -> Answer<A> {
        self.read(call, subject, message, |channel, request| wire::unary(channel, path(call), request, ANSWER)).await
    }

    pub(crate) async fn list<T: Reply>(
        &self,
        call: &'static str,
        subject: &str,
        message: impl Query,
    ) -> Answer<Vec<T>> {
        let items = |page: Many<T>| page.items;
        self.read(call, subject, message, |channel, request| wire::listed(channel, path(call), request, ANSWER, items))
            .await
    }

    /// The deadline applies to the whole answer, which may have several messages.
    pub(crate) async fn read<Q, A, F>(
        &self,
        call: &'static str,
        subject: &str,
        message: Q,
        send: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let deadline = if TREE_CALLS.contains(&call) { TREE_CALL_MAX } else { CALL_MAX };
        let mut request = Request::new(message);
        // containerd receives the deadline and stops its work when the deadline passes.
        request.set_timeout(deadline);
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        if let Some(lease) = &self.lease {
            request.metadata_mut().insert("containerd-lease", lease.clone());
        }
        // The future of a call is large. The box keeps it out of every outer future.
        match tokio::time::timeout(deadline, Box::pin(send(self.channel.clone(), request))).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(ContainerdError::of_status(&self.socket, call, subject, &status)),
            Err(_) => {
                let why = format!("no answer within {deadline:?}");
                Err(ContainerdError::new(Code::DeadlineExceeded, &self.socket, call, subject, &why))
            }
        }
    }

    pub(crate) fn unexpected(&self, call: &str, subject: &str, why: &str) -> ContainerdError {
        ContainerdError::new(Code::Unknown, &self.socket, call, subject, why)
    }
}

pub(crate) fn path(call: &str) -> PathAndQuery {
    let (service, method) = call.split_once('.').expect("a call has a service and a method");
    let path = format!("/containerd.services.{}.v1.{service}/{method}", service.to_ascii_lowercase());
    path.try_into().expect("names of calls are letters")
}

// `One` and `Many` represent all messages whose only field has number 1. If this field is a text, `String` is used.

#[derive(Clone, Debug, PartialEq, Message)]
#[prost(skip_debug)]
pub struct One<T: Message + Default> {
    #[prost(message, optional, tag = "1")]
    pub item: Option<T>,
}

#[derive(Clone, Debug, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Many<T: Message + Default> {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<T>,
}
