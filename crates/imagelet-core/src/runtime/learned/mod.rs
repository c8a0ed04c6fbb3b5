//! What images share in a runtime that tells their layers and not what these take: that is learned by watching the disk.

mod sizes;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};

use self::sizes::{LayerSizes, Stack, claims};
use super::{
    Freed, ImageDetails, ImageFilesystems, ImageService, LayerGraph, Listing, Progress, PullEstimate, PullRequest,
    RuntimeError, details::chain_id,
};
use crate::image::{Digest, Image, ImageId, ImageSpec};

/// Images that are asked for their layers at a time.
const ASKED_AT_ONCE: usize = 8;
/// Most images whose layers are remembered.
const IMAGES_MAX: usize = 20_000;

/// A runtime's images, whose layers are learned. All else goes through.
#[derive(Debug)]
pub struct LearnedImages {
    inner: Arc<dyn ImageService>,
    learned: Mutex<Learned>,
    /// Pulls and removals under way: a change of the disk is believed to be of one only where there is no other.
    busy: AtomicUsize,
    /// How many have begun, ever.
    begun: AtomicUsize,
}

#[derive(Debug, Default)]
struct Learned {
    sizes: LayerSizes,
    /// The chain of each image; what an id stands for never changes.
    chains: HashMap<ImageId, Vec<Digest>>,
    /// All images at the last look; `None` where there was none, or not all told their layers.
    stacks: Option<Vec<Stack>>,
}

/// A pull or a removal under way, and the disk before it.
struct Work<'a> {
    images: &'a LearnedImages,
    was_alone: bool,
    number: usize,
    before: Option<(PathBuf, u64)>,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.images.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LearnedImages {
    /// Learns about the images of this runtime.
    pub fn new(inner: Arc<dyn ImageService>) -> Self {
        Self { inner, learned: Mutex::default(), busy: AtomicUsize::new(0), begun: AtomicUsize::new(0) }
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(&self) -> Work<'_> {
        let was_alone = self.busy.fetch_add(1, Ordering::AcqRel) == 0;
        let number = self.begun.fetch_add(1, Ordering::AcqRel);
        let mut work = Work { images: self, was_alone, number, before: None };
        // Without a look at all images nothing can be told apart, and none is spent on the disk.
        if was_alone && self.learned().stacks.is_some() {
            work.before = self.look().await;
        }
        work
    }

    /// What is free where the images are; `None`: not visible from here.
    async fn look(&self) -> Option<(PathBuf, u64)> {
        let place = self.inner.filesystem().await.ok()?.images.into_iter().next()?.mountpoint;
        let free = available(place.clone()).await?;
        Some((place, free))
    }

    /// The chain of an image, asked for once. `None`: it does not tell.
    async fn chain(&self, image: &Image) -> Option<Vec<Digest>> {
        if let Some(chain) = self.learned().chains.get(&image.id) {
            return Some(chain.clone());
        }
        let spec = ImageSpec { image: image.id.to_string(), ..image.spec.clone() };
        let details = self.inner.details(&spec).await.ok()??;
        let diff_ids: Vec<Digest> = details.layers.into_iter().map(|layer| layer.diff_id).collect();
        let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
        for diff_id in diff_ids {
            let next = match chain.last() {
                None => diff_id,
                Some(below) => chain_id(&[below.clone(), diff_id])?,
            };
            chain.push(next);
        }
        if chain.is_empty() {
            return None;
        }
        let mut learned = self.learned();
        if learned.chains.len() < IMAGES_MAX {
            learned.chains.insert(image.id.clone(), chain.clone());
        }
        Some(chain)
    }

    /// Learns from what a pull brought.
    async fn pulled(&self, work: &Work<'_>, id: &ImageId) {
        let Some((_, change)) = work.change(u64::saturating_sub).await else { return };
        let Ok(Some(image)) = self.inner.status(&ImageSpec::new(id.to_string())).await else { return };
        let Some(chain) = self.chain(&image).await else { return };
        let mut learned = self.learned();
        let Some(mut stacks) = learned.stacks.clone() else { return };
        stacks.retain(|stack| stack.image != image.id);
        let was_here = |layer: &Digest| stacks.iter().any(|stack| stack.chain.contains(layer));
        let new: Vec<Digest> = chain.iter().filter(|layer| !was_here(layer)).cloned().collect();
        stacks.push(Stack { image: image.id, claimed: image.size, chain });
        let claims = claims(&stacks);
        let new: Vec<(Digest, u64)> =
            new.into_iter().map(|layer| (layer.clone(), claims.get(&layer).copied().unwrap_or_default())).collect();
        let is_learned = learned.sizes.learn(&new, change);
        tracing::debug!(image = %id, layers = new.len(), change, is_learned, "measured what a pull brought");
        learned.stacks = Some(stacks);
    }

    /// Learns from what a removal freed.
    async fn removed(&self, work: &Work<'_>, named: &str) {
        let change = work.change(|before, after| after.saturating_sub(before)).await;
        let mut learned = self.learned();
        // Which one went is not known: nothing is told apart until the next look.
        let Some(mut stacks) = learned.stacks.take() else { return };
        let Some(at) = stacks.iter().position(|stack| stack.image.as_str() == named) else { return };
        let claims = claims(&stacks);
        let gone = stacks.swap_remove(at);
        learned.stacks = Some(stacks.clone());
        let Some((_, change)) = change else { return };
        let stays = |layer: &Digest| stacks.iter().any(|stack| stack.chain.contains(layer));
        let freed: Vec<(Digest, u64)> = gone
            .chain
            .iter()
            .filter(|layer| !stays(layer))
            .map(|layer| (layer.clone(), claims.get(layer).copied().unwrap_or_default()))
            .collect();
        let is_learned = learned.sizes.learn(&freed, change);
        tracing::debug!(image = named, layers = freed.len(), change, is_learned, "measured what a removal freed");
    }
}

