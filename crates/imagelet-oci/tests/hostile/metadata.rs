//! Owners, modes, times and attributes: B019 to B022.

use crate::{
    archive::{Archive, Header, MTIME},
    case::{Case, Tree, contained, fails, succeeds},
    fixture::Host,
    seen::is_root,
};

pub(crate) fn cases(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(over_links(host));
    cases.extend(owners_and_modes());
    cases.extend(times());
    cases.extend(attributes());
    cases
}

/// A header that would change all there is to change.
fn loud(flag: u8, name: &str) -> Header {
    Header::new(flag, name, 0).mode(0o7777).owner(7, 7).mtime(77)
}

fn over_links(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    for (way, target) in [("absolute", host.absolute("dir")), ("climbing", host.climbing("dir"))] {
        let link = || Archive::new().symlink("d", &target);
        cases.push(succeeds(
            "B019",
            format!("a folder over a link, {way}"),
            link().header(&loud(b'5', "d")).end(),
            Tree::new().dir("d").mode(0o7777).owner(7, 7).mtime(77, 0),
        ));
        cases.push(succeeds(
            "B019",
            format!("a folder over a link with a slash, {way}"),
            link().header(&loud(b'5', "d/")).file("d/x", "1").end(),
            Tree::new().dir("d").mode(0o7777).owner(7, 7).mtime(77, 0).file("d/x", "1"),
        ));
        cases.push(contained(
            "B019",
            format!("a folder that becomes a link, {way}"),
            vec![Archive::new().header(&loud(b'5', "d")).file("d/x", "1").symlink("d", &target).end()],
        ));
        cases.push(contained(
            "B019",
            format!("a folder below a folder that becomes a link, {way}"),
            vec![
                Archive::new()
                    .header(&loud(b'5', "up"))
                    .header(&loud(b'5', "up/dir"))
                    .symlink("up", host.absolute(""))
                    .end(),
            ],
        ));
        cases.push(contained(
            "B019",
            format!("a link with mode, owner and times, {way}"),
            vec![Archive::new().header(&loud(b'2', "d").link(&target)).end()],
        ));
        cases.push(contained(
            "B019",
            format!("a second name of a link, {way}"),
            vec![link().header(&loud(b'1', "h").link("d")).header(&loud(b'1', "h").link("d")).end()],
        ));
        cases.push(contained(
            "B019",
            format!("a link with attributes, {way}"),
            vec![
                Archive::new()
                    .pax(&[("SCHILY.xattr.user.a", "1"), ("SCHILY.xattr.trusted.a", "1")])
                    .symlink("d", &target)
                    .end(),
            ],
        ));
        cases.push(contained(
            "B019",
            format!("a link of the layer below, {way}"),
            vec![link().end(), Archive::new().header(&loud(b'5', "d")).header(&loud(b'0', "d/file")).end()],
        ));
    }
    let name = host.absolute("suid");
    cases.push(contained(
        "B019",
        "a program of the host",
        vec![Archive::new().symlink("s", &name).header(&loud(b'0', "s")).header(&loud(b'5', &name)).end()],
    ));
    cases
}

