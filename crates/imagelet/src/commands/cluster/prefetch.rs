//! `prefetch`: manages image sets from the command line.

use std::{path::Path, process::ExitCode};

use imagelet_core::printable::printable;
use imagelet_kube::{ApiError, CRDS, NodeCounts, PrefetchApi, SetDocument, SetRow};
use imagelet_node::{config::Environment, failure::Failure};
use serde_json::{Value, json};

use super::access;
use crate::{
    cli::PrefetchCommand,
    commands::pull::read_manifest,
    manifests::{Document, documents},
    output::{Format, Table, exit_code, or_dash, print, print_failure},
};

/// Maximum size of a file of image sets in bytes.
const FILE_LENGTH_MAX: usize = 1 << 20;

pub(crate) async fn run(
    command: PrefetchCommand,
    environment: &Environment,
    format: Format,
) -> Result<ExitCode, Failure> {
    let api = |given| access(given, environment).map(|access| PrefetchApi { client: access.client() });
    let not_found = |what: &str| Err(Failure::new("NotFound", format!("no {}", printable(what))));
    match command {
        PrefetchCommand::Crds => Ok(print(Format::Table, &(), |out| out.write_all(CRDS.as_bytes()))?),
        PrefetchCommand::Apply { files, namespace, access } => {
            // If a file is invalid, the cluster gets no set: all files are checked before the first set is sent.
            let sets = files.iter().map(|file| read(file, &namespace)).collect::<Result<Vec<_>, Failure>>()?.concat();
            apply(&api(&access)?, &sets, format).await
        }
        PrefetchCommand::Status { name, namespace, access } => {
            let rows = api(&access)?.sets(namespace.as_deref(), name.as_deref()).await;
            let rows = rows.map_err(|error| failed(&error))?;
            if let (Some(name), true) = (&name, rows.is_empty()) {
                return not_found(&format!("set `{name}`"));
            }
            Ok(print(format, &json!({"sets": rows}), |out| {
                table(&rows, format).write(out).and_then(|()| failures(&rows, out))
            })?)
        }
        PrefetchCommand::Rm { name, namespace, cluster, access } => {
            let namespace = Some(namespace.as_str()).filter(|_| !cluster);
            let shown = namespace.map(|namespace| format!("ImageSet {namespace}/{name}"));
            let shown = shown.unwrap_or_else(|| format!("ClusterImageSet {name}"));
            if !api(&access)?.remove(namespace, &name).await.map_err(|error| failed(&error))? {
                return not_found(&shown);
            }
            Ok(print(format, &json!({"removed": [shown]}), |out| writeln!(out, "{} removed", printable(&shown)))?)
        }
    }
}

async fn apply(api: &PrefetchApi, sets: &[SetDocument], format: Format) -> Result<ExitCode, Failure> {
    let (mut applied, mut failed_sets) = (Vec::new(), Vec::new());
    for set in sets {
        match api.apply(set).await {
            Ok(()) => applied.push(set.name()),
            Err(error) => {
                let failure = failed(&error);
                print_failure(&Failure::new(&failure.reason, format!("could not apply {}: {failure}", set.name())));
                failed_sets.push(json!({"set": set.name(), "failure": failure}));
            }
        }
    }
    let document = json!({"applied": applied, "failures": failed_sets});
    print(format, &document, |out| applied.iter().try_for_each(|name| writeln!(out, "{name} applied")))?;
    Ok(exit_code(!failed_sets.is_empty()))
}

fn read(file: &Path, namespace: &str) -> Result<Vec<SetDocument>, Failure> {
    let text = read_manifest(file, FILE_LENGTH_MAX)?;
    let shown = printable(&file.display().to_string());
    let read = |Document { line, read, .. }: Document| {
        let invalid = |why| Failure::invalid(format!("`{shown}`: the document in line {line} {why}"));
        read.map_err(invalid)
    };
    let documents = documents(&text).into_iter().map(read).collect::<Result<Vec<Value>, Failure>>()?;
    if documents.is_empty() {
        return Err(Failure::invalid(format!("`{shown}` has no set")));
    }
    let set = |(at, document)| {
        SetDocument::read(document, namespace).map_err(|error| {
            let message = format!("`{shown}`, document {}: {error}", at + 1);
            Failure::invalid(message).or_hint("`imagelet help prefetch` describes the fields")
        })
    };
    documents.into_iter().enumerate().map(set).collect()
}

fn failed(error: &ApiError) -> Failure {
    let reason = match error.code() {
        Some(404) => "NotFound",
        Some(401 | 403) => "Forbidden",
        Some(_) => "Failed",
        None => "Unavailable",
    };
    let failure = Failure::new(reason, error.to_string());
    match reason {
        "NotFound" => failure.or_hint("install the kinds: `imagelet prefetch crds | kubectl apply -f -`"),
        "Forbidden" => failure.or_hint("`imagelet help prefetch` lists the rights"),
        _ => failure,
    }
}

fn table(rows: &[SetRow], format: Format) -> Table {
    let header = ["KIND", "NAMESPACE", "NAME", "WANTED", "READY", "PULLING", "FAILED", "WAITING", "STATE"];
    let rows = rows.iter().map(|SetRow { kind, namespace, name, nodes, complete, message, .. }| {
        let NodeCounts { wanted, ready, pulling, failed, waiting } = nodes;
        let [wanted, ready, pulling, failed, waiting] =
            [wanted, ready, pulling, failed, waiting].map(ToString::to_string);
        let state = if *complete { "complete".to_owned() } else { message.clone() };
        let (kind, namespace) = ((*kind).to_owned(), or_dash(namespace).to_owned());
        [kind, namespace, name.clone(), wanted, ready, pulling, failed, waiting, state]
    });
    Table::new(header).rows(rows).wide(format == Format::Wide)
}

fn failures(rows: &[SetRow], out: &mut dyn std::io::Write) -> std::io::Result<()> {
    for row in rows.iter().filter(|row| !row.failures.is_empty()) {
        let place = if row.namespace.is_empty() { row.name.clone() } else { format!("{}/{}", row.namespace, row.name) };
        writeln!(out, "\nFailures of {} {place}:", row.kind)?;
        row.failures.iter().try_for_each(|failure| writeln!(out, "  {}", printable(failure)))?;
    }
    Ok(())
}
