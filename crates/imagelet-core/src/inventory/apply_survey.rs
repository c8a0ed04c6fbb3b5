//! Applies one survey: updates usage history and leases, and builds all entries.

use std::{sync::Arc, time::SystemTime};

use tokio::time::Instant;

use crate::inventory::{
    ImageEntry, InventoryState, Snapshot,
    detect::{Survey, in_order_of_keys, users},
    observation_window::settling,
    usage_history::image_usage::{ImageUsage, PassTimes},
};
use crate::{
    image::{Image, ImageId, ImageKey},
    leases::Leases,
};

impl InventoryState {
    /// Applies a survey. `asked_at` is the time before its listings, `wall` the time after them (`docs/spec/gc.md §5`).
    pub(super) fn apply(
        &mut self,
        survey: Survey,
        asked_at: SystemTime,
        wall: SystemTime,
        leases: &mut Leases,
    ) -> Arc<Snapshot> {
        leases.tidy(wall);
        let now = self.time(wall);
        self.clamp(now, wall);
        self.passed_at = Some(Instant::now());
        let pass = PassTimes {
            detected_at: if now > wall { now } else { asked_at },
            now,
            wall,
            settling: settling(leases.lasts),
            is_doubtful: !survey.missing_are_gone,
        };
        let (users, sandboxes) = users(&survey, |id| !self.mounts.contains_key(id));
        let images = by_key(&survey.images);
        let containers = survey.runtime_containers();
        self.watch.advance(containers, now, wall);
        let changed = self.memory.apply(&images, &users, &pass);
        self.dirty |= changed || containers > 0;
        for pod in &survey.pods {
            for container in pod.containers.iter().filter(|container| !self.mounts.contains_key(&container.id)) {
                leases.serve(&ImageId::new(&container.image.id), &pod.uid, container.created_at);
            }
        }
        let snapshot = Arc::new(self.draw(images, now, wall, leases));
        self.mounts = survey.mounts;
        self.sandboxes.images = survey.sandboxes;
        // A name may move to another image, so the image id of a sandbox replaces the name.
        self.sandboxes.images.extend(sandboxes);
        self.snapshot = Some(Arc::clone(&snapshot));
        snapshot
    }

    /// Moves recorded times from the future to now: after a clock was set back, no age is negative and no wait longer.
    fn clamp(&mut self, now: SystemTime, wall: SystemTime) {
        let is_first = self.passed_at.is_none();
        if self.seen_at.replace(now).is_some_and(|seen| seen <= wall) && !is_first {
            return;
        }
        self.memory.map_times(|time| time.min(now));
        self.watch.since = self.watch.since.map(|since| since.min(now));
        self.waits().for_each(|at| *at = wall.min(*at));
    }

    /// `images` must match the present images of the usage history one to one, in the same order.
    fn draw(&self, images: Vec<Arc<Image>>, now: SystemTime, wall: SystemTime, leases: &Leases) -> Snapshot {
        let listed = images.into_iter().zip(self.memory.present());
        let entry = |(image, (key, usage)): (Arc<Image>, (&ImageKey, &ImageUsage))| {
            let mut usage = usage.clone();
            usage.times.first_seen.get_or_insert(now);
            let (awaited_by, pinned_by) = (self.pod_leases.pods_of(&image), self.pinned_by(&image));
            let leased_until = leases.until(key.id(), wall);
            Arc::new(ImageEntry { image, usage, leased_until, awaited_by, pinned_by })
        };
        Snapshot {
            taken_at: wall,
            entries: listed.map(entry).collect(),
            watched_since: self.watch.since.unwrap_or(now),
            containers: self.watch.containers,
            containers_vanished: self.watch.vanished_at.is_some(),
        }
    }
}

/// Sorts images by key. Of several images with the same key, keeps only the last.
fn by_key(images: &[Arc<Image>]) -> Vec<Arc<Image>> {
    // The first bytes of the id are stored beside the image, because most comparisons need only these bytes.
    let mut keyed: Vec<(u128, Arc<Image>)> =
        images.iter().map(|image| (head(image.id.as_bytes()), Arc::clone(image))).collect();
    let order = |one: &(u128, Arc<Image>), other: &(u128, Arc<Image>)| {
        one.0.cmp(&other.0).then_with(|| in_order_of_keys(&one.1, &other.1))
    };
    keyed.sort_by(order);
    keyed.dedup_by(|later, kept| {
        let are_twins = order(later, kept).is_eq();
        if are_twins {
            std::mem::swap(later, kept);
        }
        are_twins
    });
    keyed.into_iter().map(|(_, image)| image).collect()
}

/// The first bytes of a text as a number that sorts like the text.
fn head(text: &[u8]) -> u128 {
    let mut head = [0; size_of::<u128>()];
    let length = text.len().min(head.len());
    head[..length].copy_from_slice(&text[..length]);
    u128::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::{ByteSize, ImageId, ImageSpec, ImageUser};

    proptest! {
        #[test]
        fn images_are_ordered_as_their_keys_and_the_later_twin_counts(
            listed in proptest::collection::vec(("(sha256:)?[01]{0,12}([\\x00ab]{0,2})", "a?"), 0..12),
        ) {
            let image = |(number, (id, handler)): (usize, &(String, String))| Arc::new(Image {
                id: ImageId::new(id),
                tags: Vec::new(),
                digests: Vec::new(),
                size: ByteSize(number as u64),
                user: ImageUser::Unset,
                spec: ImageSpec { runtime_handler: handler.clone(), ..ImageSpec::default() },
                pinned: false,
                artifact: None,
            });
            let images: Vec<Arc<Image>> = listed.iter().enumerate().map(image).collect();
            let plainly: std::collections::BTreeMap<ImageKey, u64> =
                images.iter().map(|image| (image.key(), image.size.0)).collect();
            let sorted: Vec<(ImageKey, u64)> =
                by_key(&images).iter().map(|image| (image.key(), image.size.0)).collect();
            prop_assert_eq!(sorted, plainly.into_iter().collect::<Vec<_>>());
        }
    }
}
