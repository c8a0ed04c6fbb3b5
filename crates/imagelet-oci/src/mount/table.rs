//! The kernel's table of mounts, as `/proc/self/mountinfo` has it.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, StatxFlags};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableRow {
    pub(super) id: u64,
    /// The file system's device, `MAJOR:MINOR`.
    pub(super) device: String,
    pub(super) target: PathBuf,
    pub(super) kind: String,
    pub(super) source: String,
}

pub(super) fn read() -> io::Result<Vec<TableRow>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

pub(super) fn mount_id(path: &Path) -> io::Result<u64> {
    Ok(rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?.stx_mnt_id)
}

fn parse(table: &[u8]) -> Vec<TableRow> {
    table.split(|byte| *byte == b'\n').filter_map(row).collect()
}

/// `ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [FIELD…] - KIND SOURCE OPTIONS`
fn row(line: &[u8]) -> Option<TableRow> {
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let target = PathBuf::from(OsString::from_vec(unescaped(fields.nth(1)?)));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    Some(TableRow { id, device, target, kind: text(rest.next()?), source: text(rest.next()?) })
}

fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            plain.push(byte);
            rest = &tail[3..];
        } else {
            plain.push(*first);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_with_its_escapes_and_its_optional_fields() {
        let table = b"36 35 0:50 / /mnt/a\\040b\\134 rw,nodev shared:1 master:2 - overlay imagelet:x ro,lowerdir=0:1\n\
                      37 35 254:1 / / rw - ext4 /dev/vda rw\n\
                      \n38 35 short\n";
        let expected = |id, device: &str, target: &str, kind: &str, source: &str| TableRow {
            id,
            device: device.into(),
            target: target.into(),
            kind: kind.into(),
            source: source.into(),
        };
        assert_eq!(
            parse(table),
            [
                expected(36, "0:50", "/mnt/a b\\", "overlay", "imagelet:x"),
                expected(37, "254:1", "/", "ext4", "/dev/vda")
            ]
        );
        assert_eq!(unescaped(b"\\04"), b"\\04", "an escape that is cut short stands for itself");
        assert_eq!(unescaped(b"\\777"), b"\\777", "no byte has this number");
    }

    #[test]
    fn the_root_is_a_mount_of_the_own_table() {
        let id = mount_id(Path::new("/")).unwrap();
        assert!(read().unwrap().iter().any(|row| row.id == id));
    }
}
