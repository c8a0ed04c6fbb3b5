//! Maps of sparse files: the ranges of a file that have data in the archive.

use super::{
    header::{self, BLOCK},
    pax::{SparseRecords, decimal},
};
use crate::unpack::error::Fault;

const DIGITS_MAX: usize = 20;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// GNU's first form: the map is in the header and in the blocks after it.
    Header,
    /// Versions 0.0 and 0.1: the map is in PAX records.
    Records,
    /// Version 1.0: the map precedes the file's data.
    Data,
}

#[derive(Debug)]
pub(crate) struct Builder {
    ranges: Vec<(u64, u64)>,
    offset: Option<u64>,
    ranges_max: usize,
}

impl Builder {
    pub(crate) fn new(ranges_max: usize) -> Self {
        Builder { ranges: Vec::new(), offset: None, ranges_max }
    }

    pub(crate) fn push(&mut self, number: i64) -> Result<(), Fault> {
        let number = u64::try_from(number).map_err(|_| malformed())?;
        let Some(offset) = self.offset.take() else {
            self.offset = Some(number);
            return Ok(());
        };
        let start_min = self.ranges.last().map_or(0, |(offset, length)| offset + length);
        let end = offset.checked_add(number).filter(|&end| i64::try_from(end).is_ok());
        if end.is_none() || offset < start_min {
            return Err(malformed());
        }
        if self.ranges.len() >= self.ranges_max {
            return Err(Fault::limit(format!("its sparse map has more than {} ranges", self.ranges_max)));
        }
        self.ranges.push((offset, number));
        Ok(())
    }

    /// Checks and returns the map of a file of `size` bytes, of which the archive stores `stored` bytes.
    pub(crate) fn finish(self, size: u64, stored: u64) -> Result<Vec<(u64, u64)>, Fault> {
        let end = self.ranges.last().map_or(0, |(offset, length)| offset + length);
        let sum: u64 = self.ranges.iter().map(|(_, length)| length).sum();
        if self.offset.is_some() || end > size || sum != stored {
            return Err(malformed());
        }
        Ok(self.ranges)
    }
}

/// Adds the ranges of a GNU `S` header or of an extension block. Returns whether another block follows.
pub(crate) fn push_old(block: &[u8; BLOCK], first: bool, builder: &mut Builder) -> Result<bool, Fault> {
    const PAIR: usize = 24;
    let (start, pairs, more) = if first { (386, 4, 482) } else { (0, 21, 504) };
    for pair in block[start..start + pairs * PAIR].chunks_exact(PAIR) {
        if pair[0] == 0 {
            break;
        }
        builder.push(header::number(&pair[..12], "sparse map")?)?;
        builder.push(header::number(&pair[12..], "sparse map")?)?;
    }
    Ok(block[more] != 0)
}

pub(crate) fn version(records: &SparseRecords) -> Result<Option<Version>, Fault> {
    match (records.major.as_deref(), records.minor.as_deref()) {
        (Some(b"0"), Some(b"0" | b"1")) => Ok(Some(Version::Records)),
        (Some(b"1"), Some(b"0")) => Ok(Some(Version::Data)),
        // Versions 0.0 and 0.1 may lack version records.
        (None, None) if records.map.is_some() || !records.pairs.is_empty() => Ok(Some(Version::Records)),
        (None, None) => Ok(None),
        _ => Err(Fault::refused("it is a sparse file of an unknown version")),
    }
}

pub(crate) fn push_records(records: &SparseRecords, builder: &mut Builder) -> Result<(), Fault> {
    let mut count = 0i64;
    let mut push = |number| {
        count += 1;
        builder.push(number)
    };
    if !records.pairs.is_empty() {
        records.pairs.iter().try_for_each(|&number| push(number))?;
    } else if let Some(map) = &records.map {
        map.split(|&byte| byte == b',').try_for_each(|number| push(decimal(number, "sparse map")?))?;
    }
    let stated = records.ranges.ok_or_else(malformed)?;
    if stated.checked_mul(2) == Some(count) { Ok(()) } else { Err(malformed()) }
}

/// Reads a map of version 1.0: a count, then the numbers, each on one line. `next` reads the map's next block.
pub(crate) fn push_data(
    mut next: impl FnMut(&mut [u8; BLOCK]) -> Result<(), Fault>,
    builder: &mut Builder,
) -> Result<(), Fault> {
    let mut block = [0; BLOCK];
    let mut at = BLOCK;
    let mut number = || -> Result<i64, Fault> {
        let mut digits = [0; DIGITS_MAX];
        let mut length = 0;
        loop {
            if at == BLOCK {
                next(&mut block)?;
                at = 0;
            }
            let byte = block[at];
            at += 1;
            if byte == b'\n' {
                return decimal(&digits[..length], "sparse map");
            }
            *digits.get_mut(length).ok_or_else(malformed)? = byte;
            length += 1;
        }
    };
    let count = number()?;
    if count < 0 {
        return Err(malformed());
    }
    for _ in 0..count {
        builder.push(number()?)?;
        builder.push(number()?)?;
    }
    Ok(())
}

fn malformed() -> Fault {
    Fault::malformed("its sparse map is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::UnpackErrorKind;

    fn map(numbers: &[i64], size: u64, stored: u64) -> Result<Vec<(u64, u64)>, Fault> {
        let mut builder = Builder::new(4);
        numbers.iter().try_for_each(|&number| builder.push(number))?;
        builder.finish(size, stored)
    }

    #[test]
    fn maps_are_ordered_and_fit_file_and_archive() {
        map(&[], 10, 0).unwrap();
        map(&[0, 4, 8, 2, 20, 0], 20, 6).unwrap();
        for (numbers, size, stored) in [
            (&[0, 4, 3, 2][..], 10, 6), // overlap
            (&[8, 1, 0, 1], 10, 2),     // order
            (&[0, 11], 10, 11),         // beyond the end
            (&[0, 4], 10, 5),           // data left over
            (&[0, 4], 10, 3),           // data missing
            (&[0, 4, 5], 10, 4),        // odd
            (&[-1, 4], 10, 4),
            (&[i64::MAX, 1], u64::MAX, 1),
        ] {
            let refused = map(numbers, size, stored).unwrap_err();
            assert_eq!(refused.kind, UnpackErrorKind::Malformed, "{numbers:?}");
        }
        assert_eq!(map(&[0; 10], 0, 0).unwrap_err().kind, UnpackErrorKind::Limit);
    }
}
