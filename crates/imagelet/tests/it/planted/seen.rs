//! Secrets of a run, and where they turn up.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use imagelet_core::image::Digest;

/// A secret that occurs nowhere else, and how it may be written.
#[derive(Clone, Debug)]
pub(super) struct Marker {
    pub(super) name: &'static str,
    pub(super) text: String,
    spellings: Vec<Vec<u8>>,
}

impl Marker {
    /// A secret for a purpose, another one in each process.
    pub(super) fn new(name: &'static str) -> Self {
        Self::beginning("Zq", name)
    }

    /// One that nobody takes for a secret by its looks.
    pub(super) fn plain(name: &'static str) -> Self {
        Self::beginning("zq", name)
    }

    fn beginning(begin: &str, name: &'static str) -> Self {
        let seed = format!("{name} {} {:?}", std::process::id(), std::thread::current().id());
        let text = format!("{begin}{}", &Digest::of(seed.as_bytes()).hex()[..30]);
        let mut spellings = vec![text.clone().into_bytes(), text.chars().rev().collect::<String>().into_bytes()];
        // In base64 a text looks one of three ways, by what stands before it; its ends depend on its neighbours.
        for before in 0..3 {
            let coded = STANDARD.encode([vec![b'x'; before], text.clone().into_bytes(), b"xxx".to_vec()].concat());
            spellings.push(coded.as_bytes()[4..coded.len() - 8].to_vec());
        }
        let hex = text.bytes().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string takes all");
            hex
        });
        spellings.push(hex.into_bytes());
        Self { name, text, spellings }
    }

    /// How often it is in there, however it is written.
    pub(super) fn count(&self, bytes: &[u8]) -> usize {
        self.spellings.iter().map(|spelling| count(bytes, spelling)).sum()
    }
}

fn count(bytes: &[u8], wanted: &[u8]) -> usize {
    let mut found = 0;
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| *byte == wanted[0]) {
        rest = &rest[at..];
        if rest.starts_with(wanted) {
            found += 1;
        }
        rest = &rest[1..];
    }
    found
}

/// Everything that was seen, and which secrets were in it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    leaks: Vec<String>,
    places: usize,
}

impl Seen {
    pub(super) fn look(&mut self, place: &str, bytes: &[u8], markers: &[&Marker]) {
        self.places += 1;
        for marker in markers {
            let count = marker.count(bytes);
            if count > 0 {
                let text = String::from_utf8_lossy(bytes);
                let line = text.lines().find(|line| marker.count(line.as_bytes()) > 0).unwrap_or_default();
                let line: String = line.chars().take(600).collect();
                self.leaks.push(format!("{} is in {place}, {count} times: {line}", marker.name));
            }
        }
    }

    /// Every file below a folder, and its name.
    pub(super) fn look_below(&mut self, folder: &Path, markers: &[&Marker], spared: &[&Path]) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if spared.contains(&path.as_path()) {
                continue;
            }
            let about = path.symlink_metadata().unwrap();
            self.look(&format!("the name {}", path.display()), path.as_os_str().as_encoded_bytes(), markers);
            if about.is_dir() {
                self.look_below(&path, markers, spared);
            } else if about.is_file() {
                self.look(&path.display().to_string(), &fs::read(&path).unwrap_or_default(), markers);
            }
        }
    }

    /// What the system shows of a process to others.
    pub(super) fn look_at_process(&mut self, id: u32, markers: &[&Marker]) {
        for file in ["cmdline", "environ", "comm", "status"] {
            let path = format!("/proc/{id}/{file}");
            self.look(&path, &fs::read(&path).unwrap_or_default(), markers);
        }
    }

    pub(super) fn assert_nothing(self, places_min: usize) {
        assert!(self.places >= places_min, "only {} places were looked at", self.places);
        assert!(self.leaks.is_empty(), "{} leaks:\n{}", self.leaks.len(), self.leaks.join("\n"));
    }

    #[cfg(test)]
    pub(super) fn leaks(&self) -> &[String] {
        &self.leaks
    }
}

/// How often each secret is in the memory of a process.
pub(super) fn in_memory(id: u32, markers: &[&Marker]) -> Vec<(&'static str, usize)> {
    let mut found: Vec<(&'static str, usize)> = markers.iter().map(|marker| (marker.name, 0)).collect();
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
    let mut memory = fs::File::open(format!("/proc/{id}/mem")).unwrap();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
        let writable = rights.starts_with("rw");
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else { continue };
        if !writable {
            continue;
        }
        let mut bytes = Vec::new();
        if memory.seek(SeekFrom::Start(from)).is_err()
            || memory.by_ref().take(to - from).read_to_end(&mut bytes).is_err()
        {
            continue;
        }
        for (at, marker) in markers.iter().enumerate() {
            found[at].1 += marker.count(&bytes);
        }
    }
    found
}
