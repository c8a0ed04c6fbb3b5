//! Archives that try to escape from the layer.

use super::{
    Site, archive,
    archive::{Archive, Header},
    limits::limited,
};
use crate::unpack::{UnpackError, UnpackErrorKind};

/// Asserts a rejection with the entry and this text in the message.
#[track_caller]
fn refused(build: impl FnOnce(&str) -> Vec<u8>, entry: &str, why: &str) {
    let site = Site::new();
    let error = site.unpack(&build(&site.host())).expect_err(entry);
    assert!(
        matches!(error, UnpackError { kind: UnpackErrorKind::Refused | UnpackErrorKind::Malformed, .. }),
        "{error:?}"
    );
    let text = error.to_string();
    let host = site.host();
    assert!(text.contains(&format!("`{}`", entry.replace("HOST", &host))), "{text}");
    assert!(text.contains(why), "{text}");
}

#[test]
fn names_that_climb_are_refused() {
    for name in ["../x", "a/../../x", "..", "./../host/secret", "a/b/../../../x"] {
        refused(|_| Archive::new().file(name, "evil").end(), name, "climbs out");
        refused(|_| Archive::new().dir(name).end(), name, "climbs out");
        refused(|_| Archive::new().symlink(name, "x").end(), name, "climbs out");
    }
    refused(|_| Archive::new().file("/../x", "evil").end(), "/../x", "climbs out");
    refused(|_| Archive::new().file("/", "evil").end(), "/", "root");
    refused(|_| Archive::new().file("", "evil").end(), "", "empty");
    refused(|_| Archive::new().file(".", "evil").end(), ".", "root");
    refused(|_| Archive::new().file("d/..", "evil").end(), "d/..", "root");
}

#[test]
fn a_leading_slash_means_the_layers_root() {
    // Kaniko names the root `/`, ko its program `/ko-app/…`.
    let site = Site::new();
    let archive = Archive::new()
        .header(Header::new(b'5', "/", 0).mode(0o711))
        .file("/ko-app/x", "1")
        .file("//y", "2")
        .file(&format!("{}/secret", site.host()), "mine");
    site.unpack(&archive.end()).unwrap();
    let secret = format!("{}/secret", site.host());
    let listing = site.listing();
    for (path, what) in [("ko-app/x", "f:1"), ("y", "f:2"), (&secret[1..], "f:mine")] {
        assert_eq!(listing[path], what, "{path}");
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(site.layer()).unwrap());
    assert_eq!(mode & 0o777, 0o711);
}

#[test]
fn overridden_names_are_held_to_the_same_rules() {
    refused(|_| Archive::new().pax(&[("path", b"../x")]).file("ok", "").end(), "../x", "climbs out");
    refused(|_| Archive::new().gnu_long(b'L', "../x").file("ok", "").end(), "../x", "climbs out");
    refused(|_| Archive::new().pax(&[("path", b"a\0b")]).file("ok", "").end(), "PaxHeaders/x", "path");
    refused(
        |_| Archive::new().pax(&[("linkpath", b"../../host/secret")]).hard_link("l", "ok").end(),
        "l",
        "climbs out",
    );
    refused(|_| Archive::new().gnu_long(b'K', "../host/secret").hard_link("l", "ok").end(), "l", "climbs out");
    let sparse: [(&str, &[u8]); 5] = [
        ("GNU.sparse.major", b"0"),
        ("GNU.sparse.minor", b"1"),
        ("GNU.sparse.name", b"../x"),
        ("GNU.sparse.numblocks", b"1"),
        ("GNU.sparse.map", b"0,1"),
    ];
    refused(|_| Archive::new().pax(&sparse).file("ok", "x").end(), "../x", "climbs out");
}

#[test]
fn a_link_on_the_way_leads_where_it_leads_in_a_container() {
    let through = |target: &str| {
        [
            Archive::new().symlink("link", target).file("link/secret", "evil"),
            Archive::new().symlink("link", target).dir("link/new"),
            Archive::new().symlink("link", target).symlink("link/new", "x"),
            Archive::new().symlink("link", target).file("link/secret", "own").hard_link("copy", "link/secret"),
            Archive::new().symlink("link", target).file("a", "").hard_link("link/copy", "a"),
            Archive::new().symlink("link", target).file("link/.wh.secret", ""),
            Archive::new().symlink("link", target).file("link/.wh..wh..opq", ""),
            Archive::new().symlink("link", target).header(&Header::new(b'6', "link/fifo", 0)),
            Archive::new().symlink("a", "link").symlink("link", target).file("a/secret", "evil"),
        ]
    };
    let site = Site::new();
    for target in [site.host().as_str(), "../host", "/", "x/../../host", "../../../../../../.."] {
        for archive in through(target) {
            // `unpack` itself checks that the host is unchanged.
            Site::new().unpack(&archive.end()).unwrap();
        }
    }
    for (target, lands) in [("/etc", "etc"), ("../../etc", "etc"), ("a/../../../b", "b"), ("/../etc/../c", "c")] {
        let site = Site::new();
        site.unpack(&Archive::new().symlink("link", target).file("link/x", "1").end()).unwrap();
        assert_eq!(site.listing()[&format!("{lands}/x")], "f:1", "{target}");
    }
    // A missing target is not searched outside the layer.
    let archive = |host: &str| Archive::new().symlink("link", host).hard_link("copy", "link/secret").end();
    refused(archive, "copy", "which this layer does not have");
}

