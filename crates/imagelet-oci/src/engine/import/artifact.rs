//! The import of an artifact: all its files are one layer of an image that is made here.
//!
//! The layer's diff-id is the digest of a sorted list: the blobs, paths and proofs of content. So two nodes make the
//! same image, and each byte is read once. Only a pull with the content knows the diff-id, so a manifest that only
//! names the blobs gives no access to a present layer. A later pull finds the layer by the image record of the
//! artifact's manifest, which a pull from the same repository has written.
//!
//! Each file is staged as its own layer, as in the embedded store, and hard-linked into one tree. So the files are
//! spares until the sink has the tree.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::unix::fs::MetadataExt as _,
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
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Described, Ended, EngineImporter, clear, hand_over, handover};
use crate::{
    engine::{blocking, estimate::PullTarget, import::layer_turns::UnsyncedLayers, pull::LayerFetches},
    layer_sink::{ImportError, ImportStage, ImportedImage, ImportedLayer, LayerImport},
    manifest::{Descriptor, annotations},
    registry::{ImageDocument, Resolved},
    scarce,
    store::{DocumentBytes, LayerEnd, LayerRecord, PROOF, StagedLayer, Store, SyncView, TREE, storage_error},
    tenant::Tenant,
    unpack::DiskUsage,
};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

pub(super) struct ArtifactFiles {
    fetches: LayerFetches,
    /// One entry for each key, even if the manifest repeats a key.
    files: Vec<ArtifactFile>,
}

#[derive(Clone)]
struct ArtifactFile {
    layer: Arc<StagedLayer>,
    /// Whether this import's tree links the file. Otherwise it has a copy, because a parallel import links the file.
    is_linked: bool,
}

struct ArtifactImage {
    target: PullTarget,
    artifact: Artifact,
    names: Vec<String>,
    labels: BTreeMap<String, String>,
    size: u64,
}

impl ArtifactImage {
    async fn of(resolved: &Resolved, target: &PullTarget) -> Result<Self, RuntimeError> {
        let Resolved { manifest, chosen, root, .. } = resolved;
        let mut labels = resolved.session.parse(&chosen.bytes, |bytes| annotations(bytes)).await?;
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
        // Names with a digest are first: after a crash between two records, a digest leads to the layer.
        let names = by_digest.into_iter().chain(by_tag).collect();
        let size = files.values().fold(0, |sum: u64, size| sum.saturating_add(*size));
        Ok(Self { target: target.clone(), artifact, names, labels, size })
    }

    fn proof(&self) -> String {
        self.target.reference.names_of(&self.artifact.manifest).1
    }

    /// The documents depend only on the layer, the artifact and the platform.
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
    /// Removes the files' spare records: the sink links the files, so spares would keep a removed artifact's space.
    pub(super) async fn forget_after_crash(&self) -> Result<(), RuntimeError> {
        let files = self.files.clone();
        blocking(move || files.iter().try_for_each(|file| file.layer.forget_after_crash())).await
    }

    /// The diff-id of the tree. The `diff_id` of a file's record is the file's key: the digest of its blob and path.
    fn tree_id(&self) -> Result<Digest, RuntimeError> {
        let mut list = vec!["artifact tree 1".to_owned()];
        for file in &self.files {
            let LayerRecord { diff_id, sums, .. } = &file.layer.unpacked.record;
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
            // If the digests differ, the runtime has pulled the artifact itself.
            if image.root.digest == manifest {
                let described = Described::new(Arc::clone(&resolved), image, Arc::clone(&tenant), None);
                match self.attempt(&described, progress).await {
                    Ok(id) => return Ok(id),
                    Err(Ended::Failed(error)) => return Err(error),
                    Err(Ended::BaseGone) => {}
                }
            }
        }
        // The lease keeps a sweep from removing the spares that this import uses.
        let _lease = self.engine.store.lease(keys);
        let files = self.fetch_artifact(&resolved, keys, &tenant, progress).await.map_err(fetch)?;
        failpoint!("import.artifact-whole");
        let image = artifact.with_layer(files.tree_id().map_err(fetch)?);
        let described = Described::new(resolved, image, tenant, Some(files));
        let imported = self.import_described(&described, progress).await;
        if imported.as_ref().is_err_and(|error| error.stage != ImportStage::Recorded) {
            return imported;
        }
        // After a success or at the stage `Recorded`, the runtime has the files.
        let cleared = tokio::task::spawn_blocking(move || {
            let files = described.files.into_iter().flat_map(|files| files.files);
            // A file that a parallel import uses stays for that import.
            files.filter_map(|file| Arc::into_inner(file.layer)).for_each(StagedLayer::taken);
        });
        cleared.await.map_err(|error| ImportStage::Recorded.failed(error.into()))?;
        imported
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
        let files: BTreeMap<Digest, Arc<StagedLayer>> =
            files.into_iter().map(|file| (file.unpacked.record.diff_id.clone(), file)).collect();
        let file = |layer: Arc<StagedLayer>| ArtifactFile { is_linked: layer.may_link(), layer };
        Ok(ArtifactFiles { fetches, files: files.into_values().map(file).collect() })
    }

    /// Returns the views that receive the write errors of the files.
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

        let mut views: Vec<Arc<SyncView>> = files.iter().map(|file| Arc::clone(&file.layer.unpacked.view)).collect();
        views.push(Arc::clone(&fetches.view));
        let (turn, _) = engine.turns.turn(chain).await;
        // Another import may have added the same tree, and not synced it yet.
        views.extend(engine.turns.views(chain));
        for view in &views {
            unsynced.add(chain, view);
        }
        hand_over(import, 0, &mut tree, vec![Vec::new()]).await?;
        failpoint!("import.artifact-taken");
        drop(turn);
        clear(tree).await?;
        Ok(views)
    }
}

