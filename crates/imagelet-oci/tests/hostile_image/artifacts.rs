//! Artifacts whose archives are bad: their members, the names of their blobs together, and their sizes.

use imagelet_core::error::RuntimeErrorKind::{self, Corrupt, Unacceptable};
use serde_json::{Value, json};

use super::{
    case::{Bench, Case},
    image::{Image, Layer, ZstdFrame, gzip, tar},
    registry::Answer,
};

const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const ARCHIVE: &str = "application/vnd.cncf.model.weight.v1.tar";
const FILE: u8 = b'0';
const HARD_LINK: u8 = b'1';
const SYMLINK: u8 = b'2';
const FOLDER: u8 = b'5';

/// An archive of members without data: kind, name, link.
fn members(members: &[(u8, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, link) in members {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::new(*kind));
        header.set_size(0);
        header.set_mode(0o644);
        // The setters refuse what a hostile builder writes.
        let bytes = header.as_mut_bytes();
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, &b""[..]).expect("memory takes all");
    }
    builder.into_inner().expect("memory takes all")
}

fn artifact(blobs: Vec<Layer>) -> Image {
    Image::of(blobs).with_config(b"{}".to_vec()).manifest(|manifest| manifest["config"]["mediaType"] = EMPTY.into())
}

fn archive(tar: &[u8]) -> Layer {
    Layer::packed(ARCHIVE, tar.to_vec(), tar)
}

fn file(title: &str) -> Layer {
    let layer = Layer::packed("application/vnd.example.part", title.as_bytes().to_vec(), b"");
    layer.described(|layer| layer["annotations"] = json!({"org.opencontainers.image.title": title}))
}

/// A folder as `oras push` packs it, with other annotations.
fn folder(title: &str, tar: &[u8], more: &Value) -> Layer {
    let mut annotations = json!({"org.opencontainers.image.title": title, "io.deis.oras.content.unpack": "true"});
    annotations.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let layer = Layer::packed("application/vnd.oci.image.layer.v1.tar+gzip", gzip(tar), tar);
    layer.described(|layer| layer["annotations"] = annotations)
}

fn refused(name: &'static str, image: Image, kind: RuntimeErrorKind, words: &[&str]) -> Case {
    Case::new("B052", name, image).fails(kind, words)
}

/// An artifact of one archive with these members.
fn member(name: &'static str, list: &[(u8, &str, &str)], words: &[&str]) -> Case {
    refused(name, artifact(vec![archive(&members(list))]), Corrupt, words)
}

/// An artifact with one name in two of its blobs.
fn twice<const N: usize>(name: &'static str, blobs: [Layer; N], path: &str) -> Case {
    let digests: Vec<String> = blobs.iter().map(|blob| format!("blob `{}`", blob.digest)).collect();
    let path = format!("has `{path}` in blob");
    let words: Vec<&str> = [path.as_str()].into_iter().chain(digests.iter().map(String::as_str)).collect();
    refused(name, artifact(blobs.into()), Unacceptable, &words)
}

