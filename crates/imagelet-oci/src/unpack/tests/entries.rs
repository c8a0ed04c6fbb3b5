//! The result on disk: metadata, replacements, owners.

use std::{
    fs::{self, Metadata},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    process::Command,
};

use super::{
    Site, UnpackError, UnpackErrorKind,
    archive::{Archive, Header, pax_records},
    is_root, require_root, xattr,
};
use crate::unpack::OwnershipRecord;

fn metadata(site: &Site, path: &str) -> Metadata {
    fs::symlink_metadata(site.layer().join(path)).unwrap()
}

/// Each test of this folder compares what an archive's report says with the tree; here both kinds of reports are seen.
#[test]
fn what_the_files_take_is_known_unless_a_name_came_twice_or_is_hidden() {
    for site in [Site::new(), Site::rootless()] {
        let archive = Archive::new()
            .dir("d")
            .file("d/large", &"x".repeat(100_000))
            .file("implied/deep/small", "1")
            .symlink("link", &"long/".repeat(60))
            .hard_link("again", "d/large")
            .file("e/.wh..wh..opq", "")
            .dir("d");
        let known = site.unpack(&archive.end()).unwrap().allocated.expect("each path is recorded once");
        assert!(known.bytes >= 100_000 && known.inodes == 8, "{known:?}");
    }
    for names in [["a", "a"], ["a", ".wh.b"]] {
        let archive = Archive::new().file(names[0], "1").file(names[1], "2").end();
        assert_eq!(Site::new().unpack(&archive).unwrap().allocated, None, "{names:?}");
    }
}

#[test]
fn files_written_with_direct_io_are_as_those_written_through_the_page_cache() {
    let large = (1_000_000..1_400_000).map(|number: u32| number.to_string()).collect::<Vec<_>>().join(" ");
    let archive = Archive::new()
        .file("empty", "")
        .file("small", "1")
        .file("large", &large)
        .hard_link("again", "large")
        .file("page", &large[..4096])
        .file("large", &large[1..])
        .file("last", "2")
        .end();
    let mut trees = [0, 4096, u64::MAX].map(|direct_min| {
        let mut site = Site::new();
        site.options.direct_min = direct_min;
        let report = site.unpack(&archive).unwrap();
        let content = ["empty", "small", "large", "again", "page", "last"].map(|path| {
            let metadata = metadata(&site, path);
            (fs::read(site.layer().join(path)).unwrap(), metadata.mode(), metadata.mtime())
        });
        (report.bytes, report.disk_bytes, content)
    });
    assert!(trees[2].2[2].0 == large.as_bytes()[1..] && trees[2].2[3].0 == large.as_bytes());
    trees.sort();
    assert!(trees[0] == trees[2], "they differ");
    let mut site = Site::new();
    site.options.direct_min = 0;
    let error = site.unpack(&archive[..2 << 20]).unwrap_err();
    assert_eq!(error.kind, UnpackErrorKind::Malformed, "{error}");
}

#[test]
fn the_write_back_of_files_starts_at_once_while_the_disk_is_behind() {
    let site = Site::new();
    site.options.memory.budget.set_disk_behind(true);
    site.unpack(&Archive::new().file("large", &"x".repeat(100_000)).end()).unwrap();
    // The file system allocates the blocks of a file when its write-back starts, and reports the others as `delalloc`.
    let mut filefrag = Command::new("filefrag");
    filefrag.arg("-v").arg(site.layer().join("large")).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let shown = filefrag.output().expect("filefrag is in the Debian package e2fsprogs");
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" found") && !shown.contains("delalloc"), "{shown}");
}

#[test]
fn the_last_entry_of_a_name_wins() {
    let site = Site::new();
    let archive = Archive::new()
        .file("twice", "first, longer")
        .file("twice", "second")
        .dir("to-file")
        .file("to-file/deep/x", "")
        .dir("to-file/deep/a/b")
        .file("to-file", "file")
        .file("to-dir", "file")
        .dir("to-dir")
        .file("to-dir/x", "1")
        .dir("to-link")
        .file("to-link/x", "")
        .symlink("to-link", "twice")
        .dir("stays")
        .file("stays/x", "1")
        .dir("stays");
    let report = site.unpack(&archive.end()).unwrap();
    site.assert_listing([
        ("stays", "d"),
        ("stays/x", "f:1"),
        ("to-dir", "d"),
        ("to-dir/x", "f:1"),
        ("to-file", "f:file"),
        ("to-link", "l->twice"),
        ("twice", "f:second"),
    ]);
    assert_eq!(report.bytes, 12);
    // Four files and two directories.
    assert_eq!(report.disk_bytes, 6 * 4096);
}

