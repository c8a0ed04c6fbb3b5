//! The program `imagelet`.

use std::process::ExitCode;

fn main() -> ExitCode {
    imagelet::run_process()
}
