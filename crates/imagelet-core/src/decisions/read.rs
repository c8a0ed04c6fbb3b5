//! Reads the log back: whole lines are returned in order, damaged ones are skipped and counted.

use std::{
    fs::File,
    io::{self, BufReader},
    path::Path,
};

use super::{
    line::{Line, next},
    segments::list,
};

/// What was passed over while reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Lines that are cut off, too long, or say nothing this version knows.
    pub lines: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Segments that could not be read.
    pub segments: u64,
}

impl Damage {
    /// Whether all was read.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Passes on every line with the number of its segment, oldest first. Reading takes no lock: what is being written at the
/// moment is damage.
///
/// # Errors
/// When the folder cannot be read at all; an absent one is an empty log.
pub(super) fn read(directory: &Path, mut hear: impl FnMut(u64, Line)) -> io::Result<Damage> {
    let mut damage = Damage::default();
    for (number, path) in list(directory)? {
        let read = File::open(&path).and_then(|file| read_segment(file, number, &mut damage, &mut hear));
        match read {
            Ok(()) => {}
            // Removed meanwhile by the process that writes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(segment = %path.display(), %error, "passing over a segment of the decision log");
                damage.segments += 1;
            }
        }
    }
    Ok(damage)
}

fn read_segment(file: File, number: u64, damage: &mut Damage, hear: &mut impl FnMut(u64, Line)) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        let length = next(&mut reader, &mut line)?;
        if length == 0 {
            return Ok(());
        }
        if let Ok(line) = serde_json::from_slice(&line) {
            hear(number, line);
        } else {
            damage.lines += 1;
            damage.bytes += length;
        }
    }
}
