//! The layers of one import: present in containerd, or committed from the base up.

use std::{ops::ControlFlow, sync::Arc, time::SystemTime};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    image::Digest,
    retry_wait::random,
};
use imagelet_oci::{ImportedImage, StagedTree, Taken};
use tokio::{
    sync::{RwLock, watch},
    task::JoinError,
};
use tonic::Code;

use super::{
    TRIES_MAX,
    leases::{ContainerdParts, ImportLease},
    records::{self, Labels},
    snapshot_folders::{SnapshotFolders, needs_lower},
};
use crate::{
    containerd::{
        ContainerdClient,
        calls::COMMITTED,
        v1::snapshots::{CommitSnapshotRequest, PrepareSnapshotRequest},
    },
    cri::OVERLAYFS,
};

#[derive(Debug)]
pub(super) struct ImportRun {
    pub(super) containerd: Arc<ContainerdParts>,
    pub(super) client: ContainerdClient,
    pub(super) lease: ImportLease,
    pub(super) image: Arc<ImportedImage>,
    pub(super) chains: Vec<Digest>,
    pub(super) present: usize,
    base: watch::Sender<Base>,
    /// Calls that change containerd hold a read lock, so that the lease ends after these calls.
    pub(super) running: RwLock<()>,
}

/// The progress of the layers from the base up. `Has` is the number of layers that containerd has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Has(usize),
    Gone,
    Broken,
}

impl ImportRun {
    pub(super) async fn begin(
        containerd: Arc<ContainerdParts>,
        image: Arc<ImportedImage>,
    ) -> Result<Self, RuntimeError> {
        let chains = image.chains();
        let lease = ImportLease::new(Arc::clone(&containerd));
        lease.make().await?;
        failpoint!("import.leased");
        let client = containerd.client.under(&lease.id);
        let (base, _) = watch::channel(Base::Has(0));
        let mut run = Self { containerd, client, lease, image, chains, present: 0, base, running: RwLock::default() };
        run.present = run.find_base().await?;
        run.base.send_replace(Base::Has(run.present));
        failpoint!("import.held");
        Ok(run)
    }

    /// Counts the layers that containerd has, from the base up. The lease gets the topmost and so protects all of them.
    async fn find_base(&self) -> Result<usize, RuntimeError> {
        for _ in 0..TRIES_MAX {
            // containerd keeps the parents of a snapshot, so a binary search finds the topmost existing layer.
            let (mut there, mut absent) = (0, self.chains.len() + 1);
            while there + 1 < absent {
                let middle = usize::midpoint(there, absent);
                if self.is_committed(middle - 1).await? {
                    there = middle;
                } else {
                    absent = middle;
                }
            }
            // Another client may remove the snapshot before the lease protects it, so `hold` checks it again.
            if there == 0 || self.hold(there - 1).await? {
                return Ok(there);
            }
        }
        Ok(0)
    }

    fn parent(&self, index: usize) -> Option<&Digest> {
        index.checked_sub(1).map(|below| &self.chains[below])
    }

    fn parent_name(&self, index: usize) -> String {
        self.parent(index).map_or_else(String::new, Digest::to_string)
    }

    async fn is_committed(&self, index: usize) -> Result<bool, RuntimeError> {
        let (chain, parent) = (&self.chains[index], self.parent_name(index));
        let found = self.client.snapshot(OVERLAYFS, chain.as_str()).await?;
        let Some(found) = found.filter(|found| found.kind == COMMITTED) else { return Ok(false) };
        if found.parent == parent {
            return Ok(true);
        }
        Err(RuntimeError::other(format!("containerd's snapshot `{chain}` does not stand on `{parent}`")))
    }

    pub(super) async fn hold(&self, index: usize) -> Result<bool, RuntimeError> {
        let kind = format!("snapshots/{OVERLAYFS}");
        self.client.hold(&self.lease.id, &kind, self.chains[index].as_str()).await?;
        self.is_committed(index).await
    }

