//! The adapter before a real containerd. Needs root and the package `containerd`.

mod calls;
mod cri;
mod import;
mod names;
mod node;
mod recorded;
mod sizes;
mod staged;
