//! Writes entries into the layer's directory.

pub(super) mod deferred_metadata;
pub(super) mod direct_io;
pub(super) mod links;
pub(super) mod manifest_writer;
pub(super) mod tree;
pub(super) mod whiteout;
pub(super) mod xattr;

use std::{
    fs::{File, Metadata},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt as _,
    },
    rc::Rc,
    thread,
};

use imagelet_core::failpoint;
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid},
    io::Errno,
};

use self::{
    deferred_metadata::{DeviceRecord, DirectoryMeta, Note, OwnershipRecord},
    direct_io::DirectWriter,
    manifest_writer::{FileManifest, FileRecord, ManifestWriter},
    tree::{Directory, Freed, Missing, Tree},
    whiteout::{Mark, Opacity, look, mark},
};
use super::{
    DIRECTORY_COST, EntryRules, Ownership, ReusableFile, UnpackError, UnpackOptions, UnpackReport, WholeFile,
    archive::{Reader, TarEntry, TarKind, TarMetadata, Xattrs, pax::Time},
    disk_size,
    error::Fault,
    limits::Gauge,
    member::{self, FILE_MODE},
    name,
};
use crate::{page_cache, scarce::patiently};

const DIRECTORY_OPEN: u32 = 0o700;
/// The kernel's limits of device numbers. The kernel truncates larger numbers, even to 0:0.
const MAJOR_MAX: i64 = 0xfff;
const MINOR_MAX: i64 = 0xf_ffff;
/// The last second that containerd sets as a time, in 2262: nanoseconds since 1970 must fit in 63 bits.
const SECONDS_MAX: i64 = i64::MAX / 1_000_000_000;

pub(super) struct Writer<'a> {
    pub(super) gauge: Gauge<'a>,
    tree: Tree<'a>,
    options: &'a UnpackOptions,
    process: (Uid, Gid),
    report: UnpackReport,
    manifest: ManifestWriter<'a>,
    take_replaced: bool,
}

struct Place {
    parent: Rc<Directory>,
    name: Vec<u8>,
    path: Vec<u8>,
}

impl Place {
    fn new(parent: Rc<Directory>, name: &[u8]) -> Self {
        let path = name::join(&parent.path, name);
        Self { parent, name: name.to_vec(), path }
    }

    fn at(&self) -> (BorrowedFd<'_>, &[u8]) {
        (self.parent.as_fd(), &self.name)
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        root: BorrowedFd<'a>,
        options: &'a UnpackOptions,
        listing: Option<FileManifest<'a>>,
    ) -> Result<Self, Fault> {
        let tree = Tree::new(root, options)?;
        let stat = rustix::fs::fstat(root).map_err(Fault::io("look at the root for"))?;
        if stat.st_mode & 0o2000 != 0 {
            // The set-gid bit is removed, because it gives new files the directory's group, not the process's.
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
            rustix::fs::fchmod(root, mode).map_err(Fault::io("prepare the root for"))?;
        }
        let process = (rustix::process::geteuid(), rustix::process::getegid());
        if stat.st_gid != process.1.as_raw() {
            // The root may have inherited its group from a set-gid directory.
            rustix::fs::fchown(root, None, Some(process.1)).map_err(Fault::io("prepare the root for"))?;
        }
        Ok(Writer {
            gauge: Gauge::new(options.limits, root, options.cancelled.clone()),
            tree,
            options,
            process,
            report: UnpackReport::default(),
            manifest: ManifestWriter::new(listing, root)?,
            take_replaced: false,
        })
    }

