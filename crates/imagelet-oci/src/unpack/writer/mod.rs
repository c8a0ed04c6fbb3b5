//! Writes entries into the layer's directory.

pub(super) mod deferred_metadata;
pub(super) mod links;
pub(super) mod manifest_writer;
pub(super) mod spill;
pub(super) mod tree;
pub(super) mod whiteout;
pub(super) mod xattr;

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid},
    io::Errno,
};

use self::{
    deferred_metadata::{DeviceRecord, DirectoryMeta, Note, OwnershipRecord, encoded},
    manifest_writer::{FileManifest, FileRecord, ManifestWriter},
    spill::Spill,
    tree::{Directory, Freed, Missing, Tree},
    whiteout::{Mark, Opacity, look, mark},
    xattr::Strictness,
};
use super::{
    DIRECTORY_COST, EntryRules, Ownership, UnpackError, UnpackOptions, UnpackReport,
    archive::{Reader, TarEntry, TarKind, pax::Time},
    disk_size,
    error::Fault,
    limits::Gauge,
    name,
};
use crate::scarce::patiently;

const DIRECTORY_OPEN: u32 = 0o700;
/// The kernel's limits of device numbers; it truncates larger ones, even to 0:0.
const MAJOR_MAX: i64 = 0xfff;
const MINOR_MAX: i64 = 0xf_ffff;
/// The last second that containerd sets, in 2262: its nanoseconds have 63 bits.
const SECONDS_MAX: i64 = i64::MAX / 1_000_000_000;

pub(super) struct Writer<'a> {
    pub(super) gauge: Gauge<'a>,
    tree: Tree,
    spill: Spill,
    ownership: Ownership,
    rules: EntryRules,
    process: (u32, u32),
    devices_left_out: bool,
    report: UnpackReport,
    manifest: ManifestWriter<'a>,
}

struct Place {
    parent: Rc<Directory>,
    name: Vec<u8>,
}

impl Place {
    fn path(&self) -> Vec<u8> {
        name::join(&self.parent.path, &self.name)
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        root: BorrowedFd<'a>,
        options: &UnpackOptions,
        listing: Option<FileManifest<'a>>,
    ) -> Result<Self, Fault> {
        let tree = Tree::new(root, options)?;
        let stat = rustix::fs::fstat(root).map_err(Fault::io("look at the root for"))?;
        if stat.st_mode & 0o2000 != 0 {
            // In a set-gid directory, new files would get the directory's group instead of the process's.
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
            rustix::fs::fchmod(root, mode).map_err(Fault::io("prepare the root for"))?;
        }
        let process = (rustix::process::geteuid(), rustix::process::getegid());
        if stat.st_gid != process.1.as_raw() {
            // The root itself may have inherited its group in the same way.
            rustix::fs::fchown(root, None, Some(process.1)).map_err(Fault::io("prepare the root for"))?;
        }
        Ok(Writer {
            gauge: Gauge::new(options.limits, root, options.cancelled.clone()),
            tree,
            spill: Spill::new(root)?,
            ownership: options.ownership,
            rules: options.rules,
            process: (process.0.as_raw(), process.1.as_raw()),
            devices_left_out: false,
            report: UnpackReport::default(),
            manifest: ManifestWriter::new(listing, root)?,
        })
    }

