//! Bytes as recipes of layers, held against a model of what layers mean.

#![no_main]

imagelet_fuzz::target!("whiteouts");
