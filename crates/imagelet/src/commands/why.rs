//! `why`: prints an image's history, its protection, and the next collection's decision on it.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use imagelet_core::{
    audit_log::PullHost,
    image::{ByteSize, counted},
    printable::printable,
    text::duration_text,
};
use imagelet_node::{
    api::{ArtifactRow, ImageRow, PullRow, no_steps},
    durations::milliseconds,
    failure::Failure,
    node::{Node, Why, WhyHappening, WhyImage, WhyNext, WhyRequest},
};
use jiff::Timestamp;
use serde_json::Value;

use super::images::sizes;
use crate::{
    cli::is_since,
    output::{Format, Table, id, names, print},
};

pub(super) async fn why(
    node: &Node,
    image: String,
    since: Option<Timestamp>,
    format: Format,
) -> Result<ExitCode, Failure> {
    let mut why = node.ask(WhyRequest { image }, no_steps()).await?;
    let is_shown = |happening: &WhyHappening| is_since(since, happening.at.as_deref());
    if format.is_document() {
        why.images.iter_mut().for_each(|image| image.history.retain(is_shown));
    }
    Ok(print(format, &why, |out| {
        for (number, image) in why.images.iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            let shown: Vec<_> = image.history.iter().filter(|happening| is_shown(happening)).collect();
            one(image, &shown, why.presence_unknown, format, out)?;
        }
        notes(&why, out)
    })?)
}

fn one(
    image: &WhyImage,
    shown: &[&WhyHappening],
    is_unknown: bool,
    format: Format,
    out: &mut dyn Write,
) -> io::Result<()> {
    let wide = format == Format::Wide;
    let named = if wide && !image.names.is_empty() {
        image.names.join(", ")
    } else {
        names(&image.names, image.now.as_ref().map_or(&[], |now| &now.digests))
    };
    let now = if is_unknown { "unknown, the runtime does not answer".to_owned() } else { standing(image) };
    let uses = || {
        let last = image.last_user.as_deref().map_or_else(String::new, |user| format!(", last by {user}"));
        format!("{}{last}", image.uses)
    };
    let mut facts = vec![
        ("Image:", Some(named)),
        ("Id:", (!image.id.is_empty()).then(|| id(&image.id, wide).to_owned())),
        ("Now:", Some(now)),
    ];
    facts.extend(image.pulls.iter().map(|pull| ("Pull:", Some(running_pull(pull)))));
    facts.push(("Artifact:", image.now.as_ref().and_then(|now| now.artifact.as_ref()).map(ArtifactRow::summary)));
    facts.push(("Origin:", image.now.as_ref().map(|now| origin(image, now))));
    facts.push(("Uses:", (image.now.is_some() && image.uses > 0).then(uses)));
    facts.extend(image.held_back.iter().map(|held| {
        let next = milliseconds(held.remaining_ms);
        let pods = counted(held.pods.max(1), "pod");
        ("Back-off:", Some(format!("the next attempt of {pods} in {next}: {}", held.failure)))
    }));
    facts.push(("Next collection:", image.next.as_ref().map(|next| foretold(next, wide))));
    facts.push(("Thresholds:", image.next.as_ref().map(thresholds)));
    Table::facts(facts).wide(wide).write(out)?;
    writeln!(out)?;
    if image.history.is_empty() && !image.pulls.is_empty() {
        writeln!(out, "Nothing is recorded of it yet.")
    } else if image.history.is_empty() {
        writeln!(out, "There is no record of it: it came before the record began.")
    } else if shown.is_empty() {
        writeln!(out, "Nothing happened to it since then.")
    } else {
        history(shown, wide).write(out)
    }?;
    match hint(image).filter(|_| !is_unknown) {
        Some(hint) => writeln!(out, "hint: {hint}"),
        None => Ok(()),
    }
}

fn standing(image: &WhyImage) -> String {
    match (&image.now, last_move(image)) {
        (Some(now), _) => format!("present, {}, {}", sizes(now), held(now)),
        (None, _) if !image.pulls.is_empty() => "not present yet: it is being pulled".to_owned(),
        (None, None) => "not present".to_owned(),
        (None, Some(last)) if last.what == "removed" => {
            format!("not present: removed {}", last.at.as_deref().map_or_else(String::new, clock))
        }
        (None, Some(_)) => "not present: something else removed it".to_owned(),
    }
}

/// The last event that made the image present or absent.
fn last_move(image: &WhyImage) -> Option<&WhyHappening> {
    image.history.iter().rfind(|it| matches!(it.what.as_str(), "pulled" | "imported" | "adopted" | "removed"))
}

