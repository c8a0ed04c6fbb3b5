//! Pull records and the intents of pulls.

#![no_main]

imagelet_fuzz::target!("records");
