//! Generates the wire types of CRI and of containerd's API from the proto files, without `protoc`.

use std::{error::Error, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    generate("cri")?;
    generate("containerd")
}

/// Generates `OUT_DIR/INTERFACE.rs`, which includes one module per proto package.
fn generate(interface: &str) -> Result<(), Box<dyn Error>> {
    let folder = format!("proto/{interface}");
    let protos = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    let mut descriptors = protox::compile(protos, [&folder])?;
    // Removes the comments from the generated code, because the proto files have them.
    descriptors.file.iter_mut().for_each(|file| file.source_code_info = None);
    tonic_prost_build::configure()
        .include_file(format!("{interface}.rs"))
        .emit_rerun_if_changed(false)
        // With sorted maps, equal messages have the same encoding.
        .btree_map(".")
        .build_client(false)
        .build_server(false)
        // A derived `Debug` would print secrets.
        .skip_debug(["runtime.v1.AuthConfig"])
        // Prost encodes `i64` and `u64` as these wrapper messages.
        .extern_path(".runtime.v1.Int64Value", "i64")
        .extern_path(".runtime.v1.UInt64Value", "u64")
        .compile_fds(descriptors)?;
    Ok(())
}
