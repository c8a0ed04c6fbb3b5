//! Mounts images as directory trees by overlayfs, without a runtime.
//!
//! Each mount has a note, `mounts/KEY.json`, and the overlay's folder, `mounts/KEY/`. For a store on a read-only file
//! system, both are below `/run/imagelet/mounts/STORE/`; STORE is the digest of the store's path. A note contains the
//! boot id and the overlay's device. The overlay is created, then noted, then attached. So a crash leaves a note
//! without an overlay, never a mount without a note.
//!
//! **Invariant:** listing deletes nothing. The next mount or sweep, or an unmount of the target, removes the notes of
//! ended mounts. Data written into a mount is removed only after its overlay has ended.

mod note;
mod parents;
mod state;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    image::{Digest, ImageId, ImageSpec},
    ports::{Container, ContainerImage, ContainerService, ContainerState, MountOptions, MountedImage},
    text::file_time,
};
use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags},
};

use crate::{
    overlay::{self, KERNEL_MIN, OverlayFolder},
    store::{Store, could_not, storage_error},
};
use note::{Note, NotedMount};
use state::{MountState, TableRow};

const BUSY_LOOKS: usize = 20;
const BUSY_PERIOD: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedMount {
    pub(crate) target: PathBuf,
    pub(crate) image: String,
    /// The time of the mount, in seconds since 1970.
    pub(crate) mounted_at: u64,
    /// Whether this mount namespace shows the mount; otherwise the mount is alive in another namespace.
    pub(crate) shown: bool,
}

impl ListedMount {
    pub(crate) fn hint(&self) -> String {
        unmount_hint(&self.target, self.shown)
    }
}

fn unmount_hint(target: &Path, shown: bool) -> String {
    let target = target.display();
    if shown {
        return format!("imagelet unmount {target}");
    }
    format!("unmount it in its mount namespace, or give it up with `imagelet unmount --force {target}`")
}

pub(crate) fn mount(
    store: &Store,
    id: &ImageId,
    target: &Path,
    options: MountOptions,
) -> Result<MountedImage, RuntimeError> {
    if options.writable {
        store.check_writable()?;
    }
    let failed = |error: io::Error| {
        let hint = hint(&error);
        let error = storage_error(format!("could not mount image `{id}` on `{}`", target.display()), error);
        if let Some(hint) = hint { error.with_hint(hint) } else { error }
    };
    let target = target.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failed(error).with_hint(format!("mkdir -p {}", target.display())),
        _ => failed(error),
    })?;
    if !target.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let _turn = store.mounting();
    let noted = read_notes(store)?;
    let rows = read_table()?;
    if rows.iter().any(|row| row.target == target && noted.iter().any(|noted| state::is_shown_by(noted, row))) {
        let place = target.display();
        let message = format!("`{place}` already shows an image");
        return Err(RuntimeError::new(RuntimeErrorKind::InUse, message).with_hint(format!("imagelet unmount {place}")));
    }
    discard_gone(store, &noted, &rows);
    let (record, _) = store
        .image(id)
        .ok_or_else(|| RuntimeError::new(RuntimeErrorKind::NotFound, format!("image `{id}` is not here")))?;
    let layers = shown_layers(store, &record.diff_ids().cloned().collect::<Vec<_>>());
    let notes = if store.is_read_only() { note::volatile_folder(store.root()) } else { own_folder(store) };
    let folder = note::new_folder(&notes, id, &target).map_err(failed)?;
    attach(store, id, &layers, &folder, &target, options).map_err(|error| {
        discard(&folder);
        failed(error)
    })
}

fn attach(
    store: &Store,
    id: &ImageId,
    layers: &[Digest],
    folder: &OverlayFolder,
    target: &Path,
    options: MountOptions,
) -> io::Result<MountedImage> {
    let trees: Vec<PathBuf> = layers.iter().map(|layer| store.layer_tree(layer)).collect();
    folder.create(&trees)?;
    failpoint!("mount.prepared");
    parents::build(store, layers, &folder.upper())?;
    failpoint!("mount.parents");
    let mount = folder.mount_detached(trees.len(), &note::source_of(folder), flags(options))?;
    let device = rustix::fs::fstat(&mount)?.st_dev;
    let note = Note {
        target: target.display().to_string(),
        image: id.to_string(),
        writable: options.writable,
        mounted_at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        boot: store.boot.clone(),
        device: format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)),
    };
    note::write(folder, &note)?;
    failpoint!("mount.noted");
    overlay::attach(&mount, target)?;
    failpoint!("mount.shown");
    Ok(MountedImage { id: note.image, directory: target.to_owned(), writable: note.writable, remains: true })
}

