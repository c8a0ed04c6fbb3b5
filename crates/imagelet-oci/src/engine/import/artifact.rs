//! The import of an artifact: all its files are one layer of an image that is made here.
//!
//! The layer's diff-id is the digest of the sorted list of blobs, paths and proofs of content. So two nodes make the
//! same image, each byte is read once, and only a pull that had the content knows the diff-id: a manifest that names
//! blobs gives no access to a present layer. A later pull of the same artifact finds the layer by the image record of
//! the artifact's manifest, which a pull from the same repository wrote.
//!
//! The files are staged each on its own, as in the embedded store, and hard-linked into one tree. So all of them are
//! spares until the sink has the tree.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::unix::fs::DirEntryExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use imagelet_core::{
    error::RuntimeError,
    failpoint,
    image::{Artifact, Digest, ImageId},
    ports::Progress,
};
use serde_json::{Value, json};

use super::{Described, Ended, EngineImporter, handover};
use crate::{
    engine::{blocking, estimate::PullTarget, import::layer_turns::UnsyncedLayers, pull::LayerFetches},
    layer_sink::{ImportError, ImportStage, ImportedImage, ImportedLayer, LayerImport, StagedTree, Taken},
    manifest::{Descriptor, annotations},
    registry::{ImageDocument, Resolved},
    scarce,
    store::{DiskUsage, DocumentBytes, LayerEnd, LayerRecord, PROOF, StagedLayer, Store, SyncView, storage_error},
    tenant::Tenant,
};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// The files of an artifact: fetched, verified and not in the sink yet.
pub(super) struct ArtifactFiles {
    fetches: LayerFetches,
    /// Each key once.
    files: Vec<Arc<StagedLayer>>,
}

/// An image that is made of an artifact, before its layer is known.
struct ArtifactImage {
    target: PullTarget,
    artifact: Artifact,
    names: Vec<String>,
    /// The annotations, and what tells the image from others.
    labels: BTreeMap<String, String>,
    /// The sum of the blobs.
    size: u64,
}

impl ArtifactImage {
    async fn of(resolved: &Resolved, target: &PullTarget) -> Result<Self, RuntimeError> {
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
        let (by_tag, by_root) = target.reference.names_of(&root.digest);
        let by_digest = BTreeSet::from([by_root, target.reference.names_of(&chosen.digest).1]);
        let names = by_tag.into_iter().chain(by_digest).collect();
        let size = files.values().fold(0, |sum: u64, size| sum.saturating_add(*size));
        Ok(Self { target: target.clone(), artifact, names, labels, size })
    }

    /// The name by the digest of the artifact's manifest.
    fn proof(&self) -> String {
        self.target.reference.names_of(&self.artifact.manifest).1
    }

