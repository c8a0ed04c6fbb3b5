//! Extended attributes: which of them a layer may set, and how.

use rustix::{buffer::spare_capacity, fd::AsFd, fs::XattrFlags, io::Errno};

use crate::unpack::{
    EntryRules, Ownership, UnpackOptions,
    error::{Fault, shown},
};

pub(crate) const VALUE_MAX: usize = 64 << 10;
/// The kernel's limit of an inode's list of names, each with a final NUL.
pub(crate) const NAMES_MAX: usize = 64 << 10;

/// Whether a layer may set an attribute. It must not set the attributes of overlayfs, which imagelet sets, or
/// `trusted.*`, which belong to programs of the host.
pub(crate) fn allowed(name: &[u8], rules: EntryRules) -> bool {
    if rules == EntryRules::Containerd {
        return !name.contains(&0) && !name.starts_with(b"trusted.");
    }
    if name.contains(&0) || name.starts_with(b"user.overlay.") {
        return false;
    }
    name.starts_with(b"user.") || name == b"security.capability" || name.starts_with(b"system.posix_acl_")
}

/// Sets attributes. With [`Ownership::Record`], returns the names that the kernel forbids or does not support. With
/// containerd's rules, skips an unsupported attribute. Any other failure fails the entry.
pub(crate) fn set(
    file: impl AsFd,
    xattrs: &[(Vec<u8>, Vec<u8>)],
    options: &UnpackOptions,
) -> Result<Vec<Vec<u8>>, Fault> {
    let mut left_out = Vec::new();
    for (name, value) in xattrs {
        let result = rustix::fs::fsetxattr(&file, name.as_slice(), value, XattrFlags::empty());
        match (result, options.ownership) {
            (Ok(()), _) => {}
            (Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS), Ownership::Record) => left_out.push(name.clone()),
            (Err(Errno::NOTSUP), Ownership::Apply) if options.rules == EntryRules::Containerd => {}
            // The cause is the archive, not the disk: the value is invalid or too large.
            (Err(errno @ (Errno::INVAL | Errno::RANGE | Errno::TOOBIG)), _) => {
                return Err(not_taken(name, value, errno));
            }
            (Err(errno @ Errno::NOSPC), _) if has_space(&file, value) => return Err(not_taken(name, value, errno)),
            (Err(errno), _) => return Err(Fault::io("set an extended attribute of")(errno)),
        }
    }
    Ok(left_out)
}

pub(crate) fn clear(file: impl AsFd) -> Result<(), Fault> {
    let mut names = Vec::with_capacity(NAMES_MAX);
    match rustix::fs::flistxattr(&file, spare_capacity(&mut names)) {
        Ok(_) | Err(Errno::NOTSUP) => {}
        Err(errno) => return Err(Fault::io("list the extended attributes of")(errno)),
    }
    // Other `security.*` attributes stay, because they are labels of the host.
    let is_layers =
        |name: &&[u8]| !name.is_empty() && (!name.starts_with(b"security.") || *name == b"security.capability");
    for name in names.split(|&byte| byte == 0).filter(is_layers) {
        rustix::fs::fremovexattr(&file, name).map_err(Fault::io("remove an extended attribute of"))?;
    }
    Ok(())
}

fn not_taken(name: &[u8], value: &[u8], errno: Errno) -> Fault {
    let (name, length) = (shown(name), value.len());
    Fault::refused(format!("the file system does not take its extended attribute `{name}` of {length} bytes ({errno})"))
}

/// Whether the disk has space, so that `ENOSPC` has another cause: ext4 returns it for a value larger than its block.
fn has_space(on: impl AsFd, value: &[u8]) -> bool {
    const SPARE: u64 = 1 << 20;
    rustix::fs::fstatvfs(on).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) > SPARE + value.len() as u64)
}
