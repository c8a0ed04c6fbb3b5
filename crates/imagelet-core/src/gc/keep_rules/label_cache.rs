//! A cache of image labels for keep rules: one runtime call per image, and no call if no rule reads labels.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
};

use futures_util::{StreamExt, stream};

use super::{KeepRules, labels_read};
use crate::{
    image::{Image, ImageId, ImageSpec},
    inventory::Snapshot,
    lock::locked,
    ports::RuntimeManager,
};

/// Limit of concurrent calls to the runtime, which also needs capacity for pods.
const CALLS_MAX: usize = 8;

/// The labels of each image. `None`: unknown, because the runtime does not report the image configuration.
pub(crate) type Labels = HashMap<ImageId, Option<BTreeMap<String, String>>>;

/// Cached labels of present images. A new rule set invalidates the cache, because its rules may read other labels.
#[derive(Debug, Default)]
pub(crate) struct LabelCache(Mutex<(Arc<KeepRules>, Labels)>);

impl LabelCache {
    pub(crate) async fn labels(&self, runtime: &RuntimeManager, snapshot: &Snapshot, rules: &Arc<KeepRules>) -> Labels {
        let names = labels_read(&rules.keep);
        if names.is_empty() {
            return Labels::new();
        }
        let mut labels = {
            let cached = locked(&self.0);
            if Arc::ptr_eq(&cached.0, rules) { cached.1.clone() } else { Labels::new() }
        };
        let present: HashSet<&ImageId> = snapshot.entries.iter().map(|entry| &entry.image.id).collect();
        labels.retain(|id, _| present.contains(id));
        let entries = snapshot.entries.iter().filter(|it| it.usage.used_by.is_empty() && it.pinned_by.is_empty());
        let unknown = entries.map(|entry| &entry.image).filter(|image| !labels.contains_key(&image.id));
        let spec = |image: &Image| ImageSpec { image: image.id.to_string(), ..image.spec.clone() };
        let unknown: BTreeMap<ImageId, ImageSpec> = unknown.map(|image| (image.id.clone(), spec(image))).collect();
        let asked: Vec<_> = stream::iter(unknown)
            .map(|(id, spec)| {
                let names = &names;
                async move { Some((id, ask(runtime, &spec, names).await?)) }
            })
            .buffer_unordered(CALLS_MAX)
            .collect()
            .await;
        // A failed call is not cached, so the next collection repeats the call.
        labels.extend(asked.into_iter().flatten());
        *locked(&self.0) = (Arc::clone(rules), labels.clone());
        labels
    }
}

/// Outer `None`: the call failed, or the image is absent. Inner `None`: the runtime does not report the configuration.
async fn ask(
    runtime: &RuntimeManager,
    spec: &ImageSpec,
    names: &BTreeSet<&str>,
) -> Option<Option<BTreeMap<String, String>>> {
    match runtime.details(spec).await {
        Ok(Some(details)) if details.config.is_none() && details.labels.is_empty() => Some(None),
        Ok(Some(mut details)) => {
            details.labels.retain(|name, _| names.contains(name.as_str()));
            Some(Some(details.labels))
        }
        // The image was removed after the listing. This is no error, so nothing is logged.
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(image = %spec.image, error = error.chain(), "could not ask for the labels of an image");
            None
        }
    }
}
