//! A pull from the reference to the committed image, with the steps that an import shares.

use std::{
    cmp::Reverse,
    convert::identity,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Digest, ImageId, ImageUser, counted},
    ports::{Progress, PullEvent, PullRequest, PulledArtifact, PulledLayer, PulledManifest},
};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Engine, estimate::PullTarget, report_present, sharing::only_from, space::Wanted};
use crate::{
    admission::Reservation,
    manifest::{BlobLayout, CONFIG_BYTES_MAX, Descriptor, DescriptorPlatform, ImageConfig, printable},
    pipeline::{CompressedCopy, LayerJob, LayerStaging, SlotRequest, UnpackTerms},
    registry::Resolved,
    store::{
        ContinuedPartials, DocumentBytes, ImageRecord, LayerEnd, NewImage, PartialKey, Resumption, SpareWanted,
        StagedLayer, SyncView,
    },
    tenant::Tenant,
    unpack::DiskUsage,
};

pub(super) struct LayerFetches {
    pub(super) reservation: Reservation,
    /// Opened before the first byte of a layer is written, so that it receives every write error.
    pub(super) view: Arc<SyncView>,
    pub(super) resumption: Resumption,
    allowance: Arc<AtomicU64>,
    claim: SlotRequest,
    _continued: ContinuedPartials,
    _early_syncs: Option<AbortOnDropHandle<()>>,
}

impl Engine {
    pub(super) async fn pull_once(&self, request: &PullRequest, progress: &Progress) -> Result<ImageId, RuntimeError> {
        let (target, resolved) = self.resolved(request, progress).await?;
        let session = resolved.session.clone();
        let failed = format!("could not fetch and unpack `{}`", target.reference);
        // The registry has resolved the name, so after a later error the present image is no substitute.
        let fetched = self.fetch(target, resolved, tenant(request), progress).await;
        progress(PullEvent::Hosts(session.senders()));
        fetched.map_err(|error| error.about(&failed).not_an_outage())
    }

    /// The request's target and its resolution, from the preceding estimate or from the registry. The signature policy
    /// has accepted the resolution.
    pub(super) async fn resolved(
        &self,
        request: &PullRequest,
        progress: &Progress,
    ) -> Result<(PullTarget, Resolved), RuntimeError> {
        let target = PullTarget::by(request)?;
        self.store.check_writable()?;
        let resolved = match self.resolutions.take(&target, Instant::now()) {
            Some(resolved) => {
                resolved.session.report_to(progress);
                resolved
            }
            None => self.resolve(&target, Some(progress)).await?,
        };
        let checked = self.check_signatures(&resolved).await;
        checked.inspect_err(|_| progress(PullEvent::Hosts(resolved.session.senders())))?;
        Ok((target, resolved))
    }

    async fn fetch(
        &self,
        target: PullTarget,
        resolved: Resolved,
        tenant: Arc<Tenant>,
        progress: &Progress,
    ) -> Result<ImageId, RuntimeError> {
        let id = resolved.image_id();
        let (by_tag, by_digest) = target.reference.names_of(&resolved.root.digest);
        let names: Vec<String> = by_tag.into_iter().chain([by_digest]).collect();
        announce(&resolved, progress)?;
        // Only an image that was pulled from this repository is reused; else the registry must send the configuration.
        if self.store.is_named_in(&id, resolved.session.reference().repository()) {
            self.check_present(&resolved, &target)?;
            if self.already_here(&resolved, &names, progress).await? {
                return Ok(id);
            }
        }
        let config = self.configuration(&resolved, &target).await?;
        self.fetch_layers(&resolved, config, names, tenant, progress).await
    }

    pub(super) async fn configuration(
        &self,
        resolved: &Resolved,
        target: &PullTarget,
    ) -> Result<(DocumentBytes, ImageConfig), RuntimeError> {
        let described = &resolved.manifest.config;
        let bytes = resolved.session.fetch_document_blob(described, CONFIG_BYTES_MAX).await?;
        let config = resolved.session.parse(&bytes, |bytes| resolved.manifest.read_config(bytes)).await?;
        let config = config
            .and_then(|config| check_platform(&config.platform, resolved, target).map(|()| config))
            .map_err(|error| error.about(format!("the configuration `{}` is refused", described.digest)))?;
        Ok((bytes, config))
    }

