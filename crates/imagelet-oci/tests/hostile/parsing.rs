//! Archives that two readers would read in two ways, or that are no archives: B033 to B038, and B040.

use crate::{
    archive::{Archive, Header, pax_records},
    case::{Case, Tree, contained, fails, succeeds},
    fixture::Host,
};

pub(crate) fn cases(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(sizes());
    cases.extend(size_and_long_name());
    cases.extend(pax_records_that_are_none());
    cases.extend(pax_headers_in_a_row());
    cases.extend(global_headers(host));
    cases.extend(headers());
    cases.extend(truncated());
    cases.extend(ends());
    cases.extend(duplicates());
    cases
}

/// An archive in an archive: whoever takes data for headers makes `hidden`.
fn hidden() -> Vec<u8> {
    Archive::new().file("hidden", "smuggled").0
}

fn file(name: &str, size: u64) -> Header {
    Header::new(b'0', name, size)
}

fn sizes() -> Vec<Case> {
    let hidden = hidden();
    let content = String::from_utf8_lossy(&hidden).into_owned();
    let size = hidden.len().to_string();
    let tree = || Tree::new().file("f", &content).file("after", "1");
    let mut cases = Vec::new();
    for (what, stated) in [("zero", 0), ("a block", 512), ("smaller", 3), ("larger", 1 << 30), ("the same", 1024)] {
        let layer = Archive::new().pax(&[("size", &size)]).header(&file("f", stated)).data(&hidden).file("after", "1");
        cases.push(succeeds("B033", format!("over {what}"), layer.end(), tree()));
    }
    let twice = Archive::new().pax(&[("size", "0"), ("size", &size)]).header(&file("f", 0)).data(&hidden);
    cases.push(succeeds("B033", "the last of two", twice.file("after", "1").end(), tree()));
    let zero = Archive::new().pax(&[("size", "0")]).header(&file("f", 1024)).file("after", "1");
    cases.push(succeeds("B033", "zero over more", zero.end(), Tree::new().file("f", "").file("after", "1")));
    let empty = Archive::new().pax(&[("size", "9"), ("size", "")]).header(&file("f", 1024)).data(&hidden);
    cases.push(succeeds("B033", "taken back by an empty one", empty.file("after", "1").end(), tree()));
    let unknown = Archive::new().pax(&[("size", &size)]).header(&Header::new(b'Z', "odd", 0)).data(&hidden);
    cases.push(succeeds(
        "B033",
        "of an unknown type",
        unknown.file("after", "1").end(),
        Tree::new().file("after", "1"),
    ));
    let folder = Archive::new().pax(&[("size", &size)]).dir("d").file("after", "1");
    cases.push(succeeds("B033", "of a folder, which has none", folder.end(), Tree::new().dir("d").file("after", "1")));
    let mut next = Archive::new().pax(&[("size", "3")]).header(&file("f", 0)).data("abc").header(&file("g", 0));
    next = next.file("after", "1");
    let one = Tree::new().file("f", "abc").file("g", "").file("after", "1");
    cases.push(succeeds("B033", "is not the next file's", next.end(), one));
    let binary = Archive::new().header(&file("f", 0).gnu().binary(124, 12, 1024)).data(&hidden).file("after", "1");
    cases.push(succeeds("B033", "in base 256", binary.end(), tree()));
    cases
}

fn size_and_long_name() -> Vec<Case> {
    let hidden = hidden();
    let content = String::from_utf8_lossy(&hidden).into_owned();
    let size = [("size", "1024")];
    let zero = || file("x", 0);
    let tree = || Tree::new().file("long", &content).file("after", "1");
    let end = |archive: Archive| archive.header(&zero()).data(&hidden).file("after", "1").end();
    vec![
        succeeds("B034", "PAX, long name", end(Archive::new().pax(&size).gnu_long(b'L', "long")), tree()),
        succeeds("B034", "long name, PAX", end(Archive::new().gnu_long(b'L', "long").pax(&size)), tree()),
        succeeds(
            "B034",
            "PAX, long link, long name",
            end(Archive::new().pax(&size).gnu_long(b'K', "nowhere").gnu_long(b'L', "long")),
            tree(),
        ),
        succeeds(
            "B034",
            "PAX, global, long name",
            end(Archive::new().pax(&size).extended(b'g', &pax_records(&[("comment", "x")])).gnu_long(b'L', "long")),
            tree(),
        ),
        succeeds(
            "B034",
            "the long name wins over the path",
            end(Archive::new().pax(&[("size", "1024"), ("path", "other")]).gnu_long(b'L', "long")),
            tree(),
        ),
        succeeds(
            "B034",
            "the last of two long names",
            end(Archive::new().gnu_long(b'L', "first").pax(&size).gnu_long(b'L', "long")),
            tree(),
        ),
        succeeds(
            "B034",
            "a long name belongs to one entry",
            Archive::new().gnu_long(b'L', "long").file("x", "1").file("y", "2").end(),
            Tree::new().file("long", "1").file("y", "2"),
        ),
        fails("B034", "an empty long name", Archive::new().gnu_long(b'L', "").file("x", "1").end(), &["empty"]),
        fails("B034", "a long name and then nothing", Archive::new().gnu_long(b'L', "long").0, &["truncated"]),
    ]
}

