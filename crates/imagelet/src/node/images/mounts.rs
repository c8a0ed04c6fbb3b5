//! `mount` and `unmount`.

use std::time::SystemTime;

use async_trait::async_trait;
use imagelet_core::{
    image::{ImageKey, ImageSpec},
    runtime::{MountOptions, MountedImage},
};

use crate::{
    api::{MountRequest, Steps, UnmountRequest},
    failure::Failure,
    node::{command::Command, local::LocalNode},
};

#[async_trait]
impl Command for MountRequest {
    const NAME: &'static str = "mount";
    type Answer = MountedImage;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<MountedImage, Failure> {
        let store = node.store("mounting")?;
        let image = node.find(&self.image).await?;
        let options = MountOptions { writable: self.writable, suid: self.suid, dev: self.dev };
        let mounted = store.mount(&ImageSpec::new(image.id.as_str()), &self.directory, options).await?;
        node.parts.inventory.touch(&ImageKey::new(image.id, String::new()), SystemTime::now());
        Ok(mounted)
    }
}

#[async_trait]
impl Command for UnmountRequest {
    const NAME: &'static str = "unmount";
    type Answer = MountedImage;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<MountedImage, Failure> {
        Ok(node.store("mounting")?.unmount(&self.directory, self.force).await?)
    }
}