    /// Records that containerd has a layer and therefore all layers below it.
    pub(super) fn has(&self, index: usize) {
        self.base.send_if_modified(|base| match base {
            Base::Has(count) if *count <= index => {
                *base = Base::Has(index + 1);
                true
            }
            Base::Has(_) | Base::Gone | Base::Broken => false,
        });
    }

    pub(super) fn count(&self) -> usize {
        match *self.base.borrow() {
            Base::Has(count) => count,
            Base::Gone | Base::Broken => 0,
        }
    }

    /// Waits until containerd has all layers below `index`. Returns `false` if containerd has removed a layer.
    async fn wait_below(&self, index: usize) -> Result<bool, RuntimeError> {
        let mut base = self.base.subscribe();
        let is_settled = |base: &Base| !matches!(base, Base::Has(count) if *count < index);
        match base.wait_for(is_settled).await.map(|base| *base) {
            Ok(Base::Has(_)) => Ok(true),
            Ok(Base::Gone) => Ok(false),
            Ok(Base::Broken) | Err(_) => {
                let why = format!("a layer below layer {index} did not get into containerd");
                Err(RuntimeError::new(RuntimeErrorKind::Cancelled, why))
            }
        }
    }

    /// Runs calls that change containerd to their end, even if the caller is dropped. containerd does not stop a
    /// cancelled call. Content that it writes after the end of the lease stays until a later garbage collection.
    pub(super) async fn uninterrupted<T: Send + 'static, F>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, RuntimeError>
    where
        F: Future<Output = Result<T, RuntimeError>> + Send + 'static,
    {
        let (run, work) = (Arc::clone(self), work(Arc::clone(self)));
        let worked = tokio::spawn(async move {
            let _running = run.running.read().await;
            run.check_whole()?;
            work.await
        });
        let broke_off = |error: JoinError| Err(RuntimeError::defect("calls to containerd broke off").caused_by(error));
        worked.await.unwrap_or_else(broke_off)
    }

    pub(super) fn check_whole(&self) -> Result<(), RuntimeError> {
        if *self.base.borrow() == Base::Broken {
            return Err(RuntimeError::new(RuntimeErrorKind::Cancelled, "the import is given up"));
        }
        Ok(())
    }

    pub(super) async fn put_layer(self: &Arc<Self>, index: usize, tree: StagedTree) -> Result<Taken, RuntimeError> {
        if let Some(blob) = tree.blob.clone().filter(|_| self.containerd.config.keep_blobs) {
            self.uninterrupted(|run| async move { run.write_blob(index, &blob).await }).await?;
        }
        let rebases = self.containerd.rebases && !needs_lower(&tree);
        if !rebases && !self.wait_below(index).await? {
            return Ok(Taken::BaseGone);
        }
        if self.count() > index {
            return Ok(Taken::Committed);
        }
        let key = match self.uninterrupted(|run| async move { run.place(index, tree, rebases).await }).await? {
            ControlFlow::Continue(key) => key,
            ControlFlow::Break(taken) => return Ok(taken),
        };
        if rebases && !self.wait_below(index).await? {
            return Ok(Taken::BaseGone);
        }
        self.uninterrupted(|run| async move { run.commit(index, key, rebases).await }).await
    }

    async fn place(
        &self,
        index: usize,
        tree: StagedTree,
        rebases: bool,
    ) -> Result<ControlFlow<Taken, String>, RuntimeError> {
        let Some((key, folders)) = self.prepare(index, rebases).await? else {
            let taken = if self.hold(index).await? { Taken::Committed } else { Taken::BaseGone };
            return Ok(ControlFlow::Break(taken));
        };
        let moved = tokio::task::spawn_blocking(move || folders.take(&tree)).await;
        let moved = moved.map_err(|error| RuntimeError::defect("the move of a layer broke off").caused_by(error))?;
        moved.map_err(|error| {
            let layer = &self.image.layers[index].digest;
            let why = format!("cannot move layer `{layer}` into containerd's snapshot `{key}`");
            RuntimeError::other(why).caused_by(error)
        })?;
        failpoint!("import.renamed");
        Ok(ControlFlow::Continue(key))
    }

