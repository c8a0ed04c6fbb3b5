//! Compares the store with what was pulled; a damaged image is no longer shown.

pub(super) mod repair;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use imagelet_core::{
    image::{Digest, ImageId, shown_name},
    runtime::{
        BlobsCheck, Findings, ImageCheck, LayerCheck, LayerName, RuntimeError, RuntimeErrorKind, VerifyProgress,
        VerifyReport,
    },
};

use super::{CancelOnDrop, Engine};
use crate::store::{DamagedImage, Watch, storage_error};

const CHECKS_MAX: usize = 2;
const PROGRESS_STEP: u64 = 4 << 20;

struct Target {
    id: ImageId,
    names: Vec<String>,
    image: DamagedImage,
}

impl Engine {
    pub(super) async fn verified(
        &self,
        image: Option<&str>,
        progress: VerifyProgress,
    ) -> Result<VerifyReport, RuntimeError> {
        let targets = self.targets(image)?;
        let layers: BTreeSet<Digest> = targets.iter().flat_map(|target| target.image.layers.iter().cloned()).collect();
        let layers: Vec<Digest> = layers.into_iter().collect();
        // The lease keeps layers under check from a sweep.
        let _lease = self.store.lease(&layers);
        let total = layers.iter().filter_map(|layer| self.store.layer(layer)).map(|layer| layer.disk_bytes).sum();
        let cancel = CancelOnDrop(Arc::new(AtomicBool::new(false)));
        let watch = Watch { cancelled: Arc::clone(&cancel.0), read: counter(total, progress) };
        let checks = stream::iter(layers).map(|layer| self.check_layer(layer, &watch));
        let checked: BTreeMap<Digest, LayerCheck> = checks.buffer_unordered(CHECKS_MAX).try_collect().await?;
        let mut images = Vec::new();
        for target in targets {
            let documents = self.check_documents(&target, &watch).await?;
            let entries = target.image.record.map(|record| record.pulled.layers).unwrap_or_default();
            let layers = target.image.layers.into_iter().enumerate().map(|(at, diff_id)| {
                let blob = entries.get(at).and_then(|entry| entry.blob.clone());
                let check = checked.get(&diff_id).cloned().expect("every layer of every image was checked");
                (LayerName { diff_id, blob }, check)
            });
            images.push(ImageCheck { id: target.id, names: target.names, documents, layers: layers.collect() });
        }
        let blobs = self.check_blobs(image.is_some().then_some(&images[..]), &watch).await?;
        let names = self.on_disk(|store| Ok(store.check_names())).await?;
        let images = self.mark(images).await?;
        Ok(VerifyReport { images, store: names, blobs })
    }

    fn targets(&self, image: Option<&str>) -> Result<Vec<Target>, RuntimeError> {
        let whole = self.store.images().into_iter().map(|(record, names)| Target {
            id: record.image_id(),
            names,
            image: DamagedImage::new(record, None),
        });
        let damaged = self.store.damaged_images().into_iter().map(|(id, image, names)| Target { id, names, image });
        let mut targets: Vec<Target> = whole.chain(damaged).collect();
        if let Some(image) = image {
            let wanted = self.store.resolve(image)?.or_else(|| self.store.resolve_damaged(image)).ok_or_else(|| {
                RuntimeError::new(RuntimeErrorKind::NotFound, format!("no image `{}`", shown_name(image)))
                    .with_hint("`imagelet ls --all` lists what is present")
            })?;
            targets.retain(|target| target.id == wanted);
        }
        targets.sort_by(|a, b| (&a.names, &a.id).cmp(&(&b.names, &b.id)));
        Ok(targets)
    }

    async fn check_layer(&self, layer: Digest, watch: &Watch) -> Result<(Digest, LayerCheck), RuntimeError> {
        let watch = watch.clone();
        self.on_disk(move |store| {
            let known = match (store.layer(&layer), store.marked(&layer)) {
                (Some(_), _) => None,
                (None, Some(findings)) => Some(findings),
                (None, None) => Some(Findings::of("layer.json", "missing", "the layer is missing")),
            };
            let check = match known {
                Some(findings) => LayerCheck { findings, ..LayerCheck::default() },
                None => store.check_layer(&layer, &watch).map_err(|error| stopped(&layer.to_string(), error))?,
            };
            Ok((layer, check))
        })
        .await
    }

    async fn check_documents(&self, target: &Target, watch: &Watch) -> Result<Findings, RuntimeError> {
        let image = &target.image;
        let Some(record) = image.record.clone().filter(|_| image.documents.is_none()) else {
            return Ok(image.documents.clone().unwrap_or_default());
        };
        let (watch, id) = (watch.clone(), target.id.clone());
        self.on_disk(move |store| {
            store.check_documents(&id, &record, &watch).map_err(|error| stopped(id.as_str(), error))
        })
        .await
    }

    async fn check_blobs(&self, images: Option<&[ImageCheck]>, watch: &Watch) -> Result<BlobsCheck, RuntimeError> {
        let wanted = images.map(|images| {
            let layers = images.iter().flat_map(|image| image.layers.iter());
            layers.filter_map(|(name, _)| name.blob.clone()).collect::<BTreeSet<Digest>>()
        });
        let watch = watch.clone();
        self.on_disk(move |store| {
            let mut check = BlobsCheck::default();
            let failed = |error| stopped("the kept blobs", error);
            for blob in store.blobs() {
                if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&blob)) {
                    continue;
                }
                let findings = store.check_blob(&blob, &watch).map_err(failed)?;
                check.count += 1;
                if !findings.is_empty() {
                    check.findings.merge(findings);
                    check.damaged.push(blob);
                }
            }
            Ok(check)
        })
        .await
    }

    /// Marks the findings. A mark that cannot be written is logged, and applies to this process.
    async fn mark(&self, images: Vec<ImageCheck>) -> Result<Vec<ImageCheck>, RuntimeError> {
        if self.store.is_read_only() {
            return Ok(images);
        }
        self.on_disk(move |store| {
            let layers = images.iter().flat_map(|image| &image.layers);
            let layers = layers.map(|(name, check)| (&name.diff_id, &check.findings));
            let layers: BTreeMap<_, _> = layers.filter(|(_, findings)| !findings.is_empty()).collect();
            let layers = layers.into_iter().map(|(layer, findings)| store.mark_layer(layer, findings));
            let documents = images.iter().filter(|image| !image.documents.is_empty());
            let documents = documents.map(|image| store.mark_image(&image.id, &image.documents));
            for error in layers.chain(documents).filter_map(Result::err) {
                tracing::error!(error = error.chain(), "damage will not be remembered over a restart");
            }
            Ok(images)
        })
        .await
    }
}

fn stopped(what: &str, error: io::Error) -> RuntimeError {
    storage_error(format!("could not check `{what}`"), error)
}

fn counter(total: u64, progress: VerifyProgress) -> Arc<dyn Fn(u64) + Send + Sync> {
    let (read, reported) = (AtomicU64::new(0), Mutex::new(0));
    Arc::new(move |more| {
        let now = read.fetch_add(more, Ordering::Relaxed) + more;
        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= *reported + PROGRESS_STEP || *reported == 0 {
            *reported = now;
            progress(now, total.max(now));
        }
    })
}
