//! The service of a node: pulls, images, collection and status behind one HTTP/JSON interface, with dashboard and jobs.
//!
//! [`serve`] builds a node and runs the daemon. [`node`] calls a node, in this process or behind a socket.

#[macro_use]
pub mod api;
pub mod config;
mod connections;
pub mod durations;
pub mod failure;
pub mod http;
mod jobs;
pub mod nearest;
pub mod node;
pub mod serve;
pub mod size;
mod traces;
