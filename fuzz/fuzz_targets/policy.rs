//! Policies of signatures, and signed texts.

#![no_main]

imagelet_fuzz::target!("policy");
