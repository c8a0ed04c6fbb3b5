//! A store behind a link of 50 MB/s that all its pulls share.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::{
    image::Digest,
    ports::{Listing, LocalStore, PullEstimate},
};

const MEGABYTE: u64 = 1_000_000;
const TICK: Duration = Duration::from_millis(5);
/// What the link carries in that time.
const PER_TICK: u64 = 50 * MEGABYTE / 200;

/// Images are named `NAME-MEGABYTES:TAG`.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    here: HashSet<String>,
    active: HashMap<u64, u64>,
    next: u64,
    began: Vec<String>,
    active_max: usize,
}

/// A transfer; dropped, it no longer takes a share.
struct Transfer<'a>(&'a Link, u64);

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.0.lock().active.remove(&self.1);
    }
}

impl Link {
    /// The images in the order in which their pulls began.
    pub(super) fn began(&self) -> Vec<String> {
        self.lock().began.clone()
    }

    pub(super) fn active_max(&self) -> usize {
        self.lock().active_max
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the link")
    }
}

fn size_of(image: &str) -> ByteSize {
    let name = image.split(':').next().expect("a name");
    ByteSize(name.rsplit('-').next().expect("a size").parse::<u64>().expect("megabytes") * MEGABYTE)
}

#[async_trait]
impl ImageService for Link {
    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }

    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        Ok(Listing::default())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(self.lock().here.contains(&spec.image).then(|| Image {
            id: ImageId::new(&spec.image),
            tags: vec![spec.image.clone()],
            digests: Vec::new(),
            size: size_of(&spec.image),
            user: ImageUser::Unset,
            spec: spec.clone(),
            pinned: false,
            artifact: None,
        }))
    }

    async fn pull(&self, request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        let image = request.image.image.clone();
        let transfer = {
            let mut state = self.lock();
            state.began.push(image.clone());
            let number = state.next;
            state.next += 1;
            state.active.insert(number, size_of(&image).0);
            state.active_max = state.active_max.max(state.active.len());
            Transfer(self, number)
        };
        loop {
            let left = {
                let mut state = self.lock();
                let share = PER_TICK / state.active.len() as u64;
                let left = state.active.get_mut(&transfer.1).expect("it is under way");
                *left = left.saturating_sub(share);
                *left
            };
            if left == 0 {
                break;
            }
            tokio::time::sleep(TICK).await;
        }
        self.lock().here.insert(image.clone());
        Ok(ImageId::new(image))
    }

    async fn remove(&self, _spec: &ImageSpec) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems::default())
    }
}

#[async_trait]
impl LocalStore for Link {
    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        // A round trip or two to the registry.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let size = size_of(&request.image.image);
        Ok(Some(PullEstimate {
            manifest: Digest::of(request.image.image.as_bytes()),
            bytes_total: size,
            bytes_missing: size,
            bytes_unpacked: size,
            layers_missing: 1,
        }))
    }
}