fn running_pull(pull: &PullRow) -> String {
    let so_long = milliseconds(pull.for_ms);
    let place = pull.position.map_or_else(String::new, |place| format!(", place {place}"));
    let progress = printable(&pull.progress);
    match pull.state.as_str() {
        "running" => format!("{progress}; running for {so_long}"),
        _ => format!("{progress} since {so_long}{place}"),
    }
}

fn origin(image: &WhyImage, now: &ImageRow) -> String {
    let since = now.first_seen.as_deref().map_or_else(String::new, |seen| format!(", here since {}", clock(seen)));
    let of = match now.origin.as_deref() {
        Some("pulled") => {
            let last = image.pulled_at.as_deref().map_or_else(String::new, |at| format!(", last {}", clock(at)));
            format!("pulled by imagelet{last}")
        }
        Some("adopted") => {
            let by = image.history.iter().rev().find(|it| it.what == "adopted");
            format!("adopted, pulled by {}", by.map_or("another manager of the node", |it| &it.by))
        }
        Some("found") => match last_move(image) {
            Some(last) if last.what == "imported" => format!("imported by {}", last.by),
            _ => "found, neither pulled nor adopted by imagelet".to_owned(),
        },
        _ => "unknown".to_owned(),
    };
    of + &since
}

fn held(now: &ImageRow) -> String {
    let holds = [("in use", &now.in_use_by), ("pinned", &now.pinned_by), ("awaited", &now.awaited_by)];
    let holds = holds.into_iter().filter(|(_, by)| !by.is_empty());
    let held: Vec<_> = holds.map(|(hold, by)| format!("{hold} by {}", by.join(", "))).collect();
    match &now.last_used {
        _ if !held.is_empty() => held.join(", "),
        Some(used) => format!("not in use, last used {}", clock(used)),
        None => "never used".to_owned(),
    }
}

fn foretold(next: &WhyNext, wide: bool) -> String {
    let place = next.place.map_or_else(String::new, |place| format!(", number {place} in line"));
    let verb = match (next.verdict.as_str(), next.mode.as_str()) {
        ("remove", "shadow") => "would be removed",
        ("remove", _) => "is removed",
        _ => "stays",
    };
    let code = if wide { format!("   [{}]", coded(&next.code, &next.inputs)) } else { String::new() };
    format!("{verb}{place}: {}{code}", next.reason)
}

fn thresholds(next: &WhyNext) -> String {
    let used = next.used_percent.map_or_else(String::new, |used| format!("the disk is {used}% full, "));
    let shadow = if next.mode == "shadow" { "; shadow mode, nothing is removed" } else { "" };
    format!("{used}collecting begins at {}% and ends at {}%{shadow}", next.high_percent, next.low_percent)
}

fn history(history: &[&WhyHappening], wide: bool) -> Table {
    let rows = history.iter().map(|happening| {
        let when = happening.at.as_deref().map_or_else(String::new, clock);
        [when, happening.what.clone(), explained(happening), happening.code.clone()]
    });
    Table::new(["WHEN", "WHAT", "WHY", "CODE"]).rows(rows).wide(wide).only_if(wide, &["CODE"])
}

