//! Fuzz access to private conversions from wire messages to core types and back.
//!
//! The checks are in `crates/imagelet/tests/fuzz/`.

use imagelet_core::{error::RuntimeError, ports::PullRequest};
use tonic::{Code, Status};

use crate::cri::convert::{self, Call};
pub use crate::{
    cri::{
        bounded::{LIST, ONE},
        convert::{
            check_container_status, check_sandbox_status, check_status, check_version, container_from_wire,
            filesystems_from_wire, filesystems_to_wire, filter_from_wire, image_from_wire, pull_from_wire,
            pull_to_wire, sandbox_from_wire, spec_from_wire, spec_to_wire, volumes_from_wire,
        },
        server::batches,
    },
    wire::MessageBounds,
};

/// For each kind of call: the error made of the runtime's status, then the code and the message that the client gets.
pub fn relayed(code: i32, message: &str) -> Vec<(RuntimeError, i32, String)> {
    let status = Status::new(Code::from_i32(code), message);
    let calls = [Call::Pull, Call::Remove, Call::Image("ListImages"), Call::Runtime("ListContainers")];
    let relay = |call| {
        let error = convert::error_from_status(call, &status);
        let relayed = convert::status_from_error(&error.copied());
        (error, relayed.code() as i32, relayed.message().to_owned())
    };
    calls.into_iter().map(relay).collect()
}

/// A runtime's message about a pull, without the credential of the pull.
pub fn shown_refusal(message: &str, request: &PullRequest) -> String {
    convert::without_credential(Status::unknown(message), request).message().to_owned()
}
