//! The command line of the node image manager.

mod cli;
mod config;
mod output;
mod size;

fn main() {}
