//! Headers that ask for credentials.

#![no_main]

imagelet_fuzz::target!("challenge");
