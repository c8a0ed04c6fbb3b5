//! Answers of token services.

#![no_main]

imagelet_fuzz::target!("tokens");
