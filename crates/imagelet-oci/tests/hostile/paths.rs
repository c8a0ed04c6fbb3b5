//! Names and links that want out of the layer: B001 to B013.

use crate::{
    archive::{Archive, Header},
    case::{Case, Tree, contained, fails, stack, succeeds},
    fixture::{Host, MARK},
};

pub(crate) fn cases(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(climbing(host));
    cases.extend(absolute(host));
    cases.extend(through_links(host));
    cases.extend(retyped(host));
    cases.extend(overridden(host));
    cases.extend(odd_names());
    cases.extend(long_names());
    cases
}

fn climbing(host: &Host) -> Vec<Case> {
    let mark = |climb: &str| format!("{climb}{MARK}climbed");
    let mut cases = Vec::new();
    for name in [
        mark("../"),
        mark("../../../"),
        mark(&"../".repeat(30)),
        mark("a/../../"),
        mark("./../"),
        mark("a/b/../../../"),
        mark("/../"),
        host.climbing("secret"),
        host.climbing("dir/new"),
    ] {
        let quoted = format!("`{name}`");
        cases.push(fails(
            "B001",
            format!("file {name}"),
            Archive::new().file(&name, "evil").end(),
            &[&quoted, "climbs"],
        ));
        cases.push(fails("B001", format!("folder {name}"), Archive::new().dir(&name).end(), &[&quoted, "climbs"]));
        let link = Archive::new().symlink(&name, "x").end();
        cases.push(fails("B001", format!("link {name}"), link, &[&quoted, "climbs"]));
    }
    let dots = Archive::new().file("..a/...", "1").end();
    cases.push(succeeds("B001", "dots that do not climb", dots, Tree::new().implied("..a").file("..a/...", "1")));
    let back = Archive::new().file("a/../b/../c", "1").end();
    cases.push(succeeds("B001", "up and down inside", back, Tree::new().file("c", "1")));
    cases
}

fn absolute(host: &Host) -> Vec<Case> {
    let marked = format!("{MARK}absolute");
    vec![
        succeeds("B002", "/", Archive::new().dir("/").file("/x", "1").end(), Tree::new().file("x", "1")),
        succeeds(
            "B002",
            "a new name in /",
            Archive::new().file(format!("/{marked}"), "1").end(),
            Tree::new().file(&marked, "1"),
        ),
        succeeds(
            "B002",
            "a new name in /tmp, with slashes",
            Archive::new().file(format!("//tmp///{marked}"), "1").end(),
            Tree::new().implied("tmp").file(format!("tmp/{marked}"), "1"),
        ),
        contained("B002", "a file of the host", vec![Archive::new().file(host.absolute("secret"), "evil").end()]),
        contained(
            "B002",
            "a folder of the host",
            vec![
                Archive::new()
                    .header(&Header::new(b'5', "", 0).put(0, b"d").mode(0o777))
                    .dir(host.absolute("dir"))
                    .end(),
            ],
        ),
        contained("B002", "a whiteout of the host's", vec![Archive::new().file(host.absolute(".wh.secret"), "").end()]),
        contained(
            "B002",
            "a link over the host's file",
            vec![Archive::new().symlink(host.absolute("secret"), "/etc/passwd").end()],
        ),
    ]
}

