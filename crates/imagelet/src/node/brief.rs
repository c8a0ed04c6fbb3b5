//! The brief list as it was packed last: of the next one only the rows that changed are made anew.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use imagelet_core::inventory::Entry;

use super::{
    packed::{MAGIC, PackedList, Unpacked, sorted, whole_row},
    rows::Shares,
};

/// Keeps one list. Takes about a hundred bytes an image, once somebody has asked.
#[derive(Debug, Default)]
pub(super) struct BriefList(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    /// What the rows are of, in the order of a pass. Who keeps an entry sees it change in no way but that another stands
    /// in its place.
    entries: Vec<Arc<Entry>>,
    /// Their places, by name.
    order: Vec<usize>,
    /// Where the row of each is, by its place.
    rows: Vec<Range<usize>>,
    bytes: Bytes,
}

impl BriefList {
    /// What a pass has seen, without digests and without what images share.
    pub(super) fn of(&self, entries: &[Arc<Entry>]) -> PackedList {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match last.take() {
            // Names are those of the same images, so the order is the same.
            Some(before) if before.is_of_the_images_of(entries) => {
                if before.entries.iter().zip(entries).all(|(one, other)| Arc::ptr_eq(one, other)) {
                    before
                } else {
                    Kept::of(entries, before.order.clone(), Some(&before))
                }
            }
            _ => {
                let shares = Shares::default();
                let rows: Vec<Unpacked<'_>> =
                    entries.iter().map(|entry| Unpacked::of_entry(entry, &shares, true)).collect();
                let order = sorted(&rows);
                drop(rows);
                Kept::of(entries, order, None)
            }
        };
        let list = PackedList::of_bytes(next.bytes.clone());
        *last = Some(next);
        list
    }
}

impl Kept {
    fn of(entries: &[Arc<Entry>], order: Vec<usize>, before: Option<&Self>) -> Self {
        const ROW_USUAL: usize = 128;
        let shares = Shares::default();
        let mut bytes = Vec::with_capacity(before.map_or(entries.len() * ROW_USUAL, |it| it.bytes.len() + ROW_USUAL));
        bytes.extend_from_slice(MAGIC);
        let mut rows = vec![0..0; entries.len()];
        for place in &order {
            let begin = bytes.len();
            match before.filter(|it| Arc::ptr_eq(&it.entries[*place], &entries[*place])) {
                Some(before) => bytes.extend_from_slice(&before.bytes[before.rows[*place].clone()]),
                None => whole_row(&Unpacked::of_entry(&entries[*place], &shares, true), &mut bytes),
            }
            rows[*place] = begin..bytes.len();
        }
        Self { entries: entries.to_vec(), order, rows, bytes: bytes.into() }
    }

    fn is_of_the_images_of(&self, entries: &[Arc<Entry>]) -> bool {
        let is_same =
            |(one, other): (&Arc<Entry>, &Arc<Entry>)| Arc::ptr_eq(one, other) || Arc::ptr_eq(&one.image, &other.image);
        self.entries.len() == entries.len() && self.entries.iter().zip(entries).all(is_same)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use imagelet_core::{
        image::ImageSpec,
        inventory::Inventory,
        runtime::{ContainerState, ImageService as _, RuntimeManager},
        testing::FakeRuntime,
    };

    use super::*;

    fn whole(entries: &[Arc<Entry>]) -> Bytes {
        PackedList::of_entries(entries.iter().map(|entry| &**entry), &Shares::default(), true).into_bytes()
    }

    #[tokio::test]
    async fn a_list_made_of_the_last_one_is_the_one_that_is_made_of_all_images() {
        let fake = FakeRuntime::new();
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
        let inventory = Inventory::open(runtime, None).unwrap();
        let ids: Vec<_> = (0..20)
            .map(|number| fake.preload(&format!("app-{}:v{number}", number % 7), &number.to_string(), 1))
            .collect();
        let list = BriefList::default();
        let mut at = SystemTime::UNIX_EPOCH + Duration::from_hours(400_000);
        for turn in 0..12 {
            match turn {
                2 | 3 => drop(fake.run(&format!("pod-{turn}"), "app", "app-1:v1", &ids[1], ContainerState::Running)),
                5 => fake.remove(&ImageSpec::new(ids[4].as_str())).await.unwrap(),
                6 => drop(fake.preload("app-4:v4", "4", 1)),
                7 => drop(fake.preload("zz:v1", "5", 1)),
                8 => fake.set_pinned(&ids[9], true),
                9 => drop(inventory.pin("app-3:*").unwrap()),
                _ => {}
            }
            at += Duration::from_mins(3);
            let snapshot = inventory.refresh(at).await.unwrap();
            assert_eq!(list.of(&snapshot.entries).into_bytes(), whole(&snapshot.entries), "turn {turn}");
            // Nobody but the list keeps entries while the next pass runs.
            drop(snapshot);
        }
    }
}
