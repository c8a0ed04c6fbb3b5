//! Takes in a survey that says almost what the one before did: what is the same is compared, and not drawn again.
//!
//! What this finds is what [`State::absorb_all`] finds; wherever that is in doubt, that is what runs.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::SystemTime,
};

use twox_hash::XxHash3_128;

use super::{
    Entries, Entry, Snapshot, State,
    detect::{DetectTimes, Record, Survey, Users, Uses, is_mount},
    memory::{Memory, Remembered},
    names::{Among, Marks},
};
use crate::{
    image::{Image, ImageId, ImageKey, ImageSpec, ImageUser},
    runtime::{Listing, Pod},
};

/// After so many images in a row that do not follow one another as before, an order is not looked for any more.
const MISSES_MAX: usize = 16;

/// What a pass leaves for the next one. Places are those of the entries.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The places in the order in which the images were listed.
    order: Vec<u32>,
    /// By place: where it stands in that order.
    turns: Vec<u32>,
    /// By place: when its idle time comes into the next span.
    due: Vec<Option<SystemTime>>,
    marks: Marks,
    /// The last listing, where whoever made it keeps it: what was found in it holds for the very same one.
    whole: Option<Listing>,
    /// By place: as it was listed. Of the very same one nothing has to be read to see that nothing changed.
    listed: Vec<Arc<Image>>,
    /// By place: what was listed, summed up. A sum of 128 bits tells any two listings of an image apart.
    sums: Vec<u128>,
    seed: u64,
    /// The places of images that are used, asked for, or were a moment ago: what is told of them passes.
    passing: Vec<u32>,
    used: Option<Used>,
    /// The place of each sum, and the first of each id; made where the order of the listing does not help.
    places: Option<(HashMap<u128, u32>, HashMap<ImageId, u32>)>,
}

/// Who used what, and by which pods: the same pods use the same images of the same list.
#[derive(Debug)]
struct Used {
    pods: Vec<Pod>,
    users: Users,
    /// Where the images that are used are.
    places: Vec<u32>,
}

/// Repositories of which a newer image may be in use since old versions were last looked for.
#[derive(Debug, Default)]
pub(super) struct Loose {
    pub(super) some: HashSet<String>,
    /// Images that came or have other names, perhaps none.
    pub(super) images: HashSet<ImageKey>,
    /// Nobody knows which.
    pub(super) all: bool,
}

/// What a listing says that was not known.
#[derive(Debug, Default)]
struct Compared {
    /// As it was listed: places, and behind the last of them those that arrived.
    order: Vec<u32>,
    is_in_order: bool,
    arrived: Vec<Arc<Image>>,
    changed: Vec<(usize, Arc<Image>)>,
    /// As known, and handed out anew by a store that keeps them.
    renewed: Vec<(usize, Arc<Image>)>,
    /// The sums of those that arrived.
    sums: Vec<u128>,
    /// By place.
    is_listed: Vec<bool>,
}

impl Trace {
    pub(super) fn of(entries: &[Arc<Entry>], memory: &Memory) -> Self {
        let count = u32_of(entries.len());
        let seed = RandomState::new().hash_one(0);
        Self {
            listed: entries.iter().map(|entry| Arc::clone(&entry.image)).collect(),
            sums: entries.iter().map(|entry| sum(seed, &entry.image)).collect(),
            seed,
            order: (0..count).collect(),
            turns: (0..count).collect(),
            due: entries.iter().map(|entry| memory.due(&entry.key())).collect(),
            marks: Marks::of(entries.iter().map(|entry| &*entry.image)),
            passing: (0..).zip(entries).filter(|(_, entry)| is_passing(entry)).map(|(place, _)| place).collect(),
            used: None,
            places: None,
            whole: None,
        }
    }

