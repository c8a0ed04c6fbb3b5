//! `ls`, `inspect` and `df`.

use std::{io::Write, process::ExitCode};

use imagelet_core::{
    image::{ByteSize, ImageId, shown_name},
    printable::printable,
};
use jiff::Timestamp;
use serde::Deserialize;

use super::images_write::note;
use crate::{
    cli::{ImageFilter, LsArgs},
    output::{Format, Table, id, names, or_dash, print, size, write_failure},
};
use imagelet_node::{
    api::{ArtifactRow, ImageRow, InspectRequest, ListRequest, Usage, UsageRequest, no_steps},
    durations::age,
    failure::Failure,
    node::{Node, USES_UNKNOWN},
};

pub(super) async fn list(node: &Node, arguments: &LsArgs, format: Format) -> Result<ExitCode, Failure> {
    let LsArgs { quiet, filters, digests, .. } = arguments;
    let is_plain = *quiet || format == Format::Table;
    let brief = is_plain && !digests && filters.is_empty();
    let mut listed = node.ask(ListRequest { brief }, no_steps()).await?;
    if listed.images.iter().any(|image| image.in_use_by.iter().any(|user| user == USES_UNKNOWN)) {
        note("warning: which images are in use is unknown: the runtime does not answer");
    }
    listed.images.retain(|image| ImageFilter::all_pass(filters, image));
    if *quiet {
        let ids = |out: &mut dyn Write| listed.images.iter().try_for_each(|image| writeln!(out, "{}", image.id));
        return Ok(print(Format::Table, &(), ids)?);
    }
    Ok(print(format, &listed, |out| table(&listed.images, format, *digests).write(out))?)
}

fn table(images: &[ImageRow], format: Format, digests: bool) -> Table {
    const ONLY_WIDE: [&str; 6] = ["UNIQUE", "SHARED", "ORIGIN", "PINNED BY", "IN USE BY", "AWAITED BY"];
    let wide = format == Format::Wide;
    let now = Timestamp::now();
    let joined = |texts: &[String]| or_dash(&texts.join(",")).to_owned();
    let rows = images.iter().map(|image| {
        let shown = image.shown_names();
        let digest = image.digests.first().map_or("-", |name| name.rsplit('@').next().unwrap_or(name));
        [
            if wide && !shown.is_empty() { shown.join(",") } else { names(shown, &[]) },
            digest.to_owned(),
            id(&image.id, wide).to_owned(),
            ByteSize(image.size).to_string(),
            age(image.first_seen.as_deref(), now),
            age(image.last_used.as_deref(), now),
            hold(image),
            artifact(image.artifact.as_ref()),
            size(image.unique),
            size(image.shared),
            image.origin.clone().unwrap_or_else(|| "-".into()),
            joined(&image.pinned_by),
            joined(&image.in_use_by),
            joined(&image.awaited_by),
        ]
    });
    let header = ["NAME", "DIGEST", "ID", "SIZE", "AGE", "LAST USED", "USE", ARTIFACT].into_iter().chain(ONLY_WIDE);
    let has_artifacts = images.iter().any(|image| image.artifact.is_some());
    let table = Table::new(header).rows(rows).wide(wide).only_if(digests, &["DIGEST"]).only_if(wide, &ONLY_WIDE);
    table.only_if(has_artifacts, &[ARTIFACT])
}

pub(super) const ARTIFACT: &str = "ARTIFACT";

