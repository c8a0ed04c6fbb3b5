//! Docker configurations, of nodes and of pull secrets.

#![no_main]

imagelet_fuzz::target!("logins");
