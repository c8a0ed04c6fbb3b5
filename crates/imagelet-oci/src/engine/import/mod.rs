//! An import: a pull whose layers end in a sink.
//!
//! All layers run concurrently. The steps of a layer: wait for another import's fetch, check whether another import has
//! added the layer, take a spare or fetch and unpack it, pass it to the sink. At most `layers_in_flight` layers are
//! fetched at a time. The waits before and after the fetch do not count, because two imports could otherwise block each
//! other. A layer with implicit folders is passed on only when the sink has all layers below it. Until then, its tree
//! is unchanged, so the layer can be a spare if the import fails.

mod artifact;
pub(super) mod layer_turns;

use self::{artifact::ArtifactFiles, layer_turns::UnsyncedLayers};

use crate::layer_sink::{
    ImportError, ImportStage, ImportedImage, ImportedLayer, LayerImport, LayerSink, StagedTree, Taken,
};
use std::{
    cmp::Reverse,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, TryStreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    image::{Digest, ImageId, Platform, Reference},
    ports::{Freed, Progress, PullEvent, PullRequest, RegistryHost},
};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Engine, blocking,
    estimate::PullTarget,
    layer_single_flight::{FetchGuard, RaceOutcome},
    pull::{LayerFetches, announce, check_layers, tenant},
    report_present,
    space::Wanted,
};
use crate::{
    manifest::{Index, ManifestDocument, unacceptable},
    registry::{ImageDocument, Resolved},
    scarce,
    store::{DocumentBytes, LayerEnd, SpareWanted, StagedLayer, SyncView, has_folders},
    tenant::Tenant,
};

const SPARES_PERIOD: Duration = Duration::from_mins(5);
/// Maximum number of attempts of an import. An attempt ends if the runtime removes the layers on which it builds.
const BEGINS_MAX: usize = 2;

/// Pulls images into a runtime's own stores without the runtime's help.
#[derive(Debug)]
pub struct EngineImporter {
    engine: Arc<Engine>,
    sink: Arc<dyn LayerSink>,
    _trimming: AbortOnDropHandle<()>,
}

enum Ended {
    BaseGone,
    Failed(ImportError),
}

struct Described {
    resolved: Arc<Resolved>,
    image: Arc<ImportedImage>,
    chains: Vec<Digest>,
    tenant: Arc<Tenant>,
    /// The files of an artifact; `None` for an image, or for an artifact that the sink should already have.
    files: Option<ArtifactFiles>,
}

impl Described {
    fn new(resolved: Arc<Resolved>, image: ImportedImage, tenant: Arc<Tenant>, files: Option<ArtifactFiles>) -> Self {
        let chains = image.chains();
        Self { resolved, image: Arc::new(image), chains, tenant, files }
    }
}

struct Attempt<'a> {
    engine: &'a Engine,
    described: &'a Described,
    import: &'a Arc<dyn LayerImport>,
    progress: &'a Progress,
    fetches: &'a LayerFetches,
    window: Semaphore,
    taken: watch::Sender<Vec<bool>>,
    unsynced: &'a UnsyncedLayers<'a>,
}

impl Engine {
    /// Returns this engine as an importer. The importer fetches and unpacks below the engine's root, and passes the
    /// layers to the sink. Must be called within a tokio runtime.
    pub fn importer(self: &Arc<Self>, sink: Arc<dyn LayerSink>) -> Arc<EngineImporter> {
        Arc::new(EngineImporter { engine: Arc::clone(self), sink, _trimming: self.trim_spares() })
    }

    fn trim_spares(&self) -> AbortOnDropHandle<()> {
        let store = Arc::downgrade(&self.store);
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(SPARES_PERIOD).await;
                let Some(store) = store.upgrade() else { return };
                let trimmed = blocking(move || if store.trim_spares()? { store.empty_trash() } else { Ok(()) });
                if let Err(error) = trimmed.await {
                    tracing::warn!(error = error.chain(), "could not remove layers that no import came back for");
                }
            }
        }))
    }
}