    pub(super) fn write(&mut self, entry: &TarEntry, reader: &mut Reader<'_>) -> Result<(), Fault> {
        self.report.entries += 1;
        let path = name::clean(&entry.name, "name", &self.gauge.limits)?;
        if path.is_empty() {
            return match entry.kind {
                TarKind::Directory if self.options.rules == EntryRules::Containerd => Ok(()),
                TarKind::Directory => self.tree.deferred.directory(&[], entry.metadata, entry.xattrs.clone()),
                _ => Err(Fault::refused("only a directory can be the layer's root")),
            };
        }
        let (parent, name) = name::split(&path);
        let mark = mark(parent, name)?;
        if mark != Mark::Plain || entry.kind == TarKind::Unknown {
            self.gauge.file(0, entry.data.stored)?;
        }
        match mark {
            Mark::Opaque => {
                let parent = self.parent(parent)?;
                return self.set_opacity(&parent.path, Opacity::Opaque);
            }
            Mark::Whiteout(hidden) => {
                let place = Place::new(self.parent(parent)?, hidden);
                return self.hide(&place);
            }
            Mark::Plain if entry.kind != TarKind::Unknown => {}
            Mark::Ignored | Mark::Plain => return Ok(()),
        }
        let place = Place::new(self.parent(parent)?, name);
        if let Some(folder) = &self.options.folder {
            member::check_place(&place.path, entry, folder)?;
        }
        self.tree.deferred.forget_device(&place.path);
        match entry.kind {
            TarKind::File => self.file(&place, entry, reader),
            TarKind::Directory => self.directory(&place, entry),
            TarKind::Symlink => self.symlink(&place, entry),
            TarKind::HardLink => self.hard_link(&place, entry),
            TarKind::Fifo => self.special(&place, entry, FileType::Fifo, 0),
            TarKind::CharDevice | TarKind::BlockDevice => self.device(&place, entry),
            TarKind::Unknown => Ok(()),
        }
    }

