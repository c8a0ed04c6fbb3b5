//! Overlay file systems: mounts them detached, and probes whether they are in use.
//!
//! The procedure works on every kernel from 5.10 on. The options of an overlay have to fit in one page, so short links
//! (`0:1:2`) in the working folder name the layers. `lowerdir+` needs no links, but needs Linux 6.8. A thread with a
//! separate working folder and mount namespace mounts the overlay with mount(2) and returns a detached clone. The end
//! of the namespace removes the mount, and no other mount table contains it. If the root is no mount point, as in a
//! plain chroot, the namespace is not private. Then fsconfig(2) makes the overlay, which can have fewer layers.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

use imagelet_core::lock::locked;
use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, mount_change, move_mount,
        open_tree,
    },
    thread::UnshareFlags,
};

pub(crate) const KERNEL_MIN: &str = "Linux 5.10";

/// The folder of links to the layers. The link `0` leads to the topmost layer.
const LOWER: &str = "lower";
/// The top layer. It has the metadata of folders, and the data that is written into a writable mount.
const UPPER: &str = "upper";
const WORK: &str = "work";

#[derive(Clone, Debug)]
pub(crate) struct OverlayFolder(pub(crate) PathBuf);

impl OverlayFolder {
    /// Creates the folder with links to `layers`, topmost first. Without layers, one empty folder replaces the links.
    /// The caller creates `upper/` afterwards.
    pub(crate) fn create(&self, layers: &[PathBuf]) -> io::Result<()> {
        fs::create_dir(&self.0)?;
        fs::create_dir(self.0.join(WORK))?;
        fs::create_dir(self.0.join(LOWER))?;
        if layers.is_empty() {
            fs::create_dir(self.0.join(LOWER).join("0"))?;
        }
        for (at, layer) in layers.iter().enumerate() {
            symlink(layer, self.0.join(LOWER).join(at.to_string()))?;
        }
        Ok(())
    }

    pub(crate) fn upper(&self) -> PathBuf {
        self.0.join(UPPER)
    }

    /// Mounts the overlay detached. `layers` is the number of layers. The mount ends when the descriptor is closed.
    pub(crate) fn mount_detached(&self, layers: usize, source: &str, flags: MountFlags) -> io::Result<OwnedFd> {
        let options = CString::new(options(layers)).map_err(|_| io::ErrorKind::InvalidInput)?;
        let made = thread::scope(|scope| {
            scope
                .spawn(|| -> io::Result<OwnedFd> {
                    let is_private = own_namespace()?;
                    let lower = self.0.join(LOWER);
                    rustix::process::chdir(&lower)?;
                    if !is_private {
                        return mount_by_context(layers, source, flags);
                    }
                    mount(source, &lower, "overlay", flags, options.as_c_str())?;
                    Ok(open_tree(CWD, &lower, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?)
                })
                .join()
        });
        made.unwrap_or_else(|_| Err(io::Error::other("the thread that mounts ended early")))
    }

    /// Whether an overlay uses this folder, even in another mount namespace, under another path, or only by open files.
    /// The kernel rejects a second overlay with `index=on` over an upper folder in use. So the probe creates such an
    /// overlay without mounting it, and drops it at once. An error other than this rejection is returned.
    pub(crate) fn is_in_use(&self) -> io::Result<bool> {
        // One probe runs at a time: each of two parallel probes would find the overlay of the other.
        static PROBE: Mutex<()> = Mutex::new(());
        let _alone = locked(&PROBE);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.0, flags, Mode::empty())?;
        // A short path, which has no characters that are special in mount options.
        let place = |name: &str| format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_flag(&context, "ro")?;
        fsconfig_set_string(&context, "index", "on")?;
        fsconfig_set_string(&context, "lowerdir", place(LOWER).as_str())?;
        fsconfig_set_string(&context, "upperdir", place(UPPER).as_str())?;
        fsconfig_set_string(&context, "workdir", place(WORK).as_str())?;
        match fsconfig_create(&context) {
            Ok(()) => Ok(false),
            Err(Errno::BUSY) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) fn attach(mount: &OwnedFd, target: &Path) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn options(layers: usize) -> String {
    format!("lowerdir={},upperdir=../{UPPER},workdir=../{WORK}", lower_folders(layers))
}

fn lower_folders(layers: usize) -> String {
    (0..layers.max(1)).map(|at| at.to_string()).collect::<Vec<_>>().join(":")
}

/// Gives the calling thread a new mount namespace and working folder. Returns whether it is private: its mounts are
/// invisible outside, and unmounts outside propagate into it. It is not private if the root is no mount point.
fn own_namespace() -> io::Result<bool> {
    #[expect(deprecated, reason = "the successor is unsafe, for descriptors that stay with a thread; these do not")]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    match mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The kernel's limit of one fsconfig(2) value, with its final NUL.
const CONTEXT_VALUE_MAX: usize = 256;

/// Mounts an overlay detached, without a private namespace, for fewer layers. The working folder must be `lower/`.
fn mount_by_context(layers: usize, source: &str, flags: MountFlags) -> io::Result<OwnedFd> {
    let lower = lower_folders(layers);
    if lower.len() >= CONTEXT_VALUE_MAX {
        return Err(io::Error::other(format!(
            "the root of this process is no mount point, and there an image may have about 80 layers, not {layers}\n\
             hint: make it one before the chroot: `mount --bind ROOT ROOT`"
        )));
    }
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", source)?;
    fsconfig_set_string(&context, "lowerdir", lower.as_str())?;
    fsconfig_set_string(&context, "upperdir", format!("../{UPPER}").as_str())?;
    fsconfig_set_string(&context, "workdir", format!("../{WORK}").as_str())?;
    let mut attributes = MountAttrFlags::empty();
    for (flag, attribute) in [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
    ] {
        attributes.set(attribute, flags.contains(flag));
    }
    if flags.contains(MountFlags::RDONLY) {
        fsconfig_set_flag(&context, "ro")?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_500_layers_fit_in_the_smallest_page() {
        assert_eq!(options(3), "lowerdir=0:1:2,upperdir=../upper,workdir=../work");
        assert_eq!(options(0), options(1), "overlayfs takes no empty list");
        assert!(options(500).len() < 4096, "{}", options(500).len());
        assert!(lower_folders(80).len() < CONTEXT_VALUE_MAX, "{}", lower_folders(80).len());
    }
}