impl EngineImporter {
    /// Fetches an image or an artifact and imports it. Returns when the runtime lists the durable image. Dropping the
    /// future cancels the import; the import's resources in the runtime are released in the background. The future is
    /// boxed, so that a pull is compiled in this crate alone, for speed.
    pub fn import<'a>(
        &'a self,
        request: &'a PullRequest,
        progress: Progress,
    ) -> BoxFuture<'a, Result<ImageId, ImportError>> {
        self.run(request, progress).boxed()
    }

    async fn run(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, ImportError> {
        let fetch = |error| ImportStage::Fetch.failed(error);
        if !rustix::process::geteuid().is_root() {
            let message = "only root can unpack layers as a runtime has them";
            return Err(fetch(RuntimeError::new(RuntimeErrorKind::Unsupported, message)));
        }
        let resolved = scarce::retried(|| self.engine.resolved(request, &progress)).await;
        let (target, resolved) = resolved.map_err(fetch)?;
        let (session, is_wasm) = (resolved.session.clone(), resolved.manifest.is_wasm());
        let is_artifact = resolved.manifest.artifact_kind().is_some() && !is_wasm;
        let imported = async {
            if is_wasm {
                return Err(fetch(unacceptable("it is a WebAssembly module, whose blobs the runtime's shims read")));
            }
            if is_artifact {
                self.sink.check_mounts_artifacts().map_err(|error| ImportStage::Unusable.failed(error))?;
            }
            announce(&resolved, &progress).map_err(fetch)?;
            let (config, read) =
                scarce::retried(|| self.engine.configuration(&resolved, &target)).await.map_err(fetch)?;
            check_layers(&resolved, read.diff_ids.len()).map_err(fetch)?;
            let (resolved, tenant) = (Arc::new(resolved), tenant(request));
            if is_artifact {
                return self.import_artifact(&target, resolved, &read.diff_ids, tenant, &progress).await;
            }
            let image = described_image(&target, &resolved, config, &read.diff_ids).await.map_err(fetch)?;
            self.import_described(&Described::new(resolved, image, tenant, None), &progress).await
        };
        let imported = imported.await;
        progress(PullEvent::Hosts(session.senders()));
        imported.map_err(|error| {
            let message = format!("could not import `{}`", target.reference);
            ImportError { is_artifact, cause: error.cause.about(message).not_an_outage(), ..error }
        })
    }

    /// The hosts, other than the image's registry, that an import of the image may contact.
    pub async fn registry_hosts(&self, image: &Reference) -> Vec<RegistryHost> {
        self.engine.registry.other_hosts(image).await
    }

    /// The disk space that running imports have reserved and not yet written.
    pub fn reserved(&self) -> Freed {
        self.engine.reserved()
    }

    async fn import_described(&self, described: &Described, progress: &Progress) -> Result<ImageId, ImportError> {
        let (mut waits, mut begins) = (scarce::waits(), 0);
        while begins < BEGINS_MAX {
            match self.attempt(described, progress).await {
                Ok(id) => return Ok(id),
                Err(Ended::Failed(error)) => match waits.next() {
                    Some(wait) if scarce::is_caused_by_scarcity(&error.cause) => tokio::time::sleep(wait).await,
                    _ => return Err(error),
                },
                Err(Ended::BaseGone) => {
                    begins += 1;
                    tracing::info!(image = %described.image.reference, "the runtime has removed layers that an import stands on");
                }
            }
        }
        let message = format!("the runtime has removed layers below those of the image {BEGINS_MAX} times");
        Err(ImportStage::Handover.failed(RuntimeError::new(RuntimeErrorKind::Unavailable, message)))
    }

    async fn attempt(&self, described: &Described, progress: &Progress) -> Result<ImageId, Ended> {
        let import = self.sink.begin(Arc::clone(&described.image)).await.map_err(handover)?;
        failpoint!("import.begun");
        let imported = async {
            // Dropped after the sync: until then, other imports that build on these layers must sync them, too.
            let unsynced = self.engine.turns.unsynced();
            let views = self.bring(described, &import, &unsynced, progress).await?;
            progress(PullEvent::Committing);
            if !views.is_empty() {
                let failed = |error| RuntimeError::other("could not make imported layers durable").caused_by(error);
                let synced = blocking(move || SyncView::sync_all(&views).map_err(failed)).await;
                synced.map_err(handover)?;
            }
            drop(unsynced);
            failpoint!("import.synced");
            if let Some(files) = &described.files {
                files.forget_after_crash().await.map_err(handover)?;
            }
            let id = import.finish().await.map_err(Ended::Failed)?;
            failpoint!("import.finished");
            Ok(id)
        };
        let imported = imported.await;
        if imported.is_err() {
            import.abandon().await;
        }
        imported
    }

    async fn bring(
        &self,
        described: &Described,
        import: &Arc<dyn LayerImport>,
        unsynced: &UnsyncedLayers<'_>,
        progress: &Progress,
    ) -> Result<Vec<Arc<SyncView>>, Ended> {
        let Described { resolved, image, chains, tenant, files } = described;
        let (engine, layers) = (&*self.engine, &image.layers);
        let present = import.present().min(layers.len());
        let whole = present == layers.len();
        // An artifact's blobs are all in one layer, so all are present if that layer is.
        let reported = if whole { &resolved.manifest.layers[..] } else { &resolved.manifest.layers[..present] };
        for layer in reported {
            report_present(progress, &layer.digest);
        }
        let mut views: Vec<_> = chains[..present].iter().flat_map(|chain| engine.turns.views(chain)).collect();
        if whole {
            return Ok(views);
        }
        match files {
            Some(files) => return self.bring_artifact(described, files, import, unsynced).await,
            None if image.artifact.is_some() => return Err(Ended::BaseGone),
            None => {}
        }
        let diff_ids: Vec<Digest> = layers[present..].iter().map(|layer| layer.diff_id.clone()).collect();
        // The lease protects the spares that this import takes from a sweep.
        let _lease = engine.store.lease(&diff_ids);
        let has_spare = |index: &usize| {
            engine.has_spare(&SpareWanted { diff_id: &layers[*index].diff_id, repository: None, end: LayerEnd::Sink })
        };
        let missing = (present..layers.len()).filter(|index| !has_spare(index));
        let wanted =
            |index: usize| Wanted::of((resolved, &resolved.manifest.layers[index]), chains[index].clone(), true);
        let wanted: Vec<Wanted> = missing.map(wanted).collect();
        let fetches = engine.begin_fetches(resolved, &wanted, Arc::clone(tenant), progress).await?;
        let attempt = Attempt {
            engine,
            described,
            import,
            progress,
            fetches: &fetches,
            window: Semaphore::new(engine.config.limits.layers_in_flight.max(1)),
            taken: watch::Sender::new((0..layers.len()).map(|index| index < present).collect()),
            unsynced,
        };
        // A failed layer ends the work on all layers at once, because the layers above wait for it.
        let brings = fetch_order(layers, present).into_iter().map(|index| attempt.bring(index));
        let brings = brings.collect::<FuturesUnordered<_>>().try_collect::<Vec<_>>();
        let brought = engine.with_space((&fetches.reservation, &fetches.resumption), progress, Ended::from, brings);
        views.extend(brought.await?.into_iter().flatten());
        views.push(Arc::clone(&fetches.view));
        failpoint!("import.layers-taken");
        Ok(views)
    }
}