#[test]
fn a_replaced_file_keeps_its_other_names() {
    let site = Site::new();
    let archive = Archive::new().file("a", "old").hard_link("b", "./a").file("a", "new").hard_link("c", "/b");
    let report = site.unpack(&archive.hard_link("c", "c").end()).unwrap();
    site.assert_listing([("a", "f:new"), ("b", "f:old"), ("c", "f:old")]);
    assert_eq!(metadata(&site, "b").nlink(), 2);
    assert_eq!((report.bytes, report.disk_bytes), (6, 2 * 4096), "both are there");
}

#[test]
fn modes_and_times_are_those_of_the_archive_also_for_directories() {
    let site = Site::new();
    let archive = Archive::new()
        .header(Header::new(b'5', "./", 0).mode(0o700))
        .header(Header::new(b'5', "d", 0).mode(0o2555))
        .header(Header::new(b'0', "d/suid", 3).mode(0o4755))
        .data(b"abc")
        .header(Header::new(b'0', "d/open", 0).mode(0o666))
        .header(Header::new(b'6', "d/fifo", 0).mode(0o622))
        .symlink("d/link", "nowhere");
    let report = site.unpack(&archive.end()).unwrap();
    let mode = |path| metadata(&site, path).mode() & 0o7777;
    let kept = if is_root() { 0o2555 } else { 0o2755 };
    assert_eq!(
        [mode(""), mode("d"), mode("d/suid"), mode("d/open"), mode("d/fifo")],
        [0o700, kept, 0o4755, 0o666, 0o622]
    );
    for path in ["", "d", "d/suid", "d/open", "d/fifo", "d/link"] {
        assert_eq!(metadata(&site, path).mtime(), 1_000_000_000, "{path}");
    }
    assert_eq!(report.entries, 6);
    assert!(report.implicit_directories.is_empty());
}

#[test]
fn a_directory_its_owner_may_not_enter_is_filled_all_the_same() {
    for site in [Site::new(), Site::rootless()] {
        let archive = Archive::new().header(Header::new(b'5', "d", 0).mode(0)).file("d/e/x", "1");
        site.unpack(&archive.end()).unwrap();
        let rootless = site.options.ownership == super::Ownership::Record;
        assert_eq!(metadata(&site, "d").mode() & 0o777, if rootless { 0o700 } else { 0 });
    }
}

#[test]
fn below_a_set_gid_store_folder_files_have_the_group_that_the_archive_gives() {
    require_root();
    let site = Site::new();
    // A directory that is created in a set-gid directory inherits group 1234.
    std::os::unix::fs::chown(site.layer(), None, Some(1234)).unwrap();
    fs::set_permissions(site.layer(), std::os::unix::fs::PermissionsExt::from_mode(0o2755)).unwrap();
    let archive = Archive::new().dir("./").dir("d").file("d/f", "1").file("f", "1").file("implied/f", "1");
    site.unpack(&archive.symlink("l", "f").header(&Header::new(b'6', "p", 0)).end()).unwrap();
    for path in ["", "d", "d/f", "f", "implied", "implied/f", "l", "p"] {
        let found = metadata(&site, path);
        assert_eq!((found.gid(), found.mode() & 0o2000), (0, 0), "`{path}`");
    }
}

#[test]
fn attributes_that_programs_of_the_host_trust_are_not_taken_from_an_archive() {
    for site in [Site::new(), Site::rootless()] {
        let records = [("SCHILY.xattr.trusted.verdict", &b"clean"[..]), ("LIBARCHIVE.xattr.trusted.other", b"eQ")];
        let archive =
            Archive::new().pax(&records).dir("d").pax(&records).file("f", "1").pax(&records).symlink("l", "f");
        let report = site.unpack(&archive.pax(&records).header(&Header::new(b'6', "p", 0)).end()).unwrap();
        for path in ["d", "f", "l", "p"] {
            for name in ["trusted.verdict", "trusted.other"] {
                assert_eq!(xattr(&site.layer().join(path), name), None, "`{path}` has {name}");
            }
        }
        assert!(report.ownership.iter().all(|record| record.xattrs.is_empty()), "{:?}", report.ownership);
    }
}

