//! The list of images as two imagelets pass it to one another: ten thousand rows that nobody has to parse.
//!
//! ```text
//! "imagelet list 1\n", then rows, sorted by name; a row is the length of the rest, then
//!   id, handler, names, digests, size, unique, shared, first seen, last used, users, pins, origin
//! ```
//!
//! Numbers are LEB128. A text is its length and its bytes, a list its count and its texts. A number that may be absent is
//! one more than it says, and zero where it is absent. Times are seconds since 1970. A later version adds to the end of a
//! row, which this one passes over. Whoever does not ask for this form, as all other programs, gets JSON.

use std::{borrow::Cow, fmt, time::SystemTime};

use bytes::Bytes;
use imagelet_core::{
    image::Image,
    inventory::{Entry, Origin},
};
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::{
    ImageList, ImageRow,
    rows::{Shares, USES_UNKNOWN, here_since},
};

/// No JSON begins so.
pub(super) const MAGIC: &[u8] = b"imagelet list 1\n";
/// The last second of the year 9999, in the time zone where that ends first; what is later is nonsense.
const SECONDS_MAX: u64 = 253_402_207_200;
const DAY: u64 = 86_400;
/// By the number that stands for each, from 1; zero is unknown.
const ORIGINS: [Origin; 3] = [Origin::Pulled, Origin::Adopted, Origin::Found];

/// All images, packed.
#[derive(Debug)]
pub(crate) struct PackedList(Bytes);

/// What it says, as [`ImageList`] has it. Each row is read when it is looked at: to keep ten thousand takes longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    bytes: &'a [u8],
    count: usize,
}

/// An image; prints as the [`ImageRow`] that it was, or would have been.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row<'a> {
    pub(crate) id: &'a str,
    pub(crate) runtime_handler: &'a str,
    pub(crate) names: Texts<'a>,
    pub(crate) digests: Texts<'a>,
    pub(crate) size: u64,
    pub(crate) unique: Option<u64>,
    pub(crate) shared: Option<u64>,
    pub(crate) first_seen: Option<Moment>,
    pub(crate) last_used: Option<Moment>,
    pub(crate) in_use_by: Texts<'a>,
    pub(crate) pinned_by: Texts<'a>,
    pub(crate) origin: Option<&'static str>,
    /// A list foretells nothing.
    next_code: (),
    next_reason: (),
}

/// Texts that were looked at when the row was read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Texts<'a> {
    count: usize,
    bytes: &'a [u8],
}

/// A second; prints as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

/// What is packed of an image.
pub(super) struct Unpacked<'a> {
    id: &'a str,
    runtime_handler: &'a str,
    names: Cow<'a, [String]>,
    digests: Cow<'a, [String]>,
    size: u64,
    unique: Option<u64>,
    shared: Option<u64>,
    first_seen: Option<u64>,
    last_used: Option<u64>,
    in_use_by: Cow<'a, [String]>,
    pinned_by: Cow<'a, [String]>,
    origin: Option<Origin>,
}

impl PackedList {
    /// What a pass has seen; a brief list has neither what images share nor
    /// digests, but for those of images without a tag.
    pub(super) fn of_entries<'a>(entries: impl Iterator<Item = &'a Entry>, shares: &Shares<'_>, brief: bool) -> Self {
        Self::of(&entries.map(|entry| Unpacked::of_entry(entry, shares, brief)).collect::<Vec<_>>())
    }

    /// What a store tells; each image counts as used, as long as nobody can tell.
    pub(super) fn of_images<'a>(images: impl Iterator<Item = &'a Image>, shares: &Shares<'_>, brief: bool) -> Self {
        let row = |image| Unpacked {
            in_use_by: Cow::Owned(vec![USES_UNKNOWN.to_owned()]),
            ..Unpacked::of_image(image, shares, brief)
        };
        Self::of(&images.map(row).collect::<Vec<_>>())
    }

    /// What a daemon has answered, of this version or of one that knows JSON alone. An error is for people.
    pub(super) fn of_answer(answer: Bytes) -> Result<Self, String> {
        if answer.starts_with(MAGIC) {
            return Ok(Self(answer));
        }
        let list: ImageList = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        Ok(Self::of(&list.images.iter().map(Unpacked::of_row).collect::<Vec<_>>()))
    }

    fn of(rows: &[Unpacked<'_>]) -> Self {
        const ROW_USUAL: usize = 256;
        let mut bytes = Vec::with_capacity(MAGIC.len() + rows.len() * ROW_USUAL);
        bytes.extend_from_slice(MAGIC);
        for at in sorted(rows) {
            whole_row(&rows[at], &mut bytes);
        }
        Self(bytes.into())
    }

    /// What was packed before.
    pub(super) fn of_bytes(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// As it crosses the socket.
    pub(super) fn into_bytes(self) -> Bytes {
        self.0
    }

    /// What it says. `None`: it is none, or not whole.
    pub(crate) fn rows(&self) -> Option<Rows<'_>> {
        let bytes = self.0.strip_prefix(MAGIC)?;
        let (mut rest, mut count) = (bytes, 0);
        while !rest.is_empty() {
            Row::take(&mut rest)?;
            count += 1;
        }
        Some(Rows { bytes, count })
    }
}

