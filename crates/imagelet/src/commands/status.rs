//! `status`: prints an overview of the daemon or store, its pulls, and their route into a runtime.

use std::{process::ExitCode, time::Duration};

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
        overview(&status, is_verbose).write(out)?;
        let import = status.runtime_import.as_ref().filter(|_| is_verbose);
        if let Some(import) = import {
            writeln!(out)?;
            import_details(import).write(out)?;
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let duration = |milliseconds| duration_text(Duration::from_secs(milliseconds / 1000));
        let recent = import.into_iter().flat_map(|import| &import.recent).map(|pull| {
            let ended = pull.failure.as_ref().map_or_else(|| "pulled".into(), |failure| format!("failed: {failure}"));
            let took = duration_text(Duration::from_millis(pull.took_ms));
            [pull.image.clone(), or_dash(pull.at.clone()), took, pull.reason.clone(), ended].to_vec()
        });
        let pulls = status.pulls.iter().map(|pull| {
            let place = or_dash(pull.position.map(|place| place.to_string()));
            let (priority, requests) = (pull.priority.to_string(), pull.askers.to_string());
            let (image, state, progress) = (pull.image.clone(), pull.state.clone(), printable(&pull.progress));
            [image, state, place, duration(pull.for_ms), priority, requests, progress].to_vec()
        });
        let held_back = status.held_back.iter().map(|held| {
            let (pods, again) = (held.pods.max(1).to_string(), duration(held.remaining_ms));
            [held.image.clone(), pods, again, held.failure.clone()].to_vec()
        });
        let registries = status.registries.iter().map(|open| {
            let pulls = match open.pulls.as_str() {
                "all-pulls" => "all pulls",
                "repository" => "pulls of some repositories",
                "credentials" => "pulls with some credentials",
                _ => "pulls of some images",
            };
            let next = if open.remaining_seconds == 0 { "now".into() } else { duration(open.remaining_seconds * 1000) };
            let because = format!("{} ({})", counted(open.failures, "failure"), open.class);
            [open.registry.clone(), pulls.into(), next, because].to_vec()
        });
        let sections: [(&[&str], Vec<Vec<String>>); 4] = [
            (&["LAST PULLS", "WHEN", "TOOK", "WAY", "ENDED"], recent.collect()),
            (&["PULL", "STATE", "PLACE", "FOR", "PRIORITY", "REQUESTS", "PROGRESS"], pulls.collect()),
            (&["HELD BACK", "PODS", "AGAIN IN", "BECAUSE"], held_back.collect()),
            (&["REGISTRY", "NOT ASKED FOR", "NEXT ATTEMPT IN", "BECAUSE"], registries.collect()),
        ];
        sections.into_iter().filter(|(_, rows)| !rows.is_empty()).try_for_each(|(header, rows)| {
            writeln!(out)?;
            Table::new(header).rows(rows).write(out)
        })
    })?)
}

fn overview(status: &Status, is_verbose: bool) -> Table {
    let since = status.started_at.as_deref().unwrap_or("-");
    let slow = match status.pull_rate_min {
        0 => "keep what others wait for".to_owned(),
        rate => format!("below {}/s give others what they wait for", ByteSize(rate)),
    };
    let images = format!("{} ({} in use)", status.images, status.in_use);
    let used = status.used_percent.map_or_else(|| "unknown".into(), |percent| format!("{percent}% used"));
    let is_shadow = status.gc_mode == "shadow";
    let lost = || format!("{} did not reach the log on disk", counted(status.decisions_lost, "decision"));
    let facts = [
        ("Version:", Some(status.version.clone())),
        ("Images in:", Some(status.backend.clone())),
        ("Process:", Some(format!("{} (pid {}, since {since})", status.process, status.pid))),
        ("Pulls:", status.runtime_import.as_ref().map(import_summary)),
        ("Unpacking:", status.unpacking.clone()),
        ("Sizes:", is_verbose.then(|| status.sizes.clone())),
        ("Slow pulls:", Some(slow)),
        ("Images:", Some(if status.images_unknown { "unknown".to_owned() } else { images })),
        (
            "Disk:",
            Some(format!("{used}, collecting at {}% down to {}%", status.gc_high_percent, status.gc_low_percent)),
        ),
        ("Last collection:", status.last_collection.as_ref().map(last_collection)),
        ("Shadow mode:", is_shadow.then(|| "what is chosen is reported, nothing is removed".to_owned())),
        ("Problem:", (status.decisions_lost > 0).then(lost)),
    ];
    Table::facts(facts.into_iter().chain(status.problems.iter().map(|problem| ("Problem:", Some(problem.clone())))))
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

fn import_details(status: &ImportStatus) -> Table {
    let folders = match &status.registry_folders {
        Some(folders) if folders.is_empty() => "none".to_owned(),
        Some(folders) => folders.join(", "),
        None => "not reported by the runtime; imagelet uses its own `registry.configPath`".to_owned(),
    };
    // In the mode `never`, the daemon does not query the runtime, so the table has no rows about the runtime.
    let asked = |text: String| Some(text).filter(|_| status.mode != "never");
    let known = |text: &Option<String>| asked(text.clone().unwrap_or_else(|| "unknown".into()));
    Table::facts([
        ("runtimeImport:", Some(status.mode.clone())),
        ("Runtime:", known(&status.runtime)),
        ("Snapshotter:", known(&status.snapshotter)),
        ("Root folder:", known(&status.root)),
        ("Staging:", known(&status.staging)),
        ("Registry settings:", asked(folders)),
        ("Reason:", status.code.clone()),
    ])
}
