//! Files that `install` owns: the first line contains the digest of the rest, so that later changes are recognised.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use imagelet_core::{
    durable::{MachineDisk, read_at_most, remove_file, replace_file_on, sync_folder},
    image::Digest,
};

use imagelet_node::failure::Failure;

/// The start of each file that `install` writes. `#` starts a comment both in systemd units and in YAML.
const BEGINNING: &str =
    "# Written by `imagelet install`; `imagelet install --uninstall` removes this file while it is unchanged: ";
/// The file mode of the daemon's configuration, which may contain passwords of proxies.
pub(super) const PRIVATE: u32 = 0o600;
pub(super) const PUBLIC: u32 = 0o644;
/// Maximum size of a file that `install` writes, in bytes. A longer file has another author.
const LENGTH_MAX: usize = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum FileState {
    #[default]
    Absent,
    Unchanged(String),
    Changed,
    Foreign,
}

impl FileState {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        match read_bounded(path, LENGTH_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Absent),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(Self::Foreign),
            read => Ok(Self::of_text(&String::from_utf8_lossy(&read?))),
        }
    }

    fn of_text(text: &str) -> Self {
        let Some((digest, content)) = text.strip_prefix(BEGINNING).and_then(|rest| rest.split_once('\n')) else {
            return Self::Foreign;
        };
        if digest == Digest::of(content.as_bytes()).as_str() {
            Self::Unchanged(content.to_owned())
        } else {
            Self::Changed
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Changed | Self::Foreign)
    }
}

pub(super) fn read_bounded(path: &Path, length_max: usize) -> io::Result<Vec<u8>> {
    read_at_most(fs::File::open(path)?, length_max as u64)
}

pub(super) fn write(path: &Path, content: &str, mode: u32) -> Result<(), Failure> {
    let text = format!("{BEGINNING}{}\n{content}", Digest::of(content.as_bytes()).as_str());
    replace(path, text.as_bytes(), mode)
}

/// The permission bits of a file. 0: the file is absent.
pub(super) fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0, |file| file.permissions().mode() & 0o7777)
}

pub(super) fn protect(path: &Path) -> Result<(), Failure> {
    fs::set_permissions(path, fs::Permissions::from_mode(PRIVATE)).map_err(|error| of_path("protect", path, &error))
}

/// Replaces a file durably and creates its folder. After a crash, the file has either the previous or the new content.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let replaced = || {
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        replace_file_on(&MachineDisk, path, &new_of(path), "state", |file| {
            file.write_all(bytes)?;
            // The umask applies to new files, so the mode is set explicitly.
            file.set_permissions(fs::Permissions::from_mode(mode))
        })
    };
    replaced().map_err(|error| of_path("write", path, &error))
}

pub(super) fn new_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

pub(super) fn remove(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| folder.exists());
    let removed = remove_file(path).and_then(|()| folder.map_or(Ok(()), sync_folder));
    removed.map_err(|error| of_path("remove", path, &error))
}

pub(super) fn remove_empty_folder(path: &Path) -> Result<(), Failure> {
    match fs::remove_dir(path) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => {
            Err(of_path("remove", path, &error))
        }
        _ => Ok(()),
    }
}

pub(super) fn of_path(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::because(format!("could not {what} `{}`", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_ours_until_a_byte_of_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/config.yaml");
        let state = || FileState::of(&path).unwrap();
        assert_eq!(state(), FileState::Absent);
        assert_eq!(mode(&path), 0);
        for (content, wanted) in [("key: 1\n", PUBLIC), ("", PRIVATE), ("key: 2\n", PUBLIC)] {
            write(&path, content, wanted).unwrap();
            assert_eq!(state(), FileState::Unchanged(content.into()));
            assert_eq!(mode(&path), wanted);
        }
        protect(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(state(), FileState::Unchanged("key: 2\n".into()));
        let written = fs::read_to_string(&path).unwrap();
        for (text, expected) in [
            (format!("{written}more: 1\n"), FileState::Changed),
            (written.replace("key: 2", "key: 3"), FileState::Changed),
            (written.replacen("sha256:", "sha256:0", 1), FileState::Changed),
            (written.lines().skip(1).collect(), FileState::Foreign),
            (String::new(), FileState::Foreign),
            ("x".repeat(2 << 20), FileState::Foreign),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(state(), expected);
        }
        remove(&path).unwrap();
        assert_eq!(state(), FileState::Absent);
        remove(&path).expect("it is gone already");
        let [parent, above] = [folder.path().join("a/b"), folder.path().join("a")];
        remove_empty_folder(&above).unwrap();
        assert!(parent.exists(), "what is not empty stays");
        remove_empty_folder(&parent).expect("no other file is left");
        assert!(!parent.exists());
        remove_empty_folder(&parent).expect("it is gone already");
    }

    #[test]
    fn a_file_of_an_interrupted_attempt_is_replaced_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("config.yaml"), folder.path().join("other"));
        fs::write(&other, "of another program").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join("config.yaml.new")).unwrap();
        write(&path, "key: 1\n", PUBLIC).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "of another program");
        assert_eq!(FileState::of(&path).unwrap(), FileState::Unchanged("key: 1\n".into()));
    }
}
