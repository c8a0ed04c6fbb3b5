//! The command line of the node image manager. Only the program `imagelet` uses this library: cargo can compile a
//! library before its dependencies are complete. Other programs use crates such as `imagelet-core`.

mod cli;
mod commands;
mod install;
mod log;
mod manifests;
mod output;
mod progress;
mod secret_hygiene;
mod sources;

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    process::{Command as Program, ExitCode},
};

use tokio::runtime::Builder;

use cli::{Cli, Command, PodCommand, format_of, has_lines, usage_failure};
use imagelet_node::config::{Environment, variable};
use imagelet_node::failure::Failure;
use output::{report, write_failure};

const EXIT_USAGE: u8 = 2;

/// glibc's limits for the daemon's heap: few arenas, and freed large blocks return to the system.
const HEAP_BOUNDS: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.arena_max=4:glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=2097152:\
     glibc.malloc.top_pad=1048576",
);

pub fn run_process() -> ExitCode {
    secret_hygiene::forbid_core_dumps();
    secret_hygiene::raise_file_limit();
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::read(arguments.iter().cloned()) {
        Ok(cli) => cli,
        Err(error) => {
            // clap reports help and version as errors with exit code 0. The error of a closed pipe is ignored.
            drop(error.print());
            if error.exit_code() == 0 {
                return ExitCode::SUCCESS;
            }
            write_failure(&usage_failure(&error), format_of(&arguments), has_lines(&arguments));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let mut environment = Environment::of_process();
    if let Some(level) = &cli.global.log_level {
        environment.log = Some(level.clone());
    }
    if matches!(cli.command, Command::Serve(_)) && variable("GLIBC_TUNABLES").is_none() {
        start_with_bounded_heap(&arguments);
    }
    secret_hygiene::hide_login(&arguments, &cli, &environment);
    log::start(&environment, cli.command.is_daemon());
    let (format, is_line) = (cli.global.output, matches!(cli.command, Command::Events { .. }));
    if let Command::Pod(PodCommand::Install(arguments)) = cli.command {
        // `pod install` enters a mount namespace, which needs a process with one thread: tokio is not started yet.
        return install::set_host_up(arguments, format).unwrap_or_else(|failure| report(&failure, format, false));
    }
    // `ls` and `pod` are faster with one thread: the daemon's answer is not passed from thread to thread.
    let mut builder = match cli.command {
        Command::Ls(_) | Command::Pod(_) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::of(&error), format, is_line),
    };
    let is_daemon = cli.command.is_daemon();
    let outcome = runtime.block_on(commands::run(cli, environment));
    if is_daemon {
        // The daemon exits without waiting for tokio's blocking threads, which may unpack layers or wait for the disk.
        runtime.shutdown_background();
    }
    match outcome {
        Ok(code) => code,
        Err(failure) => report(&failure, format, is_line),
    }
}

/// Executes the program again with [`HEAP_BOUNDS`], which glibc reads only at start. Returns only if this fails.
fn start_with_bounded_heap(arguments: &[OsString]) {
    let (name, bounds) = HEAP_BOUNDS;
    if let Ok(program) = std::env::current_exe() {
        let _failed = Program::new(program).arg0(&arguments[0]).args(&arguments[1..]).env(name, bounds).exec();
    }
}
