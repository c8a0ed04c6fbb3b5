//! The lines of the log: one JSON document each, of a bounded length.
//!
//! ```text
//! {"act":{"at":"2026-03-01T04:10:00Z","code":"pulled",…}}      something was done
//! {"run":{"head":{"at":…,"by":"timer"},"decided":[…],…}}       images were collected
//! {"lost":{"at":…,"count":3,"error":…}}                        so much could not be written
//! ```
//!
//! No document has a line end in it, so a reader that comes upon damage goes on with the next line. A newer version adds
//! fields; readers pass over what they do not know.

use std::{
    io::{self, BufRead, Read as _},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::record::{Act, Decision, Outcome, RunHead, moment};

/// The longest line that is written or read, with its end; longer ones are split, or passed over.
pub(super) const LINE_LENGTH_MAX: usize = 64 << 10;
/// What a line of a collection takes beside its head and its decisions.
const OWN_LENGTH: usize = 256;

/// What one line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Act(Act),
    Run(RunLine),
    Lost(LostLine),
}

/// A collection as its differences from the one before; or several that decided nothing new. A long one takes
/// several lines, of which only the last has a count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunLine {
    /// The last of them.
    pub(super) head: RunHead,
    /// When the first of them was.
    #[serde(with = "moment")]
    pub(super) first: SystemTime,
    /// How many.
    pub(super) count: u64,
    /// What was decided otherwise than before, or of images listed with other names or another size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) decided: Vec<Decision>,
    /// Images that are not listed any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) outcomes: Vec<Outcome>,
    /// Decisions there was no room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) left_out: u64,
}

/// What could not be written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LostLine {
    /// When this was written, after all.
    #[serde(with = "moment")]
    pub(super) at: SystemTime,
    /// How many acts and collections.
    pub(super) count: u64,
    /// Why.
    pub(super) error: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RunLine {
    /// One without decisions.
    pub(super) fn new(head: RunHead) -> Self {
        let first = head.at;
        Self { head, first, count: 0, decided: Vec::new(), gone: Vec::new(), outcomes: Vec::new(), left_out: 0 }
    }

    /// As many lines as all of it takes, decisions before outcomes; the last has the count.
    pub(super) fn split(self) -> Vec<Self> {
        let Self { head, first, count, decided, gone, outcomes, mut left_out } = self;
        let own = length(&head) + OWN_LENGTH;
        let mut lines = vec![Self { first, ..Self::new(head.clone()) }];
        let mut taken = own;
        let mut place = |length: usize, add: &mut dyn FnMut(&mut Self)| {
            if own + length > LINE_LENGTH_MAX {
                left_out += 1;
                return;
            }
            if taken + length > LINE_LENGTH_MAX {
                lines.push(Self { first, ..Self::new(head.clone()) });
                taken = own;
            }
            taken += length;
            lines.last_mut().into_iter().for_each(add);
        };
        for decision in &decided {
            place(length(decision), &mut |line| line.decided.push(decision.clone()));
        }
        for key in &gone {
            place(length(key), &mut |line| line.gone.push(key.clone()));
        }
        for outcome in &outcomes {
            place(length(outcome), &mut |line| line.outcomes.push(outcome.clone()));
        }
        if let Some(last) = lines.last_mut() {
            (last.count, last.left_out) = (count, left_out);
        }
        lines
    }
}

impl Line {
    /// The line with its end.
    ///
    /// # Errors
    /// When it is too long.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let before = out.len();
        serde_json::to_writer(&mut *out, self).map_err(io::Error::other)?;
        out.push(b'\n');
        let length = out.len() - before;
        if length > LINE_LENGTH_MAX {
            out.truncate(before);
            let why = format!("a line of {length} bytes; the limit is {LINE_LENGTH_MAX}");
            return Err(io::Error::other(why));
        }
        Ok(())
    }
}

/// The next line without its end, and how long it is with it; of one that is too long only the beginning.
pub(super) fn next(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let mut length = reader.by_ref().take(LINE_LENGTH_MAX as u64).read_until(b'\n', line)? as u64;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if length == LINE_LENGTH_MAX as u64 {
        length += reader.skip_until(b'\n')? as u64;
    }
    Ok(length)
}

/// How long a part of a line is, with its comma.
fn length(part: &impl Serialize) -> usize {
    serde_json::to_vec(part).map_or(LINE_LENGTH_MAX, |text| text.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_takes_of_a_line_without_end_no_more_than_a_line() {
        let text = [vec![b'x'; 3 * LINE_LENGTH_MAX], b"\nshort\n".to_vec(), b"torn".to_vec()].concat();
        let (mut reader, mut line) = (&text[..], Vec::new());
        assert_eq!(next(&mut reader, &mut line).unwrap(), 3 * LINE_LENGTH_MAX as u64 + 1);
        assert_eq!(line.len(), LINE_LENGTH_MAX);
        assert_eq!((next(&mut reader, &mut line).unwrap(), line.as_slice()), (6, &b"short"[..]));
        assert_eq!((next(&mut reader, &mut line).unwrap(), line.as_slice()), (4, &b"torn"[..]));
        assert_eq!(next(&mut reader, &mut line).unwrap(), 0);
    }
}
