//! The service of images: finds and lists the images of an embedded store or of a runtime.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::SystemTime,
};

use imagelet_core::{
    audit_log::{Act, ActCode, AuditLog},
    credentials::{Credential, NodeKeyring, TrackedCredential},
    disks::{DiskProbe as _, DiskStats, DiskUse, StatVfs},
    events::{Event, EventKind, EventSink as _, EventSubject, LogEvents},
    image::{ByteSize, Image, ImageId, ImageKey, ImageSpec, Reference, shown_name},
    inventory::{Inventory, Snapshot},
    ports::{Certainty, LayerGraph, LocalStore, RuntimeManager},
};

use tokio::sync::watch;

use super::image_row::{row, row_without_uses};
use crate::{api::ImageRow, config::Settings, failure::Failure};

#[derive(Clone, Debug)]
pub struct Images {
    pub runtime: RuntimeManager,
    pub inventory: Arc<Inventory>,
    pub keyring: Arc<NodeKeyring>,
    pub log: Arc<AuditLog>,
    pub events: Arc<LogEvents>,
    pub place: Arc<NodePlace>,
    pub settings: watch::Sender<Arc<Settings>>,
}

#[derive(Debug)]
pub struct NodePlace {
    /// The text `store DIR` or `runtime URI`.
    pub backend: String,
    pub state: PathBuf,
    pub is_read_only: bool,
    pub is_daemon: bool,
    /// Whether the uses of images are known. If they are unknown, no image may be collected.
    pub uses_known: bool,
    /// Whether the next collection is the first on this node, which also reports the images that the daemon adopted.
    pub first_run_adopts: AtomicBool,
}

impl Images {
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.borrow())
    }

    pub async fn refresh(&self) -> Result<Arc<Snapshot>, Failure> {
        Ok(self.inventory.refresh(SystemTime::now()).await?)
    }

    pub(crate) fn record_event(&self, kind: EventKind, reason: &'static str, message: String) {
        let subject = EventSubject::Node;
        self.events.record(Event { kind, reason, message, note: None, subject, cause: None });
    }

    pub async fn disks(&self) -> Result<DiskStats, String> {
        let reported = self.runtime.filesystem().await.map_err(|error| error.chain())?;
        let measured = tokio::task::spawn_blocking(move || DiskStats::measure(&reported, &StatVfs)).await;
        measured.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// Returns the directory of the images and the use of its disk. `None`: this process cannot see the disk.
    pub(crate) async fn disk(&self) -> Result<(String, Option<DiskUse>), Failure> {
        let images = self.runtime.filesystem().await?.images;
        let mountpoint = images.into_iter().next().map(|place| place.mountpoint).unwrap_or_default();
        let disk = StatVfs.look(&mountpoint).ok().filter(|disk| disk.capacity > ByteSize::ZERO);
        Ok((mountpoint.display().to_string(), disk))
    }

    /// The bytes of the store. `None` for a runtime: containerd omits the content, and CRI-O the layers of images.
    pub(crate) async fn store_bytes(&self) -> Result<Option<ByteSize>, Failure> {
        if self.local().is_none() {
            return Ok(None);
        }
        Ok(self.runtime.filesystem().await?.images.first().map(|usage| usage.used))
    }

    pub(crate) async fn sizes(&self) -> Result<KnownSizes, Failure> {
        let layers = match self.runtime.layers().await {
            Err(error) if self.local().is_none() => {
                tracing::warn!(error = error.chain(), "sizes of images are those that the runtime lists");
                None
            }
            layers => layers?,
        };
        Ok(KnownSizes { store_bytes: self.store_bytes().await?, layers })
    }

    pub async fn rows(&self) -> Result<Vec<ImageRow>, Failure> {
        self.listed(&self.sizes().await?).await
    }

    pub(crate) async fn listed(&self, sizes: &KnownSizes) -> Result<Vec<ImageRow>, Failure> {
        let refreshed = self.refresh().await;
        let shares = sizes.layers.as_ref().map(LayerGraph::shares).unwrap_or_default();
        let mut rows: Vec<ImageRow> = match refreshed {
            Ok(snapshot) => snapshot.entries.iter().map(|entry| row(entry, &shares)).collect(),
            Err(failure) if self.local().is_none() => return Err(failure),
            // The runtime that runs containers from this store does not answer, so only the store is listed.
            Err(failure) => {
                tracing::warn!(error = failure.to_string(), "it is not known which images are in use");
                let images = self.runtime.list(None).await?;
                images.iter().map(|image| row_without_uses(image, &shares)).collect()
            }
        };
        rows.sort_by(|a, b| (a.shown_names(), &a.id).cmp(&(b.shown_names(), &b.id)));
        Ok(rows)
    }

    /// Finds an image by any form of its name, or by a prefix of its id. An unknown image is a failure.
    pub async fn find(&self, text: &str) -> Result<Image, Failure> {
        let found = self.look(text).await?;
        found.ok_or_else(|| {
            Failure::new("NotFound", format!("no image `{}`", shown_name(text)))
                .or_hint("`imagelet ls` lists what is present")
        })
    }

    pub async fn look(&self, text: &str) -> Result<Option<Image>, Failure> {
        if text.is_empty() {
            return Err(Failure::invalid("an empty text names no image"));
        }
        if let Some(image) = self.runtime.status(&ImageSpec::new(text)).await? {
            return Ok(Some(image));
        }
        // A runtime matches names literally, so a short name is completed with registry and tag.
        match text.parse::<Reference>() {
            Ok(reference) if reference.to_string() != text => {
                Ok(self.runtime.status(&ImageSpec::new(reference.canonical().to_string())).await?)
            }
            _ => Ok(None),
        }
    }

    /// Returns a function from a repository to the node's usable credentials, in the order in which a pull tries them.
    pub(crate) async fn credentials(&self) -> impl Fn(&str) -> Vec<Credential> + Send + Sync + use<> {
        let keyring = self.keyring.keyring().await;
        move |repository| {
            let found = keyring.lookup_at(repository).into_iter().filter(TrackedCredential::is_usable);
            found.map(|tracked| tracked.credential).collect()
        }
    }

    pub fn local(&self) -> Option<&dyn LocalStore> {
        self.runtime.local()
    }

    pub fn store(&self, what: &str) -> Result<&dyn LocalStore, Failure> {
        self.local().ok_or_else(|| {
            Failure::new("Unsupported", format!("{what} needs the embedded store, this is {}", self.place.backend))
                .or_hint("use `--store DIR`")
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct KnownSizes {
    pub(crate) store_bytes: Option<ByteSize>,
    pub(crate) layers: Option<LayerGraph>,
}

impl KnownSizes {
    /// The bytes that the removal of an image from a runtime frees. `None`: not every layer was measured.
    pub(crate) fn freed_by(&self, image: &ImageId) -> Option<u64> {
        let graph = self.layers.as_ref().filter(|graph| graph.certainty == Certainty::Exact)?;
        Some(graph.freed_by([image]).bytes.0)
    }

    pub(crate) fn total(&self) -> Option<(u64, Certainty)> {
        let store = self.store_bytes.map(|bytes| (bytes.0, Certainty::Exact));
        store.or_else(|| self.layers.as_ref().map(|graph| (graph.total().0, graph.certainty)))
    }
}

pub(crate) fn act_now(code: ActCode, keys: &[ImageKey], names: &[String], by: &str) -> Act {
    Act { keys: keys.iter().map(ToString::to_string).collect(), ..Act::new(code, names.to_vec(), by) }
}
