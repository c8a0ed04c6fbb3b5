//! The node for the prefetch agent: pulls below the disk's watermark, presence of images, and pins of image sets.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use imagelet_core::{
    disks::DiskUse,
    error::{ErrorClass, Stage},
    events::{Event, EventKind, EventSink as _, EventSubject},
    gc::GcPolicy,
    image::{ByteSize, ImageId, ImageSpec, Reference},
    inventory::{OwnedPin, PinPattern},
    manager::{EnsureRequest, PullPolicy, PullState, PullStatus},
    ports::{PullEstimate, PullWatcher},
};
use imagelet_kube::{FetchConditions, FetchFailure, ImagePresence, PREFETCH_PRIORITY, PrefetchNode, SetPin};

use super::Pulls;
use crate::failure::Failure;

const NAMED_MAX: usize = 10;

impl Pulls {
    /// Rejects a prefetch that would fill the disk up to the high threshold.
    async fn check_space(&self, request: &EnsureRequest) -> Result<(), FetchFailure> {
        let Pulls { images, manager, .. } = self;
        if request.policy != PullPolicy::Always
            && let Ok(Some(_)) = images.runtime.usable(&ImageSpec::new(request.image())).await
        {
            return Ok(());
        }
        let disks = images.disks().await;
        let disks = disks.inspect_err(|problem| tracing::debug!(problem, "the disk of a prefetch is not measured"));
        let Some(disk) = disks.ok().and_then(|disks| disks.images.disk) else { return Ok(()) };
        let estimate = manager.estimate(request).await;
        decide_space(&images.settings().collection.policy, &disk, estimate.as_ref()).map_err(|message| FetchFailure {
            class: ErrorClass::DiskFull,
            stage: Stage::Disk,
            message,
        })
    }
}

#[async_trait]
impl PrefetchNode for Pulls {
    async fn presence(&self, references: &BTreeSet<String>) -> ImagePresence {
        let Some(snapshot) = self.images.inventory.snapshot() else { return ImagePresence::default() };
        let names: HashMap<&str, &ImageId> = snapshot
            .entries
            .iter()
            .flat_map(|entry| entry.image.names().iter().map(|name| (name.as_str(), &entry.image.id)))
            .collect();
        let listed = |reference: &str| {
            let canonical = reference.parse::<Reference>().map(|it| it.canonical().to_string()).unwrap_or_default();
            if let Some(id) = names.get(canonical.as_str()) {
                return Some(*id);
            }
            // The image may be listed by another name: the reference has a digest, or the runtime lists short names.
            let pattern = reference.parse::<PinPattern>().ok()?;
            snapshot.entries.iter().find(|entry| pattern.matches(&entry.image)).map(|entry| &entry.image.id)
        };
        let mut absent = BTreeSet::new();
        for reference in references {
            let is_present = match listed(reference) {
                Some(id) => self.images.runtime.is_usable(id).await,
                None => reference.parse::<PinPattern>().is_err(),
            };
            if !is_present {
                absent.insert(reference.clone());
            }
        }
        ImagePresence { taken_at: Some(snapshot.taken_at), absent }
    }

    async fn fetch(&self, request: EnsureRequest, watcher: PullWatcher) -> Result<(), FetchFailure> {
        self.check_space(&request).await?;
        let ensure = |watcher| self.manager.ensure(&request, watcher);
        let Err(error) = self.tracer.ensure(request.image(), watcher, ensure).await else { return Ok(()) };
        let message = Failure::of_ensure(&error).to_string();
        Err(FetchFailure { class: error.class(), stage: error.stage(), message })
    }

    fn conditions(&self) -> FetchConditions {
        let waits = |pull: &PullStatus| pull.priority == PREFETCH_PRIORITY && pull.turn.state != PullState::Running;
        FetchConditions {
            policy: self.images.settings().hold(),
            is_queued: self.manager.status().pulls.iter().any(waits),
            is_measured: self.images.local().is_some(),
        }
    }

    async fn pin(&self, pins: &[SetPin]) -> Result<(), String> {
        let pins = pins.iter().map(|pin| (pin.reference.clone(), pin.owner.clone())).collect();
        let inventory = Arc::clone(&self.images.inventory);
        let pinned = tokio::task::spawn_blocking(move || {
            let before = inventory.set_pins();
            inventory.pin_for_sets(pins).map(|()| release_events(&before, &inventory.set_pins()))
        });
        let pinned = pinned.await.map_err(|error| error.to_string())?;
        let released = pinned.map_err(|error| Failure::of(&error).to_string())?;
        for event in released {
            self.record(event);
        }
        Ok(())
    }

