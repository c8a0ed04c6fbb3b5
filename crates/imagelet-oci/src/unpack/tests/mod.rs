//! Layers as attackers and as builders make them.

mod archive;
mod containerd;
mod entries;
mod escapes;
mod format;
mod limits;
mod random;
mod whiteouts;

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io::BufReader,
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
    sync::Arc,
};

use super::{
    DIRECT_MIN, DiskUsage, EntryRules, FileManifest, LayerMemory, Ownership, UnpackError, UnpackErrorKind,
    UnpackLimits, UnpackOptions, UnpackReport, unpack_layer,
};

/// A layer directory beside files that must stay unchanged.
struct Site {
    home: tempfile::TempDir,
    options: UnpackOptions,
}

impl Site {
    fn new() -> Site {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("layer")).unwrap();
        fs::create_dir_all(home.path().join("host/dir")).unwrap();
        fs::write(home.path().join("host/secret"), "untouched").unwrap();
        fs::write(home.path().join("host/dir/file"), "untouched").unwrap();
        let limits = UnpackLimits::default();
        let options = UnpackOptions {
            ownership: if is_root() { Ownership::Apply } else { Ownership::Record },
            rules: EntryRules::Own,
            limits,
            umask: super::process_umask(),
            memory: LayerMemory::of_its_own(64 << 20),
            folder: None,
            cancelled: Arc::default(),
            direct_min: DIRECT_MIN,
        };
        Site { home, options }
    }

    fn rootless() -> Site {
        let mut site = Site::new();
        site.options.ownership = Ownership::Record;
        site
    }

    fn layer(&self) -> std::path::PathBuf {
        self.home.path().join("layer")
    }

    fn host(&self) -> String {
        self.home.path().join("host").to_str().unwrap().to_owned()
    }

    fn unpack(&self, archive: &[u8]) -> Result<UnpackReport, UnpackError> {
        // A small, odd buffer splits headers and data at its ends.
        self.unpack_from(&mut BufReader::with_capacity(1000, archive))
    }

    fn unpack_from(&self, mut input: &mut dyn std::io::BufRead) -> Result<UnpackReport, UnpackError> {
        let before = snapshot(&self.home.path().join("host"));
        let root = File::open(self.layer()).unwrap();
        let mut ignored = |_: &[u8], _| Ok(());
        // As in a pull: what containerd gets has no list.
        let list = (self.options.rules == EntryRules::Own).then_some(&mut ignored as FileManifest<'_>);
        let result = unpack_layer(&mut input, root.as_fd(), &self.options, list);
        if let Ok(UnpackReport { allocated: Some(known), .. }) = &result {
            assert_eq!(*known, allocated(&self.layer(), &mut HashSet::new()), "blocks and inodes");
        }
        assert_eq!(snapshot(&self.home.path().join("host")), before, "the host was touched");
        assert_eq!(fs::read_dir(self.home.path()).unwrap().count(), 2, "something lies beside the layer");
        result
    }

    /// The layer's content by path: `d`, `l->target`, `w` (whiteout), `p`, `n`, or `f:content`.
    fn listing(&self) -> BTreeMap<String, String> {
        let mut listing = BTreeMap::new();
        list(&self.layer(), "", &mut listing);
        listing
    }

    #[track_caller]
    fn assert_listing<const N: usize>(&self, wanted: [(&str, &str); N]) {
        let wanted: BTreeMap<_, _> = wanted.map(|(path, what)| (path.to_owned(), what.to_owned())).into();
        assert_eq!(self.listing(), wanted);
    }

    fn opaque(&self, path: &str) -> Option<u8> {
        let name = match self.options.ownership {
            Ownership::Apply => "trusted.overlay.opaque",
            Ownership::Record => "user.overlay.opaque",
        };
        xattr(&self.layer().join(path), name).map(|value| value[0])
    }
}

/// What a tree takes: of a file with several names once.
fn allocated(path: &Path, seen: &mut HashSet<u64>) -> DiskUsage {
    let metadata = fs::symlink_metadata(path).unwrap();
    let mut usage = DiskUsage::default();
    if seen.insert(metadata.ino()) {
        usage = DiskUsage { bytes: metadata.blocks() * 512, inodes: 1 };
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let below = allocated(&entry.unwrap().path(), seen);
            usage = DiskUsage { bytes: usage.bytes + below.bytes, inodes: usage.inodes + below.inodes };
        }
    }
    usage
}

/// For tests of what only root can set: without it they fail, and do not pass unseen.
fn require_root() {
    assert!(is_root(), "owners, devices and attributes need root: run the tests as root");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 256];
    let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
    Some(value[..length].to_vec())
}

fn list(directory: &Path, prefix: &str, listing: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let metadata = fs::symlink_metadata(entry.path()).unwrap();
        let kind = metadata.file_type();
        let what = if kind.is_dir() {
            list(&entry.path(), &format!("{path}/"), listing);
            "d".to_owned()
        } else if kind.is_symlink() {
            format!("l->{}", fs::read_link(entry.path()).unwrap().display())
        } else if kind.is_char_device() && metadata.rdev() == 0
            || xattr(&entry.path(), "user.overlay.whiteout").is_some()
        {
            "w".to_owned()
        } else if kind.is_fifo() {
            "p".to_owned()
        } else if kind.is_file() {
            let content = fs::read(entry.path()).unwrap();
            format!("f:{}", String::from_utf8_lossy(&content[..content.len().min(64)]))
        } else {
            "n".to_owned()
        };
        listing.insert(path, what);
    }
}

/// All of a file that an attack could change.
type Seen = (String, Vec<u8>, [i64; 5]);

fn snapshot(root: &Path) -> Vec<Seen> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let numbers = [
            i64::from(metadata.mode()),
            i64::from(metadata.uid()),
            metadata.nlink().cast_signed(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        ];
        found.push((path.display().to_string(), content, numbers));
        if metadata.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}
