//! What both listeners of the daemon share: how many connections stay open, which of them makes room for the next one,
//! and what a failed accept leads to.
//!
//! **Invariant:** the limits of both listeners together stay below the limit of open files, so that clients which
//! connect and send nothing leave descriptors for pulls and for the next caller.

mod accept_failures;
mod descriptors;
mod line_limit;
mod table;

pub(crate) use accept_failures::{AcceptFailures, is_out_of_descriptors};
pub(crate) use descriptors::{SpareDescriptors, http_limits, open_files_max, socket_limits};
pub(crate) use line_limit::LineLimit;
#[cfg(test)]
pub(crate) use table::Limit;
pub(crate) use table::{Calls, ConnectionLimits, ConnectionTable, OpenConnection};
