//! An image as a directory tree, by overlayfs, without a runtime.
//!
//! What is mounted is written down in `mounts/KEY.json`, where KEY is the digest of the target's path, and believed only
//! as far as the kernel's own table agrees: a mount that is gone holds nothing. Where the store's own file system takes
//! no writes, the note is in `/run/imagelet/mounts/STORE/`, STORE being the digest of the store's path.

mod parents;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use imagelet_core::{
    image::{Digest, ImageId, ImageSpec},
    runtime::{Container, ContainerService, ContainerState, RuntimeError, RuntimeErrorKind, Sandbox},
};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use serde::{Deserialize, Serialize};

use crate::{
    failpoint::Step,
    store::{Store, replace_file, storage_error},
};

/// An image mounted somewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedImage {
    /// Where.
    pub target: PathBuf,
    /// The image's id.
    pub image: String,
    /// Whether it can be written; what is written goes with the mount.
    pub writable: bool,
    /// When, in seconds since 1970.
    pub mounted_at: u64,
}

/// Mounts an image of the store. Blocks on the disk.
pub(crate) fn mount(store: &Store, id: &ImageId, target: &Path, writable: bool) -> Result<MountedImage, RuntimeError> {
    if writable {
        store.check_writable()?;
    }
    let failed = |error: io::Error| {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let error = storage_error(format!("could not mount image `{id}` on `{}`", target.display()), error);
        if denied { error.with_hint("mounting needs root") } else { error }
    };
    let target = target.canonicalize().map_err(failed)?;
    if !target.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let _turn = store.mounting();
    if mounts(store)?.iter().any(|mounted| mounted.target == target) {
        return Err(RuntimeError::new(
            RuntimeErrorKind::InUse,
            format!("`{}` already shows an image", target.display()),
        )
        .with_hint(format!("imagelet unmount {}", target.display())));
    }
    let (record, _) = store
        .image(id)
        .ok_or_else(|| RuntimeError::new(RuntimeErrorKind::NotFound, format!("image `{id}` is not here")))?;
    let work = Work::prepare(store, &target, writable).map_err(failed)?;
    Step::MountPrepared.reach();
    let mounted = MountedImage {
        target: target.clone(),
        image: id.to_string(),
        writable,
        mounted_at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
    };
    // Written down first: a crash in between leaves a note that the kernel's table contradicts, not a hidden use.
    replace_file(&work.note(), &serde_json::to_vec(&mounted).expect("a mount is JSON")).map_err(failed)?;
    Step::MountNoted.reach();
    let diff_ids = record.diff_ids();
    let mut layers = Vec::new();
    for layer in topmost(&diff_ids) {
        layers.push(layer);
        if store.layer(layer).is_some_and(|layer| layer.root_opaque) {
            break;
        }
    }
    let mut lower: Vec<PathBuf> = layers.iter().map(|layer| store.layer_tree(layer)).collect();
    match parents::build(store, &layers, &work.parents()) {
        Ok(true) => lower.insert(0, work.parents()),
        Ok(false) => {}
        Err(error) => {
            work.discard();
            return Err(failed(error));
        }
    }
    Step::MountParents.reach();
    // Overlayfs without an upper layer wants at least two lower ones.
    while lower.len() < 2 {
        lower.push(work.empty());
    }
    if let Err(error) = overlay(&lower, writable.then_some(&work), &target) {
        work.discard();
        return Err(failed(error));
    }
    Step::MountShown.reach();
    Ok(mounted)
}

/// Each layer once, topmost first. Overlayfs refuses a folder twice, and a layer's lower occurrence shows nothing that
/// the upper one does not show over it.
fn topmost(layers: &[Digest]) -> impl Iterator<Item = &Digest> {
    layers.iter().enumerate().rev().filter(|(at, layer)| !layers[at + 1..].contains(layer)).map(|(_, layer)| layer)
}

