//! `verify`: compares the embedded store with the pulled content, and fetches damaged parts again.

use std::sync::Arc;

use imagelet_core::{
    image::{Digest, ImageId},
    ports::{Findings, ImageCheck, LayerCheck, LayerName, LocalStore},
};

use super::Images;
use crate::{
    api::{Step, Steps, Verified, VerifiedImage, VerifiedLayer, VerifiedPart, VerifyRequest, progress},
    failure::Failure,
};

impl VerifyRequest {
    pub(crate) async fn run_on(self, images: &Images, steps: Steps) -> Result<Verified, Failure> {
        let engine = images.store("verifying")?;
        // A store on a read-only file system cannot be repaired, so the command fails before the long check.
        if self.repair && images.place.is_read_only {
            let message = format!("the {} is on a read-only file system", images.place.backend);
            return Err(Failure::new("Unavailable", message)
                .or_hint("mount it read-write, or name another place with --store DIR"));
        }
        let mut verified = Verified { store: part(&Findings::default()), ..Verified::default() };
        let asked = match &self.images[..] {
            [] => vec![None],
            images => images.iter().map(|image| Some(image.as_str())).collect(),
        };
        for image in asked {
            let heard = Arc::clone(&steps);
            let progress = Arc::new(move |read, total| heard(Step::Checking { read, total }));
            let report = engine.verify(image, progress).await?;
            let mut checked: Vec<VerifiedImage> = report.images.iter().map(image_of).collect();
            let mut store = report.store.clone();
            store.merge(report.blobs.findings.clone());
            let mut found = part(&store);
            if self.repair {
                for image in checked.iter_mut().filter(|image| image.result == "damaged") {
                    repair(images, engine, image, &steps).await;
                }
                if found.result == "damaged" {
                    engine.repair_store(&report).await?;
                    found.result = "repaired".into();
                }
            }
            let count = |result: &str| checked.iter().filter(|image| image.result == result).count();
            let (damaged, repaired) = (count("damaged"), count("repaired"));
            tracing::info!(images = checked.len(), damaged, repaired, repair = self.repair, "verified the store");
            verified.damaged |= found.result == "damaged" || damaged > 0;
            checked.retain(|image| verified.images.iter().all(|known| known.id != image.id));
            verified.images.append(&mut checked);
            if found.result != "ok" {
                verified.store = found;
            }
        }
        Ok(verified)
    }
}

async fn repair(images: &Images, engine: &dyn LocalStore, image: &mut VerifiedImage, steps: &Steps) {
    match engine.repair(&ImageId::new(&image.id), &images.credentials().await, &progress(Arc::clone(steps))).await {
        Ok(()) => {
            image.result = "repaired".into();
            let parts = image.layers.iter_mut().map(|layer| &mut layer.part).chain([&mut image.documents]);
            for part in parts.filter(|part| part.result == "damaged") {
                part.result = "repaired".into();
            }
        }
        Err(error) => image.failure = Some(Failure::of(&error)),
    }
}

fn image_of(image: &ImageCheck) -> VerifiedImage {
    let layer = |(name, check): &(LayerName, LayerCheck)| VerifiedLayer {
        diff_id: name.diff_id.to_string(),
        blob: name.blob.as_ref().map(Digest::to_string),
        part: part(&check.findings),
        files: check.files,
        bytes: check.bytes,
        unread: check.unread,
    };
    let (digests, names) = image.names.iter().cloned().partition(|name| name.contains('@'));
    VerifiedImage {
        id: image.id.to_string(),
        names,
        digests,
        result: if image.is_damaged() { "damaged" } else { "ok" }.into(),
        documents: part(&image.documents),
        layers: image.layers.iter().map(layer).collect(),
        failure: None,
    }
}

fn part(findings: &Findings) -> VerifiedPart {
    let result = if findings.is_empty() { "ok" } else { "damaged" };
    VerifiedPart { result: result.into(), findings: findings.first.clone(), more: findings.more }
}