impl Attempt<'_> {
    async fn bring(&self, index: usize) -> Result<Vec<Arc<SyncView>>, Ended> {
        let chain = &self.described.chains[index];
        let turns = &self.engine.turns;
        let Some((mut layer, guard)) = self.fetched(index).await? else {
            return Ok(self.is_present(index));
        };
        self.fetches.reservation.release(chain);
        failpoint!("import.layer-whole");
        let implicit = layer.implicit()?;
        if has_folders(&implicit) {
            let mut taken = self.taken.subscribe();
            taken.wait_for(|taken| taken[..index].iter().all(|is| *is)).await.expect("this attempt has the sender");
        }
        let (turn, is_late) = turns.turn(chain).await;
        if (is_late || guard.is_late()) && self.import.holds(index).await.map_err(handover)? {
            return Ok(self.is_present(index));
        }
        // The view is added first, because other imports may build on the layer as soon as the sink has it.
        let view = Arc::clone(&layer.unpacked.view);
        self.unsynced.add(chain, &view);
        hand_over(self.import, index, &mut layer, implicit).await?;
        failpoint!("import.layer-taken");
        drop((turn, guard));
        self.taken.send_modify(|taken| taken[index] = true);
        clear(layer).await?;
        Ok(vec![view])
    }

    fn is_present(&self, index: usize) -> Vec<Arc<SyncView>> {
        report_present(self.progress, &self.described.image.layers[index].digest);
        self.taken.send_modify(|taken| taken[..=index].fill(true));
        self.engine.turns.views(&self.described.chains[index])
    }

    /// `None`: the sink already has the layer.
    async fn fetched(&self, index: usize) -> Result<Option<(StagedLayer, FetchGuard<Infallible>)>, Ended> {
        let Described { resolved, image, chains, .. } = self.described;
        let (chain, engine) = (&chains[index], self.engine);
        let job = (&resolved.manifest.layers[index], &image.layers[index].diff_id, chain);
        let job = engine.layer_job(self.fetches, resolved, job, LayerEnd::Sink);
        // The first check is needed only if another import has passed the layer to the sink.
        let may_be_present = AtomicBool::new(!engine.turns.views(chain).is_empty());
        let present = async |_| {
            let looks = may_be_present.swap(true, Ordering::Relaxed);
            Ok::<_, Ended>((looks && self.import.holds(index).await.map_err(handover)?).then_some(()))
        };
        let (turns, key, window) = (&engine.turns.fetching, (chain.clone(), None), Some(&self.window));
        Ok(match engine.bring_layer(turns, key, &job, window, self.progress, present).await? {
            RaceOutcome::Present(()) => None,
            RaceOutcome::Own(layer, guard) => Some((layer, guard)),
        })
    }
}

