//! The commands that change images: `rm`, `untag`, pins, mounts and archives.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use imagelet_core::{
    image::{ByteSize, shown_name},
    ports::ArchivePlace,
    printable::printable,
};
use imagelet_node::{
    api::{
        ExportRequest, ImportRequest, MountRequest, PinRequest, PinsRequest, RemoveRequest, UnmountRequest,
        UnpinRequest, UntagRequest, no_steps, silences,
    },
    failure::Failure,
    node::{Command, Node},
};
use serde_json::json;

use crate::{
    cli::{ExportArgs, ImportArgs, MountArgs},
    output::{Format, Table, exit_code, fitted_to_stderr, print, print_failure},
    progress::Screen,
};

pub(super) async fn remove(node: &Node, images: Vec<String>, format: Format) -> Result<ExitCode, Failure> {
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    for image in images {
        match node.ask(RemoveRequest { image: image.clone() }, silences(note)).await {
            Ok(one) => {
                let held = one.held_until.as_ref();
                let held = held.map(|until| format!("was held until {until} for a container that may still come"));
                let by = |verb: &str, by: &[String]| (!by.is_empty()).then(|| format!("{verb} by {}", by.join(", ")));
                let warnings = [held, by("was pinned", &one.pinned_by), by("is awaited", &one.awaited_by)];
                for warning in warnings.into_iter().flatten() {
                    note(&format!("warning: `{image}` {warning}"));
                }
                removed.push((image, one));
            }
            Err(failure) => {
                print_failure(&failure);
                failures.push(json!({ "image": image, "failure": failure }));
            }
        }
    }
    let documents: Vec<_> = removed.iter().map(|(_, one)| one).collect();
    print(format, &json!({ "removed": documents, "failures": failures }), |out| {
        removed.iter().try_for_each(|(image, one)| {
            // If the command names the image by its id, the output also contains the image's names.
            let names = if is_id(&one.id, image) { printable(&one.names.join(" ")) } else { String::new() };
            writeln!(out, "{}", format!("{}  {names}", one.id).trim_end())
        })
    })?;
    Ok(exit_code(!failures.is_empty()))
}

