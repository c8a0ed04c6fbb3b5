//! Hard links, and the metadata that their entries set on the target.

use std::os::fd::AsFd as _;

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
};

use super::{
    Place, Writer,
    deferred_metadata::encoded,
    manifest_writer::FileRecord,
    tree::Missing,
    whiteout::{is_whiteout_device, look},
    xattr,
};
use crate::{
    scarce::patiently,
    unpack::{
        EntryRules, Ownership,
        archive::TarEntry,
        error::{Fault, shown},
        name,
    },
};

impl Writer<'_> {
    /// By OCI rules the entry's own metadata is ignored: writers repeat the target's.
    pub(super) fn hard_link(&mut self, place: &Place, entry: &TarEntry) -> Result<(), Fault> {
        let target = name::clean(&entry.link, "hard link target", &self.gauge.limits)?;
        let missing = || {
            let target = shown(&entry.link);
            Err(Fault::refused(format!("it is a hard link to `{target}`, which this layer does not have")))
        };
        let (target_parent, target_name) = name::split(&target);
        if target_name.is_empty() {
            return Err(Fault::refused("it is a hard link to the layer's root"));
        }
        let Some(target_parent) = self.tree.directory(target_parent, Missing::Report)? else {
            return missing();
        };
        let from = Place { parent: target_parent, name: target_name.to_vec() };
        let from_path = from.path();
        let note = self.tree.deferred.get(&from_path);
        if let Some(device) = note.and_then(|note| note.record.clone()).filter(|record| record.device.is_some()) {
            return self.leave_out(place, *device);
        }
        let hidden = note.is_some_and(|note| note.whiteout);
        let Some(stat) = look(from.parent.as_fd(), &from.name)?.filter(|stat| !hidden && !is_whiteout_device(stat))
        else {
            return missing();
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let target = shown(&entry.link);
            return Err(Fault::refused(format!("it is a hard link to the directory `{target}`")));
        }
        let link = || {
            let (from_name, name) = (from.name.as_slice(), place.name.as_slice());
            rustix::fs::linkat(&from.parent, from_name, &place.parent, name, AtFlags::empty())
        };
        let made = match link() {
            Err(Errno::EXIST) => {
                let here = look(place.parent.as_fd(), &place.name)?;
                if here.is_some_and(|here| (here.st_dev, here.st_ino) == (stat.st_dev, stat.st_ino)) {
                    return Ok(());
                }
                self.replace(place)?;
                link()
            }
            made => made,
        };
        match made {
            Ok(()) => {}
            // The target was inside the replaced tree.
            Err(Errno::NOENT) => return missing(),
            Err(errno) => return Err(Fault::Io { action: "make the hard link", errno }),
        }
        if self.rules == EntryRules::Containerd {
            self.apply_again(place, entry, FileType::from_raw_mode(stat.st_mode))?;
        }
        if self.manifest.is_on() {
            self.manifest.record(&place.path(), FileRecord::HardLink(from_path.clone()))?;
        }
        let record = self.tree.deferred.get(&from_path).and_then(|note| note.record.clone());
        if let Some(mut record) = record {
            let path = place.path();
            record.path = encoded(&path);
            self.tree.deferred.record(&path, *record)?;
        }
        Ok(())
    }

    /// Sets the metadata of a hard link's target. The owner is set even when it is the same: that clears set-id bits
    /// and capabilities, and the entry restores those that stay.
    fn apply_again(&mut self, place: &Place, entry: &TarEntry, kind: FileType) -> Result<(), Fault> {
        let (parent, name) = (&place.parent, place.name.as_slice());
        if self.ownership == Ownership::Apply {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(Fault::io("set the owner of"))?;
        }
        if kind == FileType::RegularFile && !entry.xattrs.is_empty() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = patiently(|| rustix::fs::openat(parent, name, flags, Mode::empty()));
            xattr::set(&file.map_err(Fault::io("open"))?, &entry.xattrs, self.strictness())?;
        }
        if kind != FileType::Symlink {
            // `chmod` would follow a link; the node is not a link, and no other process writes to the directory.
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
                .map_err(Fault::io("set the mode of"))?;
        }
        rustix::fs::utimensat(parent, name, &self.times(entry.mtime, entry.atime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Fault::io("set the times of"))
    }
}
