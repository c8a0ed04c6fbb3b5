//! Compares the store with the pulled content, and hides damaged images.

pub(super) mod repair;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, shown_name},
    lock::locked,
    ports::{BlobsCheck, Findings, ImageCheck, LayerCheck, LayerName, VerifyProgress, VerifyReport},
};

use super::Engine;
use crate::{
    pipeline::CancelOnDrop,
    store::{Store, StoredImage, Watch, storage_error},
};

const CHECKS_MAX: usize = 2;
const PROGRESS_STEP: u64 = 4 << 20;

impl Engine {
    pub(super) async fn verified(
        &self,
        image: Option<&str>,
        progress: VerifyProgress,
    ) -> Result<VerifyReport, RuntimeError> {
        let targets = self.targets(image)?;
        let layers: BTreeSet<Digest> = targets.iter().flat_map(|target| target.image.layers.iter().cloned()).collect();
        let layers: Vec<Digest> = layers.into_iter().collect();
        // The lease protects layers under check from a sweep.
        let _lease = self.store.lease(&layers);
        let total = layers.iter().filter_map(|layer| self.store.layer(layer)).map(|layer| layer.disk_bytes).sum();
        let cancel = CancelOnDrop(Arc::new(AtomicBool::new(false)));
        let watch = watch(total, progress, Arc::clone(&cancel.0));
        let checks = stream::iter(layers).map(|layer| self.check_layer(layer, &watch));
        let checked: BTreeMap<Digest, LayerCheck> = checks.buffer_unordered(CHECKS_MAX).try_collect().await?;
        let (is_whole, watch) = (image.is_none(), Arc::clone(&watch));
        self.on_disk(move |store| report(store, targets, &checked, is_whole, &*watch)).await
    }

    fn targets(&self, image: Option<&str>) -> Result<Vec<StoredImage>, RuntimeError> {
        let mut targets = self.store.all_images();
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

    async fn check_layer(&self, layer: Digest, watch: &Arc<Watch>) -> Result<(Digest, LayerCheck), RuntimeError> {
        let watch = Arc::clone(watch);
        self.on_disk(move |store| {
            let known = match (store.layer(&layer), store.marked(&layer)) {
                (Some(_), _) => None,
                (None, Some(findings)) => Some(findings),
                (None, None) => Some(Findings::of("layer.json", "missing", "the layer is missing")),
            };
            let check = match known {
                Some(findings) => LayerCheck { findings, ..LayerCheck::default() },
                None => store.check_layer(&layer, &*watch).map_err(|error| stopped(&layer.to_string(), error))?,
            };
            Ok((layer, check))
        })
        .await
    }
}

/// Checks all content except the layers, and marks damage. An unwritten mark is logged, and applies only to this
/// process.
fn report(
    store: &Store,
    targets: Vec<StoredImage>,
    checked: &BTreeMap<Digest, LayerCheck>,
    is_whole: bool,
    watch: &Watch,
) -> Result<VerifyReport, RuntimeError> {
    let mut images = Vec::new();
    for StoredImage { id, names, image, .. } in targets {
        let documents = match (&image.documents, &image.record) {
            (None, Some(record)) => {
                store.check_documents(&id, record, watch).map_err(|error| stopped(id.as_str(), error))?
            }
            (documents, _) => documents.clone().unwrap_or_default(),
        };
        let entries = image.record.map(|record| record.pulled.layers).unwrap_or_default();
        let layers = image.layers.into_iter().enumerate().map(|(at, diff_id)| {
            let blob = entries.get(at).and_then(|entry| entry.blob.clone());
            let check = checked.get(&diff_id).cloned().expect("every layer of every image was checked");
            (LayerName { diff_id, blob }, check)
        });
        images.push(ImageCheck { id, names, documents, layers: layers.collect() });
    }
    let layers = || images.iter().flat_map(|image| &image.layers);
    let wanted: BTreeSet<&Digest> = layers().filter_map(|(name, _)| name.blob.as_ref()).collect();
    let mut blobs = BlobsCheck::default();
    for blob in store.blobs().into_iter().filter(|blob| is_whole || wanted.contains(blob)) {
        let findings = store.check_blob(&blob, watch).map_err(|error| stopped("the kept blobs", error))?;
        blobs.count += 1;
        if !findings.is_empty() {
            blobs.findings.merge(findings);
            blobs.damaged.push(blob);
        }
    }
    let names = store.check_names();
    if !store.is_read_only() {
        let damaged: BTreeMap<_, _> = layers().map(|(name, check)| (&name.diff_id, &check.findings)).collect();
        let damaged = damaged.into_iter().filter(|(_, findings)| !findings.is_empty());
        let marked = damaged.map(|(layer, findings)| store.mark_layer(layer, findings));
        let documents = images.iter().filter(|image| !image.documents.is_empty());
        let documents = documents.map(|image| store.mark_image(&image.id, &image.documents));
        for error in marked.chain(documents).filter_map(Result::err) {
            tracing::error!(error = error.chain(), "damage will not be remembered over a restart");
        }
    }
    Ok(VerifyReport { images, store: names, blobs })
}

fn stopped(what: &str, error: io::Error) -> RuntimeError {
    storage_error(format!("could not check `{what}`"), error)
}

fn watch(total: u64, progress: VerifyProgress, cancelled: Arc<AtomicBool>) -> Arc<Watch> {
    let (read, reported) = (AtomicU64::new(0), Mutex::new(0));
    Arc::new(move |more| {
        let now = read.fetch_add(more, Ordering::Relaxed) + more;
        let mut reported = locked(&reported);
        if now > 0 && (now >= *reported + PROGRESS_STEP || *reported == 0) {
            *reported = now;
            progress(now, total.max(now));
        }
        if cancelled.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    })
}