fn is_id(id: &str, text: &str) -> bool {
    id.starts_with(text) || id.trim_start_matches("sha256:").starts_with(text)
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
    if changed.images.as_ref().is_some_and(Vec::is_empty) {
        note(&format!("note: `{}` matches no present image; one that comes later is pinned", changed.pattern));
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
    drop(writeln!(std::io::stderr(), "{}", fitted_to_stderr(&printable(text))));
}

pub(super) async fn pins(node: &Node, format: Format) -> Result<ExitCode, Failure> {
    let pins = node.ask(PinsRequest::default(), no_steps()).await?;
    Ok(print(format, &pins, |out| {
        let rows = pins.pins.iter().map(|pin| [pin.pattern.clone(), pin.images.len().to_string(), pin.owner.clone()]);
        Table::new(["PATTERN", "IMAGES", "OWNER"]).rows(rows).write(out)
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

pub(super) async fn export(node: &Node, arguments: ExportArgs, format: Format) -> Result<ExitCode, Failure> {
    let ExportArgs { image, archive, quiet } = arguments;
    let screen = Screen::of_stderr(quiet);
    let request = ExportRequest { image: image.clone(), place: archive_place(&archive)? };
    let exported = ask_shown(node, &screen, &image, request).await?;
    let (path, size) = (exported.path.display().to_string(), ByteSize(exported.size));
    screen.say(&format!("{} written to {} ({size})", printable(&exported.image), printable(&path)));
    Ok(print(format, &exported, |out| writeln!(out, "{}", exported.digest))?)
}

pub(super) async fn import(node: &Node, arguments: ImportArgs, format: Format) -> Result<ExitCode, Failure> {
    let ImportArgs { archive, name, platform, pin, quiet } = arguments;
    let screen = Screen::of_stderr(quiet);
    let platform = platform.map(|platform| platform.to_string());
    let request = ImportRequest { place: archive_place(&archive)?, name, platform, pin };
    let imported = ask_shown(node, &screen, &archive, request).await?;
    for image in &imported.images {
        match &image.failure {
            Some(failure) => print_failure(failure),
            None if image.present => screen.say(&format!("{} is present", printable(&image.names.join(" ")))),
            None => screen.say(&format!("{} imported", printable(&image.names.join(" ")))),
        }
        image.pin_failures.iter().for_each(print_failure);
    }
    let done = imported.images.iter().filter(|image| image.failure.is_none());
    print(format, &imported, |out| done.clone().try_for_each(|image| writeln!(out, "{}", image.id)))?;
    let is_failed = imported.images.iter().any(|image| image.failure.is_some() || !image.pin_failures.is_empty());
    Ok(exit_code(is_failed))
}

pub(super) async fn ask_shown<C: Command>(
    node: &Node,
    screen: &Screen,
    name: &str,
    request: C,
) -> Result<C::Answer, Failure> {
    let shown = screen.show(name, None);
    node.ask(request, shown.steps.clone()).await
}

fn archive_place(text: &str) -> Result<ArchivePlace, Failure> {
    let folder = text.strip_prefix("oci:");
    let (path, is_folder) = (folder.unwrap_or(text), folder.is_some());
    if path.is_empty() || path == "-" {
        return Err(
            Failure::invalid(format!("`{text}` names no archive")).or_hint("give a file, or `oci:DIR` for a folder")
        );
    }
    if let Some((scheme, hint)) = foreign_scheme(text).filter(|_| !is_folder && !Path::new(text).exists()) {
        let message = format!("`{scheme}` is a scheme of other tools");
        return Err(Failure::invalid(message).or_hint(&hint));
    }
    Ok(ArchivePlace { path: std::path::absolute(path)?, is_folder })
}

/// Splits off another tool's scheme, such as `docker-archive:`. Returns the scheme and a hint on what to do instead.
fn foreign_scheme(text: &str) -> Option<(&str, String)> {
    let (scheme, rest) = text.split_once(':')?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let hint = match scheme {
        "docker" => format!("imagelet pull {}", shown_name(rest)),
        "http" | "https" | "ftp" => "download the file, and give its path".into(),
        // Other tools write `docker-archive:FILE:IMAGE`, so only the part before the next `:` is the file.
        "file" | "docker-archive" | "oci-archive" => {
            format!("give the file alone: {}", rest.split(':').next().unwrap_or_default())
        }
        "dir" => "copy it into an OCI layout, and give `oci:DIR`".into(),
        "docker-daemon" | "containers-storage" => "write it to a file with `docker save` or `podman save`".into(),
        _ => return None,
    };
    Some((&text[..text.len() - rest.len()], hint))
}

/// The real path: a daemon does not share the working directory, and the store knows mounts by their real paths.
fn absolute(directory: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(directory)?;
    Ok(std::fs::canonicalize(&absolute).unwrap_or(absolute))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_a_file_or_a_folder() {
        for (text, expected) in [
            ("/a/b.tar", Some(("/a/b.tar", false))),
            ("oci:/a/b", Some(("/a/b", true))),
            ("/oci:b", Some(("/oci:b", false))),
            ("oci:", None),
            ("-", None),
            ("", None),
        ] {
            let found = archive_place(text).ok().map(|place| (place.path, place.is_folder));
            assert_eq!(found, expected.map(|(path, is_folder)| (PathBuf::from(path), is_folder)), "{text}");
        }
    }

    #[test]
    fn an_archive_with_a_scheme_of_other_tools_is_refused_by_that_scheme_and_not_as_a_missing_file() {
        for (text, scheme, hint) in [
            ("docker-archive:/tmp/app.tar", "docker-archive:", "/tmp/app.tar"),
            ("oci-archive:app.tar:v1", "oci-archive:", "app.tar"),
            ("dir:/srv/copied", "dir:", "`oci:DIR`"),
            ("docker-daemon:nginx:1.25", "docker-daemon:", "docker save"),
            ("containers-storage:nginx", "containers-storage:", "save"),
            ("docker://nginx:1.25", "docker://", "imagelet pull"),
            ("https://files.example/app.tar", "https://", "download"),
            ("file:///tmp/app.tar", "file://", "/tmp/app.tar"),
        ] {
            let refused = archive_place(text).expect_err(text);
            assert!(refused.message.contains(&format!("`{scheme}`")), "{text}: {}", refused.message);
            assert!(refused.hint.as_deref().is_some_and(|it| it.contains(hint)), "{text}: {:?}", refused.hint);
        }
    }
}
