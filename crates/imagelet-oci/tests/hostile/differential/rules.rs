//! When two trees are one, and where we differ from others on purpose.

use super::{generator::UNKNOWN, tools::Unpacked};
use crate::seen::{TracedNode, TracedTree, is_root};

/// What we made of an archive.
#[derive(Debug)]
pub(super) enum Ours {
    Made(TracedTree),
    Refused(String),
}

/// Who else read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    GnuTar,
    Python,
}

/// What GNU tar cannot do and we can: a folder with something in it gives way to what comes later, and a link to a
/// folder that is not there yet makes it, as in a container runtime. What it says then ends so.
const GNU_GIVES_UP: [&str; 6] = [
    "File exists",
    "Directory not empty",
    "Not a directory",
    "No such file or directory",
    "Removing leading",
    "Exiting with failure status",
];

/// Whether an archive became the same tree. `Ok(false)`: on purpose they are not comparable.
pub(super) fn compare(ours: &Ours, theirs: &Unpacked, reader: Reader) -> Result<bool, String> {
    let made = match ours {
        Ours::Made(tree) => tree,
        // We refuse the whole archive where they complain of an entry and go on.
        Ours::Refused(_) if !theirs.complaints.is_empty() => return Ok(false),
        Ours::Refused(why) => return Err(format!("only we refuse it: {why}")),
    };
    if !theirs.complaints.is_empty() {
        let gave_up = |line: &str| line == "failed" || GNU_GIVES_UP.iter().any(|words| line.contains(words));
        let expected = reader == Reader::GnuTar && theirs.complaints.lines().all(gave_up);
        return if expected { Ok(false) } else { Err(format!("only it refuses it: {}", theirs.complaints)) };
    }
    for (path, node) in made {
        let shown = path.escape_ascii();
        let other = theirs.tree.get(path).ok_or_else(|| format!("only we have `{shown}`"))?;
        same(node, other, reader).map_err(|why| format!("`{shown}`: {why}"))?;
    }
    // We skip what has an unknown type, they make files of it.
    let skipped = |path: &[u8]| path.starts_with(UNKNOWN.as_bytes());
    match theirs.tree.keys().find(|path| !made.contains_key(*path) && !skipped(path)) {
        Some(path) => Err(format!("only it has `{}`", path.escape_ascii())),
        None => Ok(true),
    }
}

fn same(ours: &TracedNode, theirs: &TracedNode, reader: Reader) -> Result<(), String> {
    // In GNU tar's hands a folder keeps the set-group-id bit it got from the folder above, whatever its entry says.
    let inherited = if reader == Reader::GnuTar && ours.kind == "folder" { theirs.mode & 0o2000 } else { 0 };
    same_file(ours, theirs, inherited)?;
    let (is_folder, is_link) = (ours.kind == "folder", ours.kind.starts_with("link"));
    // A folder without an entry is made now by everybody. GNU tar sets a folder's time when it first leaves it, and
    // what comes into it later changes it; we and Python set it last. Python leaves links' times alone.
    let timed = match reader {
        Reader::GnuTar => !is_folder,
        Reader::Python => !is_link,
    };
    // Python has times as floating-point numbers.
    let nanos_apart = (ours.mtime - theirs.mtime).abs();
    let slack = if reader == Reader::Python { 1_000_000 } else { 0 };
    let now = |node: &TracedNode| node.mtime > i128::from(crate::archive::MTIME + 250_000_000) * 1_000_000_000;
    let implied = is_folder && now(ours) && now(theirs);
    if timed && nanos_apart > slack && !implied {
        return Err(format!("its time is {} and {}", ours.mtime, theirs.mtime));
    }
    Ok(())
}

/// `inherited` are bits of their mode that no entry gave.
fn same_file(ours: &TracedNode, theirs: &TracedNode, inherited: u32) -> Result<(), String> {
    if ours.kind != theirs.kind {
        return Err(format!("it is {} and {}", ours.kind, theirs.kind));
    }
    if ours.content != theirs.content {
        return Err(format!("its content differs: {} and {} bytes", ours.content.len(), theirs.content.len()));
    }
    if ours.first_name != theirs.first_name {
        let shown = |name: &Option<Vec<u8>>| name.as_ref().map(|name| name.escape_ascii().to_string());
        return Err(format!("it is a name of {:?} and of {:?}", shown(&ours.first_name), shown(&theirs.first_name)));
    }
    if ours.mode | inherited != theirs.mode {
        return Err(format!("its mode is {:o} and {:o}", ours.mode, theirs.mode));
    }
    if is_root() && ours.owner != theirs.owner {
        return Err(format!("its owner is {:?} and {:?}", ours.owner, theirs.owner));
    }
    Ok(())
}

/// The same file, folder or link, but for fractions of a second where the format has none.
pub(super) fn same_node(original: &TracedNode, unpacked: &TracedNode, whole_seconds: bool) -> Result<(), String> {
    same_file(original, unpacked, 0)?;
    let unit = if whole_seconds { 1_000_000_000 } else { 1 };
    if original.mtime.div_euclid(unit) != unpacked.mtime.div_euclid(unit) {
        return Err(format!("its time is {} and {}", original.mtime, unpacked.mtime));
    }
    Ok(())
}