    pub(super) async fn begin_fetches(
        &self,
        resolved: &Resolved,
        wanted: &[Wanted],
        tenant: Arc<Tenant>,
        progress: &Progress,
    ) -> Result<LayerFetches, RuntimeError> {
        // The space stays reserved until the image is committed, or its leftovers are in the trash.
        let pull = self.pulls.fetch_add(1, Ordering::Relaxed);
        let (reservation, continued) = self.admit(wanted, (pull, Arc::clone(&tenant)), progress).await?;
        let view = self.on_disk(|store| store.pull_view()).await?;
        let claim = SlotRequest {
            registry: resolved.session.reference().domain().to_owned(),
            tenant,
            pull,
            image: resolved.session.reference().to_string().into(),
        };
        let allowance = Arc::new(AtomicU64::new(self.config.limits.expansion_free));
        let resumption = Resumption::new(self.config.resume_for > Duration::ZERO);
        let early_syncs = self.sync_early();
        Ok(LayerFetches {
            reservation,
            view,
            resumption,
            allowance,
            claim,
            _continued: continued,
            _early_syncs: early_syncs,
        })
    }

    /// A layer to fetch. `reserved` is the key of the layer's reservation.
    pub(super) fn layer_job(
        &self,
        fetches: &LayerFetches,
        resolved: &Resolved,
        (descriptor, diff_id, reserved): (&Descriptor, &Digest, &Digest),
        end: LayerEnd,
    ) -> LayerJob {
        let repository = only_from(&resolved.manifest, resolved.session.reference());
        let artifact = resolved.manifest.layout(descriptor);
        LayerJob {
            session: resolved.session.clone(),
            descriptor: descriptor.clone(),
            diff_id: diff_id.clone(),
            claim: fetches.claim.clone(),
            staging: LayerStaging {
                store: Arc::clone(&self.store),
                end,
                view: Arc::clone(&fetches.view),
                written_bytes: fetches.reservation.written_bytes(reserved),
            },
            blob: CompressedCopy {
                // An artifact's file needs no kept blob, because the file is the blob.
                is_kept: self.config.keep_blobs && !matches!(artifact, Some(BlobLayout::File(_))),
                resumption: fetches.resumption.clone(),
                key: PartialKey::new(&descriptor.digest, repository),
                unreserved_space: self.unreserved_space(),
                trusts_kept: self.may_share(repository, diff_id),
                whole: Vec::new(),
            },
            artifact,
            terms: UnpackTerms {
                limits: self.config.limits,
                allowance: Arc::clone(&fetches.allowance),
                budget: Arc::clone(&self.budget),
                confinement: self.confinement.clone(),
                hold: self.config.hold,
                is_largest: resolved.manifest.layers.iter().all(|other| other.size <= descriptor.size),
            },
        }
    }

