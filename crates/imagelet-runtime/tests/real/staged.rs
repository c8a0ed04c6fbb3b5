//! Images with layers that are unpacked by hand.

use std::{fs, os::unix::fs::PermissionsExt as _, sync::Arc};

use imagelet_core::image::{Artifact, Digest, Platform, Reference};
use imagelet_oci::{DocumentBytes, ImageDocument, ImportedImage, ImportedLayer, StagedTree};
use imagelet_runtime::Containerd;
use serde_json::json;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image that is made of an artifact with this manifest, with one layer.
pub(crate) fn artifact(reference: &str, manifest: &str, layer: &str) -> Arc<ImportedImage> {
    let image = Arc::into_inner(image(reference, manifest, &[layer])).expect("it is new");
    let digest = Digest::of(manifest.as_bytes());
    let (by_tag, by_digest) = image.reference.names_of(&digest);
    Arc::new(ImportedImage {
        names: by_tag.into_iter().chain([by_digest]).collect(),
        artifact: Some(Artifact { kind: "a/model".to_owned(), manifest: digest, files: 1 }),
        root: image.manifest.clone(),
        index_entries: Vec::new(),
        ..image
    })
}

/// An image of layers with these names; `note` makes it another image over the same layers.
pub(crate) fn image(reference: &str, note: &str, layers: &[&str]) -> Arc<ImportedImage> {
    let layers: Vec<ImportedLayer> = layers.iter().map(|name| layer(name)).collect();
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    let config = json!({
        "architecture": Platform::host().architecture,
        "os": "linux",
        "config": {"Labels": {"note": note}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = document(CONFIG, &config);
    let described =
        |layer: &ImportedLayer| json!({"mediaType": LAYER, "digest": layer.digest.as_str(), "size": layer.size});
    let manifest = document(
        MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": config.digest.as_str(), "size": config.bytes.len()},
            "layers": layers.iter().map(described).collect::<Vec<_>>(),
        }),
    );
    let entries = vec![manifest.digest.clone(), Digest::of(b"of another platform")];
    let root = document(
        INDEX,
        &json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                {
                    "mediaType": MANIFEST, "digest": manifest.digest.as_str(), "size": manifest.bytes.len(),
                    "platform": {"os": "linux", "architecture": Platform::host().architecture},
                },
                {
                    "mediaType": MANIFEST, "digest": entries[1].as_str(), "size": 7,
                    "platform": {"os": "plan9", "architecture": "mips"},
                },
            ],
        }),
    );
    let reference: Reference = reference.parse().unwrap();
    let (by_tag, by_digest) = reference.names_of(&root.digest);
    let names = by_tag.into_iter().chain([by_digest]).collect();
    Arc::new(ImportedImage { reference, names, artifact: None, root, manifest, config, layers, index_entries: entries })
}

/// The bytes that stand for a layer's archive, packed and unpacked.
pub(crate) fn archive(name: &str) -> Vec<u8> {
    format!("archive {name}").into_bytes()
}

fn layer(name: &str) -> ImportedLayer {
    let (digest, size) = (Digest::of(&archive(name)), archive(name).len() as u64);
    ImportedLayer { diff_id: digest.clone(), digest, size }
}

fn document(media_type: &str, json: &serde_json::Value) -> ImageDocument {
    let bytes = json.to_string().into_bytes();
    ImageDocument {
        digest: Digest::of(&bytes),
        media_type: media_type.to_owned(),
        bytes: DocumentBytes::Memory(bytes.into()),
    }
}

/// Unpacks the layer of a name as an archive does that has an entry for each folder.
pub(crate) fn unpack_whole(containerd: &Containerd, name: &str) -> StagedTree {
    StagedTree { implicit: Vec::new(), ..unpack(containerd, name) }
}

/// Unpacks the layer of a name into a containerd's staging: a file, and one in a folder without an entry.
pub(crate) fn unpack(containerd: &Containerd, name: &str) -> StagedTree {
    let folder = tempfile::tempdir_in(containerd.staging()).unwrap().keep();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join(name), archive(name)).unwrap();
    fs::create_dir(folder.join("etc")).unwrap();
    // The lowest layer says how the folder looks.
    let is_lowest = name == "one";
    fs::set_permissions(folder.join("etc"), fs::Permissions::from_mode(if is_lowest { 0o700 } else { 0o755 })).unwrap();
    fs::write(folder.join("etc").join(name), name).unwrap();
    let implicit = if is_lowest { Vec::new() } else { vec![b"etc".to_vec()] };
    StagedTree { folder, implicit, blob: None }
}