pub(super) fn artifact(artifact: Option<&ArtifactRow>) -> String {
    artifact.map_or_else(|| "-".into(), |artifact| artifact.r#type.clone())
}

fn hold(image: &ImageRow) -> String {
    if image.in_use_by.iter().any(|user| user == USES_UNKNOWN) {
        return "unknown".into();
    }
    let holds = [("in use", &image.in_use_by), ("pinned", &image.pinned_by), ("awaited", &image.awaited_by)];
    let holds = holds.into_iter().filter(|(_, by)| !by.is_empty()).map(|(hold, _)| hold);
    or_dash(&holds.collect::<Vec<_>>().join(", ")).to_owned()
}

pub(super) async fn inspect(node: &Node, quiet: bool, name: String, format: Format) -> Result<ExitCode, Failure> {
    let found = node.ask(InspectRequest { image: name.clone() }, no_steps()).await?;
    let Some(image) = &found.image else {
        let failure = Failure::new("NotFound", format!("no image `{}`", shown_name(&name)));
        if quiet {
            write_failure(&failure, format, false);
            return Ok(ExitCode::FAILURE);
        }
        return Err(failure.or_hint("`imagelet ls` lists what is present"));
    };
    if quiet {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(print(format, &found, |out| {
        let now = Timestamp::now();
        let list = |list: &[String]| Some(if list.is_empty() { "-".into() } else { list.join("\n") });
        let ago = |time: Option<&str>| Some(time.map_or_else(|| "-".into(), |_| format!("{} ago", age(time, now))));
        let details = found.details.as_ref().and_then(|it| serde_json::from_str::<ShownDetails>(it.get()).ok());
        let text = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".into());
        let facts = [
            ("Id:", Some(image.id.clone())),
            ("Names:", list(&image.names)),
            ("Digests:", list(&image.digests)),
            ("Artifact:", image.artifact.as_ref().map(ArtifactRow::summary)),
            ("Size:", Some(sizes(image))),
            ("First seen:", ago(image.first_seen.as_deref())),
            ("Origin:", Some(text(image.origin.clone()))),
            ("Last used:", ago(image.last_used.as_deref())),
            ("In use by:", list(&image.in_use_by)),
            ("Pinned by:", list(&image.pinned_by)),
            ("Awaited by:", list(&image.awaited_by)),
        ];
        let details = details.into_iter().flat_map(|details| {
            let is_artifact = details.layers.iter().any(|layer| layer.path.is_some());
            let named = |layer: ShownLayer| match layer.path {
                Some(folder) if folder.ends_with('/') => {
                    format!("{} (an archive of {})", printable(&folder), ByteSize(layer.size))
                }
                Some(path) => format!("{} {}", printable(&path), ByteSize(layer.size)),
                None => format!("{} {}", text(layer.blob), ByteSize(layer.size)),
            };
            let layers: Vec<_> = details.layers.into_iter().map(named).collect();
            [
                ("Platform:", Some(text(details.platform))),
                ("Manifest:", Some(text(details.manifest))),
                (if is_artifact { "Files:" } else { "Layers:" }, list(&layers)),
            ]
        });
        // Details exist only for the embedded store. For an artifact in a runtime, imagelet's row has the manifest.
        let manifest = image.artifact.as_ref().filter(|_| found.details.is_none()).map(|it| it.manifest.clone());
        Table::facts(facts.into_iter().chain([("Manifest:", manifest)]).chain(details)).write(out)
    })?)
}

/// The details that the table shows. No other field is parsed: the image's configuration may be too deep for a `Value`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ShownDetails {
    platform: Option<String>,
    manifest: Option<String>,
    layers: Vec<ShownLayer>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ShownLayer {
    path: Option<String>,
    blob: Option<String>,
    size: u64,
}

pub(super) fn sizes(image: &ImageRow) -> String {
    let listed = ByteSize(image.size);
    let Some((unique, shared)) = image.unique.zip(image.shared) else { return listed.to_string() };
    let own = format!("{} unique, {} shared", ByteSize(unique), ByteSize(shared));
    match unique.saturating_add(shared) {
        sum if sum == image.size => format!("{listed} ({own})"),
        sum => format!("{listed} as listed, {} on the disk ({own})", ByteSize(sum)),
    }
}

pub(super) async fn usage(node: &Node, verbose: bool, format: Format) -> Result<ExitCode, Failure> {
    let usage = node.ask(UsageRequest::default(), no_steps()).await?;
    Ok(print(format, &usage, |out| {
        totals(&usage).write(out)?;
        if verbose || format == Format::Wide {
            writeln!(out)?;
            image_by_image(&usage, format == Format::Wide).write(out)?;
        }
        Ok(())
    })?)
}

fn image_by_image(usage: &Usage, wide: bool) -> Table {
    let now = Timestamp::now();
    let mut images: Vec<&ImageRow> = usage.images.iter().collect();
    images.sort_by_key(|image| std::cmp::Reverse(image.unique.unwrap_or(image.size)));
    let rows = images.into_iter().map(|image| {
        [
            names(&image.names, &image.digests),
            ImageId::shorten(&image.id).to_owned(),
            ByteSize(image.size).to_string(),
            size(image.unique),
            size(image.shared),
            age(image.last_used.as_deref(), now),
            artifact(image.artifact.as_ref()),
            held_by(image, wide),
            image.next_code.clone().unwrap_or_else(|| "-".into()),
            image.next_reason.clone().unwrap_or_else(|| "-".into()),
        ]
    });
    let header =
        ["NAME", "ID", "SIZE", "UNIQUE", "SHARED", "LAST USED", ARTIFACT, "HELD BY", "REASON", "NEXT COLLECTION"];
    let table = Table::new(header).rows(rows).wide(wide).only_if(wide, &["NEXT COLLECTION"]);
    table.only_if(usage.artifacts_count > 0, &[ARTIFACT]).optional(&["SHARED", "ID", "REASON"])
}

fn held_by(image: &ImageRow, wide: bool) -> String {
    let pins = image.pinned_by.iter().map(|pin| format!("pin {pin}"));
    let pods = image.awaited_by.iter().map(|pod| format!("awaited by {pod}"));
    let held: Vec<String> = image.in_use_by.iter().cloned().chain(pins).chain(pods).collect();
    if wide && !held.is_empty() {
        return held.join(",");
    }
    match held.as_slice() {
        [] => "-".into(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} (+{})", rest.len()),
    }
}

fn totals(usage: &Usage) -> Table {
    let (capacity, available) = (ByteSize(usage.capacity), ByteSize(usage.available));
    let disk = || format!("{available} free of {capacity} ({}% used)", usage.used_percent);
    let size = ByteSize(usage.images_size);
    let size = match usage.images_certainty.as_str() {
        "claimed" => format!("{size} as the runtime lists them; what they take on the disk is not known"),
        "partial" => format!("about {size} on disk, not all layers could be measured"),
        _ => format!("{size} on disk"),
    };
    let reclaimable = ByteSize(usage.reclaimable);
    let reclaimable = match usage.certainty.as_str() {
        "claimed" => format!("about {reclaimable} (sizes as the runtime claims)"),
        "partial" => format!("about {reclaimable} (not all layers could be measured)"),
        _ => reclaimable.to_string(),
    };
    let artifacts = || format!("{} of the images ({})", usage.artifacts_count, ByteSize(usage.artifacts_size));
    let layers = usage.store.as_ref().and_then(|store| store["layers"].as_u64());
    Table::facts([
        ("Directory:", Some(usage.mountpoint.clone())),
        ("Disk:", (usage.capacity > 0).then(disk)),
        ("Images:", Some(format!("{} ({size})", usage.images_count))),
        ("Artifacts:", (usage.artifacts_count > 0).then(artifacts)),
        ("Reclaimable:", Some(reclaimable)),
        ("Layers:", layers.map(|layers| layers.to_string())),
    ])
}
