//! Devices, pipes and types nobody knows: B023 to B026.

use crate::{
    archive::{Archive, Header},
    case::{Case, Tree, contained, fails, succeeds},
    fixture::Host,
};

pub(crate) fn cases(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(devices());
    cases.extend(no_whiteouts());
    cases.extend(pipes(host));
    cases.extend(unknown());
    cases
}

fn devices() -> Vec<Case> {
    let a = |archive: Archive| archive.file("a", "1").end();
    vec![
        succeeds("B023", "null", a(Archive::new().device("n", b'3', 1, 3)), {
            Tree::new().device("n", false, 1, 3).file("a", "1")
        }),
        // Opening the memory, a terminal or a watchdog would be told by more than a test.
        succeeds(
            "B023",
            "memory, a terminal, a watchdog, a disk",
            {
                let archive = Archive::new().device("mem", b'3', 1, 1).device("tty", b'3', 5, 0);
                a(archive.device("dog", b'3', 10, 130).device("disk", b'4', 8, 0))
            },
            {
                let tree =
                    Tree::new().device("mem", false, 1, 1).device("tty", false, 5, 0).device("dog", false, 10, 130);
                tree.device("disk", true, 8, 0).file("a", "1")
            },
        ),
        succeeds("B023", "the largest numbers", a(Archive::new().device("n", b'4', 0xfff, 0xf_ffff)), {
            Tree::new().device("n", true, 0xfff, 0xf_ffff).file("a", "1")
        }),
        succeeds(
            "B023",
            "numbers the kernel would cut",
            {
                let archive = Archive::new().device("big", b'3', 4096 + 1, 3).device("minor", b'4', 8, 1 << 20);
                a(archive.header(&Header::new(b'3', "huge", 0).gnu().binary(329, 8, i128::from(i64::MAX))))
            },
            Tree::new().file("a", "1"),
        ),
        succeeds(
            "B023",
            "negative numbers",
            a(Archive::new().header(&Header::new(b'3', "n", 0).gnu().binary(329, 8, -1).binary(337, 8, -1))),
            Tree::new().file("a", "1"),
        ),
        fails(
            "B023",
            "no numbers",
            a(Archive::new().header(&Header::new(b'3', "n", 0).put(329, b"zzzzzzz\0"))),
            &["`n`", "device major"],
        ),
        succeeds(
            "B023",
            "replaced by a file and a file by it",
            {
                let archive = Archive::new().device("n", b'3', 1, 3).file("n", "1").file("m", "2");
                archive.device("m", b'3', 1, 5).end()
            },
            Tree::new().file("n", "1").device("m", false, 1, 5),
        ),
        contained("B023", "as a folder", vec![Archive::new().device("n", b'3', 1, 3).file("n/x", "evil").end()]),
        contained("B023", "a second name", vec![Archive::new().device("n", b'3', 1, 3).hard_link("m", "n").end()]),
    ]
}

/// Character devices 0:0, and such that the kernel would cut down to it.
fn no_whiteouts() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, major, minor) in
        [("0:0", 0, 0), ("4096:0", 4096, 0), ("0:2^20", 0, 1 << 20), ("4096:2^20", 4096, 1 << 20)]
    {
        let upper = Archive::new().device("low", b'3', major, minor).device("d/low", b'3', major, minor);
        let tree = Tree::new().implied("d").file("own", "2");
        let lower = Archive::new().file("low", "1").dir("d").file("d/low", "1").end();
        let lower_tree = Tree::new().file("low", "1").dir("d").file("d/low", "1");
        cases.push(succeeds("B024", what, upper.file("own", "2").end(), tree).over(lower, lower_tree).merged(&[
            ("low", Some("1")),
            ("d", None),
            ("d/low", Some("1")),
            ("own", Some("2")),
        ]));
    }
    let zero = |archive: Archive| archive.device("low", b'3', 0, 0);
    let lower = || (Archive::new().file("low", "1").end(), Tree::new().file("low", "1"));
    let (low, tree) = lower();
    cases.push(
        succeeds("B024", "over the layer's own file", zero(Archive::new().file("low", "2")).end(), Tree::new())
            .over(low, tree)
            .merged(&[("low", Some("1"))]),
    );
    let (low, tree) = lower();
    cases.push(
        succeeds("B024", "with a hard link to it", zero(Archive::new()).hard_link("l", "low").end(), Tree::new())
            .over(low, tree)
            .merged(&[("low", Some("1"))]),
    );
    let (low, tree) = lower();
    let beside = zero(Archive::new().file(".wh.low", "")).end();
    cases.push(
        succeeds("B024", "beside a whiteout, which counts", beside, Tree::new().whiteout("low"))
            .over(low, tree)
            .merged(&[]),
    );
    cases.push(succeeds(
        "B024",
        "then a file",
        zero(Archive::new()).file("low", "2").end(),
        Tree::new().file("low", "2"),
    ));
    cases
}

