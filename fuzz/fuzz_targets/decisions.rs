//! The log of decisions.

#![no_main]

imagelet_fuzz::target!("decisions");
