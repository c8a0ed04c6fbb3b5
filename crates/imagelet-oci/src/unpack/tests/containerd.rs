//! Entries that containerd reads differently, and layers for it.

use std::os::unix::fs::MetadataExt as _;

use super::{
    Site,
    archive::{Archive, Header},
    require_root, xattr,
};
use crate::unpack::EntryRules;

fn site(rules: EntryRules) -> Site {
    let mut site = Site::new();
    site.options.rules = rules;
    site
}

fn about(site: &Site, path: &str) -> std::fs::Metadata {
    std::fs::symlink_metadata(site.layer().join(path)).unwrap()
}

/// Unpacks an archive by both rules.
fn both(archive: &[u8]) -> [Site; 2] {
    [EntryRules::Own, EntryRules::Containerd].map(|rules| {
        let site = site(rules);
        site.unpack(archive).unwrap();
        site
    })
}

#[test]
fn a_root_has_no_metadata_of_its_own() {
    let archive = Archive::new().header(Header::new(b'5', "./", 0).mode(0o711)).file("a", "").end();
    let [own, theirs] = both(&archive);
    assert_eq!(about(&own, ".").mode() & 0o7777, 0o711);
    assert_ne!(about(&theirs, ".").mode() & 0o7777, 0o711);
    assert!(!both(&Archive::new().file(".wh..wh..opq", "").end()).iter().any(|site| site.opaque(".").is_none()));
}

#[test]
fn a_hard_link_sets_the_metadata_of_its_file_once_more() {
    require_root();
    let file = Archive::new()
        .pax(&[("SCHILY.xattr.user.first", b"1"), ("SCHILY.xattr.security.capability", CAPABILITY)])
        .header(Header::new(b'0', "a", 0).mode(0o4755).owner(1, 2));
    let link = |archive: Archive| {
        archive
            .pax(&[("SCHILY.xattr.user.second", b"2")])
            .header(Header::new(b'1', "b", 0).link("a").mode(0o640).owner(3, 4).number(136, 12, 77))
    };
    let [own, theirs] = both(&link(file).end());
    let seen = |site: &Site| {
        let about = about(site, "a");
        (about.mode() & 0o7777, about.uid(), about.gid(), about.mtime() == 77, about.nlink())
    };
    assert_eq!(seen(&own), (0o4755, 1, 2, false, 2));
    assert_eq!(seen(&theirs), (0o640, 3, 4, true, 2));
    let has = |site: &Site, name: &str| xattr(&site.layer().join("a"), name).is_some();
    assert!(has(&own, "security.capability") && !has(&own, "user.second"));
    assert!(!has(&theirs, "security.capability"), "a change of owner takes it away");
    assert!(has(&theirs, "user.first") && has(&theirs, "user.second"));
    // A link's own metadata is set, not its target's.
    let [_, theirs] = both(&link(Archive::new().file("target", "").symlink("a", "target")).end());
    assert_eq!((about(&theirs, "a").uid(), about(&theirs, "target").uid()), (3, 0));
    assert_eq!(about(&theirs, "target").mode() & 0o7777, 0o644);
}

/// `cap_net_raw+ep` in the kernel's format.
const CAPABILITY: &[u8] = &[1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_directory_in_the_place_of_its_whiteout_merges() {
    let archive = Archive::new().file(".wh.x", "").dir("x").file("x/y", "own").end();
    let [own, theirs] = both(&archive);
    assert_eq!((own.opaque("x"), theirs.opaque("x")), (Some(b'y'), None));
    theirs.assert_listing([("x", "d"), ("x/y", "f:own")]);
    // containerd rejects a whiteout after its directory; here the layer's own entry stays and hides the lower layers.
    for site in both(&Archive::new().dir("x").file(".wh.x", "").end()) {
        assert_eq!(site.opaque("x"), Some(b'y'));
    }
}

#[test]
fn times_that_containerd_does_not_set_are_the_epoch() {
    let at = |time: &str| Archive::new().pax(&[("mtime", time.as_bytes())]).file("a", "").end();
    for (time, own, theirs) in
        [("-5", -5, 0), ("5.5", 5, 5), ("9223372036", 9_223_372_036, 9_223_372_036), ("9223372037", 9_223_372_037, 0)]
    {
        let [mine, containerd] = both(&at(time)).map(|site| about(&site, "a").mtime());
        assert_eq!((mine, containerd), (own, theirs), "{time}");
    }
}

#[test]
fn attributes_are_those_that_containerd_sets() {
    require_root();
    let records: [(&str, &[u8]); 4] = [
        ("SCHILY.xattr.user.a", b"1"),
        ("SCHILY.xattr.trusted.b", b"1"),
        ("SCHILY.xattr.user.overlay.c", b"1"),
        ("LIBARCHIVE.xattr.user.d", b"MQ"),
    ];
    let sites = both(&Archive::new().pax(&records).file("f", "").end());
    let set = |site: &Site| {
        let has = |name: &str| xattr(&site.layer().join("f"), name).is_some();
        ["user.a", "trusted.b", "user.overlay.c", "user.d"].map(has)
    };
    assert_eq!(sites.each_ref().map(set), [[true, false, false, true], [true, false, true, false]]);
    // An attribute that the file system does not support does not fail the layer.
    let odd = Archive::new().pax(&[("SCHILY.xattr.system.none", b"1")]).file("f", "").end();
    both(&odd);
}

#[test]
fn a_global_header_means_nothing() {
    require_root();
    let archive = Archive::new().pax_raw(b'g', &super::archive::pax_records(&[("uid", b"7")])).file("f", "").end();
    assert_eq!(both(&archive).map(|site| about(&site, "f").uid()), [7, 0]);
}
