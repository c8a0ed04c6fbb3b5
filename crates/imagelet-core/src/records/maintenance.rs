//! Periodic maintenance: interrupted pulls, records of removed images, failed writes.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    io,
    time::SystemTime,
};

use super::{
    Guard, ImageAccess, PullNames, PullRecords, PulledRecord, RecordsError, UNRECORDED_MAX, empty, failed,
    file::PullIntent,
};
use crate::image::{Image, ImageId};

/// Most images whose last pull time is tracked individually.
const TOUCHED_MAX: usize = 4096;

/// An interrupted pull is over when its image is still missing after this many checks, one collection apart.
const LOOKS_MAX: u8 = 2;

/// The result of a check for interrupted pulls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Pulls that had finished unrecorded; their images now require credentials.
    pub finished: usize,
    /// Pulls that never finished.
    pub unfinished: usize,
}

/// A moment before the images were listed. Pruning with it keeps records that are newer.
#[derive(Clone, Copy, Debug)]
pub struct PruneMark {
    until: SystemTime,
    sequence: u64,
}

/// A pulled image whose record could not be written.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    /// Spellings whose intents stay until the record is written.
    held: BTreeSet<String>,
    /// The record to write.
    last: Option<(String, ImageAccess)>,
}

/// The sequence number of each image's last pull; independent of the wall clock.
#[derive(Debug, Default)]
pub(super) struct Touched {
    sequence: u64,
    by_id: HashMap<ImageId, u64>,
    /// Up to this number any image may have been pulled.
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

    fn is_since(&self, id: &ImageId, mark: &PruneMark) -> bool {
        self.forgotten > mark.sequence || self.by_id.get(id).is_some_and(|at| *at > mark.sequence)
    }
}

/// What happens to an intent whose image is not present.
#[derive(Clone, Copy, Debug)]
enum Unfinished {
    /// Stays: the image may still arrive.
    Stays,
    /// Removed after enough checks.
    GoesAfterLooks,
    /// Removed at once.
    Goes,
}

impl PullRecords {
    /// Resolves the intents of an earlier process after a start: a pull whose image is present did finish.
    ///
    /// Such an image gets a record without a client, so each client has to present credentials.
    ///
    /// # Errors
    /// When an intent could not be closed; it stays, and all others are closed.
    pub fn recover(&self, images: &[impl Borrow<Image>], now: SystemTime) -> Result<Recovered, RecordsError> {
        self.resolve_idle(images, now, Unfinished::Stays)
    }

    /// As [`Self::recover`], for a store's only owner: a missing image never arrives, so its intent is removed.
    ///
    /// # Errors
    /// As [`Self::recover`].
    pub fn recover_exclusive(&self, images: &[impl Borrow<Image>], now: SystemTime) -> Result<Recovered, RecordsError> {
        self.resolve_idle(images, now, Unfinished::Goes)
    }

    /// Whether there are intents without a running pull.
    pub fn has_open_intents(&self) -> bool {
        self.intents.count() > self.state().running.len()
    }

    /// As [`Self::recover`], periodically. An intent is removed after its image was missing in more than one check.
    ///
    /// # Errors
    /// As [`Self::recover`].
    pub fn resolve_open_intents(
        &self,
        images: &[impl Borrow<Image>],
        now: SystemTime,
    ) -> Result<Recovered, RecordsError> {
        self.resolve_idle(images, now, Unfinished::GoesAfterLooks)
    }

    fn resolve_idle(
        &self,
        images: &[impl Borrow<Image>],
        now: SystemTime,
        unfinished: Unfinished,
    ) -> Result<Recovered, RecordsError> {
        let mut recovered = Recovered::default();
        let Some(settings) = &self.settings else { return Ok(recovered) };
        let images: Vec<&Image> = images.iter().map(Borrow::borrow).collect();
        let candidates: Vec<PullNames<'_>> = images.iter().map(|image| PullNames::new(image, "")).collect();
        let mut first_failure = None;
        for begun in self.intents.list().whole {
            if self.is_running(&begun.image) || self.is_unrecorded(&ImageId::new(&begun.image)) {
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
                self.leave_unfinished(&begun, unfinished)
            };
            first_failure = first_failure.or(closed.err());
        }
        self.show();
        first_failure.map_or(Ok(recovered), Err)
    }