/// Every kind of write through a link, after the link is made by `target`.
fn writes_through(target: &str) -> [(&'static str, Vec<u8>); 10] {
    let link = || Archive::new().symlink("link", target);
    [
        ("new file", link().file(format!("link/{MARK}new"), "evil").end()),
        ("existing file", link().file("link/secret", "evil").end()),
        ("folder", link().header(&Header::new(b'5', "link/dir", 0).mode(0o777).owner(7, 7)).end()),
        ("the link as folder", link().header(&Header::new(b'5', "link/", 0).mode(0o777)).file("link/secret", "").end()),
        ("link", link().symlink("link/secret", "/etc/passwd").end()),
        ("hard link", link().file("a", "evil").hard_link("link/secret", "a").end()),
        ("pipe", link().fifo(&format!("link/{MARK}pipe")).end()),
        ("device", link().device("link/secret", b'3', 1, 3).end()),
        ("deep", link().file(format!("link/dir/{MARK}a/b/c"), "evil").end()),
        ("second link", link().symlink("other", "link/dir").file("other/file", "evil").end()),
    ]
}

fn through_links(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    let targets = [
        ("B003", "absolute", host.absolute("")),
        ("B003", "absolute folder", host.absolute("dir")),
        ("B005", "climbing", host.climbing("")),
        ("B005", "climbing and back", format!("x/../{}", host.climbing("dir"))),
        ("B006", "root", "/".to_owned()),
        ("B006", "above the root", "../../../../../../../../../..".to_owned()),
    ];
    for (id, way, target) in &targets {
        for (what, layer) in writes_through(target) {
            cases.push(contained(id, format!("{what} through a link, {way}"), vec![layer]));
        }
        for (what, layer) in writes_through(target) {
            // The link alone below, and the write above it.
            let (link, write) = (Archive::new().symlink("link", target).end(), layer[512..].to_vec());
            let write = if target.len() > 100 { layer.clone() } else { write };
            cases.push(contained(
                "B004",
                format!("{what} through a link of a lower layer, {id} {way}"),
                vec![link, write],
            ));
        }
    }
    let name = format!("r/{}/secret", host.path);
    cases.push(contained(
        "B006",
        "the full path of a file below a link to the root",
        vec![Archive::new().symlink("r", "/").file(&name, "evil").end()],
    ));
    let inside =
        Archive::new().symlink("link", "/etc").file("link/x", "1").symlink("up", "../../etc").file("up/y", "2");
    let tree = Tree::new().symlink("link", "/etc").symlink("up", "../../etc").implied("etc").file("etc/x", "1");
    cases.push(succeeds("B003", "links lead where they lead in a container", inside.end(), tree.file("etc/y", "2")));
    cases.push(
        stack(
            "B004",
            "a folder stands for the link of a lower layer",
            vec![
                (Archive::new().symlink("link", "/etc").end(), Tree::new().symlink("link", "/etc")),
                (Archive::new().file("link/x", "1").end(), Tree::new().implied("link").file("link/x", "1")),
            ],
        )
        .merged(&[("link", None), ("link/x", Some("1"))]),
    );
    cases.extend(loops());
    cases
}

fn loops() -> Vec<Case> {
    let chain = |length: usize| {
        let links =
            (0..length).fold(Archive::new(), |archive, at| archive.symlink(format!("l{at}"), format!("l{}", at + 1)));
        links.dir(format!("l{length}")).file("l0/x", "1").end()
    };
    let doubling = (1..30).fold(Archive::new().dir("d").symlink("l0", "d"), |archive, level| {
        let below = format!("l{}/..", level - 1);
        archive.symlink(format!("l{level}"), format!("{below}/{below}/l{}", level - 1))
    });
    let growing = (1..30).fold(Archive::new().symlink("l0", "d"), |archive, level| {
        archive.symlink(format!("l{level}"), format!("l{}/{}", level - 1, "d/".repeat(40)))
    });
    vec![
        fails("B008", "to itself", Archive::new().symlink("a", "a").file("a/x", "").end(), &["`a/x`", "link too many"]),
        fails(
            "B008",
            "two links in a circle",
            Archive::new().symlink("a", "b").symlink("b", "/a").file("a/x", "").end(),
            &["`a/x`", "link too many"],
        ),
        fails(
            "B008",
            "below itself",
            Archive::new().symlink("a", "a/b").file("a/x", "").end(),
            &["`a/x`", "link too many"],
        ),
        fails(
            "B008",
            "as the target of a hard link",
            Archive::new().symlink("a", "b/c").symlink("b", "a/c").hard_link("h", "a/x").end(),
            &["`h`", "link too many"],
        ),
        fails("B008", "a chain of 41", chain(41), &["`l0/x`", "link too many"]),
        contained("B008", "a chain of 39", vec![chain(39)]),
        fails("B008", "links that double the way", doubling.file("l29/x", "").end(), &["`l29/x`", "link"]),
        fails("B008", "links that reach ever deeper", growing.file("l29/x", "").end(), &["`l29/x`", "too deep"]),
    ]
}

fn retyped(host: &Host) -> Vec<Case> {
    let mut often = Archive::new();
    for _ in 0..100 {
        often = often.dir("d").file("d/x", "in").symlink("d", host.absolute("")).dir("d").file("d/secret", "mine");
        often = often.file("d", "file").symlink("d", host.climbing("dir")).dir("d").file("d/y", "last");
    }
    let deep = |archive: Archive| archive.dir("a/b/c").file("a/b/c/x", "1");
    let parent = deep(deep(Archive::new()).symlink("a/b", host.absolute("dir")).dir("a/b"));
    let tree = || Tree::new().implied("a").dir("a/b").dir("a/b/c").file("a/b/c/x", "1");
    vec![
        succeeds("B007", "a hundred times", often.clone().end(), Tree::new().dir("d").file("d/y", "last")),
        contained(
            "B007",
            "a hundred times, then through the link",
            vec![often.symlink("d", host.absolute("")).file("d/secret", "evil").end()],
        ),
        succeeds("B007", "a parent in the middle", parent.end(), tree()),
        succeeds(
            "B007",
            "a parent that other names have led through",
            Archive::new()
                .dir("a/b")
                .symlink("way", "a/b")
                .file("way/x", "1")
                .symlink("a", host.absolute(""))
                .dir("a")
                .file("way/x", "2")
                .end(),
            Tree::new().dir("a").symlink("way", "a/b").implied("a/b").file("a/b/x", "2"),
        ),
        contained(
            "B007",
            "between the layers",
            vec![
                Archive::new().dir("d").file("d/secret", "low").end(),
                Archive::new().symlink("d", host.absolute("")).end(),
                Archive::new().file("d/secret", "evil").end(),
            ],
        ),
    ]
}

fn overridden(host: &Host) -> Vec<Case> {
    let (absolute, climbing) = (host.absolute("secret"), host.climbing("secret"));
    let quoted = format!("`{climbing}`");
    let sparse = [
        ("GNU.sparse.major", "0"),
        ("GNU.sparse.minor", "1"),
        ("GNU.sparse.name", &*climbing),
        ("GNU.sparse.numblocks", "1"),
        ("GNU.sparse.map", "0,4"),
    ];
    let prefix = Header::new(b'0', "secret", 4).put(345, b"../../../../host");
    vec![
        fails(
            "B009",
            "PAX path",
            Archive::new().pax(&[("path", &climbing)]).file("ok", "evil").end(),
            &[&quoted, "climbs"],
        ),
        contained("B009", "PAX path, absolute", vec![Archive::new().pax(&[("path", &absolute)]).file("ok", "e").end()]),
        fails(
            "B009",
            "GNU long name",
            Archive::new().gnu_long(b'L', &climbing).file("ok", "evil").end(),
            &[&quoted, "climbs"],
        ),
        contained(
            "B009",
            "GNU long name, absolute",
            vec![Archive::new().gnu_long(b'L', &absolute).file("ok", "evil").end()],
        ),
        fails(
            "B009",
            "a PAX path that hides behind a long name",
            Archive::new().pax(&[("path", "fine")]).gnu_long(b'L', &climbing).file("ok", "evil").end(),
            &[&quoted, "climbs"],
        ),
        fails(
            "B009",
            "PAX linkpath of a hard link",
            Archive::new().pax(&[("linkpath", &climbing)]).hard_link("l", "ok").end(),
            &["`l`", "climbs"],
        ),
        fails(
            "B009",
            "GNU long link of a hard link",
            Archive::new().gnu_long(b'K', &climbing).hard_link("l", "ok").end(),
            &["`l`", "climbs"],
        ),
        fails(
            "B009",
            "PAX linkpath of a hard link, absolute",
            Archive::new().pax(&[("linkpath", &absolute)]).hard_link("l", "ok").end(),
            &["`l`", &absolute, "does not have"],
        ),
        contained(
            "B009",
            "PAX linkpath of a link, and a write through it",
            vec![
                Archive::new()
                    .pax(&[("linkpath", host.absolute(""))])
                    .symlink("l", "ok")
                    .file("l/secret", "evil")
                    .end(),
            ],
        ),
        fails(
            "B009",
            "the name of a sparse file",
            Archive::new().pax(&sparse).file("ok", "evil").end(),
            &[&quoted, "climbs"],
        ),
        fails(
            "B009",
            "the prefix of a ustar name",
            Archive::new().header(&prefix).data("evil").end(),
            &[&quoted, "climbs"],
        ),
    ]
}

fn odd_names() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, why) in
        [("", "empty"), (".", "root"), ("..", "climbs"), ("//", "root"), ("d/..", "root"), ("./.", "root")]
    {
        let quoted = format!("`{name}`");
        let layer = Archive::new().file("d/kept", "1").file(name, "evil").end();
        cases.push(fails("B010", format!("file `{name}`"), layer, &[&quoted, why]));
        let layer = Archive::new().symlink(name, "/etc").end();
        cases.push(fails("B010", format!("link `{name}`"), layer, &[&quoted, why]));
        let layer = Archive::new().header(&Header::new(b'6', name, 0)).end();
        cases.push(fails("B010", format!("pipe `{name}`"), layer, &[&quoted, why]));
    }
    for name in [".", "./", "//", "d/..", "./."] {
        let layer = Archive::new().file("x", "1").dir(name).end();
        cases.push(succeeds("B010", format!("folder `{name}`"), layer, Tree::new().file("x", "1")));
    }
    let odd = Archive::new().file(" ", "1").file("-rf", "2").file("a\nb", "3").file("*", "4").file("a\\b", "5");
    let tree = Tree::new().file(" ", "1").file("-rf", "2").file("a\nb", "3").file("*", "4").file("a\\b", "5");
    cases.push(succeeds("B010", "names that shells and logs mind", odd.end(), tree));
    let hidden = Archive::new().pax(&[("path", "../\u{1b}[2Jevil`\n")]).file("x", "").end();
    cases.push(fails("B010", "a name that would paint the terminal", hidden, &["\\u{1b}[2Jevil\\`\\n", "climbs"]));

    for (what, key) in [("PAX path", "path"), ("PAX linkpath", "linkpath")] {
        let layer = Archive::new().pax(&[(key, "a\0../../b")]).symlink("x", "y").end();
        cases.push(fails("B011", what, layer, &[key, "malformed"]));
    }
    let sparse = [("GNU.sparse.name", "a\0b"), ("GNU.sparse.numblocks", "0"), ("GNU.sparse.map", "")];
    cases.push(contained("B011", "the name of a sparse file", vec![Archive::new().pax(&sparse).file("x", "").end()]));
    let long = Archive::new().gnu_long(b'L', "a\0../../b").file("x", "1").end();
    cases.push(succeeds("B011", "a GNU long name ends at it", long, Tree::new().file("a", "1")));
    let keys = Archive::new().extended(b'x', b"13 SCHI\0LY=x\n").file("x", "").end();
    cases.push(fails("B011", "in a PAX key", keys, &["malformed"]));

    let name = b"\xff\xfe\xc3";
    let in_field = Archive::new().file(name, "1").end();
    cases.push(succeeds("B013", "in the header", in_field, Tree::new().file(name, "1")));
    let in_pax = Archive::new().pax(&[(&b"path"[..], &b"\xf0\x28/\x80"[..])]).file("x", "1").end();
    cases.push(succeeds("B013", "in a PAX path", in_pax, Tree::new().implied(b"\xf0\x28").file(b"\xf0\x28/\x80", "1")));
    let link = Archive::new().symlink(b"\xe9", b"\xc0\xaf\xff").hard_link(b"\xe8", b"\xe9").end();
    let tree = Tree::new().symlink(b"\xe9", b"\xc0\xaf\xff").same(b"\xe8", b"\xe9");
    cases.push(succeeds("B013", "in links and their targets", link, tree));
    let slash = Archive::new().symlink("l", "d").file(b"l\xc0\xaf..\xc0\xafx", "1").end();
    let tree = Tree::new().symlink("l", "d").file(b"l\xc0\xaf..\xc0\xafx", "1");
    cases.push(succeeds("B013", "an overlong slash is no slash", slash, tree));
    cases
}

