//! The import of an artifact: all its files are one layer of an image that is made here.
//!
//! The layer's diff-id is the digest of the list of the artifact's blobs and paths. So it is known before the first
//! byte, each byte is hashed once, and two nodes make the same image.
//!
//! The files are staged each on its own, as in the embedded store, and hard-linked into one tree. So all of them are
//! spares until the sink has the tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use imagelet_core::{
    error::RuntimeError,
    failpoint,
    image::{Artifact, Digest},
    ports::Progress,
};
use serde_json::{Value, json};

use super::{Described, Ended, EngineImporter, handover};
use crate::{
    engine::{blocking, estimate::PullTarget, import::layer_turns::UnsyncedLayers},
    layer_sink::{ImportedImage, ImportedLayer, LayerImport, StagedTree, Taken},
    manifest::{Descriptor, annotations},
    registry::{ImageDocument, Resolved},
    store::{DiskUsage, DocumentBytes, LayerEnd, LayerRecord, StagedLayer, Store, SyncView, storage_error},
};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image whose only layer has the artifact's files. Its documents depend on the artifact and the platform alone.
pub(super) async fn image_of_artifact(resolved: &Resolved, target: &PullTarget) -> Result<ImportedImage, RuntimeError> {
    let Resolved { manifest, chosen, root, .. } = resolved;
    let mut labels = resolved.session.parse(&chosen.bytes, |bytes| annotations(bytes)).await?;
    // By key: a blob twice under one name is one file.
    let files: BTreeMap<Digest, u64> =
        manifest.artifact_files()?.into_iter().map(|file| (file.key, file.blob.size)).collect();
    let artifact = Artifact {
        kind: manifest.artifact_kind().unwrap_or_default().to_owned(),
        manifest: chosen.digest.clone(),
        files: files.len() as u64,
    };
    labels.extend(artifact.labels());
    let diff_id = tree_id(files.keys());
    let size = files.values().fold(0, |sum: u64, size| sum.saturating_add(*size));
    let config = document(
        CONFIG_TYPE,
        &json!({
            "os": target.platform.os, "architecture": target.platform.architecture, "config": {"Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }),
    );
    let described = |document: &ImageDocument| json!({"mediaType": document.media_type, "digest": document.digest, "size": document.bytes.len()});
    let manifest = document(
        MANIFEST_TYPE,
        &json!({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described(&config),
            "layers": [{"mediaType": LAYER_TYPE, "digest": diff_id, "size": size}],
        }),
    );
    let (by_tag, by_root) = target.reference.names_of(&root.digest);
    let (_, by_manifest) = target.reference.names_of(&chosen.digest);
    let by_digest: BTreeSet<&String> = [&by_root, &by_manifest].into();
    Ok(ImportedImage {
        reference: target.reference.clone(),
        names: by_tag.into_iter().chain(by_digest.into_iter().cloned()).collect(),
        artifact: Some(artifact),
        root: manifest.clone(),
        manifest,
        config,
        layers: vec![ImportedLayer { digest: diff_id.clone(), size, diff_id }],
        index_entries: Vec::new(),
    })
}

/// The identity of a tree: that of the sorted keys, and each key is that of a blob and its path.
fn tree_id<'a>(keys: impl Iterator<Item = &'a Digest>) -> Digest {
    let list: Vec<&str> = ["artifact tree 1"].into_iter().chain(keys.map(Digest::as_str)).collect();
    Digest::of(list.join("\n").as_bytes())
}

fn document(media_type: &str, content: &Value) -> ImageDocument {
    let bytes = content.to_string().into_bytes();
    ImageDocument {
        digest: Digest::of(&bytes),
        media_type: media_type.to_owned(),
        bytes: DocumentBytes::Memory(bytes.into()),
    }
}

impl EngineImporter {
    /// Passes the tree of an artifact to the sink. Returns the views that receive the write errors of its files.
    pub(super) async fn bring_artifact(
        &self,
        described: &Described,
        import: &Arc<dyn LayerImport>,
        unsynced: &UnsyncedLayers<'_>,
        progress: &Progress,
    ) -> Result<Vec<Arc<SyncView>>, Ended> {
        let Described { resolved, image, chains, tenant } = described;
        let (engine, chain) = (&*self.engine, &chains[0]);
        let files = resolved.manifest.artifact_files()?;
        let keys: Vec<Digest> = files.into_iter().map(|file| file.key).collect();
        // No room is made of the spares that this import takes.
        let _lease = engine.store.lease(&keys);
        let (fetches, files) =
            engine.stage_layers(resolved, &keys, LayerEnd::Sink, Arc::clone(tenant), progress).await?;
        failpoint!("import.artifact-whole");
        let checked = engine.check_artifact(&resolved.manifest, &files).await;
        checked.inspect_err(|error| fetches.resumption.heed(error))?;
        // A blob twice under one name was fetched once.
        let files: BTreeMap<Digest, Arc<StagedLayer>> =
            files.into_iter().map(|file| (file.record().diff_id.clone(), file)).collect();
        let files: Vec<Arc<StagedLayer>> = files.into_values().collect();
        let (linked, layer, view) = (files.clone(), image.layers[0].clone(), Arc::clone(&fetches.view));
        let tree = engine.on_disk(move |store| linked_tree(store, &linked, &layer, view)).await;
        let mut tree = tree.map_err(handover)?;
        failpoint!("import.artifact-linked");

        let mut views: Vec<Arc<SyncView>> = files.iter().map(|file| Arc::clone(file.view())).collect();
        views.push(Arc::clone(&fetches.view));
        let (turn, _) = engine.turns.turn(chain).await;
        // Another import may have added the same tree, and not synced it yet.
        views.extend(engine.turns.views(chain));
        for view in &views {
            unsynced.add(chain, view);
        }
        let implicit = vec![Vec::new()];
        let (folder, blob) = tree.tree(&implicit).map_err(handover)?;
        match import.take(0, StagedTree { folder, implicit, blob }).await.map_err(handover)? {
            Taken::Committed => {}
            Taken::BaseGone => return Err(Ended::BaseGone),
        }
        failpoint!("import.artifact-taken");
        drop(turn);
        let cleared = blocking(move || {
            tree.taken();
            // A file that a parallel import uses stays for that import.
            files.into_iter().filter_map(Arc::into_inner).for_each(StagedLayer::taken);
            Ok(())
        });
        cleared.await.map_err(handover)?;
        Ok(views)
    }
}

/// A layer with the files of all others. It is no spare: the files are.
fn linked_tree(
    store: &Arc<Store>,
    files: &[Arc<StagedLayer>],
    layer: &ImportedLayer,
    view: Arc<SyncView>,
) -> Result<StagedLayer, RuntimeError> {
    let staging = store.stage()?;
    let root = staging.path().join("fs");
    let linked = fs::create_dir(&root).and_then(|()| {
        let mut folders = BTreeSet::new();
        files.iter().try_for_each(|file| link_files(&file.staged_tree(), &root, &mut folders))?;
        // Last, since each new entry changes the time of its folder.
        folders.iter().try_for_each(|folder| fs::File::open(root.join(folder))?.set_modified(SystemTime::UNIX_EPOCH))
    });
    linked.map_err(|error| storage_error("could not put the artifact's files into one folder".to_owned(), error))?;
    let record = LayerRecord {
        diff_id: layer.diff_id.clone(),
        entries: 0,
        // The bytes are those of the linked files.
        disk_bytes: 0,
        allocated: DiskUsage::default(),
        root_opaque: false,
        unsettled: store.unsettled_mark(LayerEnd::Sink),
        end: LayerEnd::Sink,
        sums: BTreeMap::new(),
    };
    let blob = Descriptor::new(LAYER_TYPE, layer.digest.clone(), layer.size);
    StagedLayer::new(store, staging, &blob, record, view)
}

/// Links all files below `from` to the same paths below `to`, and adds the folders to `folders`. Only folders have a
/// name in common with another tree.
fn link_files(from: &Path, to: &Path, folders: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(from.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if !entry.file_type()?.is_dir() {
                fs::hard_link(entry.path(), to.join(&path))?;
                continue;
            }
            if folders.insert(path.clone()) {
                fs::create_dir(to.join(&path))?;
                fs::set_permissions(to.join(&path), fs::metadata(entry.path())?.permissions())?;
            }
            waiting.push(path);
        }
    }
    Ok(())
}