fn pax_records_that_are_none() -> Vec<Case> {
    let mut cases = Vec::new();
    for records in [
        &b"9 path=a"[..],
        b"99 path=a\n",
        b"0 path=a\n",
        b"-9 path=a\n",
        b"+9 path=a\n",
        b"9path=aa\n",
        b"8 path=a\n",
        b"11 path=a\n",
        b"6 =ab\n",
        b"8 pathx\n",
        b" 9 path=a\n",
        b"0x9 path=a\n",
        b"18446744073709551625 path=a\n",
        b"99999999999999999999999 path=a\n",
        b"\n",
        b"9 path=a\n\0\0\0",
        b"5 a=",
    ] {
        let what = format!("record {:?}", String::from_utf8_lossy(records));
        let layer = Archive::new().extended(b'x', records).file("f", "1").end();
        cases.push(fails("B035", what, layer, &["PAX record", "malformed"]));
    }
    let odd = Archive::new().pax(&[("path", "a\nb=c"), ("comment", "x=y\nz"), ("VENDOR.x", "?")]).file("f", "1").end();
    cases.push(succeeds("B035", "a value with a line and an equals sign", odd, Tree::new().file("a\nb=c", "1")));
    let none = Archive::new().extended(b'x', b"").file("f", "1").end();
    cases.push(succeeds("B035", "no records at all", none, Tree::new().file("f", "1")));
    for (key, value) in
        [("size", "-1"), ("size", "1.5"), ("size", "9223372036854775808"), ("gid", "1e3"), ("atime", "x")]
    {
        let layer = Archive::new().pax(&[(key, value)]).file("f", "1").end();
        cases.push(fails("B035", format!("{key} {value}"), layer, &[key]));
    }
    let lies = Archive::new().extended(b'x', b"9 path=a\n").raw(&[]).file("f", "1").end();
    let mut cut = lies.clone();
    // The header says five bytes of records, which end in the middle of one.
    let header = Header::new(b'x', "PaxHeaders/next", 5).sealed();
    cut[..512].copy_from_slice(&header);
    cases.push(fails("B035", "records cut by the header's size", cut, &["PAX record", "malformed"]));
    cases
}

fn pax_headers_in_a_row() -> Vec<Case> {
    vec![
        succeeds(
            "B035",
            "two headers: the second counts alone",
            Archive::new().pax(&[("path", "first")]).pax(&[("mtime", "7")]).file("f", "1").end(),
            Tree::new().file("f", "1").mtime(7, 0),
        ),
        succeeds(
            "B035",
            "two headers with a path each",
            Archive::new().pax(&[("path", "first")]).pax(&[("path", "second")]).file("f", "1").end(),
            Tree::new().file("second", "1"),
        ),
        fails(
            "B035",
            "two headers, the first malformed",
            Archive::new().pax(&[("uid", "x")]).pax(&[("path", "second")]).file("f", "1").end(),
            &["uid"],
        ),
        contained(
            "B035",
            "a header before the end blocks",
            vec![Archive::new().file("f", "1").pax(&[("path", "x")]).end()],
        ),
        fails("B035", "a header and then nothing", Archive::new().pax(&[("path", "x")]).0, &["truncated"]),
        fails(
            "B035",
            "a sparse map on a folder",
            Archive::new().pax(&[("GNU.sparse.numblocks", "1"), ("GNU.sparse.map", "0,1")]).dir("d").end(),
            &["`d`", "sparse"],
        ),
        fails(
            "B035",
            "a thousand headers for nobody",
            (0..1000).fold(Archive::new(), |archive, _| archive.pax(&[("mtime", "1")])).0,
            &["truncated"],
        ),
    ]
}