    /// Holds a listing against the entries. `None` where an image is in it twice.
    fn compare(&mut self, entries: &[Arc<Entry>], images: &Listing) -> Option<Compared> {
        if self.whole.as_ref().is_some_and(|whole| whole.is(images)) {
            return Some(Compared { is_in_order: true, is_listed: vec![true; entries.len()], ..Compared::default() });
        }
        let mut found = Compared { is_in_order: true, is_listed: vec![false; entries.len()], ..Compared::default() };
        found.order.reserve(images.len());
        let is_held = images.is_held();
        let (mut next, mut misses) = (0, 0);
        for image in images {
            let guess = self.order.get(next).map(|place| usize_of(*place)).filter(|_| misses < MISSES_MAX);
            if let Some(place) =
                guess.filter(|place| Arc::ptr_eq(&self.listed[*place], image) && !found.is_listed[*place])
            {
                found.is_listed[place] = true;
                found.order.push(u32_of(place));
                (next, misses) = (next + 1, 0);
                continue;
            }
            let sum = sum(self.seed, image);
            let place = if let Some(place) = guess.filter(|place| self.sums[*place] == sum) {
                misses = 0;
                Some(place)
            } else {
                (found.is_in_order, misses) = (false, misses + 1);
                self.find(entries, image, sum)
            };
            let Some(place) = place else {
                found.order.push(u32_of(entries.len() + found.arrived.len()));
                found.arrived.push(Arc::clone(image));
                found.sums.push(sum);
                continue;
            };
            if std::mem::replace(&mut found.is_listed[place], true) {
                return None;
            }
            found.order.push(u32_of(place));
            next = usize_of(self.turns[place]) + 1;
            if std::mem::replace(&mut self.sums[place], sum) != sum {
                found.changed.push((place, Arc::clone(image)));
            } else if is_held {
                found.renewed.push((place, Arc::clone(image)));
            }
        }
        found.is_in_order &= found.order.len() == entries.len();
        let mut ids: Vec<ImageKey> = found.arrived.iter().map(|image| image.key()).collect();
        ids.sort_unstable();
        ids.windows(2).all(|pair| pair[0] != pair[1]).then_some(found)
    }

    /// The place of an image, wherever it was listed.
    fn find(&mut self, entries: &[Arc<Entry>], image: &Image, sum: u128) -> Option<usize> {
        let (sums, ids) = self.places.get_or_insert_with(|| {
            let sums = self.sums.iter().copied().zip(0..).collect();
            // The first of several handlers' is what is left.
            (
                sums,
                (0_u32..)
                    .zip(entries)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev()
                    .map(|(place, entry)| (entry.image.id.clone(), place))
                    .collect(),
            )
        });
        if let Some(place) = sums.get(&sum) {
            return Some(usize_of(*place));
        }
        let first = usize_of(*ids.get(&image.id)?);
        let same_id = entries[first..].iter().take_while(|entry| entry.image.id == image.id);
        let is_same = |entry: &Entry| entry.image.spec.runtime_handler == image.spec.runtime_handler;
        same_id.zip(first..).find(|(entry, _)| is_same(entry)).map(|(_, place)| place)
    }