#[test]
fn directories_that_no_entry_names_are_reported() {
    let site = Site::new();
    let archive = Archive::new().file("a/b/x", "").file("c/x", "").dir("c");
    let report = site.unpack(&archive.end()).unwrap();
    assert_eq!(report.implicit_directories, [b"a".to_vec(), b"a/b".to_vec()]);
    assert_eq!(metadata(&site, "a/b").mode() & 0o7777, 0o755);
}

#[test]
fn times_before_1970_and_of_fractions_are_kept() {
    let site = Site::new();
    let mut archive = Archive::new();
    for (name, mtime) in [("old", "-1.25"), ("late", "8589934593.000000007"), ("plain", "1.5")] {
        archive = archive.pax(&[("mtime", mtime.as_bytes())]).file(name, "");
    }
    site.unpack(&archive.end()).unwrap();
    let time = |path| (metadata(&site, path).mtime(), metadata(&site, path).mtime_nsec());
    assert_eq!([time("old"), time("plain")], [(-2, 750_000_000), (1, 500_000_000)]);
    assert_eq!(time("late"), (8_589_934_593, 7));
}

#[test]
fn names_that_are_not_utf8_keep_their_bytes() {
    let site = Site::new();
    site.unpack(&Archive::new().pax(&[("path", b"\xff\xfe/\xc3")]).file("x", "1").end()).unwrap();
    let path = site.layer().join(std::ffi::OsStr::from_bytes(b"\xff\xfe")).join(std::ffi::OsStr::from_bytes(b"\xc3"));
    assert_eq!(fs::read(path).unwrap(), b"1");
}

#[test]
fn as_root_owners_and_devices_are_applied() {
    require_root();
    let site = Site::new();
    let archive = Archive::new()
        .header(Header::new(b'5', "d", 0).owner(10, 20).mode(0o2755))
        .header(Header::new(b'0', "d/f", 3).owner(1000, 0o1_777_777).mode(0o6755))
        .data(b"abc")
        .header(Header::new(b'2', "d/l", 0).link("f").owner(3, 4))
        .pax(&[("uid", b"2147483648"), ("gid", b"4294967294")])
        .file("far", "")
        .file("d/mine", "")
        .header(Header::new(b'3', "null", 0).device(1, 3).mode(0o666))
        .header(Header::new(b'4', "disk", 0).device(8, 1));
    let report = site.unpack(&archive.end()).unwrap();
    let owner = |path| (metadata(&site, path).uid(), metadata(&site, path).gid());
    assert_eq!([owner("d"), owner("d/l"), owner("d/mine")], [(10, 20), (3, 4), (0, 0)]);
    assert_eq!((owner("d/f"), metadata(&site, "d/f").mode() & 0o7777), ((1000, 0o1_777_777), 0o6755));
    assert_eq!(owner("far"), (2_147_483_648, 4_294_967_294));
    // A container without CAP_MKNOD reports devices instead of making them.
    if report.ownership.is_empty() {
        assert_eq!(metadata(&site, "null").rdev(), rustix::fs::makedev(1, 3));
        assert_eq!(metadata(&site, "null").mode() & 0o777, 0o666);
        assert_eq!(metadata(&site, "disk").rdev(), rustix::fs::makedev(8, 1));
    } else {
        assert_eq!(report.ownership.len(), 2);
    }
}

#[test]
fn owners_that_the_kernel_would_misread_are_malformed() {
    for uid in ["4294967295", "-1", "-2147483649", "9223372036854775807"] {
        let error = Site::new().unpack(&Archive::new().pax(&[("uid", uid.as_bytes())]).file("f", "").end());
        assert!(matches!(error, Err(UnpackError { kind: UnpackErrorKind::Malformed, .. })), "{uid}");
    }
}

