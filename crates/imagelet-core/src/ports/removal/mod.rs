//! The steps before and after the removal of an image. Before a removal, names that the runtime cannot delete are
//! replaced. After it, the store is checked, because a runtime may accept a removal and keep the image.

use std::fmt;

use async_trait::async_trait;

use super::ImageService;
use crate::error::{RuntimeError, RuntimeErrorKind};
use crate::image::{Digest, Image, ImageId, ImageSpec};

const NAMES_SHOWN_MAX: usize = 3;

#[async_trait]
pub trait RemovableNames: Send + Sync + fmt::Debug {
    /// Replaces those names of an image that the runtime cannot remove itself.
    ///
    /// # Errors
    /// [`RuntimeErrorKind::Remains`] if a name prevents the removal. The message has the name, and all names are
    /// unchanged. [`RuntimeErrorKind::Unsupported`] if the runtime has no interface for this.
    async fn make_removable(&self, image: &ImageId) -> Result<(), RuntimeError>;
}

/// Prepares the removal of the image whose id is in `spec`.
pub(super) async fn prepare(
    images: &dyn ImageService,
    names: &dyn RemovableNames,
    spec: &ImageSpec,
) -> Result<(), RuntimeError> {
    // Without an image id in `spec`, there are no names to replace.
    if spec.image.parse::<Digest>().is_err() {
        return Ok(());
    }
    match names.make_removable(&ImageId::new(&spec.image)).await {
        // CRI does not show which names prevent a removal, except names of `ctr images import`.
        Err(error) if error.kind() == RuntimeErrorKind::Unsupported => {
            let found = images.status(spec).await?;
            match found.iter().flat_map(|image| image.tags.iter().chain(&image.digests)).find(|name| is_of_import(name))
            {
                None => Ok(()),
                Some(name) => Err(RuntimeError::new(
                    RuntimeErrorKind::Remains,
                    format!("`ctr images import` gave it the name `{name}`, which CRI does not delete"),
                )
                .with_hint(format!(
                    "`ctr -n k8s.io images rm {}`, then start containerd again",
                    name.rsplit('/').next().unwrap_or(name)
                ))),
            }
        }
        prepared => prepared,
    }
}

/// Checks that a removed image is gone. An image of another handler may have the same id.
pub(super) async fn check(images: &dyn ImageService, spec: &ImageSpec) -> Result<(), RuntimeError> {
    let found = match images.status(spec).await {
        Err(error) => {
            tracing::debug!(
                image = spec.image,
                error = error.chain(),
                "could not look whether a removed image is gone"
            );
            images.status(spec).await
        }
        found => found,
    };
    let found = found
        .map_err(|error| error.about("the runtime accepted its removal and does not answer whether it is gone"))?;
    match found {
        Some(image) if is_asked(&image, spec) => Err(RuntimeError::new(RuntimeErrorKind::Remains, remains(&image))),
        _ => Ok(()),
    }
}

fn is_asked(image: &Image, spec: &ImageSpec) -> bool {
    image.id.as_str() == spec.image
        && (spec.runtime_handler.is_empty() || image.spec.runtime_handler == spec.runtime_handler)
}

fn remains(image: &Image) -> String {
    let names: Vec<String> = image.names().iter().take(NAMES_SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let names = if names.is_empty() { "without a name".to_owned() } else { format!("as {}", names.join(", ")) };
    format!("the runtime accepted its removal and still lists it {names}")
}

/// Whether `ctr images import` created the name: `import-2006-01-02@sha256:…`. CRI shows it as a name of Docker Hub.
fn is_of_import(name: &str) -> bool {
    let date = name.strip_prefix("docker.io/library/import-").and_then(|rest| rest.split_once('@'));
    date.is_some_and(|(date, _)| {
        date.len() == 10
            && date
                .bytes()
                .enumerate()
                .all(|(at, byte)| if [4, 7].contains(&at) { byte == b'-' } else { byte.is_ascii_digit() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeRuntime;

    /// The runtime's own interface, which answers with this kind of error.
    #[derive(Debug)]
    struct Records(Option<RuntimeErrorKind>);

    #[async_trait]
    impl RemovableNames for Records {
        async fn make_removable(&self, _: &ImageId) -> Result<(), RuntimeError> {
            self.0.map_or(Ok(()), |kind| Err(RuntimeError::new(kind, "so")))
        }
    }

    #[test]
    fn a_name_of_ctr_images_import_is_recognized() {
        for (name, is_one) in [
            ("docker.io/library/import-2026-11-28@sha256:a", true),
            ("docker.io/library/import-2026-11-28:v1", false),
            ("docker.io/library/import-2026-11-2x@sha256:a", false),
            ("docker.io/library/import-@sha256:a", false),
            ("docker.io/library/app@sha256:a", false),
            ("reg.test/library/import-2026-11-28@sha256:a", false),
        ] {
            assert_eq!(is_of_import(name), is_one, "{name}");
        }
    }

    #[tokio::test]
    async fn where_a_runtime_has_cri_alone_the_image_of_a_kind_load_keeps_its_good_name() {
        let fake = FakeRuntime::new();
        let ids = ["app:v1", "other:v1"].map(|name| fake.preload(name, name, 1));
        let mut image = fake.status(&ImageSpec::new(ids[0].as_str())).await.unwrap().unwrap();
        image.digests = vec![format!("docker.io/library/import-2026-11-28@{}", Digest::of(b"a"))];
        fake.insert(image);
        for (id, own, expected) in [
            (&ids[0], Some(RuntimeErrorKind::Unsupported), Some(RuntimeErrorKind::Remains)),
            (&ids[1], Some(RuntimeErrorKind::Unsupported), None),
            (&ids[0], Some(RuntimeErrorKind::TimedOut), Some(RuntimeErrorKind::TimedOut)),
            (&ids[0], None, None),
        ] {
            let prepared = prepare(&fake, &Records(own), &ImageSpec::new(id.as_str())).await;
            assert_eq!(prepared.err().map(|error| error.kind()), expected, "{own:?}");
        }
    }
}