fn explained(happening: &WhyHappening) -> String {
    let WhyHappening { what, by, reason, names, .. } = happening;
    let bytes = happening.bytes.map(|bytes| ByteSize(bytes).to_string());
    let took = happening.took_ms.map(|took| duration_text(Duration::from_millis(took)));
    let amount = match (bytes.clone(), took) {
        (Some(bytes), Some(took)) => Some(format!("{bytes} in {took}")),
        (bytes, took) => bytes.or(took),
    };
    let named = names.first().map(|name| format!("as {name}"));
    let (reason, asked) = (Some(reason.clone()), Some(format!("asked for by {by}")));
    let pulled_for = Some(format!("for {by}"));
    let parts = match what.as_str() {
        "pulled" => [pulled_for, amount, named, reason, senders(&happening.hosts)],
        "imported" => [Some(format!("by {by}")), reason, named, None, None],
        "pull failed" | "given up" => [pulled_for, named, reason, senders(&happening.hosts), None],
        "adopted" => [Some(format!("{by} recorded it as pulled")), None, None, None, None],
        "untagged" | "pinned" | "unpinned" => [Some(names.join(", ")), asked, None, None, None],
        "removed" if happening.code == "removed_on_request" => {
            [asked, bytes.map(|bytes| format!("{bytes} freed")), None, None, None]
        }
        _ => [reason, bytes.map(|bytes| format!("{bytes} as listed")), None, None, None],
    };
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn senders(hosts: &[PullHost]) -> Option<String> {
    let sender = |host: &PullHost| {
        let mut parts: Vec<String> = Vec::new();
        if host.manifest {
            parts.push("manifest".to_owned());
        }
        if host.blobs > 0 {
            parts.push(format!("{} of {}", ByteSize(host.bytes), counted(host.blobs, "blob")));
        }
        let failed = |(class, times): (&String, &u64)| match times {
            1 => format!("failed: {class}"),
            times => format!("failed {times} times: {class}"),
        };
        parts.extend(host.failures.iter().map(failed));
        format!("{} ({})", host.host, parts.join(", "))
    };
    (!hosts.is_empty()).then(|| format!("hosts: {}", hosts.iter().map(sender).collect::<Vec<_>>().join(", ")))
}

/// Formats the code of a decision with its inputs, such as `room frees=8429568 idleSeconds=69`.
pub(super) fn coded(code: &str, inputs: &Value) -> String {
    fn spell(name: &str, value: &Value, out: &mut String) {
        match value {
            Value::Null => {}
            Value::Object(fields) => fields.iter().for_each(|(field, value)| {
                let dot = if name.is_empty() { "" } else { "." };
                spell(&format!("{name}{dot}{field}"), value, out);
            }),
            other => out.extend([" ", name, "=", &other.to_string()]),
        }
    }
    let mut text = code.to_owned();
    spell("", inputs, &mut text);
    text
}

fn clock(text: &str) -> String {
    text.replacen('T', " ", 1).trim_end_matches('Z').to_owned()
}

fn hint(image: &WhyImage) -> Option<String> {
    let name = printable(image.names.first().unwrap_or(&image.id));
    match (&image.now, &image.next, last_move(image)) {
        (Some(_), Some(next), _) if next.verdict == "remove" => {
            Some(format!("`imagelet pin {name}` keeps it out of every collection"))
        }
        (Some(_), Some(next), _) if next.code == "not_owned" => {
            Some(format!("`imagelet pull --policy Always {name}` makes it imagelet's own"))
        }
        (Some(_), ..) => None,
        (None, ..) if !image.pulls.is_empty() => None,
        (None, _, Some(last)) if last.what != "removed" => Some(
            "imagelet did not remove it: look at what else manages images on this node, such as the kubelet".into(),
        ),
        (None, _, Some(removal)) if removal.code != "removed_on_request" => {
            Some(format!("`imagelet pull {name}` brings it back, `imagelet pin {name}` keeps it then"))
        }
        _ => None,
    }
}

fn notes(why: &Why, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    if let Some(since) = &why.on_record_since {
        writeln!(out, "Recorded since {} (UTC).", clock(since))?;
    }
    if why.lost > 0 {
        writeln!(out, "warning: missing here, because it could not be written: {}", counted(why.lost, "act"))?;
    }
    if why.damaged > 0 {
        writeln!(out, "warning: skipped, because it is damaged: {} of the record", counted(why.damaged, "line"))?;
    }
    why.problems.iter().try_for_each(|problem| writeln!(out, "warning: {}", printable(problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_being_pulled_is_neither_unknown_nor_just_absent() {
        let pull = |state: &str, position, progress: &str| PullRow {
            state: state.into(),
            position,
            progress: progress.into(),
            for_ms: 12_000,
            ..PullRow::default()
        };
        for (pull, expected) in [
            (pull("running", None, "1.2 of 2.8 GB, 35 MB/s"), "1.2 of 2.8 GB, 35 MB/s; running for 12s"),
            (
                pull("waiting-for-slot", Some(2), "waits for a place behind 3 pulls"),
                "waits for a place behind 3 pulls since 12s, place 2",
            ),
        ] {
            assert_eq!(running_pull(&pull), expected);
            let image = WhyImage { names: vec!["r/a:1".into()], pulls: vec![pull], ..WhyImage::default() };
            let mut out = Vec::new();
            one(&image, &[], false, Format::Table, &mut out).expect("memory takes it");
            let text = String::from_utf8(out).expect("text");
            assert!(text.contains("not present yet: it is being pulled") && text.contains(expected), "{text}");
            assert!(text.contains("Nothing is recorded of it yet.") && !text.contains("before the record"), "{text}");
        }
    }

    #[test]
    fn the_inputs_of_a_code_follow_it_by_name() {
        let inputs = serde_json::json!({ "frees": 8_429_568, "idleSeconds": 69, "of": {"one": null, "two": "x"} });
        assert_eq!(coded("room", &inputs), "room frees=8429568 idleSeconds=69 of.two=\"x\"");
    }
}
