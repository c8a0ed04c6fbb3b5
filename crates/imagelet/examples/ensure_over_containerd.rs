//! Ensures that a runtime has an image, as a pod that names it would: `ensure_over_containerd STATE_DIR SOCKET IMAGE…`.

#![allow(clippy::print_stdout, reason = "the output of an example")]

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use imagelet_core::{
    events::PodIdentity,
    manager::{EnsureRequest, ImageManager, ManagerParts, PullPolicy},
    ports::{RuntimeManager, unwatched},
    records::{PullRecords, VerificationPolicy},
};
use imagelet_runtime::cri::{Endpoint, RemoteContainerService, RemoteImageService};

/// Deadline of each call but a pull.
const CALL_MAX: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [state, socket, images @ ..] = arguments.as_slice() else {
        return Err("usage: ensure_over_containerd STATE_DIR SOCKET IMAGE...".into());
    };
    for line in run(Path::new(state), Path::new(socket), images).await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns a line for each image: its name, its id, and whether it was pulled.
pub(crate) async fn run(state: &Path, socket: &Path, images: &[String]) -> Result<Vec<String>, Box<dyn Error>> {
    let endpoint = Endpoint::at(socket)?;
    let runtime = RuntimeManager::new(
        Arc::new(RemoteImageService::connect(&endpoint, CALL_MAX).await?),
        Arc::new(RemoteContainerService::connect(&endpoint, CALL_MAX).await?),
    );
    // Records decide who may use an image that is present; they are the kubelet's own files.
    let records = PullRecords::open(state, VerificationPolicy::NeverVerifyPreloadedImages)?;
    let manager = ImageManager::new(ManagerParts::new(runtime, Arc::new(records)));
    let pod = PodIdentity { namespace: "default".into(), name: "web".into(), uid: "web-1".into() };
    let mut lines = Vec::new();
    for image in images {
        let mut request = EnsureRequest::new(image, PullPolicy::IfNotPresent);
        request.pull.pod = pod.clone();
        let ensured = manager.ensure(&request, unwatched()).await?;
        lines.push(format!("{image}: {} ({:?})", ensured.id, ensured.origin));
    }
    Ok(lines)
}
