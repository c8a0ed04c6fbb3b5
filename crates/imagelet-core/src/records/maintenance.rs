//! Periodic maintenance of the records: interrupted pulls, removed images, failed writes.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    io,
    time::SystemTime,
};

use super::{
    Guard, PullNames, PullRecords, PulledRecord, RecordsError, RecordsState, UNRECORDED_MAX, empty, failed,
    file::PullIntent,
};
use crate::{
    image::{Image, ImageId},
    text::file_time,
};

const TOUCHED_MAX: usize = 4096;

/// After this number of checks without the image, one per collection, the interrupted pull counts as over.
const LOOKS_MAX: u8 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The number of pulls that had finished without a record. Their images now require credentials.
    pub finished: usize,
    pub unfinished: usize,
}

/// A time before the images were listed. Pruning keeps later records. An image that was pulled later is not preloaded.
#[derive(Clone, Copy, Debug)]
pub struct PruneMark {
    until: SystemTime,
    sequence: u64,
}

/// The sequence number of the last pull of each image. It does not depend on the wall clock.
#[derive(Debug, Default)]
pub(super) struct Touched {
    sequence: u64,
    by_id: HashMap<ImageId, u64>,
    /// Pulls up to this sequence number are forgotten, so they may have fetched any image.
    forgotten: u64,
}

impl Touched {
    pub(super) fn touch(&mut self, id: &ImageId) {
        self.sequence += 1;
        if self.by_id.len() >= TOUCHED_MAX && !self.by_id.contains_key(id) {
            self.by_id.clear();
            self.forgotten = self.sequence;
        }
        self.by_id.insert(id.clone(), self.sequence);
    }

