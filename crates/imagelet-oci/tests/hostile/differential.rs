//! Ordinary and odd archives by chance, unpacked by us, by GNU tar and by Python's tarfile: one archive, one tree.
//!
//! Where the three differ on purpose, the rule stands in `rules` with its reason. `IMAGELET_DIFFERENTIAL=SEED` or
//! `SEED:COUNT` chooses other archives than the usual ones; a failure tells the seed of its archive, to run alone.

mod generator;
mod rules;
mod tools;

use std::{collections::BTreeMap, fs, path::Path};

use futures_util::{StreamExt as _, stream};
use generator::{Generated, Temper};
use rules::{Ours, Reader};
use tools::{Tools, Unpacked};

use crate::{fixture::Site, seen};

const SEED: u64 = 0x1eaf;
const COUNT: u64 = 400;

/// The first seed and how many follow it.
fn chosen() -> (u64, u64) {
    let given = std::env::var_os("IMAGELET_DIFFERENTIAL").map(|given| given.to_string_lossy().into_owned());
    let Some(given) = given else { return (SEED, COUNT) };
    let (seed, count) = given.split_once(':').unwrap_or((&given, "1"));
    (seed.parse().expect("a seed is a number"), count.parse().expect("a count is a number"))
}

/// What we made of an archive.
async fn pull(site: &Site, name: &str, bytes: &[u8]) -> Ours {
    match site.pull_as(name, bytes).await {
        Ok(folder) => Ours::Made(seen::trace_tree(&folder)),
        Err(error) => Ours::Refused(error.chain()),
    }
}

async fn pull_all(site: &Site, archives: &[(String, Vec<u8>)]) -> BTreeMap<String, Ours> {
    stream::iter(archives)
        .map(|(name, bytes)| async move { (name.clone(), pull(site, name, bytes).await) })
        .buffer_unordered(8)
        .collect()
        .await
}