#[test]
fn a_negative_owner_is_the_unsigned_number_of_its_bits_in_each_way_that_tar_writes_it() {
    let negative = |value: i64, width: usize| {
        let bytes = value.to_be_bytes();
        [vec![0xff; width - 8], bytes.to_vec()].concat()
    };
    let by_header = |id: i64| {
        let mut header = Header::new(b'0', "f", 0);
        header.put(108, &negative(id, 8)).put(116, &negative(id, 8));
        Archive::new().header(header.gnu())
    };
    let by_pax = |id: i64| {
        let text = id.to_string();
        Archive::new().pax(&[("uid", text.as_bytes()), ("gid", text.as_bytes())]).file("f", "")
    };
    let by_global = |id: i64| {
        let text = id.to_string();
        Archive::new().pax_raw(b'g', &pax_records(&[("uid", text.as_bytes()), ("gid", text.as_bytes())])).file("f", "")
    };
    for (id, expected) in [(-2, 4_294_967_294), (-3, 4_294_967_293), (i64::from(i32::MIN), 2_147_483_648)] {
        for archive in [by_header(id), by_pax(id), by_global(id)] {
            let site = Site::rootless();
            let report = site.unpack(&archive.end()).unwrap_or_else(|error| panic!("{id}: {error}"));
            let owner = report.ownership.first().map(|record| (record.uid, record.gid));
            assert_eq!(owner, Some((expected, expected)), "{id}");
        }
    }
}

#[test]
fn without_root_owners_and_devices_are_recorded() {
    let site = Site::rootless();
    let archive = Archive::new()
        .file("plain", "")
        .header(Header::new(b'5', "d%", 0).owner(10, 20).mode(0o500))
        .header(Header::new(b'0', "d%/f", 0).owner(1000, 1001).mode(0o4755))
        .hard_link("other", "d%/f")
        .header(Header::new(b'0', "gone", 0).owner(5, 5))
        .file("gone", "")
        .dir("open")
        .header(Header::new(b'5', "shut", 0).mode(0o500))
        .header(Header::new(b'5', "theirs", 0).owner(3, 3))
        .file("null", "goes")
        .header(Header::new(b'3', "null", 0).device(1, 3).mode(0o666))
        .header(Header::new(b'4', "sda", 0).device(8, 0).mode(0o660))
        .file(".wh.tty", "")
        .header(Header::new(b'3', "tty", 0).device(5, 0).mode(0o666));
    let report = site.unpack(&archive.end()).unwrap();
    let record = |path: &str, uid, gid, mode| OwnershipRecord {
        path: path.to_owned(),
        uid,
        gid,
        mode,
        device: None,
        xattrs: Vec::new(),
    };
    let (devices, others): (Vec<_>, Vec<_>) = report.ownership.iter().partition(|record| record.device.is_some());
    let devices = devices.into_iter().map(|record| (record.path.as_str(), record.device.unwrap()));
    let devices: Vec<_> = devices.map(|(path, device)| (path, device.block, device.major, device.minor)).collect();
    assert_eq!(devices, [("null", false, 1, 3), ("sda", true, 8, 0), ("tty", false, 5, 0)]);
    let wanted = [
        record("d%25", 10, 20, 0o500),
        record("d%25/f", 1000, 1001, 0o4755),
        record("other", 1000, 1001, 0o4755),
        record("shut", 0, 0, 0o500),
        record("theirs", 3, 3, 0o755),
    ];
    assert_eq!(others.into_iter().cloned().collect::<Vec<_>>(), wanted);
    let ours = rustix::process::geteuid().as_raw();
    assert_eq!(metadata(&site, "d%/f").uid(), ours);
    assert_eq!(metadata(&site, "d%").mode() & 0o777, 0o700);
    let listing = site.listing();
    assert!(!listing.contains_key("null") && !listing.contains_key("sda"));
    assert_eq!(listing["tty"], "w", "it hides what is below, though its own node is left out");
    let json = serde_json::to_string(&report.ownership).unwrap();
    assert_eq!(serde_json::from_str::<Vec<OwnershipRecord>>(&json).unwrap(), report.ownership);
}

#[test]
fn what_takes_the_place_of_a_left_out_device_has_no_record_of_it() {
    let device = |archive: Archive| archive.header(Header::new(b'3', "x", 0).device(0, 0).mode(0o600));
    for archive in [
        device(Archive::new()).file("x", "1"),
        device(Archive::new()).symlink("x", "y"),
        device(Archive::new()).file("y", "").hard_link("x", "y"),
        device(Archive::new()).header(&Header::new(b'6', "x", 0)),
        device(Archive::new()).dir("x"),
        device(Archive::new()).file("x/y", ""),
    ] {
        let site = Site::new();
        let report = site.unpack(&archive.end()).unwrap();
        assert_eq!(report.ownership, []);
        assert!(site.listing().contains_key("x"));
    }
}

