//! Finds the target of a command: the node on the command line, a running daemon, or the store in this process.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::text::duration_text;
use imagelet_node::{
    config::{Backend, Settings, Source, Sources},
    failure::Failure,
    node::{Node, Probed, RemoteNode, socket_hint},
    serve::{Role, StoreAccess, open_node, parse_endpoint},
};
use imagelet_oci::Access;

use crate::sources::{Context, command_sources};

const ANSWER_MAX: Duration = Duration::from_secs(10);
const STORE_LOCK_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum Target {
    Daemon(RemoteNode),
    /// This process uses the store or the runtime of these settings, without a daemon.
    Here(Box<Settings>),
}

pub(super) async fn find_node(context: &Context, access: Access) -> Result<Node, Failure> {
    match find_target(context).await? {
        Target::Daemon(node) => Ok(Node::Remote(node)),
        Target::Here(settings) => {
            let Context { global, environment } = context;
            let is_at_default = matches!(&settings.images.backend, Backend::Embedded(store) if store.engine.place.root == environment.store_default());
            let access = named_access(access, global.store.is_some() || !is_at_default);
            let wanted = StoreAccess { access, lock_wait: global.lock_timeout.unwrap_or(STORE_LOCK_WAIT) };
            Ok(Node::Local(open_node(*settings, Role::Command, wanted).await?))
        }
    }
}

/// Finds the target of a command, and opens no store. If a daemon is configured or its socket exists, but it does not
/// answer, the command fails: a store that this process opens may not be the daemon's.
pub(super) async fn find_target(context: &Context) -> Result<Target, Failure> {
    let Context { global, environment } = context;
    let patience = global.timeout.map_or(ANSWER_MAX, |wait| if wait.is_zero() { Duration::MAX } else { wait });
    let here = |sources: &Sources| Ok(Target::Here(Box::new(within(patience, sources)?)));
    if let Some(endpoint) = &global.endpoint {
        let node = RemoteNode::new(parse_endpoint(endpoint)?.path(), patience);
        return match node.probe().await {
            // The endpoint is that of a CRI runtime. This process calls the runtime directly.
            Probed::OtherCri => {
                let mut sources = command_sources(context)?;
                sources.add_flag("--endpoint", "imageService.cri.endpoint", endpoint.as_str());
                here(&sources)
            }
            Probed::Silent(error) => Err(node.unreachable(&error)),
            // If the socket does not exist, the first request to the node fails.
            Probed::Ours | Probed::Missing => Ok(Target::Daemon(node)),
        };
    }
    let sources = command_sources(context)?;
    if global.store.is_none() {
        let configured = configured_socket(&sources)?;
        let is_configured = configured.is_some();
        for socket in configured.map_or_else(|| environment.sockets_to_try(), |socket| vec![socket]) {
            let node = RemoteNode::new(&socket, patience);
            if daemon_answers(node.probe().await, &socket, is_configured)? {
                return Ok(Target::Daemon(node));
            }
        }
    }
    here(&sources)
}

/// Whether a daemon answers. `false`: the socket is missing, and is not configured. All other cases are errors.
fn daemon_answers(probed: Probed, socket: &Path, is_configured: bool) -> Result<bool, Failure> {
    let error = match probed {
        Probed::Ours => return Ok(true),
        Probed::Missing if !is_configured => return Ok(false),
        Probed::Missing => io::Error::new(io::ErrorKind::NotFound, "there is no such socket"),
        Probed::OtherCri => io::Error::other("the process listening there is not imagelet"),
        Probed::Silent(error) => error,
    };
    let named = if is_configured { ", which the configuration names," } else { "" };
    let message = format!("the daemon at `{}`{named} does not answer", socket.display());
    Err(Failure { causes: vec![error.to_string()], ..Failure::new("Unavailable", message) }.or_hint(socket_hint(
        &error,
        "see `systemctl status imagelet`, or use a store without the daemon: `--store DIR`",
    )))
}

