//! `rm`, `untag`, pins and mounts.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use crate::{
    api::{
        MountRequest, PinRequest, PinsRequest, RemoveRequest, UnmountRequest, UnpinRequest, UntagRequest, no_steps,
        silences,
    },
    cli::{Format, MountArgs},
    failure::Failure,
    node::Node,
    output::{Table, print, printable},
};

pub(super) async fn remove(node: &Node, images: Vec<String>, format: Format) -> Result<ExitCode, Failure> {
    let (mut removed, mut lines, mut failed) = (Vec::new(), Vec::new(), false);
    for image in images {
        let one = match node.ask(RemoveRequest { image: image.clone() }, silences(note)).await {
            Ok(one) => one,
            Err(failure) => {
                failed = true;
                complain(&failure);
                continue;
            }
        };
        if let Some(until) = &one.held_until {
            note(&format!("warning: `{image}` was held until {until} for a container that may still come"));
        }
        if !one.pinned_by.is_empty() {
            note(&format!("warning: `{image}` was pinned by {}", one.pinned_by.join(", ")));
        }
        // An image requested by its id is printed with its names, too.
        let names = if is_id(&one.id, &image) { printable(&one.names.join(" ")) } else { String::new() };
        lines.push(format!("{}  {names}", one.id).trim_end().to_owned());
        removed.push(one);
    }
    print(format, &json!({ "removed": removed }), |out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    Ok(ExitCode::from(u8::from(failed)))
}

/// Whether a text is this id or a prefix of it.
fn is_id(id: &str, text: &str) -> bool {
    id.starts_with(text) || id.trim_start_matches("sha256:").starts_with(text)
}

pub(super) fn complain(failure: &Failure) {
    drop(failure.write(&mut std::io::stderr().lock()));
}

pub(super) async fn untag(node: &Node, image: String, format: Format) -> Result<ExitCode, Failure> {
    let removed = node.ask(UntagRequest { image }, silences(note)).await?;
    Ok(print(format, &removed, |out| removed.names.iter().try_for_each(|name| writeln!(out, "{name}")))?)
}

pub(super) async fn pin(node: &Node, pattern: String, format: Format) -> Result<ExitCode, Failure> {
    let changed = node.ask(PinRequest { pattern }, no_steps()).await?;
    if !changed.changed {
        note(&format!("{} was pinned before", changed.pattern));
    }
    // A misspelt pin matches nothing and looks like any other.
    if changed.images.as_ref().is_some_and(Vec::is_empty) {
        note(&format!("note: `{}` holds no image that is here; one that comes is held", changed.pattern));
        if changed.pattern.starts_with("sha256:")
            && changed.pattern.len() < "sha256:".len() + 12
            && !changed.pattern.contains('*')
        {
            note("hint: fewer than 12 digits behind `sha256:` are a tag of a repository of that name, and no digest");
        }
    }
    Ok(print(format, &changed, |out| writeln!(out, "{}", changed.pattern))?)
}

pub(super) async fn unpin(node: &Node, pattern: String, format: Format) -> Result<ExitCode, Failure> {
    let changed = node.ask(UnpinRequest { pattern }, no_steps()).await?;
    if !changed.changed {
        return Err(Failure::new("NotFound", format!("`{}` is not pinned", changed.pattern))
            .or_hint("`imagelet pins` lists the patterns as they were pinned"));
    }
    Ok(print(format, &changed, |out| writeln!(out, "{}", changed.pattern))?)
}

pub(super) fn note(text: &str) {
    drop(writeln!(std::io::stderr(), "{}", printable(text)));
}

pub(super) async fn pins(node: &Node, format: Format) -> Result<ExitCode, Failure> {
    let pins = node.ask(PinsRequest::default(), no_steps()).await?;
    Ok(print(format, &pins, |out| {
        let mut table = Table::new(["PATTERN", "IMAGES", "OWNER"]);
        for pin in &pins.pins {
            table.row([&pin.pattern, &pin.images.len().to_string(), &pin.owner]);
        }
        table.write(out)
    })?)
}

pub(super) async fn mount(node: &Node, arguments: MountArgs, format: Format) -> Result<ExitCode, Failure> {
    let directory = absolute(&arguments.directory)?;
    let MountArgs { image, rw, suid, dev, .. } = arguments;
    let request = MountRequest { image, directory, writable: rw, suid, dev };
    let mounted = node.ask(request, no_steps()).await?;
    Ok(print(format, &mounted, |out| writeln!(out, "{}", mounted.directory.display()))?)
}

pub(super) async fn unmount(node: &Node, directory: &Path, force: bool, format: Format) -> Result<ExitCode, Failure> {
    let mounted = node.ask(UnmountRequest { directory: absolute(directory)?, force }, no_steps()).await?;
    if mounted.remains {
        note("note: the image is still mounted elsewhere; what was written into it stays until that is unmounted");
    }
    Ok(print(format, &mounted, |out| writeln!(out, "{}", mounted.directory.display()))?)
}

/// The daemon has another working directory, and the store records mounts by their real path.
fn absolute(directory: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(directory)?;
    Ok(std::fs::canonicalize(&absolute).unwrap_or(absolute))
}