#[test]
fn a_hard_link_to_a_left_out_device_is_left_out_too() {
    let site = Site::rootless();
    let archive = Archive::new().header(Header::new(b'3', "null", 0).device(1, 3).mode(0o666)).hard_link("d/n", "null");
    let report = site.unpack(&archive.hard_link("last", "d/n").end()).unwrap();
    let paths: Vec<_> = report.ownership.iter().map(|record| record.path.as_str()).collect();
    assert_eq!(paths, ["d/n", "last", "null"]);
    assert!(report.ownership.iter().all(|record| record.device == report.ownership[0].device));
}

#[test]
fn an_xattr_the_file_system_does_not_take_is_the_archives_fault_and_not_a_full_disk() {
    // ext4 returns ENOSPC for a value larger than its block.
    let large = vec![b'x'; 63 << 10];
    let long_name = format!("SCHILY.xattr.user.{}", "x".repeat(300));
    for (key, value) in [("SCHILY.xattr.user.large", large.as_slice()), (&long_name, b"x")] {
        let site = Site::new();
        match site.unpack(&Archive::new().pax(&[(key, value)]).file("f", "").end()) {
            // XFS accepts it.
            Ok(_) => assert_eq!(key, "SCHILY.xattr.user.large"),
            Err(error) => {
                assert!(error.kind == UnpackErrorKind::Refused && error.to_string().contains("`f`"), "{error:?}");
            }
        }
    }
}

#[test]
fn xattrs_are_set_in_both_spellings_and_others_dropped() {
    let site = Site::new();
    let records: [(&str, &[u8]); 5] = [
        ("SCHILY.xattr.user.a", b"one\0two"),
        ("LIBARCHIVE.xattr.user.a", b"bm90IHRoaXM"),
        ("LIBARCHIVE.xattr.user%2Eb%20c", b"dHdv"),
        ("SCHILY.xattr.security.selinux", b"x"),
        ("SCHILY.xattr.com.apple.quarantine", b"x"),
    ];
    site.unpack(&Archive::new().pax(&records).file("f", "").pax(&records).dir("d").end()).unwrap();
    for path in ["f", "d"] {
        let path = site.layer().join(path);
        assert_eq!(xattr(&path, "user.a").unwrap(), b"one\0two");
        assert_eq!(xattr(&path, "user.b c").unwrap(), b"two");
        assert_eq!(xattr(&path, "security.selinux"), None);
    }
}

#[test]
fn capabilities_survive_the_change_of_owner() {
    let capability: &[u8] = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let records = [("SCHILY.xattr.security.capability", capability)];
    let site = if is_root() { Site::new() } else { Site::rootless() };
    let header = Header::new(b'0', "ping", 3).owner(7, 7).mode(0o755).clone();
    let report = site.unpack(&Archive::new().pax(&records).header(&header).data(b"elf").end()).unwrap();
    if is_root() {
        assert_eq!(xattr(&site.layer().join("ping"), "security.capability").unwrap(), capability);
    } else {
        assert_eq!(report.ownership[0].xattrs, ["security.capability"]);
    }
}

#[test]
fn a_default_acl_of_the_layer_does_not_change_what_lies_below() {
    // user::rwx group::--- other::---
    let acl: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\0\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    let site = Site::rootless();
    let archive = Archive::new().pax(&[("SCHILY.xattr.system.posix_acl_default", acl)]).dir("d").file("d/f", "");
    site.unpack(&archive.end()).unwrap();
    assert_eq!(metadata(&site, "d/f").mode() & 0o777, 0o644);
}

#[test]
fn an_archive_of_the_tar_crate_is_unpacked() {
    let mut builder = tar::Builder::new(Vec::new());
    let long = format!("{}/name", "long".repeat(40));
    for (name, content) in [("etc/passwd", "root"), (long.as_str(), "x"), ("empty", "")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o640);
        header.set_mtime(1_600_000_000);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    let site = Site::new();
    let report = site.unpack(&builder.into_inner().unwrap()).unwrap();
    assert_eq!((report.entries, report.bytes), (3, 5));
    assert_eq!(site.listing()[&long], "f:x");
    assert_eq!(metadata(&site, "etc/passwd").mode() & 0o7777, 0o640);
    assert_eq!(metadata(&site, "etc/passwd").mtime(), 1_600_000_000);
}
