//! The file of leases, which a process reads when it starts after a crash. `STATE_DIR/leases.json` has the last request
//! time of each leased image, for all processes. The file is not synced: after a power failure, all containers request
//! their images again. If the file is unreadable, every image is treated as leased.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, SystemTime},
};

use crate::{
    durable::{StateDir, nanos, replace_file_unsynced, time},
    image::ImageId,
};

pub(crate) const LEASES: &str = "leases.json";

pub(super) type RequestTimes = BTreeMap<ImageId, SystemTime>;

/// The leases on disk, including those of other processes.
pub(super) fn read(directory: &StateDir) -> io::Result<RequestTimes> {
    let Some(text) = directory.content(LEASES)? else { return Ok(RequestTimes::new()) };
    let asked: BTreeMap<ImageId, u64> = serde_json::from_slice(&text).map_err(io::Error::other)?;
    Ok(asked.into_iter().map(|(id, asked_at)| (id, time(asked_at))).collect())
}

/// Merges these leases into the file, which all processes share. Expired leases and a damaged file are dropped.
pub(super) fn write(directory: &StateDir, due: RequestTimes, lasts: Duration) -> io::Result<()> {
    let _lock = directory.lock()?;
    let now = due.values().max().copied().unwrap_or(SystemTime::UNIX_EPOCH);
    let mut asked = read(directory).unwrap_or_default();
    asked.retain(|_, asked_at| *asked_at + lasts > now);
    asked.extend(due);
    let asked: BTreeMap<ImageId, u64> = asked.into_iter().map(|(id, asked_at)| (id, nanos(asked_at))).collect();
    let beside = directory.path.join(format!(".{LEASES}.new"));
    let text = serde_json::to_vec(&asked).map_err(io::Error::other)?;
    replace_file_unsynced(&directory.path.join(LEASES), &beside, &text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn times(times: &[(&str, u64)]) -> RequestTimes {
        times.iter().map(|(id, seconds)| (ImageId::new(*id), at(*seconds))).collect()
    }

    fn state_dir() -> (tempfile::TempDir, StateDir) {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDir::open(folder.path()).unwrap();
        (folder, directory)
    }

    #[test]
    fn a_write_keeps_the_leases_of_other_processes_until_they_expire() {
        let (_folder, directory) = state_dir();
        let lasts = Duration::from_mins(1);
        write(&directory, times(&[("sha256:other", 10), ("sha256:own", 20)]), lasts).unwrap();
        for (now, expected) in [(69, true), (70, false)] {
            // The latest request of the write is now.
            write(&directory, times(&[("sha256:early", 15), ("sha256:own", now)]), lasts).unwrap();
            let found = read(&directory).unwrap();
            assert_eq!(found.contains_key(&ImageId::new("sha256:other")), expected, "{now}");
            assert_eq!(found[&ImageId::new("sha256:own")], at(now));
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_an_absent_one() {
        let (folder, directory) = state_dir();
        assert_eq!(read(&directory).unwrap(), RequestTimes::new());
        let path = folder.path().join(LEASES);
        fs::create_dir(&path).unwrap();
        assert!(read(&directory).is_err());
        fs::remove_dir(&path).unwrap();
        fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
        assert_eq!(read(&directory).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
