//! PAX extension records: overrides for the next entry, or for all following entries.

use imagelet_core::image::ByteSize;
use std::collections::BTreeMap;

use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::Xattrs;
use crate::unpack::{
    EntryRules,
    error::{Fault, shown},
    writer::xattr,
};

/// The base64 form of attribute values, which libarchive writes with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A time as in the kernel: `0 <= nanos < 10^9`, also before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    pub(crate) secs: i64,
    pub(crate) nanos: u32,
}

/// The PAX records of one entry. The last record of a key applies; an empty value removes the override.
#[derive(Debug, Default)]
pub(crate) struct Extended {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<i64>,
    pub(crate) overrides: Overrides,
    pub(crate) xattrs: XattrRecords,
    pub(crate) sparse: SparseRecords,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) uid: Option<i64>,
    pub(crate) gid: Option<i64>,
    pub(crate) mtime: Option<Time>,
    pub(crate) atime: Option<Time>,
}

#[derive(Debug, Default)]
pub(crate) struct XattrRecords {
    plain: BTreeMap<Vec<u8>, Vec<u8>>,
    /// libarchive's base64 form of the same attributes, used if the plain form is absent.
    encoded: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The total size of the attribute names in the kernel's list format.
    names: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SparseRecords {
    pub(crate) major: Option<Vec<u8>>,
    pub(crate) minor: Option<Vec<u8>>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) real_size: Option<i64>,
    pub(crate) size: Option<i64>,
    pub(crate) ranges: Option<i64>,
    pub(crate) map: Option<Vec<u8>>,
    /// In version 0.0, each number is a record: offset and length alternate.
    pub(crate) pairs: Vec<i64>,
}

impl Extended {
    pub(crate) fn parse(mut records: &[u8], ranges_max: usize, rules: EntryRules) -> Result<Extended, Fault> {
        let mut extended = Extended::default();
        while let Some((key, value)) = next_record(&mut records)? {
            match key {
                b"path" => extended.path = text(value),
                b"linkpath" => extended.link = text(value),
                b"size" => extended.size = optional(value, |value| decimal(value, "size"))?,
                b"uid" | b"gid" | b"mtime" | b"atime" => extended.overrides.set(key, value)?,
                _ => match key.strip_prefix(b"GNU.sparse.") {
                    Some(key) => extended.sparse.set(key, value, ranges_max)?,
                    None => extended.xattrs.set(key, value, rules)?,
                },
            }
        }
        Ok(extended)
    }
}

impl Overrides {
    pub(crate) fn or(self, others: Self) -> Self {
        Self {
            uid: self.uid.or(others.uid),
            gid: self.gid.or(others.gid),
            mtime: self.mtime.or(others.mtime),
            atime: self.atime.or(others.atime),
        }
    }

    /// Merges a global header into the defaults of all following entries. Rejects records that can apply to one entry
    /// only, because readers disagree on them.
    pub(crate) fn merge_global(&mut self, mut records: &[u8], rules: EntryRules) -> Result<(), Fault> {
        while let Some((key, value)) = next_record(&mut records)? {
            if matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.") {
                let key = shown(key);
                return Err(Fault::refused(format!("a global PAX header sets `{key}` for all entries")));
            }
            if rules == EntryRules::Own {
                self.set(key, value)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        match key {
            b"uid" => self.uid = optional(value, |value| decimal(value, "uid"))?,
            b"gid" => self.gid = optional(value, |value| decimal(value, "gid"))?,
            b"mtime" => self.mtime = optional(value, |value| time(value, "mtime"))?,
            b"atime" => self.atime = optional(value, |value| time(value, "atime"))?,
            _ => {}
        }
        Ok(())
    }
}

impl XattrRecords {
    pub(crate) fn count(&self) -> usize {
        self.plain.len() + self.encoded.len()
    }

    pub(crate) fn all(self) -> Xattrs {
        let Self { plain, mut encoded, .. } = self;
        encoded.extend(plain);
        encoded.into_iter().collect()
    }

    fn set(&mut self, key: &[u8], value: &[u8], rules: EntryRules) -> Result<(), Fault> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            if self.takes(name, value.len(), rules)? {
                self.plain.insert(name.to_vec(), value.to_vec());
            }
        } else if rules == EntryRules::Own
            && let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.")
        {
            let name: Vec<u8> = percent_encoding::percent_decode(name).collect();
            if self.takes(&name, value.len() / 4 * 3, rules)? {
                let value = BASE64.decode(value).map_err(|_| malformed(key))?;
                self.encoded.insert(name, value);
            }
        }
        Ok(())
    }

    /// Whether the entry keeps an attribute. An attribute above the kernel's limits is an error, before it uses memory.
    fn takes(&mut self, name: &[u8], length: usize, rules: EntryRules) -> Result<bool, Fault> {
        if length > xattr::VALUE_MAX {
            let (name, limit) = (shown(name), xattr::VALUE_MAX);
            return Err(Fault::limit(format!(
                "its extended attribute `{name}` has {length} bytes; the limit is {limit}"
            )));
        }
        if !xattr::allowed(name, rules) {
            return Ok(false);
        }
        self.names += name.len() + 1;
        if self.names > xattr::NAMES_MAX {
            let limit = ByteSize(xattr::NAMES_MAX as u64);
            return Err(Fault::limit(format!("the names of its extended attributes have more than {limit}")));
        }
        Ok(true)
    }
}