fn flags(options: MountOptions) -> MountFlags {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::RDONLY, !options.writable);
    flags
}

/// A hint for a kernel error whose text does not name the cause.
fn hint(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::PERM | Errno::ACCESS => Some("mounting needs root".to_owned()),
        Errno::NOSYS | Errno::NODEV | Errno::INVAL | Errno::OPNOTSUPP => Some(format!(
            "mounting needs {KERNEL_MIN} or newer with overlayfs, and a store on a file system that overlayfs takes; \
             the kernel's log (`dmesg`) says more"
        )),
        _ => None,
    }
}

fn shown_layers(store: &Store, diff_ids: &[Digest]) -> Vec<Digest> {
    let mut layers = Vec::new();
    for layer in topmost(diff_ids) {
        layers.push(layer.clone());
        if store.layer(layer).is_some_and(|layer| layer.root_opaque) {
            break;
        }
    }
    layers
}

/// Each layer once, topmost first. Overlayfs rejects a repeated folder, and the upper occurrence hides the lower one.
fn topmost(layers: &[Digest]) -> impl Iterator<Item = &Digest> {
    layers.iter().enumerate().rev().filter(|(at, layer)| !layers[at + 1..].contains(layer)).map(|(_, layer)| layer)
}

/// Unmounts an image and removes the data written into it. With `force`, also drops a note without a visible mount.
pub(crate) fn unmount_image(store: &Store, target: &Path, force: bool) -> Result<MountedImage, RuntimeError> {
    let failed = could_not::<io::Error>("unmount", target);
    let _turn = store.mounting();
    let noted = read_notes(store)?;
    let rows = read_table()?;
    let place = match target.canonicalize() {
        // A path that is missing may exist in another mount namespace.
        Err(error) if error.kind() == io::ErrorKind::NotFound => target.to_owned(),
        place => place.map_err(&failed)?,
    };
    let ours = |row: &TableRow| noted.iter().find(|noted| state::is_shown_by(noted, row));
    let here: Vec<&TableRow> = rows.iter().filter(|row| row.target == place).collect();
    if !here.iter().any(|row| ours(row).is_some()) {
        return give_up(store, &noted, &rows, &place, force);
    }
    let uppermost = state::mount_id(&place).map_err(&failed)?;
    let top = rows.iter().find(|row| row.id == uppermost);
    let Some(mounted) = top.filter(|row| row.target == place).and_then(ours) else {
        let over = top.map_or_else(String::new, |row| format!(" (`{}`, {})", row.source, row.kind));
        let message = format!("something else is mounted over the image on `{}`{over}", place.display());
        return Err(RuntimeError::new(RuntimeErrorKind::InUse, message).with_hint("unmount that first, with `umount`"));
    };
    rustix::mount::unmount(&place, UnmountFlags::NOFOLLOW).map_err(|error| {
        let busy = error == Errno::BUSY;
        let error = failed(error.into());
        if busy { error.with_hint("something still works in there; `fuser -vm DIR` names it") } else { error }
    })?;
    failpoint!("unmount.hidden");
    let shown = read_table()?.iter().any(|row| state::is_shown_by(mounted, row));
    let remains = shown || stays_busy(mounted);
    if !remains {
        discard(&mounted.folder);
    }
    failpoint!("unmount.done");
    Ok(unmounted(mounted, &place, remains))
}

/// Whether an overlay stays alive. A probe, or a starting container's copy of the mounts, may keep it alive briefly.
fn stays_busy(noted: &NotedMount) -> bool {
    (0..BUSY_LOOKS).all(|_| {
        let is_busy = is_in_use(noted) == Some(true);
        if is_busy {
            std::thread::sleep(BUSY_PERIOD);
        }
        is_busy
    })
}