#[test]
fn the_full_host_path_below_a_link_to_the_root_stays_in_the_layer() {
    let site = Site::new();
    let name = format!("r{}/secret", site.host());
    let archive = Archive::new().symlink("r", "/").pax(&[("path", name.as_bytes())]).file("x", "mine");
    site.unpack(&archive.end()).unwrap();
    assert_eq!(site.listing()[&name[2..]], "f:mine");
}

#[test]
fn an_entry_replaces_a_link_and_never_its_target() {
    for flag in [b'0', b'5', b'2', b'6'] {
        for target in ["secret", "dir"] {
            let site = Site::new();
            let target = format!("{}/{target}", site.host());
            let header = Header::new(flag, "link", 0).link("elsewhere").mode(0o7777).owner(12, 34).clone();
            site.unpack(&Archive::new().symlink("link", &target).header(&header).end()).unwrap();
            let what = &site.listing()["link"];
            assert_ne!(*what, format!("l->{target}"));
        }
    }
}

#[test]
fn a_directory_turned_link_and_back_many_times_ends_as_the_last_entry_says() {
    let site = Site::new();
    let mut archive = Archive::new();
    for _ in 0..50 {
        archive = archive.dir("d").file("d/x", "in").symlink("d", &site.host());
        archive = archive.dir("d").file("d/secret", "mine");
    }
    site.unpack(&archive.clone().end()).unwrap();
    site.assert_listing([("d", "d"), ("d/secret", "f:mine")]);

    let site = Site::new();
    site.unpack(&archive.symlink("d", &site.host()).file("d/secret", "evil").end()).unwrap();
    assert_eq!(site.listing()[&format!("{}/secret", &site.host()[1..])], "f:evil");
}

#[test]
fn a_link_that_is_replaced_leads_to_its_new_place_at_once() {
    let site = Site::new();
    let archive = Archive::new().dir("a").dir("b").symlink("l", "a").file("l/1", "").symlink("l", "b").file("l/2", "");
    site.unpack(&archive.file("l", "").file("a/3", "").end()).unwrap();
    site.assert_listing([("a", "d"), ("a/1", "f:"), ("a/3", "f:"), ("b", "d"), ("b/2", "f:"), ("l", "f:")]);
}

#[test]
fn a_link_in_a_folder_begins_there_unless_it_is_absolute() {
    let site = Site::new();
    let archive = Archive::new().symlink("d/here", "e").symlink("d/root", "/e");
    site.unpack(&archive.file("d/here/1", "").file("d/root/2", "").end()).unwrap();
    site.assert_listing([
        ("d", "d"),
        ("d/e", "d"),
        ("d/e/1", "f:"),
        ("d/here", "l->e"),
        ("d/root", "l->/e"),
        ("e", "d"),
        ("e/2", "f:"),
    ]);
}

#[test]
fn a_link_that_goes_to_and_fro_is_bounded_by_its_steps() {
    let way = |times: usize| format!("{}d", "d/../".repeat(times));
    let archive = |times| Archive::new().dir("d").pax(&[("linkpath", way(times).as_bytes())]).symlink("l", "");
    Site::new().unpack(&archive(760).file("l/x", "").end()).unwrap();
    limited(&Site::new(), &archive(800).file("l/x", "").end(), "its parents have too many links");
    let up_alone = |times| Archive::new().pax(&[("linkpath", "../".repeat(times).as_bytes())]).symlink("l", "");
    Site::new().unpack(&up_alone(1_300).file("l/x", "").end()).unwrap();
}

