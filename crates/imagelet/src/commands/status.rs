//! `status`: prints the daemon or store at a glance, its pulls, and how they enter a runtime.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use imagelet_core::{
    image::{ByteSize, counted},
    printable::printable,
    text::duration_text,
};
use imagelet_node::{
    api::{ImportStatus, LastCollection, Status, StatusRequest, no_steps},
    failure::Failure,
    node::Node,
};

use crate::output::{Format, Table, print};

pub(super) async fn status(node: &Node, is_verbose: bool, format: Format) -> Result<ExitCode, Failure> {
    let status = node.ask(StatusRequest::default(), no_steps()).await?;
    Ok(print(format, &status, |out| {
        overview(&status).write(out)?;
        if let Some(import) = status.runtime_import.as_ref().filter(|_| is_verbose) {
            import_details(import, out)?;
        }
        let duration = |milliseconds| duration_text(Duration::from_secs(milliseconds / 1000));
        let mut section = |header: &[&str], rows: Vec<Vec<String>>| {
            if rows.is_empty() {
                return Ok(());
            }
            writeln!(out)?;
            Table::new(header).rows(rows).write(out)
        };
        let pulls = status.pulls.iter().map(|pull| {
            let place = pull.position.map_or_else(|| "-".into(), |place| place.to_string());
            let (since, priority) = (duration(pull.for_ms), pull.priority.to_string());
            let waits = if pull.waits.is_empty() { String::new() } else { format!(", {}", printable(&pull.waits)) };
            vec![pull.image.clone(), format!("{}{waits}", pull.state), place, since, priority, pull.askers.to_string()]
        });
        section(&["PULL", "STATE", "PLACE", "FOR", "PRIORITY", "REQUESTS"], pulls.collect())?;
        let held_back = status.held_back.iter().map(|held| {
            vec![held.image.clone(), held.pods.max(1).to_string(), duration(held.remaining_ms), held.failure.clone()]
        });
        section(&["HELD BACK", "PODS", "AGAIN IN", "BECAUSE"], held_back.collect())?;
        let registries = status.registries.iter().map(|open| {
            let pulls = match open.pulls.as_str() {
                "all-pulls" => "all pulls",
                "repository" => "pulls of some repositories",
                "credentials" => "pulls with some credentials",
                _ => "pulls of some images",
            };
            let next = if open.remaining_seconds == 0 { "now".into() } else { duration(open.remaining_seconds * 1000) };
            vec![
                open.registry.clone(),
                pulls.into(),
                next,
                format!("{} ({})", counted(open.failures, "failure"), open.class),
            ]
        });
        section(&["REGISTRY", "NOT ASKED FOR", "NEXT ATTEMPT IN", "BECAUSE"], registries.collect())
    })?)
}

fn overview(status: &Status) -> Table {
    let mut table = Table::default();
    table.row(["Version:", &status.version]);
    table.row(["Images in:", &status.backend]);
    let since = status.started_at.as_deref().unwrap_or("-");
    let process = format!("{} (pid {}, since {since})", status.process, status.pid);
    table.row(["Process:", &process]);
    if let Some(import) = &status.runtime_import {
        table.row(["Pulls:", &import_summary(import)]);
    }
    if let Some(unpacking) = &status.unpacking {
        table.row(["Unpacking:", unpacking]);
    }
    let slow = match status.pull_rate_min {
        0 => "keep what others wait for".to_owned(),
        rate => format!("below {}/s give others what they wait for", ByteSize(rate)),
    };
    table.row(["Slow pulls:", &slow]);
    let images = format!("{} ({} in use)", status.images, status.in_use);
    table.row(["Images:", if status.images_unknown { "unknown" } else { &images }]);
    let used = status.used_percent.map_or_else(|| "unknown".into(), |percent| format!("{percent}% used"));
    let disk = format!("{used}, collecting at {}% down to {}%", status.gc_high_percent, status.gc_low_percent);
    table.row(["Disk:", &disk]);
    if let Some(last) = &status.last_collection {
        table.row(["Last collection:", &last_collection(last)]);
    }
    if status.gc_mode == "shadow" {
        table.row(["Shadow mode:", "what is chosen is reported, nothing is removed"]);
    }
    if status.decisions_lost > 0 {
        let lost = format!("{} did not reach the log on disk", counted(status.decisions_lost, "decision"));
        table.row(["Problem:", &lost]);
    }
    for problem in &status.problems {
        table.row(["Problem:", problem]);
    }
    table
}

fn last_collection(last: &LastCollection) -> String {
    let at = last.at.as_deref().unwrap_or("-");
    let (images, claimed) = (counted(last.images, "image"), ByteSize(last.claimed));
    let did = match last.outcome.as_str() {
        "shadow" => format!("would have removed {images} ({claimed})"),
        "failed" => format!("failed: {}", last.failure.as_deref().unwrap_or("-")),
        _ if last.images == 0 => "removed nothing".to_owned(),
        _ => {
            let gained = last.measured.map_or_else(String::new, |it| format!(", the disk gained {}", ByteSize(it)));
            format!("removed {images} ({claimed} as listed{gained})")
        }
    };
    let short = if last.outcome == "short" { ", which was not enough" } else { "" };
    format!("{at} by {}: {did}{short}", last.by)
}

fn import_summary(status: &ImportStatus) -> String {
    let runtime = status.runtime.as_deref().unwrap_or("the runtime");
    let reason = status.reason.as_deref().unwrap_or("-");
    match status.decision.as_str() {
        "import" => format!("imported into {runtime}"),
        "refuse" => format!("refused, since import is required: {reason}"),
        _ => format!("forwarded to {runtime}: {reason}"),
    }
}

fn import_details(status: &ImportStatus, out: &mut dyn Write) -> io::Result<()> {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
    let folders = match &status.registry_folders {
        Some(folders) if folders.is_empty() => "none".to_owned(),
        Some(folders) => folders.join(", "),
        None => "not reported by the runtime; imagelet uses its own `registry.configPath`".to_owned(),
    };
    writeln!(out)?;
    let mut table = Table::default();
    table.row(["runtimeImport:", &status.mode]);
    // With `never` the runtime is not asked.
    if status.mode != "never" {
        table.row(["Runtime:", &known(&status.runtime)]);
        table.row(["Snapshotter:", &known(&status.snapshotter)]);
        table.row(["Root folder:", &known(&status.root)]);
        table.row(["Staging:", &known(&status.staging)]);
        table.row(["Registry settings:", &folders]);
    }
    if let Some(code) = &status.code {
        table.row(["Reason:", code]);
    }
    table.write(out)?;
    if status.recent.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let rows = status.recent.iter().map(|pull| {
        let took = duration_text(Duration::from_millis(pull.took_ms));
        let when = pull.at.clone().unwrap_or_else(|| "-".into());
        let ended = pull.failure.as_ref().map_or_else(|| "pulled".to_owned(), |failure| format!("failed: {failure}"));
        [pull.image.clone(), when, took, pull.reason.clone(), ended]
    });
    Table::new(["LAST PULLS", "WHEN", "TOOK", "WAY", "ENDED"]).rows(rows).write(out)
}
