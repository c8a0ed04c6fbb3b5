//! The leases of imports, and the state that all imports into one containerd share.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::{error::RuntimeError, lock::locked};
use tokio::{runtime::Handle, sync::watch, task::JoinHandle};

use super::ContainerdConfig;
use crate::containerd::{ContainerdClient, LeaseId};

/// The lifetime of an import's lease. It is longer than any pull takes.
const LEASE_LIFETIME: Duration = Duration::from_hours(24);

/// The leases of running imports of this process. The removal of stale leases skips them.
static RUNNING: Mutex<BTreeSet<LeaseId>> = Mutex::new(BTreeSet::new());

#[derive(Debug)]
pub(crate) struct ContainerdParts {
    pub(crate) config: ContainerdConfig,
    pub(crate) client: ContainerdClient,
    /// On: the commit sets the parent of a snapshot. Off: the preparation sets the parent.
    pub(crate) rebases: bool,
    /// Whether the lease of an ended import may still exist. If so, the next import first ends stale leases.
    pub(crate) has_stale: AtomicBool,
    pub(crate) imports: watch::Sender<usize>,
}

impl ContainerdParts {
    pub(crate) async fn release_left_behind(&self) -> Result<(), RuntimeError> {
        if self.has_stale.swap(false, Ordering::AcqRel)
            && let Err(error) = self.release_stale().await
        {
            self.has_stale.store(true, Ordering::Release);
            return Err(error);
        }
        Ok(())
    }

    pub(crate) async fn release_stale(&self) -> Result<usize, RuntimeError> {
        let leases = self.client.leases().await?;
        let own = leases.into_iter().filter_map(|lease| LeaseId::own(&lease.id));
        let stale: Vec<LeaseId> = own.filter(|lease| !locked(&RUNNING).contains(lease)).collect();
        for lease in &stale {
            self.client.delete_lease(lease, true).await?;
        }
        Ok(stale.len())
    }

    async fn release(&self, lease: &LeaseId, is_made: bool, collects: bool) {
        let ended = self.client.delete_lease(lease, collects).await;
        if let Err(error) = &ended {
            tracing::warn!(%error, "could not end the lease of an import; the next import ends it");
        }
        self.forget(lease, ended.is_err() || !is_made);
    }

    /// Removes a lease from the running leases. `may_stay` means that the lease may still exist, so it is stale.
    fn forget(&self, lease: &LeaseId, may_stay: bool) {
        if may_stay {
            self.has_stale.store(true, Ordering::Release);
        }
        locked(&RUNNING).remove(lease);
        self.imports.send_modify(|imports| *imports -= 1);
    }
}

/// Drop ends the lease in the background.
#[derive(Debug)]
pub(crate) struct ImportLease {
    pub(crate) id: LeaseId,
    containerd: Arc<ContainerdParts>,
    /// Whether containerd confirmed the creation. An unconfirmed lease may be created after the request that ends it.
    is_made: AtomicBool,
    has_ended: AtomicBool,
}

impl ImportLease {
    /// Registers the id before the lease is created, so that the removal of stale leases skips the lease.
    pub(crate) fn new(containerd: Arc<ContainerdParts>) -> Self {
        let id = LeaseId::unique();
        locked(&RUNNING).insert(id.clone());
        containerd.imports.send_modify(|imports| *imports += 1);
        Self { id, containerd, is_made: AtomicBool::new(false), has_ended: AtomicBool::new(false) }
    }

    pub(crate) async fn make(&self) -> Result<(), RuntimeError> {
        self.containerd.client.create_lease(&self.id, LEASE_LIFETIME).await?;
        self.is_made.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) async fn end(&self, collects: bool) {
        if let Some(ended) = self.begin_end(collects) {
            // If the task fails, the lease stays until it expires.
            let _ = ended.await;
        }
    }

    /// A separate task ends the lease, because the cancellation of the caller must not interrupt it.
    fn begin_end(&self, collects: bool) -> Option<JoinHandle<()>> {
        if self.has_ended.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (containerd, id) = (Arc::clone(&self.containerd), self.id.clone());
        let is_made = self.is_made.load(Ordering::Acquire);
        let Ok(runtime) = Handle::try_current() else {
            containerd.forget(&id, true);
            return None;
        };
        Some(runtime.spawn(async move { containerd.release(&id, is_made, collects).await }))
    }
}

impl Drop for ImportLease {
    fn drop(&mut self) {
        drop(self.begin_end(true));
    }
}
