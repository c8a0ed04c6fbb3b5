//! Opens the store of an engine, and waits for the process that changes it.

use std::time::Duration;

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};
use tokio::time::Instant;

use super::{EngineConfig, blocking};
use crate::store::{Patience, Store, patience};

/// How often a store is tried that another process changes.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

pub(super) async fn open(config: &EngineConfig, tell: &(dyn Fn(&str) + Send + Sync)) -> Result<Store, RuntimeError> {
    let (begun, mut is_told) = (Instant::now(), false);
    loop {
        let (root, access, durability) = (config.root.clone(), config.access, config.durability);
        let held = match blocking(move || Store::open(&root, access, durability)).await {
            Err(error) if error.kind() == RuntimeErrorKind::InUse => error,
            opened => return opened,
        };
        let (waited, wait_max) = (begun.elapsed(), config.lock_wait);
        match patience(waited, wait_max, is_told) {
            Patience::GiveUp => return Err(held),
            Patience::WaitAloud => {
                tell(&format!("{held}; waiting for it for at most {} s", wait_max.as_secs_f32()));
                is_told = true;
            }
            Patience::Wait => {}
        }
        tokio::time::sleep(LOOK_PERIOD.min(wait_max.saturating_sub(waited))).await;
    }
}
