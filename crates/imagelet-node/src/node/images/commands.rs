//! `list`, `inspect`, `remove`, `untag`, `mount` and `unmount`.

use std::time::SystemTime;

use imagelet_core::{
    audit_log::ActCode,
    error::RuntimeErrorKind,
    gc::UsedImages,
    image::{ByteSize, ImageKey, ImageSpec, Reference},
    ports::{MountOptions, MountedImage},
};

use super::{Images, act_now, image_row::details_of, service::KnownSizes};
use crate::{
    api::{
        ImageList, InspectRequest, Inspected, ListRequest, MountRequest, RemoveRequest, Removed, UnmountRequest,
        UntagRequest, moment,
    },
    failure::Failure,
    node::Collection,
};

impl ListRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<ImageList, Failure> {
        if !self.brief {
            return Ok(ImageList { images: images.rows().await? });
        }
        let mut rows = images.listed(&KnownSizes::default()).await?;
        rows.iter_mut().filter(|row| !row.names.is_empty()).for_each(|row| row.digests.clear());
        Ok(ImageList { images: rows })
    }
}

impl InspectRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<Inspected, Failure> {
        let Some(image) = images.look(&self.image).await? else { return Ok(Inspected::default()) };
        if !images.runtime.is_usable(&image.id).await {
            return Ok(Inspected::default());
        }
        let rows = images.rows().await?;
        let found = rows
            .into_iter()
            .find(|row| row.id == image.id.as_str() && row.runtime_handler == image.spec.runtime_handler);
        let details = match images.local() {
            Some(_) => images.runtime.details(&ImageSpec::new(image.id.as_str())).await?,
            None => None,
        };
        Ok(Inspected { image: found, details: details.as_ref().and_then(details_of) })
    }
}

impl RemoveRequest {
    pub(crate) async fn run_on(self, Collection { images, gc, .. }: &Collection) -> Result<Removed, Failure> {
        if let Some(store) = images.local()
            && images.look(&self.image).await?.is_none()
            && let Some(id) = store.damaged(&self.image)
        {
            let before = images.store_bytes().await?;
            images.runtime.remove(&ImageSpec::new(id.as_str())).await?;
            let freed = freed(before, images.store_bytes().await?);
            tracing::info!(image = %id, "removed a damaged image on request");
            return Ok(Removed { id: id.to_string(), freed, ..Removed::default() });
        }
        let image = images.find(&self.image).await?;
        let before = images.sizes().await?;
        let spec = ImageSpec { image: image.id.to_string(), ..image.spec.clone() };
        // A removal on request also removes an image that is leased after a pull. The reply reports the lease.
        let held_until = images.inventory.leases.until(&image.id, SystemTime::now()).and_then(moment);
        let pinned_by = images.inventory.pins_of(&image);
        let awaited_by = images.inventory.awaited_by(&image);
        let ordered = gc.remove_ordered(&spec, UsedImages::Stay, SystemTime::now()).await;
        ordered.map_err(|error| match error.kind() {
            RuntimeErrorKind::InUse | RuntimeErrorKind::Remains => {
                Failure::because(format!("image `{}` cannot be removed", self.image), &error)
            }
            _ => error.into(),
        })?;
        let after = images.store_bytes().await?;
        let names = image.names().to_vec();
        if held_until.is_none() && pinned_by.is_empty() && awaited_by.is_empty() {
            tracing::info!(image = %image.id, ?names, "removed an image on request");
        } else {
            tracing::warn!(image = %image.id, ?names, ?held_until, ?pinned_by, ?awaited_by, "removed an image on request");
        }
        let freed = freed(before.store_bytes, after).or_else(|| before.freed_by(&image.id));
        let mut act = act_now(ActCode::RemovedOnRequest, &[image.key()], &names, "command");
        act.details.bytes = freed;
        images.log.act(act);
        Ok(Removed { id: image.id.to_string(), names, freed, held_until, pinned_by, awaited_by })
    }
}

impl UntagRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<Removed, Failure> {
        let image = images.find(&self.image).await?;
        let canonical = self.image.parse::<Reference>().ok().map(|name| name.canonical().to_string());
        let mut named = [Some(self.image.clone()), canonical].into_iter().flatten();
        let Some(name) = named.find(|name| image.tags.contains(name) || image.digests.contains(name)) else {
            return Err(Failure::invalid(format!("`{}` is an id, not a name", self.image))
                .or_hint("`imagelet rm` removes an image with all its names"));
        };
        let before = images.store_bytes().await?;
        images.store("the removal of one name")?.untag(&name).await?;
        let freed = freed(before, images.store_bytes().await?);
        tracing::info!(image = %image.id, name, "removed a name on request");
        let mut act = act_now(ActCode::UntaggedOnRequest, &[image.key()], std::slice::from_ref(&name), "command");
        act.details.bytes = freed;
        images.log.act(act);
        Ok(Removed { id: image.id.to_string(), names: vec![name], freed, ..Removed::default() })
    }
}

impl MountRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<MountedImage, Failure> {
        let store = images.store("mounting")?;
        let image = images.find(&self.image).await?;
        let options = MountOptions { writable: self.writable, suid: self.suid, dev: self.dev };
        let mounted = store.mount(&ImageSpec::new(image.id.as_str()), &self.directory, options).await?;
        images.inventory.touch(&ImageKey::new(image.id, String::new()), SystemTime::now());
        Ok(mounted)
    }
}

impl UnmountRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<MountedImage, Failure> {
        Ok(images.store("mounting")?.unmount(&self.directory, self.force).await?)
    }
}

fn freed(before: Option<ByteSize>, after: Option<ByteSize>) -> Option<u64> {
    Some(before?.saturating_sub(after?).0)
}