    pub(super) fn is_since(&self, id: &ImageId, mark: &PruneMark) -> bool {
        self.forgotten > mark.sequence || self.by_id.get(id).is_some_and(|at| *at > mark.sequence)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Absent {
    Stays,
    /// The intent is removed if the image was absent in more than one check.
    RemovedAfterChecks,
    /// The intent is removed at once: only this process writes to the store, so the image cannot arrive later.
    Removed,
}

impl PullRecords {
    /// Whether there are intents without a running pull, or images whose record could not be written.
    pub fn has_open_intents(&self) -> bool {
        let state = self.state();
        self.intents.count() > state.running.len() || !state.unrecorded.is_empty()
    }

    /// Resolves the intents without a running pull. If the image is present, the pull had finished: the image gets a
    /// record without credentials, so that clients must present theirs. Other intents are resolved despite an error.
    pub fn resolve_open_intents(
        &self,
        images: &[impl Borrow<Image>],
        now: SystemTime,
        absent: Absent,
    ) -> Result<Recovered, RecordsError> {
        let mut recovered = Recovered::default();
        let Some(settings) = &self.settings else { return Ok(recovered) };
        let images: Vec<&Image> = images.iter().map(Borrow::borrow).collect();
        let candidates: Vec<PullNames<'_>> = images.iter().map(|image| PullNames::new(image, "")).collect();
        let mut first_failure = None;
        for image in &images {
            let is_unrecorded = self.state().unrecorded.contains(&image.id);
            if is_unrecorded {
                let closed = self.forget_preloaded(&image.id, None).and_then(|()| self.close_record(&image.id, now));
                first_failure = first_failure.or(closed.err());
            }
        }
        for begun in self.intents.list().0 {
            if self.is_running(&begun.image) {
                continue;
            }
            let brought = images.iter().zip(&candidates).filter(|(image, names)| match settings.guard {
                Guard::Spelling => image.tags.iter().chain(&image.digests).any(|name| *name == begun.image),
                Guard::Image => names.include(&begun),
            });
            let ids: Vec<&ImageId> = brought.map(|(image, _)| &image.id).collect();
            let closed = if !ids.is_empty() {
                recovered.finished += 1;
                self.close_intent(&begun, &ids, now)
            } else {
                recovered.unfinished += 1;
                self.leave_unfinished(&begun, absent)
            };
            first_failure = first_failure.or(closed.err());
        }
        self.show();
        first_failure.map_or(Ok(recovered), Err)
    }

    fn leave_unfinished(&self, begun: &PullIntent, absent: Absent) -> Result<(), RecordsError> {
        let looks_max = match absent {
            Absent::Stays => return Ok(()),
            Absent::Removed => 0,
            Absent::RemovedAfterChecks => LOOKS_MAX,
        };
        let _turn = self.intents.turn();
        if self.is_running(&begun.image) {
            return Ok(());
        }
        let looks = {
            let mut state = self.state();
            let looks = state.left.entry(begun.image.clone()).or_default();
            *looks += 1;
            *looks
        };
        if looks < looks_max { Ok(()) } else { self.end_left(&begun.image) }
    }

    fn end_left(&self, image: &str) -> Result<(), RecordsError> {
        self.intents.remove(image).map_err(|source| failed("remove", image, source))?;
        self.state().left.remove(image);
        Ok(())
    }

    /// Records that a pull fetched these images for an unknown client.
    fn close_intent(&self, begun: &PullIntent, ids: &[&ImageId], now: SystemTime) -> Result<(), RecordsError> {
        for id in ids {
            self.forget_preloaded(id, Some(begun))?;
            self.close_record(id, now)?;
        }
        let _turn = self.intents.turn();
        // A new pull of the same name uses this intent, so the intent stays.
        if self.is_running(&begun.image) {
            self.state().left.remove(&begun.image);
            return Ok(());
        }
        self.end_left(&begun.image)
    }

    /// Writes a record that permits no client, if no record exists. An unreadable record stays: it permits no client, too.
    fn close_record(&self, id: &ImageId, now: SystemTime) -> Result<(), RecordsError> {
        let _turn = self.records.turn();
        if matches!(self.records.find(id.as_str()), Ok(None)) {
            let record = PulledRecord { updated: Some(now), ..empty(id) };
            self.records.write(record).map_err(|source| failed("write", id.as_str(), source))?;
        }
        self.state().unrecorded.remove(id);
        Ok(())
    }

    /// Returns a mark for pruning. Must be called before the images are listed.
    pub fn mark(&self, now: SystemTime) -> PruneMark {
        PruneMark { until: now, sequence: self.state().touched.sequence }
    }

    /// Removes the records of absent images, except records newer than the mark. Returns their number and the failures.
    /// `present` has all images of the node, listed after the mark. Without a failure, removals are durable on return.
    pub fn prune(&self, present: &BTreeSet<ImageId>, mark: &PruneMark) -> (usize, Vec<RecordsError>) {
        let Some(settings) = &self.settings else { return (0, Vec::new()) };
        let (mut removed, mut failures, mut last) = (0, Vec::new(), None);
        {
            let _turn = self.records.turn();
            let (records, unreadable) = self.records.list();
            failures.extend(unreadable.into_iter().map(|error| failed("read", "pulled", io::Error::other(error))));
            for record in records {
                let id = ImageId::new(&record.image_ref);
                // The times are compared in whole seconds, because the file stores whole seconds.
                let updated = record.updated.and_then(whole_seconds);
                let is_younger = updated.is_some_and(|updated| updated >= mark.until)
                    || (settings.guard == Guard::Image && self.state().touched.is_since(&id, mark));
                if is_younger || present.contains(&id) {
                    continue;
                }
                match self.records.remove(id.as_str()) {
                    Ok(()) => {
                        removed += 1;
                        last = Some(id);
                    }
                    Err(source) => failures.push(failed("remove", id.as_str(), source)),
                }
            }
        }
        // One sync makes all removals durable. The lock is released before the sync, so that pulls do not wait.
        if let Some(last) = last
            && let Err(source) = self.records.sync_removals()
        {
            failures.push(failed("durably remove", last.as_str(), source));
        }
        failures.extend(self.prune_preloaded(present).err());
        let mut state = self.state();
        let RecordsState { touched, unrecorded, .. } = &mut *state;
        unrecorded.retain(|id| present.contains(id) || touched.is_since(id, mark));
        touched.by_id.retain(|_, at| *at > mark.sequence);
        drop(state);
        self.show();
        (removed, failures)
    }

    /// Called if the record of a pull could not be written. Until a later record, every client is rejected.
    pub(super) fn keep_unrecorded(&self, id: &ImageId, image: &str) {
        self.leave(image);
        {
            let mut state = self.state();
            if state.unrecorded.len() < UNRECORDED_MAX {
                state.unrecorded.insert(id.clone());
            } else {
                state.unrecorded_overflow = true;
            }
        }
        // The intent has the image id, because the name may move to another image before the next start.
        if self.guards_images() {
            let _turn = self.intents.turn();
            if let Err(error) = self.intents.write(PullIntent::new(id.as_str())) {
                tracing::debug!(image, %error, "an image without a record is known by its name alone");
            }
        }
    }
}

fn whole_seconds(time: SystemTime) -> Option<SystemTime> {
    file_time(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_too_many_pulls_are_known_every_image_counts_as_just_pulled() {
        let mut touched = Touched::default();
        let ids: Vec<ImageId> = (0..TOUCHED_MAX).map(|number| ImageId::new(number.to_string())).collect();
        for id in &ids {
            touched.touch(id);
        }
        let mark = |touched: &Touched| PruneMark { until: SystemTime::UNIX_EPOCH, sequence: touched.sequence };
        let full = mark(&touched);
        touched.touch(&ids[0]);
        assert!(touched.is_since(&ids[0], &full) && !touched.is_since(&ids[1], &full), "a known one takes no place");
        touched.touch(&ImageId::new("one more"));
        assert!(ids.iter().all(|id| touched.is_since(id, &full)));
        assert_eq!(touched.by_id.len(), 1, "memory is bounded");
        let later = mark(&touched);
        assert!(!touched.is_since(&ids[0], &later), "until the next list");
    }
}
