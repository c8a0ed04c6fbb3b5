//! Unmounts an image at one of its mount points. Another mount on top stays.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    ports::MountedImage,
};
use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
};

use super::{
    discard, is_in_use, judge, mounted_image,
    note::NotedMount,
    read_notes, read_table,
    state::{self, MountState, TableRow},
};
use crate::store::{Store, could_not};

/// Number and interval of the probes before an overlay is reported as still alive.
const BUSY_LOOKS: usize = 20;
const BUSY_PERIOD: Duration = Duration::from_millis(50);

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
    unmount(&place, UnmountFlags::NOFOLLOW).map_err(|error| {
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
    Ok(mounted_image(mounted, place, true).unmounted(remains))
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

/// Removes the note of a mount that has ended, or that `force` gives up.
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
        answer.get_or_insert_with(|| mounted_image(noted, place.to_owned(), false).unmounted(false));
    }
    answer.ok_or_else(|| {
        let at = place.display();
        match judged.first() {
            Some((_, MountState::Shown(places))) => {
                let now = places.first().map_or(place, PathBuf::as_path).display();
                let message = format!("the image that was mounted on `{at}` is now on `{now}`");
                RuntimeError::new(RuntimeErrorKind::InUse, message).with_hint(format!("imagelet unmount {now}"))
            }
            Some((noted, _)) => {
                let message = format!(
                    "the image mounted on `{at}` is not seen here, and may be in use in another mount namespace"
                );
                let hint = mounted_image(noted, place.to_owned(), false).hint();
                RuntimeError::new(RuntimeErrorKind::InUse, message).with_hint(hint)
            }
            None => {
                RuntimeError::new(RuntimeErrorKind::NotFound, format!("no image of this store is mounted on `{at}`"))
            }
        }
    })
}
