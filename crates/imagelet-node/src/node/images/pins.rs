//! Pins of the operator, the configuration and sets, and the images they match.

use std::sync::Arc;

use imagelet_core::{audit_log::ActCode, image::ImageKey, inventory::InventoryError};

use crate::{
    api::{PinChanged, PinRequest, PinRow, Pins, PinsRequest, Steps, UnpinRequest},
    failure::Failure,
    node::{Command, LocalNode, gc::act_now},
};

impl Command for PinRequest {
    const NAME: &'static str = "pin";
    type Answer = PinChanged;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<PinChanged, Failure> {
        pin_all(node, vec![self.pattern], "command").await?.pop().expect("one pattern has one result")
    }
}

impl Command for UnpinRequest {
    const NAME: &'static str = "unpin";
    type Answer = PinChanged;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<PinChanged, Failure> {
        let inventory = Arc::clone(&node.parts.inventory);
        let pattern = self.pattern.clone();
        let held = node.held_by(std::slice::from_ref(&self.pattern)).await.and_then(|mut held| held.pop());
        let changed = tokio::task::spawn_blocking(move || inventory.unpin(&pattern)).await??;
        let changed = PinChanged { pattern: self.pattern, changed, images: None };
        if !changed.changed && node.parts.inventory.configured_pins().iter().any(|pin| pin == changed.pattern.trim()) {
            let message = format!("`{}` is pinned by the configuration", changed.pattern);
            return Err(Failure::new("InvalidArgument", message).or_hint("take it out of `gc.keep` and reload"));
        }
        let of_sets = node.parts.inventory.set_pins();
        if let Some(pin) = of_sets.iter().find(|pin| !changed.changed && pin.pattern.text() == changed.pattern.trim()) {
            let message = format!("`{}` is pinned by {}", changed.pattern, pin.owner);
            return Err(Failure::new("InvalidArgument", message).or_hint("set its `keep` to false, or delete it"));
        }
        Ok(recorded(node, ActCode::Unpinned, changed, held.as_deref(), "command"))
    }
}

/// Pins patterns in one pass over the pins and one over the images; `by` is the requester for the log of decisions. A
/// rejected pattern does not affect the others.
pub(super) async fn pin_all(
    node: &LocalNode,
    patterns: Vec<String>,
    by: &str,
) -> Result<Vec<Result<PinChanged, Failure>>, Failure> {
    let inventory = Arc::clone(&node.parts.inventory);
    let (patterns, pinned) = tokio::task::spawn_blocking(move || {
        let pinned = inventory.pin_all(&patterns);
        (patterns, pinned)
    })
    .await?;
    let pinned = pinned?;
    let held = node.held_by(&patterns).await;
    let results = patterns.into_iter().zip(pinned).enumerate().map(|(index, (pattern, pinned))| match pinned {
        Ok(changed) => {
            let held = held.as_ref().map(|held| held[index].as_slice());
            Ok(recorded(node, ActCode::Pinned, PinChanged { pattern, changed, images: None }, held, by))
        }
        Err(source) => Err(InventoryError::Pin { pattern, source }.into()),
    });
    Ok(results.collect())
}

/// Records a change in the audit log, and adds the images that the pattern matches.
fn recorded(node: &LocalNode, code: ActCode, changed: PinChanged, held: Option<&[ImageKey]>, by: &str) -> PinChanged {
    if changed.changed {
        let (held, pattern) = (held.unwrap_or_default(), changed.pattern.clone());
        node.parts.decisions.act(act_now(code, held, &[pattern], by));
    }
    let images = held.map(|held| held.iter().map(|key| key.id().to_string()).collect());
    PinChanged { images, ..changed }
}

impl Command for PinsRequest {
    const NAME: &'static str = "pins";
    type Answer = Pins;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Pins, Failure> {
        let snapshot = node.refresh().await?;
        let holds = |pattern: &String| {
            let held = snapshot.entries.iter().filter(|entry| entry.pinned_by.contains(pattern));
            held.map(|entry| entry.image.id.to_string()).collect()
        };
        let inventory = &node.parts.inventory;
        let rows = |pins: Vec<String>, owner: &str| {
            let row = |pattern: String| PinRow { images: holds(&pattern), owner: owner.to_owned(), pattern };
            pins.into_iter().map(row).collect::<Vec<_>>()
        };
        let mut pins = rows(inventory.pins(), "operator");
        pins.extend(rows(inventory.configured_pins(), "configuration"));
        pins.extend(inventory.set_pins().into_iter().map(|pin| {
            // The owner is on each image that one of its pins matches.
            let held = snapshot.entries.iter().filter(|entry| entry.pinned_by.contains(&pin.owner));
            let held = held.filter(|entry| pin.pattern.matches(&entry.image));
            let images = held.map(|entry| entry.image.id.to_string()).collect();
            PinRow { images, pattern: pin.pattern.text().to_owned(), owner: pin.owner }
        }));
        Ok(Pins { pins })
    }
}
