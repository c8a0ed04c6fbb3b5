//! The program from outside: the house's arrows, and stories told with real registries, runtimes and file systems.

mod architecture;
mod collection;
mod contract;
mod crash;
mod daemon;
mod fake_registry;
mod images;
mod lifecycle;
mod program;
mod refusals;
mod source;
mod testbed;
mod tree;
mod verify;
