//! Pins of the operator, the configuration and image sets, and the images that they match.

use std::sync::Arc;

use imagelet_core::{
    audit_log::ActCode,
    image::{Image, ImageKey},
    inventory::InventoryError,
};

use super::{Images, act_now};
use crate::{
    api::{PinChanged, PinRequest, PinRow, Pins, UnpinRequest},
    failure::Failure,
};

impl PinRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<PinChanged, Failure> {
        pin_all(images, vec![self.pattern], "command").await?.pop().expect("one pattern has one result")
    }
}

impl UnpinRequest {
    pub(crate) async fn run_on(self, images: &Images) -> Result<PinChanged, Failure> {
        if self.pattern.is_empty() {
            return Err(Failure::invalid("`pattern` is missing"));
        }
        let inventory = Arc::clone(&images.inventory);
        let pattern = self.pattern.clone();
        let held = images.held_by(std::slice::from_ref(&self.pattern)).await.and_then(|mut held| held.pop());
        let changed = tokio::task::spawn_blocking(move || inventory.unpin(&pattern)).await??;
        if !changed {
            let is_it = |pin: &str| pin == self.pattern.trim();
            let refuse = |by: &str, hint| {
                let message = format!("`{}` is pinned by {by}", self.pattern);
                Err(Failure::invalid(message).or_hint(hint))
            };
            if images.inventory.configured_pins().iter().any(|pin| is_it(pin)) {
                return refuse("the configuration", "take it out of `gc.keep` and reload");
            }
            if let Some(pin) = images.inventory.set_pins().iter().find(|pin| is_it(pin.pattern.text())) {
                return refuse(&pin.owner, "set its `keep` to false, or delete it");
            }
        }
        Ok(images.record_pin(ActCode::Unpinned, self.pattern, changed, held.as_deref(), "command"))
    }
}

/// Pins the valid patterns with one pass over the images. `by` names the requester in the audit log.
pub(super) async fn pin_all(
    images: &Images,
    patterns: Vec<String>,
    by: &str,
) -> Result<Vec<Result<PinChanged, Failure>>, Failure> {
    let inventory = Arc::clone(&images.inventory);
    let (patterns, pinned) = tokio::task::spawn_blocking(move || {
        let pinned = inventory.pin_all(&patterns);
        (patterns, pinned)
    })
    .await?;
    let pinned = pinned?;
    let held = images.held_by(&patterns).await;
    let results = patterns.into_iter().zip(pinned).enumerate().map(|(index, (pattern, pinned))| match pinned {
        Ok(changed) => {
            let held = held.as_ref().map(|held| held[index].as_slice());
            Ok(images.record_pin(ActCode::Pinned, pattern, changed, held, by))
        }
        Err(source) => Err(InventoryError::Pin { pattern, source }.into()),
    });
    Ok(results.collect())
}

impl Images {
    /// The images that each pattern pins. `None`: the images could not be listed, but the pins can still change.
    async fn held_by(&self, patterns: &[String]) -> Option<Vec<Vec<ImageKey>>> {
        let snapshot = self.refresh().await.inspect_err(|failure| {
            tracing::debug!(error = failure.to_string(), "could not find what a pattern holds");
        });
        let snapshot = snapshot.ok()?;
        let held = |pattern: &String| {
            let held = snapshot.entries.iter().filter(|entry| entry.pinned_by.iter().any(|by| by == pattern.trim()));
            held.map(|entry| entry.key()).collect()
        };
        Some(patterns.iter().map(held).collect())
    }

    fn record_pin(
        &self,
        code: ActCode,
        pattern: String,
        changed: bool,
        held: Option<&[ImageKey]>,
        by: &str,
    ) -> PinChanged {
        if changed {
            self.log.act(act_now(code, held.unwrap_or_default(), std::slice::from_ref(&pattern), by));
        }
        let images = held.map(|held| held.iter().map(|key| key.id().to_string()).collect());
        PinChanged { pattern, changed, images }
    }

    pub(crate) async fn pins(&self) -> Result<Pins, Failure> {
        let snapshot = self.refresh().await?;
        let ids = |by: &String, is_held: &dyn Fn(&Image) -> bool| -> Vec<String> {
            let held = snapshot.entries.iter().filter(|entry| entry.pinned_by.contains(by) && is_held(&entry.image));
            held.map(|entry| entry.image.id.to_string()).collect()
        };
        let row = |owner: &str, pattern| PinRow { images: ids(&pattern, &|_| true), owner: owner.to_owned(), pattern };
        let of_operator = self.inventory.pins().into_iter().map(|pattern| row("operator", pattern));
        let configured = self.inventory.configured_pins().into_iter().map(|pattern| row("configuration", pattern));
        let of_sets = self.inventory.set_pins().into_iter().map(|pin| {
            // An image that a set pins has the name of the set and not the pattern, so the pattern is matched again.
            let images = ids(&pin.owner, &|image| pin.pattern.matches(image));
            PinRow { images, pattern: pin.pattern.text().to_owned(), owner: pin.owner }
        });
        Ok(Pins { pins: of_operator.chain(configured).chain(of_sets).collect() })
    }
}
