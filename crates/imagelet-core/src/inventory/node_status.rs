//! The list for the Node status: images as in `status.images`, and a cache of the list (`docs/spec/gc.md §4, §15`).

use std::{
    cmp::Reverse,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{image::Image, inventory::Inventory, lock::locked};

/// A list that is older than this is read again. The kubelet's loop has the same interval.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

const NAMES_MAX: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeImage {
    pub names: Vec<String>,
    pub size_bytes: u64,
}

pub(super) type ImageCache = Mutex<(Option<Instant>, Arc<[Arc<Image>]>)>;

impl Inventory {
    /// The images for a Node's status, the largest first. The list is at most 30 s old and is read on demand. If the
    /// listing fails, the error is logged and the last list is returned. A removal is visible in the next list.
    pub async fn image_list(&self) -> Arc<[Arc<Image>]> {
        let (at, kept) = locked(&self.cache).clone();
        if at.is_some_and(|at| at.elapsed() < LIST_AGE_MAX) {
            return kept;
        }
        let mut images = match self.runtime.list(None).await {
            Ok(images) => images,
            Err(error) => {
                tracing::info!(err = error.chain(), "Failed to update image list");
                return kept;
            }
        };
        sort_for_status(Arc::make_mut(&mut images));
        *locked(&self.cache) = (Some(Instant::now()), Arc::clone(&images));
        images
    }
}

fn sort_for_status(images: &mut [Arc<Image>]) {
    images.sort_by(|a, b| (Reverse(a.size), Reverse(&a.id)).cmp(&(Reverse(b.size), Reverse(&b.id))));
}

pub fn node_images(images: &[Arc<Image>], images_max: Option<usize>) -> Vec<NodeImage> {
    let shown = images_max.map_or(images.len(), |max| max.min(images.len()));
    let node_image = |image: &Arc<Image>| NodeImage {
        names: image.digests.iter().chain(&image.tags).take(NAMES_MAX).cloned().collect(),
        size_bytes: image.size.0,
    };
    images[..shown].iter().map(node_image).collect()
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        error::RuntimeErrorKind,
        image::{ByteSize, ImageId, ImageSpec, ImageUser},
        ports::RuntimeManager,
        testing::FakeRuntime,
    };

    fn image(value: &Value) -> Image {
        let texts = |field: &str| {
            let list = value[field].as_array().into_iter().flatten();
            list.map(|it| it.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        Image {
            id: ImageId::new(value["id"].as_str().unwrap_or_default()),
            tags: texts("repo_tags"),
            digests: texts("repo_digests"),
            size: ByteSize(value["size"].as_u64().unwrap_or_default()),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        }
    }

    #[test]
    fn every_vector_of_the_node_status_holds() {
        let cases = vectors("gc-node-status-images.json");
        assert_eq!(cases.len(), 12);
        for case in cases {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            let mut images: Vec<Arc<Image>> =
                input["images"].as_array().unwrap().iter().map(|it| Arc::new(image(it))).collect();
            sort_for_status(&mut images);
            let listed = input["image_list_error"].as_str().map_or_else(|| Ok(images), Err);
            let images_max = usize::try_from(input["node_status_max_images"].as_i64().unwrap()).ok();
            let (images, error) = match listed {
                Ok(images) => {
                    let shown = node_images(&images, images_max);
                    let shown = shown.iter().map(|it| json!({"names": it.names, "size_bytes": it.size_bytes}));
                    (shown.collect(), None)
                }
                // The kubelet's text; a node without a kubelet has no such report.
                Err(error) => (Value::Null, Some(format!("error getting image list: {error}"))),
            };
            assert_eq!(error.as_deref(), expected["error"].as_str(), "{name}");
            assert_eq!(images, expected["images"], "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_asked_for_when_the_last_is_too_old_and_a_failure_keeps_the_last() {
        let fake = FakeRuntime::new();
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
        let inventory = Inventory::open(runtime, None).unwrap();
        fake.preload("a:1", "a", 1);
        assert_eq!(inventory.image_list().await.len(), 1);
        fake.preload("b:1", "b", 2);
        assert_eq!(inventory.image_list().await.len(), 1, "the list is young");
        tokio::time::advance(LIST_AGE_MAX).await;
        fake.fail("list", RuntimeErrorKind::Unavailable, "down");
        assert_eq!(inventory.image_list().await.len(), 1, "the last list stays");
        fake.heal();
        assert_eq!(inventory.image_list().await.len(), 2);
    }
}
