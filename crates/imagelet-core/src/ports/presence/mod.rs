//! Checks whether containers can start from a listed image. A runtime may list an image whose layers are gone.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::{Instant, timeout};

use crate::{error::RuntimeError, image::ImageId, lock::locked};

/// A usable image is not checked again for this time.
const USABLE_FOR: Duration = Duration::from_secs(10);
/// The time limit of a check. After this time, the image is treated as usable.
const USABLE_MAX: Duration = Duration::from_secs(1);
const IMAGES_MAX: usize = 20_000;

#[async_trait]
pub trait ImageBacking: Send + Sync + fmt::Debug {
    /// Whether containers can start from an image: the chain of all its layers has a snapshot, or the runtime has all
    /// blobs to unpack the layers again.
    async fn is_usable(&self, image: &ImageId) -> Result<bool, RuntimeError>;
}

/// Checks listed images. Repeats the check of an image only after some time. Clones share the results.
#[derive(Clone, Debug)]
pub struct UsableImages {
    backing: Arc<dyn ImageBacking>,
    /// The last successful check of each image. `None`: the layers were gone, and a warning was logged.
    usable_at: Arc<Mutex<HashMap<ImageId, Option<Instant>>>>,
}

impl UsableImages {
    pub fn new(backing: Arc<dyn ImageBacking>) -> Self {
        Self { backing, usable_at: Arc::default() }
    }

    /// Whether containers can start from a listed image. Returns true in doubt.
    pub async fn is_usable(&self, image: &ImageId) -> bool {
        let is_recent = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < USABLE_FOR);
        if locked(&self.usable_at).get(image).is_some_and(is_recent) {
            return true;
        }
        let Ok(checked) = timeout(USABLE_MAX, self.backing.is_usable(image)).await else { return true };
        let is_usable = checked.unwrap_or_else(|error| {
            tracing::debug!(%image, error = error.chain(), "could not check the content of an image");
            true
        });
        let mut usable_at = locked(&self.usable_at);
        if usable_at.len() >= IMAGES_MAX {
            usable_at.retain(|_, at| is_recent(at));
        }
        let before = usable_at.insert(image.clone(), is_usable.then(Instant::now));
        if !is_usable && before != Some(None) {
            tracing::warn!(%image, "the runtime lists an image whose layers are gone; it is reported absent");
        }
        is_usable
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Layers {
        are_gone: AtomicBool,
        hang: AtomicBool,
        fail: AtomicBool,
        looks: AtomicUsize,
    }

    #[async_trait]
    impl ImageBacking for Layers {
        async fn is_usable(&self, _: &ImageId) -> Result<bool, RuntimeError> {
            self.looks.fetch_add(1, Ordering::SeqCst);
            if self.hang.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if self.fail.load(Ordering::SeqCst) {
                return Err(RuntimeError::other("no"));
            }
            Ok(!self.are_gone.load(Ordering::SeqCst))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_whose_layers_are_gone_is_not_usable_until_they_are_back() {
        let layers = Arc::new(Layers::default());
        let (images, id) = (UsableImages::new(Arc::<Layers>::clone(&layers)), ImageId::new("sha256:a"));
        layers.are_gone.store(true, Ordering::SeqCst);
        assert!(!images.is_usable(&id).await);
        assert!(!images.is_usable(&id).await, "what is gone is looked at each time");
        assert_eq!(locked(&images.usable_at).get(&id), Some(&None), "and warned of once");
        layers.are_gone.store(false, Ordering::SeqCst);
        assert!(images.is_usable(&id).await);
        assert!(locked(&images.usable_at)[&id].is_some(), "until it was usable again");
        let looks = layers.looks.load(Ordering::SeqCst);
        assert!(images.is_usable(&id).await);
        assert_eq!(layers.looks.load(Ordering::SeqCst), looks, "what was there a moment ago is not looked at again");
        layers.are_gone.store(true, Ordering::SeqCst);
        tokio::time::advance(USABLE_FOR).await;
        assert!(!images.is_usable(&id).await);
    }

    #[tokio::test(start_paused = true)]
    async fn in_doubt_an_image_is_usable() {
        for doubt in ["fail", "hang"] {
            let layers = Arc::new(Layers::default());
            let flag = if doubt == "fail" { &layers.fail } else { &layers.hang };
            flag.store(true, Ordering::SeqCst);
            assert!(UsableImages::new(layers.clone()).is_usable(&ImageId::new("sha256:a")).await, "{doubt}");
        }
    }
}