#[test]
fn a_way_through_a_link_may_be_as_deep_and_as_long_as_a_name() {
    let mut site = Site::new();
    site.options.limits.depth_max = 4;
    site.options.limits.path_max = 15;
    let archive = || Archive::new().symlink("l", "aaa/bbb").symlink("m", "aaa/bbb/c");
    site.unpack(&archive().file("l/c/ddddd/f", "").end()).unwrap();
    assert_eq!(site.listing()["aaa/bbb/c/ddddd/f"], "f:");
    for too_far in ["m/d/e/f", "l/c/dddddd/f"] {
        limited(&site, &archive().file(too_far, "").end(), "too deep in the layer");
    }
}

#[test]
fn long_names_on_the_way_are_not_deep_ones() {
    let site = Site::new();
    let folder = "x".repeat(255);
    let name = format!("{folder}/{folder}/{folder}/f");
    site.unpack(&Archive::new().pax(&[("path", name.as_bytes())]).file("f", "1").end()).unwrap();
    assert_eq!(site.listing()[&name], "f:1");
}

#[test]
fn a_link_to_nowhere_is_malformed_and_not_the_disks_fault() {
    let error = Site::new().unpack(&Archive::new().symlink("l", "").end()).unwrap_err();
    assert_eq!(error.kind, UnpackErrorKind::Malformed, "{error}");
}

#[test]
fn loops_of_links_end() {
    refused(|_| Archive::new().symlink("a", "b").symlink("b", "a").file("a/x", "").end(), "a/x", "link too many");
    refused(|_| Archive::new().symlink("a", "a/b").file("a/x", "").end(), "a/x", "link too many");
}

#[test]
fn links_that_double_the_way_are_bounded() {
    let mut archive = Archive::new().dir("d").symlink("l0", "d");
    for level in 1..30 {
        let below = format!("l{}/..", level - 1);
        archive = archive.symlink(&format!("l{level}"), &format!("{below}/{below}/l{}", level - 1));
    }
    let error = Site::new().unpack(&archive.file("l29/x", "").end()).unwrap_err();
    assert!(error.to_string().contains("link"), "{error}");
}

#[test]
fn links_that_reach_ever_deeper_are_bounded() {
    let mut archive = Archive::new().symlink("l0", "d");
    for level in 1..20 {
        let way = "d/".repeat(40);
        archive = archive.symlink(&format!("l{level}"), &format!("l{}/{way}", level - 1));
    }
    for level in 0..20 {
        archive = archive.file(&format!("l{level}/x"), "");
    }
    let error = Site::new().unpack(&archive.end()).unwrap_err();
    assert!(matches!(error, UnpackError { kind: UnpackErrorKind::Limit, .. }), "{error}");
}

#[test]
fn links_inside_the_layer_are_followed() {
    let site = Site::new();
    let archive = Archive::new()
        .dir("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("usr/back", "../lib/./deep")
        .file("lib/x", "1")
        .file("usr/back/y", "2")
        .hard_link("lib/z", "lib/x");
    site.unpack(&archive.end()).unwrap();
    site.assert_listing([
        ("lib", "l->usr/lib"),
        ("usr", "d"),
        ("usr/back", "l->../lib/./deep"),
        ("usr/lib", "d"),
        ("usr/lib/deep", "d"),
        ("usr/lib/deep/y", "f:2"),
        ("usr/lib/x", "f:1"),
        ("usr/lib/z", "f:1"),
    ]);
}

#[test]
fn hard_links_stay_in_the_layer() {
    refused(|host| Archive::new().hard_link("l", &format!("{host}/secret")).end(), "l", "does not have");
    refused(|_| Archive::new().hard_link("l", "../host/secret").end(), "l", "climbs out");
    refused(|_| Archive::new().hard_link("l", "gone").end(), "l", "`gone`");
    refused(|_| Archive::new().dir("d").hard_link("l", "d").end(), "l", "directory `d`");
    refused(|_| Archive::new().file(".wh.x", "").hard_link("y", "x").end(), "y", "does not have");

    // A link to a link is a second name of the link; a file of that name replaces it.
    let site = Site::new();
    let secret = format!("{}/secret", site.host());
    let archive = Archive::new().symlink("s", &secret).hard_link("h", "s").file("h", "mine").file("s", "too");
    site.unpack(&archive.end()).unwrap();
    site.assert_listing([("h", "f:mine"), ("s", "f:too")]);
}

#[test]
fn messages_escape_and_cut_names() {
    let name = format!("../\x1b[31m`{}", "x".repeat(1000));
    let records = archive::pax_records(&[("path", name.as_bytes())]);
    let error = Site::new().unpack(&Archive::new().pax_raw(b'x', &records).file("f", "").end()).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("tar entry `../\\u{1b}[31m\\`xxx") && text.len() < 400, "{text}");
}
