//! How pulls enter a runtime, as `status` prints it.

use std::{
    io::{self, Write},
    time::Duration,
};

use crate::{api::ImportStatus, output::Table};

pub(super) fn summary(status: &ImportStatus) -> String {
    let runtime = status.runtime.as_deref().unwrap_or("the runtime");
    let reason = status.reason.as_deref().unwrap_or("-");
    match status.decision.as_str() {
        "import" => format!("imported into {runtime}"),
        "refuse" => format!("refused, since import is required: {reason}"),
        _ => format!("forwarded to {runtime}: {reason}"),
    }
}

pub(super) fn verbose(status: &ImportStatus, out: &mut dyn Write) -> io::Result<()> {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
    let folders = match &status.registry_folders {
        Some(folders) if folders.is_empty() => "none".to_owned(),
        Some(folders) => folders.join(", "),
        None => "not reported by the runtime; imagelet uses its own `registry.configPath`".to_owned(),
    };
    writeln!(out)?;
    let mut table = Table::default();
    table.row(["runtimeImport:", &status.mode]);
    table.row(["Runtime:", &known(&status.runtime)]);
    table.row(["Snapshotter:", &known(&status.snapshotter)]);
    table.row(["Root folder:", &known(&status.root)]);
    table.row(["Staging:", &known(&status.staging)]);
    table.row(["Registry settings:", &folders]);
    if let Some(code) = &status.code {
        table.row(["Reason:", code]);
    }
    table.write(out)?;
    if status.recent.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(["LAST PULLS", "WHEN", "TOOK", "ENDED", "WAY"]);
    for pull in &status.recent {
        let took = imagelet_core::text::duration_text(Duration::from_millis(pull.took_ms));
        let when = pull.at.clone().unwrap_or_else(|| "-".into());
        let ended = pull.failure.as_ref().map_or_else(|| "pulled".to_owned(), |failure| format!("failed: {failure}"));
        table.row([pull.image.clone(), when, took, ended, pull.reason.clone()]);
    }
    table.write(out)
}
