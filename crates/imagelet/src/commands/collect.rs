//! `gc`: prints the plan or the result, one row with a reason per image, and the totals.

use std::process::ExitCode;

use imagelet_core::image::{ByteSize, Percent, counted};

use super::images_write::note;
use crate::output::{print_failure, write_failure};
use crate::{
    EXIT_USAGE,
    cli::GcArgs,
    output::{Format, Table, id, names, print, size},
};
use imagelet_node::{
    api::{CollectRequest, Collected, CollectedRow, silences},
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
        // A threshold against the configured one, which the command line does not know.
        Err(failure) if failure.reason == "InvalidArgument" => {
            print_failure(&failure);
            write_failure(&failure, format, false);
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
    for failure in &done.failures {
        print_failure(failure);
    }
    // A dry run always exits with 0.
    let failed = !done.dry_run && (!done.failures.is_empty() || done.out_of_reach);
    Ok(ExitCode::from(u8::from(failed)))
}

fn plan(done: &Collected, format: Format) -> Table {
    let wide = format == Format::Wide;
    let rows = done.images.iter().map(|row| {
        [
            names(&row.names, &row.digests),
            id(&row.id, wide).to_owned(),
            ByteSize(row.size).to_string(),
            size(row.frees),
            row.verdict.clone(),
            row.reason.clone(),
            super::why::coded(&row.code, &row.inputs),
        ]
    });
    let table = Table::new(["NAME", "ID", "SIZE", "FREES", "VERDICT", "REASON", "CODE"]).rows(rows);
    table.wide(wide).only_if(wide, &["CODE"])
}

/// The totals, and the usage of the disk, which explains a collection without removals.
fn summary(done: &Collected, is_by_threshold: bool) -> String {
    let of = |verdict: &str| {
        let rows: Vec<&CollectedRow> = done.images.iter().filter(|row| row.verdict == verdict).collect();
        (rows.len(), rows.iter().map(|row| ByteSize(row.size)).sum::<ByteSize>())
    };
    let all = counted(done.images.len(), "image");
    let wanted = done.wanted.map_or_else(String::new, |bytes| format!(", {} wanted", ByteSize(bytes)));
    let frees = frees(done);
    let did = if done.dry_run {
        let (count, size) = of("remove");
        format!("would remove {count} of {all} ({size} as listed, frees {frees}{wanted})")
    } else {
        let count = of("removed").0;
        let measured = done.measured.map_or_else(String::new, |bytes| format!(", the disk gained {}", ByteSize(bytes)));
        let size = ByteSize(done.claimed);
        format!("removed {count} of {all} ({size} as listed, frees {frees}{measured}{wanted})")
    };
    format!("{did}\n{}", disk(done, is_by_threshold))
}

fn disk(done: &Collected, is_by_threshold: bool) -> String {
    let before = done.used_percent_before;
    let full = match done.used_percent_after {
        Some(after) => format!("the disk is {after}% full, before it was {before}%"),
        None => format!("the disk is {before}% full"),
    };
    if !is_by_threshold {
        return full;
    }
    let thresholds = format!("collecting begins at {}% and ends at {}%", done.high_percent, done.low_percent);
    let need = if done.wanted.is_none() { ": no room is wanted" } else { "" };
    format!("{full}, {thresholds}{need}")
}

fn frees(done: &Collected) -> String {
    let bytes = ByteSize(done.frees);
    if done.certainty == "exact" { bytes.to_string() } else { format!("about {bytes}") }
}

#[cfg(test)]
mod tests {
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
