//! The tar format where readers disagree: this reader must agree with Go's.

use std::{fs, io::Read, os::unix::fs::MetadataExt};

use super::{
    Site, UnpackError, UnpackErrorKind,
    archive::{Archive, Header, pax_records},
};

#[track_caller]
fn malformed(archive: &[u8], why: &str) {
    let error = Site::new().unpack(archive).unwrap_err();
    assert!(matches!(error, UnpackError { kind: UnpackErrorKind::Malformed, .. }), "{error:?}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn sizes_of_what_has_no_data_are_ignored() {
    for flag in *b"23456" {
        let site = Site::new();
        let header = Header::new(flag, "x", 512).link("a").device(1, 3).clone();
        site.unpack(&Archive::new().file("a", "1").header(&header).file("b", "2").end()).unwrap();
        assert_eq!(site.listing()["b"], "f:2");
    }
}

#[test]
fn a_hard_link_with_data_is_malformed() {
    // Readers disagree whether data follows; a reader that takes it for headers makes `hidden`.
    let hidden = Archive::new().file("hidden", "").bytes();
    let link = Header::new(b'1', "l", hidden.len()).link("a").clone();
    malformed(&Archive::new().file("a", "1").header(&link).data(&hidden).end(), "hard link with data");
    let archive = Archive::new().file("a", "1").pax(&[("size", b"512")]).hard_link("l", "a").data(&hidden);
    malformed(&archive.end(), "hard link with data");
}

#[test]
fn a_pax_size_beats_the_headers_and_smuggles_nothing() {
    let hidden = Archive::new().file("hidden", "").bytes();
    for stated in [0, 512, 4096] {
        let site = Site::new();
        let archive = Archive::new().pax(&[("size", b"512")]).header(&Header::new(b'0', "f", stated)).data(&hidden);
        site.unpack(&archive.file("after", "1").end()).unwrap();
        assert_eq!(site.listing().into_keys().collect::<Vec<_>>(), ["after", "f"]);
    }
}

#[test]
fn a_pax_size_belongs_to_the_file_and_not_to_the_long_name_before_it() {
    let site = Site::new();
    let archive = Archive::new().pax(&[("size", b"3"), ("path", b"other")]).gnu_long(b'L', "long");
    site.unpack(&archive.header(&Header::new(b'0', "x", 0)).data(b"abc").file("y", "1").end()).unwrap();
    site.assert_listing([("long", "f:abc"), ("y", "f:1")]);
}

#[test]
fn of_two_pax_headers_in_a_row_the_last_counts() {
    let site = Site::new();
    let archive = Archive::new().pax(&[("path", b"first"), ("uid", b"x")]).pax(&[("path", b"second")]).file("f", "");
    malformed(&archive.end(), "uid");
    let archive = Archive::new().pax(&[("path", b"first")]).pax(&[("mtime", b"1")]).file("f", "");
    site.unpack(&archive.end()).unwrap();
    site.assert_listing([("f", "f:")]);
}

#[test]
fn a_global_header_sets_defaults_and_no_names() {
    let site = Site::new();
    let archive = Archive::new()
        .pax_raw(b'g', &pax_records(&[("comment", b"0123"), ("mtime", b"77")]))
        .file("a", "")
        .pax(&[("mtime", b"88")])
        .file("b", "")
        .file("c", "");
    site.unpack(&archive.end()).unwrap();
    let time = |path: &str| fs::metadata(site.layer().join(path)).unwrap().mtime();
    assert_eq!([time("a"), time("b"), time("c")], [77, 88, 77]);
    for key in ["path", "linkpath", "size", "GNU.sparse.map"] {
        let error = Site::new().unpack(&Archive::new().pax_raw(b'g', &pax_records(&[(key, b"1")])).file("a", "").end());
        assert!(matches!(error, Err(UnpackError { kind: UnpackErrorKind::Refused, .. })), "{key}");
    }
}

#[test]
fn old_dialects_are_read() {
    let site = Site::new();
    let mut v7_dir = Header::new(0, "v7/", 0);
    v7_dir.put(257, &[0; 8]);
    let mut prefixed = Header::new(b'0', "name", 0);
    prefixed.put(345, b"prefix/deep");
    let mut star = Header::new(b'0', "name", 0);
    // Its prefix ends where two times begin.
    star.put(345, &[b's'; 131]).put(476, b"14713142135\x0014713142135\0").put(508, b"tar\0");
    let mut full = Header::new(b'0', "name", 0);
    full.put(345, &[b'u'; 155]);
    let mut gnu = Header::new(b'0', "gnu", 0);
    gnu.gnu().put(345, b"14713142135\0");
    let mut timeless = Header::new(b'0', "timeless", 0);
    timeless.gnu().put(346, b"unused");
    let mut misplaced = Header::new(b'0', "name", 0);
    misplaced.gnu().put(345, b"old");
    let archive = Archive::new().header(&v7_dir).header(&prefixed).header(&star).header(&full);
    let archive = archive.header(&gnu).header(&timeless).header(&misplaced);
    let mut signed = Header::new(b'0', "\u{e9}", 0).sealed();
    let sum: i64 = signed
        .iter()
        .enumerate()
        .map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { i64::from(byte.cast_signed()) })
        .sum();
    signed[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    site.unpack(&archive.raw(&signed).end()).unwrap();
    let names: Vec<_> = site.listing().into_keys().collect();
    let (star, ustar) = ("s".repeat(131), "u".repeat(155));
    let (in_star, in_ustar) = (format!("{star}/name"), format!("{ustar}/name"));
    assert_eq!(
        names,
        ["gnu", "old", "old/name", "prefix", "prefix/deep", "prefix/deep/name"]
            .into_iter()
            .chain([star.as_str(), &in_star, "timeless", &ustar, &in_ustar, "v7", "é"])
            .collect::<Vec<_>>()
    );
}

#[test]
fn headers_that_are_wrong_are_told() {
    let mut broken = Header::new(b'0', "f", 0).sealed();
    broken[0] = b'g';
    malformed(&Archive::new().file("before", "").raw(&broken).end(), "`before`");
    for size in [
        &b"-0000000001\0"[..],
        b"0x000000010\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        malformed(&Archive::new().header(Header::new(b'0', "f", 0).put(124, size)).end(), "size");
    }
    for size in ["-1", "9223372036854775808", "1e3", " 1"] {
        malformed(&Archive::new().pax(&[("size", size.as_bytes())]).file("f", "").end(), "size");
    }
    malformed(&[b'x'; 2048], "checksum");
    let error = Site::new().unpack(&Archive::new().pax(&[("size", b"4611686018427387904")]).file("f", "").end());
    assert!(matches!(error, Err(UnpackError { kind: UnpackErrorKind::Limit, .. })));
}

#[test]
fn a_message_names_the_header_that_breaks() {
    let broken = Header::new(b'x', "PaxHeaders/of", 3);
    malformed(&Archive::new().file("before", "").header(&broken).data(b"xyz").end(), "`PaxHeaders/of`");
    let mut broken = Header::new(b'0', "short", 0);
    broken.put(136, b"no time");
    malformed(&Archive::new().file("before", "").header(&broken).end(), "`short`");
}

#[test]
fn truncated_archives_are_told() {
    let whole = Archive::new().file("a", "1").pax(&[("mtime", b"1")]).file("b", &"x".repeat(1000)).bytes();
    for cut in [100, 1100, 1536, 2048, 2100, 2560 + 10, 2560 + 999] {
        malformed(&whole[..cut], "truncated");
    }
    // The last padding and the end blocks may be missing.
    for end in [2560 + 1000, whole.len()] {
        let site = Site::new();
        site.unpack(&whole[..end]).unwrap();
        assert_eq!(site.listing().len(), 2);
    }
    Site::new().unpack(&[]).unwrap();
    Site::new().unpack(&[0; 512]).unwrap();
    malformed(&Archive::new().raw(&[0; 512]).file("late", "").end(), "zero block");
}

#[test]
fn what_follows_the_end_is_left_in_the_input() {
    let rest = Archive::new().file("second", "").end();
    let archive = Archive::new().file("first", "1").end();
    let bytes = [archive.as_slice(), &rest].concat();
    let site = Site::new();
    let mut input = bytes.as_slice();
    site.unpack_from(&mut input).unwrap();
    site.assert_listing([("first", "f:1")]);
    let mut left = Vec::new();
    input.read_to_end(&mut left).unwrap();
    assert_eq!(left, rest);
}

#[test]
fn unknown_types_are_skipped_with_their_data() {
    let site = Site::new();
    let hidden = Archive::new().file("hidden", "").bytes();
    let archive = Archive::new().header(&Header::new(b'Z', "odd", 512)).data(&hidden).file("a", "1");
    site.unpack(&archive.end()).unwrap();
    site.assert_listing([("a", "f:1")]);
}

#[test]
fn sparse_files_of_all_versions_get_holes_and_data() {
    const SIZE: u64 = 1 << 30;
    let size = SIZE.to_string();
    let at = (SIZE - 3).to_string();
    let map = format!("0,3,{at},3");
    let v1_map = format!("2\n0\n3\n{at}\n3\n");
    let v00: [(&str, &[u8]); 6] = [
        ("GNU.sparse.size", size.as_bytes()),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.offset", b"0"),
        ("GNU.sparse.numbytes", b"3"),
        ("GNU.sparse.offset", at.as_bytes()),
        ("GNU.sparse.numbytes", b"3"),
    ];
    let v01: [(&str, &[u8]); 3] =
        [("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.numblocks", b"2"), ("GNU.sparse.map", map.as_bytes())];
    let v10: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"f"),
        ("GNU.sparse.realsize", size.as_bytes()),
    ];
    let mut old = Header::new(b'S', "f", 6);
    old.gnu().number(386, 12, 0).number(398, 12, 3).number(410, 12, SIZE - 3).number(422, 12, 3).number(483, 12, SIZE);
    let mut extended = Header::new(b'S', "f", 6);
    extended.gnu().number(386, 12, 0).number(398, 12, 3).number(483, 12, SIZE).0[482] = 1;
    let mut extension = Header([0; 512]);
    extension.number(0, 12, SIZE - 3).number(12, 12, 3);
    for archive in [
        Archive::new().pax(&v00).file("f", "abcxyz"),
        Archive::new().pax(&v01).file("f", "abcxyz"),
        Archive::new().pax(&v10).header(&Header::new(b'0', "GNUSparse/f", 518)).data(v1_map.as_bytes()).data(b"abcxyz"),
        Archive::new().header(&old).data(b"abcxyz"),
        Archive::new().header(&extended).raw(&extension.0).data(b"abcxyz"),
    ] {
        let site = Site::new();
        let report = site.unpack(&archive.file("after", "1").end()).unwrap();
        let metadata = fs::metadata(site.layer().join("f")).unwrap();
        assert_eq!(metadata.len(), SIZE);
        assert!(metadata.blocks() < 1024, "{} blocks", metadata.blocks());
        assert_eq!((report.bytes, report.disk_bytes), (SIZE + 1, 2 * 4096));
        assert!(site.layer().join("after").exists());
        let file = fs::File::open(site.layer().join("f")).unwrap();
        let mut end = [0; 6];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut end, SIZE - 6).unwrap();
        assert_eq!(&end, b"\0\0\0xyz");
    }
}

