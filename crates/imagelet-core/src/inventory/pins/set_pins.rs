//! The pins of `ImageSet` objects, always replaced as a whole. A restart reads the last pins from disk.

use std::io;

use crate::{
    durable::{StateDir, misread},
    inventory::{
        Inventory, InventoryError, PinError,
        pins::{PATTERNS_MAX, PinPattern},
    },
};

/// A list of references with their owners. If the file is lost, sets pin no image until the agent has read the sets.
const FILE: &str = "set-pins.json";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPin {
    pub pattern: PinPattern,
    /// `ImageSet NAMESPACE/NAME` or `ClusterImageSet NAME`.
    pub owner: String,
}

impl Inventory {
    pub fn set_pins(&self) -> Vec<OwnedPin> {
        self.lock().set_pins.clone()
    }

    /// Replaces all pins of sets. Each is (reference, owner). Durable on return. After an error, the old pins stay.
    pub fn pin_for_sets(&self, pins: Vec<(String, String)>) -> Result<(), InventoryError> {
        if pins.len() > PATTERNS_MAX {
            let pattern = pins[PATTERNS_MAX].0.clone();
            return Err(InventoryError::Pin { pattern, source: PinError::TooMuch });
        }
        let parsed = parse(pins);
        if self.lock().set_pins == parsed {
            return Ok(());
        }
        if let Some(directory) = &self.directory {
            let failed = |source| InventoryError::File { path: directory.path.clone(), source };
            write(directory, &parsed).map_err(failed)?;
        }
        let mut state = self.lock();
        state.set_pins = parsed;
        state.repin();
        Ok(())
    }
}

/// The pins on disk. An invalid pin is logged and skipped.
pub(crate) fn read(directory: &StateDir) -> io::Result<Vec<OwnedPin>> {
    let content = |text: &[u8]| serde_json::from_slice(text).map_err(|error| misread(&error));
    let mut pins: Vec<(String, String)> = directory.read(FILE, content)?;
    pins.truncate(PATTERNS_MAX);
    Ok(parse(pins))
}

fn write(directory: &StateDir, pins: &[OwnedPin]) -> io::Result<()> {
    let pins: Vec<(&str, &str)> = pins.iter().map(|pin| (pin.pattern.text(), pin.owner.as_str())).collect();
    let text = serde_json::to_vec(&pins).map_err(io::Error::other)?;
    let _lock = directory.lock()?;
    directory.replace(FILE, &text)
}

fn parse(pins: Vec<(String, String)>) -> Vec<OwnedPin> {
    let parse = |(reference, owner): (String, String)| {
        // A name with `*` is no reference and would be parsed as a glob.
        let pattern = Some(reference.as_str()).filter(|name| !name.contains('*')).and_then(|name| name.parse().ok());
        if pattern.is_none() {
            tracing::warn!(reference, owner, "skipping a pin of a set that is no reference");
        }
        Some(OwnedPin { pattern: pattern?, owner })
    };
    pins.into_iter().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::SystemTime};

    use super::*;
    use crate::{ports::RuntimeManager, testing::FakeRuntime};

    fn pin(reference: &str, owner: &str) -> (String, String) {
        (reference.to_owned(), owner.to_owned())
    }

    #[tokio::test]
    async fn the_pins_of_sets_outlive_a_restart_and_end_with_the_next_list() {
        let (folder, fake) = (tempfile::tempdir().unwrap(), FakeRuntime::new());
        for name in ["app:v1", "web:v1"] {
            fake.preload(name, name, 10);
        }
        let open = || {
            let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
            Inventory::open(runtime, Some(folder.path())).unwrap()
        };
        let pinned = async |inventory: &Inventory| -> Vec<Vec<String>> {
            let snapshot = inventory.refresh(SystemTime::now()).await.unwrap();
            snapshot.entries.iter().map(|entry| entry.pinned_by.clone()).collect()
        };
        let inventory = open();
        inventory.refresh(SystemTime::now()).await.unwrap();
        let pins = vec![pin("app:v1", "ImageSet shop/web"), pin("app:v1", "ClusterImageSet base"), pin("*", "x")];
        inventory.pin_for_sets(pins).unwrap();
        let of_sets = vec!["ImageSet shop/web".to_owned(), "ClusterImageSet base".to_owned()];
        let shown = inventory.snapshot().unwrap().entries.iter().map(|it| it.pinned_by.len()).collect::<Vec<_>>();
        assert_eq!(shown.iter().sum::<usize>(), 2, "without a pass");
        drop(inventory);
        let inventory = open();
        assert!(pinned(&inventory).await.contains(&of_sets));
        assert!(inventory.pins().is_empty(), "they are no pins of an operator");
        let listed: Vec<_> = inventory.set_pins().iter().map(|it| pin(it.pattern.text(), &it.owner)).collect();
        assert_eq!(listed, [pin("app:v1", "ImageSet shop/web"), pin("app:v1", "ClusterImageSet base")]);
        inventory.pin_for_sets(Vec::new()).unwrap();
        drop(inventory);
        assert_eq!(pinned(&open()).await, [Vec::<String>::new(), Vec::new()]);
    }
}
