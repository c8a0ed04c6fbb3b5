//! Archives that want too much: sparse maps (B039), extension headers (B041), and what memory all that takes.

use std::process::Command;

use crate::{
    archive::{Archive, Header},
    case::{Case, Tree, fails, succeeds},
    fixture::{Host, Site},
};

pub(crate) fn cases(_: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(sparse_files());
    cases.extend(sparse_lies());
    cases.extend(sparse_floods());
    cases.extend(long_headers());
    cases
}

/// Three bytes at the start of a hole, three at its end.
fn sparse_files() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, size) in [("2 GiB", 2_u64 << 30), ("100 GiB", 100 << 30)] {
        let (text, at) = (size.to_string(), (size - 3).to_string());
        let map = format!("0,3,{at},3");
        let v00 = [
            ("GNU.sparse.size", &*text),
            ("GNU.sparse.numblocks", "2"),
            ("GNU.sparse.offset", "0"),
            ("GNU.sparse.numbytes", "3"),
            ("GNU.sparse.offset", &at),
            ("GNU.sparse.numbytes", "3"),
        ];
        let v01 = [("GNU.sparse.size", &*text), ("GNU.sparse.numblocks", "2"), ("GNU.sparse.map", &map)];
        let v10 = [
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.name", "s"),
            ("GNU.sparse.realsize", &text),
        ];
        let old = Header::new(b'S', "s", 6).gnu().binary(386, 12, 0).octal(398, 12, 3);
        let old = old.binary(410, 12, (size - 3).into()).octal(422, 12, 3).binary(483, 12, size.into());
        let more = Header::new(b'S', "s", 6).gnu().octal(386, 12, 0).octal(398, 12, 3);
        let more = more.binary(483, 12, size.into()).put(482, &[1]);
        let extension = Header([0; 512]).binary(0, 12, (size - 3).into()).octal(12, 12, 3);
        let data = format!("2\n0\n3\n{at}\n3\n");
        for (version, layer) in [
            ("0.0", Archive::new().pax(&v00).file("s", "abcxyz")),
            ("0.1", Archive::new().pax(&v01).file("s", "abcxyz")),
            ("1.0", Archive::new().pax(&v10).header(&Header::new(b'0', "x", 518)).data(data).data("abcxyz")),
            ("old", Archive::new().header(&old).data("abcxyz")),
            ("old, extended", Archive::new().header(&more).raw(&extension.0).data("abcxyz")),
        ] {
            let tree = Tree::new().sparse("s", size, b"abc", b"xyz").file("after", "1");
            cases.push(succeeds("B039", format!("a hole of {what}, {version}"), layer.file("after", "1").end(), tree));
        }
    }
    cases
}

fn in_records(size: &str, blocks: &str, map: &str) -> Vec<u8> {
    let records = [("GNU.sparse.size", size), ("GNU.sparse.numblocks", blocks), ("GNU.sparse.map", map)];
    Archive::new().pax(&records).file("s", "abcdef").end()
}

fn in_data(size: &str, map: &[u8], data: u64) -> Vec<u8> {
    let records = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", size)];
    let stored = map.len().next_multiple_of(512) as u64 + data;
    Archive::new().pax(&records).header(&Header::new(b'0', "s", stored)).data(map).data(vec![7; 512]).end()
}