/// Compares all archives by both other readers; answers what is wrong, and how many trees were held against another.
fn compare(ours: &BTreeMap<String, Ours>, theirs: &[Unpacked], reader: Reader) -> (Vec<String>, usize) {
    let mut wrong = Vec::new();
    let mut compared = 0;
    for unpacked in theirs {
        match rules::compare(&ours[&unpacked.name], unpacked, reader) {
            Ok(true) => compared += 1,
            Ok(false) => {}
            Err(why) => wrong.push(format!("{} by {reader:?}: {why}", unpacked.name)),
        }
    }
    (wrong, compared)
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_archives_become_the_trees_that_gnu_tar_and_python_make() {
    let (seed, count) = chosen();
    let archives: Vec<Generated> = (seed..seed + count)
        .map(|seed| Generated::new(seed, if seed % 2 == 0 { Temper::Tidy } else { Temper::Wild }))
        .collect();
    let named: Vec<(String, Vec<u8>)> =
        archives.iter().map(|archive| (format!("seed{}", archive.seed), archive.bytes.clone())).collect();
    let site = Site::new().await;
    let ours = pull_all(&site, &named).await;
    let tools = Tools::new(site.scratch());
    let mut wrong = Vec::new();
    let theirs = tools.gnu_tar(&named);
    let (found, compared) = compare(&ours, &theirs, Reader::GnuTar);
    wrong.extend(found);
    assert!(count < 50 || compared * 2 > theirs.len(), "only {compared} of {} were compared", theirs.len());
    // Python writes through links and follows absolute names: it gets tidy archives only.
    let tidy: Vec<_> = named
        .iter()
        .zip(&archives)
        .filter(|(_, archive)| archive.temper == Temper::Tidy)
        .map(|(named, _)| named.clone())
        .collect();
    let theirs = tools.python(&tidy);
    let (found, compared) = compare(&ours, &theirs, Reader::Python);
    wrong.extend(found);
    assert!(compared == theirs.len() || !wrong.is_empty(), "only {compared} of {} were compared", theirs.len());
    for why in &wrong {
        let seed: u64 =
            why.trim_start_matches("seed").split(' ').next().and_then(|seed| seed.parse().ok()).unwrap_or(0);
        if let Some(archive) = archives.iter().find(|archive| archive.seed == seed) {
            eprintln!("{why}\n  IMAGELET_DIFFERENTIAL={seed}\n  {}", archive.story.join("\n  "));
        }
    }
    assert!(wrong.is_empty(), "{} differences, from seed {seed} on:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_of_gnu_tar_in_every_format_become_the_tree_they_were_made_of() {
    let site = Site::new().await;
    let tools = Tools::new(site.scratch());
    let tree = site.scratch().join("original");
    plant(&tree);
    let wanted = seen::trace_tree(&tree);
    let (mut archives, mut formats) = (Vec::new(), Vec::new());
    for format in [
        &["--format=gnu"][..],
        &["--format=gnu", "--sparse"],
        &["--format=oldgnu", "--sparse"],
        &["--format=posix"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=1.0"],
        &["--format=ustar"],
        &["--format=v7", "--exclude=long*"],
    ] {
        archives.push((format!("made{}", archives.len()), tools.archive(&tree, format)));
        formats.push(format);
    }
    let ours = pull_all(&site, &archives).await;
    for (at, format) in formats.into_iter().enumerate() {
        let name = format.join(" ");
        let made = &ours[&archives[at].0];
        let Ours::Made(tree) = made else { panic!("{name}: {made:?}") };
        for (path, wanted) in &wanted {
            if name.contains("exclude") && path.starts_with(b"long") {
                continue;
            }
            let found = tree.get(path).unwrap_or_else(|| panic!("{name}: {}", String::from_utf8_lossy(path)));
            let whole_seconds = !name.contains("posix");
            rules::same_node(wanted, found, whole_seconds).unwrap_or_else(|why| {
                panic!("{name}: {}: {why}", String::from_utf8_lossy(path));
            });
        }
    }
}

/// What archives of files have in them, holes and second names included.
fn plant(tree: &Path) {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
    fs::create_dir_all(tree.join("d/e")).expect("a folder");
    for (name, content) in [("d/f", "content"), ("d/e/empty", ""), ("exact", &"x".repeat(512))] {
        fs::write(tree.join(name), content).expect("a file");
    }
    // Ustar takes a name of this length in two parts.
    let long = tree.join(format!("long/{}", "n".repeat(90)));
    fs::create_dir_all(&long).expect("a folder");
    fs::write(long.join("name"), "far away").expect("a file");
    for (name, ranges) in [
        ("holes", &[(0, 5000), (1 << 20, 4096), (5 << 20, 1)][..]),
        ("hole-first", &[(3 << 20, 100)]),
        ("many-holes", &[(0, 4096), (1 << 16, 4096), (2 << 16, 4096), (3 << 16, 4096), (4 << 16, 4096), (5 << 16, 9)]),
    ] {
        let file = fs::File::create(tree.join(name)).expect("a file");
        for &(at, length) in ranges {
            file.write_all_at(&vec![b'x'; length], at).expect("it takes it");
        }
    }
    fs::File::create(tree.join("nothing-but-hole")).and_then(|file| file.set_len(1 << 22)).expect("a file");
    fs::hard_link(tree.join("d/f"), tree.join("d/second")).expect("a link");
    fs::hard_link(tree.join("holes"), tree.join("d/e/holes-too")).expect("a link");
    symlink("../d/f", tree.join("d/link")).expect("a link");
    symlink("/nowhere/at/all", tree.join("dangling")).expect("a link");
    fs::set_permissions(tree.join("exact"), fs::Permissions::from_mode(0o751)).expect("a mode");
    fs::set_permissions(tree.join("d"), fs::Permissions::from_mode(0o1777)).expect("a mode");
}