impl Work<'_> {
    /// How the disk has changed, where nothing else was under way meanwhile.
    async fn change(&self, by: impl FnOnce(u64, u64) -> u64) -> Option<(PathBuf, u64)> {
        let (place, before) = self.before.clone()?;
        let after = available(place.clone()).await?;
        let is_alone = self.was_alone && self.images.begun.load(Ordering::Acquire) == self.number + 1;
        is_alone.then(|| (place, by(before, after)))
    }
}

async fn available(place: PathBuf) -> Option<u64> {
    let looked = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&place)).await;
    looked.ok()?.ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[async_trait]
impl ImageService for LearnedImages {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        self.inner.list(filter).await
    }

    fn edition(&self) -> Option<u64> {
        self.inner.edition()
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        self.inner.status(spec).await
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        self.inner.details(spec).await
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        let work = self.begin().await;
        let id = self.inner.pull(request, progress).await?;
        self.pulled(&work, &id).await;
        Ok(id)
    }

    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        self.inner.estimate(request).await
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let work = self.begin().await;
        self.inner.remove(spec).await?;
        self.removed(&work, &spec.image).await;
        Ok(())
    }

    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        self.learned().stacks = None;
        self.inner.untag(name).await
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.inner.filesystem().await
    }

    fn reserved(&self) -> Freed {
        self.inner.reserved()
    }

    /// Asks each image for its layers once. `None` where not all tell: an image unknown might need any layer.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        if let Some(graph) = self.inner.layers().await? {
            return Ok(Some(graph));
        }
        let images = self.inner.list(None).await?;
        let asked = stream::iter(images.clone()).map(|image| async move { self.chain(&image).await });
        let chains = asked.buffered(ASKED_AT_ONCE);
        let chains: Vec<Option<Vec<Digest>>> = chains.collect().await;
        let stacks: Option<Vec<Stack>> = images
            .iter()
            .zip(chains)
            .map(|(image, chain)| Some(Stack { image: image.id.clone(), claimed: image.size, chain: chain? }))
            .collect();
        let mut learned = self.learned();
        let Some(stacks) = stacks else {
            learned.stacks = None;
            return Ok(None);
        };
        // Chains of images that are gone are forgotten.
        let present: std::collections::HashSet<&ImageId> = stacks.iter().map(|stack| &stack.image).collect();
        learned.chains.retain(|id, _| present.contains(id));
        let graph = learned.sizes.graph(&stacks);
        learned.stacks = Some(stacks);
        Ok(Some(graph))
    }
}
