//! Whiteouts and replacements: B027 to B032.

use crate::{
    archive::Archive,
    case::{Case, Tree, contained, fails, succeeds},
    fixture::Host,
};

const OPAQUE: (&str, Option<&[u8]>) = ("trusted.overlay.opaque", Some(b"y"));

pub(crate) fn cases(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(hiding());
    cases.extend(opaque());
    cases.extend(with_own());
    cases.extend(of_nothing());
    cases.extend(through_links(host));
    cases.extend(replacing(host));
    cases
}

/// The layer that most of these lie on.
fn lower() -> (Vec<u8>, Tree) {
    let archive = Archive::new().file("f", "1").dir("d").file("d/a", "1").dir("d/e").file("d/e/b", "1");
    (archive.end(), Tree::new().file("f", "1").dir("d").file("d/a", "1").dir("d/e").file("d/e/b", "1"))
}

fn over(
    id: &'static str,
    what: &str,
    upper: Archive,
    tree: Tree,
    merged: &[(&'static str, Option<&'static str>)],
) -> Case {
    let (low, low_tree) = lower();
    succeeds(id, what, upper.end(), tree).over(low, low_tree).merged(merged)
}

/// Opacity is looked at as root, where it is an attribute of a known name.
fn opaque_dir(tree: Tree, path: &str, implied: bool) -> Tree {
    let tree = if implied { tree.implied(path) } else { tree.dir(path) };
    if crate::seen::is_root() { tree.xattr(OPAQUE.0, OPAQUE.1) } else { tree }
}

fn hiding() -> Vec<Case> {
    let all_d = [("d", None), ("d/a", Some("1")), ("d/e", None), ("d/e/b", Some("1"))];
    let f = ("f", Some("1"));
    vec![
        over("B027", "a file", Archive::new().file(".wh.f", ""), Tree::new().whiteout("f"), &all_d),
        over("B027", "a folder", Archive::new().file(".wh.d", ""), Tree::new().whiteout("d"), &[f]),
        over(
            "B027",
            "below a folder",
            Archive::new().dir("d").file("d/.wh.e", ""),
            Tree::new().dir("d").whiteout("d/e"),
            &[f, ("d", None), ("d/a", Some("1"))],
        ),
        over(
            "B027",
            "below a folder without an entry",
            Archive::new().file("d/e/.wh.b", ""),
            Tree::new().implied("d").implied("d/e").whiteout("d/e/b"),
            &[f, ("d", None), ("d/a", Some("1")), ("d/e", None)],
        ),
        over(
            "B027",
            "of what no layer has",
            Archive::new().file(".wh.none", "").file("x/.wh.none", ""),
            Tree::new().whiteout("none").implied("x").whiteout("x/none"),
            &[f, ("d", None), ("d/a", Some("1")), ("d/e", None), ("d/e/b", Some("1")), ("x", None)],
        ),
        over(
            "B027",
            "written twice, as folder and link, with data",
            Archive::new().file(".wh.f", "data").dir(".wh.f").symlink(".wh.f", "/etc"),
            Tree::new().whiteout("f"),
            &all_d,
        ),
        over("B027", "with a leading slash", Archive::new().file("/.wh.d", ""), Tree::new().whiteout("d"), &[f]),
    ]
}

