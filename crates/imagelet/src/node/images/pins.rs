//! Pins of the operator, the configuration and sets, and the images they match.

use std::sync::Arc;

use imagelet_core::{audit_log::ActCode, image::ImageKey};

use crate::{
    api::{PinChanged, PinRequest, PinRow, Pins, PinsRequest, Steps, UnpinRequest},
    failure::Failure,
    node::{Command, LocalNode, gc::act_now},
};

impl Command for PinRequest {
    const NAME: &'static str = "pin";
    type Answer = PinChanged;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<PinChanged, Failure> {
        let inventory = Arc::clone(&node.parts.inventory);
        let changed = change_pin(self.pattern, move |pattern| inventory.pin(pattern)).await?;
        let held = node.held_by(&changed.pattern).await;
        Ok(recorded(node, ActCode::Pinned, changed, held))
    }
}

impl Command for UnpinRequest {
    const NAME: &'static str = "unpin";
    type Answer = PinChanged;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<PinChanged, Failure> {
        let inventory = Arc::clone(&node.parts.inventory);
        let held = node.held_by(&self.pattern).await;
        let changed = change_pin(self.pattern, move |pattern| inventory.unpin(pattern)).await?;
        if !changed.changed && node.parts.inventory.configured_pins().iter().any(|pin| pin == changed.pattern.trim()) {
            let message = format!("`{}` is pinned by the configuration", changed.pattern);
            return Err(Failure::new("InvalidArgument", message).or_hint("take it out of `gc.keep` and reload"));
        }
        let of_sets = node.parts.inventory.set_pins();
        if let Some(pin) = of_sets.iter().find(|pin| !changed.changed && pin.pattern.text() == changed.pattern.trim()) {
            let message = format!("`{}` is pinned by {}", changed.pattern, pin.owner);
            return Err(Failure::new("InvalidArgument", message).or_hint("set its `keep` to false, or delete it"));
        }
        Ok(recorded(node, ActCode::Unpinned, changed, held))
    }
}

/// Records a change in the audit log, and adds the images that the pattern matches.
fn recorded(node: &LocalNode, code: ActCode, changed: PinChanged, held: Option<Vec<ImageKey>>) -> PinChanged {
    if changed.changed {
        let (held, pattern) = (held.as_deref().unwrap_or_default(), changed.pattern.clone());
        node.parts.decisions.act(act_now(code, held, &[pattern], "command"));
    }
    let images = held.map(|held| held.iter().map(|key| key.id().to_string()).collect());
    PinChanged { images, ..changed }
}

async fn change_pin(
    pattern: String,
    change: impl FnOnce(&str) -> Result<bool, imagelet_core::inventory::InventoryError> + Send + 'static,
) -> Result<PinChanged, Failure> {
    let task = tokio::task::spawn_blocking(move || {
        change(&pattern).map(|changed| PinChanged { pattern, changed, images: None })
    });
    Ok(task.await??)
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
