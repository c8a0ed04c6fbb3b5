//! Links the program of packages in the order of `start-order.ld`.

#![expect(clippy::disallowed_methods, reason = "cargo tells a build script all by variables")]

use std::env;

fn main() {
    let script = format!("{}/start-order.ld", env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed={script}");
    // Only the profile of packages is built for size. All others link as fast as they can, with any linker.
    let is_package = env::var("OPT_LEVEL").is_ok_and(|level| level == "s");
    if is_package && env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,--script={script}");
    }
}