    /// The image with this layer. Its documents depend on the layer, the artifact and the platform alone.
    fn with_layer(&self, diff_id: Digest) -> ImportedImage {
        let PullTarget { reference, platform, .. } = &self.target;
        let config = document(
            CONFIG_TYPE,
            &json!({
                "os": platform.os, "architecture": platform.architecture, "config": {"Labels": self.labels},
                "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            }),
        );
        let described = json!({"mediaType": CONFIG_TYPE, "digest": config.digest, "size": config.bytes.len()});
        let manifest = document(
            MANIFEST_TYPE,
            &json!({
                "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described,
                "layers": [{"mediaType": LAYER_TYPE, "digest": diff_id, "size": self.size}],
            }),
        );
        ImportedImage {
            reference: reference.clone(),
            names: self.names.clone(),
            artifact: Some(self.artifact.clone()),
            root: manifest.clone(),
            manifest,
            config,
            layers: vec![ImportedLayer { digest: diff_id.clone(), size: self.size, diff_id }],
            index_entries: Vec::new(),
        }
    }
}

impl ArtifactFiles {
    /// The identity of the tree. A key is that of a blob and its path.
    fn tree_id(&self) -> Result<Digest, RuntimeError> {
        let mut list = vec!["artifact tree 1".to_owned()];
        for file in &self.files {
            let LayerRecord { diff_id, sums, .. } = file.record();
            let proof =
                sums.get(PROOF).ok_or_else(|| RuntimeError::defect(format!("file `{diff_id}` has no proof")))?;
            list.push(format!("{diff_id} {proof}"));
        }
        list[1..].sort_unstable();
        Ok(Digest::of(list.join("\n").as_bytes()))
    }
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
    /// Imports an artifact whose files have these keys, in the order of its manifest.
    pub(super) async fn import_artifact(
        &self,
        target: &PullTarget,
        resolved: Arc<Resolved>,
        keys: &[Digest],
        tenant: Arc<Tenant>,
        progress: &Progress,
    ) -> Result<ImageId, ImportError> {
        let fetch = |error| ImportStage::Fetch.failed(error);
        let artifact = ArtifactImage::of(&resolved, target).await.map_err(fetch)?;
        let named = self.sink.named_artifact(&artifact.proof()).await;
        if let Some((manifest, layer)) = named.map_err(|error| ImportStage::Handover.failed(error))? {
            let image = artifact.with_layer(layer);
            // Otherwise the runtime has pulled the artifact itself.
            if image.root.digest == manifest {
                let described = Described::new(Arc::clone(&resolved), image, Arc::clone(&tenant), None);
                match self.attempt(&described, progress).await {
                    Ok(id) => return Ok(id),
                    Err(Ended::Failed(error)) => return Err(error),
                    Err(Ended::BaseGone) => {}
                }
            }
        }
        // No room is made of the spares that this import takes.
        let _lease = self.engine.store.lease(keys);
        let files = self.fetch_artifact(&resolved, keys, &tenant, progress).await.map_err(fetch)?;
        failpoint!("import.artifact-whole");
        let image = artifact.with_layer(files.tree_id().map_err(fetch)?);
        let described = Described::new(resolved, image, tenant, Some(files));
        let id = self.import_described(&described, progress).await?;
        let cleared = blocking(move || {
            let files = described.files.into_iter().flat_map(|files| files.files);
            // A file that a parallel import uses stays for that import.
            files.filter_map(Arc::into_inner).for_each(StagedLayer::taken);
            Ok(())
        });
        cleared.await.map_err(|error| ImportStage::Recorded.failed(error))?;
        Ok(id)
    }

    async fn fetch_artifact(
        &self,
        resolved: &Resolved,
        keys: &[Digest],
        tenant: &Arc<Tenant>,
        progress: &Progress,
    ) -> Result<ArtifactFiles, RuntimeError> {
        let engine = &self.engine;
        let stage = || engine.stage_layers(resolved, keys, LayerEnd::Sink, Arc::clone(tenant), progress);
        let (fetches, files) = scarce::retried(stage).await?;
        let checked = engine.check_artifact(&resolved.manifest, &files).await;
        checked.inspect_err(|error| fetches.resumption.heed(error))?;
        // A blob twice under one name was fetched once.
        let files: BTreeMap<Digest, Arc<StagedLayer>> =
            files.into_iter().map(|file| (file.record().diff_id.clone(), file)).collect();
        Ok(ArtifactFiles { fetches, files: files.into_values().collect() })
    }

    /// Passes the tree of an artifact to the sink. Returns the views that receive the write errors of its files.
    pub(super) async fn bring_artifact(
        &self,
        described: &Described,
        ArtifactFiles { fetches, files }: &ArtifactFiles,
        import: &Arc<dyn LayerImport>,
        unsynced: &UnsyncedLayers<'_>,
    ) -> Result<Vec<Arc<SyncView>>, Ended> {
        let (engine, chain) = (&*self.engine, &described.chains[0]);
        let (linked, layer, view) = (files.clone(), described.image.layers[0].clone(), Arc::clone(&fetches.view));
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
/// name in common with another tree. A file that can have no more names is copied, and the copy has its other names.
fn link_files(from: &Path, to: &Path, folders: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let (mut waiting, mut copies) = (vec![PathBuf::new()], HashMap::<u64, PathBuf>::new());
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(from.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if !entry.file_type()?.is_dir() {
                let (source, target) = (entry.path(), to.join(&path));
                match fs::hard_link(copies.get(&entry.ino()).unwrap_or(&source), &target) {
                    Err(error) if error.kind() == io::ErrorKind::TooManyLinks => {
                        fs::copy(&source, &target)?;
                        fs::File::open(&target)?.set_modified(SystemTime::UNIX_EPOCH)?;
                        copies.insert(entry.ino(), target);
                    }
                    linked => linked?,
                }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_file_with_more_names_than_the_file_system_permits_twice_is_copied_once() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("d")).unwrap();
        fs::create_dir(&to).unwrap();
        let first = from.join("d/0");
        fs::write(&first, "content").unwrap();
        fs::File::open(&first).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        // ext4 permits 65,000 names of a file.
        let count = 33_000;
        (1..count).try_for_each(|number| fs::hard_link(&first, from.join(format!("d/{number}")))).unwrap();
        link_files(&from, &to, &mut BTreeSet::new()).unwrap();
        let mut inodes = BTreeSet::new();
        for number in 0..count {
            let metadata = fs::metadata(to.join(format!("d/{number}"))).unwrap();
            assert_eq!((metadata.len(), metadata.mtime()), (7, 0), "{number}");
            inodes.insert(metadata.ino());
        }
        assert!(inodes.len() <= 2, "{inodes:?}");
    }
}