fn owners_and_modes() -> Vec<Case> {
    // All capabilities of `ping`, as the kernel writes it.
    let capability: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let records = [("SCHILY.xattr.security.capability", capability)];
    let program = Header::new(b'0', "ping", 3).owner(7, 7).mode(0o755);
    let (file, dir) = (|name: &str| Header::new(b'0', name, 0), Header::new(b'5', "d", 0));
    let far = [("uid", "2147483648"), ("gid", "4294967294")];
    let mut cases = vec![
        succeeds(
            "B020",
            "set-id bits with a foreign owner",
            Archive::new().header(&file("s").mode(0o6755).owner(1000, 1001)).header(&file("r").mode(0o4711)).end(),
            Tree::new().file("s", "").mode(0o6755).owner(1000, 1001).file("r", "").mode(0o4711),
        ),
        succeeds(
            "B020",
            "set-group-id and sticky folders do not spread",
            Archive::new().header(&dir.clone().mode(0o3777).owner(0, 50)).file("d/x", "1").dir("d/e").end(),
            Tree::new().dir("d").mode(0o3777).owner(0, 50).file("d/x", "1").dir("d/e"),
        ),
        succeeds(
            "B020",
            "owners up to 2^32 - 2",
            Archive::new().pax(&far).file("f", "1").pax(&far).dir("d").pax(&far).symlink("l", "f").end(),
            Tree::new()
                .file("f", "1")
                .owner(1 << 31, u32::MAX - 1)
                .dir("d")
                .owner(1 << 31, u32::MAX - 1)
                .symlink("l", "f")
                .owner(1 << 31, u32::MAX - 1),
        ),
        succeeds(
            "B020",
            "owners in base 256",
            Archive::new().header(&file("f").gnu().binary(108, 8, 3_000_000_000).binary(116, 8, 65536)).end(),
            Tree::new().file("f", "").owner(3_000_000_000, 65536),
        ),
        succeeds(
            "B020",
            "modes of nothing at all",
            Archive::new().header(&file("f").mode(0)).header(&dir.mode(0)).file("d/x", "1").end(),
            Tree::new().file("f", "").mode(0).dir("d").mode(0).file("d/x", "1"),
        ),
        succeeds(
            "B020",
            "file type bits in a mode",
            Archive::new().header(&file("f").mode(0o120_644)).end(),
            Tree::new().file("f", ""),
        ),
    ];
    if is_root() {
        cases.push(succeeds(
            "B020",
            "a capability",
            Archive::new().pax(&records).header(&program).data("elf").end(),
            Tree::new().file("ping", "elf").mode(0o755).owner(7, 7).xattr("security.capability", Some(capability)),
        ));
    }
    for uid in ["4294967295", "-1", "4294967296", "99999999999999999999", "0x0", "1 ", ""] {
        let layer = Archive::new().pax(&[("uid", uid)]).file("f", "1").end();
        cases.push(match uid {
            // Nothing takes an override back.
            "" => succeeds("B020", "an empty uid", layer, Tree::new().file("f", "1")),
            _ => fails("B020", format!("uid `{uid}`"), layer, &["uid", "malformed"]),
        });
    }
    let wide = Archive::new().header(&file("f").gnu().binary(108, 8, 1 << 32)).end();
    cases.push(fails("B020", "a uid that would wrap to root", wide, &["`f`", "uid"]));
    cases
}

fn times() -> Vec<Case> {
    let in_pax =
        |value: &str| Archive::new().pax(&[("mtime", value)]).file("f", "1").pax(&[("mtime", value)]).dir("d").end();
    let tree = |seconds, nanos| Tree::new().file("f", "1").mtime(seconds, nanos).dir("d").mtime(seconds, nanos);
    let mut cases = Vec::new();
    for (value, seconds, nanos) in [
        ("-1", -1, 0),
        ("-1.25", -2, 750_000_000),
        ("-2000000000", -2_000_000_000, 0),
        ("0", 0, 0),
        ("1.000000001", 1, 1),
        ("1.9999999999999", 1, 999_999_999),
        ("8589934593.5", 8_589_934_593, 500_000_000),
    ] {
        cases.push(succeeds("B021", format!("PAX {value}"), in_pax(value), tree(seconds, nanos)));
    }
    // What no file system keeps is cut by the kernel, and no reason to fail.
    for value in ["9223372036854775807", "-9223372036854775808", "99999999999"] {
        cases.push(contained("B021", format!("PAX {value}"), vec![in_pax(value)]));
    }
    for value in ["9223372036854775808", "1e3", "nan", "1.-1", ".", " 1"] {
        cases.push(fails("B021", format!("PAX `{value}`"), in_pax(value), &["mtime"]));
    }
    for (what, mtime) in [("before 1970", -86_400), ("after 2242", 8_600_000_000)] {
        let layer = Archive::new().header(&Header::new(b'0', "f", 0).gnu().binary(136, 12, mtime)).end();
        let tree = Tree::new().file("f", "").mtime(i64::try_from(mtime).expect("it fits"), 0);
        cases.push(succeeds("B021", format!("base 256, {what}"), layer, tree));
    }
    let later =
        Archive::new().dir("d").file("d/x", "1").pax(&[("mtime", "5")]).symlink("d/l", "x").file("d/x", "2").end();
    let tree = Tree::new().dir("d").file("d/x", "2").symlink("d/l", "x").mtime(5, 0);
    cases.push(succeeds("B021", "a folder keeps its time whatever comes into it", later, tree.clone()));
    let atime = Archive::new().pax(&[("atime", "-7.5"), ("ctime", "junk")]).file("f", "1").end();
    cases.push(succeeds("B021", "an atime before 1970", atime, Tree::new().file("f", "1").mtime(MTIME, 0)));
    cases
}