fn unmounted(noted: &NotedMount, directory: &Path, remains: bool) -> MountedImage {
    let writable = noted.note().is_some_and(|note| note.writable);
    MountedImage { id: noted.image.clone(), directory: directory.to_owned(), writable, remains }
}

fn give_up(
    store: &Store,
    noted: &[NotedMount],
    rows: &[TableRow],
    place: &Path,
    force: bool,
) -> Result<MountedImage, RuntimeError> {
    let at_place = noted.iter().filter(|noted| noted.note().is_some_and(|note| note.target == place.to_string_lossy()));
    let judged: Vec<(&NotedMount, MountState)> = at_place.map(|noted| (noted, judge(store, noted, rows))).collect();
    let ended = |state: &MountState| *state == MountState::Gone || (force && *state == MountState::Elsewhere);
    let mut answer = None;
    for (noted, _) in judged.iter().filter(|(_, state)| ended(state)) {
        discard(&noted.folder);
        answer.get_or_insert_with(|| unmounted(noted, place, false));
    }
    answer.ok_or_else(|| {
        let at = place.display();
        match judged.first() {
            Some((_, MountState::Shown(places))) => {
                let now = places.first().map_or(place, PathBuf::as_path).display();
                let message = format!("the image that was mounted on `{at}` is now on `{now}`");
                RuntimeError::new(RuntimeErrorKind::InUse, message).with_hint(format!("imagelet unmount {now}"))
            }
            Some(_) => {
                let message = format!(
                    "the image mounted on `{at}` is not seen here, and may be in use in another mount namespace"
                );
                RuntimeError::new(RuntimeErrorKind::InUse, message).with_hint(unmount_hint(place, false))
            }
            None => {
                RuntimeError::new(RuntimeErrorKind::NotFound, format!("no image of this store is mounted on `{at}`"))
            }
        }
    })
}

pub(crate) fn mounts(store: &Store) -> Result<Vec<ListedMount>, RuntimeError> {
    let noted = read_notes(store)?;
    if noted.is_empty() {
        return Ok(Vec::new());
    }
    let rows = read_table()?;
    let mut mounted = Vec::new();
    for noted in noted {
        let state = judge(store, &noted, &rows);
        if let Some(damage) = noted.damage() {
            // The level is error, because commands log only errors, and no other message names the note.
            tracing::error!(
                path = %noted.path().display(),
                problem = damage,
                image = noted.image,
                alive = state != MountState::Gone,
                "the note of a mount is damaged and stays; unmount the image, then remove the note and the folder beside it"
            );
        }
        let target = noted.note().map_or_else(|| noted.path(), |note| PathBuf::from(&note.target));
        match state {
            MountState::Gone => {}
            MountState::Elsewhere => mounted.push(mounted_image(&noted, target, false)),
            MountState::Shown(places) => {
                let place = if places.contains(&target) { Some(target) } else { places.into_iter().next() };
                mounted.extend(place.map(|place| mounted_image(&noted, place, true)));
            }
        }
    }
    mounted.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(mounted)
}

pub(crate) fn sweep(store: &Store) -> Result<(), RuntimeError> {
    let _turn = store.mounting();
    let noted = read_notes(store)?;
    if !noted.is_empty() {
        discard_gone(store, &noted, &read_table()?);
    }
    Ok(())
}

fn discard_gone(store: &Store, noted: &[NotedMount], rows: &[TableRow]) {
    let gone = noted
        .iter()
        // A mount with a damaged note is skipped, because the note does not identify the mount.
        .filter(|noted| noted.damage().is_none())
        .filter(|noted| !store.is_read_only() || !noted.path().starts_with(store.root()))
        .filter(|noted| judge(store, noted, rows) == MountState::Gone);
    for noted in gone {
        discard(&noted.folder);
    }
}

fn mounted_image(noted: &NotedMount, target: PathBuf, shown: bool) -> ListedMount {
    let mounted_at = noted.note().map_or(0, |note| note.mounted_at);
    ListedMount { target, image: noted.image.clone(), mounted_at, shown }
}

