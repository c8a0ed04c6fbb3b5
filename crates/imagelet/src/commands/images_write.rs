//! `rm`, `untag`, pins, mounts and `status`.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use imagelet_core::{gc::ShadowCounts, image::ByteSize, text::duration_text};
use serde_json::json;

use crate::{
    api::{
        LastCollection, MountRequest, PinRequest, PinsRequest, RemoveRequest, Status, StatusRequest, UnmountRequest,
        UnpinRequest, UntagRequest, no_steps, silences,
    },
    cli::{Format, MountArgs},
    failure::Failure,
    node::Node,
    output::{Table, print, printable},
};

use super::imports;

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
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Whether a text is this id or a prefix of it.
fn is_id(id: &str, text: &str) -> bool {
    id.starts_with(text) || id.trim_start_matches("sha256:").starts_with(text)
}

const PODS_SHOWN_MAX: usize = 10;

/// Prints one of several failures; the command continues.
pub(super) fn complain(failure: &Failure) {
    drop(failure.write(&mut std::io::stderr().lock()));
}

pub(super) async fn untag(node: &Node, image: String, format: Format) -> Result<ExitCode, Failure> {
    let removed = node.ask(UntagRequest { image }, silences(note)).await?;
    print(format, &removed, |out| removed.names.iter().try_for_each(|name| writeln!(out, "{name}")))
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
    print(format, &changed, |out| writeln!(out, "{}", changed.pattern))
}

pub(super) async fn unpin(node: &Node, pattern: String, format: Format) -> Result<ExitCode, Failure> {
    let changed = node.ask(UnpinRequest { pattern }, no_steps()).await?;
    if !changed.changed {
        return Err(Failure::new("NotFound", format!("`{}` is not pinned", changed.pattern))
            .or_hint("`imagelet pins` lists the patterns as they were pinned"));
    }
    print(format, &changed, |out| writeln!(out, "{}", changed.pattern))
}

pub(super) fn note(text: &str) {
    drop(writeln!(std::io::stderr(), "{}", printable(text)));
}

pub(super) async fn pins(node: &Node, format: Format) -> Result<ExitCode, Failure> {
    let pins = node.ask(PinsRequest::default(), no_steps()).await?;
    print(format, &pins, |out| {
        let mut table = Table::new(["PATTERN", "IMAGES", "OWNER"]);
        for pin in &pins.pins {
            table.row([&pin.pattern, &pin.images.len().to_string(), &pin.owner]);
        }
        table.write(out)
    })
}

pub(super) async fn mount(node: &Node, arguments: MountArgs, format: Format) -> Result<ExitCode, Failure> {
    let directory = absolute(&arguments.directory)?;
    let MountArgs { image, rw, suid, dev, .. } = arguments;
    let request = MountRequest { image, directory, writable: rw, suid, dev };
    let mounted = node.ask(request, no_steps()).await?;
    print(format, &mounted, |out| writeln!(out, "{}", mounted.directory.display()))
}

pub(super) async fn unmount(node: &Node, directory: &Path, force: bool, format: Format) -> Result<ExitCode, Failure> {
    let mounted = node.ask(UnmountRequest { directory: absolute(directory)?, force }, no_steps()).await?;
    if mounted.remains {
        note("note: the image is still mounted elsewhere; what was written into it stays until that is unmounted");
    }
    print(format, &mounted, |out| writeln!(out, "{}", mounted.directory.display()))
}

/// The daemon has another working directory, and the store records mounts by their real path.
fn absolute(directory: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(directory)?;
    Ok(std::fs::canonicalize(&absolute).unwrap_or(absolute))
}

