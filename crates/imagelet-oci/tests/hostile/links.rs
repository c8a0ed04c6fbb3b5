//! Hard links that aim at the host, at nothing, or carry data: B014 to B018.

use crate::{
    archive::{Archive, Header},
    case::{Case, Tree, contained, fails, stack, succeeds},
    fixture::Host,
};

pub(crate) fn cases(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(to_the_host(host));
    cases.extend(then_a_file(host));
    cases.extend(to_nothing());
    cases.extend(with_data());
    cases
}

fn to_the_host(host: &Host) -> Vec<Case> {
    let (absolute, climbing) = (host.absolute("secret"), host.climbing("secret"));
    let below = format!("link/{}/secret", host.path);
    vec![
        fails("B014", "absolute", Archive::new().hard_link("l", &absolute).end(), &["`l`", &absolute, "does not have"]),
        fails("B014", "climbing", Archive::new().hard_link("l", &climbing).end(), &["`l`", "climbs"]),
        fails(
            "B014",
            "climbing from below",
            Archive::new().hard_link("a/b/l", format!("a/../{climbing}")).end(),
            &["`a/b/l`", "climbs"],
        ),
        fails(
            "B014",
            "below a link to the host",
            Archive::new().symlink("link", host.absolute("")).hard_link("l", "link/secret").end(),
            &["`l`", "`link/secret`", "does not have"],
        ),
        fails(
            "B014",
            "below a climbing link",
            Archive::new().symlink("link", host.climbing("")).hard_link("l", "link/secret").end(),
            &["`l`", "`link/secret`", "does not have"],
        ),
        fails(
            "B014",
            "below a link to the root",
            Archive::new().symlink("link", "/").hard_link("l", &below).end(),
            &["`l`", "does not have"],
        ),
        fails(
            "B014",
            "below a link of a lower layer, made again",
            Archive::new().dir("d").symlink("d/up", "..").hard_link("l", format!("d/up/d/up{absolute}")).end(),
            &["`l`", "does not have"],
        ),
        contained(
            "B014",
            "to a link to the host's file",
            vec![Archive::new().symlink("s", &absolute).hard_link("l", "s").end()],
        ),
        contained(
            "B014",
            "to a link to the host's file, with mode, owner and times",
            vec![
                Archive::new()
                    .symlink("s", &absolute)
                    .header(&Header::new(b'1', "l", 0).link("s").mode(0o7777).owner(7, 7).mtime(1))
                    .end(),
            ],
        ),
        succeeds(
            "B014",
            "to its own root, absolute",
            Archive::new().file("a", "1").hard_link("l", "/a").end(),
            Tree::new().file("a", "1").same("l", "a"),
        ),
        fails("B014", "to the layer's root", Archive::new().hard_link("l", "/").end(), &["`l`", "root"]),
        fails("B014", "to a folder", Archive::new().dir("d").hard_link("l", "d").end(), &["`l`", "`d`", "directory"]),
    ]
}

fn then_a_file(host: &Host) -> Vec<Case> {
    let absolute = host.absolute("secret");
    vec![
        contained(
            "B015",
            "a link to a link, then a file over it",
            vec![Archive::new().symlink("s", &absolute).hard_link("l", "s").file("l", "evil").end()],
        ),
        contained(
            "B015",
            "a link below a link, then a file over it",
            vec![Archive::new().symlink("up", "/").hard_link("l", format!("up{absolute}")).file("l", "evil").end()],
        ),
        contained(
            "B015",
            "and another layer has the file",
            vec![
                Archive::new().symlink("s", &absolute).hard_link("l", "s").end(),
                Archive::new().file("l", "evil").file("s", "evil").end(),
            ],
        ),
        succeeds(
            "B015",
            "the other name keeps its content",
            Archive::new().file("a", "old, and longer").hard_link("l", "a").file("l", "new").end(),
            Tree::new().file("a", "old, and longer").file("l", "new"),
        ),
        succeeds(
            "B015",
            "the first name is replaced",
            Archive::new().file("a", "old").hard_link("l", "a").file("a", "new").hard_link("m", "l").end(),
            Tree::new().file("a", "new").file("l", "old").same("m", "l"),
        ),
        succeeds(
            "B015",
            "a link takes the place of a file",
            Archive::new().file("l", "old").file("a", "1").hard_link("l", "a").hard_link("l", "l").end(),
            Tree::new().file("a", "1").same("l", "a"),
        ),
    ]
}

fn to_nothing() -> Vec<Case> {
    vec![
        fails("B016", "that never was", Archive::new().hard_link("new", "gone").end(), &["`new`", "`gone`"]),
        fails(
            "B016",
            "in a folder that never was",
            Archive::new().hard_link("a/new", "x/y/gone").end(),
            &["`a/new`", "`x/y/gone`"],
        ),
        fails(
            "B016",
            "that comes later",
            Archive::new().hard_link("new", "late").file("late", "1").end(),
            &["`new`", "`late`"],
        ),
        fails(
            "B016",
            "that was a whiteout",
            Archive::new().file(".wh.gone", "").hard_link("new", "gone").end(),
            &["`new`", "`gone`"],
        ),
        fails(
            "B016",
            "that was in what the link replaces",
            Archive::new().file("d/a", "1").hard_link("d", "d/a").end(),
            &["`d`", "`d/a`"],
        ),
        fails("B016", "itself", Archive::new().hard_link("self", "self").end(), &["`self`"]),
        fails("B016", "with an empty name", Archive::new().hard_link("new", "").end(), &["`new`", "empty"]),
        fails("B017", "a file of the layer below", Archive::new().hard_link("new", "low").end(), &["`new`", "`low`"])
            .above(Archive::new().file("low", "1").end()),
        fails(
            "B017",
            "a file below a folder of both",
            Archive::new().dir("d").hard_link("d/new", "d/low").end(),
            &["`d/new`", "`d/low`"],
        )
        .above(Archive::new().dir("d").file("d/low", "1").end()),
        stack(
            "B017",
            "a file that this layer has again",
            vec![
                (Archive::new().file("a", "low").end(), Tree::new().file("a", "low")),
                (
                    Archive::new().file("a", "high").hard_link("l", "a").end(),
                    Tree::new().file("a", "high").same("l", "a"),
                ),
            ],
        )
        .merged(&[("a", Some("high")), ("l", Some("high"))]),
    ]
}

fn with_data() -> Vec<Case> {
    let hidden = Archive::new().file("hidden", "smuggled").0;
    let size = hidden.len() as u64;
    let link = |size| Header::new(b'1', "l", size).link("a");
    let a = || Archive::new().file("a", "1");
    vec![
        fails("B018", "an archive as data", a().header(&link(size)).data(&hidden).end(), &["`l`", "data"]),
        fails("B018", "a size and no data", a().header(&link(size)).file("b", "2").end(), &["`l`", "data"]),
        fails(
            "B018",
            "a PAX size",
            a().pax(&[("size", "1024")]).header(&link(0)).data(&hidden).end(),
            &["`l`", "data"],
        ),
        fails("B018", "a negative size", a().header(&link(0).binary(124, 12, -512)).end(), &["`l`"]),
        fails("B018", "a size to the end of the world", a().header(&link(0).binary(124, 12, 1 << 62)).end(), &["`l`"]),
        succeeds(
            "B018",
            "a PAX size takes a size back",
            a().pax(&[("size", "0")]).header(&link(size)).file("b", "2").end(),
            Tree::new().file("a", "1").same("l", "a").file("b", "2"),
        ),
    ]
}