fn opaque() -> Vec<Case> {
    let shown = [("f", Some("1")), ("d", None), ("d/x", Some("2")), ("d/y", Some("3"))];
    let tree = |implied| opaque_dir(Tree::new(), "d", implied).file("d/x", "2").file("d/y", "3");
    vec![
        over(
            "B028",
            "before its siblings",
            Archive::new().dir("d").file("d/.wh..wh..opq", "").file("d/x", "2").file("d/y", "3"),
            tree(false),
            &shown,
        ),
        over(
            "B028",
            "after its siblings",
            Archive::new().dir("d").file("d/x", "2").file("d/y", "3").file("d/.wh..wh..opq", ""),
            tree(false),
            &shown,
        ),
        over(
            "B028",
            "between them, without an entry of the folder",
            Archive::new().file("d/x", "2").file("d/.wh..wh..opq", "").file("d/y", "3"),
            tree(true),
            &shown,
        ),
        over(
            "B028",
            "before the folder's own entry",
            Archive::new().file("d/.wh..wh..opq", "").dir("d").file("d/x", "2").file("d/y", "3"),
            tree(false),
            &shown,
        ),
        over(
            "B028",
            "of the root",
            Archive::new().file("x", "2").file(".wh..wh..opq", "").file("y", "3"),
            Tree::new().file("x", "2").file("y", "3"),
            &[("x", Some("2")), ("y", Some("3"))],
        ),
        over(
            "B028",
            "of a folder that goes again",
            Archive::new().file("d/.wh..wh..opq", "").file("d", "2").file("f", "3"),
            Tree::new().file("d", "2").file("f", "3"),
            &[("d", Some("2")), ("f", Some("3"))],
        ),
    ]
}

fn with_own() -> Vec<Case> {
    let hide = |archive: Archive| archive.file(".wh.d", "");
    let own = |archive: Archive| archive.dir("d").file("d/x", "2");
    let file = |archive: Archive| archive.file("d", "2");
    let shown = [("f", Some("1")), ("d", None), ("d/x", Some("2"))];
    let tree = || opaque_dir(Tree::new(), "d", false).file("d/x", "2");
    let flat = [("f", Some("1")), ("d", Some("2"))];
    vec![
        over("B029", "a whiteout, then a folder", own(hide(Archive::new())), tree(), &shown),
        over("B029", "a folder, then a whiteout", hide(own(Archive::new())), tree(), &shown),
        over("B029", "a whiteout in the middle", hide(Archive::new().dir("d")).file("d/x", "2"), tree(), &shown),
        over(
            "B029",
            "a whiteout, then a file below",
            hide(Archive::new()).file("d/x", "2"),
            opaque_dir(Tree::new(), "d", true).file("d/x", "2"),
            &shown,
        ),
        over("B029", "a whiteout, then a file", file(hide(Archive::new())), Tree::new().file("d", "2"), &flat),
        over("B029", "a file, then a whiteout", hide(file(Archive::new())), Tree::new().file("d", "2"), &flat),
        over(
            "B029",
            "a whiteout, then a link",
            hide(Archive::new()).symlink("d", "f"),
            Tree::new().symlink("d", "f"),
            &[("f", Some("1")), ("d", None)],
        ),
        over(
            "B029",
            "a whiteout, then a hard link",
            hide(Archive::new()).file("g", "2").hard_link("d", "g"),
            Tree::new().file("g", "2").same("d", "g"),
            &[("f", Some("1")), ("d", Some("2")), ("g", Some("2"))],
        ),
    ]
}

fn of_nothing() -> Vec<Case> {
    let mut cases = Vec::new();
    for name in [".wh.", ".wh..", ".wh...", "d/.wh.", "d/.wh..", "d/.wh...", "d/e/.wh...", "/.wh.."] {
        let quoted = format!("`{name}`");
        let layer = Archive::new().file("d/e/kept", "1").file(name, "").end();
        cases.push(fails("B030", name, layer, &[&quoted, "whiteout of nothing"]));
    }
    let below = Archive::new().file("d/.wh.x/y", "1").end();
    cases.push(fails("B030", "below a whiteout", below, &["`d/.wh.x/y`", "whiteout"]));
    cases.push(over(
        "B030",
        "a name of dots",
        Archive::new().file(".wh....", ""),
        Tree::new().whiteout("..."),
        &[("f", Some("1")), ("d", None), ("d/a", Some("1")), ("d/e", None), ("d/e/b", Some("1"))],
    ));
    let aufs =
        Archive::new().dir(".wh..wh.plnk").file(".wh..wh.plnk/1.2", "x").file(".wh..wh.aufs", "y").file("a", "1");
    cases.push(succeeds("B030", "bookkeeping of AUFS", aufs.end(), Tree::new().file("a", "1")));
    let not = Archive::new().file(".wh", "1").file("x.wh.y", "2").file(".WH.f", "3").end();
    cases.push(succeeds("B030", "names that only look like it", not, {
        Tree::new().file(".wh", "1").file("x.wh.y", "2").file(".WH.f", "3")
    }));
    cases
}