    pub(super) fn write(&mut self, entry: TarEntry, reader: &mut Reader<'_>) -> Result<(), Fault> {
        self.report.entries += 1;
        let path = name::clean(&entry.name, "name", &self.gauge.limits)?;
        if path.is_empty() {
            return match entry.kind {
                TarKind::Directory if self.rules == EntryRules::Containerd => Ok(()),
                TarKind::Directory => self.remember_directory(&[], &entry),
                _ => Err(Fault::refused("only a directory can be the layer's root")),
            };
        }
        let (parent, name) = name::split(&path);
        let mark = mark(parent, name)?;
        if mark != Mark::Plain || entry.kind == TarKind::Unknown {
            self.gauge.file(0, entry.stored)?;
        }
        match mark {
            Mark::Opaque => {
                let parent = self.parent(parent)?;
                return self.set_opacity(&parent.path, Opacity::Opaque);
            }
            Mark::Whiteout(hidden) => {
                let place = Place { parent: self.parent(parent)?, name: hidden.to_vec() };
                return self.hide(&place);
            }
            Mark::Plain if entry.kind != TarKind::Unknown => {}
            Mark::Ignored | Mark::Plain => return Ok(()),
        }
        let place = Place { parent: self.parent(parent)?, name: name.to_vec() };
        if self.devices_left_out {
            self.tree.deferred.forget_device(&place.path());
        }
        match entry.kind {
            TarKind::File => self.file(&place, entry, reader),
            TarKind::Directory => self.directory(&place, &entry),
            TarKind::Symlink => self.symlink(&place, &entry),
            TarKind::HardLink => self.hard_link(&place, &entry),
            TarKind::Fifo => self.node(&place, &entry, FileType::Fifo, 0),
            TarKind::CharDevice | TarKind::BlockDevice => self.device(&place, &entry),
            TarKind::Unknown => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> Result<UnpackReport, UnpackError> {
        let (notes, _claim) = self.tree.deferred.take();
        // In reverse order of paths, children precede parents: a parent's mode and times are set after the last
        // change below it.
        for (path, note) in notes.into_iter().rev() {
            let shown = if path.is_empty() { &b"."[..] } else { &path };
            self.finish_note(&path, note).map_err(|fault| fault.at(shown))?;
        }
        let listed = self.open_real(&[]).and_then(|root| self.manifest.directory(&[], &*root));
        listed.map_err(|fault| fault.at(b"."))?;
        self.report.ownership.reverse();
        self.report.implicit_directories.reverse();
        Ok(self.report)
    }

    fn parent(&mut self, path: &[u8]) -> Result<Rc<Directory>, Fault> {
        let parent = self.tree.directory(path, Missing::Create)?;
        self.report.disk_bytes += std::mem::take(&mut self.tree.made_bytes);
        Ok(parent.expect("missing directories are made"))
    }

    fn file(&mut self, place: &Place, mut entry: TarEntry, reader: &mut Reader<'_>) -> Result<(), Fault> {
        self.gauge.file(entry.size, entry.stored)?;
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let create = || patiently(|| rustix::fs::openat(&place.parent, place.name.as_slice(), flags, mode));
        let file = self.replacing(place, "create", create)?;
        self.manifest.begin(entry.stored);
        let ranges = match entry.sparse.take() {
            None => {
                self.copy(&file, entry.stored, None, reader)?;
                None
            }
            Some(map) => {
                rustix::fs::ftruncate(&file, entry.size).map_err(Fault::io("size"))?;
                for range in &map.ranges {
                    self.copy(&file, range.length, Some(range.offset), reader)?;
                }
                Some(map.ranges.iter().map(|range| (range.offset, range.length)).collect())
            }
        };
        self.report.bytes += entry.size;
        self.report.disk_bytes += disk_size(entry.stored);

        // Writes and owner changes clear set-id bits and capabilities: mode after owner, xattrs after both.
        if let Some((uid, gid)) = self.owner(entry.uid, entry.gid) {
            rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(Fault::io("set the owner of"))?;
        }
        if entry.mode & (self.tree.umask | 0o7000) != 0 {
            let mode = Mode::from_raw_mode(entry.mode);
            rustix::fs::fchmod(&file, mode).map_err(Fault::io("set the mode of"))?;
        }
        let left_out = match entry.xattrs.as_slice() {
            [] => Vec::new(),
            xattrs => xattr::set(&file, xattrs, self.strictness())?,
        };
        rustix::fs::futimens(&file, &self.times(entry.mtime, entry.atime)).map_err(Fault::io("set the times of"))?;
        self.manifest.file(|| place.path(), &file, ranges, !entry.xattrs.is_empty())?;
        self.record(|| place.path(), &entry, &left_out)
    }

    fn copy(
        &mut self,
        file: &OwnedFd,
        length: u64,
        mut offset: Option<u64>,
        reader: &mut Reader<'_>,
    ) -> Result<(), Fault> {
        let mut left = length;
        while left > 0 {
            let chunk = reader.fill()?;
            let chunk = &chunk[..chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let written = match offset {
                None => rustix::io::write(file, chunk),
                Some(offset) => rustix::io::pwrite(file, chunk, offset),
            };
            let written = match written {
                Ok(0) => return Err(Fault::Io { action: "write", errno: Errno::IO }),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Fault::Io { action: "write", errno }),
            };
            self.manifest.wrote(&chunk[..written]);
            reader.consume(written);
            left -= written as u64;
            offset = offset.map(|offset| offset + written as u64);
            self.gauge.wrote(written)?;
        }
        Ok(())
    }

    fn directory(&mut self, place: &Place, entry: &TarEntry) -> Result<(), Fault> {
        let make = || {
            // New entries below would inherit set-group-id; it is set at the end with the other bits.
            let mode = Mode::from_raw_mode(entry.mode & 0o777 | DIRECTORY_OPEN);
            rustix::fs::mkdirat(&place.parent, place.name.as_slice(), mode)
        };
        let path = place.path();
        match make() {
            Ok(()) => self.report.disk_bytes += DIRECTORY_COST,
            Err(Errno::EXIST) => {
                let stat = look(place.parent.as_fd(), &place.name)?;
                if stat.is_none_or(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory) {
                    // The entry replaces a file of this layer, so a directory of lower layers is hidden.
                    self.replace(place)?;
                    make().map_err(Fault::io("make the directory"))?;
                    self.report.disk_bytes += DIRECTORY_COST;
                    if self.rules == EntryRules::Own {
                        self.set_opacity(&path, Opacity::Opaque)?;
                    }
                }
            }
            Err(errno) => return Err(Fault::Io { action: "make the directory", errno }),
        }
        self.remember_directory(&path, entry)
    }

    fn remember_directory(&mut self, path: &[u8], entry: &TarEntry) -> Result<(), Fault> {
        let xattrs = match &entry.xattrs {
            none if none.is_empty() => None,
            xattrs => {
                self.gauge.file(0, Spill::size(xattrs) as u64)?;
                Some(self.spill.put(xattrs)?)
            }
        };
        let note = self.tree.deferred.note(path)?;
        note.implicit = false;
        let TarEntry { mode, uid, gid, mtime, atime, .. } = *entry;
        note.directory = Some(Box::new(DirectoryMeta { mode, uid, gid, mtime, atime, xattrs }));
        Ok(())
    }

    fn symlink(&mut self, place: &Place, entry: &TarEntry) -> Result<(), Fault> {
        if entry.link.is_empty() || entry.link.contains(&0) {
            return Err(Fault::malformed("its link target is empty or has a NUL byte"));
        }
        if entry.link.len() > self.gauge.limits.path_max {
            let path_max = self.gauge.limits.path_max;
            return Err(Fault::limit(format!("its link target is longer than {path_max} bytes")));
        }
        let link = || rustix::fs::symlinkat(entry.link.as_slice(), &place.parent, place.name.as_slice());
        self.replacing(place, "make the symbolic link", link)?;
        self.finish_special(place, entry, None)
    }

    fn device(&mut self, place: &Place, entry: &TarEntry) -> Result<(), Fault> {
        let (major, minor) = entry.device;
        let kind = match entry.kind {
            TarKind::BlockDevice => FileType::BlockDevice,
            _ => FileType::CharacterDevice,
        };
        let record = DeviceRecord { block: kind == FileType::BlockDevice, major, minor };
        let in_range = (0..=MAJOR_MAX).contains(&major) && (0..=MINOR_MAX).contains(&minor);
        // Character device 0:0 would be a whiteout.
        let whiteout = (major, minor) == (0, 0) && kind == FileType::CharacterDevice;
        if self.ownership == Ownership::Apply && in_range && !whiteout {
            let part = |number| u32::try_from(number).expect("is in range");
            match self.node(place, entry, kind, rustix::fs::makedev(part(major), part(minor))) {
                Err(Fault::Io { errno: Errno::PERM, .. }) => {}
                made => return made,
            }
        }
        let TarEntry { uid, gid, mode, .. } = *entry;
        let path = String::new();
        self.leave_out(place, OwnershipRecord { path, uid, gid, mode, device: Some(record), xattrs: Vec::new() })
    }

    fn leave_out(&mut self, place: &Place, mut record: OwnershipRecord) -> Result<(), Fault> {
        let path = place.path();
        // A whiteout stays: the layer hides lower layers here, even without its own node.
        if !self.tree.deferred.get(&path).is_some_and(|note| note.whiteout) {
            self.replace(place)?;
        }
        self.devices_left_out = true;
        record.path = encoded(&path);
        self.tree.deferred.record(&path, record)
    }

    fn node(&mut self, place: &Place, entry: &TarEntry, kind: FileType, device: u64) -> Result<(), Fault> {
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let make = || rustix::fs::mknodat(&place.parent, place.name.as_slice(), kind, mode, device);
        self.replacing(place, "make the node", make)?;
        self.finish_special(place, entry, Some(mode))
    }

    /// Sets owner, mode, xattrs and times of an entry that must not or cannot be opened.
    fn finish_special(&mut self, place: &Place, entry: &TarEntry, made: Option<Mode>) -> Result<(), Fault> {
        let (parent, name) = (&place.parent, place.name.as_slice());
        if let Some((uid, gid)) = self.owner(entry.uid, entry.gid) {
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(Fault::io("set the owner of"))?;
        }
        if made.is_some() && entry.mode & (self.tree.umask | 0o7000) != 0 {
            // `chmod` would follow a link; this node was just made, and no other process writes to the directory.
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
                .map_err(Fault::io("set the mode of"))?;
        }
        // Links, devices and pipes have none of the attributes that layers may set.
        rustix::fs::utimensat(parent, name, &self.times(entry.mtime, entry.atime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Fault::io("set the times of"))?;
        self.manifest.special(|| place.path(), (parent.as_fd(), name), &entry.link, false)?;
        self.record(|| place.path(), entry, &[])
    }

    /// Hides a name of lower layers, unless this layer has its own.
    fn hide(&mut self, place: &Place) -> Result<(), Fault> {
        let path = place.path();
        if let Some(own) = look(place.parent.as_fd(), &place.name)? {
            return match FileType::from_raw_mode(own.st_mode) {
                FileType::Directory => self.set_opacity(&path, Opacity::Opaque),
                _ => Ok(()),
            };
        }
        let needed = self.ownership.hide(place.parent.as_fd(), &place.name)?;
        self.tree.deferred.note(&path)?.whiteout = true;
        self.manifest.special(|| path, (place.parent.as_fd(), &place.name), &[], true)?;
        match needed {
            Opacity::Merged => Ok(()),
            needed => self.set_opacity(&place.parent.path, needed),
        }
    }

    fn set_opacity(&mut self, path: &[u8], opacity: Opacity) -> Result<(), Fault> {
        let note = self.tree.deferred.note(path)?;
        note.opacity = note.opacity.max(opacity);
        Ok(())
    }

    fn replacing<T>(
        &mut self,
        place: &Place,
        action: &'static str,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Fault> {
        let made = match make() {
            Err(Errno::EXIST) => {
                self.replace(place)?;
                make()
            }
            made => made,
        };
        made.map_err(Fault::io(action))
    }

    fn replace(&mut self, place: &Place) -> Result<(), Fault> {
        let Freed { bytes, disk_bytes } = self.tree.remove(&place.parent, &place.name)?;
        self.report.bytes = self.report.bytes.saturating_sub(bytes);
        self.report.disk_bytes = self.report.disk_bytes.saturating_sub(disk_bytes);
        if self.manifest.is_on() {
            self.manifest.record(&place.path(), FileRecord::Removed)?;
        }
        Ok(())
    }

    /// The owner to set, if it differs from the process's own.
    fn owner(&self, uid: u32, gid: u32) -> Option<(Uid, Gid)> {
        (self.ownership == Ownership::Apply && (uid, gid) != self.process)
            .then(|| (Uid::from_raw(uid), Gid::from_raw(gid)))
    }

    fn strictness(&self) -> Strictness {
        match (self.ownership, self.rules) {
            (Ownership::Apply, EntryRules::Own) => Strictness::Fail,
            (Ownership::Apply, EntryRules::Containerd) => Strictness::FailWhereSupported,
            (Ownership::Record, _) => Strictness::LeaveOut,
        }
    }

    fn times(&self, mtime: Time, atime: Time) -> Timestamps {
        let timespec = |time: Time| {
            let is_taken = self.rules == EntryRules::Own || (0..=SECONDS_MAX).contains(&time.secs);
            let (tv_sec, tv_nsec) = if is_taken { (time.secs, time.nanos.into()) } else { (0, 0) };
            Timespec { tv_sec, tv_nsec }
        };
        Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) }
    }

    /// Records metadata that is not on the disk. Most files of most images need no record.
    fn record(&mut self, path: impl FnOnce() -> Vec<u8>, entry: &TarEntry, left_out: &[Vec<u8>]) -> Result<(), Fault> {
        let owned = self.ownership == Ownership::Apply || (entry.uid, entry.gid) == (0, 0);
        if owned && left_out.is_empty() {
            return Ok(());
        }
        let path = path();
        let xattrs = left_out.iter().map(|name| encoded(name)).collect();
        let TarEntry { uid, gid, mode, .. } = *entry;
        let record = OwnershipRecord { path: encoded(&path), uid, gid, mode, device: None, xattrs };
        self.tree.deferred.record(&path, record)
    }

    fn finish_note(&mut self, path: &[u8], mut note: Note) -> Result<(), Fault> {
        self.gauge.check_cancelled()?;
        if note.implicit || note.directory.is_some() || note.opacity != Opacity::Merged {
            let directory = self.open_real(path)?;
            if let Some((name, value)) = self.ownership.xattr(note.opacity) {
                rustix::fs::fsetxattr(&*directory, name, value, rustix::fs::XattrFlags::empty())
                    .map_err(Fault::io("mark as opaque the directory"))?;
            }
            if let Some(meta) = note.directory.take() {
                note.record = self.finish_directory(path, &directory, &meta)?.map(Box::new);
            }
            if !path.is_empty() {
                self.manifest.directory(path, &*directory)?;
            }
        }
        if path.is_empty() {
            self.report.root_opaque = note.opacity == Opacity::Opaque;
        }
        if note.implicit {
            self.report.implicit_directories.push(path.to_vec());
        }
        self.report.ownership.extend(note.record.map(|record| *record));
        Ok(())
    }

    fn finish_directory(
        &mut self,
        path: &[u8],
        directory: &Directory,
        meta: &DirectoryMeta,
    ) -> Result<Option<OwnershipRecord>, Fault> {
        let mode = match self.ownership {
            Ownership::Apply => meta.mode,
            Ownership::Record => meta.mode | DIRECTORY_OPEN,
        };
        if let Some((uid, gid)) = self.owner(meta.uid, meta.gid) {
            rustix::fs::fchown(directory, Some(uid), Some(gid)).map_err(Fault::io("set the owner of"))?;
        }
        rustix::fs::fchmod(directory, Mode::from_raw_mode(mode)).map_err(Fault::io("set the mode of"))?;
        let left_out = match meta.xattrs {
            None => Vec::new(),
            Some(place) => xattr::set(directory, &self.spill.get(place)?, self.strictness())?,
        };
        rustix::fs::futimens(directory, &self.times(meta.mtime, meta.atime)).map_err(Fault::io("set the times of"))?;
        let owned = self.ownership == Ownership::Apply || ((meta.uid, meta.gid) == (0, 0) && mode == meta.mode);
        Ok((!owned || !left_out.is_empty()).then(|| OwnershipRecord {
            path: encoded(path),
            uid: meta.uid,
            gid: meta.gid,
            mode: meta.mode,
            device: None,
            xattrs: left_out.iter().map(|name| encoded(name)).collect(),
        }))
    }

    fn open_real(&mut self, path: &[u8]) -> Result<Rc<Directory>, Fault> {
        let directory = self.tree.real_directory(path)?;
        directory.ok_or(Fault::Io { action: "find again the directory", errno: Errno::NOENT })
    }
}
