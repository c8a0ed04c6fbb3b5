//! Replaces image records whose names CRI does not delete.
//!
//! CRI removes an image by the normalized names of its records, such as `docker.io/library/app:v1`. A record whose name
//! is not normalized stays with all its content, and CRI lists the image until containerd restarts. `ctr images tag`
//! and `ctr images import --digests` write records without a normalized name. imagelet renames these records.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, ImageId, ImageSpec, Reference},
    ports::{ImageService, RemovableNames},
};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    containerd::MANAGED,
    containerd::{ContainerdClient, v1::images::Image},
};

const SEEN_MAX: Duration = Duration::from_secs(10);
const CHECK_WAIT: Duration = Duration::from_millis(20);
/// The wait after CRI has labelled a record, because CRI lists the name later. Used for names that CRI cannot look up.
const LISTED_AFTER: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub struct ContainerdNames {
    pub client: ContainerdClient,
    pub cri: Arc<dyn ImageService>,
}

impl ContainerdNames {
    /// Waits until CRI knows the name of the image, because CRI only deletes names that it knows.
    async fn wait_seen(&self, name: &str, image: &ImageId) -> Result<(), RuntimeError> {
        let end = Instant::now() + SEEN_MAX;
        // CRI can look up a name only if the name has a tag or a digest, and not both.
        let is_found = name.parse::<Reference>().is_ok_and(|it| it.canonical().to_string() == name);
        loop {
            let is_seen = if is_found {
                self.cri.status(&ImageSpec::new(name)).await?.is_some_and(|found| found.id == *image)
            } else {
                self.client.image(name).await?.is_some_and(|record| record.labels.contains_key(MANAGED.0))
            };
            if is_seen {
                if !is_found {
                    tokio::time::sleep(LISTED_AFTER).await;
                }
                return Ok(());
            }
            if Instant::now() >= end {
                let message = format!("CRI does not show `{name}` within {SEEN_MAX:?}");
                return Err(RuntimeError::new(RuntimeErrorKind::TimedOut, message));
            }
            tokio::time::sleep(CHECK_WAIT).await;
        }
    }
}

#[async_trait]
impl RemovableNames for ContainerdNames {
    async fn make_removable(&self, image: &ImageId) -> Result<(), RuntimeError> {
        let records = self.client.images().await?;
        let mut replaced: Vec<(&Image, String)> = Vec::new();
        for record in &records {
            let (Some(read), Some(target)) = (read_otherwise(&record.name), &record.target) else { continue };
            if self.client.is_of(&target.digest, image).await? {
                replaced.push((record, read));
            }
        }
        // All names are checked before the first change, so that the removal cannot delete a name of another image.
        for (record, read) in &replaced {
            let other = records.iter().find(|other| other.name == *read).and_then(|other| other.target.as_ref());
            if let Some(other) = other
                && !self.client.is_of(&other.digest, image).await?
            {
                let name = &record.name;
                let message = format!("CRI reads its name `{name}` as `{read}`, which is the name of another image");
                return Err(RuntimeError::new(RuntimeErrorKind::Remains, message)
                    .with_hint(format!("`ctr -n k8s.io images rm {name}`, then start containerd again")));
            }
        }
        for (record, read) in &replaced {
            let labels = record.labels.iter().filter(|(key, _)| *key != MANAGED.0);
            let labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
            let normal = Image { name: read.clone(), labels, target: record.target.clone() };
            match self.client.create_image(normal).await {
                Err(error) if error.code() == Code::AlreadyExists => {}
                created => created?,
            }
            self.wait_seen(read, image).await?;
        }
        for (record, read) in &replaced {
            // Another client may have moved the name to another image during the wait.
            let current = self.client.image(&record.name).await?.and_then(|current| current.target);
            if current.is_some_and(|current| record.target.as_ref().is_none_or(|known| known.digest != current.digest))
            {
                let message = format!("its names changed: `{}` was given to another image", record.name);
                return Err(RuntimeError::new(RuntimeErrorKind::Remains, message));
            }
            self.client.delete_image(&record.name).await?;
            tracing::info!(%image, name = record.name, normal = read, "replaced a name that CRI does not delete");
        }
        Ok(())
    }
}

/// The normalized name that CRI uses for a record's name. `None` means that CRI uses the name unchanged.
fn read_otherwise(name: &str) -> Option<String> {
    if name.parse::<Digest>().is_ok() {
        return None;
    }
    let id = format!("sha256:{name}");
    let read = if id.parse::<Digest>().is_ok() {
        id
    } else {
        let normal = name.parse::<Reference>().ok()?.to_string();
        // CRI does not add the default tag `latest` to a name without a tag.
        match normal.strip_suffix(":latest") {
            Some(bare) if !name.ends_with(":latest") => bare.to_owned(),
            _ => normal,
        }
    };
    (read != name).then_some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_replaced_where_cri_deletes_another_spelling() {
        let hash = "a".repeat(64);
        let digest = format!("sha256:{hash}");
        for (name, read) in [
            ("app:v1", "docker.io/library/app:v1"),
            ("team/app:v1", "docker.io/team/app:v1"),
            ("app", "docker.io/library/app"),
            ("app:latest", "docker.io/library/app:latest"),
            ("docker.io/app:v1", "docker.io/library/app:v1"),
            ("index.docker.io/rancher/app:v1", "docker.io/rancher/app:v1"),
            (&format!("import-2026-11-28@{digest}"), &format!("docker.io/library/import-2026-11-28@{digest}")),
            (&format!("app:v1@{digest}"), &format!("docker.io/library/app:v1@{digest}")),
            (&hash, &digest),
        ] {
            assert_eq!(read_otherwise(name).as_deref(), Some(read), "{name}");
        }
        for name in [
            "docker.io/library/app:v1",
            "docker.io/library/app",
            "reg.test:5000/app:v1",
            "localhost/app:v1",
            &digest,
            &format!("docker.io/library/app@{digest}"),
            "App:v1",
            "",
            "a b",
        ] {
            assert_eq!(read_otherwise(name), None, "{name}");
        }
    }
}
