//! Imports each archive that appears in the import folder, and then moves the archive to `done` or `failed`.
//!
//! A scan cannot detect whether a copy is complete. So an archive is imported once it has been unchanged for some
//! seconds, and an unreadable archive is moved to `failed` after a longer time. An archive that changes during its
//! import is imported again. An archive that cannot be moved is not imported again before a restart.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::Path,
    time::Duration,
};

use imagelet_core::{events::EventKind, image::counted, ports::ArchivePlace, text::duration_text, trusted_files};
use tokio::time::Instant;

use super::{Images, archives};
use crate::{
    api::{ImportRequest, Imported, no_steps},
    config::ImportFolder,
    failure::Failure,
};

/// How long an archive must be unchanged before it is read. A copy over a network pauses for a shorter time.
const QUIET_MIN: Duration = Duration::from_secs(5);
/// How long an unreadable archive must be unchanged before it is moved to `failed`.
const SUSPECT: Duration = Duration::from_mins(1);
/// The wait before the next attempt to import, if the cause of the failure is outside the archive.
const RETRY: Duration = Duration::from_mins(5);
const ENTRIES_MAX: usize = 1000;
const LAYOUT_FILES_MAX: usize = 100_000;
const LAYOUT_DEPTH_MAX: usize = 8;
const REASON_BYTES_MAX: usize = 64 << 10;
const DONE: &str = "done";
const FAILED: &str = "failed";
/// Endings of the names of unfinished copies. Names of rsync and editors start with a dot, and are ignored too.
const UNFINISHED: [&str; 3] = [".part", ".partial", ".tmp"];

#[derive(Debug, Default)]
pub struct FolderWatch {
    arrivals: HashMap<OsString, Arrival>,
    /// Why the last scan could not read the folder. The same problem is reported only once.
    problem: Option<String>,
}

#[derive(Debug)]
struct Arrival {
    looks: Fingerprint,
    since: Instant,
    /// The time of the next import. `None`: the archive is not imported again, because it could not be moved.
    due: Option<Instant>,
}

/// Number, bytes and latest change time of an archive's files. A copy in progress changes at least one of the three.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Fingerprint {
    is_folder: bool,
    files: usize,
    bytes: u64,
    changed: (i64, i64),
}

impl FolderWatch {
    fn due(&mut self, found: Vec<(OsString, Fingerprint)>, now: Instant) -> Vec<(OsString, Fingerprint)> {
        let names: HashSet<&OsString> = found.iter().map(|(name, _)| name).collect();
        self.arrivals.retain(|name, _| names.contains(name));
        let mut due = Vec::new();
        for (name, looks) in found {
            match self.arrivals.get(&name).filter(|known| known.looks == looks) {
                Some(known) if known.due.is_some_and(|at| at <= now) => due.push((name, looks)),
                Some(_) => {}
                None => drop(self.arrivals.insert(name, Arrival { looks, since: now, due: Some(now + QUIET_MIN) })),
            }
        }
        due
    }

    fn judge(&self, name: &OsStr, outcome: Outcome, now: Instant) -> Verdict {
        let since = self.arrivals.get(name).map_or(now, |arrival| arrival.since);
        match outcome {
            Outcome::Imported => Verdict::Move(DONE),
            Outcome::Outside => Verdict::Again(now + RETRY),
            Outcome::Unreadable if now < since + SUSPECT => Verdict::Again(since + SUSPECT),
            Outcome::Unreadable | Outcome::Refused => Verdict::Move(FAILED),
        }
    }

    fn set_due(&mut self, name: &OsStr, due: Option<Instant>) {
        if let Some(arrival) = self.arrivals.get_mut(name) {
            arrival.due = due;
        }
    }
}

/// What an import means for its archive. The variants are ordered from the most final to the least final result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Imported,
    /// Another import would fail too, for example by the signature policy.
    Refused,
    /// The archive is unreadable. It may be a copy in progress.
    Unreadable,
    /// The cause is outside the archive: the disk is full, or the store is busy.
    Outside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Move(&'static str),
    Again(Instant),
}

