//! The command line of the node image manager.
fn main() {}