fn sparse_lies() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, size, blocks, map) in [
        ("overlapping", "100", "2", "0,3,2,3"),
        ("out of order", "100", "2", "50,3,0,3"),
        ("beyond the end", "100", "1", "95,6"),
        ("beyond the world", "100", "1", "9223372036854775807,6"),
        ("more data than there is", "100", "1", "0,7"),
        ("data left over", "100", "1", "0,5"),
        ("an odd number", "100", "1", "0"),
        ("a count that lies", "100", "3", "0,6"),
        ("a negative count", "100", "-1", "0,6"),
        ("a negative offset", "100", "1", "-6,6"),
        ("no numbers", "100", "1", "0,six"),
        ("a negative size", "-1", "1", "0,6"),
        ("a size of 2^62", "4611686018427387904", "1", "0,6"),
    ] {
        cases.push(fails("B039", format!("{what}, in records"), in_records(size, blocks, map), &["`s`"]));
    }
    for (what, size, map, data) in [
        ("a negative count", "9", "-1\n", 0),
        ("no end of a number", "9", &*"1".repeat(512), 0),
        ("a count without numbers", "9", "16777216\n0\n0\n", 0),
        ("overlapping", "900", "2\n0\n300\n200\n212\n", 512),
        ("beyond the end", "100", "1\n0\n512\n", 512),
        ("a size of 2^62", "4611686018427387904", "1\n0\n512\n", 512),
    ] {
        cases.push(fails("B039", format!("{what}, in the data"), in_data(size, map.as_bytes(), data), &["`s`"]));
    }
    let old = |offset, length, size| {
        let header = Header::new(b'S', "s", 6).gnu().binary(386, 12, offset).binary(398, 12, length);
        Archive::new().header(&header.binary(483, 12, size)).data("abcdef").end()
    };
    cases.push(fails("B039", "beyond the end, old", old(95, 6, 100), &["`s`", "sparse map"]));
    cases.push(fails("B039", "a negative size, old", old(0, 6, -1), &["`s`", "negative"]));
    cases.push(fails("B039", "a negative offset, old", old(-6, 6, 100), &["`s`", "sparse map"]));
    cases.push(fails("B039", "a size of 2^62, old", old(0, 6, 1 << 62), &["`s`", "limit"]));
    let not_gnu = Archive::new().header(&Header::new(b'S', "s", 0)).end();
    cases.push(fails("B039", "an old map in a header that has no place for it", not_gnu, &["`s`", "sparse"]));
    let unknown = Archive::new().pax(&[("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0")]).file("s", "").end();
    cases.push(fails("B039", "an unknown version", unknown, &["`s`", "version"]));
    cases
}

/// A map of 2^24 ranges, 64 MiB of it.
fn flood_in_data() -> Vec<u8> {
    let map = [b"16777216\n".as_slice(), &b"0\n0\n".repeat(1 << 24)].concat();
    in_data("9", &map, 0)
}

fn sparse_floods() -> Vec<Case> {
    let most = b"0\n0\n".repeat(70_000);
    let old = (0..4000).fold(Archive::new().header(&Header::new(b'S', "s", 0).gnu().put(482, &[1])), |archive, _| {
        let pairs =
            (0..21).fold(Header([0; 512]), |header, at| header.octal(at * 24, 12, 0).octal(at * 24 + 12, 12, 0));
        archive.raw(&pairs.put(504, &[1]).0)
    });
    let pairs: Vec<(&str, &str)> =
        (0..140_000).map(|at| (["GNU.sparse.offset", "GNU.sparse.numbytes"][at % 2], "0")).collect();
    let many = "0,0,".repeat(70_000) + "0,0";
    let fits = format!("{}0,0", "0,0,".repeat(60_000));
    vec![
        fails(
            "B039",
            "70,000 ranges in the data",
            in_data("9", &[b"70000\n", &most[..]].concat(), 0),
            &["`s`", "65536 ranges"],
        ),
        fails("B039", "84,000 ranges in old blocks", old.0, &["`s`", "65536 ranges"]),
        // These records are longer than a PAX header may be.
        fails(
            "B039",
            "70,000 ranges in records of their own",
            Archive::new().pax(&pairs).file("s", "").end(),
            &["1.05MB"],
        ),
        fails(
            "B039",
            "70,000 ranges in one record",
            {
                let records = [("GNU.sparse.numblocks", "70001"), ("GNU.sparse.map", &*many)];
                Archive::new().pax(&records).file("s", "").end()
            },
            &["`s`", "65536 ranges"],
        ),
        succeeds(
            "B039",
            "60,001 ranges of nothing",
            {
                let records = [("GNU.sparse.numblocks", "60001"), ("GNU.sparse.map", &*fits)];
                Archive::new().pax(&records).file("s", "").end()
            },
            Tree::new().file("s", ""),
        ),
    ]
}

