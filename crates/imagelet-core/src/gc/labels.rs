//! The labels that rules ask for: asked of the runtime once for each image, and for none where no rule names any.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{StreamExt, stream};

use super::{GcRules, ImageFacts, ImageGc, Images, keeping::labels_read};
use crate::{
    image::{ImageId, ImageSpec},
    inventory::Snapshot,
    runtime::RuntimeManager,
};

/// Calls at once; the runtime serves pods meanwhile.
const CALLS_MAX: usize = 8;

/// What is known of the labels of the images that are there. Nothing of those that are gone.
#[derive(Debug, Default)]
pub(super) struct Labels(Mutex<HashMap<ImageId, Known>>);

/// Those that rules ask for; `None`: the runtime does not tell the configuration of this image.
type Known = Option<BTreeMap<String, String>>;

impl Labels {
    /// Other rules ask for other labels.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ImageId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ImageGc {
    /// What a decision may know of all images, with the labels of those that only rules could keep.
    pub(super) async fn facts(&self, snapshot: &Arc<Snapshot>, rules: &Arc<GcRules>) -> Images {
        let names = labels_read(&rules.keep);
        if names.is_empty() {
            return Images::of(snapshot);
        }
        let mut facts: Vec<ImageFacts> = snapshot.entries.iter().map(|entry| ImageFacts::of(entry)).collect();
        let is_open = |facts: &&mut ImageFacts| facts.in_use_by.is_empty() && facts.pinned_by.is_empty();
        let present: HashSet<ImageId> = facts.iter().map(|facts| facts.key.id().clone()).collect();
        let unknown: BTreeMap<ImageId, ImageSpec> = {
            let mut known = self.labels.lock();
            known.retain(|id, _| present.contains(id));
            let entries = snapshot.entries.iter().filter(|it| it.in_use_by.is_empty() && it.pinned_by.is_empty());
            let unknown = entries.filter(|entry| !known.contains_key(&entry.image.id));
            let spec = |id: &ImageId, spec: &ImageSpec| ImageSpec { image: id.to_string(), ..spec.clone() };
            unknown.map(|entry| (entry.image.id.clone(), spec(&entry.image.id, &entry.image.spec))).collect()
        };
        let asked: Vec<(ImageId, Option<Known>)> = stream::iter(unknown)
            .map(|(id, spec)| {
                let names = &names;
                async move { (id, ask(&self.runtime, &spec, names).await) }
            })
            .buffer_unordered(CALLS_MAX)
            .collect()
            .await;
        // Who could not be asked now is asked again by the next collection.
        let told = asked.into_iter().filter_map(|(id, answer)| Some((id, answer?)));
        let mut known = self.labels.lock();
        if !Arc::ptr_eq(&self.rules(), rules) {
            // Other rules hold by now, which ask for other labels; this collection began with the old ones.
            known.clear();
        }
        known.extend(told);
        for facts in facts.iter_mut().filter(is_open) {
            facts.labels = known.get(facts.key.id()).cloned().flatten();
        }
        if !Arc::ptr_eq(&self.rules(), rules) {
            known.clear();
        }
        drop(known);
        facts.into()
    }
}

/// The labels of these names; `None`: there was no answer.
async fn ask(runtime: &RuntimeManager, spec: &ImageSpec, names: &BTreeSet<&str>) -> Option<Known> {
    match runtime.details(spec).await {
        Ok(Some(details)) if details.config.is_none() && details.labels.is_empty() => Some(None),
        Ok(Some(mut details)) => {
            details.labels.retain(|name, _| names.contains(name.as_str()));
            Some(Some(details.labels))
        }
        // It is gone; a removal will find that out.
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(image = %spec.image, error = error.chain(), "could not ask for the labels of an image");
            None
        }
    }
}