/// Takes a mount away, and what was written into it.
pub(crate) fn unmount_image(store: &Store, target: &Path) -> Result<(), RuntimeError> {
    let failed = |error: io::Error| storage_error(format!("could not unmount `{}`", target.display()), error);
    let target = target.canonicalize().map_err(failed)?;
    if !mounts(store)?.iter().any(|mounted| mounted.target == target) {
        return Err(RuntimeError::new(
            RuntimeErrorKind::NotFound,
            format!("no image of this store is mounted on `{}`", target.display()),
        ));
    }
    unmount(&target, UnmountFlags::empty()).map_err(|error| {
        let busy = error == rustix::io::Errno::BUSY;
        let error = failed(error.into());
        if busy { error.with_hint("something still works in there; `fuser -vm DIR` names it") } else { error }
    })?;
    Step::UnmountHidden.reach();
    Work::noted(store, &target).discard();
    Step::UnmountDone.reach();
    Ok(())
}

/// What is mounted now. Notes whose mount is gone are removed.
pub(crate) fn mounts(store: &Store) -> Result<Vec<MountedImage>, RuntimeError> {
    let mut mounted = Vec::new();
    let mut notes = notes(&own_folder(store))?;
    notes.extend(self::notes(&volatile_folder(store))?);
    if notes.is_empty() {
        return Ok(mounted);
    }
    let table = fs::read("/proc/self/mountinfo")
        .map_err(|error| storage_error("could not read the kernel's table of mounts".to_owned(), error))?;
    for path in notes {
        let note = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<MountedImage>(&bytes).ok());
        match note {
            Some(note) if shows_overlay(&table, &note.target) => mounted.push(note),
            Some(_) if !store.is_read_only() => Work { folder: path.with_extension("") }.discard(),
            _ => {
                tracing::warn!(path = %path.display(), "a mount's note cannot be read or is out of date; it is passed over");
            }
        }
    }
    mounted.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(mounted)
}

/// The notes in a folder, which need not be there.
fn notes(folder: &Path) -> Result<Vec<PathBuf>, RuntimeError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()),
    };
    let entries = entries.map_err(|error| storage_error(format!("could not read `{}`", folder.display()), error))?;
    Ok(entries.into_iter().filter(|path| path.extension().is_some_and(|end| end == "json")).collect())
}

fn own_folder(store: &Store) -> PathBuf {
    store.root().join("mounts")
}

/// Where a store that takes no writes has its mounts noted; gone after a reboot, as they are.
fn volatile_folder(store: &Store) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    Path::new(VOLATILE_MOUNTS).join(Digest::of(store.root().as_os_str().as_bytes()).hex())
}

/// Whether the kernel shows an overlay of ours at a place. Paths there have spaces and the like as octal escapes.
fn shows_overlay(table: &[u8], target: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let mut escaped = Vec::new();
    for byte in target.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
            other => escaped.push(*other),
        }
    }
    table.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        fields.nth(4) == Some(&escaped[..]) && line.windows(SOURCE.len()).any(|part| part == SOURCE.as_bytes())
    })
}

/// Above the notes of stores that take no writes.
const VOLATILE_MOUNTS: &str = "/run/imagelet/mounts";

/// The mount's source, as the kernel's table shows it.
const SOURCE: &str = "imagelet";

