//! Opens the store of an engine, and waits for the process that changes it.

use std::time::Duration;

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};
use tokio::time::Instant;

use super::{EngineConfig, blocking};
use crate::store::{Store, StoreOptions};

const RETRY_PERIOD: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_secs(1);

/// Opens the store; `report` is called once with the reason of a wait.
pub(super) async fn open(config: &EngineConfig, report: &(dyn Fn(&str) + Send + Sync)) -> Result<Store, RuntimeError> {
    let (begun, wait_max, mut is_reported) = (Instant::now(), config.lock_wait, false);
    loop {
        let EngineConfig { access, durability, resume_for, .. } = *config;
        let (root, options) = (config.root.clone(), StoreOptions { access, durability, resume_for });
        let in_use = match blocking(move || Store::open(&root, options)).await {
            Err(error) if error.kind() == RuntimeErrorKind::InUse => error,
            opened => return opened,
        };
        let waited = begun.elapsed();
        if waited >= wait_max {
            return Err(in_use);
        }
        if waited >= QUIET && !is_reported {
            report(&format!("{in_use}; waiting for it for at most {} s", wait_max.as_secs_f32()));
            is_reported = true;
        }
        tokio::time::sleep(RETRY_PERIOD.min(wait_max.saturating_sub(waited))).await;
    }
}
