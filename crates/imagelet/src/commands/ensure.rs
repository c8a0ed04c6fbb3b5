//! `ensure`: ensures all images of the pods in manifests. Prints progress on stderr, and a row per image on stdout.

use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex},
};

use futures_util::{StreamExt as _, stream};
use imagelet_core::{image::ByteSize, lock::locked, printable::printable};
use serde_json::json;

use super::pull::{read_manifest, seconds, unread};
use crate::{
    cli::EnsureArgs,
    manifests::{FILE_LENGTH_MAX, ManifestFile, Manifests},
    output::{Format, Table, exit_code, id, or_dash, print, print_failure, size},
    progress::{Screen, Shown},
};
use imagelet_node::{
    api::{PodEnsured, PodImageRow, PodRequest, Step, Steps},
    failure::Failure,
    node::Node,
};

const PODS_AT_ONCE: usize = 4;

pub(super) fn read(arguments: &EnsureArgs) -> Result<Manifests, Failure> {
    let read = |paths: &[PathBuf]| -> Result<Vec<ManifestFile>, Failure> {
        let mut files = Vec::new();
        for path in paths {
            for path in files_of(path).map_err(|error| unread(path, &error))? {
                let name = path.display().to_string();
                files.push(ManifestFile { name, text: read_manifest(&path, FILE_LENGTH_MAX)? });
            }
        }
        Ok(files)
    };
    Manifests::read(&read(&arguments.files)?, &read(&arguments.secrets)?)
}

/// The files of a path: the file itself, or the manifests in a folder. As in kubectl, subfolders are skipped.
fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
    let mut files = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    let is_manifest =
        |path: &Path| path.extension().is_some_and(|end| ["json", "yaml", "yml"].map(OsStr::new).contains(&end));
    files.retain(|path| is_manifest(path) && path.is_file());
    files.sort();
    Ok(files)
}

pub(super) async fn run(node: &Node, manifests: Manifests, quiet: bool, format: Format) -> Result<ExitCode, Failure> {
    let screen = Screen::of_stderr(quiet);
    for note in &manifests.notes {
        screen.say(&format!("warning: {}", printable(note)));
    }
    let is_many = manifests.pods.len() > 1;
    let answers: Vec<Result<PodEnsured, (String, Failure)>> = stream::iter(manifests.pods)
        .map(|pod| ensure(node, pod, &screen, is_many))
        .buffered(PODS_AT_ONCE)
        .collect()
        .await;
    let (mut pods, mut failures) = (Vec::new(), Vec::new());
    for answer in manifests.failures.into_iter().map(Err).chain(answers) {
        match answer {
            Ok(pod) => {
                distinct_failures(&pod).into_iter().for_each(print_failure);
                pods.push(pod);
            }
            Err((pod, failure)) => {
                print_failure(&failure);
                failures.push(json!({ "pod": pod, "failure": failure }));
            }
        }
    }
    let failed = !failures.is_empty() || pods.iter().flat_map(|pod| &pod.images).any(|row| row.failure.is_some());
    let document = json!({ "pods": pods, "failures": failures });
    print(format, &document, |out| {
        if !quiet {
            return table(&pods, format).write(out);
        }
        let mut rows = pods.iter().flat_map(|pod| &pod.images).filter(|row| !row.id.is_empty());
        rows.try_for_each(|row| writeln!(out, "{}", row.id))
    })?;
    Ok(exit_code(failed))
}

async fn ensure(
    node: &Node,
    request: PodRequest,
    screen: &Screen,
    is_many: bool,
) -> Result<PodEnsured, (String, Failure)> {
    let name = pod_text(&request.pod.namespace, &request.pod.name);
    let prefix = if is_many { printable(&format!("{name} ")) } else { String::new() };
    let images: Vec<String> = request.images.iter().map(|image| image.image.clone()).collect();
    let widest = images.iter().map(|image| image.chars().count()).max();
    let shown = Arc::<Mutex<HashMap<usize, Shown>>>::default();
    let (lines, screen) = (Arc::clone(&shown), screen.clone());
    let steps: Steps = Arc::new(move |step| match step {
        Step::Asked { image } => {
            let line = images.get(image).map(|name| screen.show(name, widest));
            locked(&lines).extend(line.map(|line| (image, line)));
        }
        Step::Image { image, of } => {
            let steps = locked(&lines).get(&image).map(|line| Arc::clone(&line.steps));
            if let Some(steps) = steps {
                steps(*of);
            }
        }
        Step::Settled { image, row } => {
            drop(locked(&lines).remove(&image));
            screen.say(&format!("{prefix}{}", outcome_line(&row)));
        }
        Step::Notice { note } => screen.say(&format!("{prefix}{}", printable(&note))),
        _ => {}
    });
    let answer = node.ask(request, steps).await;
    // A bar remains if the request is cancelled, or if the last step is lost on a slow socket. Remove such bars.
    locked(&shown).clear();
    answer.map_err(|failure| (name, failure))
}