fn long_headers() -> Vec<Case> {
    const LIMIT: usize = 1 << 20;
    let mut cases = Vec::new();
    for flag in *b"xgLK" {
        let name = char::from(flag);
        for (what, size) in [("1 MiB and a byte", LIMIT as u64 + 1), ("48 MiB", 48 << 20), ("8 GiB - 1", (8 << 30) - 1)]
        {
            // The data need not even be there.
            let layer = Archive::new().header(&Header::new(flag, "big", size).gnu()).data("x").end();
            cases.push(fails("B041", format!("{name} of {what}"), layer, &["1.05MB"]));
        }
        let layer = Archive::new().header(&Header::new(flag, "big", 0).gnu().binary(124, 12, 1 << 62)).end();
        cases.push(fails("B041", format!("{name} of 2^62"), layer, &["1.05MB"]));
    }
    let comment = "x".repeat(LIMIT - 20);
    let fits = Archive::new().pax(&[("comment", &comment)]).file("f", "1").end();
    cases.push(succeeds("B041", "PAX of nearly 1 MiB", fits, Tree::new().file("f", "1")));
    let name = Archive::new().gnu_long(b'L', "x".repeat(LIMIT - 1)).file("f", "1").end();
    cases.push(fails("B041", "a name of 1 MiB", name, &["`xxx", "4096 bytes"]));
    cases
}

/// Layers whose sizes must not be our memory's, with what a pull of each may add to it.
fn memory_cases() -> Vec<(&'static str, Vec<u8>, u64)> {
    /// Blocks in flight and an inflater's window take about 2 MiB; a header at its limit takes as much again.
    const FEW: u64 = 8 << 20;
    /// For 20,000 directories, whose metadata waits for the end, with names of 200 bytes.
    const LEDGER: u64 = 14 << 20;
    let huge = 48 << 20;
    let headers = |flag| Archive::new().header(&Header::new(flag, "big", huge).gnu()).data(vec![b'x'; 48 << 20]).end();
    let repeated = |flag: u8| {
        let text = "x".repeat((1 << 20) - 1);
        (0..40).fold(Archive::new(), |archive, _| archive.gnu_long(flag, &text)).file("f", "").end()
    };
    let names: Vec<String> = (0..20_000).map(|at| format!("{at:0200}")).collect();
    let hole = [("GNU.sparse.size", "2147483648"), ("GNU.sparse.numblocks", "1"), ("GNU.sparse.map", "0,1")];
    vec![
        ("B039 a map of 2^24 ranges", flood_in_data(), FEW),
        ("B039 a hole of 2 GiB", Archive::new().pax(&hole).file("s", "x").end(), FEW),
        ("B041 a PAX header of 48 MiB", headers(b'x'), FEW),
        ("B041 a long name of 48 MiB", headers(b'L'), FEW),
        ("B041 forty long links of 1 MiB", repeated(b'K'), FEW),
        ("B048 20,000 files", names.iter().fold(Archive::new(), |archive, name| archive.file(name, "")).end(), FEW),
        ("B048 20,000 folders", names.iter().fold(Archive::new(), Archive::dir).end(), LEDGER),
    ]
}

/// Runs alone in a process of its own, by the test below: what other tests take is not to be measured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures the whole process"]
async fn measured_alone() {
    let site = Site::new().await;
    let good = Archive::new().file("warm", vec![7; 3 << 20]).end();
    site.publish(&[good]);
    site.pull_published().await.expect("a first pull, which makes threads and buffers");
    site.remove("case").await.expect("it goes");
    for (what, layer, bound) in memory_cases() {
        let layers = [layer];
        site.publish(&layers);
        std::fs::write("/proc/self/clear_refs", "5").expect("the peak of memory can be set back");
        let before = status("VmRSS:");
        let pulled = site.pull_published().await;
        let growth = status("VmHWM:").saturating_sub(before);
        if pulled.is_ok() {
            site.remove("case").await.expect("it goes");
        }
        eprintln!("{what}: {} KiB, {}", growth >> 10, pulled.map_or_else(|error| error.chain(), |_| "pulled".into()));
        assert!(growth <= bound, "{what}: a pull took {growth} bytes of memory");
    }
}

/// A line of `/proc/self/status`, in bytes.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel tells it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn no_layer_decides_about_our_memory() {
    let program = std::env::current_exe().expect("we run");
    let output = Command::new(program)
        .args(["limits::measured_alone", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .expect("it runs");
    let (out, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprint!("{told}");
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{told}");
}