impl<'a> Rows<'a> {
    /// How many there are.
    pub(crate) fn len(self) -> usize {
        self.count
    }

    /// How long they are as they are packed.
    pub(crate) fn bytes(self) -> usize {
        self.bytes.len()
    }

    /// One after the other.
    pub(crate) fn iter(self) -> impl Iterator<Item = Row<'a>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || Row::take(&mut rest))
    }
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Images<'a>(Rows<'a>);

        impl Serialize for Images<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.iter())
            }
        }

        let mut document = serializer.serialize_struct("ImageList", 1)?;
        document.serialize_field("images", &Images(*self))?;
        document.end()
    }
}

impl<'a> Unpacked<'a> {
    pub(super) fn of_entry(entry: &'a Entry, shares: &Shares<'_>, brief: bool) -> Self {
        Self {
            first_seen: seconds(here_since(entry)),
            last_used: entry.last_used.and_then(seconds),
            in_use_by: Cow::Borrowed(&entry.in_use_by),
            pinned_by: Cow::Borrowed(&entry.pinned_by),
            origin: Some(entry.origin),
            ..Self::of_image(&entry.image, shares, brief)
        }
    }

    fn of_image(image: &'a Image, shares: &Shares<'_>, brief: bool) -> Self {
        let (unique, shared) = shares.of_image(&image.id).unzip();
        Self {
            id: image.id.as_str(),
            runtime_handler: &image.spec.runtime_handler,
            names: in_order(&image.tags),
            digests: if brief && !image.tags.is_empty() { Cow::Borrowed(&[]) } else { in_order(&image.digests) },
            size: image.size.0,
            unique,
            shared,
            first_seen: None,
            last_used: None,
            in_use_by: Cow::Borrowed(&[]),
            pinned_by: Cow::Borrowed(&[]),
            origin: None,
        }
    }

    fn of_row(row: &'a ImageRow) -> Self {
        let seconds = |text: &Option<String>| {
            let time = text.as_ref()?.parse::<jiff::Timestamp>().ok()?;
            u64::try_from(time.as_second()).ok()
        };
        Self {
            id: &row.id,
            runtime_handler: &row.runtime_handler,
            names: Cow::Borrowed(&row.names),
            digests: Cow::Borrowed(&row.digests),
            size: row.size,
            unique: row.unique,
            shared: row.shared,
            first_seen: seconds(&row.first_seen),
            last_used: seconds(&row.last_used),
            in_use_by: Cow::Borrowed(&row.in_use_by),
            pinned_by: Cow::Borrowed(&row.pinned_by),
            origin: ORIGINS.into_iter().find(|origin| row.origin.as_deref() == Some(origin.name())),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        text(out, self.id);
        text(out, self.runtime_handler);
        texts(out, &self.names);
        texts(out, &self.digests);
        number(out, self.size);
        for absent in [self.unique, self.shared, self.first_seen, self.last_used] {
            number(out, absent.map_or(0, |it| it.saturating_add(1)));
        }
        texts(out, &self.in_use_by);
        texts(out, &self.pinned_by);
        let origin = ORIGINS.into_iter().zip(1..).find(|(origin, _)| Some(*origin) == self.origin);
        number(out, origin.map_or(0, |(_, number)| number));
    }
}

impl<'a> Row<'a> {
    /// The next of several.
    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let mut row = take_text(rest)?;
        Self::read(&mut row)
    }

    fn read(from: &mut &'a [u8]) -> Option<Self> {
        let id = std::str::from_utf8(take_text(from)?).ok()?;
        let runtime_handler = std::str::from_utf8(take_text(from)?).ok()?;
        let (names, digests) = (Texts::read(from)?, Texts::read(from)?);
        let size = take_number(from)?;
        let mut absent = || Some(take_number(from)?.checked_sub(1));
        let (unique, shared) = (absent()?, absent()?);
        let (first_seen, last_used) = (absent()?.map(Moment), absent()?.map(Moment));
        let (in_use_by, pinned_by) = (Texts::read(from)?, Texts::read(from)?);
        // An older version told none, and a later one may know more of them.
        let origin = if from.is_empty() { 0 } else { take_number(from)? };
        let origin = usize::try_from(origin).ok().and_then(|number| ORIGINS.get(number.checked_sub(1)?));
        Some(Self {
            id,
            runtime_handler,
            names,
            digests,
            size,
            unique,
            shared,
            first_seen,
            last_used,
            in_use_by,
            pinned_by,
            origin: origin.map(|origin| origin.name()),
            next_code: (),
            next_reason: (),
        })
    }
}

