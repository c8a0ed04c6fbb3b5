//! `list`, `inspect`, `remove`, `untag`, `mount` and `unmount`.

use std::time::SystemTime;

use imagelet_core::{
    audit_log::ActCode,
    gc::{OrderError, UsedImages},
    image::{ByteSize, ImageKey, ImageSpec, Reference},
    runtime::{MountOptions, MountedImage, RuntimeErrorKind},
};

use super::image_row::{KnownSizes, details_of};
use crate::{
    api::{
        ImageList, InspectRequest, Inspected, ListRequest, MountRequest, RemoveRequest, Removed, Steps, UnmountRequest,
        UntagRequest, moment,
    },
    failure::Failure,
    node::{AnswerTime, Command, LocalNode},
};

impl Command for ListRequest {
    const NAME: &'static str = "list";
    type Answer = ImageList;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<ImageList, Failure> {
        let sizes = if self.brief { KnownSizes::default() } else { node.sizes().await? };
        Ok(ImageList { images: node.listed(self.brief, &sizes).await? })
    }
}

impl Command for InspectRequest {
    const NAME: &'static str = "inspect";
    type Answer = Inspected;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Inspected, Failure> {
        let Some(image) = node.look(&self.image).await? else { return Ok(Inspected::default()) };
        if !node.parts.runtime.is_usable(&image.id).await {
            return Ok(Inspected::default());
        }
        let rows = node.rows().await?;
        let found = rows
            .into_iter()
            .find(|row| row.id == image.id.as_str() && row.runtime_handler == image.spec.runtime_handler);
        let details = match node.local() {
            Some(_) => node.parts.runtime.details(&ImageSpec::new(image.id.as_str())).await?,
            None => None,
        };
        Ok(Inspected { image: found, details: details.as_ref().and_then(details_of) })
    }
}

impl Command for RemoveRequest {
    const NAME: &'static str = "remove";
    const TIME: AnswerTime = AnswerTime::WhileAlive;
    type Answer = Removed;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Removed, Failure> {
        if let Some(store) = node.local()
            && node.look(&self.image).await?.is_none()
            && let Some(id) = store.damaged(&self.image)
        {
            let before = node.store_bytes().await?;
            node.parts.runtime.remove(&ImageSpec::new(id.as_str())).await?;
            let freed = freed(before, node.store_bytes().await?);
            tracing::info!(image = %id, "removed a damaged image on request");
            return Ok(Removed { id: id.to_string(), freed, ..Removed::default() });
        }
        let image = node.find(&self.image).await?;
        let before = node.sizes().await?;
        let spec = ImageSpec { image: image.id.to_string(), ..image.spec.clone() };
        // An explicit order overrides the lease of an earlier pull; the reply reports the lease.
        let held_until = node.parts.inventory.leases.until(&image.id, SystemTime::now()).and_then(moment);
        let pinned_by = node.parts.inventory.pins_of(&image);
        let awaited_by = node.parts.inventory.awaited_by(&image);
        let ordered = node.parts.gc.remove_ordered(&spec, UsedImages::Stay, SystemTime::now()).await;
        ordered.map_err(|error| match error {
            OrderError::InUse { by, .. } => {
                let user = by.first().map_or("a container", String::as_str);
                Failure::new("InUse", format!("image `{}` is in use by {user}", self.image))
            }
            OrderError::Runtime(error) if error.kind() == RuntimeErrorKind::Remains => {
                Failure::because(format!("image `{}` cannot be removed", self.image), &error)
            }
            OrderError::Runtime(error) => error.into(),
            other => Failure::of(&other),
        })?;
        let after = node.store_bytes().await?;
        tracing::info!(image = %image.id, names = ?image.names(), "removed an image on request");
        let freed = freed(before.store_bytes, after).or_else(|| before.freed_by(&image.id));
        node.removed_on_request(ActCode::RemovedOnRequest, &image, image.names(), "command", freed);
        if let Some(until) = &held_until {
            tracing::warn!(image = %image.id, until, "the removed image was held for a container that may still come");
        }
        if !pinned_by.is_empty() {
            tracing::warn!(image = %image.id, ?pinned_by, "the removed image was pinned");
        }
        if !awaited_by.is_empty() {
            tracing::warn!(image = %image.id, ?awaited_by, "pods wait for the removed image");
        }
        let names = image.names().to_vec();
        Ok(Removed { id: image.id.to_string(), names, freed, held_until, pinned_by, awaited_by })
    }
}

impl Command for UntagRequest {
    const NAME: &'static str = "untag";
    const TIME: AnswerTime = AnswerTime::WhileAlive;
    type Answer = Removed;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Removed, Failure> {
        let image = node.find(&self.image).await?;
        let name =
            [Some(self.image.clone()), self.image.parse::<Reference>().ok().map(|name| name.canonical().to_string())]
                .into_iter()
                .flatten()
                .find(|name| image.tags.contains(name) || image.digests.contains(name));
        let Some(name) = name else {
            return Err(Failure::new("InvalidArgument", format!("`{}` is an id, not a name", self.image))
                .or_hint("`imagelet rm` removes an image with all its names"));
        };
        let before = node.store_bytes().await?;
        node.store("the removal of one name")?.untag(&name).await?;
        let freed = freed(before, node.store_bytes().await?);
        tracing::info!(image = %image.id, name, "removed a name on request");
        node.removed_on_request(ActCode::UntaggedOnRequest, &image, std::slice::from_ref(&name), "command", freed);
        Ok(Removed { id: image.id.to_string(), names: vec![name], freed, ..Removed::default() })
    }
}

impl Command for MountRequest {
    const NAME: &'static str = "mount";
    type Answer = MountedImage;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<MountedImage, Failure> {
        let store = node.store("mounting")?;
        let image = node.find(&self.image).await?;
        let options = MountOptions { writable: self.writable, suid: self.suid, dev: self.dev };
        let mounted = store.mount(&ImageSpec::new(image.id.as_str()), &self.directory, options).await?;
        node.parts.inventory.touch(&ImageKey::new(image.id, String::new()), SystemTime::now());
        Ok(mounted)
    }
}

impl Command for UnmountRequest {
    const NAME: &'static str = "unmount";
    type Answer = MountedImage;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<MountedImage, Failure> {
        Ok(node.store("mounting")?.unmount(&self.directory, self.force).await?)
    }
}

fn freed(before: Option<ByteSize>, after: Option<ByteSize>) -> Option<u64> {
    Some(before?.saturating_sub(after?).0)
}
