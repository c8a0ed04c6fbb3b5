//! The ledger of the inventory.

#![no_main]

imagelet_fuzz::target!("ledger");
