//! Holds what is in the store to what was pulled; what is damaged is not shown any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt as _, stream};
use imagelet_core::{
    image::{Digest, ImageId},
    runtime::{RuntimeError, RuntimeErrorKind},
};

use super::{Engine, blocking};
use crate::store::{DamagedImage, Findings, LayerCheck, VerifyResult, Watch, storage_error};

const CHECKS_MAX: usize = 2;
/// Progress is reported after this many more bytes read.
const PROGRESS_STEP: u64 = 4 << 20;

/// What was found in a store.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// Each image that was asked for, damaged ones that are not listed any more included.
    pub images: Vec<ImageCheck>,
    /// What is wrong with the store's own files.
    pub store: Findings,
    /// Kept blobs, where there are any.
    pub blobs: BlobsCheck,
}

/// An image after its check.
#[derive(Clone, Debug)]
pub struct ImageCheck {
    /// Which.
    pub id: ImageId,
    /// Its names, of every kind.
    pub names: Vec<String>,
    /// Its record, manifest, configuration and index.
    pub documents: VerifyResult,
    /// Its layers, lowest first.
    pub layers: Vec<(LayerName, LayerCheck)>,
}

/// By what a layer is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerName {
    /// Digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Digest of the blob, where the image's record can be read.
    pub blob: Option<String>,
}

/// The kept blobs after their check.
#[derive(Clone, Debug, Default)]
pub struct BlobsCheck {
    /// How many were hashed.
    pub count: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// The damaged ones.
    pub findings: Findings,
    damaged: Vec<Digest>,
}

/// How far a check is: bytes read, of about so many.
pub type VerifyProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

impl ImageCheck {
    /// Whether something in it is not as it was pulled.
    pub fn is_damaged(&self) -> bool {
        self.checks().any(|verdict| matches!(verdict, VerifyResult::Damaged(_)))
    }

    /// Why not all of it could be checked.
    pub fn unchecked(&self) -> Option<&str> {
        self.checks().find_map(|verdict| match verdict {
            VerifyResult::Unchecked(why) => Some(why.as_str()),
            _ => None,
        })
    }

    fn checks(&self) -> impl Iterator<Item = &VerifyResult> {
        std::iter::once(&self.documents).chain(self.layers.iter().map(|(_, check)| &check.verdict))
    }
}

/// An image to check, whole or with the damage that is known.
struct Target {
    id: ImageId,
    names: Vec<String>,
    image: DamagedImage,
}

impl Engine {
    /// Checks all images, or the one that is meant: every document, layer and kept blob, byte for byte.
    ///
    /// Damage that was not known is marked: the image is not listed any more, also after a restart, until a repair or a
    /// pull makes it whole. On a read-only file system nothing is marked. Dropping the future ends the check.
    ///
    /// # Errors
    /// When there is no such image, or the check itself cannot go on. Damage is no error.
    pub async fn verify(&self, image: Option<&str>, progress: VerifyProgress) -> Result<VerifyReport, RuntimeError> {
        let targets = self.targets(image)?;
        let layers: BTreeSet<Digest> = targets.iter().flat_map(|target| target.image.layers.iter().cloned()).collect();
        let layers: Vec<Digest> = layers.into_iter().collect();
        // What is being read does not go.
        let _lease = self.store.lease(&layers);
        let total = layers.iter().filter_map(|layer| self.store.layer(layer)).map(|layer| layer.disk_bytes).sum();
        let cancel = CancelOnDrop(Arc::new(AtomicBool::new(false)));
        let watch = Watch { cancelled: Arc::clone(&cancel.0), read: counter(total, progress) };
        let checked: Vec<Result<(Digest, LayerCheck), RuntimeError>> = stream::iter(layers)
            .map(|layer| self.check_layer(layer, &watch))
            .buffer_unordered(CHECKS_MAX)
            .collect()
            .await;
        let checked: BTreeMap<Digest, LayerCheck> = checked.into_iter().collect::<Result<_, _>>()?;
        let mut images = Vec::new();
        for target in targets {
            let documents = self.check_documents(&target, &watch).await?;
            let entries = target.image.record.map(|record| record.layers).unwrap_or_default();
            let layers = target.image.layers.into_iter().enumerate().map(|(at, diff_id)| {
                let blob = entries.get(at).filter(|entry| entry.is_verified()).map(|entry| entry.blob.clone());
                let check = checked.get(&diff_id).cloned().expect("every layer of every image was checked");
                (LayerName { diff_id, blob }, check)
            });
            images.push(ImageCheck { id: target.id, names: target.names, documents, layers: layers.collect() });
        }
        let blobs = self.check_blobs(image.is_some().then_some(&images[..]), &watch).await?;
        let store = Arc::clone(&self.store);
        let names = blocking(move || Ok(store.check_names())).await?;
        self.mark(&images).await?;
        Ok(VerifyReport { images, store: names, blobs })
    }

    /// Whether a name, an id or the beginning of one means an image that is damaged and therefore not listed.
    pub fn damaged(&self, image: &str) -> Option<ImageId> {
        self.store.resolve_damaged(image)
    }

