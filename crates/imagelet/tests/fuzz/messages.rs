//! Messages of Protocol Buffers without their descriptions: their fields, and mutations that keep the lengths right.

use super::{
    INPUT_MAX,
    mutation::{self, Dice},
};

/// How deep a mutation goes.
const DEPTH_MAX: usize = 6;
/// Numbers of fields; all messages under test have most of theirs among these.
const NUMBERS: [u64; 14] = [1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 19];
const VALUES: [u64; 9] = [0, 1, 2, 3, 1 << 31, (1 << 31) - 1, 1 << 62, 1 << 63, u64::MAX];

/// One field: its number, and its content by the encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Number(u64, u64),
    Bytes(u64, Vec<u8>),
}

/// The fields of a message; `None`: something else is in it.
pub(crate) fn fields(mut from: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !from.is_empty() {
        let tag = varint(&mut from)?;
        let value = varint(&mut from)?;
        match tag & 7 {
            0 => fields.push(Field::Number(tag >> 3, value)),
            2 => {
                let (taken, rest) = from.split_at_checked(usize::try_from(value).ok()?)?;
                from = rest;
                fields.push(Field::Bytes(tag >> 3, taken.to_vec()));
            }
            _ => return None,
        }
    }
    Some(fields)
}

/// The message of these fields.
pub(crate) fn message(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        match field {
            Field::Number(number, value) => {
                put(&mut bytes, number << 3);
                put(&mut bytes, *value);
            }
            Field::Bytes(number, content) => {
                put(&mut bytes, number << 3 | 2);
                put(&mut bytes, content.len() as u64);
                bytes.extend(content);
            }
        }
    }
    bytes
}

/// Changes a message as a tree, or the bytes of anything else. `words` are texts worth having.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice, words: &[&[u8]]) {
    for _ in 0..=dice.below(3) {
        mutate_below(bytes, dice, words, DEPTH_MAX);
    }
    if dice.below(8) == 0 {
        mutation::change(bytes, dice, words);
    }
}

fn mutate_below(bytes: &mut Vec<u8>, dice: &mut Dice, words: &[&[u8]], depth: usize) {
    let Some(mut fields) = fields(bytes).filter(|_| depth > 0 && bytes.len() < INPUT_MAX / 2) else {
        return change_text(bytes, dice, words);
    };
    if fields.is_empty() {
        fields.push(new_field(dice, words));
        *bytes = message(&fields);
        return;
    }
    let at = dice.below(fields.len());
    match dice.below(10) {
        0 => drop(fields.remove(at)),
        1 => fields.insert(at, fields[at].clone()),
        2 => fields.insert(at, new_field(dice, words)),
        3 => {
            let other = dice.below(fields.len());
            fields.swap(at, other);
        }
        4 => match &mut fields[at] {
            Field::Number(number, _) | Field::Bytes(number, _) => *number = NUMBERS[dice.below(NUMBERS.len())],
        },
        _ => match &mut fields[at] {
            Field::Number(_, value) => *value = VALUES[dice.below(VALUES.len())],
            Field::Bytes(_, content) => mutate_below(content, dice, words, depth - 1),
        },
    }
    *bytes = message(&fields);
}

fn change_text(bytes: &mut Vec<u8>, dice: &mut Dice, words: &[&[u8]]) {
    if dice.below(2) == 0 {
        *bytes = dice.pick(words).to_vec();
    } else {
        mutation::change(bytes, dice, words);
    }
}

fn new_field(dice: &mut Dice, words: &[&[u8]]) -> Field {
    let number = NUMBERS[dice.below(NUMBERS.len())];
    match dice.below(4) {
        0 => Field::Number(number, VALUES[dice.below(VALUES.len())]),
        1 => Field::Bytes(number, message(&[new_field(dice, words)])),
        _ => Field::Bytes(number, dice.pick(words).to_vec()),
    }
}

fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_written_as_it_was_read() {
        let inner = message(&[Field::Number(3, u64::MAX), Field::Bytes(19, b"text".to_vec())]);
        let outer = message(&[Field::Bytes(1, inner.clone()), Field::Number(2, 0)]);
        assert_eq!(fields(&outer).unwrap(), [Field::Bytes(1, inner), Field::Number(2, 0)]);
        assert_eq!(message(&fields(&outer).unwrap()), outer);
        assert_eq!(fields(b"\x0a\x05x"), None);
    }
}
