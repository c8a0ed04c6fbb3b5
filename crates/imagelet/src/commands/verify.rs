//! `verify`: prints one row for each image, then the findings. Exits with 1 if damage remains.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use imagelet_core::{
    image::{ByteSize, ImageId, counted},
    printable::printable,
};

use super::images_write::{ask_shown, note};
use crate::{
    output::{Format, Table, exit_code, id, names, or_dash, print, print_failure},
    progress::Screen,
};
use imagelet_node::{
    api::{Verified, VerifiedImage, VerifiedPart, VerifyRequest},
    failure::Failure,
    node::Node,
};
use imagelet_oci::Access;

const SHOWN: &str = "verify";

pub(super) async fn verify(
    node: &Node,
    again: impl AsyncFn(Access) -> Result<Node, Failure>,
    request: VerifyRequest,
    quiet: bool,
    format: Format,
) -> Result<ExitCode, Failure> {
    let repair = request.repair;
    let screen = Screen::of_stderr(quiet);
    let mut verified = ask_shown(node, &screen, SHOWN, request.clone()).await?;
    if verified.damaged && !repair && matches!(node, Node::Local(_)) {
        verified = confirm(again, &screen, request, verified).await?;
    }
    print(format, &verified, |out| {
        table(&verified, format).write(out)?;
        findings(&verified, out)
    })?;
    verified.images.iter().filter_map(|image| image.failure.as_ref()).for_each(print_failure);
    if verified.damaged && !repair {
        note(
            "hint: `imagelet verify --repair` fetches what is damaged, and nothing else; until then damaged images are not listed",
        );
    }
    Ok(exit_code(verified.damaged))
}

/// Checks damaged images again with write access to the store: no other process can then remove an image, and the store
/// marks the damage. If another process has write access, the check only reads, and drops images that were removed
/// before it.
async fn confirm(
    again: impl AsyncFn(Access) -> Result<Node, Failure>,
    screen: &Screen,
    request: VerifyRequest,
    mut found: Verified,
) -> Result<Verified, Failure> {
    let node = match again(Access::Write { or_create: false }).await {
        Err(failure) => {
            print_failure(&failure);
            note("warning: what is damaged is shown here and not marked in the store");
            again(Access::Read { or_empty: true }).await?
        }
        owned => owned?,
    };
    if found.store.result == "damaged" {
        found = ask_shown(&node, screen, SHOWN, request).await?;
    } else {
        for image in std::mem::take(&mut found.images) {
            if image.result != "damaged" {
                found.images.push(image);
                continue;
            }
            let request = VerifyRequest { images: vec![image.id], ..VerifyRequest::default() };
            match ask_shown(&node, screen, SHOWN, request).await {
                Ok(again) => found.images.extend(again.images),
                // Another process has removed the image after the first check.
                Err(failure) if failure.reason == "NotFound" => {}
                Err(failure) => return Err(failure),
            }
        }
        found.damaged = found.images.iter().any(|image| image.result == "damaged");
    }
    if let Node::Local(node) = &node {
        node.close().await;
    }
    Ok(found)
}

fn table(verified: &Verified, format: Format) -> Table {
    let rows = verified.images.iter().map(|image| {
        [
            names(&image.names, &image.digests),
            id(&image.id, format == Format::Wide).to_owned(),
            layers(image),
            image.layers.iter().map(|layer| layer.files).sum::<u64>().to_string(),
            image.layers.iter().map(|layer| ByteSize(layer.bytes)).sum::<ByteSize>().to_string(),
            image.result.clone(),
        ]
    });
    Table::new(["NAME", "ID", "LAYERS", "FILES", "READ", "RESULT"]).rows(rows)
}

fn layers(image: &VerifiedImage) -> String {
    let counts = ["ok", "damaged", "repaired"].into_iter().filter_map(|word| {
        let count = image.layers.iter().filter(|layer| layer.part.result == word).count();
        (count > 0).then(|| format!("{count} {word}"))
    });
    or_dash(&counts.collect::<Vec<_>>().join(", ")).to_owned()
}

fn findings(verified: &Verified, out: &mut dyn Write) -> io::Result<()> {
    part(out, "store", &verified.store)?;
    let mut printed: Vec<&str> = Vec::new();
    for image in &verified.images {
        if image.documents.result == "ok"
            && image.layers.iter().all(|layer| layer.part.result == "ok" && layer.unread == 0)
        {
            continue;
        }
        writeln!(out, "\n{}", printable(&names(&image.names, &image.digests)))?;
        part(out, "  image", &image.documents)?;
        for layer in &image.layers {
            let name = format!("  layer {}", ImageId::new(&layer.diff_id).short());
            if printed.contains(&layer.diff_id.as_str()) {
                if layer.part.result != "ok" {
                    writeln!(out, "{name}: as above")?;
                }
                continue;
            }
            printed.push(&layer.diff_id);
            part(out, &name, &layer.part)?;
            if layer.unread > 0 {
                let files = counted(layer.unread, "file");
                writeln!(out, "{name}: the content of {files} can be read by root alone")?;
            }
        }
    }
    Ok(())
}

fn part(out: &mut dyn Write, name: &str, part: &VerifiedPart) -> io::Result<()> {
    for finding in &part.findings {
        writeln!(out, "{name}: {}: {}", printable(&finding.path), printable(&finding.detail))?;
    }
    if part.more > 0 { writeln!(out, "{name}: and {} more", part.more) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use imagelet_core::ports::Finding;

    use super::*;
    use imagelet_node::api::VerifiedLayer;

    #[test]
    fn findings_are_printed_once_below_the_image() {
        let finding = Finding {
            path: "fs/etc/conf\u{1b}".into(),
            what: "content".into(),
            detail: "its content has changed".into(),
        };
        let bad = VerifiedPart { result: "damaged".into(), findings: vec![finding], more: 2 };
        let ok = VerifiedPart { result: "ok".into(), ..VerifiedPart::default() };
        let layer = |digit: &str, part: &VerifiedPart| VerifiedLayer {
            diff_id: format!("sha256:{}", digit.repeat(64)),
            part: part.clone(),
            ..VerifiedLayer::default()
        };
        let image = |name: &str| VerifiedImage {
            names: vec![name.into()],
            result: "damaged".into(),
            documents: ok.clone(),
            layers: vec![layer("a", &ok), layer("b", &bad)],
            ..VerifiedImage::default()
        };
        let verified = Verified { images: vec![image("one:v1"), image("two:v1")], store: ok.clone(), damaged: true };
        assert_eq!(layers(&verified.images[0]), "1 ok, 1 damaged");
        let mut out = Vec::new();
        findings(&verified, &mut out).expect("memory takes it");
        let short = ImageId::new(format!("sha256:{}", "b".repeat(64))).short().to_owned();
        assert_eq!(
            String::from_utf8_lossy(&out),
            format!(
                "\none:v1\n  layer {short}: fs/etc/conf?: its content has changed\n  layer {short}: and 2 more\n\n\
                 two:v1\n  layer {short}: as above\n"
            )
        );
    }
}