fn judge(store: &Store, noted: &NotedMount, rows: &[TableRow]) -> MountState {
    state::judge(noted, store.boot.as_deref(), rows, || is_in_use(noted))
}

/// Whether the overlay is alive in any namespace; `None` if the kernel does not report it.
fn is_in_use(noted: &NotedMount) -> Option<bool> {
    let report = |error: &io::Error| {
        tracing::debug!(path = %noted.path().display(), %error, "the kernel does not say whether a mount is alive");
    };
    noted.folder.is_in_use().inspect_err(report).ok()
}

fn read_notes(store: &Store) -> Result<Vec<NotedMount>, RuntimeError> {
    let mut noted = Vec::new();
    for folder in [own_folder(store), note::volatile_folder(store.root())] {
        noted.extend(note::read_all(&folder).map_err(could_not("read", &folder))?);
    }
    Ok(noted)
}

fn read_table() -> Result<Vec<TableRow>, RuntimeError> {
    state::read_table().map_err(could_not("read", Path::new(state::MOUNT_TABLE)))
}

fn own_folder(store: &Store) -> PathBuf {
    store.root().join("mounts")
}

fn discard(folder: &OverlayFolder) {
    if let Err(error) = note::discard(folder) {
        tracing::warn!(path = %folder.0.display(), %error, "could not remove a mount's folder");
    }
}

#[derive(Clone, Debug)]
pub(crate) struct MountUses(pub(crate) Arc<Store>);

#[async_trait]
impl ContainerService for MountUses {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let store = Arc::clone(&self.0);
        let mounted = tokio::task::spawn_blocking(move || mounts(&store))
            .await
            .map_err(|error| RuntimeError::defect("could not list mounts").caused_by(error))??;
        Ok(mounted.into_iter().map(container).collect())
    }

    /// The store's list is complete, so a mount outside the list has ended.
    async fn is_gone(&self, _container_id: &str) -> Result<bool, RuntimeError> {
        Ok(true)
    }
}

fn container(mount: ListedMount) -> Container {
    Container {
        id: format!("mount:{}", mount.target.display()),
        sandbox_id: String::new(),
        name: mount.target.display().to_string(),
        image: ContainerImage { spec: ImageSpec::new(&mount.image), reference: mount.image.clone(), id: mount.image },
        state: ContainerState::Running,
        created_at: file_time(mount.mounted_at).unwrap_or(SystemTime::UNIX_EPOCH),
        labels: BTreeMap::default(),
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
    fn a_mount_is_read_only_without_set_ids_and_devices_unless_asked_otherwise() {
        let (nosuid, nodev, read_only) = (MountFlags::NOSUID, MountFlags::NODEV, MountFlags::RDONLY);
        for (writable, suid, dev, expected) in [
            (false, false, false, nosuid | nodev | read_only),
            (true, false, false, nosuid | nodev),
            (false, true, false, nodev | read_only),
            (false, false, true, nosuid | read_only),
            (true, true, true, MountFlags::empty()),
        ] {
            assert_eq!(flags(MountOptions { writable, suid, dev }), expected);
        }
    }

    #[test]
    fn a_refusal_of_the_kernel_names_the_one_that_is_needed() {
        let of = |errno: Errno| hint(&errno.into());
        for errno in [Errno::NOSYS, Errno::NODEV, Errno::INVAL] {
            assert!(of(errno).is_some_and(|hint| hint.contains("Linux 5.10")), "{errno}");
        }
        assert_eq!(of(Errno::PERM).as_deref(), Some("mounting needs root"));
        assert_eq!(of(Errno::NOSPC), None);
    }

    #[test]
    fn a_mount_whose_note_has_no_time_is_in_use_since_an_unknown_time() {
        let created = |mounted_at| {
            let (target, image) = ("/mnt".into(), "sha256:1".to_owned());
            container(ListedMount { target, image, mounted_at, shown: true }).created_at
        };
        assert_eq!(created(5), SystemTime::UNIX_EPOCH + Duration::from_secs(5));
        for mounted_at in [0, u64::MAX, u64::MAX / 2, 1 << 40] {
            assert_eq!(created(mounted_at), SystemTime::UNIX_EPOCH, "{mounted_at}");
        }
    }
}
