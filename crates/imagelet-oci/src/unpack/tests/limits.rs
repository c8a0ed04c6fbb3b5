//! Archives that exceed limits.

use std::{
    io::{self, BufReader, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    Site, UnpackError, UnpackErrorKind,
    archive::{Archive, Header},
};

#[track_caller]
pub(super) fn limited(site: &Site, archive: &[u8], why: &str) {
    let error = site.unpack(archive).unwrap_err();
    assert!(matches!(error, UnpackError { kind: UnpackErrorKind::Limit | UnpackErrorKind::Full, .. }), "{error:?}");
    assert!(error.to_string().contains(why), "{error}");
    assert!(error.source.is_none());
}

#[test]
fn names_that_are_too_long_or_deep_are_told() {
    let named = |name: &str| Archive::new().pax(&[("path", name.as_bytes())]).file("f", "").end();
    limited(&Site::new(), &named(&"x".repeat(256)), "255");
    limited(&Site::new(), &named(&"abcdefg/".repeat(600)), "4096");
    limited(&Site::new(), &named(&"d/".repeat(2000)), "deeper");
    Site::new().unpack(&named(&format!("{}{}", "d/".repeat(500), "x".repeat(255)))).unwrap();
}

#[test]
fn a_deep_directory_can_be_replaced() {
    let site = Site::new();
    let deep = "d/".repeat(511);
    let archive = Archive::new().pax(&[("path", deep.as_bytes())]).dir("x").file("d", "flat");
    site.unpack(&archive.end()).unwrap();
    site.assert_listing([("d", "f:flat")]);
}

#[test]
fn a_directory_of_very_many_directories_is_replaced() {
    // With one scan of the parent for each entry, a layer of some megabytes takes hours.
    let site = Site::new();
    let many = (0..10_000).fold(Archive::new(), |archive, number| archive.dir(&format!("d/{number}")));
    let deep = (0..6).fold(many, |archive, number| archive.file(&format!("d/{number}/deep/{number}/x"), "1"));
    let report = site.unpack(&deep.clone().file("d", "flat").end()).unwrap();
    site.assert_listing([("d", "f:flat")]);
    assert_eq!((report.bytes, report.disk_bytes), (4, 4096));
}

#[test]
fn extension_headers_end_at_their_limit() {
    for flag in *b"xgLK" {
        let header = Header::new(flag, "big", 48 << 20);
        // The reader does not look for the data.
        limited(&Site::new(), &Archive::new().header(&header).end(), "1.05MB");
    }
    let mut site = Site::new();
    site.options.limits.header_max = 20;
    site.unpack(&Archive::new().pax_raw(b'x', b"20 comment=12345678\n").file("f", "").end()).unwrap();
    limited(&site, &Archive::new().pax_raw(b'x', b"21 comment=123456789\n").file("f", "").end(), "than 20B");
}

#[test]
fn entries_and_extension_headers_are_counted() {
    let mut site = Site::new();
    site.options.limits.entries_max = 3;
    let three = Archive::new().file("a", "").file("b", "").file("c", "");
    site.unpack(&three.clone().end()).unwrap();
    limited(&site, &three.file("d", "").end(), "3 entries");
    let headers = (0..10).fold(Archive::new(), |archive, _| archive.pax(&[("mtime", b"1")]));
    limited(&site, &headers.end(), "3 entries");
}

#[test]
fn bytes_are_counted_holes_included() {
    let mut site = Site::new();
    site.options.limits.bytes_max = 1000;
    limited(&site, &Archive::new().file("a", &"x".repeat(600)).file("b", &"x".repeat(600)).end(), "1kB");
    let hole: [(&str, &[u8]); 3] =
        [("GNU.sparse.size", b"2147483648"), ("GNU.sparse.numblocks", b"1"), ("GNU.sparse.map", b"0,1")];
    limited(&site, &Archive::new().pax(&hole).file("f", "x").end(), "1kB");
    limited(&site, &Archive::new().header(&Header::new(b'Z', "odd", 4096)).end(), "1kB");
    limited(&site, &Archive::new().header(&Header::new(b'0', ".wh.odd", 4096)).end(), "1kB");
}

/// A layer without end, cancelled after its first MiB.
struct Endless {
    cancelled: Arc<AtomicBool>,
    read: u64,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read += buffer.len() as u64;
        self.cancelled.store(self.read > 1 << 20, Ordering::Relaxed);
        assert!(self.read < 2 << 20, "it goes on");
        Ok(buffer.len())
    }
}

