//! Parses one 512-byte tar header of v7, ustar, star or GNU tar.

use std::ops::Range;

use crate::unpack::error::Fault;

pub(crate) const BLOCK: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    V7,
    Ustar,
    Star,
    Gnu,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    pub(crate) block: &'a [u8; BLOCK],
    format: Format,
}

impl<'a> Header<'a> {
    /// Parses a header and verifies its checksum, a sum of unsigned bytes, or of signed bytes as in old writers.
    pub(crate) fn parse(block: &'a [u8; BLOCK]) -> Result<Self, Fault> {
        let stated = octal(&block[148..156], "checksum")?;
        let (mut unsigned, mut signed) = (0i64, 0i64);
        for (at, &byte) in block.iter().enumerate() {
            let byte = if (148..156).contains(&at) { b' ' } else { byte };
            unsigned += i64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        if stated != unsigned && stated != signed {
            return Err(Fault::malformed("the header after it has a wrong checksum"));
        }
        let format = match (&block[257..263], &block[263..265]) {
            (b"ustar\0", _) if &block[508..] == b"tar\0" => Format::Star,
            (b"ustar\0", _) => Format::Ustar,
            (b"ustar ", b" \0") => Format::Gnu,
            _ => Format::V7,
        };
        Ok(Header { block, format })
    }

    pub(crate) fn type_flag(&self) -> u8 {
        self.block[156]
    }

    pub(crate) fn is_gnu(&self) -> bool {
        self.format == Format::Gnu
    }

    pub(crate) fn short_name(&self) -> &'a [u8] {
        text(&self.block[..100])
    }

    pub(crate) fn number(&self, field: Range<usize>, what: &'static str) -> Result<i64, Fault> {
        number(&self.block[field], what)
    }

    pub(crate) fn size(&self) -> Result<i64, Fault> {
        self.number(124..136, "size")
    }

    pub(crate) fn link(&self) -> Vec<u8> {
        text(&self.block[157..257]).to_vec()
    }

    pub(crate) fn device(&self) -> Result<(i64, i64), Fault> {
        match self.format {
            Format::V7 => Ok((0, 0)),
            _ => Ok((self.number(329..337, "device major")?, self.number(337..345, "device minor")?)),
        }
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let block = self.block;
        let prefix = match self.format {
            Format::V7 => &[][..],
            Format::Ustar => text(&block[345..500]),
            Format::Star => text(&block[345..476]),
            Format::Gnu => self.misplaced_prefix(),
        };
        let name = self.short_name();
        if prefix.is_empty() {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }

    /// A GNU header has times where a ustar header has a name's prefix. Some old writers write a prefix with the GNU
    /// magic. The bytes count as a prefix if they are ASCII and the times are not numbers.
    fn misplaced_prefix(&self) -> &'a [u8] {
        let times = [&self.block[345..357], &self.block[357..369]];
        let broken = times.iter().any(|time| time[0] != 0 && number(time, "time").is_err());
        let prefix = text(&self.block[345..500]);
        if broken && prefix.is_ascii() { prefix } else { &[] }
    }
}

pub(crate) fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    &field[..end]
}

pub(crate) fn number(field: &[u8], what: &'static str) -> Result<i64, Fault> {
    let Some(&first) = field.first().filter(|&&first| first & 0x80 != 0) else {
        return octal(field, what);
    };
    // The number is big-endian, in two's complement. The first bit marks this form; the second bit is the sign.
    let negative = first & 0x40 != 0;
    let flip = if negative { 0xff } else { 0 };
    let mut value: u64 = 0;
    for (at, &byte) in field.iter().enumerate() {
        let byte = byte ^ flip;
        let byte = if at == 0 { byte & 0x7f } else { byte };
        if value >> 56 != 0 {
            return Err(out_of_range(what));
        }
        value = value << 8 | u64::from(byte);
    }
    let value = i64::try_from(value).map_err(|_| out_of_range(what))?;
    Ok(if negative { !value } else { value })
}

fn octal(field: &[u8], what: &'static str) -> Result<i64, Fault> {
    let filler = |byte: &u8| matches!(byte, b' ' | 0);
    let Some(start) = field.iter().position(|byte| !filler(byte)) else {
        return Ok(0);
    };
    let end = field.iter().rposition(|byte| !filler(byte)).map_or(start, |last| last + 1);
    let mut value: i64 = 0;
    for &digit in text(&field[start..end]) {
        if !(b'0'..=b'7').contains(&digit) {
            return Err(Fault::malformed(format!("its {what} is not a number")));
        }
        value = value.checked_mul(8).ok_or_else(|| out_of_range(what))? + i64::from(digit - b'0');
    }
    Ok(value)
}

fn out_of_range(what: &str) -> Fault {
    Fault::malformed(format!("its {what} is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_octal_and_in_base_256() {
        for (field, value) in [
            (&b"0000644\0"[..], 0o644),
            (b"   644 \0", 0o644),
            (b"\0\0\0\0\0\0\0\0", 0),
            (b"77777777777 ", 0o77_777_777_777),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\x00", 256),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", i64::MAX),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", -1),
            (b"\xff\xff\xff\xff\xff\xff\xfe\x00", -512),
        ] {
            assert_eq!(number(field, "size").unwrap(), value, "{field:?}");
        }
        for field in [
            &b"0000648\0"[..],
            b"-000001\0",
            b"0x12\0\0\0\0",
            b"\x80\0\0\0\x80\0\0\0\0\0\0\0",
            b"\x81\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            number(field, "size").expect_err("not a number");
        }
    }
}