fn long_names() -> Vec<Case> {
    let component = "x".repeat(256);
    let path = "abcdefg/".repeat(513);
    let deep = "d/".repeat(2000);
    let mut cases = Vec::new();
    for (what, name, shown, why) in [
        ("component", &component, &component[..200], "255 bytes"),
        ("path", &path, &path[..200], "4096 bytes"),
        ("depth", &deep, &deep[..200], "512 directories"),
    ] {
        let entry = format!("`{shown}");
        let in_pax = Archive::new().pax(&[("path", name)]).file("x", "1").end();
        cases.push(fails("B012", format!("{what}, PAX"), in_pax, &[&entry, why]));
        let in_gnu = Archive::new().gnu_long(b'L', name).dir("x").end();
        cases.push(fails("B012", format!("{what}, GNU"), in_gnu, &[&entry, why]));
        let target = Archive::new().pax(&[("linkpath", name)]).hard_link("l", "x").end();
        cases.push(fails("B012", format!("{what}, hard link target"), target, &["`l`", why]));
    }
    let target = Archive::new().pax(&[("linkpath", "x".repeat(5000))]).symlink("l", "x").end();
    cases.push(fails("B012", "link target", target, &["`l`", "4096 bytes"]));
    let longest = "x".repeat(255);
    let fits = Archive::new().file(&longest, "1").end();
    cases.push(succeeds("B012", "a component of 255 bytes", fits, Tree::new().file(&longest, "1")));
    let deep = format!("{}x", "d/".repeat(511));
    let tree = (1..512).fold(Tree::new(), |tree, depth| tree.implied(&deep[..depth * 2 - 1]));
    let fits = Archive::new().file(&deep, "1").end();
    cases.push(succeeds("B012", "512 deep", fits, tree.file(&deep, "1")));
    cases
}