fn pipes(host: &Host) -> Vec<Case> {
    vec![
        // Opening a pipe would wait for ever.
        succeeds("B025", "a pipe", Archive::new().fifo("p").file("a", "1").end(), Tree::new().fifo("p").file("a", "1")),
        succeeds(
            "B025",
            "a pipe with mode, owner and attributes",
            {
                let header = Header::new(b'6', "p", 0).mode(0o1622).owner(7, 8);
                Archive::new().pax(&[("SCHILY.xattr.user.a", "1")]).header(&header).end()
            },
            Tree::new().fifo("p").mode(0o1622).owner(7, 8),
        ),
        succeeds(
            "B025",
            "a file over a pipe, a pipe over a file",
            Archive::new().fifo("p").file("p", "1").file("q", "2").fifo("q").end(),
            Tree::new().file("p", "1").fifo("q"),
        ),
        succeeds(
            "B025",
            "a hard link to a pipe, then a file over it",
            Archive::new().fifo("p").hard_link("q", "p").file("q", "1").end(),
            Tree::new().fifo("p").file("q", "1"),
        ),
        succeeds(
            "B025",
            "a pipe with a size and no data",
            Archive::new().header(&Header::new(b'6', "p", 4096)).file("a", "1").end(),
            Tree::new().fifo("p").file("a", "1"),
        ),
        fails("B025", "a pipe as a folder", Archive::new().fifo("p").file("p/x", "evil").end(), &["`p/x`", "`p`"]),
        contained(
            "B025",
            "a pipe over a link to the host",
            vec![Archive::new().symlink("p", host.absolute("secret")).fifo("p").end()],
        ),
        // GNU tar and others leave sockets out; a star archive may hold one as an unknown type.
        contained("B025", "a socket", vec![Archive::new().header(&Header::new(b's', "s", 0)).file("a", "1").end()]),
    ]
}

fn unknown() -> Vec<Case> {
    let hidden = Archive::new().file("hidden", "smuggled").0;
    let mut cases = Vec::new();
    for flag in *b"89AEIQZaz\xff" {
        let header = Header::new(flag, "odd", hidden.len() as u64);
        let layer = Archive::new().header(&header).data(&hidden).file("a", "1").end();
        cases.push(succeeds("B026", format!("type {flag:#x} with data"), layer, Tree::new().file("a", "1")));
    }
    // Volume labels, multi-volume parts, folder dumps, old long names of GNU; Solaris' extended header.
    for flag in *b"VMDNX" {
        let header = Header::new(flag, "odd", hidden.len() as u64).gnu();
        let layer = Archive::new().header(&header).data(&hidden).file("a", "1").end();
        cases.push(succeeds("B026", format!("type {} of GNU", char::from(flag)), layer, Tree::new().file("a", "1")));
    }
    let sized = Archive::new().pax(&[("size", "1024"), ("path", "../../x")]).header(&Header::new(b'Z', "odd", 0));
    cases.push(contained("B026", "a PAX size and a climbing name", vec![sized.data(&hidden).file("a", "1").end()]));
    let old = Archive::new()
        .header(&Header::new(b'7', "contiguous", 1))
        .data("1")
        .header(&Header::new(0, "old", 1))
        .data("2");
    let tree = Tree::new().file("contiguous", "1").file("old", "2");
    cases.push(succeeds("B026", "contiguous and old files are files", old.end(), tree));
    cases
}
