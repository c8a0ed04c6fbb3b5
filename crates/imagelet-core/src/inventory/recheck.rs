//! How an image stands right now: the last question before it is removed.

use std::time::SystemTime;

use super::{
    Entry, Inventory, InventoryError,
    detect::{DetectRules, Survey, users},
};
use crate::image::{Image, ImageSpec};

/// What stands between an image and its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing does.
    Free,
    /// It is not there any more.
    Gone,
    /// These use it.
    InUse(Vec<String>),
    /// These patterns, or the runtime, keep it.
    Pinned(Vec<String>),
    /// Somebody asked for it after the entry was drawn.
    Leased(SystemTime),
    /// The runtime lists no container at all where it listed some for the snapshot.
    Doubtful,
}

impl Inventory {
    /// Asks the runtime and the operator's pins afresh about one entry of a snapshot that had so many containers.
    pub(crate) async fn recheck(&self, entry: &Entry, containers: usize) -> Result<Standing, InventoryError> {
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let mounts = self.mounts(&pods).await?;
        let spec = ImageSpec { image: entry.image.id.to_string(), ..entry.image.spec.clone() };
        let Some(found) = self.runtime.status(&spec).await.map_err(InventoryError::List)? else {
            return Ok(Standing::Gone);
        };
        // Tags may have moved since: both what it was called and what it is called now count.
        let image = merged(&entry.image, found);
        let survey = Survey { images: vec![image], pods, mounts };
        if containers > 0 && survey.runtime_containers() == 0 {
            return Ok(Standing::Doubtful);
        }
        let image = &survey.images[0];
        if let Some(users) = users(&survey, DetectRules::INVENTORY).remove(&image.key()) {
            return Ok(Standing::InUse(users));
        }
        self.reload_pins().await;
        let state = self.lock();
        let pinned_by = state.pinned_by(image);
        if !pinned_by.is_empty() {
            return Ok(Standing::Pinned(pinned_by));
        }
        Ok(match state.leased_at(&image.key()) {
            Some(leased_at) if Some(leased_at) > entry.leased_at => Standing::Leased(leased_at),
            _ => Standing::Free,
        })
    }
}

fn merged(planned: &Image, found: Image) -> Image {
    let both = |planned: &[String], found: Vec<String>| {
        let mut names = found;
        names.extend(planned.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
        names
    };
    Image {
        tags: both(&planned.tags, found.tags),
        digests: both(&planned.digests, found.digests),
        pinned: found.pinned,
        ..planned.clone()
    }
}
