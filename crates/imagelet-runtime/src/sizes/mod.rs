//! Exact sizes of containerd's images: shared parts, the disk usage of each part, and which images are artifacts.
//!
//! The sizes are from containerd's own records. imagelet walks no file tree and reads no blob.

mod graph;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ARTIFACT_TYPE_LABEL, Artifact, ByteSize, ImageId},
    lock::locked,
    ports::{Freed, LayerGraph, LayerSource},
};
use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use tonic::Code;

pub(crate) use self::graph::refers_to_snapshot;
pub use self::graph::{CommittedSnapshot, Listed};
use self::graph::{PartFolders, TooEntangled, snapshotters};
use crate::containerd::{
    ContainerdClient, ContainerdError, NAMESPACE,
    v1::{content, introspection, leases, snapshots},
};

const USAGES_AT_ONCE: usize = 32;
const LEASES_AT_ONCE: usize = 16;
const LEASES_MAX: usize = 10_000;
const NAMESPACES_MAX: usize = 64;
const SNAPSHOTTERS_MAX: usize = 16;

const IMAGES_KNOWN_MAX: usize = 20_000;

/// A list of images waits for the query for artifacts.
const ARTIFACTS_MAX: Duration = Duration::from_secs(2);
/// The wait after a failed query for artifacts. During this wait, lists of images mark no new artifact.
const ARTIFACTS_AGAIN: Duration = Duration::from_secs(10);

const EXPIRES: &str = "containerd.io/gc.expire";

#[derive(Debug)]
pub struct ContainerdSizes {
    client: ContainerdClient,
    survey_max: Duration,
    /// The snapshot usages of the last survey. The usage of a committed snapshot never changes.
    usages: Mutex<HashMap<CommittedSnapshot, Freed>>,
    /// The images of earlier lists, with `Some` for an artifact. Entries stay valid: the image of an id never changes.
    artifacts: Mutex<HashMap<ImageId, Option<Arc<Artifact>>>>,
    /// The time of the last query for artifacts, if it failed. `None` means that it succeeded.
    unanswered: Mutex<Option<Instant>>,
}

impl ContainerdSizes {
    /// A survey of all images takes at most `survey_max`.
    pub fn new(client: ContainerdClient, survey_max: Duration) -> Self {
        Self { client, survey_max, usages: Mutex::default(), artifacts: Mutex::default(), unanswered: Mutex::default() }
    }

    async fn survey(&self) -> Result<LayerGraph, ContainerdError> {
        // In this order, each list has the objects to which the previous list refers, if they still exist.
        let images = self.client.images().await?;
        let contents = self.client.contents().await?;
        let named = snapshotters(&images, &contents);
        let (snapshots, leased, elsewhere) = tokio::try_join!(self.snapshots(named), self.leased(), self.elsewhere())?;
        let folders = self.folders().await;
        let listed = Listed { images, contents, snapshots, leased, elsewhere, folders, ..Listed::default() };
        let entangled = |error: TooEntangled| self.client.unexpected("Content.List", "", &error.to_string());
        let (committed, mut listed) = on_thread(move || (listed.committed(), listed)).await;
        listed.usages = self.usages_of(committed.map_err(entangled)?).await?;
        locked(&self.usages).clone_from(&listed.usages);
        on_thread(move || listed.graph()).await.map_err(entangled)
    }