/// A layer whose tree has all files of the artifact. The layer is no spare, because its files already are spares.
fn linked_tree(
    store: &Arc<Store>,
    files: &[ArtifactFile],
    layer: &ImportedLayer,
    view: Arc<SyncView>,
) -> Result<StagedLayer, RuntimeError> {
    let staging = store.stage()?;
    let root = staging.path().join(TREE);
    let linked = fs::create_dir(&root).and_then(|()| {
        let mut folders = BTreeSet::new();
        for ArtifactFile { layer, is_linked } in files {
            let mut files = FileLinks { is_linked: *is_linked, copies: HashMap::new() };
            files.link_all(&layer.staged_tree(), &root, &mut folders)?;
        }
        // The times of folders are set at the end, because each new entry changes the time of its folder.
        folders.iter().try_for_each(|folder| fs::File::open(root.join(folder))?.set_modified(SystemTime::UNIX_EPOCH))
    });
    linked.map_err(|error| storage_error("could not put the artifact's files into one folder".to_owned(), error))?;
    let record = LayerRecord {
        diff_id: layer.diff_id.clone(),
        entries: 0,
        // The layers of the linked files count the bytes.
        disk_bytes: 0,
        allocated: DiskUsage::default(),
        root_opaque: false,
        unsettled: store.unsettled_mark(LayerEnd::Sink),
        end: LayerEnd::Sink,
        sums: BTreeMap::new(),
    };
    let blob = Descriptor::new(LAYER_TYPE, layer.digest.clone(), layer.size);
    StagedLayer::new(store, staging, &blob, (record, None), view)
}

struct FileLinks {
    is_linked: bool,
    /// The last copy of a file with several names, by inode.
    copies: HashMap<u64, PathBuf>,
}

impl FileLinks {
    fn link_all(&mut self, from: &Path, to: &Path, folders: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(from.join(&folder))? {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                if !entry.file_type()?.is_dir() {
                    self.link(&entry, &to.join(&path))?;
                    continue;
                }
                if folders.insert(path.clone()) {
                    fs::create_dir(to.join(&path))?;
                    fs::set_permissions(to.join(&path), entry.metadata()?.permissions())?;
                }
                waiting.push(path);
            }
        }
        Ok(())
    }

    /// Links or copies a file. A file may reach its maximum number of links; further names then lead to a copy.
    fn link(&mut self, file: &fs::DirEntry, target: &Path) -> io::Result<()> {
        let (path, metadata) = (file.path(), file.metadata()?);
        let copy = self.copies.get(&metadata.ino());
        let is_linked = self.is_linked || !metadata.is_file();
        match copy.or_else(|| is_linked.then_some(&path)).map(|source| fs::hard_link(source, target)) {
            Some(Err(error)) if metadata.is_file() && Errno::from_io_error(&error) == Some(Errno::MLINK) => {}
            Some(linked) => return linked,
            None => {}
        }
        fs::copy(&path, target)?;
        fs::File::open(target)?.set_modified(SystemTime::UNIX_EPOCH)?;
        if metadata.nlink() > 1 {
            self.copies.insert(metadata.ino(), target.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these names of one file, and another file.
    fn staged(names: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::write(folder.path().join("d/0"), "one").unwrap();
        fs::write(folder.path().join("other"), "two").unwrap();
        std::os::unix::fs::symlink("d/0", folder.path().join("link")).unwrap();
        for name in 1..names {
            fs::hard_link(folder.path().join("d/0"), folder.path().join(format!("d/{name}"))).unwrap();
        }
        folder
    }

    /// The number of names, and of inodes that are not those of `from`.
    fn placed(from: &Path, is_linked: bool) -> (usize, usize) {
        let to = tempfile::tempdir().unwrap();
        let mut folders = BTreeSet::new();
        FileLinks { is_linked, copies: HashMap::new() }.link_all(from, to.path(), &mut folders).unwrap();
        assert_eq!(folders, BTreeSet::from([PathBuf::from("d")]));
        assert_eq!(fs::read_link(to.path().join("link")).unwrap(), PathBuf::from("d/0"));
        assert_eq!(fs::read(to.path().join("other")).unwrap(), b"two");
        let ino = |path: PathBuf| fs::metadata(path).unwrap().ino();
        let names: Vec<PathBuf> = fs::read_dir(to.path().join("d")).unwrap().map(|name| name.unwrap().path()).collect();
        assert_eq!(fs::read(&names[0]).unwrap(), b"one");
        let mut inodes: BTreeSet<u64> = names.iter().cloned().map(ino).collect();
        inodes.remove(&ino(from.join("d/0")));
        (names.len(), inodes.len())
    }

    #[test]
    fn names_of_one_file_stay_names_of_one_file_in_a_copy() {
        let folder = staged(3);
        assert_eq!((placed(folder.path(), true), placed(folder.path(), false)), ((3, 0), (3, 1)));
    }

    #[test]
    fn more_links_than_a_file_can_have_are_those_of_a_copy() {
        const NAMES: usize = 33_000;
        let folder = staged(NAMES);
        // A file system without a limit makes no copy.
        let (names, copies) = placed(folder.path(), true);
        assert_eq!(names, NAMES);
        assert!(copies <= 1, "{copies}");
    }
}
