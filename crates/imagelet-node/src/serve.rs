//! Runs the daemon, and joins the concrete parts.

mod filesystems;
mod images;
mod reload;
mod socket_guard;
mod start;
mod systemd;
mod wiring;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use imagelet_core::credentials::Standalone;
use imagelet_oci::Access;
use imagelet_runtime::cri::{Handlers, RuntimeServer};
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
};

pub use wiring::{HELPER_MAX, Role, StoreAccess, node_credentials, open_node, parse_endpoint, runtime_filesystems};

use crate::{
    config::{Backend, Settings},
    connections::{self, Limits, open_files_max},
    failure::Failure,
    http::{self, HttpAccess},
    jobs::Jobs,
    node::{Calls, Daemon},
};
use images::ServedImages;
use reload::reload;
use socket_guard::SocketGuard;
use start::{Start, Started};

/// How long calls may continue during a stop. A stop takes less than 2 s, because the next daemon waits for the store.
const GRACE: Duration = Duration::from_millis(500);
/// How long cancelled pulls may clean up. The next start of a daemon removes what remains.
const CLEANUP_MAX: Duration = Duration::from_millis(300);
const END_MAX: Duration = Duration::from_millis(300);
const CLOSE_MAX: Duration = Duration::from_millis(700);
/// The default wait for the store, whose previous owner may still be stopping.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Checks the files that the settings name by reading them: the token, and the configuration of credential providers.
pub async fn check_files(settings: &Settings) -> Result<(), Failure> {
    HttpAccess::load(&settings.interfaces.http)?;
    wiring::open_providers(Arc::new(Standalone), settings, Arc::default()).await.map(drop)
}

/// Runs the daemon until SIGTERM or SIGINT. `read` reads the settings at the start and at each SIGHUP. `lock_wait`
/// limits the wait for another process that owns the store.
pub async fn serve(read: impl Fn() -> Result<Settings, Failure>, lock_wait: Option<Duration>) -> Result<(), Failure> {
    let settings = read()?;
    // The access policy is checked before a store or a socket is opened.
    let access = HttpAccess::load(&settings.interfaces.http)?;
    let wanted = StoreAccess { access: Access::Write { or_create: true }, lock_wait: lock_wait.unwrap_or(LOCK_WAIT) };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;

    let (handlers, runtime) = runtime_behind(&settings)?;
    let (calls, start, limits) = (Calls::default(), Start::default(), Limits::of_socket(open_files_max()));
    // Before the first answer of the runtime, this folder stands for the image file system: they probably share a disk.
    let place = settings.images.backend.engine().place.root.clone();
    let images = Arc::new(ServedImages::new(start.clone(), place));
    let cri = std::mem::take(imagelet_runtime::cri::routes(images, handlers, runtime).axum_router_mut());
    let router = start.clone().router(cri);
    let server = |listener: UnixListener| {
        tokio::spawn(connections::serve(listener, router.clone(), limits, calls.accepting.clone()))
    };
    let bind_http = async || match &settings.interfaces.http.address {
        Some(address) => http::bind(address, access.has_token()).await.map(Some),
        None => Ok(None),
    };
    // Clients may already wait at the socket of a service manager, so the socket is served while the store opens. All
    // listeners are bound before the first one is served, so that a start that fails to bind answers no call.
    let early = match systemd::taken_over()? {
        Some(listener) => Some((bind_http().await?, server(listener))),
        None => None,
    };
    // The store is locked before the socket is created, so that clients reach the owner of the store. It is locked
    // before HTTP is bound, because the previous owner may still use the address. SIGTERM and SIGINT end the wait.
    let node = tokio::select! {
        opened = open_node(settings.clone(), Role::Daemon, wanted) => opened?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let daemon = Daemon { node: Arc::clone(&node), calls: calls.clone() };
    let api = http::on_socket(&daemon, limits);
    start.0.set(Started { daemon: daemon.clone(), api }).expect("a node opens once");
    let (http_listener, mut server, _socket) = if let Some((http_listener, server)) = early {
        (http_listener, server, None)
    } else {
        let http_listener = bind_http().await?;
        let socket = &settings.interfaces.socket;
        let listener = imagelet_runtime::cri::listen(socket)
            .await
            .map_err(|error| Failure::because(format!("could not listen on `{}`", socket.display()), &error))?;
        (http_listener, server(listener), Some(SocketGuard::new(socket)))
    };
    let mut http = tokio::spawn({
        let access = access.clone();
        async move {
            if let Some(listener) = http_listener {
                http::serve(listener, daemon, access).await;
            }
        }
    });
    let watchdog = tokio::spawn(systemd::watchdog(calls.working.clone()));
    let jobs = Jobs::start(&node, &calls.working.child_token());
    let backend = &node.pulls.images.place.backend;
    tracing::info!(
        socket = %settings.interfaces.socket.display(), backend, http = settings.interfaces.http.address,
        version = env!("CARGO_PKG_VERSION"), "serving"
    );
    let status = format!("serving images of the {backend}");
    systemd::ready(&status);

    let ended_early = loop {
        tokio::select! {
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break false,
            _ = hangup.recv() => {
                systemd::reloading();
                reload(read(), &node, &access).await;
                systemd::ready(&status);
            }
            _ = &mut server => break true,
        }
    };
    systemd::stopping();
    tracing::info!("stopping");
    calls.accepting.cancel();
    if !ended_early && tokio::time::timeout(GRACE, &mut server).await.is_err() {
        tracing::info!("giving up the calls that still run");
        calls.working.cancel();
        if tokio::time::timeout(CLEANUP_MAX, &mut server).await.is_err() {
            server.abort();
        }
    }
    calls.working.cancel();
    let imports = node.status.imports.clone();
    let released = tokio::spawn(async move {
        if let Some(images) = imports {
            images.close().await;
        }
    });
    // A panic of a task is already logged, so the results of the tasks are dropped.
    let ends = async { drop(tokio::join!(jobs.stop(), watchdog, &mut http, calls.end_actions())) };
    if tokio::time::timeout(END_MAX, ends).await.is_err() {
        tracing::info!("not all jobs ended in time");
        http.abort();
    }
    let closed = async { drop(tokio::join!(node.close(), released, node.pulls.tracer.close())) };
    if tokio::time::timeout(CLOSE_MAX, closed).await.is_err() {
        tracing::warn!("the disk takes too long; the next start makes durable what is not");
    }
    tracing::info!("stopped");
    if ended_early { Err(Failure::new("Failed", "the server ended by itself")) } else { Ok(()) }
}

/// The known runtime handlers, and the server for CRI calls about containers. Without a runtime, this server answers
/// that nothing runs.
fn runtime_behind(settings: &Settings) -> Result<(Handlers, RuntimeServer), Failure> {
    Ok(match &settings.images.backend {
        Backend::Embedded(store) => {
            let runtime = match &store.runtime {
                Some((endpoint, timeout)) => RuntimeServer::behind(endpoint, *timeout)?,
                None => RuntimeServer::without_runtime(env!("CARGO_PKG_VERSION")),
            };
            (Handlers::Known(BTreeSet::new()), runtime)
        }
        Backend::Cri(runtime) => {
            (Handlers::Any, RuntimeServer::behind(&runtime.endpoint, settings.node.request_timeout)?)
        }
    })
}
