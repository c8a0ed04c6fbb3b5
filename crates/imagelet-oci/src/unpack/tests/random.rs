//! Random archives: the host stays unchanged and nothing panics.

use proptest::prelude::*;

use super::{
    Site,
    archive::{Archive, Header},
};

const NAMES: [&str; 12] =
    ["a", "b", "a/b", "b/a", "a/b/c", "a/secret", "a/dir/file", "./", ".wh.a", "a/.wh.b", "b/.wh..wh..opq", "b/../a"];
const TARGETS: [&str; 9] = ["a", "b", "..", ".", "../host", "a/../..", "a/b", "/a", "HOST"];

fn header(flag: u8, name: usize, target: usize, host: &str) -> Header {
    let target = if TARGETS[target] == "HOST" { host } else { TARGETS[target] };
    Header::new(flag, NAMES[name], 0).link(target).device(1, 3).clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_entries_leaves_the_layer(
        entries in prop::collection::vec((prop::sample::select(b"00012225556".to_vec()), 0..12usize, 0..9usize), 1..25),
    ) {
        let site = Site::new();
        let host = site.host();
        let archive = entries.into_iter().fold(Archive::new(), |archive, (flag, name, target)| {
            archive.header(&header(flag, name, target, &host))
        });
        // `unpack` itself checks that the host is unchanged.
        if let Err(error) = site.unpack(&archive.end()) {
            prop_assert!(error.source.is_none(), "the file system had to say no: {:?}", error);
        }
    }

    #[test]
    fn no_damage_to_an_archive_panics(damage in prop::collection::vec((0..6000usize, any::<u8>()), 1..8), seal: bool) {
        let sparse: [(&str, &[u8]); 3] =
            [("GNU.sparse.size", b"9"), ("GNU.sparse.numblocks", b"2"), ("GNU.sparse.map", b"0,1,4,2")];
        let mut bytes = Archive::new()
            .dir("d").file("d/f", "content").gnu_long(b'L', "long/name").file("x", "1").pax(&sparse).file("s", "abc")
            .hard_link("h", "d/f").symlink("l", "d").file("l/y", "2")
            .end();
        for (at, value) in damage {
            let at = at % bytes.len();
            bytes[at] = value;
            if seal {
                let start = at / 512 * 512;
                let block = Header(bytes[start..start + 512].try_into().unwrap()).sealed();
                bytes[start..start + 512].copy_from_slice(&block);
            }
        }
        let mut site = Site::rootless();
        site.options.direct_min = if seal { 0 } else { u64::MAX };
        // Damaged sizes of sparse files may be anything.
        site.options.limits.bytes_max = 1 << 20;
        let _ = site.unpack(&bytes);
    }
}
