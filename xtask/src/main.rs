//! Generates the committed wire types, and parts of a release.
//!
//! `cargo xtask gen` writes the types, `cargo xtask gen --check` fails where they are not what would be written. No build needs
//! `protoc`, and building the workspace generates nothing. `make dist` calls `image` and `licenses`.

mod image;
mod licenses;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

/// Proto files and the module made of them; paths are relative to the workspace.
struct Interface {
    /// The files, or the folder of those that belong together.
    proto: &'static str,
    /// The one package, whose items stand in the module itself; `None`: a module for each package.
    package: Option<&'static str>,
    module: &'static str,
    /// What stands in the module's `//!`.
    purpose: &'static str,
    /// Messages whose `Debug` is written by hand, because the derived one would print secrets.
    without_debug: &'static [&'static str],
    /// Long fields: one that is read is a part of what came, and not a copy.
    shared: &'static [&'static str],
}

const INTERFACES: [Interface; 1] = [Interface {
    proto: "crates/imagelet/proto/imagelet.proto",
    package: Some("imagelet.v1"),
    module: "crates/imagelet/src/api/v1.rs",
    purpose: "The wire types of the daemon's own interface.",
    without_debug: &[],
    shared: &[".imagelet.v1.CallReply.result"],
}];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gen"] => INTERFACES.iter().try_for_each(write),
        ["gen", "--check"] => INTERFACES.iter().try_for_each(check),
        ["image", program, authorities, architecture, created, out] => {
            let version = env!("CARGO_PKG_VERSION");
            let image = image::ProgramImage {
                program: program.into(),
                authorities: authorities.into(),
                name: format!("localhost/imagelet:{version}"),
                version: version.into(),
                architecture: architecture.into(),
                created: created.parse().with_context(|| format!("`{created}` is no number of seconds"))?,
            };
            write_file(out, &image.layout()?)
        }
        ["licenses", target, out] => write_file(out, licenses::text(target)?.as_bytes()),
        _ => bail!(
            "usage: cargo xtask gen [--check] | image PROGRAM AUTHORITIES ARCHITECTURE SECONDS OUT | licenses TARGET OUT"
        ),
    }
}

fn write(interface: &Interface) -> Result<()> {
    write_file(workspace().join(interface.module), generate(interface)?.as_bytes())
}

fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}

fn check(interface: &Interface) -> Result<()> {
    let path = workspace().join(interface.module);
    let committed = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    ensure!(
        committed == generate(interface)?,
        "`{}` is not what `{}` generates\nhint: run `cargo xtask gen` and commit the result",
        interface.module,
        interface.proto
    );
    Ok(())
}

fn generate(interface: &Interface) -> Result<String> {
    let (protos, include) = sources(&workspace().join(interface.proto))?;
    let mut descriptors =
        protox::compile(protos, [include]).with_context(|| format!("cannot compile `{}`", interface.proto))?;
    // Comments are read in the proto file.
    descriptors.file.iter_mut().for_each(|file| file.source_code_info = None);
    let out = OutFolder::new(interface.module)?;
    let builder = tonic_prost_build::configure()
        .out_dir(&out.0)
        .include_file(PACKAGES)
        .emit_rerun_if_changed(false)
        // Sorted, so that equal messages have equal bytes.
        .btree_map(".")
        .build_client(false)
        .build_server(false)
        .skip_debug(interface.without_debug)
        // Google's wrappers, which Prost reads and writes as the number itself.
        .extern_path(".runtime.v1.Int64Value", "i64")
        .extern_path(".runtime.v1.UInt64Value", "u64");
    let builder = interface.shared.iter().fold(builder, tonic_prost_build::Builder::bytes);
    builder.compile_fds(descriptors).with_context(|| format!("cannot generate `{}`", interface.module))?;
    let code = match interface.package {
        Some(package) => out.read(&format!("{package}.rs"))?,
        None => out.read_packages()?,
    };
    let header = format!(
        "//! {}\n//!\n//! Generated from `{}` by `cargo xtask gen`; change that instead.\n#![allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]\n\n",
        interface.purpose, interface.proto
    );
    format_code(&(header + &with_short_names(&code)))
}

/// The generator names types as code needs it that shadows them or has no standard library. This code does neither.
fn with_short_names(code: &str) -> String {
    code.replace("::prost::alloc::string::String", "String")
        .replace("::prost::alloc::vec::Vec", "Vec")
        .replace("::prost::alloc::collections::BTreeMap", "std::collections::BTreeMap")
        .replace("::core::option::Option", "Option")
}

/// The proto files of a path, and the folder in which they find one another.
fn sources(path: &Path) -> Result<(Vec<PathBuf>, PathBuf)> {
    if path.is_file() {
        let folder = path.parent().context("a proto file has a folder")?;
        return Ok((vec![path.to_owned()], folder.to_owned()));
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let mut protos = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    protos.sort();
    Ok((protos, path.to_owned()))
}

/// Formats as `cargo fmt` would, so that it leaves the file alone.
fn format_code(code: &str) -> Result<String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(workspace().join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run `rustfmt`")?;
    let mut input = rustfmt.stdin.take().context("rustfmt has an input")?;
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(code.as_bytes()));
        rustfmt.wait_with_output()
    })?;
    ensure!(output.status.success(), "`rustfmt` refused the generated code");
    Ok(String::from_utf8(output.stdout)?)
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The file in which the generator names the modules of all packages.
const PACKAGES: &str = "packages.rs";

/// Where the generator writes; goes when dropped.
struct OutFolder(PathBuf);

impl OutFolder {
    fn new(module: &str) -> Result<Self> {
        let module = module.replace('/', "-");
        let folder = std::env::temp_dir().join(format!("imagelet-xtask-{}-{module}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
        Ok(Self(folder))
    }

    /// The code of one package.
    fn read(&self, name: &str) -> Result<String> {
        let code = fs::read_to_string(self.0.join(name))?;
        Ok(code.strip_prefix("// This file is @generated by prost-build.\n").unwrap_or(&code).to_owned())
    }

    /// The code of all packages, each in its module.
    fn read_packages(&self) -> Result<String> {
        let modules = self.read(PACKAGES)?;
        let lines = modules.lines().map(|line| match line.trim().strip_prefix("include!(\"") {
            Some(include) => self.read(include.trim_end_matches("\");")),
            None => Ok(format!("{line}\n")),
        });
        lines.collect()
    }
}

impl Drop for OutFolder {
    fn drop(&mut self) {
        // A file left in the temporary folder does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_wire_types_are_what_their_proto_files_generate() {
        for interface in &INTERFACES {
            check(interface).unwrap();
        }
    }
}
