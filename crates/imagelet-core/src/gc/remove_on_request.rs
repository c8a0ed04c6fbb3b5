//! The removal of one image, requested by a command or a CRI caller.

use std::time::SystemTime;

use tokio::time::Instant;

use super::ImageGc;
use crate::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Image, ImageSpec, shown_name},
    inventory::Reason,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedImages {
    Stay,
    /// Containers may use the image. The store alone decides whether the removal is possible.
    Go,
}

impl ImageGc {
    /// Removes one image, even if it is young, pinned or leased, and with [`UsedImages::Go`] even if it is in use.
    /// `None`: the image is absent. A concurrent request for the image waits until the removal has ended.
    ///
    /// # Errors
    /// `InUse`: a container uses the image. `Unavailable`: its users cannot be listed, or the list is not trusted.
    /// Other errors come from the runtime.
    pub async fn remove_ordered(
        &self,
        spec: &ImageSpec,
        used: UsedImages,
        now: SystemTime,
    ) -> Result<Option<Image>, RuntimeError> {
        let waiting = Instant::now();
        // Only one collection or requested removal runs at a time.
        let _turn = self.turn.lock().await;
        let Some(image) = self.runtime.status(spec).await? else { return Ok(None) };
        let by_id = ImageSpec { image: image.id.to_string(), ..image.spec.clone() };
        let prepared = self.runtime.prepare_removal(&by_id).await;
        let now = now + waiting.elapsed();
        let ordered = self.inventory.check_requested_removal(&image, used == UsedImages::Go).await;
        let unknown = |error| {
            let message = format!("could not find out what uses `{}`", shown_name(&spec.image));
            RuntimeError::new(RuntimeErrorKind::Unavailable, message).caused_by(error)
        };
        let _removal = ordered.map_err(unknown)?.map_err(|by| {
            let user = by.first().map_or("a container", String::as_str);
            RuntimeError::new(RuntimeErrorKind::InUse, format!("the image is in use by {user}"))
        })?;
        prepared?;
        let removed = self.runtime.remove_and_look(&by_id).await;
        if let Err(error) = &removed
            && error.kind() == RuntimeErrorKind::Remains
        {
            let left = self.runtime.status(&by_id).await.ok().flatten();
            self.remaining.add(image.key(), Reason::Remains(error.chain()), now, left.as_ref());
        }
        removed?;
        Ok(Some(image))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        inventory::Inventory,
        ports::{ContainerState, ImageService as _, RuntimeManager},
        testing::FakeRuntime,
    };

    fn node() -> (FakeRuntime, ImageGc, ImageSpec) {
        let fake = FakeRuntime::new();
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
        let inventory = Arc::new(Inventory::open(runtime.clone(), None).unwrap());
        let id = fake.preload("app:v1", "app", 1);
        (fake, ImageGc::new(runtime, inventory), ImageSpec::new(id.as_str()))
    }

    #[tokio::test]
    async fn an_image_in_use_goes_only_where_that_is_ordered() {
        let (fake, gc, spec) = node();
        let id = fake.status(&spec).await.unwrap().unwrap().id;
        fake.run("web", "main", "app:v1", &id, ContainerState::Exited);
        let now = SystemTime::now();
        let refused = gc.remove_ordered(&spec, UsedImages::Stay, now).await.unwrap_err();
        assert_eq!(refused.to_string(), "the image is in use by default/web/main");
        fake.take_calls();
        assert_eq!(gc.remove_ordered(&spec, UsedImages::Go, now).await.unwrap().unwrap().id, id);
        assert!(fake.take_calls().iter().all(|call| !call.contains("containers")), "no user is listed");
        assert!(gc.remove_ordered(&spec, UsedImages::Stay, now).await.unwrap().is_none(), "absent is no failure");
    }

    #[tokio::test]
    async fn where_no_containers_can_run_none_stands_against_a_removal() {
        let (fake, gc, spec) = node();
        for (kind, is_removed) in [(RuntimeErrorKind::Unavailable, false), (RuntimeErrorKind::Unsupported, true)] {
            fake.fail("sandboxes", kind, "no");
            let removed = gc.remove_ordered(&spec, UsedImages::Stay, SystemTime::now()).await;
            assert_eq!(removed.is_ok_and(|image| image.is_some()), is_removed, "{kind:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_containers_have_just_vanished_a_requested_removal_waits_a_minute() {
        for (seconds, is_removed) in [(0, false), (59, false), (60, true)] {
            let (fake, gc, spec) = node();
            let other = fake.preload("other:v1", "other", 1);
            fake.run("web", "main", "other:v1", &other, ContainerState::Running);
            let now = SystemTime::now();
            gc.inventory.refresh(now).await.unwrap();
            fake.stop_all();
            tokio::time::advance(Duration::from_secs(seconds)).await;
            // Whatever the wall clock does meanwhile.
            let removed = gc.remove_ordered(&spec, UsedImages::Stay, now + Duration::from_hours(1)).await;
            assert_eq!(removed.is_ok(), is_removed, "after {seconds} s: {removed:?}");
        }
    }

    #[tokio::test]
    async fn orders_for_one_image_at_once_all_succeed() {
        let (fake, gc, spec) = node();
        let orders = (0..5).map(|_| gc.remove_ordered(&spec, UsedImages::Stay, SystemTime::now()));
        let removed = futures_util::future::join_all(orders).await;
        assert_eq!(removed.into_iter().filter(|removed| removed.as_ref().unwrap().is_some()).count(), 1);
        assert!(fake.status(&spec).await.unwrap().is_none());
    }
}
