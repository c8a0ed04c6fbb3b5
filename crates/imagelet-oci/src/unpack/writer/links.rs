//! Hard links, and the metadata that their entries set on the target.

use std::os::fd::AsFd as _;

use rustix::{
    fs::{AtFlags, FileType, Gid, Uid},
    io::Errno,
};

use super::{
    Place, Writer,
    deferred_metadata::{OwnershipRecord, encoded},
    manifest_writer::FileRecord,
    tree::Missing,
    whiteout::{is_whiteout_device, look},
};
use crate::unpack::{
    EntryRules, Ownership,
    archive::TarEntry,
    error::{Fault, shown},
    name,
};

impl Writer<'_> {
    /// The OCI rules ignore the metadata of a hard link's entry, because writers repeat the target's metadata.
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
        let from = Place::new(target_parent, target_name);
        let note = self.tree.deferred.notes.get(&from.path);
        if let Some(device) = note.and_then(|note| note.record.clone()).filter(|record| record.device.is_some()) {
            return self.leave_out(place, OwnershipRecord { path: encoded(&place.path), ..*device });
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
        // In another folder, the relative target of a symbolic link may lead out of the artifact.
        if self.options.folder.is_some() && FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            let target = shown(&entry.link);
            return Err(Fault::refused(format!("it is a hard link to the symbolic link `{target}`")));
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
            // The hard link has replaced the directory that contained its target.
            Err(Errno::NOENT) => return missing(),
            Err(errno) => return Err(Fault::io("make the hard link")(errno)),
        }
        if self.options.rules == EntryRules::Containerd {
            // Setting an owner, even the same owner, clears set-id bits and capabilities. The entry then sets its own.
            let owner = (Uid::from_raw(entry.metadata.uid), Gid::from_raw(entry.metadata.gid));
            let owner = (self.options.ownership == Ownership::Apply).then_some(owner);
            self.set_metadata_at(place, entry, FileType::from_raw_mode(stat.st_mode), owner)?;
        }
        let record = self.tree.deferred.notes.get(&from.path).and_then(|note| note.record.clone());
        self.manifest.record(&place.path, FileRecord::HardLink(from.path))?;
        if let Some(record) = record {
            self.tree.deferred.record(&place.path, OwnershipRecord { path: encoded(&place.path), ..*record })?;
        }
        Ok(())
    }
}
