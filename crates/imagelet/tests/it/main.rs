//! The program from outside: the house's arrows, and stories told with real registries, runtimes and file systems.

mod admission;
mod architecture;
mod collection;
mod configuration;
mod contract;
mod crash;
mod daemon;
mod failpoints;
mod fake_registry;
mod faults;
mod images;
mod lifecycle;
mod lifetime;
mod order;
mod planted;
mod plugins;
mod pods;
mod program;
mod read_only;
mod refusals;
mod soundness;
mod source;
mod testbed;
mod trace;
mod tree;
mod verify;