fn global_headers(host: &Host) -> Vec<Case> {
    let global = |records: &[(&str, &str)]| Archive::new().extended(b'g', &pax_records(records));
    let mut cases = vec![
        succeeds(
            "B035",
            "a global header with a comment, as git writes",
            global(&[("comment", "0123456789")]).file("f", "1").end(),
            Tree::new().file("f", "1"),
        ),
        succeeds(
            "B035",
            "a global time is a default",
            {
                let archive = global(&[("mtime", "7")]).file("a", "1").pax(&[("mtime", "8")]).file("b", "2");
                archive.extended(b'g', &pax_records(&[("mtime", "")])).file("c", "3").end()
            },
            Tree::new().file("a", "1").mtime(7, 0).file("b", "2").mtime(8, 0).file("c", "3"),
        ),
        fails(
            "B035",
            "a malformed global header",
            Archive::new().extended(b'g', b"9 path=a").file("f", "").end(),
            &["malformed"],
        ),
    ];
    let (secret, size) = (host.climbing("secret"), "1024".to_owned());
    for (key, value) in [("path", &secret), ("linkpath", &secret), ("size", &size), ("GNU.sparse.name", &secret)] {
        let layer = global(&[(key, value)]).header(&file("f", 0)).data(hidden()).end();
        cases.push(fails("B035", format!("a global {key}"), layer, &[key, "all entries"]));
    }
    cases
}

fn headers() -> Vec<Case> {
    let mut flipped = file("f", 0).sealed();
    flipped[0] = b'g';
    let mut no_sum = file("f", 0).sealed();
    no_sum[148..156].fill(0);
    let mut odd_sum = file("f", 0).sealed();
    odd_sum[148..156].copy_from_slice(b"zzzzzzz\0");
    let before = || Archive::new().file("before", "1");
    let mut cases = vec![
        fails("B036", "a byte flipped", before().raw(&flipped).end(), &["`before`", "checksum"]),
        fails("B036", "no checksum", before().raw(&no_sum).end(), &["`before`", "checksum"]),
        fails("B036", "a checksum that is no number", before().raw(&odd_sum).end(), &["`before`", "checksum"]),
        fails("B036", "no archive at all", b"<html>not found</html>".repeat(200), &["start of layer", "checksum"]),
        fails("B036", "a first block of noise", [[0xa5; 512].as_slice(), &hidden()].concat(), &["checksum"]),
    ];
    let ones = [0xff; 12];
    for (what, field) in [
        ("negative, octal", &b"-0000000001\0"[..]),
        ("negative, base 256", &ones),
        ("2^62 with no data", b"\x80\0\0\0\x40\0\0\0\0\0\0\0"),
        ("2^63", b"\x80\0\0\0\x80\0\0\0\0\0\0\0"),
        ("2^90", b"\x80\x04\0\0\0\0\0\0\0\0\0\0"),
        ("hexadecimal", b"0x000000010\0"),
        ("digits of no octal", b"00000000089\0"),
        ("a word", b"many\0\0\0\0\0\0\0\0"),
        ("digits after a NUL are not read", b"7777777777\0\x39"),
    ] {
        let layer = before().header(&file("f", 0).gnu().put(124, field)).data("x").end();
        cases.push(fails("B036", format!("size {what}"), layer, &["`f`"]));
    }
    for (what, at, width) in [("mode", 100, 8), ("uid", 108, 8), ("gid", 116, 8), ("mtime", 136, 12)] {
        let header = file("f", 0).put(at, &b"no number!!!"[..width]);
        cases.push(fails("B036", format!("{what} that is no number"), before().header(&header).end(), &[what]));
    }
    let pax = Archive::new().pax(&[("size", "4611686018427387904")]).file("f", "1").end();
    cases.push(fails("B036", "a PAX size of 2^62", pax, &["`f`"]));
    let extension = Archive::new().header(&Header::new(b'x', "x", 0).gnu().binary(124, 12, -512)).file("f", "1").end();
    cases.push(fails("B036", "an extension header of a negative size", extension, &["size"]));
    let spaces = Archive::new().header(&file("f", 0).put(124, b"         1 \0")).data("1").end();
    cases.push(succeeds("B036", "spaces around a size", spaces, Tree::new().file("f", "1")));
    let empty = Archive::new().header(&file("f", 0).put(124, &[0; 12]).put(108, b"        ")).file("g", "1").end();
    cases.push(succeeds("B036", "fields left empty are zero", empty, Tree::new().file("f", "").file("g", "1")));
    cases
}

