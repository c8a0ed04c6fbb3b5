//! Disk usage of the images, and what a collection would free.

use std::collections::BTreeMap;

use imagelet_core::{
    disks::{DiskProbe as _, DiskUse, StatVfs},
    image::{ByteSize, Digest},
    runtime::Certainty,
};

use crate::{
    api::{ImageRow, Steps, Usage, UsageRequest},
    failure::Failure,
    node::{Command, LocalNode, gc::reclaimable},
};

impl Command for UsageRequest {
    const NAME: &'static str = "usage";
    type Answer = Usage;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Usage, Failure> {
        let sizes = node.sizes().await?;
        let mut images = node.listed(false, &sizes).await?;
        super::why::predict_all(node, &mut images).await;
        let (mountpoint, disk) = disk_of_images(node).await?;
        let (reclaimable, certainty) = reclaimable(node).await.unwrap_or_else(|failure| {
            tracing::warn!(error = failure.to_string(), "could not compute the reclaimable bytes");
            (0, Certainty::Claimed)
        });
        let (images_size, images_certainty) = sizes.total().unwrap_or_else(|| (listed(&images), Certainty::Claimed));
        let store = sizes.store_bytes.zip(sizes.layers).map(|(total, graph)| {
            // A graph also has the documents of each image and the kept blobs.
            let layers = graph.layers.iter().filter(|layer| layer.id.parse::<Digest>().is_ok()).count();
            serde_json::json!({ "total": total.0, "layers": layers })
        });
        Ok(Usage {
            mountpoint,
            capacity: disk.as_ref().map_or(0, |disk| disk.capacity.0),
            available: disk.as_ref().map_or(0, |disk| disk.available.0),
            used_percent: disk.as_ref().map_or(0, DiskUse::used_percent),
            images_size,
            images_certainty: images_certainty.name().to_owned(),
            images_count: images.len() as u64,
            reclaimable,
            certainty: certainty.name().to_owned(),
            images,
            store,
        })
    }
}

/// The sum of the listed sizes. An image of several handlers counts once.
fn listed(images: &[ImageRow]) -> u64 {
    let sizes: BTreeMap<&str, u64> = images.iter().map(|image| (image.id.as_str(), image.size)).collect();
    sizes.into_values().fold(0, u64::saturating_add)
}

/// The directory of the images and its disk; `None` where it is not visible from here.
pub(crate) async fn disk_of_images(node: &LocalNode) -> Result<(String, Option<DiskUse>), Failure> {
    let images = node.parts.runtime.filesystem().await?.images;
    let mountpoint = images.into_iter().next().map(|place| place.mountpoint).unwrap_or_default();
    let disk = StatVfs.look(&mountpoint).ok().filter(|disk| disk.capacity > ByteSize::ZERO);
    Ok((mountpoint.display().to_string(), disk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_several_handlers_is_listed_once() {
        let row = |id: &str, size| ImageRow { id: id.to_owned(), size, ..ImageRow::default() };
        assert_eq!(listed(&[row("a", 5), row("a", 5), row("b", 7)]), 12);
        assert_eq!(listed(&[row("a", u64::MAX), row("b", 7)]), u64::MAX);
    }
}