impl Outcome {
    /// Classifies failures by their stable reasons. Of several outcomes, the least final outcome counts.
    fn of<'a>(failures: impl IntoIterator<Item = &'a Failure>) -> Self {
        let of_one = |failure: &Failure| match failure.reason.as_str() {
            "DiskFull" | "Unavailable" | "TimedOut" | "InUse" | "Cancelled" => Self::Outside,
            "Corrupt" => Self::Unreadable,
            _ => Self::Refused,
        };
        failures.into_iter().map(of_one).max().unwrap_or(Self::Imported)
    }
}

pub(crate) async fn import_arrivals(images: &Images, watch: &mut FolderWatch) {
    let Some(folder) = images.settings().images.import_folder.clone() else { return };
    let directory = folder.directory.clone();
    let found = match on_disk(move || scan(&directory)).await {
        Ok(found) => found,
        Err(error) => {
            let problem = format!("could not read the import folder `{}`", folder.directory.display());
            let failure = Failure::because(problem, &error).to_string();
            if watch.problem.as_ref() != Some(&failure) {
                tracing::error!("{failure}");
                images.record_event(EventKind::Warning, "ImportFailed", failure.clone());
                watch.problem = Some(failure);
            }
            return;
        }
    };
    watch.problem = None;
    for (name, looks) in watch.due(found, Instant::now()) {
        import_one(images, watch, &folder, &name, looks).await;
    }
}

async fn import_one(images: &Images, watch: &mut FolderWatch, folder: &ImportFolder, name: &OsStr, looks: Fingerprint) {
    let path = folder.directory.join(name);
    let imported = read(images, folder, &path, looks.is_folder).await;
    let rows = imported.as_ref().map_or(&[][..], |imported| &imported.images);
    let failures = || rows.iter().filter_map(|row| row.failure.as_ref()).chain(imported.as_ref().err());
    let outcome = Outcome::of(failures());
    let reason = failures().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n";
    let looked_again = on_disk({
        let path = path.clone();
        move || fingerprint(&path)
    });
    if looked_again.await.ok().flatten() != Some(looks) {
        // The archive changed during the import, so the next scan handles the archive again.
        return;
    }
    let (shown, why) = (path.display(), reason.trim_end());
    let place = match watch.judge(name, outcome, Instant::now()) {
        Verdict::Move(place) => place,
        Verdict::Again(at) => {
            watch.set_due(name, Some(at));
            if outcome == Outcome::Outside {
                let again = duration_text(RETRY);
                tracing::warn!(archive = %shown, reason = why, "an import failed and is tried again in {again}");
            }
            return;
        }
    };
    if place == DONE {
        let message = format!("Imported {} from `{shown}`", counted(rows.len(), "image"));
        tracing::info!("{message}");
        images.record_event(EventKind::Normal, "Imported", message);
        for failure in rows.iter().flat_map(|row| &row.pin_failures) {
            let message = format!("An image of `{shown}` is imported and not pinned: {failure}");
            images.record_event(EventKind::Warning, "PinFailed", message);
        }
    } else {
        let message = format!("Could not import `{shown}`: {why}");
        tracing::error!("{message}");
        images.record_event(EventKind::Warning, "ImportFailed", message);
    }
    let (directory, moved) = (folder.directory.clone(), name.to_owned());
    if let Err(error) = on_disk(move || put_away(&directory, &moved, place, &reason)).await {
        let error = Failure::of(&error).to_string();
        tracing::error!(archive = %path.display(), error, "could not move an imported archive; it stays, and is imported again after a restart");
        watch.set_due(name, None);
    }
}

async fn read(images: &Images, folder: &ImportFolder, path: &Path, is_folder: bool) -> Result<Imported, Failure> {
    let trusted = on_disk({
        let path = path.to_owned();
        move || if is_folder { trusted_files::check_folder(&path) } else { trusted_files::open(&path).map(drop) }
    });
    trusted.await.map_err(|error| untrusted(&error))?;
    let place = ArchivePlace { path: path.to_owned(), is_folder };
    let request = ImportRequest { place, name: None, platform: None, pin: folder.pin };
    archives::import(images, &request, "import folder", no_steps()).await
}

/// The failure to open an archive. A wrong owner or mode is final; after other errors, the import is retried.
fn untrusted(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Failure::because("the archive may be changed by other users", error);
    }
    Failure { reason: "Unavailable".into(), ..Failure::because("could not open the archive", error) }
}