fn truncated() -> Vec<Case> {
    let whole = Archive::new().file("a", "1").pax(&[("mtime", "1")]).file("b", "x".repeat(1000)).0;
    let mut cases = Vec::new();
    for (what, at) in [
        ("in the first header", 100),
        ("after a header with data", 512),
        ("in the second header", 1100),
        ("before PAX records", 1536),
        ("in PAX records", 1540),
        ("after PAX records", 2048),
        ("in a header behind PAX records", 2100),
        ("before data", 2560),
        ("in data", 2560 + 600),
        ("in the last byte of data", 2560 + 999),
    ] {
        cases.push(fails("B037", what, whole[..at].to_vec(), &["truncated"]));
    }
    let large = Archive::new().header(&file("large", 3 << 20)).data(vec![7; 2 << 20]).0;
    cases.push(fails("B037", "in data of many blocks", large, &["`large`", "truncated"]));
    let skipped = Archive::new().header(&Header::new(b'Z', "odd", 4096)).data("x").0;
    cases.push(fails("B037", "in data that is skipped", skipped, &["`odd`", "truncated"]));
    let long = Archive::new().header(&Header::new(b'L', "././@LongLink", 2000).gnu()).data("x".repeat(700)).0;
    cases.push(fails("B037", "in a long name", long, &["truncated"]));
    let map = Archive::new().header(&Header::new(b'S', "s", 0).gnu().put(482, &[1])).0;
    cases.push(fails("B037", "in a sparse map", map, &["`s`", "truncated"]));
    cases
}

fn ends() -> Vec<Case> {
    let first = || Archive::new().file("first", "1");
    let tree = || Tree::new().file("first", "1");
    let second = Archive::new().file("second", "2").file("first", "evil").end();
    let join = |parts: &[&[u8]]| parts.concat();
    let zero = [0; 512];
    vec![
        succeeds("B038", "no end blocks", first().0, tree()),
        succeeds("B038", "no padding either", first().0[..513].to_vec(), tree()),
        succeeds("B038", "one end block", first().raw(&zero).0, tree()),
        succeeds("B038", "nothing but end blocks", vec![0; 1024], Tree::new()),
        succeeds("B038", "nothing at all", Vec::new(), Tree::new()),
        succeeds("B038", "many end blocks", join(&[&first().end(), &vec![0; 100_000]]), tree()),
        succeeds("B038", "garbage behind the end", join(&[&first().end(), &b"garbage".repeat(3000)]), tree()),
        succeeds("B038", "a second archive", join(&[&first().end(), &second]), tree()),
        succeeds(
            "B038",
            "a second archive behind more zeros",
            join(&[&first().end(), &vec![0; 9 * 1024], &second]),
            tree(),
        ),
        succeeds("B038", "a second archive first, empty", join(&[&[0; 1024], &second]), Tree::new()),
        fails(
            "B038",
            "a second archive behind one end block",
            join(&[&first().raw(&zero).0, &second]),
            &["zero block"],
        ),
        fails("B038", "a half block at the end", first().raw(&[0; 100]).0, &["truncated"]),
    ]
}

fn duplicates() -> Vec<Case> {
    let often = (0..300).fold(Archive::new(), |archive, at| archive.file("f", at.to_string()));
    vec![
        succeeds(
            "B040",
            "files",
            Archive::new().file("f", "first, and longer").file("./f", "second").end(),
            Tree::new().file("f", "second"),
        ),
        succeeds("B040", "three hundred files", often.end(), Tree::new().file("f", "299")),
        succeeds(
            "B040",
            "with all that belongs to the first",
            {
                let loud = file("f", 5).mode(0o6777).owner(5, 6);
                let attribute = [("SCHILY.xattr.user.a", "1")];
                Archive::new().pax(&attribute).header(&loud).data("first").file("f", "2").end()
            },
            Tree::new().file("f", "2").xattr("user.a", None),
        ),
        succeeds(
            "B040",
            "folders merge, and the last entry's metadata counts",
            {
                let first = Header::new(b'5', "d", 0).mode(0o700).owner(5, 5);
                let archive =
                    Archive::new().pax(&[("SCHILY.xattr.user.a", "1")]).header(&first).file("d/x", "1").dir("d/");
                archive.file("d/y", "2").end()
            },
            Tree::new().dir("d").xattr("user.a", None).file("d/x", "1").file("d/y", "2"),
        ),
        succeeds(
            "B040",
            "links",
            Archive::new().symlink("l", "first").symlink("l", "second").end(),
            Tree::new().symlink("l", "second"),
        ),
        succeeds(
            "B040",
            "names that are one when cleaned",
            Archive::new().file("a/b", "1").file("./a//b", "2").file("/a/./b", "3").file("a/x/../b", "4").end(),
            Tree::new().implied("a").file("a/b", "4"),
        ),
        succeeds(
            "B040",
            "names in two letter cases or forms are two",
            Archive::new().file("A", "1").file("a", "2").file("\u{e9}", "3").file("e\u{301}", "4").end(),
            Tree::new().file("A", "1").file("a", "2").file("\u{e9}", "3").file("e\u{301}", "4"),
        ),
    ]
}
