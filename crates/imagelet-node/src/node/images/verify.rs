//! `verify`: compares the embedded store with what was pulled, and fetches damaged parts again.

use std::sync::Arc;

use imagelet_core::{
    credentials::TrackedCredential,
    image::{Digest, ImageId},
    runtime::{Findings, ImageCheck, LayerCheck, LayerName, LocalStore, VerifyReport},
};

use crate::{
    api::{Step, Steps, Verified, VerifiedImage, VerifiedLayer, VerifiedPart, VerifyRequest, progress},
    failure::Failure,
    node::{AnswerTime, Command, LocalNode},
};

impl Command for VerifyRequest {
    const NAME: &'static str = "verify";
    const TIME: AnswerTime = AnswerTime::WhileAlive;
    type Answer = Verified;

    async fn run(self, node: &LocalNode, steps: Steps) -> Result<Verified, Failure> {
        let engine = node.store("verifying")?;
        // Fail before the store is read, not after.
        if self.repair && node.parts.is_read_only {
            let message = format!("the {} is on a read-only file system", node.parts.backend);
            return Err(Failure::new("Unavailable", message)
                .or_hint("mount it read-write, or name another place with --store DIR"));
        }
        let mut verified = Verified { store: part(&Findings::default()), ..Verified::default() };
        let all = [None];
        let asked: Vec<Option<&str>> = self.images.iter().map(|image| Some(image.as_str())).collect();
        for image in if asked.is_empty() { &all[..] } else { &asked } {
            let heard = Arc::clone(&steps);
            let progress = Arc::new(move |read, total| heard(Step::Checking { read, total }));
            let report = engine.verify(*image, progress).await?;
            let mut images: Vec<VerifiedImage> = report.images.iter().map(image_of).collect();
            let mut store = report.store.clone();
            store.merge(report.blobs.findings.clone());
            let mut found = part(&store);
            if self.repair {
                for image in images.iter_mut().filter(|image| image.result == "damaged") {
                    repair(node, engine, image, &steps).await;
                }
                if found.result == "damaged" {
                    engine.repair_store(&report).await?;
                    found.result = "repaired".into();
                }
            }
            log(&report, self.repair, &images);
            verified.add(images, found);
        }
        Ok(verified)
    }
}

impl Verified {
    fn add(&mut self, images: Vec<VerifiedImage>, store: VerifiedPart) {
        self.damaged |= store.result == "damaged" || images.iter().any(|image| image.result == "damaged");
        for image in images {
            if !self.images.iter().any(|known| known.id == image.id) {
                self.images.push(image);
            }
        }
        if store.result != "ok" {
            self.store = store;
        }
    }
}

async fn repair(node: &LocalNode, engine: &dyn LocalStore, image: &mut VerifiedImage, steps: &Steps) {
    let keyring = node.parts.manager.node_keyring().await;
    let credentials = |repository: &str| {
        let found = keyring.lookup_at(repository).into_iter().filter(TrackedCredential::is_usable);
        found.map(|tracked| tracked.credential).collect()
    };
    match engine.repair(&ImageId::new(&image.id), &credentials, &progress(Arc::clone(steps))).await {
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

fn log(report: &VerifyReport, repair: bool, images: &[VerifiedImage]) {
    let count = |result: &str| images.iter().filter(|image| image.result == result).count();
    tracing::info!(
        images = images.len(),
        damaged = report.images.iter().filter(|image| image.is_damaged()).count(),
        repaired = count("repaired"),
        repair,
        "verified the store"
    );
}

fn image_of(image: &ImageCheck) -> VerifiedImage {
    let (digests, names) = image.names.iter().cloned().partition(|name| name.contains('@'));
    VerifiedImage {
        id: image.id.to_string(),
        names,
        digests,
        result: if image.is_damaged() { "damaged" } else { "ok" }.into(),
        documents: part(&image.documents),
        layers: image.layers.iter().map(|(name, check)| layer_of(name, check)).collect(),
        failure: None,
    }
}

fn layer_of(name: &LayerName, check: &LayerCheck) -> VerifiedLayer {
    VerifiedLayer {
        diff_id: name.diff_id.to_string(),
        blob: name.blob.as_ref().map(Digest::to_string),
        part: part(&check.findings),
        files: check.files,
        bytes: check.bytes,
        unread: check.unread,
    }
}

fn part(findings: &Findings) -> VerifiedPart {
    let result = if findings.is_empty() { "ok" } else { "damaged" };
    VerifiedPart { result: result.into(), findings: findings.first.clone(), more: findings.more }
}