    fn record(&self, event: Event) {
        self.images.events.record(event);
    }
}

fn release_events(before: &[OwnedPin], after: &[OwnedPin]) -> Vec<Event> {
    let key = |pin: &OwnedPin| (pin.owner.clone(), pin.pattern.text().to_owned());
    let after: HashSet<_> = after.iter().map(key).collect();
    let mut released: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pin in before.iter().filter(|pin| !after.contains(&key(pin))) {
        released.entry(&pin.owner).or_default().push(pin.pattern.text());
    }
    let event = |(owner, patterns): (&str, Vec<&str>)| {
        let kind = owner.split(' ').next().unwrap_or_default();
        let named = patterns.iter().take(NAMED_MAX).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let more = patterns.len().saturating_sub(NAMED_MAX);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Event {
            kind: EventKind::Normal,
            reason: "PinsReleased",
            message: format!("released pins of {owner}: {named}{more}"),
            note: Some(format!("released pins of {kind} objects: collections take their unused images from now on")),
            subject: EventSubject::Node,
            cause: None,
        }
    };
    released.into_iter().map(event).collect()
}

fn decide_space(policy: &GcPolicy, disk: &DiskUse, estimate: Option<&PullEstimate>) -> Result<(), String> {
    let high = policy.high().get();
    if policy.is_reached_with(disk, ByteSize::ZERO) {
        return Err(format!("the disk of images is at {high} %, where a collection starts; nothing is prefetched"));
    }
    let Some(estimate) = estimate else { return Ok(()) };
    let needed = estimate.bytes_unpacked;
    if needed > ByteSize::ZERO && policy.is_reached_with(disk, needed) {
        let free = disk.available;
        return Err(format!(
            "the image needs about {needed} of {free} free, and would raise the disk of images to {high} %, where a \
             collection starts"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use imagelet_core::image::Digest;

    use super::*;

    #[test]
    fn pins_that_end_are_one_event_for_each_set_and_the_cluster_reads_no_names() {
        let pins = |list: &[(&str, &str)]| -> Vec<OwnedPin> {
            let pin = |(pattern, owner): &(&str, &str)| OwnedPin {
                pattern: pattern.parse().expect("a reference"),
                owner: (*owner).to_owned(),
            };
            list.iter().map(pin).collect()
        };
        let (web, base) = ("ImageSet shop/web", "ClusterImageSet base");
        let before = pins(&[("a:1", web), ("b:1", web), ("a:1", base)]);
        let released = "released pins of ";
        for (after, messages) in [
            (before.clone(), vec![]),
            (pins(&[("b:1", web), ("a:1", base), ("c:1", web)]), vec!["released pins of ImageSet shop/web: `a:1`"]),
            (
                pins(&[]),
                vec![
                    "released pins of ClusterImageSet base: `a:1`",
                    "released pins of ImageSet shop/web: `a:1`, `b:1`",
                ],
            ),
        ] {
            let events = release_events(&before, &after);
            assert_eq!(events.iter().map(|event| event.message.as_str()).collect::<Vec<_>>(), messages);
            for event in events {
                let note = event.note.unwrap_or_default();
                assert!(note.starts_with(released) && !note.contains("shop") && !note.contains("a:1"), "{note}");
            }
        }
    }

    #[test]
    fn a_prefetch_never_crosses_the_watermark() {
        let policy = GcPolicy::new(85, 80, Duration::ZERO, None).expect("the numbers are a policy");
        let estimate = |unpacked: u64| PullEstimate {
            manifest: Digest::of(b"m"),
            bytes_total: ByteSize(300),
            bytes_missing: ByteSize(300),
            bytes_unpacked: ByteSize(unpacked),
            layers_missing: 1,
        };
        for (free, estimate, refusal) in [
            (500, None, None),
            (150, None, Some("the disk of images is at 85 %")),
            (500, Some(estimate(300)), None),
            (500, Some(estimate(351)), Some("the image needs about 351B of 500B free")),
            (500, Some(estimate(390)), Some("would raise the disk of images to 85 %")),
            (160, Some(estimate(0)), None),
            (500, Some(estimate(u64::MAX)), Some("the image needs about")),
        ] {
            let decided = decide_space(&policy, &DiskUse::of(ByteSize(1000), ByteSize(free)), estimate.as_ref());
            match (decided, refusal) {
                (Ok(()), None) => {}
                (Err(message), Some(words)) => assert!(message.contains(words), "{message}"),
                (decided, refusal) => panic!("{free}: {decided:?} and not {refusal:?}"),
            }
        }
    }
}
