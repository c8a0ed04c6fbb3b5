//! Builds parts of a release: the container image of the program, and the text of all licences. `make dist` calls this.

mod image;
mod licenses;

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
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
        _ => bail!("usage: cargo xtask image PROGRAM AUTHORITIES ARCHITECTURE SECONDS OUT | licenses TARGET OUT"),
    }
}

fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}