    pub(super) async fn fetch_layers(
        &self,
        resolved: &Resolved,
        (config_bytes, config): (DocumentBytes, ImageConfig),
        names: Vec<String>,
        tenant: Arc<Tenant>,
        progress: &Progress,
    ) -> Result<ImageId, RuntimeError> {
        let layers = &resolved.manifest.layers;
        check_layers(resolved, config.diff_ids.len())?;
        self.refuse_if_mounted(&config.diff_ids).await?;
        let lease = self.store.lease(&config.diff_ids);
        let (fetches, staged) =
            self.stage_layers(resolved, &config.diff_ids, LayerEnd::Store, tenant, progress).await?;
        let resumption = &fetches.resumption;
        if ImageUser::of_config(&config.user).is_out_of_range() {
            tracing::warn!(image = %resolved.image_id(), user = printable(&config.user), "the image's user is a number that no system has");
        }
        progress(PullEvent::Committing);
        let checked = self.check_artifact(&resolved.manifest, &staged).await;
        checked.inspect_err(|error| resumption.heed(error))?;
        let entries = self.entries(layers, &config.diff_ids, &staged);
        let new = new_image(resolved, &config, config_bytes, entries, names);
        let (view, resumption) = (Arc::clone(&fetches.view), resumption.clone());
        let committed = self.on_disk(move |store| {
            let committed = store.commit(new, &staged, &view).inspect_err(|error| resumption.heed(error));
            drop(lease);
            // If the commit has failed, the placed layers belong to no image.
            if committed.is_err()
                && let Err(error) = store.sweep()
            {
                tracing::warn!(
                    error = error.chain(),
                    "could not clear what a failed commit left; the next sweep takes it"
                );
            }
            committed
        });
        let committed = committed.await;
        self.sync_background_soon();
        committed
    }

    /// Fetches and stages the layers that are not in the store, the largest first. `diff_ids` are their keys.
    pub(super) async fn stage_layers(
        &self,
        resolved: &Resolved,
        diff_ids: &[Digest],
        end: LayerEnd,
        tenant: Arc<Tenant>,
        progress: &Progress,
    ) -> Result<(LayerFetches, Vec<Arc<StagedLayer>>), RuntimeError> {
        let layers = &resolved.manifest.layers;
        let repository = only_from(&resolved.manifest, resolved.session.reference());
        let wanted = layers.iter().zip(diff_ids);
        let wanted: Vec<Wanted> = wanted
            .filter(|(_, diff_id)| !self.store.has_spare(&SpareWanted { diff_id, repository, end }))
            .map(|(layer, diff_id)| {
                let is_fetched = !self.may_share(repository, diff_id);
                Wanted::of((resolved, layer), diff_id.clone(), is_fetched)
            })
            .collect();
        let fetches = self.begin_fetches(resolved, &wanted, tenant, progress).await?;
        let jobs = layers
            .iter()
            .zip(diff_ids)
            .map(|(descriptor, diff_id)| self.layer_job(&fetches, resolved, (descriptor, diff_id, diff_id), end));
        let mut jobs: Vec<LayerJob> = jobs.collect();
        // The largest layer determines the duration of a pull, so it must not start last.
        jobs.sort_by_cached_key(|job| (Reverse(job.descriptor.size), job.descriptor.digest.clone()));
        let LayerFetches { reservation, resumption, .. } = &fetches;
        // A blob under two names is fetched once. The second file is a copy of the first.
        let blobs = jobs.chunk_by(|one, other| one.descriptor.digest == other.descriptor.digest);
        let blobs: Vec<Vec<LayerJob>> = blobs.map(<[_]>::to_vec).collect();
        let staging = stream::iter(blobs)
            .map(|same| async move {
                let (mut staged, mut whole) = (Vec::new(), Vec::new());
                for mut job in same {
                    job.blob.whole = std::mem::take(&mut whole);
                    let (layer, path) = (job.diff_id.clone(), job.file_path().map(str::to_owned));
                    let fetched = self.fetch_layer(job, repository, progress).await;
                    let fetched = fetched.inspect_err(|error| resumption.heed(error))?;
                    reservation.release(&layer);
                    let trees =
                        fetched.iter().map(|fetched| fetched.staged_tree()).chain([self.store.layer_tree(&layer)]);
                    whole = path.map_or_else(Vec::new, |path| trees.map(|tree| tree.join(&path)).collect());
                    staged.extend(fetched);
                }
                Ok::<_, RuntimeError>(staged)
            })
            .buffer_unordered(self.config.limits.layers_in_flight.max(1))
            .try_concat();
        let staged: Vec<Arc<StagedLayer>> =
            self.with_space((reservation, resumption), progress, identity, staging).await?;
        Ok((fetches, staged))
    }

