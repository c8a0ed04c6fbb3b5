//! `export` and `import`: images to archives, and from archives.

use std::{collections::HashMap, time::SystemTime};

use imagelet_core::{
    audit_log::ActCode,
    image::{Image, ImageKey, Reference, shown_name},
    ports::{self, ImportOutcome},
};
use tokio::time::Instant;

use super::{Images, act_now, pins::pin_all};
use crate::{
    api::{
        ExportRequest, Exported, ImportRequest, Imported, ImportedRow, PinChanged, Steps, milliseconds_of, progress,
    },
    failure::Failure,
};

impl ExportRequest {
    pub(crate) async fn run_on(self, images: &Images, steps: Steps) -> Result<Exported, Failure> {
        let store = images.store("an export")?;
        let image = images.find(&self.image).await?;
        let path = self.place.path.clone();
        let request = ports::ExportRequest { image: stored_name(&self.image, &image), place: self.place };
        let exported = store.export(&request, &images.credentials().await, &progress(steps)).await?;
        tracing::info!(image = %exported.id, path = %path.display(), "exported an image");
        let (id, digest) = (exported.id.to_string(), exported.digest.to_string());
        Ok(Exported { image: self.image, id, digest, path, size: exported.bytes.0 })
    }
}

impl ImportRequest {
    pub(crate) async fn run_on(self, images: &Images, steps: Steps) -> Result<Imported, Failure> {
        import(images, &self, "command", steps).await
    }
}

pub(super) async fn import(
    images: &Images,
    request: &ImportRequest,
    by: &str,
    steps: Steps,
) -> Result<Imported, Failure> {
    let store = images.store("an import")?;
    let (archive, began) = (core_request(request)?, Instant::now());
    let mut rows = Vec::new();
    for ImportOutcome { names, outcome } in store.import(&archive, &progress(steps)).await? {
        let (id, present) = match outcome {
            Ok(imported) => imported,
            Err(error) => {
                rows.push(ImportedRow { names, failure: Some(Failure::of(&error)), ..ImportedRow::default() });
                continue;
            }
        };
        tracing::info!(image = %id, ?names, present, "imported an image");
        let key = ImageKey::new(id.clone(), String::new());
        images.inventory.touch(&key, SystemTime::now());
        let mut act = act_now(ActCode::Imported, &[key], &names, by);
        act.details.took_ms = Some(milliseconds_of(began.elapsed()));
        act.details.why = format!("from `{}`", request.place.path.display());
        images.log.act(act);
        rows.push(ImportedRow { id: id.to_string(), names, present, ..ImportedRow::default() });
    }
    if request.pin {
        pin_names(images, &mut rows, by).await;
    }
    Ok(Imported { images: rows })
}

/// Pins the names of all imported images in one pass. A failed pin is reported with its image, which stays imported.
async fn pin_names(images: &Images, rows: &mut [ImportedRow], by: &str) {
    let imported = || rows.iter().filter(|row| row.failure.is_none());
    let names: Vec<String> = imported().flat_map(|row| row.names.iter().cloned()).collect();
    if names.is_empty() {
        return;
    }
    let mut failures = pin_failures(&names, pin_all(images, names.clone(), by).await);
    for row in rows.iter_mut().filter(|row| row.failure.is_none()) {
        row.pin_failures = row.names.iter().filter_map(|name| failures.remove(name)).collect();
        for failure in &row.pin_failures {
            tracing::warn!(image = row.id, error = failure.to_string(), "an imported image is not pinned");
        }
    }
}

fn pin_failures(
    names: &[String],
    pinned: Result<Vec<Result<PinChanged, Failure>>, Failure>,
) -> HashMap<String, Failure> {
    let of_all = |mut failure: Failure, name: &str| {
        failure.causes.insert(0, std::mem::replace(&mut failure.message, format!("cannot pin `{name}`")));
        failure
    };
    match pinned {
        Ok(pinned) => {
            names.iter().cloned().zip(pinned).filter_map(|(name, pinned)| Some((name, pinned.err()?))).collect()
        }
        Err(failure) => names.iter().map(|name| (name.clone(), of_all(failure.clone(), name))).collect(),
    }
}

fn stored_name(requested: &str, image: &Image) -> String {
    let name = requested.parse::<Reference>().map(|reference| reference.canonical().to_string());
    let name = name.ok().filter(|name| image.tags.contains(name) || image.digests.contains(name));
    name.unwrap_or_else(|| image.id.to_string())
}

fn core_request(asked: &ImportRequest) -> Result<ports::ImportRequest, Failure> {
    let name = asked.name.as_deref().map(|name| {
        name.parse::<Reference>()
            .map_err(|error| Failure::invalid(format!("`{}` names no image: {error}", shown_name(name))))
    });
    let platform = asked.platform.as_deref().map(str::parse).transpose().map_err(Failure::invalid)?;
    Ok(ports::ImportRequest { place: asked.place.clone(), name: name.transpose()?, platform })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_without_a_pin_has_its_failure_and_no_other_name_has_one() {
        let names = ["a:v1", "b:v1", "c:v1"].map(str::to_owned);
        let pinned = || Ok(PinChanged::default());
        let rejected = || Err(Failure::new("Failed", "cannot pin `b:v1`"));
        let failures = pin_failures(&names, Ok(vec![pinned(), rejected(), pinned()]));
        assert_eq!(failures.keys().collect::<Vec<_>>(), ["b:v1"]);
        let of_file = Failure::new("Failed", "could not keep the inventory").or_hint("make room");
        let failures = pin_failures(&names, Err(of_file));
        assert_eq!(failures.len(), 3);
        let one = &failures["c:v1"];
        assert_eq!(
            (one.message.as_str(), &*one.causes),
            ("cannot pin `c:v1`", &["could not keep the inventory".to_owned()][..])
        );
        assert_eq!(one.hint.as_deref(), Some("make room"));
    }
}
