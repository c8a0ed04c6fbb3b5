//! The calls before a real containerd. Needs root and the package `containerd`.

mod calls;
mod node;
