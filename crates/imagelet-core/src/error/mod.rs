//! The errors of a store or runtime, with a class and a stage for programs.

mod classify;
mod error_class;
mod runtime_error;

pub use classify::kind_of_pull_text;

pub use error_class::{ErrorClass, Fault, Party, Stage};
pub(crate) use runtime_error::causes;
pub use runtime_error::{RuntimeError, RuntimeErrorKind, error_chain};