    fn targets(&self, image: Option<&str>) -> Result<Vec<Target>, RuntimeError> {
        let whole = self.store.images().into_iter().map(|(record, names)| {
            let (id, layers) = (record.image_id(), record.diff_ids());
            Target { id, names, image: DamagedImage { record: Some(record), layers, documents: None } }
        });
        let damaged = self.store.damaged_images().into_iter().map(|(id, image, names)| Target { id, names, image });
        let mut targets: Vec<Target> = whole.chain(damaged).collect();
        if let Some(image) = image {
            let wanted = self.store.resolve(image)?.or_else(|| self.store.resolve_damaged(image)).ok_or_else(|| {
                RuntimeError::new(
                    RuntimeErrorKind::NotFound,
                    format!("no image `{}`", imagelet_core::image::shown_name(image)),
                )
                .with_hint("`imagelet ls --all` lists what is present")
            })?;
            targets.retain(|target| target.id == wanted);
        }
        targets.sort_by(|a, b| (&a.names, &a.id).cmp(&(&b.names, &b.id)));
        Ok(targets)
    }

    async fn check_layer(&self, layer: Digest, watch: &Watch) -> Result<(Digest, LayerCheck), RuntimeError> {
        let (store, watch) = (Arc::clone(&self.store), watch.clone());
        blocking(move || {
            let known = match (store.layer(&layer), store.marked(&layer)) {
                (Some(_), _) => None,
                (None, Some(findings)) => Some(findings),
                (None, None) => Some(Findings::of("layer.json", "missing", "the layer is missing")),
            };
            let check = match known {
                Some(findings) => LayerCheck::known(findings),
                None => store.check_layer(&layer, &watch).map_err(|error| stopped(&layer.to_string(), error))?,
            };
            Ok((layer, check))
        })
        .await
    }

    async fn check_documents(&self, target: &Target, watch: &Watch) -> Result<VerifyResult, RuntimeError> {
        let image = &target.image;
        let Some(record) = image.record.clone().filter(|_| image.documents.is_none()) else {
            return Ok(VerifyResult::Damaged(image.documents.clone().unwrap_or_default()));
        };
        let (store, watch, id) = (Arc::clone(&self.store), watch.clone(), target.id.clone());
        blocking(move || store.check_documents(&id, &record, &watch).map_err(|error| stopped(id.as_str(), error))).await
    }

    /// Hashes kept blobs: those of some images, or all.
    async fn check_blobs(&self, images: Option<&[ImageCheck]>, watch: &Watch) -> Result<BlobsCheck, RuntimeError> {
        let wanted = images.map(|images| {
            let layers = images.iter().flat_map(|image| image.layers.iter());
            layers.filter_map(|(name, _)| name.blob.as_deref()?.parse().ok()).collect::<BTreeSet<Digest>>()
        });
        let (store, watch) = (Arc::clone(&self.store), watch.clone());
        blocking(move || {
            let mut check = BlobsCheck::default();
            let failed = |error| stopped("the kept blobs", error);
            for (blob, _) in store.blobs() {
                if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&blob)) {
                    continue;
                }
                let (verdict, bytes) = store.check_blob(&blob, &watch).map_err(failed)?;
                check.count += 1;
                check.bytes += bytes;
                if let VerifyResult::Damaged(findings) = verdict {
                    check.findings.merge(findings);
                    check.damaged.push(blob);
                }
            }
            Ok(check)
        })
        .await
    }

    /// Marks what was found. A mark that cannot be written is logged; it holds for this process.
    async fn mark(&self, images: &[ImageCheck]) -> Result<(), RuntimeError> {
        if self.store.is_read_only() {
            return Ok(());
        }
        let mut layers = BTreeMap::new();
        let mut documents = Vec::new();
        for image in images {
            if let VerifyResult::Damaged(findings) = &image.documents {
                documents.push((image.id.clone(), findings.clone()));
            }
            for (name, check) in &image.layers {
                if let VerifyResult::Damaged(findings) = &check.verdict {
                    layers.insert(name.diff_id.clone(), findings.clone());
                }
            }
        }
        let store = Arc::clone(&self.store);
        blocking(move || {
            let layers = layers.iter().map(|(layer, findings)| store.mark_layer(layer, findings));
            let documents = documents.iter().map(|(id, findings)| store.mark_image(id, findings));
            for error in layers.chain(documents).filter_map(Result::err) {
                tracing::error!(error = error.chain(), "damage will not be remembered over a restart");
            }
            Ok(())
        })
        .await
    }

    /// Mends what is wrong with the store's own files: names are written again, damaged blobs go.
    pub async fn repair_store(&self, report: &VerifyReport) -> Result<(), RuntimeError> {
        let (store, names, blobs) = (Arc::clone(&self.store), !report.store.is_empty(), report.blobs.damaged.clone());
        blocking(move || {
            if names {
                store.restore_names()?;
            }
            for blob in &blobs {
                store.discard_blob(blob);
            }
            Ok(())
        })
        .await
    }
}

/// The check did not come to its end.
fn stopped(what: &str, error: io::Error) -> RuntimeError {
    storage_error(format!("could not check `{what}`"), error)
}

/// Adds up what all checks read, and reports it now and then.
fn counter(total: u64, progress: VerifyProgress) -> Arc<dyn Fn(u64) + Send + Sync> {
    let (read, told) = (AtomicU64::new(0), Mutex::new(0));
    Arc::new(move |more| {
        let now = read.fetch_add(more, Ordering::Relaxed) + more;
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= *told + PROGRESS_STEP || *told == 0 {
            *told = now;
            progress(now, total.max(now));
        }
    })
}

/// Ends the threads of a check whose caller has gone.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
