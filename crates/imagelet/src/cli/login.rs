//! Credentials on the command line: of one command, and of `login`.

use std::path::PathBuf;

use clap::Args;

/// The credential of a command, in place of the node's.
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// User and password; `-` reads them from stdin.
    ///
    /// Other users can see a command line before the program can hide it, and a shell keeps it: prefer `-`, `--creds-file`,
    /// the variable `IMAGELET_CREDS`, or `imagelet login`.
    #[arg(long, value_name = "USER:PASS", hide_default_value = true)]
    pub(crate) creds: Option<String>,
    /// Read them from the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "creds")]
    pub(crate) creds_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RegistryLoginArgs {
    /// HOST or HOST:PORT; Docker Hub without one.
    #[arg(value_name = "REGISTRY")]
    pub(crate) registry: Option<String>,
    /// The user; asked for on a terminal.
    #[arg(short, long, value_name = "USER")]
    pub(crate) username: Option<String>,
    /// Read the password or token from stdin; without it, it is asked for on a terminal.
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
}
