//! Archives to import, as tar files and as folders: what is accepted keeps the limits, its documents are those of their
//! digests, and a folder means what a tar file of the same files means.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use imagelet_core::{error::RuntimeError, image::Digest};

use super::{
    assert_short_message, blocks,
    mutation::{self, Dice},
};
use imagelet_oci::fuzzing::{Imported, import_folder, import_tar};

const IMAGES_MAX: usize = 1000;
const LAYERS_MAX: usize = 500;
/// Begins each file of a recipe; its name follows, to the end of the line.
const FILE: &[u8] = b"\n== ";
/// A file with this name goes to its place in a layout; `@N@` and `#N#` are digest and size of the Nth one before.
const BLOB: &str = "blob";
const FILES_MAX: usize = 16;
const NAME_MAX: usize = 100;
const WORDS: [&[u8]; 24] = [
    b"\n== index.json\n",
    b"\n== manifest.json\n",
    b"\n== oci-layout\n",
    b"\n== blob\n",
    b"\n== a/layer.tar\n",
    b"\"manifests\":[{\"digest\":\"sha256:@0@\",\"size\":#0#}],",
    b"\"config\":{\"digest\":\"sha256:@1@\",\"size\":#1#},",
    b"\"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"sha256:@0@\",\"size\":#0#}],",
    b"\"mediaType\":\"application/vnd.oci.image.index.v1+json\",",
    b"\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",",
    b"\"annotations\":{\"org.opencontainers.image.ref.name\":\"v1\"},",
    b"\"annotations\":{\"io.containerd.image.name\":\"a.example/app:v1\"},",
    b"\"platform\":{\"os\":\"linux\",\"architecture\":\"amd64\"},",
    b"\"Config\":\"blobs/sha256/@0@\",",
    b"\"RepoTags\":[\"a.example/app:v1\",\"v2\"],",
    b"\"Layers\":[\"a/layer.tar\"],",
    b"\"Layers\":[\"../a\",\"/etc/passwd\"],",
    b"\"rootfs\":{\"diff_ids\":[\"sha256:@0@\"]},",
    b"@1@",
    b"#2#",
    b"\x1f\x8b\x08\0",
    b"\x28\xb5\x2f\xfd",
    b"null",
    b"\\u0007",
];

/// Imports the bytes as a tar file, and as a recipe of files.
pub(crate) fn check(bytes: &[u8], folder: &Path) {
    let tar = folder.join("archive.tar");
    fs::write(&tar, bytes).expect("the folder takes a file");
    check_imported(&import_tar(&tar));
    let files = recipe(bytes);
    if files.is_empty() {
        return;
    }
    let home = folder.join("layout");
    let _ = fs::remove_dir_all(&home);
    let mut builder = tar::Builder::new(fs::File::create(&tar).expect("the folder takes a file"));
    for (name, content) in &files {
        let path = home.join(name);
        fs::create_dir_all(path.parent().expect("is below the folder")).expect("names do not conflict");
        fs::write(&path, content).expect("names do not conflict");
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, &content[..]).expect("the name is short");
    }
    builder.into_inner().expect("the folder takes a file");
    let (of_folder, of_tar) = (import_folder(&home), import_tar(&tar));
    check_imported(&of_folder);
    assert_eq!(as_text(&of_folder), as_text(&of_tar), "a folder and a tar file of the same files");
}

fn check_imported(imported: &Imported) {
    let images = match imported {
        Ok(images) => images,
        Err(error) => return assert_short_message(error),
    };
    assert!((1..=IMAGES_MAX).contains(&images.len()));
    for image in images {
        match &image.references {
            Ok(references) => assert!(!references.is_empty()),
            Err(error) => assert_short_message(error),
        }
        match &image.chosen {
            Ok(chosen) => {
                for (digest, document) in &chosen.documents {
                    if digest.as_str().starts_with("sha256:") {
                        assert_eq!(&Digest::of(document), digest, "a document of another digest");
                    }
                }
                assert!(chosen.layers.len() <= LAYERS_MAX);
                chosen
                    .layers
                    .iter()
                    .filter_map(|layer| layer.as_ref().err())
                    .for_each(|error| assert_short_message(error));
            }
            Err(error) => assert_short_message(error),
        }
    }
}

/// Kinds of refusals and what was found, without the place.
fn as_text(imported: &Imported) -> String {
    let images = match imported {
        Ok(images) => images,
        Err(error) => return format!("{:?}", error.kind()),
    };
    let mut text = String::new();
    for image in images {
        let references = image.references.as_ref().map_err(RuntimeError::chain);
        let chosen = image.chosen.as_ref().map_err(RuntimeError::kind);
        let chosen = chosen.map(|chosen| {
            let layers: Vec<_> = chosen.layers.iter().map(|layer| layer.as_ref().map_err(RuntimeError::kind)).collect();
            format!("{:?} {layers:?}", chosen.documents)
        });
        writeln!(text, "{references:?} {chosen:?}").expect("memory takes it");
    }
    text
}

/// The files that the bytes describe, by names that a folder can have together.
fn recipe(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut blobs: Vec<(String, usize)> = Vec::new();
    let mut rest = bytes;
    while let Some(at) = find(rest, FILE).filter(|_| files.len() < FILES_MAX) {
        let section = &rest[at + FILE.len()..];
        let content = &section[..find(section, FILE).unwrap_or(section.len())];
        rest = &section[content.len()..];
        let line = content.iter().position(|&byte| byte == b'\n').unwrap_or(content.len());
        let mut body = content[(line + 1).min(content.len())..].to_vec();
        for (number, (digest, size)) in blobs.iter().enumerate() {
            replace(&mut body, &format!("@{number}@"), digest);
            replace(&mut body, &format!("#{number}#"), &size.to_string());
        }
        let mut name = String::from_utf8_lossy(&content[..line]).into_owned();
        if name == BLOB {
            let digest = Digest::of(&body).hex().to_owned();
            name = format!("blobs/sha256/{digest}");
            blobs.push((digest, body.len()));
        }
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        let is_inside = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
        let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        let conflicts = files.keys().any(|other: &String| is_inside(other, &name) || is_inside(&name, other));
        if letters && name.len() <= NAME_MAX && name.split('/').all(is_plain) && !conflicts {
            files.insert(name, body);
        }
    }
    files
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

fn replace(bytes: &mut Vec<u8>, old: &str, new: &str) {
    let mut rest = &bytes[..];
    let mut replaced = Vec::new();
    while let Some(at) = find(rest, old.as_bytes()) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(new.as_bytes());
        rest = &rest[at + old.len()..];
    }
    replaced.extend_from_slice(rest);
    *bytes = replaced;
}

/// Changes entries of a tar file, or letters and parts of a recipe.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    if bytes.starts_with(FILE) || dice.below(4) == 0 {
        mutation::change(bytes, dice, &WORDS);
    } else {
        blocks::mutate(bytes, dice);
    }
}

/// Corrects the checksums of a tar file.
pub(crate) fn repair(bytes: &mut [u8]) {
    if !bytes.starts_with(FILE) {
        blocks::repair(bytes);
    }
}