    /// Applies the limits to a present image, too: the result must not depend on present content.
    fn check_present(&self, resolved: &Resolved, target: &PullTarget) -> Result<(), RuntimeError> {
        let Some((record, _)) = self.store.image(&resolved.image_id()) else { return Ok(()) };
        let (os, architecture) = record.pulled.platform.split_once('/').unwrap_or_default();
        // The record has no variant, so the requested variant is assumed: an accepted image stays accepted.
        let variant = target.platform.variant.clone().unwrap_or_default();
        let platform = DescriptorPlatform { os: os.into(), architecture: architecture.into(), variant };
        check_platform(&platform, resolved, target)?;
        check_layers(resolved, record.pulled.layers.len())
    }

    pub(super) async fn already_here(
        &self,
        resolved: &Resolved,
        names: &[String],
        progress: &Progress,
    ) -> Result<bool, RuntimeError> {
        let (id, names) = (resolved.image_id(), names.to_vec());
        let here = self.on_disk(move |store| store.add_names(&id, &names)).await?;
        if here {
            resolved.manifest.layers.iter().for_each(|layer| report_present(progress, &layer.digest));
        }
        Ok(here)
    }
}

pub(super) fn tenant(request: &PullRequest) -> Arc<Tenant> {
    Arc::new(Tenant { namespace: request.pod.namespace.to_string(), credential: request.credential.clone() })
}

/// Reports the resolution. First checks that all layer types are supported, before any layer byte is fetched.
pub(super) fn announce(resolved: &Resolved, progress: &Progress) -> Result<(), RuntimeError> {
    resolved.manifest.check_layers()?;
    let layers = resolved.manifest.layers.iter();
    progress(PullEvent::Resolved {
        manifest: resolved.chosen.digest.clone(),
        layers: layers.map(|layer| (layer.digest.clone(), ByteSize(layer.size))).collect(),
    });
    Ok(())
}

fn check_platform(own: &DescriptorPlatform, resolved: &Resolved, target: &PullTarget) -> Result<(), RuntimeError> {
    if let Some(other) = resolved.check_platform(own, &target.platform, target.is_platform_given)? {
        let why = if resolved.is_named { "its index names that platform" } else { "it has no index" };
        let text = format!("{other}; it is taken, since {why}");
        tracing::warn!(image = %target.reference, "{text}");
        resolved.session.report(PullEvent::Warning { text });
    }
    Ok(())
}

pub(super) fn check_layers(resolved: &Resolved, diff_ids: usize) -> Result<(), RuntimeError> {
    let layers = resolved.manifest.layers.len();
    if layers == diff_ids {
        return Ok(());
    }
    let id = resolved.image_id();
    let layers = counted(layers, "layer");
    let message = format!("the manifest has {layers} and the configuration `{id}` {diff_ids}");
    Err(RuntimeError::new(RuntimeErrorKind::Corrupt, message))
}

fn new_image(
    resolved: &Resolved,
    config: &ImageConfig,
    config_bytes: DocumentBytes,
    layers: Vec<PulledLayer>,
    names: Vec<String>,
) -> NewImage {
    let Resolved { root, chosen, manifest, .. } = resolved;
    let index = (root.digest != chosen.digest).then_some(root);
    let kind = manifest.artifact_kind();
    let record = ImageRecord {
        id: manifest.id(&chosen.digest).clone(),
        index: index.map(|index| index.digest.clone()),
        pulled: PulledManifest {
            digest: chosen.digest.clone(),
            platform: if kind.is_some() {
                String::new()
            } else {
                format!("{}/{}", config.platform.os, config.platform.architecture)
            },
            artifact: kind.map(|kind| PulledArtifact { kind: printable(kind), config: manifest.config.digest.clone() }),
            layers,
            at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        },
        metadata_size: (chosen.bytes.len() + config_bytes.len()) as u64,
        user: config.user.clone(),
        allocated: DiskUsage::default(),
        names,
    };
    let mut files = vec![("manifest.json", chosen.bytes.clone()), ("config.json", config_bytes)];
    files.extend(index.map(|index| ("index.json", index.bytes.clone())));
    NewImage { record, files }
}
