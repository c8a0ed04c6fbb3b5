//! Adopts images that another manager of the node pulled, and reports the adoption.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use imagelet_core::{
    audit_log::ActCode,
    image::ImageId,
    inventory::{ImageEntry, ImageOrigin, Snapshot},
    records::KubeletRecords,
};

use super::{Images, act_now};

impl Images {
    /// Adopts the images of `snapshot` that the node's kubelet pulled. The next pass lists the new origin.
    pub async fn adopt(&self, snapshot: &Snapshot) {
        let first_run_adopts = self.place.first_run_adopts.swap(false, Ordering::Relaxed);
        let is_asked = |entry: &&Arc<ImageEntry>| match entry.usage.origin {
            ImageOrigin::Found => true,
            ImageOrigin::Adopted => first_run_adopts,
            ImageOrigin::Pulled => false,
        };
        let asked: Vec<Arc<ImageEntry>> = snapshot.entries.iter().filter(is_asked).cloned().collect();
        if asked.is_empty() {
            return;
        }
        // The kubelet has no pull records for an embedded store, because only imagelet pulls into the store.
        let root = self.settings().collection.adopt_from.clone().filter(|_| self.local().is_none());
        let recorded = tokio::task::spawn_blocking({
            let ids: Vec<ImageId> = asked.iter().map(|entry| entry.image.id.clone()).collect();
            let records = root.as_deref().map(KubeletRecords::below);
            move || ids.iter().map(|id| records.as_ref().map_or(Ok(false), |it| it.include(id))).collect::<Vec<_>>()
        });
        let recorded = match recorded.await {
            Ok(recorded) => recorded,
            Err(error) => return tracing::error!(%error, "could not look for the kubelet's pull records"),
        };
        let kubelet = root.map_or_else(String::new, |root| format!("the kubelet in {}", root.display()));
        let (mut adopted, mut unreadable): (BTreeMap<&str, Vec<&ImageEntry>>, Vec<_>) = (BTreeMap::new(), Vec::new());
        for (entry, recorded) in asked.iter().zip(recorded) {
            let by = match (recorded, entry.usage.origin) {
                (Ok(false), ImageOrigin::Found) => continue,
                (Ok(false), _) => "a former imagelet",
                (Ok(true), _) => &kubelet,
                (Err(error), _) => {
                    unreadable.push((&entry.image.id, error));
                    &kubelet
                }
            };
            adopted.entry(by).or_default().push(entry);
        }
        if let Some((image, error)) = unreadable.first() {
            tracing::warn!(images = unreadable.len(), %image, %error, "adopted images whose pull record cannot be read");
        }
        for (by, entries) in adopted {
            tracing::info!(images = entries.len(), by, "adopted images that another manager pulled");
            for entry in entries {
                self.log.act(act_now(ActCode::Adopted, &[entry.key()], &entry.image.tags, by));
                // The audit log is written before the origin changes, so that the log explains each origin in a list.
                if entry.usage.origin == ImageOrigin::Found {
                    self.inventory.adopt(&entry.image.id, None);
                }
            }
        }
    }
}