async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn scan(directory: &Path) -> io::Result<Vec<(OsString, Fingerprint)>> {
    trusted_files::check_folder(directory)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if found.len() < ENTRIES_MAX && may_be_archive(&name) {
            // A file that disappears during the scan is ignored.
            found.extend(fingerprint(&directory.join(&name)).ok().flatten().map(|looks| (name, looks)));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

fn may_be_archive(name: &OsStr) -> bool {
    let text = name.to_string_lossy();
    let is_own = name == DONE || name == FAILED;
    !is_own && !text.starts_with('.') && !UNFINISHED.iter().any(|ending| text.ends_with(ending))
}

/// The fingerprint of an archive. `None`: the path is neither a file nor a folder with an OCI layout.
fn fingerprint(path: &Path) -> io::Result<Option<Fingerprint>> {
    let metadata = fs::symlink_metadata(path)?;
    let mut looks = Fingerprint { is_folder: metadata.is_dir(), ..Fingerprint::default() };
    if metadata.is_file() {
        looks.add(&metadata);
        return Ok(Some(looks));
    }
    // A folder without an index may be a copy in progress, because tools write the index last.
    if !metadata.is_dir() || !fs::symlink_metadata(path.join("index.json")).is_ok_and(|index| index.is_file()) {
        return Ok(None);
    }
    let mut folders = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            looks.add(&metadata);
            if metadata.is_dir() && depth < LAYOUT_DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            }
            if looks.files >= LAYOUT_FILES_MAX {
                return Ok(Some(looks));
            }
        }
    }
    Ok(Some(looks))
}

impl Fingerprint {
    fn add(&mut self, metadata: &fs::Metadata) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(metadata.len());
        self.changed = self.changed.max((metadata.ctime(), metadata.ctime_nsec()));
    }
}