fn attributes() -> Vec<Case> {
    let own = ["trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.verdict", "user.overlay.whiteout"];
    let mut cases = Vec::new();
    for name in own {
        for spelling in ["SCHILY.xattr", "LIBARCHIVE.xattr"] {
            let records = [(format!("{spelling}.{name}"), "eQ")];
            let layer =
                Archive::new().pax(&records).dir("d").pax(&records).file("f", "1").pax(&records).symlink("l", "f");
            let tree = Tree::new().dir("d").xattr(name, None).file("f", "1").xattr(name, None).symlink("l", "f");
            cases.push(succeeds("B022", format!("{spelling}.{name}"), layer.end(), tree.xattr(name, None)));
        }
    }
    let redirect = [("LIBARCHIVE.xattr.trusted%2Eoverlay%2eredirect", "L2V0Yw")];
    cases.push(succeeds(
        "B022",
        "in percent signs",
        Archive::new().pax(&redirect).dir("d").end(),
        Tree::new().dir("d").xattr("trusted.overlay.redirect", None),
    ));
    let opaque = [("SCHILY.xattr.trusted.overlay.opaque", "y"), ("SCHILY.xattr.user.overlay.opaque", "y")];
    let upper = Archive::new().pax(&opaque).dir("d").file("d/high", "2").end();
    cases.push(
        succeeds("B022", "an opaque folder by attribute hides nothing", upper, {
            Tree::new().dir("d").xattr("trusted.overlay.opaque", None).file("d/high", "2")
        })
        .over(Archive::new().dir("d").file("d/low", "1").end(), Tree::new().dir("d").file("d/low", "1"))
        .merged(&[("d", None), ("d/low", Some("1")), ("d/high", Some("2"))]),
    );
    let selinux =
        [("SCHILY.xattr.security.selinux", "system_u:object_r:shadow_t:s0"), ("SCHILY.xattr.security.ima", "x")];
    cases.push(succeeds(
        "B022",
        "other security attributes",
        Archive::new().pax(&selinux).file("f", "1").end(),
        Tree::new().file("f", "1").xattr("security.ima", None),
    ));
    let kept = [("SCHILY.xattr.user.a=b", "c\0d\n"), ("SCHILY.xattr.user.empty", "")];
    cases.push(succeeds(
        "B022",
        "ordinary ones are kept",
        Archive::new().pax(&kept).file("f", "1").end(),
        Tree::new().file("f", "1").xattr("user.a", Some(b"b=c\0d\n")).xattr("user.empty", Some(b"")),
    ));
    let large = Archive::new().pax(&[("SCHILY.xattr.user.large", "x".repeat(70_000))]).file("f", "1").end();
    cases.push(fails("B022", "one that no kernel takes", large, &["user.large", "70000 bytes", "65536"]));
    cases
}
