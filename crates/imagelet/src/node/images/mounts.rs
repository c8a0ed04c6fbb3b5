//! `mount` and `unmount`.

use std::time::SystemTime;

use async_trait::async_trait;
use imagelet_core::image::{ImageKey, ImageSpec};
use imagelet_oci::{MountOptions, UnmountedImage};

use crate::{
    api::{MountRequest, Mounted, Steps, UnmountRequest},
    failure::Failure,
    node::{command::Command, local::LocalNode},
};

#[async_trait]
impl Command for MountRequest {
    const NAME: &'static str = "mount";
    type Answer = Mounted;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Mounted, Failure> {
        let engine = node.engine("mounting")?;
        let image = node.find(&self.image).await?;
        let options = MountOptions { writable: self.writable, suid: self.suid, dev: self.dev };
        let mounted = engine.mount(&ImageSpec::new(image.id.as_str()), &self.directory, options).await?;
        node.parts.inventory.touch(&ImageKey::new(image.id, String::new()), SystemTime::now());
        Ok(Mounted { id: mounted.image, directory: mounted.target, writable: mounted.writable, remains: true })
    }
}

#[async_trait]
impl Command for UnmountRequest {
    const NAME: &'static str = "unmount";
    type Answer = Mounted;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Mounted, Failure> {
        let engine = node.engine("mounting")?;
        let UnmountedImage { mounted, remains } = engine.unmount(&self.directory, self.force).await?;
        Ok(Mounted { id: mounted.image, directory: mounted.target, writable: mounted.writable, remains })
    }
}