#[test]
fn a_large_file_that_is_cancelled_ends_amid_its_bytes() {
    let mut site = Site::new();
    site.options.limits.bytes_max = u64::MAX;
    let head = Archive::new().header(&Header::new(b'0', "endless", 1 << 32)).bytes();
    let endless = Endless { cancelled: Arc::clone(&site.options.cancelled), read: 0 };
    let error = site.unpack_from(&mut BufReader::new(head.as_slice().chain(endless))).unwrap_err();
    assert_eq!(error.kind, UnpackErrorKind::Cancelled, "{error}");
}

#[test]
fn sparse_maps_are_bounded() {
    let mut site = Site::new();
    site.options.limits.ranges_max = 8;
    let mut header = Header::new(b'S', "f", 0);
    header.gnu().number(483, 12, 0).0[482] = 1;
    let mut extension = [0; 512];
    extension[504] = 1;
    let archive = (0..20).fold(Archive::new().header(&header), |archive, _| archive.raw(&extension));
    limited(&site, &archive.end(), "sparse map");
    let map = "0,0,".repeat(20) + "0,0";
    let records: [(&str, &[u8]); 2] = [("GNU.sparse.numblocks", b"21"), ("GNU.sparse.map", map.as_bytes())];
    limited(&site, &Archive::new().pax(&records).file("f", "").end(), "8 ranges");
    let pairs = |count: usize| {
        let pair: [(&str, &[u8]); 2] = [("GNU.sparse.offset", b"0"), ("GNU.sparse.numbytes", b"0")];
        let numblocks = count.to_string();
        let head = [("GNU.sparse.numblocks", numblocks.as_bytes())];
        let records: Vec<_> = head.into_iter().chain(std::iter::repeat_n(pair, count).flatten()).collect();
        Archive::new().pax(&records).file("f", "").end()
    };
    site.unpack(&pairs(8)).unwrap();
    limited(&site, &pairs(9), "8 ranges");
    let blocks = |count: usize| {
        let more = (1..count).fold(Archive::new().header(&header), |archive, _| archive.raw(&extension));
        more.raw(&[0; 512]).end()
    };
    site.unpack(&blocks(8)).unwrap();
    limited(&site, &blocks(9), "sparse map");
}

#[test]
fn what_must_be_remembered_is_bounded() {
    let mut site = Site::new();
    site.options.memory = super::super::LayerMemory::of_its_own(64 << 10);
    let archive = (0..1000).fold(Archive::new(), |archive, number| archive.dir(&format!("d{number}")));
    limited(&site, &archive.end(), "81.9kB");
}

#[test]
fn headers_attributes_and_maps_take_memory_before_they_are_read() {
    let mut site = Site::new();
    site.options.memory = super::super::LayerMemory::of_its_own(64 << 10);
    // Of an unknown type, so that nothing is written.
    let odd = |archive: Archive| archive.header(&Header::new(b'Z', "odd", 0)).end();
    let comment = |length: usize| odd(Archive::new().pax(&[("comment", &vec![b'x'; length])]));
    site.unpack(&comment(10_000)).unwrap();
    limited(&site, &comment(30_000), "81.9kB");
    let attributes = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("SCHILY.xattr.user.{number}")).collect();
        let records: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        odd(Archive::new().pax(&records))
    };
    site.unpack(&attributes(50)).unwrap();
    limited(&site, &attributes(500), "81.9kB");
    let sparse = |ranges: usize| {
        let version: [(&str, &[u8]); 2] = [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")];
        let map = format!("{ranges}\n{}", "0\n0\n".repeat(ranges)).into_bytes();
        let size = map.len().next_multiple_of(512);
        Archive::new().pax(&version).header(&Header::new(b'0', "f", size)).data(&map).end()
    };
    site.unpack(&sparse(100)).unwrap();
    limited(&site, &sparse(3_000), "81.9kB");
}

#[test]
fn removing_a_folder_takes_memory_for_what_lies_below() {
    let site = || {
        let mut site = Site::new();
        site.options.memory = super::super::LayerMemory::of_its_own(64 << 10);
        site
    };
    let archive = (0..290).fold(Archive::new(), |archive, number| archive.dir(&format!("d/{number}")));
    site().unpack(&archive.clone().end()).unwrap();
    limited(&site(), &archive.file("d", "flat").end(), "81.9kB");
}

#[test]
fn names_of_attributes_fill_an_inode_to_the_byte() {
    let archive = |count: usize| {
        // With its final NUL, each name takes 64 bytes.
        let names: Vec<String> = (0..count).map(|number| format!("SCHILY.xattr.user.{number:058}")).collect();
        let records: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        Archive::new().pax(&records).header(&Header::new(b'Z', "odd", 0)).end()
    };
    Site::new().unpack(&archive(1_024)).unwrap();
    limited(&Site::new(), &archive(1_025), "more than 65.5kB");
}

