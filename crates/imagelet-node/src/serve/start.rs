//! The start of the daemon: a service manager's socket may exist before the node is open.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse as _, Response},
};
use imagelet_core::error::{RuntimeError, RuntimeErrorKind};
use tokio::sync::SetOnce;
use tower::ServiceExt as _;

use crate::{failure::Failure, node::Daemon};

/// How long a call waits for the start of the daemon, which takes a fraction of a second.
const START_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Started {
    pub(super) daemon: Daemon,
    pub(super) api: Router,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Start(pub(super) Arc<SetOnce<Started>>);

impl Start {
    async fn started(&self) -> Result<&Started, RuntimeError> {
        let late = |_| RuntimeError::new(RuntimeErrorKind::Unavailable, "server is not initialized yet");
        tokio::time::timeout(START_MAX, self.0.wait()).await.map_err(late)
    }

    pub(super) async fn daemon(&self) -> Result<&Daemon, RuntimeError> {
        self.started().await.map(|started| &started.daemon)
    }

    /// The routes of the socket. The JSON API waits for the node; a CRI call waits only if it needs the node.
    pub(super) fn router(self, cri: Router) -> Router {
        Router::new().fallback(move |request| self.clone().answer(cri.clone(), request))
    }

    async fn answer(self, cri: Router, request: Request) -> Response {
        let router = if request.uri().path().starts_with("/api/") {
            match self.started().await {
                Ok(started) => started.api.clone(),
                Err(error) => return Failure::from(error).into_response(),
            }
        } else {
            cri
        };
        router.oneshot(request).await.into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::StatusCode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_start_that_takes_long_is_unavailable() {
        let start = Start::default();
        let begun = tokio::time::Instant::now();
        let error = start.daemon().await.unwrap_err();
        assert_eq!((error.kind(), begun.elapsed()), (RuntimeErrorKind::Unavailable, START_MAX));
        let router = start.router(Router::new().fallback(|| async { "CRI" }));
        for (path, status) in [("/api/v1/status", StatusCode::SERVICE_UNAVAILABLE), ("/runtime.v1", StatusCode::OK)] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            assert_eq!(router.clone().oneshot(request).await.unwrap().status(), status, "{path}");
        }
    }
}
