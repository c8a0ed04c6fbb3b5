//! The state of a noted mount (shown, elsewhere, ended), from the kernel's mount table, the boot id and a probe.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::note::NotedMount;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountState {
    Shown(Vec<PathBuf>),
    /// The mount is alive in another mount namespace, or nothing proves that it has ended.
    Elsewhere,
    Gone,
}

/// Decides the state. Calls `is_in_use` only if the table and the boot id do not decide; it returns `None` if the
/// kernel is silent. The overlay's device and the source, which contains the note's serial, identify a mount. The
/// device is not enough, because the kernel reuses device numbers. A moved, bound or covered mount keeps device and
/// source.
pub(super) fn judge(
    noted: &NotedMount,
    boot: Option<&str>,
    table: &[TableRow],
    is_in_use: impl FnOnce() -> Option<bool>,
) -> MountState {
    let shown: Vec<PathBuf> =
        table.iter().filter(|row| is_shown_by(noted, row)).map(|row| row.target.clone()).collect();
    if !shown.is_empty() {
        return MountState::Shown(shown);
    }
    let noted_in = noted.note().and_then(|note| note.boot.as_deref());
    if noted_in.zip(boot).is_some_and(|(then, now)| then != now) {
        return MountState::Gone;
    }
    if is_in_use() == Some(false) { MountState::Gone } else { MountState::Elsewhere }
}

pub(super) fn is_shown_by(noted: &NotedMount, row: &TableRow) -> bool {
    let is_its_device = noted.note().is_none_or(|note| note.device == row.device);
    row.kind == "overlay" && row.source == noted.source() && is_its_device
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableRow {
    pub(super) id: u64,
    pub(super) device: String,
    pub(super) target: PathBuf,
    pub(super) kind: String,
    pub(super) source: String,
}

pub(super) const MOUNT_TABLE: &str = "/proc/self/mountinfo";

pub(super) fn read_table() -> io::Result<Vec<TableRow>> {
    Ok(parse(&fs::read(MOUNT_TABLE)?))
}

pub(super) fn mount_id(path: &Path) -> io::Result<u64> {
    Ok(rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?.stx_mnt_id)
}

fn parse(table: &[u8]) -> Vec<TableRow> {
    table.split(|byte| *byte == b'\n').filter_map(row).collect()
}

/// Parses a row: `ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [FIELD…] - KIND SOURCE OPTIONS`.
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
    use crate::mount::note::Note;

    const BOOT: &str = "b1";

    fn key() -> String {
        format!("{}0123456789abcdef", "a".repeat(64))
    }

    fn noted(key: &str, change: impl FnOnce(&mut Note)) -> NotedMount {
        let mut note = Note {
            target: "/mnt".into(),
            image: "sha256:1".into(),
            writable: true,
            mounted_at: 1,
            boot: Some(BOOT.into()),
            device: "0:50".into(),
        };
        change(&mut note);
        NotedMount::of(format!("/store/mounts/{key}").into(), Ok(note)).unwrap()
    }

    fn row(device: &str, target: &str, source: &str) -> TableRow {
        TableRow { id: 1, device: device.into(), target: target.into(), kind: "overlay".into(), source: source.into() }
    }

    fn judged(noted: &NotedMount, table: &[TableRow], upper: Option<bool>) -> MountState {
        judge(noted, Some(BOOT), table, || upper)
    }

    #[test]
    fn a_mount_is_gone_only_when_its_boot_or_its_overlay_is() {
        let (busy, free, unknown) = (Some(true), Some(false), None);
        let ours = "imagelet:0123456789abcdef";
        let mount = noted(&key(), |_| {});
        let shown = |targets: &[&str]| MountState::Shown(targets.iter().map(PathBuf::from).collect());
        for (table, upper, expected, why) in [
            (vec![row("0:50", "/mnt", ours)], free, shown(&["/mnt"]), "it is where it was mounted"),
            (vec![row("0:50", "/new/mnt", ours)], free, shown(&["/new/mnt"]), "a folder above it was moved"),
            (vec![row("0:50", "/a", ours), row("0:50", "/b", ours)], free, shown(&["/a", "/b"]), "it is bound twice"),
            (vec![], busy, MountState::Elsewhere, "another namespace has it, or a process works in it"),
            (vec![], unknown, MountState::Elsewhere, "nothing is known"),
            (vec![], free, MountState::Gone, "the kernel has no such overlay"),
            (
                vec![row("0:50", "/mnt", "imagelet:fedcba9876543210")],
                free,
                MountState::Gone,
                "the number was given again",
            ),
            (vec![row("0:51", "/mnt", ours)], busy, MountState::Elsewhere, "another device is not it"),
            (vec![row("0:50", "/mnt", "tmpfs")], busy, MountState::Elsewhere, "another mount has its place"),
        ] {
            assert_eq!(judged(&mount, &table, upper), expected, "{why}");
        }
    }

    #[test]
    fn another_boot_ends_a_mount_without_a_question() {
        let mount = noted(&key(), |note| note.boot = Some("b0".into()));
        let unused = || panic!("the kernel's answer is not needed");
        assert_eq!(judge(&mount, Some(BOOT), &[], unused), MountState::Gone);
        for unknown in [None, Some("b0")] {
            let state = judge(&mount, unknown, &[], || Some(true));
            assert_eq!(state, MountState::Elsewhere, "a boot that is not known, or this one");
        }
        let unnamed = noted(&key(), |note| note.boot = None);
        assert_eq!(judged(&unnamed, &[], Some(true)), MountState::Elsewhere);
    }

    #[test]
    fn a_damaged_note_is_known_by_its_name() {
        let damaged = NotedMount::of(format!("/store/mounts/{}", key()).into(), Err(String::new())).unwrap();
        let table = [row("0:50", "/mnt", "imagelet:0123456789abcdef")];
        assert_eq!(judged(&damaged, &table, None), MountState::Shown(vec!["/mnt".into()]));
        assert_eq!(judged(&damaged, &[], None), MountState::Elsewhere);
    }

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
        assert!(read_table().unwrap().iter().any(|row| row.id == id));
    }
}