#[test]
fn an_attribute_that_no_file_can_have_is_refused_at_the_header_with_name_and_limit() {
    let site = Site::new();
    let large = vec![b'x'; 65_537];
    let encoded = "eHh4".repeat(21_846);
    for (key, value) in [("SCHILY.xattr.user.large", &large[..]), ("LIBARCHIVE.xattr.user.large", encoded.as_bytes())] {
        limited(&site, &Archive::new().pax(&[(key, value)]).dir("d").end(), "`user.large` has 6553");
        limited(&site, &Archive::new().pax(&[(key, value)]).file("f", "1").end(), "the limit is 65536");
    }
    // Also where it would not be kept.
    limited(&site, &Archive::new().pax(&[("SCHILY.xattr.other.large", &large)]).dir("d").end(), "the limit is 65536");
    Site::new().unpack(&Archive::new().pax(&[("SCHILY.xattr.other.large", &large[1..])]).dir("d").end()).unwrap();
    let names: Vec<String> = (0..1000).map(|number| format!("SCHILY.xattr.user.{number:070}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"1"[..])).collect();
    limited(&site, &Archive::new().pax(&many).dir("d").end(), "more than 65.5kB");
    site.assert_listing([]);
}

#[test]
fn attributes_of_folders_take_memory_and_a_replaced_folder_has_those_of_its_last_entry() {
    let mut site = Site::new();
    site.options.memory = super::super::LayerMemory::of_its_own(2 << 20);
    let value = vec![b'x'; 60_000];
    let folders = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("d{number}")).collect();
        names.iter().fold(Archive::new(), |archive, name| {
            let records = [("SCHILY.xattr.user.name", name.as_bytes()), ("SCHILY.xattr.system.posix_acl_", &value[..])];
            archive.pax(&records).dir(name)
        })
    };
    limited(&site, &folders(40).end(), "2.11MB");
    let site = Site::new();
    let archive = (0..3).fold(Archive::new(), |archive, number| {
        archive.pax(&[("SCHILY.xattr.user.name", b"1")]).dir(&format!("d{number}"))
    });
    let archive = archive.pax(&[("SCHILY.xattr.user.again", b"1")]).dir("d1").file("d2", "flat");
    site.unpack(&archive.end()).unwrap();
    let of = |path: &str, name: &str| super::xattr(&site.layer().join(path), name).is_some();
    assert_eq!([of("d0", "user.name"), of("d1", "user.name"), of("d1", "user.again")], [true, false, true]);
    assert!(!of("d2", "user.name"));
}

#[test]
fn floors_of_the_disk_are_kept() {
    let mut site = Site::new();
    site.options.limits.free_bytes_floor = u64::MAX;
    limited(&site, &Archive::new().file("a", "").end(), "must stay free");
    let mut site = Site::new();
    site.options.limits.free_inodes_floor = u64::MAX;
    // File systems without inode tables have no such floor.
    let disk = rustix::fs::statvfs(site.layer()).unwrap();
    if disk.f_files > 0 {
        limited(&site, &Archive::new().file("a", "").end(), "inodes");
    }
}

#[test]
fn a_cancelled_unpacking_stops() {
    let site = Site::new();
    site.options.cancelled.store(true, Ordering::Relaxed);
    assert!(matches!(
        site.unpack(&Archive::new().file("a", "").end()),
        Err(UnpackError { kind: UnpackErrorKind::Cancelled, .. })
    ));
    site.assert_listing([]);
}

#[test]
fn a_reader_that_breaks_is_told_apart_from_the_disk() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(io::ErrorKind::ConnectionReset, "peer went away"))
        }
    }
    let site = Site::new();
    let bytes = Archive::new().file("a", &"x".repeat(3000)).bytes();
    let mut input = BufReader::new(bytes[..2000].chain(Broken));
    let error = site.unpack_from(&mut input).unwrap_err();
    assert!(error.kind == UnpackErrorKind::Read && error.to_string().contains("`a`"), "{error:?}");
    assert_eq!(error.source.as_ref().unwrap().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn an_error_of_the_disk_has_its_errno() {
    let site = Site::new();
    // Longer than any link can be, and shorter than our limit.
    let archive = Archive::new().pax(&[("linkpath", "x".repeat(4096).as_bytes())]).symlink("l", "x").end();
    let error = site.unpack(&archive).unwrap_err();
    assert!(matches!(error, UnpackError { kind: UnpackErrorKind::Io, .. }), "{error:?}");
    assert_eq!(error.source.as_ref().unwrap().raw_os_error(), Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()));
}