    /// Counts a check without result; removes the intent after the last one.
    fn leave_unfinished(&self, begun: &PullIntent, unfinished: Unfinished) -> Result<(), RecordsError> {
        let looks_max = match unfinished {
            Unfinished::Stays => return Ok(()),
            Unfinished::Goes => 0,
            Unfinished::GoesAfterLooks => LOOKS_MAX,
        };
        let _turn = self.intents.lock(&begun.image);
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

    /// Records that a pull brought these images, for an unknown client.
    fn close_intent(&self, begun: &PullIntent, ids: &[&ImageId], now: SystemTime) -> Result<(), RecordsError> {
        for id in ids {
            let _turn = self.records.lock(id.as_str());
            // An unreadable record rejects every client as well, and may be repaired.
            if !matches!(self.records.find(id.as_str()), Ok(None)) {
                continue;
            }
            let record = PulledRecord { updated: Some(now), ..empty(id) };
            self.records.write(record).map_err(|source| failed("write", id.as_str(), source))?;
        }
        let _turn = self.intents.lock(&begun.image);
        // A new pull of the same spelling uses the same intent.
        if self.is_running(&begun.image) {
            self.state().left.remove(&begun.image);
            return Ok(());
        }
        self.end_left(&begun.image)
    }

    /// A mark for pruning, taken before the images are listed.
    pub fn mark(&self, now: SystemTime) -> PruneMark {
        PruneMark { until: now, sequence: self.state().touched.sequence }
    }

    /// Removes records of missing images that are older than a mark. Returns the number removed and the failures.
    ///
    /// `present` has every image on the node, those in use and pinned ones too, as listed after the mark.
    pub fn prune(&self, present: &BTreeSet<ImageId>, mark: &PruneMark) -> (usize, Vec<RecordsError>) {
        let Some(settings) = &self.settings else { return (0, Vec::new()) };
        self.retry_unrecorded(present, mark);
        let (mut removed, mut failures) = (0, Vec::new());
        {
            let _turn = self.records.lock_all();
            let listed = self.records.list_locked();
            failures.extend(listed.failures.into_iter().map(|error| failed("read", "pulled", io::Error::other(error))));
            for record in listed.whole {
                let id = ImageId::new(&record.image_ref);
                let is_younger = record.updated.is_some_and(|updated| updated >= mark.until)
                    || (settings.guard == Guard::Image && self.state().touched.is_since(&id, mark));
                if is_younger || present.contains(&id) {
                    continue;
                }
                match self.records.remove(id.as_str()) {
                    Ok(()) => removed += 1,
                    Err(source) => failures.push(failed("remove", id.as_str(), source)),
                }
            }
        }
        self.state().touched.by_id.retain(|_, at| *at > mark.sequence);
        self.show();
        (removed, failures)
    }

    /// Keeps an image whose record could not be written, for a later retry.
    pub(super) fn keep_unrecorded(&self, id: &ImageId, image: &str, access: &ImageAccess) {
        let is_held_already = {
            let mut state = self.state();
            if state.unrecorded.len() >= UNRECORDED_MAX && !state.unrecorded.contains_key(id) {
                state.unrecorded_overflow = true;
                return;
            }
            let unrecorded = state.unrecorded.entry(id.clone()).or_default();
            unrecorded.last = Some((image.to_owned(), access.clone()));
            !unrecorded.held.insert(image.to_owned())
        };
        // One pull keeps the intent; a further one would keep it for ever.
        if is_held_already && let Err(error) = self.release(image) {
            tracing::warn!(image, %error, "the intent of a pull that ended stays recorded");
        }
        // A name may move to another image before the next start; an id cannot.
        if self.guards_images() {
            let _turn = self.intents.lock(id.as_str());
            if let Err(error) = self.intents.write(PullIntent::new(id.as_str())) {
                tracing::debug!(image, %error, "an image without a record is known by its name alone");
            }
        }
    }

    /// Removes the intents of a recorded image. Called with the record's lock.
    pub(super) fn is_recorded(&self, id: &ImageId) {
        let Some(unrecorded) = self.state().unrecorded.remove(id) else { return };
        for image in unrecorded.held.iter().map(String::as_str).chain([id.as_str()]) {
            let _turn = self.intents.lock(image);
            if let Err(error) = self.release_locked(image) {
                tracing::warn!(image, %error, "the intent of a pull that ended stays recorded");
            }
        }
    }

    /// Retries failed writes and drops missing images.
    fn retry_unrecorded(&self, present: &BTreeSet<ImageId>, mark: &PruneMark) {
        let (here, gone): (Vec<_>, Vec<_>) = {
            let state = self.state();
            let all = state.unrecorded.iter().map(|(id, unrecorded)| (id.clone(), unrecorded.last.clone()));
            all.filter(|(id, _)| present.contains(id) || !state.touched.is_since(id, mark))
                .partition(|(id, _)| present.contains(id))
        };
        for (id, last) in here {
            if let Some((image, access)) = last
                && let Err(error) = self.learn(&image, &id, &access, SystemTime::now())
            {
                tracing::warn!(image, %error, "an image that was pulled is still not recorded");
            }
        }
        for (id, _) in gone {
            let _turn = self.records.lock(id.as_str());
            self.is_recorded(&id);
        }
    }
}
