//! containerd's metadata of an image: labels of its documents, image records, and labels of its snapshots.

use std::collections::BTreeMap;

use imagelet_core::image::{Artifact, Digest, Reference};
use imagelet_oci::{ImageDocument, ImportedImage};

use crate::containerd::{
    MANAGED,
    v1::{images::Image, types::Descriptor},
};

/// containerd's maximum length of a label. Key and value count together.
const LABEL_BYTES_MAX: usize = 4096;
/// The first version of containerd that labels a snapshot with its layer and its parent.
const LAYER_LABELS_SINCE: (u32, u32) = (2, 3);
const IMAGE_VOLUMES_SINCE: (u32, u32) = (2, 1);

pub(crate) type Labels = BTreeMap<String, String>;

/// The documents of an image with their labels, referenced documents first. `chains` are the names of the snapshots.
pub(crate) fn documents<'a>(
    image: &'a ImportedImage,
    chains: &[Digest],
    snapshotter: &str,
) -> Vec<(&'a ImageDocument, Labels)> {
    let top = chains.last().map(|top| (format!("containerd.io/gc.ref.snapshot.{snapshotter}"), top.to_string()));
    let mut of_config: Labels = top.into_iter().collect();
    // Labels of the configuration mark an artifact, so that one filtered list of contents finds all artifacts.
    of_config.extend(image.artifact.iter().flat_map(Artifact::labels));
    let config = (CONTENT_REFERENCE.to_owned() + "config", image.config.digest.to_string());
    let numbered = |kind: &'static str, digests: &mut dyn Iterator<Item = &Digest>| -> Labels {
        let label = |(at, digest): (usize, &Digest)| (format!("{CONTENT_REFERENCE}{kind}.{at}"), digest.to_string());
        digests.enumerate().map(label).collect()
    };
    let mut manifest = numbered("l", &mut image.layers.iter().map(|layer| &layer.digest));
    manifest.extend([config]);
    let mut documents = vec![(&image.config, of_config), (&image.manifest, manifest)];
    if image.root.digest != image.manifest.digest {
        let references = numbered("m", &mut image.index_entries.iter());
        documents.push((&image.root, references));
    }
    documents
}

const CONTENT_REFERENCE: &str = "containerd.io/gc.ref.content.";

/// The label with a blob's source repositories, or `None` if it would be too long. `before` has the current labels.
pub fn source_label(reference: &Reference, before: &Labels) -> Option<(String, String)> {
    let key = format!("containerd.io/distribution.source.{}", host(reference.domain()));
    let mut repositories: Vec<&str> = before.get(&key).map_or(Vec::new(), |known| known.split(',').collect());
    repositories.push(reference.path());
    repositories.retain(|repository| !repository.is_empty());
    repositories.sort_unstable();
    repositories.dedup();
    let value = repositories.join(",");
    (key.len() + value.len() <= LABEL_BYTES_MAX).then_some((key, value))
}

fn host(domain: &str) -> &str {
    let bare = match domain.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => domain,
    };
    bare.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')).unwrap_or(bare)
}

/// The image records of an import. One record is named by the image id. Each name of the pull has another record.
pub(crate) fn images(image: &ImportedImage) -> Vec<Image> {
    let target = Descriptor {
        media_type: image.root.media_type.clone(),
        digest: image.root.digest.to_string(),
        size: i64::try_from(image.root.bytes.len()).expect("a document has a length of 63 bits"),
    };
    let names = [image.config.digest.to_string()].into_iter().chain(image.names.iter().cloned());
    let record = |name| Image {
        name,
        labels: Labels::from([(MANAGED.0.to_owned(), MANAGED.1.to_owned())]),
        target: Some(target.clone()),
    };
    names.map(record).collect()
}

pub(crate) fn snapshot_labels(chain: &Digest, parent: Option<&Digest>, diff_id: &Digest, version: &str) -> Labels {
    let mut labels = Labels::from([("containerd.io/snapshot.ref".to_owned(), chain.to_string())]);
    if is_since(version, LAYER_LABELS_SINCE) {
        labels.insert("containerd.io/snapshot/diff-id".to_owned(), diff_id.to_string());
        let parent = parent.map(|parent| ("containerd.io/snapshot/parent-chain-id".to_owned(), parent.to_string()));
        labels.extend(parent);
    }
    labels
}

pub(crate) fn mounts_images(version: &str) -> bool {
    is_since(version, IMAGE_VOLUMES_SINCE)
}

fn is_since(version: &str, first: (u32, u32)) -> bool {
    let mut parts = version.trim_start_matches('v').splitn(3, '.');
    let mut number = || -> Option<u32> {
        let part = parts.next()?;
        let end = part.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse().ok()
    };
    number().zip(number()).is_some_and(|version| version >= first)
}

#[cfg(test)]
mod tests {
    use imagelet_oci::{DocumentBytes, ImportedLayer};

    use super::*;

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn document(text: &str) -> ImageDocument {
        ImageDocument {
            digest: digest(text),
            media_type: format!("type/{text}"),
            bytes: DocumentBytes::Memory(text.to_owned().into()),
        }
    }