fn through_links(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    for (way, target) in [("absolute", host.absolute("")), ("climbing", host.climbing("")), ("root", "/".to_owned())] {
        let link = || Archive::new().symlink("l", &target);
        for (what, name) in [
            ("plain", "l/.wh.secret".to_owned()),
            ("of a folder", "l/.wh.dir".to_owned()),
            ("deep", "l/dir/.wh.file".to_owned()),
            ("opaque", "l/.wh..wh..opq".to_owned()),
            ("opaque deep", "l/dir/.wh..wh..opq".to_owned()),
            ("of the full path", format!("l/{}/.wh.secret", host.path)),
        ] {
            cases.push(contained("B031", format!("{what}, {way}"), vec![link().file(&name, "").end()]));
            cases.push(contained(
                "B031",
                format!("{what}, {way}, of a lower layer"),
                vec![link().end(), Archive::new().file(&name, "").end()],
            ));
        }
        cases.push(contained(
            "B031",
            format!("of the link itself, {way}"),
            vec![link().end(), Archive::new().file(".wh.l", "").end()],
        ));
    }
    let inside = Archive::new().dir("real").symlink("l", "/real").file("l/.wh.x", "").file("l/.wh..wh..opq", "").end();
    let tree = opaque_dir(Tree::new(), "real", false).symlink("l", "/real").whiteout("real/x");
    cases.push(succeeds("B031", "inside it counts where the link leads", inside, tree));
    cases
}

fn replacing(host: &Host) -> Vec<Case> {
    let (f, g) = (("f", Some("1")), ("d", Some("2")));
    let full = |archive: Archive| archive.dir("d").file("d/x", "1").dir("d/e").file("d/e/y", "1");
    vec![
        over("B032", "a file over a folder", Archive::new().file("d", "2"), Tree::new().file("d", "2"), &[f, g]),
        over(
            "B032",
            "a folder over a file",
            Archive::new().dir("f").file("f/x", "2"),
            Tree::new().dir("f").file("f/x", "2"),
            &[("f", None), ("f/x", Some("2")), ("d", None), ("d/a", Some("1")), ("d/e", None), ("d/e/b", Some("1"))],
        ),
        over(
            "B032",
            "a link over a folder",
            Archive::new().symlink("d", "f"),
            Tree::new().symlink("d", "f"),
            &[f, ("d", None)],
        ),
        over(
            "B032",
            "a file over a folder in one layer",
            full(Archive::new()).file("d", "2"),
            Tree::new().file("d", "2"),
            &[f, g],
        ),
        over(
            "B032",
            "a folder over a file in one layer hides the lower folder",
            Archive::new().file("d", "2").dir("d").file("d/x", "3"),
            opaque_dir(Tree::new(), "d", false).file("d/x", "3"),
            &[f, ("d", None), ("d/x", Some("3"))],
        ),
        over(
            "B032",
            "a link over a folder in one layer",
            full(Archive::new()).symlink("d", "f"),
            Tree::new().symlink("d", "f"),
            &[f, ("d", None)],
        ),
        contained(
            "B032",
            "a link to the host over a folder that is filled again",
            vec![full(full(Archive::new()).symlink("d", host.absolute(""))).end()],
        ),
        succeeds(
            "B032",
            "a pipe and a link to a folder over folders",
            full(Archive::new()).fifo("d").dir("e").file("e/x", "1").symlink("e", "/").end(),
            Tree::new().fifo("d").symlink("e", "/"),
        ),
        succeeds(
            "B032",
            "a deep folder",
            Archive::new().dir("d/".repeat(500)).file("d", "flat").end(),
            Tree::new().file("d", "flat"),
        ),
    ]
}
