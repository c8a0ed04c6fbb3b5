//! Whiteouts in any order with the entries that they hide.

use super::{
    Site,
    archive::{Archive, Header},
};

#[test]
fn a_whiteout_hides_a_name_of_lower_layers() {
    for site in [Site::new(), Site::rootless()] {
        site.unpack(&Archive::new().file("d/.wh.gone", "").file(".wh.dir", "").end()).unwrap();
        site.assert_listing([("d", "d"), ("d/gone", "w"), ("dir", "w")]);
    }
}

#[test]
fn an_opaque_directory_keeps_its_own_before_and_after() {
    for site in [Site::new(), Site::rootless()] {
        let archive = Archive::new().dir("d").file("d/a", "1").file("d/.wh..wh..opq", "").file("d/b", "2");
        site.unpack(&archive.file("e/.wh..wh..opq", "").end()).unwrap();
        site.assert_listing([("d", "d"), ("d/a", "f:1"), ("d/b", "f:2"), ("e", "d")]);
        assert_eq!((site.opaque("d"), site.opaque("e")), (Some(b'y'), Some(b'y')));
    }
}

#[test]
fn an_opaque_root_is_reported() {
    let site = Site::new();
    assert!(site.unpack(&Archive::new().file(".wh..wh..opq", "").end()).unwrap().root_opaque);
    assert!(!Site::new().unpack(&Archive::new().dir("./").end()).unwrap().root_opaque);
}

#[test]
fn a_layers_own_entry_beats_its_whiteout_and_hides_what_is_below() {
    let file = |archive: Archive| archive.file("x", "own");
    let dir = |archive: Archive| archive.dir("x").file("x/y", "own");
    let implied = |archive: Archive| archive.file("x/y", "own");
    let hide = |archive: Archive| archive.file(".wh.x", "");
    for archive in [file(hide(Archive::new())), hide(file(Archive::new()))] {
        let site = Site::new();
        site.unpack(&archive.end()).unwrap();
        site.assert_listing([("x", "f:own")]);
    }
    for archive in [
        dir(hide(Archive::new())),
        hide(dir(Archive::new())),
        implied(hide(Archive::new())),
        hide(implied(Archive::new())),
    ] {
        for site in [Site::new(), Site::rootless()] {
            site.unpack(&archive.clone().end()).unwrap();
            site.assert_listing([("x", "d"), ("x/y", "f:own")]);
            assert_eq!(site.opaque("x"), Some(b'y'));
        }
    }
}

#[test]
fn a_directory_that_was_a_file_in_the_same_layer_is_opaque() {
    let site = Site::new();
    site.unpack(&Archive::new().file("x", "").dir("x").dir("y").dir("y").end()).unwrap();
    assert_eq!((site.opaque("x"), site.opaque("y")), (Some(b'y'), None));
}

#[test]
fn a_whiteout_that_is_written_twice_stands() {
    let site = Site::new();
    site.unpack(&Archive::new().file(".wh.x", "").file(".wh.x", "").end()).unwrap();
    site.assert_listing([("x", "w")]);
}

#[test]
fn whiteouts_of_nothing_are_refused_and_parents_stay() {
    for name in ["d/.wh.", "d/.wh..", "d/.wh...", ".wh..", "d/.wh.x/y"] {
        let site = Site::new();
        let error = site.unpack(&Archive::new().file("d/a", "1").file(name, "").end()).unwrap_err();
        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        site.assert_listing([("d", "d"), ("d/a", "f:1")]);
    }
}

#[test]
fn bookkeeping_of_aufs_is_skipped() {
    let site = Site::new();
    let archive = Archive::new().dir(".wh..wh.plnk").file(".wh..wh.plnk/1.2", "x").file(".wh..wh.aufs", "y");
    site.unpack(&archive.file("a", "1").end()).unwrap();
    site.assert_listing([("a", "f:1")]);
}

#[test]
fn no_device_in_the_archive_acts_as_a_whiteout() {
    // The kernel truncates 4096 and 2^20 to 0.
    for (major, minor) in [(0, 0), (4096, 0), (0, 1 << 20), (4096, 1 << 20)] {
        let site = Site::new();
        let header = Header::new(b'3', "x", 0).device(major, minor).clone();
        let report = site.unpack(&Archive::new().header(&header).file("a", "1").end()).unwrap();
        site.assert_listing([("a", "f:1")]);
        assert_eq!(report.ownership[0].device.unwrap().major, i64::try_from(major).unwrap());
    }
}

#[test]
fn overlay_xattrs_of_the_archive_are_never_stored() {
    for site in [Site::new(), Site::rootless()] {
        let evil: [(&str, &[u8]); 3] = [
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("LIBARCHIVE.xattr.user%2Eoverlay.redirect", b"L2V0Yw"),
        ];
        site.unpack(&Archive::new().pax(&evil).dir("d").pax(&evil).file("f", "").end()).unwrap();
        for path in ["d", "f"] {
            for name in ["trusted.overlay.opaque", "user.overlay.opaque", "user.overlay.redirect"] {
                assert_eq!(super::xattr(&site.layer().join(path), name), None);
            }
        }
    }
}
