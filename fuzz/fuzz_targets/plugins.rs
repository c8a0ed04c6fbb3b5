//! Answers and configurations of credential providers, and answers of credential helpers.

#![no_main]

imagelet_fuzz::target!("plugins");
