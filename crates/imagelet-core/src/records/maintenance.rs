//! What is set right now and then: cut-off pulls, records of images that are gone, writes that failed.

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

/// Most images of which it is known one by one when they were last pulled.
const TOUCHED_MAX: usize = 4096;

/// A pull that was cut off is over for certain when its image was looked for so often, a collection apart, and not found.
const LOOKS_MAX: u8 = 2;

/// What a look for cut-off pulls found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Pulls that had finished without a word: their images now ask for credentials.
    pub finished: usize,
    /// Pulls that never finished.
    pub unfinished: usize,
}

/// A moment before the images were listed. What is recorded after it outlives a pruning with it.
#[derive(Clone, Copy, Debug)]
pub struct PruneMark {
    until: SystemTime,
    sequence: u64,
}

/// An image that was pulled and is not recorded.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    /// Spellings whose intents stay until it is, each once.
    held: BTreeSet<String>,
    /// What to write, once that works.
    last: Option<(String, ImageAccess)>,
}

/// Which images were pulled since when. A clock that is set back does not matter here.
#[derive(Debug, Default)]
pub(super) struct Touched {
    sequence: u64,
    by_id: HashMap<ImageId, u64>,
    /// Up to here, any image may have been.
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

/// What becomes of an intent whose image is not here.
#[derive(Clone, Copy, Debug)]
enum Unfinished {
    /// Nothing: the image may still come.
    Stays,
    /// It is taken back when its image was looked for often enough.
    GoesAfterLooks,
    /// It is taken back.
    Goes,
}

impl PullRecords {
    /// After a start: of the pulls an earlier process began, those whose image is here did finish.
    ///
    /// Their images get a record that names no client, so that each has to show credentials.
    ///
    /// # Errors
    /// When one of them could not be closed; its intent stays, and all others are.
    pub fn recover(&self, images: &[impl Borrow<Image>], now: SystemTime) -> Result<Recovered, RecordsError> {
        self.resolve_idle(images, now, Unfinished::Stays)
    }

    /// The same at the start of a store's only owner: what is not here never comes, so its intent goes.
    ///
    /// # Errors
    /// As there.
    pub fn recover_exclusive(&self, images: &[impl Borrow<Image>], now: SystemTime) -> Result<Recovered, RecordsError> {
        self.resolve_idle(images, now, Unfinished::Goes)
    }

    /// Whether there are intents that no pull stands behind.
    pub fn has_open_intents(&self) -> bool {
        self.intents.count() > self.state().running.len()
    }

    /// The same as [`Self::recover`] now and then: pulls that were cut off may have finished, too. An intent goes after
    /// its image was looked for and not found more than once.
    ///
    /// # Errors
    /// As there.
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

    /// Notes that a cut-off pull has brought nothing so far; in the end, takes it back.
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
            // One that cannot be read keeps everybody out as well, and may be mended.
            if !matches!(self.records.find(id.as_str()), Ok(None)) {
                continue;
            }
            let record = PulledRecord { updated: Some(now), ..empty(id) };
            self.records.write(record).map_err(|source| failed("write", id.as_str(), source))?;
        }
        let _turn = self.intents.lock(&begun.image);
        // A pull that has begun meanwhile stands behind the same intent.
        if self.is_running(&begun.image) {
            self.state().left.remove(&begun.image);
            return Ok(());
        }
        self.end_left(&begun.image)
    }

    /// A moment to prune by, taken before the images are listed.
    pub fn mark(&self, now: SystemTime) -> PruneMark {
        PruneMark { until: now, sequence: self.state().touched.sequence }
    }

    /// Removes the records, older than a mark, of images that are gone. Answers how many went, and what failed.
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

    /// Remembers that an image was pulled and could not be recorded.
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
        // One pull behind the intent keeps it; the others would keep it for ever.
        if is_held_already && let Err(error) = self.release(image) {
            tracing::warn!(image, %error, "the intent of a pull that ended stays recorded");
        }
        // A name may move on to another image before the next start, and an id cannot.
        if self.guards_images() {
            let _turn = self.intents.lock(id.as_str());
            if let Err(error) = self.intents.write(PullIntent::new(id.as_str())) {
                tracing::debug!(image, %error, "an image without a record is known by its name alone");
            }
        }
    }

    /// An image is recorded now: its intents are removed. Called with the record's lock.
    pub(super) fn is_recorded(&self, id: &ImageId) {
        let Some(unrecorded) = self.state().unrecorded.remove(id) else { return };
        for image in unrecorded.held.iter().map(String::as_str).chain([id.as_str()]) {
            let _turn = self.intents.lock(image);
            if let Err(error) = self.release_locked(image) {
                tracing::warn!(image, %error, "the intent of a pull that ended stays recorded");
            }
        }
    }

    /// Writes what could not be written before, and forgets what is gone.
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
