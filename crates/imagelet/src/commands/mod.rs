//! Runs each command of the command line on a node and prints the result.

mod cluster;
mod collect;
mod configuration;
mod ensure;
mod events;
mod images;
mod images_write;
mod pull;
mod status;
mod target;
mod verify;
mod why;

use std::process::ExitCode;

use serde_json::json;

use crate::{
    cli::{Cli, Command, PodCommand},
    manifests::Manifests,
    output::{Format, print, printed, report},
    sources::{Context, daemon_settings},
};
use imagelet_node::{api::VerifyRequest, config::Environment, failure::Failure, node::Node, serve::serve};
use target::find_node;

/// The exit codes after SIGINT and SIGTERM: 128 plus the number of the signal.
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_TERMINATED: u8 = 143;

pub(crate) async fn run(cli: Cli, environment: Environment) -> Result<ExitCode, Failure> {
    let context = Context { global: cli.global, environment };
    let Context { global, environment } = &context;
    let format = global.output;
    match cli.command {
        Command::Serve(arguments) => {
            serve(|| daemon_settings(&arguments, &context), global.lock_timeout).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Prefetch(command) => cluster::run_prefetch(command, &context).await,
        Command::Controller(arguments) => unless_interrupted(Box::pin(cluster::run_controller(arguments, environment)))
            .await
            .map(|_| ExitCode::SUCCESS),
        Command::Config(command) => configuration::run(command, &context).await,
        Command::Install(arguments) => crate::install::run(arguments, &context).await,
        Command::Pod(PodCommand::Wait) => {
            interrupted().await;
            Ok(ExitCode::SUCCESS)
        }
        Command::Doctor(arguments) => pull::doctor(arguments, &context).await,
        Command::Login(arguments) => unless_interrupted(Box::pin(pull::log_in(arguments, &context))).await,
        Command::Logout { registry } => pull::log_out(registry.as_deref(), &context).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut crate::cli::command(), "imagelet", &mut script);
            Ok(print(Format::Table, &(), |out| out.write_all(&script))?)
        }
        Command::Man { directory } => {
            let written = std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(crate::cli::command(), &directory));
            written.map_err(|error| {
                Failure::because(format!("cannot write manual pages to `{}`", directory.display()), &error)
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Help { topic } => Ok(printed(crate::cli::print_help(&topic))?),
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            Ok(print(format, &json!({ "version": version }), |out| writeln!(out, "imagelet {version}"))?)
        }
        command => run_on_node(command, &context).await,
    }
}

async fn run_on_node(command: Command, context: &Context) -> Result<ExitCode, Failure> {
    let format = context.global.output;
    // The command's input is read before the store is opened, so that an error in it is reported without a wait.
    let (mut pulls, mut manifests) = (Vec::new(), Manifests::default());
    match &command {
        Command::Pull(arguments) => pulls = pull::read(arguments, &context.environment)?,
        Command::Ensure(arguments) => manifests = ensure::read(arguments)?,
        _ => {}
    }
    // `events -f` normally ends by a signal, so the signal is not reported as a failure.
    let is_endless = matches!(&command, Command::Events { follow: true, .. });
    let again = async |access| find_node(context, access).await;
    let opened = again(command.store_access()).await?;
    let node = &opened;
    let work = async {
        match command {
            Command::Pull(arguments) => pull::run(node, pulls, arguments.quiet, format).await,
            Command::Ensure(arguments) => ensure::run(node, manifests, arguments.quiet, format).await,
            Command::Ls(arguments) => images::list(node, &arguments, format).await,
            Command::Inspect { quiet, image } => images::inspect(node, quiet, image, format).await,
            Command::Df { verbose } => images::usage(node, verbose, format).await,
            Command::Rm { images } => images_write::remove(node, images, format).await,
            Command::Untag { image } => images_write::untag(node, image, format).await,
            Command::Gc(arguments) => collect::collect(node, &arguments, format).await,
            Command::Pin { pattern } => images_write::pin(node, pattern, format).await,
            Command::Unpin { pattern } => images_write::unpin(node, pattern, format).await,
            Command::Pins => images_write::pins(node, format).await,
            Command::Mount(arguments) => images_write::mount(node, arguments, format).await,
            Command::Unmount { directory, force } => images_write::unmount(node, &directory, force, format).await,
            Command::Export(arguments) => images_write::export(node, arguments, format).await,
            Command::Import(arguments) => images_write::import(node, arguments, format).await,
            Command::Events { follow: true, since } => events::follow(node, since, format).await,
            Command::Events { since, .. } => events::recent(node, since, format).await,
            Command::Why { since, image } => why::why(node, image, since, format).await,
            Command::Verify { images, repair, quiet } => {
                verify::verify(node, again, VerifyRequest { images, repair }, quiet, format).await
            }
            Command::Status { verbose } => status::status(node, verbose, format).await,
            _ => unreachable!("`run` runs the commands that need no node"),
        }
    };
    let code = tokio::select! {
        code = work => code,
        code = interrupted() => {
            if !is_endless {
                report(&Failure::new("Cancelled", "interrupted"), format, false);
            }
            Ok(code)
        }
    };
    if let Node::Local(node) = &opened {
        node.close().await;
    }
    code
}

async fn unless_interrupted(command: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    tokio::select! {
        ended = command => ended,
        code = interrupted() => Ok(code),
    }
}

/// Waits for SIGINT or SIGTERM, and returns the exit code. The caller then drops the command's future, which ends it.
async fn interrupted() -> ExitCode {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // If the handlers cannot be installed, a signal ends the process directly, and this future never ends.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => ExitCode::from(EXIT_TERMINATED),
        _ = interrupt.recv() => ExitCode::from(EXIT_INTERRUPTED),
    }
}
