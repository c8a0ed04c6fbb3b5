//! What each command of the line asks of a node, and how its answer is printed.

mod collect;
mod configuration;
mod ensure;
mod events;
mod images;
mod images_write;
mod imports;
mod pull;
mod target;
mod verify;
mod why;

use std::{io::Write as _, process::ExitCode};

use clap::CommandFactory as _;
use serde_json::json;

use crate::{
    cli::{Cli, Command, Format, Intent},
    config::Environment,
    failure::Failure,
    manifests::Manifests,
    node::Node,
    output::print,
    serve,
};
use target::find_node;

/// 128 + SIGINT.
const EXIT_INTERRUPTED: u8 = 130;
/// 128 + SIGTERM.
const EXIT_TERMINATED: u8 = 143;

pub(crate) async fn run(cli: Cli, environment: Environment) -> Result<ExitCode, Failure> {
    let format = cli.global.output;
    match cli.command {
        Command::Serve(arguments) => {
            serve::serve(arguments, cli.global, environment).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Config(command) => configuration::run(command, cli.global.store.as_ref(), &environment, format),
        Command::Completions(arguments) => {
            let mut script = Vec::new();
            clap_complete::generate(arguments.shell, &mut Cli::command(), "imagelet", &mut script);
            print_bytes(&script)
        }
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            print(format, &json!({ "version": version }), |out| writeln!(out, "imagelet {version}"))?;
            Ok(ExitCode::SUCCESS)
        }
        command => {
            // Read before anything is opened: user errors are reported at once.
            let prepared = Prepared::read(&command, &environment)?;
            // `events -f` always ends by a signal: no message.
            let is_endless = matches!(&command, Command::Events(arguments) if arguments.follow);
            let node = find_node(&cli.global, &environment, command.intent()).await?;
            let again = async |intent| find_node(&cli.global, &environment, intent).await;
            let code = tokio::select! {
                code = ask(&node, again, command, prepared, format) => code,
                code = interrupted() => {
                    if !is_endless {
                        images_write::complain(&Failure::new("Cancelled", "interrupted"));
                    }
                    Ok(code)
                }
            };
            if let Node::Local(node) = &node {
                node.close().await;
            }
            code
        }
    }
}

/// Input of a command, read before the node is opened.
#[derive(Debug)]
enum Prepared {
    Images(pull::PullBatch),
    Pods { manifests: Manifests, quiet: bool },
    Nothing,
}

impl Prepared {
    fn read(command: &Command, environment: &Environment) -> Result<Self, Failure> {
        Ok(match command {
            Command::Pull(arguments) => Self::Images(pull::PullBatch::read(arguments, environment)?),
            Command::Ensure(arguments) => Self::Pods { manifests: ensure::read(arguments)?, quiet: arguments.quiet },
            _ => Self::Nothing,
        })
    }
}

async fn ask(
    node: &Node,
    again: impl AsyncFn(Intent) -> Result<Node, Failure>,
    command: Command,
    prepared: Prepared,
    format: Format,
) -> Result<ExitCode, Failure> {
    match prepared {
        Prepared::Images(prepared) => return pull::run(node, prepared, format).await,
        Prepared::Pods { manifests, quiet } => return ensure::run(node, manifests, quiet, format).await,
        Prepared::Nothing => {}
    }
    match command {
        Command::Ls(arguments) => images::list(node, &arguments, format).await,
        Command::Inspect(arguments) => images::inspect(node, &arguments, format).await,
        Command::Df(arguments) => images::usage(node, &arguments, format).await,
        Command::Rm(arguments) => images_write::remove(node, &arguments, format).await,
        Command::Untag(arguments) => images_write::untag(node, arguments, format).await,
        Command::Gc(arguments) => collect::collect(node, &arguments, format).await,
        Command::Pin(arguments) => images_write::pin(node, arguments, format).await,
        Command::Unpin(arguments) => images_write::unpin(node, arguments, format).await,
        Command::Pins => images_write::pins(node, format).await,
        Command::Mount(arguments) => images_write::mount(node, arguments, format).await,
        Command::Unmount(arguments) => images_write::unmount(node, arguments, format).await,
        Command::Events(arguments) => events::run(node, &arguments, format).await,
        Command::Why(arguments) => why::why(node, arguments, format).await,
        Command::Verify(arguments) => verify::verify(node, again, arguments, format).await,
        Command::Status(arguments) => images_write::status(node, arguments.verbose, format).await,
        _ => images_write::status(node, false, format).await,
    }
}

/// Waits for SIGINT or SIGTERM and returns the exit code for it. Dropping the command then cancels its work.
async fn interrupted() -> ExitCode {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => ExitCode::from(EXIT_TERMINATED),
        _ = interrupt.recv() => ExitCode::from(EXIT_INTERRUPTED),
    }
}

fn print_bytes(bytes: &[u8]) -> Result<ExitCode, Failure> {
    match std::io::stdout().lock().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::of(&error)),
        _ => Ok(ExitCode::SUCCESS),
    }
}