    fn image(reference: &str, has_index: bool) -> ImportedImage {
        let layer =
            |name: &str| ImportedLayer { digest: digest(&format!("packed {name}")), size: 7, diff_id: digest(name) };
        let reference: Reference = reference.parse().unwrap();
        let root = document(if has_index { "index" } else { "manifest" });
        let (by_tag, by_digest) = reference.names_of(&root.digest);
        ImportedImage {
            reference,
            names: by_tag.into_iter().chain([by_digest]).collect(),
            artifact: None,
            root,
            manifest: document("manifest"),
            config: document("config"),
            layers: vec![layer("one"), layer("two")],
            index_entries: if has_index { vec![digest("manifest"), digest("other")] } else { Vec::new() },
        }
    }

    fn shown(labels: &Labels) -> Vec<(&str, &str)> {
        labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn documents_refer_to_all_that_an_image_is_made_of() {
        let image = image("reg.test/app:v1", true);
        let chains = image.chains();
        assert_eq!(chains[0], digest("one"));
        assert_eq!(chains[1], Digest::of(format!("{} {}", digest("one"), digest("two")).as_bytes()));
        let documents = documents(&image, &chains, "overlayfs");
        let [config, manifest, index] = &documents[..] else { panic!("{documents:?}") };
        assert_eq!(shown(&config.1), [("containerd.io/gc.ref.snapshot.overlayfs", chains[1].as_str())]);
        let (first, second) = (digest("packed one"), digest("packed two"));
        assert_eq!(
            shown(&manifest.1),
            [
                ("containerd.io/gc.ref.content.config", digest("config").as_str()),
                ("containerd.io/gc.ref.content.l.0", first.as_str()),
                ("containerd.io/gc.ref.content.l.1", second.as_str()),
            ]
        );
        assert_eq!(
            shown(&index.1),
            [
                ("containerd.io/gc.ref.content.m.0", digest("manifest").as_str()),
                ("containerd.io/gc.ref.content.m.1", digest("other").as_str()),
            ]
        );
    }

    #[test]
    fn a_manifest_that_no_index_lists_is_written_once() {
        let image = image("reg.test/app:v1", false);
        assert_eq!(documents(&image, &image.chains(), "overlayfs").len(), 2);
    }

    #[test]
    fn an_image_has_the_names_that_cri_gives_it() {
        let names = |reference: &str| -> Vec<String> {
            let records = images(&image(reference, true));
            assert!(records.iter().all(|record| shown(&record.labels) == [MANAGED]));
            let target = records[0].target.clone().unwrap();
            assert_eq!((target.digest, target.size), (digest("index").to_string(), 5));
            records.into_iter().map(|record| record.name).collect()
        };
        let (id, index) = (digest("config"), digest("index"));
        let by_digest = format!("docker.io/library/app@{index}");
        assert_eq!(names("app:v1"), [id.to_string(), "docker.io/library/app:v1".to_owned(), by_digest.clone()]);
        assert_eq!(names(&format!("app:v1@{index}")), [id.to_string(), by_digest]);
    }

    #[test]
    fn a_blob_says_from_where_it_came_as_long_as_there_is_room() {
        let label = |reference: &str, before: &str| {
            let reference: Reference = reference.parse().unwrap();
            let key = format!("containerd.io/distribution.source.{}", host(reference.domain()));
            source_label(&reference, &Labels::from([(key, before.to_owned())]))
        };
        let said = |host: &str, repositories: &str| {
            Some((format!("containerd.io/distribution.source.{host}"), repositories.to_owned()))
        };
        assert_eq!(label("reg.test:5000/b/c:v1", ""), said("reg.test", "b/c"));
        assert_eq!(label("reg.test/b:v1", "c,a"), said("reg.test", "a,b,c"));
        assert_eq!(label("reg.test/b:v1", "a,b"), said("reg.test", "a,b"));
        assert_eq!(label("busybox", ""), said("docker.io", "library/busybox"));
        assert_eq!(label("[::1]:5000/app:v1", ""), said("::1", "app"));
        assert_eq!(label("reg.test/b:v1", &"a".repeat(LABEL_BYTES_MAX)), None);
    }

    #[test]
    fn image_volumes_and_the_labels_of_snapshots_are_those_of_the_version() {
        for (version, mounts_images_too, labels_them) in [
            ("1.6.20~ds1", false, false),
            ("v1.7.24", false, false),
            ("2.0.5", false, false),
            ("2.1.0-rc.1", true, false),
            ("v2.2.9", true, false),
            ("v2.3.0", true, true),
            ("2.4.0-beta.0", true, true),
            ("v3.0", true, true),
            ("2.10", true, true),
            ("", false, false),
            ("unknown", false, false),
            ("v2", false, false),
        ] {
            let found = (mounts_images(version), is_since(version, LAYER_LABELS_SINCE));
            assert_eq!(found, (mounts_images_too, labels_them), "{version}");
        }
        let (chain, parent, layer) = (digest("chain"), digest("parent"), digest("layer"));
        let count = |parent, version| snapshot_labels(&chain, parent, &layer, version).len();
        assert_eq!((count(Some(&parent), "2.2"), count(None, "2.3"), count(Some(&parent), "2.3")), (1, 2, 3));
    }
}