impl SparseRecords {
    fn set(&mut self, key: &[u8], value: &[u8], ranges_max: usize) -> Result<(), Fault> {
        match key {
            b"major" => self.major = text(value),
            b"minor" => self.minor = text(value),
            b"name" => self.name = text(value),
            b"realsize" => self.real_size = optional(value, |value| decimal(value, "real size"))?,
            b"size" => self.size = optional(value, |value| decimal(value, "real size"))?,
            b"numblocks" => self.ranges = optional(value, |value| decimal(value, "sparse map"))?,
            b"map" => self.map = text(value),
            b"offset" | b"numbytes" => {
                if (key == b"offset") != self.pairs.len().is_multiple_of(2) {
                    return Err(Fault::malformed("the records of its sparse map are out of order"));
                }
                if self.pairs.len() >= ranges_max.saturating_mul(2) {
                    return Err(Fault::limit(format!("its sparse map has more than {ranges_max} ranges")));
                }
                self.pairs.push(decimal(value, "sparse map")?);
            }
            _ => {}
        }
        Ok(())
    }
}

type Record<'a> = (&'a [u8], &'a [u8]);

fn next_record<'a>(records: &mut &'a [u8]) -> Result<Option<Record<'a>>, Fault> {
    if records.is_empty() {
        return Ok(None);
    }
    let (key, value) = split_record(records).ok_or_else(|| Fault::malformed("a PAX record is malformed"))?;
    let named = matches!(key, b"path" | b"linkpath" | b"uname" | b"gname");
    let checked = if named { value } else { key };
    if checked.contains(&0) { Err(malformed(key)) } else { Ok(Some((key, value))) }
}

/// Removes the first record, `LENGTH KEY=VALUE\n`, and returns it.
fn split_record<'a>(records: &mut &'a [u8]) -> Option<Record<'a>> {
    /// The length of `5 =\n`, which is shorter than any record because it has no key.
    const RECORD_MIN: usize = 5;
    const DIGITS_MAX: usize = 10;

    let space = records.iter().take(DIGITS_MAX + 1).position(|&byte| byte == b' ')?;
    let digits = &records[..space];
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = digits.iter().fold(0usize, |length, digit| length * 10 + usize::from(digit - b'0'));
    if length < RECORD_MIN || length > records.len() || length <= space + 1 {
        return None;
    }
    let (record, rest) = records.split_at(length);
    let record = record[space + 1..].strip_suffix(b"\n")?;
    let equals = record.iter().position(|&byte| byte == b'=').filter(|&equals| equals > 0)?;
    *records = rest;
    Some((&record[..equals], &record[equals + 1..]))
}

pub(crate) fn decimal(value: &[u8], what: &'static str) -> Result<i64, Fault> {
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Fault::malformed(format!("its {what} `{}` is not a number in range", shown(value))))
}

/// Seconds with an optional fraction. Digits below a nanosecond are dropped.
fn time(value: &[u8], what: &'static str) -> Result<Time, Fault> {
    let point = value.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = point.map_or((value, &[][..]), |at| (&value[..at], &value[at + 1..]));
    let secs = decimal(whole, what)?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(Fault::malformed(format!("its {what} `{}` is not a time", shown(value))));
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0u32, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    if nanos == 0 || !whole.starts_with(b"-") {
        return Ok(Time { secs, nanos });
    }
    Ok(Time { secs: secs.saturating_sub(1), nanos: 1_000_000_000 - nanos })
}

fn text(value: &[u8]) -> Option<Vec<u8>> {
    Some(value.to_vec()).filter(|text| !text.is_empty())
}

fn optional<T>(value: &[u8], parse: impl FnOnce(&[u8]) -> Result<T, Fault>) -> Result<Option<T>, Fault> {
    Some(value).filter(|value| !value.is_empty()).map(parse).transpose()
}

fn malformed(key: &[u8]) -> Fault {
    Fault::malformed(format!("its PAX record `{}` is malformed", shown(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_of_a_key_wins_and_an_empty_one_takes_it_back() {
        let extended = Extended::parse(b"9 path=a\n9 path=b\n10 size=5\n8 size=\n", 8, EntryRules::Own).unwrap();
        assert_eq!(extended.path.as_deref(), Some(&b"b"[..]));
        assert_eq!(extended.size, None);
    }

    #[test]
    fn malformed_records_are_told() {
        for records in [
            &b"9 path=a"[..],
            b"99 path=a\n",
            b"0 path=a\n",
            b"-9 path=a\n",
            b"9path=a\n\n",
            b"8 path=a\n",
            b"6 =ab\n",
            b"8 pathx\n",
            b"11 path=a\0b\n",
            b"10 size=x\n",
            b"99999999999999999999 path=a\n",
            b"\n",
            b"4 a=\n",
            b"5 a=b\n",
            b"5 a=x",
            b" a=b\n",
            // Shorter than their own digits.
            b"0000000009 a=b\n",
            b"000000009 a=b\n",
            b"00000006 a=b\n",
            // One digit more than any length has.
            b"00000000017 a=bc\n",
        ] {
            Extended::parse(records, 8, EntryRules::Own).expect_err("malformed");
        }
    }

    #[test]
    fn the_shortest_record_and_the_longest_count_of_digits_are_read() {
        for records in [&b"5 a=\n"[..], b"0000000016 a=bc\n"] {
            Extended::parse(records, 8, EntryRules::Own).unwrap();
        }
    }

    #[test]
    fn times_may_be_negative_and_fractional() {
        for (text, secs, nanos) in [
            ("0", 0, 0),
            ("1.5", 1, 500_000_000),
            ("-1.25", -2, 750_000_000),
            ("-0.5", -1, 500_000_000),
            ("1.0000000009", 1, 0),
            ("8589934592.000000001", 8_589_934_592, 1),
        ] {
            assert_eq!(time(text.as_bytes(), "mtime").unwrap(), Time { secs, nanos }, "{text}");
        }
        for text in ["", ".", "x", "1.x", "1.-5", "99999999999999999999"] {
            time(text.as_bytes(), "mtime").expect_err(text);
        }
    }
}
