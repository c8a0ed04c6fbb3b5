//! Pulls into imagelet's own store, without a runtime, and plans a collection: `embedded_store DIR IMAGE…`.

#![allow(clippy::print_stdout, reason = "the output of an example")]

use std::{
    error::Error,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use imagelet_core::{
    gc::{GcGoal, GcPolicy, GcRequest, ImageGc},
    inventory::Inventory,
    manager::{EnsureRequest, ImageManager, ManagerParts, PullPolicy},
    ports::{PullProgress, RuntimeManager},
    records::{PullRecords, VerificationPolicy},
};
use imagelet_oci::{Engine, EngineConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, images @ ..] = arguments.as_slice() else {
        return Err("usage: embedded_store DIR IMAGE...".into());
    };
    for line in run(Path::new(folder), images).await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns the number of progress events, a line for each image of the store, and one for each planned removal.
pub(crate) async fn run(folder: &Path, images: &[String]) -> Result<Vec<String>, Box<dyn Error>> {
    let engine = Engine::open(EngineConfig::new(folder)).await?;
    // The engine's containers are the mounts of its images, so that no mounted image is removed.
    let runtime = RuntimeManager::new(Arc::clone(&engine) as _, engine.container_service());
    let records = Arc::new(PullRecords::open(folder, VerificationPolicy::NeverVerifyPreloadedImages)?);
    let inventory = Arc::new(Inventory::open(runtime.clone(), Some(folder))?);
    let manager = ImageManager::new(ManagerParts {
        inventory: Some(Arc::clone(&inventory)),
        ..ManagerParts::new(runtime.clone(), Arc::clone(&records))
    });

    let events = Arc::new(AtomicUsize::new(0));
    let progress = {
        let events = Arc::clone(&events);
        Arc::new(move |_: &PullProgress| {
            events.fetch_add(1, Ordering::Relaxed);
        })
    };
    for image in images {
        manager.ensure(&EnsureRequest::new(image, PullPolicy::Always), Arc::clone(&progress) as _).await?;
    }
    let mut lines = vec![format!("{} progress events", events.load(Ordering::Relaxed))];

    let now = SystemTime::now();
    for image in &inventory.refresh(now).await?.entries {
        lines.push(format!("{}: {} bytes", image.image.tags.join(" "), image.image.size.0));
    }
    // High and low threshold in percent, least age, no greatest age.
    let policy = GcPolicy::new(85, 80, Duration::ZERO, None)?;
    let collector = ImageGc::new(runtime, inventory).with_records(records, true);
    let report = collector.run(&GcRequest { policy, goal: GcGoal::AllUnused, dry_run: true }, now).await?;
    for decision in report.chosen() {
        lines.push(format!("a collection would remove {}: {}", decision.entry.image.tags.join(" "), decision.reason));
    }
    Ok(lines)
}