fn pod_text(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

fn outcome_line(row: &PodImageRow) -> String {
    let (field, image) = (printable(&row.field), printable(&row.image));
    match row.origin.as_str() {
        "present" => format!("{field}: {image} is present"),
        "stale" => format!("{field}: {}", printable(&row.message)),
        "pulled" => {
            let size = row.size.map_or_else(String::new, |size| format!(" ({})", ByteSize(size)));
            format!("{field}: {image} pulled{size} in {}", seconds(row.took_ms))
        }
        _ => format!("{field}: {image} failed: {}", printable(&row.reason)),
    }
}

fn distinct_failures(pod: &PodEnsured) -> Vec<&Failure> {
    let rows = pod.images.iter().filter(|row| row.message.is_empty() || !row.reason.is_empty());
    rows.filter_map(|row| row.failure.as_ref()).fold(Vec::new(), |mut distinct, failure| {
        if !distinct.contains(&failure) {
            distinct.push(failure);
        }
        distinct
    })
}

fn table(pods: &[PodEnsured], format: Format) -> Table {
    let (is_wide, is_many) = (format == Format::Wide, pods.len() > 1);
    let rows = pods.iter().flat_map(|pod| pod.images.iter().map(move |row| (&pod.pod, row))).map(|(pod, row)| {
        [
            pod_text(&pod.namespace, &pod.name),
            row.field.strip_prefix("spec.").unwrap_or(&row.field).to_owned(),
            row.image.clone(),
            or_dash(id(&row.id, is_wide)).to_owned(),
            if row.origin.is_empty() { row.reason.clone() } else { row.origin.clone() },
            row.policy.clone(),
            size(row.size),
            if row.origin == "pulled" { seconds(row.took_ms) } else { "-".into() },
            or_dash(&row.message).to_owned(),
        ]
    });
    Table::new(["POD", "FIELD", "IMAGE", "ID", "STATUS", "POLICY", "SIZE", "TOOK", "MESSAGE"])
        .rows(rows)
        .only_if(is_many, &["POD"])
        .only_if(is_wide, &["POLICY", "SIZE", "TOOK", "MESSAGE"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(field: &str, image: &str, origin: &str) -> PodImageRow {
        let id = if origin.is_empty() { String::new() } else { format!("sha256:{}", "ab".repeat(32)) };
        PodImageRow {
            field: field.into(),
            image: image.into(),
            policy: "IfNotPresent".into(),
            id,
            origin: origin.into(),
            ..PodImageRow::default()
        }
    }

    fn pod(images: Vec<PodImageRow>) -> PodEnsured {
        let pod = imagelet_node::api::PodName { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        PodEnsured { kind: "Pod".into(), pod, images, ..PodEnsured::default() }
    }

    fn failed(field: &str, image: &str, reason: &str) -> PodImageRow {
        let failure = Failure::new(reason, format!("could not pull `{image}`"));
        PodImageRow { reason: reason.into(), message: "no".into(), failure: Some(failure), ..row(field, image, "") }
    }

    fn text(pods: &[PodEnsured], format: Format) -> String {
        let mut out = Vec::new();
        table(pods, format).write(&mut out).expect("memory takes it");
        String::from_utf8(out).expect("it is text")
    }

    #[test]
    fn the_table_has_a_row_for_each_container() {
        let pulled =
            PodImageRow { size: Some(1_500_000), took_ms: 2345, ..row("spec.initContainers{a}", "x:v1", "pulled") };
        let pods = [pod(vec![pulled, failed("spec.containers{b}", "y", "ErrImagePull")])];
        assert_eq!(
            text(&pods, Format::Table),
            "FIELD               IMAGE   ID              STATUS\n\
             initContainers{a}   x:v1    ababababababa   pulled\n\
             containers{b}       y       -               ErrImagePull\n"
        );
        let wide = text(&pods, Format::Wide);
        assert!(wide.contains("pulled         IfNotPresent   1.5MB   2.3s   -\n"), "{wide}");
        assert!(wide.ends_with("ErrImagePull   IfNotPresent   -       -      no\n"), "{wide}");
        let two = [pods[0].clone(), pods[0].clone()];
        assert!(text(&two, Format::Table).contains("\ndefault/web   containers{b} "));
    }

    #[test]
    fn each_image_has_a_line_and_each_failure_is_printed_once() {
        assert_eq!(outcome_line(&row("spec.containers{b}", "y", "present")), "spec.containers{b}: y is present");
        let pod = pod(vec![
            failed("a", "y", "ErrImagePull"),
            failed("b", "y", "ErrImagePull"),
            failed("c", "z", "ErrImagePull"),
        ]);
        assert_eq!(outcome_line(&pod.images[0]), "a: y failed: ErrImagePull");
        assert_eq!(distinct_failures(&pod).len(), 2);
    }
}