    /// Takes up what a listing says of its images, and answers who is gone.
    fn follow(&mut self, entries: &mut Entries, compared: &mut Compared, now: SystemTime) -> Vec<Arc<Entry>> {
        let count = entries.len();
        let is_moved = !compared.arrived.is_empty() || compared.is_listed.contains(&false);
        if !is_moved && compared.changed.is_empty() {
            self.reorder(compared, None);
            return Vec::new();
        }
        // What is known and what arrived, by key.
        let arrived = std::mem::take(&mut compared.arrived);
        let mut arrived: Vec<(usize, Arc<Image>)> = (count..).zip(arrived).collect();
        arrived.sort_by(|(_, one), (_, other)| super::detect::in_order_of_keys(one, other));
        let mut arrived = arrived.into_iter().peekable();
        let changed: HashSet<usize> = compared.changed.iter().map(|(place, _)| *place).collect();
        let (mut gone, mut marks) = (Vec::new(), Marks::default());
        let mut places = vec![u32::MAX; count + arrived.len()];
        let before = std::mem::replace(entries, Entries::with_capacity(places.len()));
        let due = std::mem::replace(&mut self.due, Vec::with_capacity(places.len()));
        let sums = std::mem::replace(&mut self.sums, Vec::with_capacity(places.len()));
        self.listed = Vec::with_capacity(places.len());
        let is_before = |one: &Image, other: &Image| super::detect::in_order_of_keys(one, other).is_lt();
        for (place, ((entry, due), sum)) in before.into_iter().zip(due).zip(sums).enumerate() {
            while let Some((old, image)) = arrived.next_if(|(_, image)| is_before(image, &entry.image)) {
                places[old] = u32_of(entries.len());
                marks.add(&image);
                self.listed.push(Arc::clone(&image));
                entries.push(Arc::new(Entry::blank(image, now)));
                self.due.push(None);
                self.sums.push(compared.sums[old - count]);
            }
            if !compared.is_listed[place] {
                gone.push(entry);
                continue;
            }
            places[place] = u32_of(entries.len());
            if changed.contains(&place) {
                marks.add(&entry.image);
            } else {
                marks.add_from(&self.marks, place);
            }
            self.listed.push(Arc::clone(&entry.image));
            entries.push(entry);
            self.due.push(due);
            self.sums.push(sum);
        }
        for (old, image) in arrived {
            places[old] = u32_of(entries.len());
            marks.add(&image);
            self.listed.push(Arc::clone(&image));
            entries.push(Arc::new(Entry::blank(image, now)));
            self.due.push(None);
            self.sums.push(compared.sums[old - count]);
        }
        self.marks = marks;
        self.places = None;
        self.passing.iter_mut().for_each(|place| *place = places[usize_of(*place)]);
        self.passing.retain(|place| *place != u32::MAX);
        self.reorder(compared, Some(&places));
        gone
    }

    fn reorder(&mut self, compared: &mut Compared, places: Option<&[u32]>) {
        if compared.is_in_order && places.is_none() {
            return;
        }
        self.order = std::mem::take(&mut compared.order);
        if let Some(places) = places {
            self.order.iter_mut().for_each(|place| *place = places[usize_of(*place)]);
        }
        self.turns = vec![0; self.order.len()];
        for (turn, place) in self.order.iter().enumerate() {
            self.turns[usize_of(*place)] = u32_of(turn);
        }
    }
}