pub(super) async fn status(node: &Node, is_verbose: bool, format: Format) -> Result<ExitCode, Failure> {
    let status = node.ask(StatusRequest::default(), no_steps()).await?;
    print(format, &status, |out| {
        overview(&status).write(out)?;
        if let Some(import) = status.runtime_import.as_ref().filter(|_| is_verbose) {
            imports::verbose(import, out)?;
        }
        let duration = |milliseconds| duration_text(Duration::from_secs(milliseconds / 1000));
        let mut section = |header: &[&str], rows: Vec<Vec<String>>| {
            if rows.is_empty() {
                return Ok(());
            }
            let mut table = Table::new(header);
            for row in rows {
                table.row(row);
            }
            writeln!(out)?;
            table.write(out)
        };
        let pulls = status.pulls.iter().map(|pull| {
            let place = pull.position.map_or_else(|| "-".into(), |place| place.to_string());
            let (since, priority) = (duration(pull.for_ms), pull.priority.to_string());
            vec![pull.image.clone(), pull.state.clone(), place, since, priority, pull.askers.to_string()]
        });
        section(&["PULL", "STATE", "PLACE", "FOR", "PRIORITY", "REQUESTS"], pulls.collect())?;
        let held_back = status
            .held_back
            .iter()
            .map(|held| vec![held.image.clone(), duration(held.remaining_ms), held.failure.clone()]);
        section(&["HELD BACK", "AGAIN IN", "BECAUSE"], held_back.collect())?;
        let starts = status.pod_starts.iter().take(PODS_SHOWN_MAX).map(|pod| {
            let took = duration_text(Duration::from_secs_f64(pod.took_seconds.max(0.0)));
            let took = if pod.over { took } else { format!("{took} so far") };
            let since = pod.began_at.clone().unwrap_or_default();
            vec![format!("{}/{}", pod.namespace, pod.pod), pod.images.len().to_string(), took, since]
        });
        section(&["POD", "IMAGES", "TOOK", "SINCE"], starts.collect())?;
        let registries = status.registries.iter().map(|open| {
            let pulls = match open.pulls.as_str() {
                "all-pulls" => "all pulls",
                "credentials" => "pulls with some credentials",
                _ => "pulls of some images",
            };
            let next = if open.remaining_seconds == 0 { "now".into() } else { duration(open.remaining_seconds * 1000) };
            vec![open.registry.clone(), pulls.into(), next, format!("{} failures ({})", open.failures, open.class)]
        });
        section(&["REGISTRY", "NOT ASKED FOR", "NEXT ATTEMPT IN", "BECAUSE"], registries.collect())
    })
}

fn overview(status: &Status) -> Table {
    let mut table = Table::default();
    table.row(["Version:", &status.version]);
    table.row(["Images in:", &status.backend]);
    let since = status.started_at.as_deref().unwrap_or("-");
    let process = format!("{} (pid {}, since {since})", status.process, status.pid);
    table.row(["Process:", &process]);
    if let Some(import) = &status.runtime_import {
        table.row(["Pulls:", &imports::summary(import)]);
    }
    if let Some(unpacking) = &status.unpacking {
        table.row(["Unpacking:", unpacking]);
    }
    let images = format!("{} ({} in use)", status.images, status.in_use);
    table.row(["Images:", if status.images_unknown { "unknown" } else { &images }]);
    let used = status.used_percent.map_or_else(|| "unknown".into(), |percent| format!("{percent}% used"));
    let disk = format!("{used}, collecting at {}% down to {}%", status.gc_high_percent, status.gc_low_percent);
    table.row(["Disk:", &disk]);
    for short in status.eviction.iter().filter(|threshold| threshold.met) {
        let line = format!("{} is less than {}: the kubelet reclaims, then evicts", short.signal, short.less_than);
        table.row(["Short of:", &line]);
    }
    if let Some(last) = &status.last_collection {
        table.row(["Last collection:", &last_collection(last)]);
    }
    if let Some(shadow) = &status.shadow {
        table.row(["Shadow mode:", "what is chosen is reported, nothing is removed"]);
        for line in shadow_lines(shadow) {
            table.row(["", &line]);
        }
    }
    if status.decisions_lost > 0 {
        let lost = format!("{} decisions did not reach the log on disk", status.decisions_lost);
        table.row(["Problem:", &lost]);
    }
    for problem in &status.problems {
        table.row(["Problem:", problem]);
    }
    table
}

fn last_collection(last: &LastCollection) -> String {
    let at = last.at.as_deref().unwrap_or("-");
    let (images, claimed) = (last.images, ByteSize(last.claimed));
    let did = match last.outcome.as_str() {
        "shadow" => format!("would have removed {images} images ({claimed})"),
        "failed" => format!("failed: {}", last.failure.as_deref().unwrap_or("-")),
        _ if images == 0 => "removed nothing".to_owned(),
        _ => {
            let gained = last.measured.map_or_else(String::new, |it| format!(", the disk gained {}", ByteSize(it)));
            format!("removed {images} images ({claimed} as listed{gained})")
        }
    };
    let short = if last.outcome == "short" { ", which was not enough" } else { "" };
    format!("{at} by {}: {did}{short}", last.by)
}

fn shadow_lines(shadow: &ShadowCounts) -> Vec<String> {
    let mut lines = vec![format!("would remove {} images now ({})", shadow.still_there, shadow.still_there_bytes)];
    if shadow.agreed + shadow.kept_in_vain > 0 {
        lines.push(format!(
            "{} images were removed since the start: {} as predicted, {} ({}) would have been kept",
            shadow.agreed + shadow.kept_in_vain,
            shadow.agreed,
            shadow.kept_in_vain,
            shadow.kept_in_vain_bytes
        ));
    }
    if shadow.came_back > 0 {
        lines.push(format!(
            "{} of those came back: {} would not have been pulled again",
            shadow.came_back, shadow.saved_bytes
        ));
    }
    lines
}