pub(crate) fn cases() -> Vec<Case> {
    let one = tar(&[("d/a", b"1")]);
    let named = |name: &str| tar(&[(name, b"other")]);
    let bomb = ZstdFrame::window(20).raw(&one).run(0, 64 << 20).end();
    vec![
        member("an absolute member", &[(FILE, "/etc/cron.d/x", "")], &["`/etc/cron.d/x`", "absolute"]),
        member("a member above", &[(FILE, "a/../../x", "")], &["`a/../../x`", "`..`"]),
        member("a whiteout", &[(FILE, "d/.wh.a", "")], &["`d/.wh.a`", "begins with `.wh.`"]),
        member("an opaque folder", &[(FILE, "d/.wh..wh..opq", "")], &["begins with `.wh.`"]),
        member("a link to the node", &[(SYMLINK, "l", "/etc/shadow")], &["`l`", "`/etc/shadow`", "leaves"]),
        member("a link above", &[(FOLDER, "d/", ""), (SYMLINK, "d/l", "../../x")], &["`d/l`", "`../../x`", "leaves"]),
        member(
            "a member behind a link",
            &[(FOLDER, "d/e/", ""), (SYMLINK, "d/e/l", "../.."), (SYMLINK, "d/e/l/m", "../../x")],
            &["`d/e/l/m`", "leaves"],
        ),
        member(
            "a link that another link carries up",
            &[(SYMLINK, "d/e/l", "../../x"), (HARD_LINK, "l", "d/e/l")],
            &["`l`", "symbolic link `d/e/l`"],
        ),
        member("a hard link to the node", &[(HARD_LINK, "l", "/etc/shadow")], &["`l`", "target is absolute"]),
        member("a hard link above", &[(HARD_LINK, "l", "../x")], &["`l`", "`..`"]),
        member("a hard link to nothing", &[(HARD_LINK, "l", "x")], &["`l`", "does not have"]),
        member("a device", &[(b'3', "null", "")], &["`null`", "a device"]),
        member("a disk", &[(b'4', "disk", "")], &["`disk`", "a device"]),
        member("a pipe", &[(b'6', "pipe", "")], &["`pipe`", "named pipe"]),
        member("a member of no kind", &[(b'Z', "odd", "")], &["`odd`", "neither a file"]),
        member("a name twice", &[(FILE, "a", ""), (FILE, "./a", "")], &["`./a`", "the same name"]),
        member("a file in place of a folder", &[(FOLDER, "a", ""), (FILE, "a", "")], &["`a`", "the same name"]),
        member("a folder in place of a file", &[(FILE, "a", ""), (FOLDER, "a/", "")], &["`a/`", "the same name"]),
        member("a link in place of a file", &[(FILE, "a", ""), (SYMLINK, "a", "b")], &["`a`", "the same name"]),
        refused("no archive", artifact(vec![archive(&[7; 2000])]), Corrupt, &["sha256:", "malformed"]),
        refused("half an archive", artifact(vec![archive(&one[..512])]), Corrupt, &["sha256:", "truncated"]),
        refused(
            "a bomb",
            artifact(vec![Layer::packed("application/vnd.cncf.model.dataset.v1.tar+zstd", bomb, b"")]),
            Unacceptable,
            &["sha256:", "inflates to more than"],
        ),
        refused(
            "a member beside its folder",
            artifact(vec![folder("docs", &one, &json!({}))]),
            Corrupt,
            &["`d/a`", "outside the folder `docs`"],
        ),
        refused(
            "a folder that is a link",
            artifact(vec![folder("d", &members(&[(SYMLINK, "d", "e")]), &json!({}))]),
            Corrupt,
            &["`d`", "outside the folder `d`"],
        ),
        refused(
            "a folder of other content",
            artifact(vec![folder("d", &one, &json!({"io.deis.oras.content.digest": format!("sha256:{:064}", 7)}))]),
            Corrupt,
            &["unpacks to", "manifest says"],
        ),
        refused("a folder above", artifact(vec![folder("../d", &one, &json!({}))]), Unacceptable, &["`../d`", "`..`"])
            .never_asks("/blobs/"),
        refused(
            "two folders of one name",
            artifact(vec![folder("d", &one, &json!({})), folder("d", &named("d/b"), &json!({}))]),
            Unacceptable,
            &["`d`", "another blob"],
        )
        .never_asks("/blobs/"),
        refused(
            "a size that never comes",
            artifact(vec![file("a").described(|layer| layer["size"] = json!(1_u64 << 30))]),
            Corrupt,
            &["sha256:"],
        )
        .answering("unused", Answer::ok("", "")),
        twice("a file in two archives", [archive(&one), archive(&named("d/a"))], "d/a"),
        twice("a file beside an archive", [archive(&named("weights")), file("weights")], "weights"),
        twice("a folder in place of another's file", [archive(&one), file("d")], "d"),
        twice("a link in place of another's folder", [archive(&one), archive(&members(&[(SYMLINK, "d", "e")]))], "d"),
        twice("a file in a folder and an archive", [folder("d", &one, &json!({})), archive(&named("d/a"))], "d/a"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_with_a_bad_archive_is_refused_by_the_name_of_its_member_and_leaves_nothing() {
    Bench::new().await.hold(cases()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_names_than_an_artifact_may_have_are_refused_by_their_number_in_one_archive_and_in_several() {
    let many = |from: usize, count: usize| {
        let names: Vec<String> = (from..from + count).map(|number| format!("f{number}")).collect();
        archive(&tar(&names.iter().map(|name| (name.as_str(), &b""[..])).collect::<Vec<_>>()))
    };
    let deep: Vec<String> = (0..501).map(|number| format!("d{number}/f")).collect();
    let deep: Vec<_> = deep.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let mut bench = Bench::with(|config| config.limits.entries_max = 1_000).await;
    let case = |name, blobs, words| refused(name, artifact(blobs), Unacceptable, words);
    bench
        .hold(vec![
            case("names in one archive", vec![many(0, 1_001)], &["more than 1000 entries"]),
            case("names in two archives", vec![many(0, 600), many(600, 401)], &["has more than 1000 names"]),
            case("folders without an entry", vec![archive(&tar(&deep))], &["more than 1000 names"]),
        ])
        .await;
}
