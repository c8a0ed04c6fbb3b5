//! Compressed layers, through the stage that inflates a pull.

#![no_main]

imagelet_fuzz::target!("framing");
