//! The licences and notices of the crates in the program, as one text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The prefixes of the names of licence and notice files, in upper case.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// The texts of all crates in the program for `target`. A text of several crates appears once, below their names.
pub(crate) fn text(target: &str) -> Result<String> {
    let crates = linked_crates(target)?;
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in &crates {
        for path in files(&one.folder)? {
            let bytes = fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
            let text = String::from_utf8_lossy(&bytes).replace('\r', "");
            let users = by_text.entry(text.trim().to_owned()).or_default();
            let user = format!("{} {}", one.name, one.version);
            if users.last() != Some(&user) {
                users.push(user);
            }
        }
    }
    let mut out = String::from("The program imagelet contains these crates.\n\n");
    for one in &crates {
        writeln!(out, "{} {}: {}", one.name, one.version, one.license)?;
    }
    for (text, users) in by_text {
        writeln!(out, "\n{}\n{}\n\n{text}", "-".repeat(80), users.join(", "))?;
    }
    Ok(out)
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LinkedCrate {
    name: String,
    version: String,
    license: String,
    folder: PathBuf,
}

/// The crates that are linked into the program: normal dependencies, without the workspace's crates.
fn linked_crates(target: &str) -> Result<BTreeSet<LinkedCrate>> {
    let output = Command::new("cargo")
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target])
        .output()
        .context("cannot run `cargo metadata`")?;
    ensure!(output.status.success(), "`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).context("`cargo metadata` printed no JSON")?;
    let packages = by_id(&metadata["packages"]);
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let root = packages.iter().find(|(_, package)| package["name"] == "imagelet").context("no package `imagelet`")?;
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![*root.0]);
    while let Some(id) = waiting.pop() {
        if seen.insert(id) {
            let dependencies = array(&nodes[id]["deps"]);
            let linked =
                dependencies.iter().filter(|one| array(&one["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()));
            waiting.extend(linked.filter_map(|one| one["pkg"].as_str()));
        }
    }
    let packages = seen.into_iter().map(|id| packages[id]).filter(|package| !package["source"].is_null());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let crates = packages.map(|package| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        LinkedCrate {
            name: text(&package["name"]),
            version: text(&package["version"]),
            license: text(&package["license"]),
            folder: manifest.parent().unwrap_or(&manifest).to_owned(),
        }
    });
    Ok(crates.collect())
}

fn by_id(list: &Value) -> BTreeMap<&str, &Value> {
    array(list).iter().filter_map(|one| Some((one["id"].as_str()?, one))).collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The licence and notice files in a crate's folder and one level below, for example of a bundled C library.
fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut folders = entries(folder)?;
    folders.retain(|path| path.is_dir());
    for folder in folders.iter().map(PathBuf::as_path).chain([folder]) {
        let is_wanted = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            path.is_file()
                && NAMES.iter().any(|start| name.starts_with(start))
                && path.extension().is_none_or(|one| one != "rs")
        };
        found.extend(entries(folder)?.into_iter().filter(is_wanted));
    }
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read `{}`", folder.display()))?;
    Ok(entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?)
}
