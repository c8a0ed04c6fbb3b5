//! The program from outside: the house's arrows, and stories told with real registries, runtimes and file systems.

mod architecture;
mod source;