/// Moves an archive to `done` or `failed`, over an older one of its name. `failed` also gets a file with the reason.
fn put_away(directory: &Path, name: &OsStr, place: &str, reason: &str) -> io::Result<()> {
    let folder = directory.join(place);
    match fs::DirBuilder::new().mode(0o755).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !fs::symlink_metadata(&folder)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("`{}` is no folder", folder.display())));
    }
    let absent_is_fine = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    let target = folder.join(name);
    let is_folder = fs::symlink_metadata(&target).is_ok_and(|old| old.is_dir());
    absent_is_fine(if is_folder { fs::remove_dir_all(&target) } else { fs::remove_file(&target) })?;
    let mut reason_name = name.to_owned();
    reason_name.push(".reason");
    let reason_file = directory.join(FAILED).join(reason_name);
    if place == FAILED {
        fs::write(&reason_file, &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)])?;
    } else {
        absent_is_fine(fs::remove_file(&reason_file))?;
    }
    fs::rename(directory.join(name), &target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(bytes: u64) -> Fingerprint {
        Fingerprint { bytes, files: 1, ..Fingerprint::default() }
    }

    #[test]
    fn an_archive_is_due_once_it_was_unchanged_for_a_while() {
        let (mut watch, start) = (FolderWatch::default(), Instant::now());
        let mut due = |seconds: u64, bytes: Option<u64>| {
            let found = bytes.map(|bytes| ("a.tar".into(), looks(bytes))).into_iter().collect();
            watch.due(found, start + Duration::from_secs(seconds)).len()
        };
        for (second, bytes, expected) in [
            (0, Some(1), 0),
            (4, Some(1), 0),
            (5, Some(2), 0),
            (9, Some(2), 0),
            (10, Some(2), 1),
            (12, Some(2), 1),
            (13, None, 0),
            (14, Some(2), 0),
            (19, Some(2), 1),
        ] {
            assert_eq!(due(second, bytes), expected, "after {second} s");
        }
    }

    #[test]
    fn an_outcome_decides_whether_an_archive_is_moved_or_tried_again() {
        let (mut watch, start) = (FolderWatch::default(), Instant::now());
        let name = OsString::from("a.tar");
        watch.due(vec![(name.clone(), looks(1))], start);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for (outcome, seconds, verdict) in [
            (Outcome::Imported, 5, Verdict::Move(DONE)),
            (Outcome::Refused, 5, Verdict::Move(FAILED)),
            (Outcome::Unreadable, 5, Verdict::Again(at(60))),
            (Outcome::Unreadable, 60, Verdict::Move(FAILED)),
            (Outcome::Outside, 60, Verdict::Again(at(360))),
        ] {
            assert_eq!(watch.judge(&name, outcome, at(seconds)), verdict, "{outcome:?} after {seconds} s");
        }
        watch.set_due(&name, Some(at(60)));
        assert!(watch.due(vec![(name.clone(), looks(1))], at(59)).is_empty());
        assert_eq!(watch.due(vec![(name.clone(), looks(1))], at(60)).len(), 1);
        watch.set_due(&name, None);
        assert!(watch.due(vec![(name.clone(), looks(1))], at(9999)).is_empty(), "not imported in a loop");
        watch.due(vec![(name.clone(), looks(2))], at(10_000));
        assert_eq!(watch.due(vec![(name, looks(2))], at(10_005)).len(), 1, "a new file of that name is");
    }

    #[test]
    fn the_failure_that_leaves_most_open_decides() {
        let outcome = |reasons: &[&str]| {
            let failures: Vec<Failure> = reasons.iter().map(|reason| Failure::new(reason, "no")).collect();
            Outcome::of(&failures)
        };
        for (reasons, expected) in [
            (&[][..], Outcome::Imported),
            (&["SignatureInvalid"], Outcome::Refused),
            (&["Unacceptable", "Corrupt"], Outcome::Unreadable),
            (&["Corrupt", "DiskFull", "Failed"], Outcome::Outside),
        ] {
            assert_eq!(outcome(reasons), expected, "{reasons:?}");
        }
    }

    #[test]
    fn an_archive_that_cannot_be_opened_now_is_tried_again_and_one_that_others_may_change_is_refused() {
        for (error, outcome, words) in [
            (io::Error::from(io::ErrorKind::PermissionDenied), Outcome::Refused, "changed by other users"),
            (io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()), Outcome::Outside, "could not open"),
            (io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()), Outcome::Outside, "could not open"),
            (io::Error::other("a task panicked"), Outcome::Outside, "could not open"),
        ] {
            let failure = untrusted(&error);
            assert_eq!(Outcome::of([&failure]), outcome, "{failure}");
            assert!(failure.to_string().contains(words), "{failure}");
        }
    }

    #[test]
    fn a_scan_takes_files_and_whole_layouts_and_no_copies_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a.tar", ".b.tar.x7", "c.tar.part", "d.partial", "e.tmp"] {
            fs::write(at(name), "x").unwrap();
        }
        for name in ["done", "failed", "layout", "growing"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("layout/index.json"), "{}").unwrap();
        std::os::unix::fs::symlink(at("a.tar"), at("link.tar")).unwrap();
        let names = |found: Vec<(OsString, Fingerprint)>| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(scan(folder.path()).unwrap()), ["a.tar", "layout"]);
        let before = fingerprint(&at("layout")).unwrap();
        fs::write(at("layout/blob"), "more").unwrap();
        assert_ne!(fingerprint(&at("layout")).unwrap(), before);

        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let error = scan(folder.path()).unwrap_err();
        assert!(error.to_string().contains("every user may write"), "{error}");
    }

    #[test]
    fn an_archive_replaces_an_older_one_of_its_name_and_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (at, name) = (|path: &str| folder.path().join(path), OsString::from("a.tar"));
        fs::write(at("a.tar"), "1").unwrap();
        put_away(folder.path(), &name, FAILED, "why\n").unwrap();
        assert_eq!(fs::read_to_string(at("failed/a.tar.reason")).unwrap(), "why\n");
        fs::create_dir(at("a.tar")).unwrap();
        put_away(folder.path(), &name, FAILED, "other\n").unwrap();
        assert!(at("failed/a.tar").is_dir());
        fs::write(at("a.tar"), "2").unwrap();
        put_away(folder.path(), &name, DONE, "").unwrap();
        assert_eq!(fs::read_to_string(at("done/a.tar")).unwrap(), "2");
        assert!(!at("failed/a.tar.reason").exists() && !at("a.tar").exists());
        std::os::unix::fs::symlink("/", at("elsewhere")).unwrap();
        fs::remove_dir_all(at("done")).unwrap();
        fs::rename(at("elsewhere"), at("done")).unwrap();
        fs::write(at("a.tar"), "3").unwrap();
        put_away(folder.path(), &name, DONE, "").expect_err("`done` is a link");
    }
}
