//! `gc`: prints the plan or the result, one row with a reason for each image, and the totals.

use std::process::ExitCode;

use imagelet_core::image::{ByteSize, Percent, counted};

use super::{
    images::{ARTIFACT, artifact},
    images_write::note,
};
use crate::{
    EXIT_USAGE,
    cli::GcArgs,
    output::{Format, Table, exit_code, id, names, print, print_failure, report, size},
};
use imagelet_node::{
    api::{CollectRequest, Collected, silences},
    failure::Failure,
    node::Node,
};

pub(super) async fn collect(node: &Node, arguments: &GcArgs, format: Format) -> Result<ExitCode, Failure> {
    let request = CollectRequest {
        dry_run: arguments.dry_run,
        high: arguments.high.map(Percent::get),
        low: arguments.low.map(Percent::get),
        free: arguments.free.map(|size| size.0),
        all_unused: arguments.all_unused,
        now: arguments.now,
        enforce: arguments.enforce,
    };
    let is_by_threshold = request.free.is_none() && !request.all_unused;
    let done = match node.ask(request, silences(note)).await {
        // `--high` or `--low` conflicts with a configured threshold, which the command line's parser does not know.
        Err(failure) if failure.reason == "InvalidArgument" => {
            report(&failure, format, false);
            return Ok(ExitCode::from(EXIT_USAGE));
        }
        done => done?,
    };
    print(format, &done, |out| {
        plan(&done, format).write(out)?;
        writeln!(out, "{}", summary(&done, is_by_threshold))
    })?;
    if let Some(shortfall) = &done.shortfall {
        note(&format!("warning: {shortfall}"));
    }
    done.failures.iter().for_each(print_failure);
    let failed = !done.dry_run && (!done.failures.is_empty() || done.out_of_reach);
    Ok(exit_code(failed))
}

fn plan(done: &Collected, format: Format) -> Table {
    let wide = format == Format::Wide;
    let rows = done.images.iter().map(|row| {
        [
            names(&row.names, &row.digests),
            id(&row.id, wide).to_owned(),
            artifact(row.artifact.as_ref()),
            ByteSize(row.size).to_string(),
            size(row.frees),
            row.verdict.clone(),
            row.reason.clone(),
            super::why::coded(&row.code, &row.inputs),
        ]
    });
    let has_artifacts = done.images.iter().any(|row| row.artifact.is_some());
    let table = Table::new(["NAME", "ID", ARTIFACT, "SIZE", "FREES", "VERDICT", "REASON", "CODE"]).rows(rows);
    table.wide(wide).only_if(wide, &["CODE"]).only_if(has_artifacts, &[ARTIFACT])
}

fn summary(done: &Collected, is_by_threshold: bool) -> String {
    let gained = |bytes| format!(", the disk gained {}", ByteSize(bytes));
    let (verdict, would) = if done.dry_run { ("remove", "would remove") } else { ("removed", "removed") };
    let rows = done.images.iter().filter(|row| row.verdict == verdict);
    let (count, all) = (rows.clone().count(), counted(done.images.len(), "image"));
    let size = if done.dry_run { rows.map(|row| ByteSize(row.size)).sum() } else { ByteSize(done.claimed) };
    let frees = format!("{}{}", if done.certainty == "exact" { "" } else { "about " }, ByteSize(done.frees));
    let wanted = done.wanted.map_or_else(String::new, |bytes| format!(", {} wanted", ByteSize(bytes)));
    let gained = done.measured.filter(|_| !done.dry_run).map(gained).unwrap_or_default();
    let did = format!("{would} {count} of {all} ({size} as listed, frees {frees}{gained}{wanted})");
    let before = done.used_percent_before;
    let full = match done.used_percent_after {
        Some(after) => format!("the disk is {after}% full, before it was {before}%"),
        None => format!("the disk is {before}% full"),
    };
    if !is_by_threshold {
        return format!("{did}\n{full}");
    }
    let need = if done.wanted.is_none() { ": no room is wanted" } else { "" };
    let (high, low) = (done.high_percent, done.low_percent);
    format!("{did}\n{full}, collecting begins at {high}% and ends at {low}%{need}")
}

#[cfg(test)]
mod tests {
    use imagelet_node::api::CollectedRow;

    use super::*;

    #[test]
    fn the_summary_says_how_full_the_disk_is_and_why_nothing_is_removed() {
        let idle = Collected {
            dry_run: true,
            used_percent_before: 26,
            high_percent: 85,
            low_percent: 80,
            certainty: "exact".into(),
            ..Collected::default()
        };
        assert_eq!(
            summary(&idle, true),
            "would remove 0 of 0 images (0B as listed, frees 0B)\n\
             the disk is 26% full, collecting begins at 85% and ends at 80%: no room is wanted"
        );
        let row = CollectedRow { verdict: "removed".into(), size: 64_000_000, ..CollectedRow::default() };
        let done = Collected {
            dry_run: false,
            used_percent_after: Some(20),
            claimed: 64_000_000,
            frees: 22_000_000,
            measured: Some(22_000_000),
            wanted: Some(20_000_000),
            images: vec![row, CollectedRow::default()],
            ..idle
        };
        assert_eq!(
            summary(&done, false),
            "removed 1 of 2 images (64MB as listed, frees 22MB, the disk gained 22MB, 20MB wanted)\n\
             the disk is 20% full, before it was 26%"
        );
    }
}