impl From<RuntimeError> for Ended {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(ImportStage::Fetch.failed(error))
    }
}

fn handover(error: RuntimeError) -> Ended {
    Ended::Failed(ImportStage::Handover.failed(error))
}

async fn hand_over(
    import: &Arc<dyn LayerImport>,
    index: usize,
    layer: &mut StagedLayer,
    implicit: Vec<Vec<u8>>,
) -> Result<(), Ended> {
    let (folder, blob) = layer.tree(&implicit).map_err(handover)?;
    match import.take(index, StagedTree { folder, implicit, blob }).await.map_err(handover)? {
        Taken::Committed => Ok(()),
        Taken::BaseGone => Err(Ended::BaseGone),
    }
}

/// Removes the rest of a layer that the sink has.
async fn clear(layer: StagedLayer) -> Result<(), Ended> {
    tokio::task::spawn_blocking(move || layer.taken()).await.map_err(|error| handover(error.into()))
}

/// The largest layer is first, because it determines the duration of an import. The other layers follow from the
/// bottom, because a sink adds a layer on top of the layers below it.
fn fetch_order(layers: &[ImportedLayer], present: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (present..layers.len()).collect();
    let largest = order.iter().copied().max_by_key(|index| (layers[*index].size, Reverse(*index)));
    order.sort_by_key(|index| (Some(*index) != largest, *index));
    order
}

async fn described_image(
    target: &PullTarget,
    resolved: &Resolved,
    config: DocumentBytes,
    diff_ids: &[Digest],
) -> Result<ImportedImage, RuntimeError> {
    let layers = resolved.manifest.layers.iter().zip(diff_ids).map(|(layer, diff_id)| ImportedLayer {
        digest: layer.digest.clone(),
        size: layer.size,
        diff_id: diff_id.clone(),
    });
    let (by_tag, by_digest) = target.reference.names_of(&resolved.root.digest);
    Ok(ImportedImage {
        reference: target.reference.clone(),
        names: by_tag.into_iter().chain([by_digest]).collect(),
        artifact: None,
        root: resolved.root.clone(),
        manifest: resolved.chosen.clone(),
        config: ImageDocument {
            digest: resolved.manifest.config.digest.clone(),
            media_type: resolved.manifest.config.media_type.clone(),
            bytes: config,
        },
        layers: layers.collect(),
        index_entries: index_entries(resolved, &target.platform).await?,
    })
}

async fn index_entries(resolved: &Resolved, platform: &Platform) -> Result<Vec<Digest>, RuntimeError> {
    let (root, chosen) = (&resolved.root, &resolved.chosen);
    if root.digest == chosen.digest {
        return Ok(Vec::new());
    }
    let parsed = resolved.session.parse(&root.bytes, |bytes| ManifestDocument::parse(bytes, &root.media_type));
    let entries: Vec<Digest> = match parsed.await?? {
        ManifestDocument::Index(index) if !index.leads_runtimes_to(&chosen.digest, platform) => {
            let message = "its index names no platform for the image, which the runtime would not find";
            return Err(RuntimeError::new(RuntimeErrorKind::Unsupported, message));
        }
        ManifestDocument::Index(Index { manifests }) => manifests.into_iter().map(|entry| entry.digest).collect(),
        ManifestDocument::Image(_) => Vec::new(),
    };
    if !entries.contains(&chosen.digest) {
        let message = "it is an index of indexes, whose records are not made here";
        return Err(RuntimeError::new(RuntimeErrorKind::Unsupported, message));
    }
    Ok(entries)
}