impl<'a> Texts<'a> {
    fn read(from: &mut &'a [u8]) -> Option<Self> {
        let count = usize::try_from(take_number(from)?).ok()?;
        let begin = *from;
        for _ in 0..count {
            std::str::from_utf8(take_text(from)?).ok()?;
        }
        Some(Self { count, bytes: &begin[..begin.len() - from.len()] })
    }

    /// How many there are.
    pub(crate) fn len(self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub(crate) fn is_empty(self) -> bool {
        self.count == 0
    }

    /// One after the other.
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || std::str::from_utf8(take_text(&mut rest)?).ok())
    }

    /// All of them, with commas; `-` for none.
    pub(crate) fn joined(self) -> String {
        if self.is_empty() { "-".into() } else { self.iter().collect::<Vec<_>>().join(",") }
    }
}

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl Moment {
    /// How many seconds ago it was; in the future it is now.
    pub(crate) fn seconds_until(self, now: SystemTime) -> u64 {
        seconds(now).unwrap_or_default().saturating_sub(self.0)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, rest) = (self.0 / DAY, self.0 % DAY);
        // Years that begin in March: a leap day is then the last of its year, and all months before it are alike.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march + 2) / 5 + 1;
        let month = if march < 10 { march + 3 } else { march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let mut text = *b"0000-00-00T00:00:00Z";
        let mut put = |at: usize, width: usize, mut number: u64| {
            for place in (at..at + width).rev() {
                text[place] = b'0' + u8::try_from(number % 10).unwrap_or_default();
                number /= 10;
            }
        };
        put(0, 4, year);
        for (at, number) in [(5, month), (8, day), (11, rest / 3600), (14, rest / 60 % 60), (17, rest % 60)] {
            put(at, 2, number);
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Seconds since 1970, where a calendar has the day.
fn seconds(time: SystemTime) -> Option<u64> {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    (seconds <= SECONDS_MAX).then_some(seconds)
}

/// Stores that know their names by order are not sorted again.
fn in_order(names: &[String]) -> Cow<'_, [String]> {
    if names.is_sorted() {
        return Cow::Borrowed(names);
    }
    let mut names = names.to_vec();
    names.sort();
    Cow::Owned(names)
}

/// What rows are in order of: tags, or digests where there is no tag.
fn order<'a>(row: &'a Unpacked<'_>) -> &'a [String] {
    if row.names.is_empty() { &row.digests } else { &row.names }
}

/// The places of the rows by names, then by id. Most names begin alike, and what comes behind that tells most apart.
pub(super) fn sorted(rows: &[Unpacked<'_>]) -> Vec<usize> {
    let names = || rows.iter().filter_map(|row| order(row).first()).map(String::as_bytes);
    let shared = names().next().map_or(0, |one| {
        names().fold(one.len(), |shared, other| {
            one[..shared].iter().zip(other).take_while(|(one, other)| one == other).count()
        })
    });
    let head = |row: &Unpacked<'_>| {
        let rest = order(row).first().map_or(&[][..], |name| &name.as_bytes()[shared..]);
        let mut head = [0; 8];
        let length = rest.len().min(head.len());
        head[..length].copy_from_slice(&rest[..length]);
        u64::from_be_bytes(head)
    };
    let mut places: Vec<(u64, usize)> = rows.iter().map(head).zip(0..).collect();
    let whole = |at: usize| (order(&rows[at]), rows[at].id);
    places.sort_unstable_by(|one, other| one.0.cmp(&other.0).then_with(|| whole(one.1).cmp(&whole(other.1))));
    places.into_iter().map(|(_, place)| place).collect()
}

/// A row with its length before it.
pub(super) fn whole_row(row: &Unpacked<'_>, out: &mut Vec<u8>) {
    let begin = out.len();
    row.write(out);
    // The length is known now, and most rows' takes two bytes.
    let mut length = Vec::with_capacity(2);
    number(&mut length, (out.len() - begin) as u64);
    out.splice(begin..begin, length);
}

fn number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or_default());
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn texts(out: &mut Vec<u8>, texts: &[String]) {
    number(out, texts.len() as u64);
    for it in texts {
        text(out, it);
    }
}

fn take_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_text<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_number(from)?).ok()?;
    let (text, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(text)
}

#[cfg(test)]
#[path = "packed_tests.rs"]
mod tests;