impl State {
    /// Looks at what changed alone. Gives the survey back where that is not enough.
    pub(super) fn absorb_changes(
        &mut self,
        mut trace: Trace,
        survey: Survey,
        times: DetectTimes,
        wall: SystemTime,
    ) -> Result<Arc<Snapshot>, Survey> {
        let now = times.now;
        let Some(before) = self.snapshot.take() else { return Err(survey) };
        let Some(mut compared) = trace.compare(&before.entries, &survey.images) else {
            self.snapshot = Some(before);
            return Err(survey);
        };
        trace.whole = survey.images.is_held().then(|| survey.images.clone());
        // Without anybody else who holds it, it is the one that is brought up to date.
        let mut entries = Arc::unwrap_or_clone(before).entries;
        let is_used = |entry: &&Arc<Entry>| entry.in_use_by.iter().any(|user| !is_mount(user));
        let passing = trace.passing.iter().map(|place| &entries[usize_of(*place)]);
        let used_before: BTreeSet<ImageKey> = passing.filter(is_used).map(|entry| entry.key()).collect();

        let is_same =
            compared.changed.is_empty() && compared.arrived.is_empty() && !compared.is_listed.contains(&false);
        // Images to look at: those that are gone by key, all others by place.
        let (mut gone, mut places): (Vec<ImageKey>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut renamed: Vec<ImageKey> = Vec::new();
        for (place, image) in &mut compared.changed {
            Memory::note_repositories(&entries[*place].image, &mut self.loose.some);
            Memory::note_repositories(image, &mut self.loose.some);
            self.loose.images.insert(image.key());
            renamed.push(image.key());
            if let Some(record) = self.records.get_mut(&image.key()) {
                (record.size, record.pinned) = (image.size, image.pinned);
            }
            entries.change(*place, |entry| entry.image = Arc::clone(image));
            trace.listed[*place] = Arc::clone(image);
        }
        // Who keeps its list hands the same ones out the next time.
        for (place, image) in std::mem::take(&mut compared.renewed) {
            if let Some(entry) = entries.own(place) {
                entry.image = Arc::clone(&image);
            }
            trace.listed[place] = image;
        }
        let arrived: Vec<ImageKey> = compared.arrived.iter().map(|image| image.key()).collect();
        for entry in trace.follow(&mut entries, &mut compared, now) {
            Memory::note_repositories(&entry.image, &mut self.loose.some);
            self.records.remove(&entry.key());
            gone.push(entry.key());
        }

        let told = trace.used.take();
        let are_sandboxes_same = self.sandboxes.images == survey.sandboxes;
        let told =
            told.filter(|it| is_same && it.pods == survey.pods && self.mounts == survey.mounts && are_sandboxes_same);
        let (uses, used) = if let Some(told) = told {
            // Then no container is new, either.
            (Uses { by_image: told.users, ..Uses::default() }, told.places)
        } else {
            let uses = self.uses(&survey, Among::Known(&entries, &trace.marks));
            let used = uses.by_image.keys().flat_map(|key| of_id(&entries, key.id())).collect();
            (uses, used)
        };
        self.watch.advance(survey.runtime_containers(), now);
        for key in &arrived {
            let Some(entry) = at_key(&entries, key).map(|place| &entries[place]) else { continue };
            self.records.insert(
                key.clone(),
                Record {
                    first_seen: times.detected_at,
                    last_used: None,
                    handler: entry.image.spec.runtime_handler.clone(),
                    size: entry.image.size,
                    pinned: entry.image.pinned,
                },
            );
        }

        let stirred = std::mem::take(&mut self.stirred);
        for id in &stirred {
            let images = of_id(&entries, id).map(|place| &entries[usize_of(place)].image);
            images.for_each(|image| Memory::note_repositories(image, &mut self.loose.some));
        }
        let asked = self.touches.keys().chain(self.released.keys()).map(ImageKey::id);
        let ids = stirred.iter().chain(asked).chain(self.leases.concerned());
        places.extend(ids.flat_map(|id| of_id(&entries, id)));
        places.extend(arrived.iter().chain(&renamed).filter_map(|key| at_key(&entries, key)).map(u32_of));
        places.extend(trace.passing.drain(..).chain(used.iter().copied()));
        places
            .extend((0..).zip(&trace.due).filter(|(_, due)| due.is_some_and(|due| due <= now)).map(|(place, _)| place));
        places.sort_unstable();
        places.dedup();
        gone.extend(self.memory.ghosts_due(now).cloned());
        let here = places.iter().map(|place| entries[usize_of(*place)].key());
        let keys: Vec<ImageKey> = here.chain(gone).collect();

        let met = self.memory.absorb_some(&mut self.records, &uses, &keys, now);
        for place in met.changed.iter().filter_map(|key| at_key(&entries, key)) {
            Memory::note_repositories(&entries[place].image, &mut self.loose.some);
        }
        self.loose.images.extend(met.changed);
        if met.regroup {
            let loose = std::mem::take(&mut self.loose);
            let of = Some((&loose.some, &loose.images)).filter(|_| !loose.all);
            let regrouped = self.memory.regroup_some(entries.iter().map(|entry| &*entry.image), of);
            places.extend(regrouped.iter().filter_map(|key| at_key(&entries, key)).map(u32_of));
        }
        self.settle(&survey, used_before, &uses.by_image, now, wall);
        // What was released just now is told, too.
        places.extend(self.released.keys().filter_map(|key| at_key(&entries, key)).map(u32_of));
        places.sort_unstable();
        places.dedup();

        for number in places {
            let place = usize_of(number);
            let image = Arc::clone(&entries[place].image);
            let key = image.key();
            let (record, remembered) = (self.records.get(&key), self.memory.of(&key));
            trace.due[place] = remembered.and_then(Remembered::due);
            let entry = self.entry(image, &key, record, remembered, uses.by_image.get(&key), now);
            if is_passing(&entry) {
                trace.passing.push(number);
            }
            // Who keeps an entry sees by that alone that nothing of it changed.
            if *entries[place] != entry {
                entries.set(place, entry);
            }
        }
        let snapshot = Arc::new(self.snapshot_of(entries, now));
        self.mounts = survey.mounts;
        self.sandboxes.keep(survey.sandboxes, uses.sandboxes);
        trace.used = Some(Used { pods: survey.pods, users: uses.by_image, places: used });
        self.snapshot = Some(Arc::clone(&snapshot));
        self.trace = Some(trace);
        Ok(snapshot)
    }
}

impl Entry {
    /// An image of which nothing is known yet.
    fn blank(image: Arc<Image>, now: SystemTime) -> Self {
        Self {
            image,
            first_seen: now,
            last_used: None,
            leased_at: None,
            use_count: 0,
            last_user: None,
            leased_until: None,
            released_at: None,
            pulled: None,
            origin: super::Origin::default(),
            history: super::UseHistory::default(),
            in_use_by: Vec::new(),
            pinned_by: Vec::new(),
        }
    }
}

/// Whether what is told of it may be over at the next pass, although nobody says so.
fn is_passing(entry: &Entry) -> bool {
    !entry.in_use_by.is_empty()
        || entry.leased_at.is_some()
        || entry.leased_until.is_some()
        || entry.released_at.is_some()
}

/// The places of all entries of an image, whatever their handlers.
fn of_id(entries: &[Arc<Entry>], id: &ImageId) -> std::ops::Range<u32> {
    let begin = entries.partition_point(|entry| entry.image.id < *id);
    let count = entries[begin..].iter().take_while(|entry| entry.image.id == *id).count();
    u32_of(begin)..u32_of(begin + count)
}

fn at_key(entries: &[Arc<Entry>], key: &ImageKey) -> Option<usize> {
    entries.binary_search_by(|entry| entry.image.cmp_key(key)).ok()
}

/// All that a listing says of an image, summed up.
fn sum(seed: u64, image: &Image) -> u128 {
    let Image { id, tags, digests, size, user, spec, pinned } = image;
    let mut sum = u128::from(seed);
    let mut add = |bytes: &[u8]| {
        let seed = u64::try_from(sum & u128::from(u64::MAX)).unwrap_or_default() ^ bytes.len() as u64;
        sum = sum.rotate_left(41).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            ^ XxHash3_128::oneshot_with_seed(seed, bytes);
    };
    add(id.as_str().as_bytes());
    for name in tags.iter().chain(digests) {
        add(name.as_bytes());
    }
    let mut rest = [0; 32];
    rest[..8].copy_from_slice(&size.0.to_le_bytes());
    rest[8..12].copy_from_slice(&u32_of(tags.len()).to_le_bytes());
    rest[12..16].copy_from_slice(&u32_of(digests.len()).to_le_bytes());
    rest[16] = u8::from(*pinned);
    match user {
        ImageUser::Unset => {}
        ImageUser::Uid(uid) => {
            rest[17] = 1;
            rest[24..].copy_from_slice(&uid.to_le_bytes());
        }
        ImageUser::Name(name) => {
            rest[17] = 2;
            add(name.as_bytes());
        }
    }
    add(&rest);
    let ImageSpec { image, runtime_handler, annotations } = spec;
    if !(image.is_empty() && runtime_handler.is_empty() && annotations.is_empty()) {
        add(image.as_bytes());
        add(runtime_handler.as_bytes());
        for (name, value) in annotations {
            add(name.as_bytes());
            add(value.as_bytes());
        }
    }
    sum
}

fn usize_of(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

fn u32_of(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
