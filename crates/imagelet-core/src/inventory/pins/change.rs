//! Adds and removes pins, and merges them with the pins of other processes.

use std::{io, sync::Arc};

use crate::inventory::{
    Inventory, InventoryError, PinError,
    pins::{PATTERNS_MAX, PinPattern},
};
use crate::{image::Image, ports::Listing};

impl Inventory {
    pub fn pins(&self) -> Vec<String> {
        self.lock().pins.iter().map(|pin| pin.text().to_owned()).collect()
    }

    pub fn configured_pins(&self) -> Vec<String> {
        self.lock().configured_pins.iter().map(|pin| pin.text().to_owned()).collect()
    }

    /// No command removes these pins, and no file stores them.
    pub(crate) fn set_configured_pins(&self, pins: Vec<PinPattern>) {
        let mut state = self.lock();
        if state.configured_pins != pins {
            state.configured_pins = pins;
            state.repin();
        }
    }

    pub fn pins_of(&self, image: &Image) -> Vec<String> {
        self.lock().pinned_by(image)
    }

    /// Sets `pinned` if a pin matches the image or a pod waits for the image, so that other image managers keep it.
    pub fn mark_pinned(&self, image: &mut Image) {
        image.pinned |= self.lock().is_pinned(image);
    }

    /// Sets `pinned` of all images that a pin matches or a pod waits for, so that other image managers keep them.
    pub fn mark_all_pinned(&self, mut listing: Listing) -> Listing {
        let state = self.lock();
        let has_own = !state.pins.is_empty() || !state.configured_pins.is_empty() || !state.set_pins.is_empty();
        let has_pins = has_own || !state.pod_leases.is_empty();
        if !has_pins && state.sandboxes.defaults().next().is_none() {
            return listing;
        }
        let images = Arc::make_mut(&mut listing).iter_mut();
        for image in images.filter(|image| !image.pinned && state.is_pinned(image)) {
            Arc::make_mut(image).pinned = true;
        }
        listing
    }

    /// Durably pins references, globs with `*`, and 12+ digits of ids or digests. The results are `false` for existing
    /// pins. If one pattern is rejected, the others are still pinned.
    pub fn pin_all(&self, patterns: &[impl AsRef<str>]) -> Result<Vec<Result<bool, PinError>>, InventoryError> {
        let mut pinned = Vec::new();
        self.change_pins(|pins| {
            pinned = patterns.iter().map(|pattern| add(pins, pattern.as_ref())).collect();
            pinned.contains(&Ok(true))
        })?;
        Ok(pinned)
    }

    /// Removes a pin. `pattern` must be spelled as in the pin. Returns false if the pin is absent. Durable on return.
    pub fn unpin(&self, pattern: &str) -> Result<bool, InventoryError> {
        self.change_pins(|pins| {
            let before = pins.len();
            pins.retain(|pin| pin.text() != pattern.trim());
            pins.len() < before
        })
    }

    fn change_pins(&self, change: impl FnOnce(&mut Vec<PinPattern>) -> bool) -> Result<bool, InventoryError> {
        let Some(directory) = &self.directory else {
            let mut state = self.lock();
            let changed = change(&mut state.pins);
            state.repin();
            return Ok(changed);
        };
        let failed = |source| InventoryError::File { path: directory.path.clone(), source };
        // Another process may have changed the pins, so the file is read under the lock.
        let lock = directory.lock().map_err(failed)?;
        let mut pins = parse_patterns(directory.read_pins().map_err(failed)?);
        let changed = change(&mut pins);
        if changed {
            let patterns = pins.iter().map(|pin| pin.text().to_owned()).collect();
            directory.write_pins(patterns, &lock).map_err(failed)?;
        }
        let mut state = self.lock();
        state.pins = pins;
        state.repin();
        Ok(changed)
    }

    /// Reads the pins that other processes have changed. If the file is unreadable, the known pins stay.
    pub(crate) async fn reload_pins(&self) {
        let Some(directory) = self.directory.clone() else { return };
        let path = directory.path.clone();
        let read = tokio::task::spawn_blocking(move || directory.read_pins()).await;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(patterns) => self.lock().pins = parse_patterns(patterns),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "could not read the pins; keeping those known");
            }
        }
    }
}

fn add(pins: &mut Vec<PinPattern>, pattern: &str) -> Result<bool, PinError> {
    let pattern: PinPattern = pattern.parse()?;
    if pins.iter().any(|pin| pin.text() == pattern.text()) {
        return Ok(false);
    }
    if pins.len() >= PATTERNS_MAX {
        return Err(PinError::TooMuch);
    }
    pins.push(pattern);
    Ok(true)
}

/// Parses patterns. An invalid pattern, for example from a manual edit of the file, is logged and skipped.
pub(crate) fn parse_patterns(texts: Vec<String>) -> Vec<PinPattern> {
    let parse = |text: String| match text.parse() {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            tracing::warn!(pattern = %text, %error, "skipping an invalid pin");
            None
        }
    };
    texts.into_iter().take(PATTERNS_MAX).filter_map(parse).collect()
}