fn overlay(lower: &[PathBuf], upper: Option<&Work>, target: &Path) -> io::Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", SOURCE)?;
    for layer in lower {
        fsconfig_set_string(&context, "lowerdir+", layer.as_path())?;
    }
    if let Some(work) = upper {
        fsconfig_set_string(&context, "upperdir", work.folder.join("upper").as_path())?;
        fsconfig_set_string(&context, "workdir", work.folder.join("work").as_path())?;
    } else {
        fsconfig_set_flag(&context, "ro")?;
    }
    fsconfig_create(&context)?;
    let attributes = if upper.is_none() { MountAttrFlags::MOUNT_ATTR_RDONLY } else { MountAttrFlags::empty() };
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    move_mount(&mount, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

/// A mount's note and its folder.
struct Work {
    folder: PathBuf,
}

impl Work {
    fn at(store: &Store, target: &Path) -> Self {
        use std::os::unix::ffi::OsStrExt as _;
        let key = Digest::of(target.as_os_str().as_bytes());
        let folder = if store.is_read_only() { volatile_folder(store) } else { own_folder(store) };
        Self { folder: folder.join(key.hex()) }
    }

    /// Where the note of a mount is, which may have been made when the store was read-only, or was not.
    fn noted(store: &Store, target: &Path) -> Self {
        let here = Self::at(store, target);
        let Some(key) = here.folder.file_name() else { return here };
        let places = [own_folder(store), volatile_folder(store)].map(|folder| Self { folder: folder.join(key) });
        places.into_iter().find(|work| work.note().exists()).unwrap_or(here)
    }

    fn prepare(store: &Store, target: &Path, writable: bool) -> io::Result<Self> {
        let work = Self::at(store, target);
        crate::store::remove_tree(&work.folder)?;
        fs::create_dir_all(work.empty())?;
        if writable {
            fs::create_dir(work.folder.join("upper"))?;
            fs::create_dir(work.folder.join("work"))?;
        }
        Ok(work)
    }

    fn note(&self) -> PathBuf {
        self.folder.with_extension("json")
    }

    fn parents(&self) -> PathBuf {
        self.folder.join("parents")
    }

    fn empty(&self) -> PathBuf {
        self.folder.join("empty")
    }

    fn discard(&self) {
        let removed = crate::store::remove_tree(&self.note()).and_then(|()| {
            Step::UnmountNote.reach();
            crate::store::remove_tree(&self.folder)
        });
        if let Err(error) = removed {
            tracing::warn!(path = %self.folder.display(), %error, "could not remove a mount's folder");
        }
        // The last note of a store takes its folder along; an error says that it was not the last.
        if let Some(store) = self.folder.parent().filter(|parent| parent.starts_with(VOLATILE_MOUNTS)) {
            let _ = fs::remove_dir(store);
        }
    }
}

/// Mounts seen as containers, so that what is mounted counts as in use.
#[derive(Clone, Debug)]
pub(crate) struct MountUses(pub(crate) Arc<Store>);

#[async_trait]
impl ContainerService for MountUses {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let store = Arc::clone(&self.0);
        let mounted = tokio::task::spawn_blocking(move || mounts(&store))
            .await
            .map_err(|error| RuntimeError::defect("could not list mounts").caused_by(error))??;
        Ok(mounted
            .into_iter()
            .map(|mount| Container {
                id: format!("mount:{}", mount.target.display()),
                sandbox_id: String::new(),
                name: mount.target.display().to_string(),
                image: ImageSpec::new(&mount.image),
                image_ref: mount.image.clone(),
                image_id: mount.image,
                state: ContainerState::Running,
                created_at: SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(mount.mounted_at),
                labels: std::collections::BTreeMap::default(),
            })
            .collect())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn mounted_images(&self, _container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }

    /// The list is the store's own: what is not in it is not mounted.
    async fn is_gone(&self, _container_id: &str) -> Result<bool, RuntimeError> {
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_stands_twice_is_shown_once_at_its_upper_place() {
        let [a, b, c] = [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes));
        let layers = [a.clone(), b.clone(), a.clone(), c.clone()];
        assert_eq!(topmost(&layers).collect::<Vec<_>>(), [&c, &a, &b]);
    }

    #[test]
    fn a_mount_is_found_by_its_whole_path_and_our_source() {
        let table = b"36 35 0:50 / /mnt/a\\040b rw - overlay imagelet ro,lowerdir=x\n37 35 0:51 / /mnt/c rw - overlay overlay ro\n";
        assert!(shows_overlay(table, Path::new("/mnt/a b")));
        assert!(!shows_overlay(table, Path::new("/mnt/a")));
        assert!(!shows_overlay(table, Path::new("/mnt/c")));
    }
}