    async fn commit(&self, index: usize, key: String, rebases: bool) -> Result<Taken, RuntimeError> {
        let message = CommitSnapshotRequest {
            snapshotter: OVERLAYFS.to_owned(),
            name: self.chains[index].to_string(),
            key: key.clone(),
            labels: self.labels(index),
            parent: if rebases { self.parent_name(index) } else { String::new() },
        };
        match self.client.commit(message).await {
            Ok(()) if rebases => {
                let found = self.is_committed(index).await;
                if found.is_err() {
                    // containerd ignored the parent at the commit.
                    self.client.remove_snapshot(OVERLAYFS, self.chains[index].as_str()).await?;
                }
                if !found? {
                    return Ok(Taken::BaseGone);
                }
            }
            Ok(()) => {}
            Err(error) if error.code() == Code::AlreadyExists => {
                self.client.remove_snapshot(OVERLAYFS, &key).await?;
                if !self.hold(index).await? {
                    return Ok(Taken::BaseGone);
                }
            }
            Err(error) => return Err(error.into()),
        }
        failpoint!("import.committed");
        Ok(Taken::Committed)
    }

    fn labels(&self, index: usize) -> Labels {
        let (chain, diff_id) = (&self.chains[index], &self.image.layers[index].diff_id);
        records::snapshot_labels(chain, self.parent(index), diff_id, &self.containerd.config.version)
    }

    /// Prepares a snapshot for a layer. Returns `None` if the layer exists or a lower layer is gone.
    async fn prepare(&self, index: usize, rebases: bool) -> Result<Option<(String, SnapshotFolders)>, RuntimeError> {
        let (chain, labels) = (&self.chains[index], self.labels(index));
        let parent = if rebases { String::new() } else { self.parent_name(index) };
        let mut is_repeated = false;
        for _ in 0..TRIES_MAX {
            let key = unpack_key(chain, SystemTime::now());
            let message = PrepareSnapshotRequest {
                snapshotter: OVERLAYFS.to_owned(),
                key: key.clone(),
                parent: parent.clone(),
                labels: labels.clone(),
            };
            match self.client.prepare(message).await {
                Ok(mounts) => {
                    failpoint!("import.prepared");
                    let folders = SnapshotFolders::of_mounts(&mounts, &self.containerd.config.place.folder());
                    return match folders {
                        Ok(folders) => Ok(Some((key, folders))),
                        Err(why) => {
                            self.client.remove_snapshot(OVERLAYFS, &key).await?;
                            Err(RuntimeError::other(format!(
                                "containerd's snapshot for `{chain}` takes no layer: {why}"
                            )))
                        }
                    };
                }
                Err(error) if error.code() == Code::NotFound => return Ok(None),
                Err(error) if error.code() == Code::AlreadyExists => {
                    if self.hold(index).await? {
                        return Ok(None);
                    }
                }
                // After a power cut, the folder of the next snapshot may exist without its record. The overlay
                // snapshotter then rejects the call and removes the folder, so the next call succeeds.
                Err(error) if error.code() == Code::Unknown && !is_repeated => {
                    tracing::warn!(layer = %chain, %error, "containerd prepared no snapshot; the call is repeated once");
                    is_repeated = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Records the end of a layer's import. The first failure ends the imports of the layers above.
    pub(super) fn record(&self, index: usize, taken: &Result<Taken, RuntimeError>) {
        let end = match taken {
            Ok(Taken::Committed) => return self.has(index),
            Ok(Taken::BaseGone) => Base::Gone,
            Err(_) => Base::Broken,
        };
        self.base.send_if_modified(|base| {
            let is_first = matches!(base, Base::Has(_));
            if is_first {
                *base = end;
            }
            is_first
        });
    }

    pub(super) fn break_off(&self) {
        self.base.send_replace(Base::Broken);
    }
}

fn unpack_key(chain: &Digest, now: SystemTime) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE};
    let nanoseconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    let random = random().to_be_bytes();
    format!("extract-{nanoseconds}-{} {chain}", URL_SAFE.encode(&random[..RANDOM_BYTES]))
}

/// Random bytes of a snapshot's name. Base64 needs no padding if their number is a multiple of three.
const RANDOM_BYTES: usize = 6;
