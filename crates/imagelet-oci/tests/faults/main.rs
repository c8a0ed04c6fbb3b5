//! Pulls from registries with faults: alone, and with healthy hosts after them.

mod cases;
mod diagnosis;
mod matrix;
mod reports;
mod scene;
