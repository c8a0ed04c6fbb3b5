//! `serve`: runs the daemon with the settings of the command line and its files.

use imagelet_node::{
    config::{Environment, Settings},
    failure::Failure,
};

use crate::{
    cli::{Global, ServeArgs},
    sources::sources,
};

pub(crate) async fn serve(arguments: ServeArgs, global: Global, environment: Environment) -> Result<(), Failure> {
    let read = || settings_of(&arguments, &global, &environment);
    imagelet_node::serve::serve(read, global.lock_timeout).await
}

fn settings_of(arguments: &ServeArgs, global: &Global, environment: &Environment) -> Result<Settings, Failure> {
    let sources = sources(arguments, global, environment)?;
    for warning in arguments.ignored_options(sources.has_node()) {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = sources.exposed_password() {
        tracing::warn!("{warning}");
    }
    Ok(sources.settings()?)
}
