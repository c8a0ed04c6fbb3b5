//! GNU tar and Python, each with a scratch folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::seen::{self, TracedTree};

/// What another reader made of an archive.
pub(super) struct Unpacked {
    pub(super) name: String,
    pub(super) tree: TracedTree,
    /// What it had to complain about; empty if nothing.
    pub(super) complaints: String,
}

/// The other readers.
pub(super) struct Tools {
    scratch: PathBuf,
}

const PYTHON: &str = r#"
import os, sys, tarfile
os.umask(0o022)
options = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
for name in sys.argv[2:]:
    base = os.path.join(sys.argv[1], name)
    os.mkdir(base)
    try:
        with tarfile.open(base + ".tar", errorlevel=2) as archive:
            archive.extractall(base, numeric_owner=True, **options)
    except Exception as error:
        with open(base + ".error", "w") as file:
            file.write(repr(error))
"#;

impl Tools {
    pub(super) fn new(scratch: &Path) -> Self {
        Self { scratch: scratch.to_owned() }
    }

    pub(super) fn gnu_tar(&self, archives: &[(String, Vec<u8>)]) -> Vec<Unpacked> {
        demand_gnu_tar();
        let folder = self.folder("gnu", archives);
        let one = |name: &str| {
            let target = folder.join(name);
            fs::create_dir(&target).expect("a folder");
            let mut tar = Command::new("sh");
            tar.args(["-c", "umask 022; exec tar \"$@\"", "tar", "--numeric-owner"]);
            tar.args(["--warning=no-timestamp", "--warning=no-unknown-cast", "-xpf"]);
            tar.arg(folder.join(format!("{name}.tar"))).arg("-C").arg(&target).env("LC_ALL", "C");
            if seen::is_root() {
                tar.arg("--same-owner");
            }
            let output = tar.output().expect("tar runs");
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            let complaints = if output.status.success() { String::new() } else { format!("failed\n{told}") };
            Unpacked { name: name.to_owned(), tree: seen::trace_tree(&target), complaints }
        };
        let part = archives.len().div_ceil(4).max(1);
        std::thread::scope(|scope| {
            let run = |part: &'_ [(String, Vec<u8>)]| part.iter().map(|(name, _)| one(name)).collect::<Vec<_>>();
            let threads: Vec<_> = archives.chunks(part).map(|part| scope.spawn(move || run(part))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    pub(super) fn python(&self, archives: &[(String, Vec<u8>)]) -> Vec<Unpacked> {
        let folder = self.folder("python", archives);
        let names = archives.iter().map(|(name, _)| name);
        let output = Command::new("python3").args(["-c", PYTHON]).arg(&folder).args(names).output();
        let output = output.expect("python3 runs (package `python3`)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let one = |name: &String| Unpacked {
            name: name.clone(),
            tree: seen::trace_tree(&folder.join(name)),
            complaints: fs::read_to_string(folder.join(format!("{name}.error"))).unwrap_or_default(),
        };
        archives.iter().map(|(name, _)| one(name)).collect()
    }

    /// An archive of a tree by GNU tar.
    pub(super) fn archive(&self, tree: &Path, options: &[&str]) -> Vec<u8> {
        demand_gnu_tar();
        let file = self.scratch.join("made.tar");
        let output = Command::new("tar").args(options).arg("-C").arg(tree).arg("-cf").arg(&file).arg(".").output();
        let output = output.expect("tar runs");
        assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
        fs::read(file).expect("it was made")
    }

    fn folder(&self, name: &str, archives: &[(String, Vec<u8>)]) -> PathBuf {
        let folder = self.scratch.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        for (name, bytes) in archives {
            fs::write(folder.join(format!("{name}.tar")), bytes).expect("a file");
        }
        folder
    }
}

fn demand_gnu_tar() {
    let output = Command::new("tar").arg("--version").output().expect("tar runs (package `tar`)");
    assert!(String::from_utf8_lossy(&output.stdout).contains("GNU tar"), "tar has to be GNU tar");
}