    /// The folders of blobs and snapshots. Parts of an unknown folder count as part of the measured file system.
    async fn folders(&self) -> PartFolders {
        let of = |stores: Result<Vec<introspection::Plugin>, ContainerdError>, below: &'static str| {
            let stores = stores.unwrap_or_else(|error| {
                tracing::debug!(%error, "could not ask where containerd keeps its content");
                Vec::new()
            });
            let folder = move |plugin: introspection::Plugin| {
                let root = plugin.exports.get("root").map(Path::new).filter(|root| root.is_absolute())?;
                // The subfolder `below` is used instead of the root, because it may be a mount point.
                Some((plugin.id, Arc::from(root.join(below))))
            };
            stores.into_iter().filter_map(folder)
        };
        let (contents, snapshotters) =
            tokio::join!(self.client.plugins("io.containerd.content.v1"), self.client.snapshotters());
        PartFolders {
            contents: of(contents, "blobs").map(|(_, folder)| folder).next(),
            snapshots: of(snapshotters, "snapshots").collect(),
        }
    }

    async fn snapshots(
        &self,
        named: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Vec<snapshots::Info>>, ContainerdError> {
        if named.len() > SNAPSHOTTERS_MAX {
            let why = format!("labels refer to {} snapshotters; the limit is {SNAPSHOTTERS_MAX}", named.len());
            return Err(self.client.unexpected("Content.List", "", &why));
        }
        let mut all = BTreeMap::new();
        for snapshotter in named {
            match self.client.snapshots(&snapshotter).await {
                Ok(snapshots) => drop(all.insert(snapshotter, snapshots)),
                // The snapshotter's plugin is no longer loaded, but labels still refer to the snapshotter.
                Err(error) if matches!(error.code(), Code::NotFound | Code::Unknown) => {
                    tracing::debug!(snapshotter, %error, "could not list the snapshots of a snapshotter");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    async fn leased(&self) -> Result<Vec<leases::Resource>, ContainerdError> {
        let (leases, now) = (self.client.leases().await?, Timestamp::now());
        let leases: Vec<_> = leases.into_iter().filter(|lease| !has_expired(lease, now)).collect();
        if leases.len() > LEASES_MAX {
            let why = format!("{} leases are listed; the limit is {LEASES_MAX}", leases.len());
            return Err(self.client.unexpected("Leases.List", "", &why));
        }
        let asked = stream::iter(leases).map(async |lease| self.client.leased(&lease.id).await);
        let resources: Vec<Vec<leases::Resource>> = asked.buffer_unordered(LEASES_AT_ONCE).try_collect().await?;
        Ok(resources.into_iter().flatten().collect())
    }

    /// Digests of the blobs of other namespaces. All namespaces share one file of a blob.
    async fn elsewhere(&self) -> Result<HashSet<String>, ContainerdError> {
        let namespaces = self.client.namespaces().await?;
        if namespaces.len() > NAMESPACES_MAX {
            let why = format!("{} namespaces are listed; the limit is {NAMESPACES_MAX}", namespaces.len());
            return Err(self.client.unexpected("Namespaces.List", "", &why));
        }
        let mut elsewhere = HashSet::new();
        for namespace in namespaces.iter().filter(|name| *name != NAMESPACE) {
            elsewhere.extend(self.client.within(namespace)?.contents().await?.into_iter().map(|blob| blob.digest));
        }
        Ok(elsewhere)
    }

    async fn usages_of(
        &self,
        snapshots: Vec<CommittedSnapshot>,
    ) -> Result<HashMap<CommittedSnapshot, Freed>, ContainerdError> {
        let asked = stream::iter(snapshots).map(async |snapshot| {
            let known = locked(&self.usages).get(&snapshot).copied();
            if known.is_some() {
                return Ok(known.map(|usage| (snapshot, usage)));
            }
            let usage = self.client.usage(&snapshot.snapshotter, &snapshot.name).await?;
            let usage = usage.and_then(|usage| {
                Some(Freed {
                    bytes: ByteSize(u64::try_from(usage.size).ok()?),
                    inodes: u64::try_from(usage.inodes).ok()?,
                })
            });
            Ok::<_, ContainerdError>(usage.map(|usage| (snapshot, usage)))
        });
        asked.buffer_unordered(USAGES_AT_ONCE).try_filter_map(async |usage| Ok(usage)).try_collect().await
    }

    /// Queries which listed images are artifacts. An import labels their configuration, whose digest is the image id.
    async fn learn(&self, listed: &[&ImageId]) -> Result<(), ContainerdError> {
        let blobs = match self.client.contents_with(ARTIFACT_TYPE_LABEL).await {
            // The socket is not containerd's, so imagelet has imported no artifact into this runtime.
            Err(error) if error.code() == Code::Unimplemented => Vec::new(),
            blobs => blobs?,
        };
        let read = |blob: &content::Info| Artifact::from_labels(&blob.labels).map(Arc::new);
        let found: HashMap<&str, _> = blobs.iter().map(|blob| (blob.digest.as_str(), read(blob))).collect();
        let mut known = locked(&self.artifacts);
        if known.len() + listed.len() > IMAGES_KNOWN_MAX {
            known.clear();
        }
        known.extend(listed.iter().map(|id| ((*id).clone(), found.get(id.as_str()).cloned().flatten())));
        Ok(())
    }
}

async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Whether a lease has expired, as in containerd's collector. A lease with an unreadable time never expires.
pub(crate) fn has_expired(lease: &leases::Lease, now: Timestamp) -> bool {
    lease.labels.get(EXPIRES).and_then(|moment| moment.parse::<Timestamp>().ok()).is_some_and(|end| end < now)
}

#[async_trait]
impl LayerSource for ContainerdSizes {
    /// Surveys the sizes of all images. `None` means that the socket does not serve containerd's own API.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        match timeout(self.survey_max, self.survey()).await {
            Ok(Ok(graph)) => Ok(Some(graph)),
            Ok(Err(error)) if error.code() == Code::Unimplemented => Ok(None),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                let message = format!("the sizes of containerd's images did not come within {:?}", self.survey_max);
                Err(RuntimeError::new(RuntimeErrorKind::TimedOut, message))
            }
        }
    }

    /// Queries containerd only if a listed image is new.
    async fn artifacts(&self, listed: &[&ImageId]) -> HashMap<ImageId, Arc<Artifact>> {
        let has_new = {
            let known = locked(&self.artifacts);
            listed.iter().any(|id| !known.contains_key(*id))
        };
        if has_new && locked(&self.unanswered).is_none_or(|at| at.elapsed() >= ARTIFACTS_AGAIN) {
            let learned = timeout(ARTIFACTS_MAX, self.learn(listed)).await;
            *locked(&self.unanswered) = (!matches!(learned, Ok(Ok(())))).then(Instant::now);
            match learned {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "could not ask containerd which images are artifacts"),
                Err(_) => tracing::debug!("containerd did not answer which images are artifacts"),
            }
        }
        let known = locked(&self.artifacts);
        let artifact = |id: &&ImageId| Some(((*id).clone(), known.get(*id)?.clone()?));
        listed.iter().filter_map(artifact).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_of_images_waits_two_seconds_for_a_containerd_that_does_not_answer_and_then_not_for_ten() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("containerd.sock");
        // The kernel accepts connections, and no process answers.
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let sizes = ContainerdSizes::new(ContainerdClient::new(&socket), Duration::from_secs(30));
        for (after, waits) in [(0, ARTIFACTS_MAX), (9, Duration::ZERO), (1, ARTIFACTS_MAX)] {
            tokio::time::advance(Duration::from_secs(after)).await;
            let asked = Instant::now();
            assert!(sizes.artifacts(&[&ImageId::new("sha256:a")]).await.is_empty());
            assert_eq!(asked.elapsed().as_secs(), waits.as_secs(), "after {after} s");
        }
    }

    #[test]
    fn a_lease_holds_until_it_expires_and_one_with_an_odd_moment_holds() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for (moment, expired) in [
            (Some("2026-01-02T03:04:04Z"), true),
            (Some("2026-01-02T05:04:04+02:00"), true),
            (Some("2026-01-02T03:04:06.5Z"), false),
            (Some("tomorrow"), false),
            (None, false),
        ] {
            let labels = moment.map(|moment| (EXPIRES.to_owned(), moment.to_owned())).into_iter().collect();
            assert_eq!(has_expired(&leases::Lease { id: "x".to_owned(), labels }, now), expired, "{moment:?}");
        }
    }
}