    pub(super) fn place(&mut self, whole: &WholeFile<'_>) -> Result<(), Fault> {
        let path = name::clean(whole.path.as_bytes(), "name", &self.gauge.limits)?;
        let (parent, name) = name::split(&path);
        let place = Place::new(self.parent(parent)?, name);
        rustix::fs::renameat(CWD, whole.from, &place.parent, name).map_err(Fault::io("move"))?;
        failpoint!("unpack.moved");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&place.parent, name, flags, Mode::empty());
        let file = patiently(open).map_err(Fault::io("open"))?;
        if self.options.ownership == Ownership::Apply {
            rustix::fs::fchown(&file, Some(Uid::ROOT), Some(Gid::ROOT)).map_err(Fault::io("set the owner of"))?;
        }
        let metadata = TarMetadata { mode: FILE_MODE, ..TarMetadata::default() };
        self.set_metadata(&file, &metadata, Some(FILE_MODE), &Xattrs::new())?;
        self.report.entries += 1;
        self.report.bytes += whole.size;
        self.report.disk_bytes += disk_size(whole.size);
        self.manifest.begin_known(whole.content);
        self.manifest.file(&place.path, place.at(), file.into(), None, false)
    }

    pub(super) fn finish(mut self) -> Result<UnpackReport, UnpackError> {
        let notes = std::mem::take(&mut self.tree.deferred.notes);
        // In reverse order, children precede parents. A parent's mode and times are set after the last change below it.
        for (path, note) in notes.into_iter().rev() {
            let shown = if path.is_empty() { &b"."[..] } else { &path };
            self.finish_note(&path, note).map_err(|fault| fault.at(shown))?;
        }
        let listed = self.open_real(&[]).and_then(|root| self.manifest.directory(&[], &*root));
        listed.map_err(|fault| fault.at(b"."))?;
        self.report.allocated = self.manifest.allocated();
        self.report.ownership.reverse();
        self.report.implicit_directories.reverse();
        Ok(self.report)
    }

    pub(super) fn take_replaced(&mut self) -> bool {
        std::mem::take(&mut self.take_replaced)
    }

    fn parent(&mut self, path: &[u8]) -> Result<Rc<Directory>, Fault> {
        let parent = self.tree.directory(path, Missing::Create)?;
        self.report.disk_bytes += std::mem::take(&mut self.tree.made_bytes);
        Ok(parent.expect("missing directories are made"))
    }

    fn file(&mut self, place: &Place, entry: &TarEntry, reader: &mut Reader<'_>) -> Result<(), Fault> {
        self.gauge.file(entry.data.size, entry.data.stored)?;
        let mode = Mode::from_raw_mode(entry.metadata.mode & 0o777);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let create = || patiently(|| rustix::fs::openat(&place.parent, place.name.as_slice(), flags, mode));
        let is_plain = entry.data.ranges.is_none() && entry.data.stored > 0;
        let reusable = if is_plain { reader.input.reusable_file().map_err(Fault::read)? } else { None };
        let reused = reusable.and_then(|found| Some((link_reusable(place, &found, entry.data.stored)?, found.length)));
        let is_reused = reused.is_some();
        let (file, known) = match reused {
            Some(reused) => reused,
            None => (File::from(self.replacing(place, "create", create)?), 0),
        };
        if self.take_replaced() {
            reader.input.invalidate_journal();
        }
        self.manifest.begin(entry.data.stored);
        match &entry.data.ranges {
            None => self.copy_whole(&file, entry.data.stored, (&place.path, known), reader)?,
            Some(ranges) => {
                rustix::fs::ftruncate(&file, entry.data.size).map_err(Fault::io("size"))?;
                for (offset, length) in ranges {
                    self.copy(&file, (*offset, *length), None, None, reader)?;
                }
            }
        }
        self.report.bytes += entry.data.size;
        self.report.disk_bytes += disk_size(entry.data.stored);
        let mode = entry.metadata.mode;
        let is_made_so = !is_reused && mode & (self.options.umask | 0o7000) == 0;
        if is_reused {
            self.clear_metadata(&file, &entry.metadata)?;
        }
        let mode = (!is_made_so).then_some(mode);
        let left_out = self.set_metadata(&file, &entry.metadata, mode, &entry.xattrs)?;
        if self.options.memory.budget.is_disk_behind() {
            page_cache::start_write_back(&file, entry.data.stored);
        }
        self.manifest.file(&place.path, place.at(), file, entry.data.ranges.as_deref(), !entry.xattrs.is_empty())?;
        self.record(place, entry, &left_out)
    }

    /// Sets the owner, then the mode, then the attributes, because an owner change clears set-id bits and capabilities.
    /// Returns the names of the attributes that could not be set.
    fn set_metadata(
        &self,
        file: impl AsFd,
        metadata: &TarMetadata,
        mode: Option<u32>,
        xattrs: &Xattrs,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        if let Some((uid, gid)) = self.owner(metadata) {
            rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(Fault::io("set the owner of"))?;
        }
        if let Some(mode) = mode {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(Fault::io("set the mode of"))?;
        }
        let left_out = xattr::set(&file, xattrs, self.options)?;
        rustix::fs::futimens(&file, &self.times(metadata)).map_err(Fault::io("set the times of"))?;
        Ok(left_out)
    }

    /// Removes unverified metadata of an earlier attempt. An owner change clears capabilities, even to the same owner.
    fn clear_metadata(&self, file: &File, metadata: &TarMetadata) -> Result<(), Fault> {
        let (uid, gid) = self.owner(metadata).unwrap_or(self.process);
        rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(Fault::io("set the owner of"))?;
        xattr::clear(file)
    }

    /// `known` is the number of bytes that the file already has.
    fn copy_whole(
        &mut self,
        file: &File,
        length: u64,
        (path, known): (&[u8], u64),
        reader: &mut Reader<'_>,
    ) -> Result<(), Fault> {
        let is_large = length >= self.options.direct_min;
        let Some(_writer) = is_large.then(|| self.options.memory.budget.direct_writer()).flatten() else {
            return self.copy(file, (0, length), Some((path, known)), None, reader);
        };
        let known = direct_io::aligned(known);
        thread::scope(|scope| {
            let direct = DirectWriter::start(scope, file, known);
            self.copy(file, (0, length), Some((path, known)), direct, reader)
        })
    }

    /// Copies data into a file. For a whole file, `whole` is its path and the number of bytes that it already has; for
    /// a direct writer, this number is aligned.
    fn copy(
        &mut self,
        file: &File,
        range: (u64, u64),
        whole: Option<(&[u8], u64)>,
        mut direct: Option<DirectWriter<'_>>,
        reader: &mut Reader<'_>,
    ) -> Result<(), Fault> {
        let copied = self.copy_chunks(file, range, whole, direct.as_mut(), reader);
        if let (Some(direct), Some((path, _))) = (direct, whole) {
            // After a failed read, too: the next attempt continues the layer after the bytes that the journal has.
            match direct.finish() {
                Ok(written) => reader.content_written(written, path),
                Err(error) => return copied.and(Err(Fault::io("write")(error))),
            }
        }
        copied
    }

    fn copy_chunks(
        &mut self,
        file: &File,
        (mut offset, length): (u64, u64),
        whole: Option<(&[u8], u64)>,
        mut direct: Option<&mut DirectWriter<'_>>,
        reader: &mut Reader<'_>,
    ) -> Result<(), Fault> {
        let end = offset + length;
        while offset < end {
            let chunk = reader.fill()?;
            let chunk = &chunk[..chunk.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX))];
            let length = chunk.len();
            let known = whole.map_or(0, |(_, known)| known.saturating_sub(offset)).min(length as u64);
            let (known_part, fresh) = chunk.split_at(usize::try_from(known).unwrap_or(length));
            let written = match &mut direct {
                Some(direct) => direct.append(fresh).map(|written| known_part.len() + written),
                None => file.write_all_at(fresh, offset + known).map(|()| length),
            };
            let written = written.map_err(Fault::io("write"))?;
            self.manifest.wrote(chunk);
            match whole {
                Some((path, _)) => {
                    reader.consume_content(length);
                    reader.content_written(written, path);
                }
                None => reader.consume(length),
            }
            offset += length as u64;
            self.gauge.wrote(length)?;
        }
        Ok(())
    }

    fn directory(&mut self, place: &Place, entry: &TarEntry) -> Result<(), Fault> {
        let make = || {
            // New entries below would inherit the set-group-id bit, so that bit is set at the end.
            let mode = Mode::from_raw_mode(entry.metadata.mode & 0o777 | DIRECTORY_OPEN);
            rustix::fs::mkdirat(&place.parent, place.name.as_slice(), mode)
        };
        let mut made = make();
        let is_no_directory = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory;
        let replaces =
            made == Err(Errno::EXIST) && look(place.parent.as_fd(), &place.name)?.as_ref().is_none_or(is_no_directory);
        if replaces {
            self.replace(place)?;
            made = make();
            if self.options.rules == EntryRules::Own {
                // The entry replaces a file of this layer, so the directory hides lower layers.
                self.set_opacity(&place.path, Opacity::Opaque)?;
            }
        }
        match made {
            Ok(()) => self.report.disk_bytes += DIRECTORY_COST,
            Err(Errno::EXIST) if !replaces => {}
            Err(errno) => return Err(Fault::io("make the directory")(errno)),
        }
        self.tree.deferred.directory(&place.path, entry.metadata, entry.xattrs.clone())
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
        self.finish_special(place, entry, FileType::Symlink)
    }

    fn device(&mut self, place: &Place, entry: &TarEntry) -> Result<(), Fault> {
        let (major, minor) = entry.device;
        let kind = match entry.kind {
            TarKind::BlockDevice => FileType::BlockDevice,
            _ => FileType::CharacterDevice,
        };
        let record = DeviceRecord { block: kind == FileType::BlockDevice, major, minor };
        let in_range = (0..=MAJOR_MAX).contains(&major) && (0..=MINOR_MAX).contains(&minor);
        // A character device 0:0 would be a whiteout.
        let whiteout = (major, minor) == (0, 0) && kind == FileType::CharacterDevice;
        if self.options.ownership == Ownership::Apply && in_range && !whiteout {
            let part = |number| u32::try_from(number).expect("is in range");
            let made = self.special(place, entry, kind, rustix::fs::makedev(part(major), part(minor)));
            if !made.as_ref().is_err_and(|fault| fault.errno() == Some(Errno::PERM)) {
                return made;
            }
        }
        let unmade = OwnershipRecord::new(&place.path, &entry.metadata, &[]);
        self.leave_out(place, OwnershipRecord { device: Some(record), ..unmade })
    }

    fn leave_out(&mut self, place: &Place, record: OwnershipRecord) -> Result<(), Fault> {
        // A whiteout at this path stays, so that the layer hides the path of lower layers even without the device.
        if !self.tree.deferred.notes.get(&place.path).is_some_and(|note| note.whiteout) {
            self.replace(place)?;
        }
        self.tree.deferred.record(&place.path, record)
    }

    fn special(&mut self, place: &Place, entry: &TarEntry, kind: FileType, device: u64) -> Result<(), Fault> {
        let mode = Mode::from_raw_mode(entry.metadata.mode & 0o777);
        let make = || rustix::fs::mknodat(&place.parent, place.name.as_slice(), kind, mode, device);
        self.replacing(place, "make the node", make)?;
        self.finish_special(place, entry, kind)
    }

    fn finish_special(&mut self, place: &Place, entry: &TarEntry, kind: FileType) -> Result<(), Fault> {
        // Links, devices and pipes cannot have the attributes that layers may set.
        self.set_metadata_at(place, entry, kind, self.owner(&entry.metadata))?;
        self.manifest.special(&place.path, place.at(), &entry.link, false)?;
        self.record(place, entry, &[])
    }

    /// For an entry that must not or cannot be opened.
    fn set_metadata_at(
        &self,
        place: &Place,
        entry: &TarEntry,
        kind: FileType,
        owner: Option<(Uid, Gid)>,
    ) -> Result<(), Fault> {
        let (parent, name, metadata) = (&place.parent, place.name.as_slice(), &entry.metadata);
        if let Some((uid, gid)) = owner {
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(Fault::io("set the owner of"))?;
        }
        if kind == FileType::RegularFile && !entry.xattrs.is_empty() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = patiently(|| rustix::fs::openat(parent, name, flags, Mode::empty()));
            xattr::set(&file.map_err(Fault::io("open"))?, &entry.xattrs, self.options)?;
        }
        if kind != FileType::Symlink {
            // `chmod` follows links, but this node is no link, and no other process writes to the directory.
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(metadata.mode), AtFlags::empty())
                .map_err(Fault::io("set the mode of"))?;
        }
        rustix::fs::utimensat(parent, name, &self.times(metadata), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Fault::io("set the times of"))
    }

    /// Hides a name of lower layers, unless this layer has the name.
    fn hide(&mut self, place: &Place) -> Result<(), Fault> {
        if let Some(own) = look(place.parent.as_fd(), &place.name)? {
            return match FileType::from_raw_mode(own.st_mode) {
                FileType::Directory => self.set_opacity(&place.path, Opacity::Opaque),
                _ => Ok(()),
            };
        }
        let needed = self.options.ownership.hide(place.parent.as_fd(), &place.name)?;
        self.tree.deferred.note(&place.path)?.whiteout = true;
        self.manifest.whiteout(&place.path, place.at())?;
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
        self.take_replaced = true;
        if self.options.folder.is_some() {
            return Err(Fault::refused("an earlier entry of the archive has the same name"));
        }
        let Freed { bytes, disk_bytes } = self.tree.remove(&place.parent, &place.name)?;
        self.report.bytes = self.report.bytes.saturating_sub(bytes);
        self.report.disk_bytes = self.report.disk_bytes.saturating_sub(disk_bytes);
        self.manifest.record(&place.path, FileRecord::Removed)
    }

    /// The owner to set; `None` if the file keeps the owner of the process.
    fn owner(&self, metadata: &TarMetadata) -> Option<(Uid, Gid)> {
        let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
        (self.options.ownership == Ownership::Apply && (uid, gid) != self.process).then_some((uid, gid))
    }

    fn times(&self, metadata: &TarMetadata) -> Timestamps {
        let timespec = |time: Time| {
            let is_taken = self.options.rules == EntryRules::Own || (0..=SECONDS_MAX).contains(&time.secs);
            let (tv_sec, tv_nsec) = if is_taken { (time.secs, time.nanos.into()) } else { (0, 0) };
            Timespec { tv_sec, tv_nsec }
        };
        Timestamps { last_access: timespec(metadata.atime), last_modification: timespec(metadata.mtime) }
    }

    fn record(&mut self, place: &Place, entry: &TarEntry, left_out: &[Vec<u8>]) -> Result<(), Fault> {
        let record = self.not_on_disk(&place.path, &entry.metadata, entry.metadata.mode, left_out);
        record.map_or(Ok(()), |record| self.tree.deferred.record(&place.path, record))
    }

    /// The metadata that is not on the disk, of a path that has `mode` there. Most paths need no record.
    fn not_on_disk(&self, path: &[u8], of: &TarMetadata, mode: u32, left_out: &[Vec<u8>]) -> Option<OwnershipRecord> {
        let is_owned = self.options.ownership == Ownership::Apply || (of.uid, of.gid, of.mode) == (0, 0, mode);
        (!is_owned || !left_out.is_empty()).then(|| OwnershipRecord::new(path, of, left_out))
    }

    fn finish_note(&mut self, path: &[u8], mut note: Note) -> Result<(), Fault> {
        self.gauge.check_cancelled()?;
        if note.implicit || note.directory.is_some() || note.opacity != Opacity::Merged {
            let directory = self.open_real(path)?;
            if let Some((name, value)) = self.options.ownership.xattr(note.opacity) {
                rustix::fs::fsetxattr(&*directory, name, value, rustix::fs::XattrFlags::empty())
                    .map_err(Fault::io("mark as opaque the directory"))?;
            }
            if let Some(DirectoryMeta { metadata, xattrs }) = note.directory.as_deref() {
                let mode = match self.options.ownership {
                    Ownership::Apply => metadata.mode,
                    Ownership::Record => metadata.mode | DIRECTORY_OPEN,
                };
                let left_out = self.set_metadata(&*directory, metadata, Some(mode), xattrs)?;
                note.record = self.not_on_disk(path, metadata, mode, &left_out).map(Box::new);
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

    fn open_real(&mut self, path: &[u8]) -> Result<Rc<Directory>, Fault> {
        let directory = self.tree.real_directory(path)?;
        directory.ok_or_else(|| Fault::io("find again the directory")(Errno::NOENT))
    }
}

/// Links the file of an earlier attempt, so that its bytes are written once. Returns `None` if the caller must write
/// the file anew, for example because it has more bytes than the entry.
fn link_reusable(place: &Place, found: &ReusableFile, stored: u64) -> Option<File> {
    let name = place.name.as_slice();
    if found.path != place.path {
        return None;
    }
    rustix::fs::linkat(&found.root, found.path.as_slice(), &place.parent, name, AtFlags::empty()).ok()?;
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let open = || rustix::fs::openat(&place.parent, name, flags, Mode::empty());
    let stat = look(place.parent.as_fd(), name).ok().flatten().filter(is_file);
    let file = stat.and_then(|_| patiently(open).ok()).map(File::from);
    let is_entrys = |metadata: Metadata| metadata.is_file() && (found.length..=stored).contains(&metadata.len());
    let file = file.filter(|file| file.metadata().is_ok_and(is_entrys));
    if file.is_none() {
        // If this removal fails, the caller replaces the file.
        let _ = rustix::fs::unlinkat(&place.parent, name, AtFlags::empty());
    }
    file
}
