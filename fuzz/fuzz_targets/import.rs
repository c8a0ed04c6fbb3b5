//! Archives to import, as tar files and as folders.

#![no_main]

imagelet_fuzz::target!("import");