#[test]
fn sparse_maps_that_lie_are_told() {
    let sparse = |numblocks: &str, map: &str| {
        let records: [(&str, &[u8]); 3] = [
            ("GNU.sparse.size", b"100"),
            ("GNU.sparse.numblocks", numblocks.as_bytes()),
            ("GNU.sparse.map", map.as_bytes()),
        ];
        Archive::new().pax(&records).file("f", "abcdef").end()
    };
    for (numblocks, map) in [
        ("2", "0,3,2,3"),
        ("2", "50,3,0,3"),
        ("1", "0,6,9,0"),
        ("1", "95,6"),
        ("1", "0,7"),
        ("1", "0,x"),
        ("-1", "0,6"),
        ("1", "0"),
    ] {
        malformed(&sparse(numblocks, map), "sparse map");
    }
    let v10: [(&str, &[u8]); 2] = [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")];
    let data = |text: &str| Archive::new().pax(&v10).header(&Header::new(b'0', "f", 512)).data(text.as_bytes()).end();
    malformed(&data("-1\n"), "sparse map");
    malformed(&data(&"1".repeat(100)), "sparse map");
    malformed(&data("16777216\n0\n0\n"), "sparse map");
    // The map's block has to be there, and may hold nothing.
    malformed(&Archive::new().pax(&v10).header(&Header::new(b'0', "f", 511)).data(b"0\n").end(), "sparse map");
    let hole: [(&str, &[u8]); 3] =
        [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"9")];
    let site = Site::new();
    site.unpack(&Archive::new().pax(&hole).header(&Header::new(b'0', "f", 512)).data(b"0\n").end()).unwrap();
    site.assert_listing([("f", "f:\0\0\0\0\0\0\0\0\0")]);
    let mut old = Header::new(b'S', "f", 3);
    old.number(386, 12, 0).number(398, 12, 3).number(483, 12, 3);
    malformed(&Archive::new().header(&old).data(b"abc").end(), "a header of another kind");
    let v20: [(&str, &[u8]); 2] = [("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0")];
    assert!(matches!(
        Site::new().unpack(&Archive::new().pax(&v20).file("f", "").end()),
        Err(UnpackError { kind: UnpackErrorKind::Refused, .. })
    ));
}