fn configured_socket(sources: &Sources) -> Result<Option<PathBuf>, Failure> {
    if !sources.effective()?.iter().any(|one| one.key == "socket" && one.source != Source::Default) {
        return Ok(None);
    }
    Ok(Some(sources.settings()?.interfaces.socket))
}

fn within(patience: Duration, sources: &Sources) -> Result<Settings, Failure> {
    let settings = sources.settings()?;
    if settings.node.request_timeout <= patience {
        return Ok(settings);
    }
    let mut sources = sources.clone();
    sources.add_flag("--timeout", "runtimeRequestTimeout", duration_text(patience));
    Ok(sources.settings()?)
}

/// A command that only reads treats a missing store as empty if no flag or setting names the store. Otherwise it fails.
fn named_access(access: Access, is_named: bool) -> Access {
    match access {
        Access::Read { or_empty } => Access::Read { or_empty: or_empty && !is_named },
        Access::Write { .. } => access,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;
    use imagelet_node::config::Environment;

    #[test]
    fn a_socket_leads_to_the_daemon_or_to_an_error_and_only_its_absence_to_the_store() {
        let silent = |kind| Probed::Silent(Error::from(kind));
        let answers = |probed, is_configured| daemon_answers(probed, Path::new("/s"), is_configured);
        for is_configured in [false, true] {
            assert_eq!(answers(Probed::Ours, is_configured).ok(), Some(true));
            for probed in [
                Probed::OtherCri,
                silent(ErrorKind::ConnectionRefused),
                silent(ErrorKind::PermissionDenied),
                silent(ErrorKind::TimedOut),
            ] {
                let case = format!("{probed:?}");
                assert!(answers(probed, is_configured).is_err(), "{case}");
            }
        }
        assert_eq!(answers(Probed::Missing, false).ok(), Some(false));
        assert!(answers(Probed::Missing, true).is_err());
    }

    #[test]
    fn a_socket_that_this_user_may_not_open_is_no_reason_to_start_or_inspect_the_daemon() {
        let failure = |kind| daemon_answers(Probed::Silent(Error::from(kind)), Path::new("/s"), false).unwrap_err();
        let hint = |kind| failure(kind).hint.unwrap_or_default();
        assert!(hint(ErrorKind::ConnectionRefused).contains("systemctl status imagelet"));
        assert!(hint(ErrorKind::PermissionDenied).starts_with("run the command as root"));
        let reached = |kind| RemoteNode::new(Path::new("/s"), ANSWER_MAX).unreachable(&Error::from(kind));
        let hint = |kind| reached(kind).hint.unwrap_or_default();
        assert!(hint(ErrorKind::NotFound).starts_with("start it"));
        assert!(hint(ErrorKind::PermissionDenied).starts_with("run the command as root"));
    }

    #[test]
    fn a_runtime_has_no_longer_than_the_command_or_the_configuration_gives_it() {
        let limit = |patience: Duration, configured: Option<i64>| {
            let mut sources = Sources::new(Environment { root: true, ..Environment::default() });
            if let Some(seconds) = configured {
                sources.add_flag("--test", "runtimeRequestTimeout", format!("{seconds}s"));
            }
            within(patience, &sources).expect("it holds").node.request_timeout.as_secs()
        };
        assert_eq!(limit(ANSWER_MAX, None), 10);
        assert_eq!(limit(ANSWER_MAX, Some(3)), 3);
        assert_eq!(limit(Duration::from_secs(30), Some(60)), 30);
        assert_eq!(limit(Duration::MAX, None), 120, "0 waits as long as is configured");
    }

    #[test]
    fn only_the_default_place_may_be_without_a_store_and_only_what_fills_one_makes_it() {
        let reads = Access::Read { or_empty: true };
        assert_eq!(named_access(reads, false), reads);
        assert_eq!(named_access(reads, true), Access::Read { or_empty: false });
        for or_create in [false, true] {
            let writes = Access::Write { or_create };
            assert_eq!([false, true].map(|is_named| named_access(writes, is_named)), [writes; 2]);
        }
    }
}
