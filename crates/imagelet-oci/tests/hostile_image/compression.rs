//! How a layer is packed.

use imagelet_core::{error::RuntimeErrorKind::Corrupt, image::Digest};
use serde_json::json;

use super::{
    case::{Bench, Case},
    image::{Image, Layer, TAR, gzip, tar, zstd_frame, zstd_skippable},
};

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// A layer of one file that does not pack to nothing, packed by `pack`.
fn packed(media_type: &str, pack: impl Fn(&[u8]) -> Vec<u8>) -> Image {
    let content: Vec<u8> = (0..60_000_u32).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let tar = tar(&[("content", &content)]);
    Image::of([Layer::packed(media_type, pack(&tar), &tar).holding("content", &content)])
}

fn in_parts(tar: &[u8], parts: usize, pack: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    tar.chunks(tar.len().div_ceil(parts)).flat_map(pack).collect()
}

/// A gzip header with every optional field, then the stream of a plain member.
fn gzip_with_every_field(tar: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::GzBuilder::new()
        .filename("layer.tar")
        .comment("a comment")
        .extra(vec![7; 300])
        .mtime(1)
        .write(Vec::new(), flate2::Compression::best());
    encoder.write_all(tar).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

fn flipped(mut bytes: Vec<u8>, from_end: usize) -> Vec<u8> {
    let at = bytes.len() - from_end;
    bytes[at] ^= 0x10;
    bytes
}

fn cut(mut bytes: Vec<u8>, by: usize) -> Vec<u8> {
    bytes.truncate(bytes.len() - by);
    bytes
}

fn followed_by(mut bytes: Vec<u8>, tail: &[u8]) -> Vec<u8> {
    bytes.extend_from_slice(tail);
    bytes
}

/// As Podman and Buildah write it: frames, their table of contents and its place in skippable frames, annotations of both.
fn zstd_chunked() -> Image {
    let tar = tar(&[("content", &[7; 5000])]);
    let frames = in_parts(&tar, 3, zstd_frame);
    let contents = zstd_frame(br#"{"version":1,"entries":[{"type":"reg","name":"content","size":5000}]}"#);
    let place = frames.len() + 8;
    let footer = [place, contents.len(), 68, 1].map(|number| (number as u64).to_le_bytes()).concat();
    let footer = [&footer[..], b"GnUlInUx"].concat();
    let checksum = Digest::of(&contents).to_string();
    let blob = [frames, zstd_skippable(0, &contents), zstd_skippable(0, &footer)].concat();
    let layer = Layer::packed(ZSTD, blob, &tar).holding("content", &[7; 5000]).described(|layer| {
        layer["annotations"] = json!({
            "io.github.containers.zstd-chunked.manifest-checksum": checksum,
            "io.github.containers.zstd-chunked.manifest-position": format!("{place}:{}:68:1", contents.len()),
        });
    });
    Image::of([layer])
}

pub(crate) fn cases() -> Vec<Case> {
    let inflate = &["could not unpack layer", "sha256:", "does not decompress"];
    let archive = &["could not unpack layer", "sha256:", "tar entry"];
    vec![
        Case::new("B042", "gzip of three members", packed(GZIP, |tar| in_parts(tar, 3, gzip))),
        Case::new("B042", "gzip of a member for each block", packed(GZIP, |tar| in_parts(tar, 470, gzip))),
        Case::new(
            "B042",
            "gzip with empty members between",
            packed(GZIP, |tar| [gzip(b""), gzip(tar), gzip(b""), gzip(b"")].concat()),
        ),
        Case::new("B042", "gzip with every field of the header", packed(GZIP, gzip_with_every_field)),
        Case::new("B042", "zstd of three frames", packed(ZSTD, |tar| in_parts(tar, 3, zstd_frame))),
        Case::new("B042", "zstd of many frames", packed(ZSTD, |tar| in_parts(tar, 470, zstd_frame))),
        Case::new(
            "B042",
            "zstd with a skippable frame behind",
            packed(ZSTD, |tar| [zstd_frame(tar), zstd_skippable(0, b"toc")].concat()),
        ),
        Case::new(
            "B042",
            "zstd with skippable frames first",
            packed(ZSTD, |tar| [zstd_skippable(3, b"first"), zstd_skippable(15, b""), zstd_frame(tar)].concat()),
        ),
        Case::new(
            "B042",
            "zstd with skippable frames all over",
            packed(ZSTD, |tar| {
                let (head, tail) = tar.split_at(70_001);
                [zstd_frame(head), zstd_skippable(1, &[9; 100_000]), zstd_frame(tail), zstd_skippable(2, b"")].concat()
            }),
        ),
        Case::new(
            "B042",
            "zstd with empty frames",
            packed(ZSTD, |tar| [zstd_frame(b""), zstd_frame(tar), zstd_frame(b"")].concat()),
        ),
        Case::new("B042", "zstd chunked", zstd_chunked()),
        Case::new("B043", "gzip and text behind", packed(GZIP, |tar| followed_by(gzip(tar), b"garbage")))
            .fails(Corrupt, inflate),
        Case::new("B043", "gzip and one byte behind", packed(GZIP, |tar| followed_by(gzip(tar), b"\x1f")))
            .fails(Corrupt, inflate),
        Case::new("B043", "gzip and zeros behind", packed(GZIP, |tar| followed_by(gzip(tar), &[0; 512])))
            .fails(Corrupt, inflate),
        Case::new("B043", "gzip and a header behind", packed(GZIP, |tar| followed_by(gzip(tar), &[0x1f, 0x8b, 8, 0])))
            .fails(Corrupt, inflate),
        Case::new("B043", "zstd and text behind", packed(ZSTD, |tar| followed_by(zstd_frame(tar), b"garbage")))
            .fails(Corrupt, inflate),
        Case::new("B043", "zstd and two bytes behind", packed(ZSTD, |tar| followed_by(zstd_frame(tar), b"\x28\xb5")))
            .fails(Corrupt, inflate),
        Case::new("B044", "gzip cut in its data", packed(GZIP, |tar| cut(gzip(tar), 9_000))).fails(Corrupt, inflate),
        Case::new("B044", "gzip cut in its trailer", packed(GZIP, |tar| cut(gzip(tar), 3))).fails(Corrupt, inflate),
        Case::new("B044", "gzip cut in its header", packed(GZIP, |_| vec![0x1f, 0x8b, 8])).fails(Corrupt, inflate),
        Case::new("B044", "gzip with a wrong checksum", packed(GZIP, |tar| flipped(gzip(tar), 7)))
            .fails(Corrupt, inflate),
        Case::new("B044", "gzip with a wrong length", packed(GZIP, |tar| flipped(gzip(tar), 2)))
            .fails(Corrupt, inflate),
        Case::new(
            "B044",
            "gzip with a wrong checksum in the first member",
            packed(GZIP, |tar| [flipped(gzip(&tar[..512]), 7), gzip(&tar[512..])].concat()),
        )
        .fails(Corrupt, inflate),
        Case::new(
            "B044",
            "gzip with another method",
            packed(GZIP, |tar| {
                let mut bytes = gzip(tar);
                bytes[2] = 7;
                bytes
            }),
        )
        .fails(Corrupt, inflate),
        Case::new("B044", "zstd cut in its data", packed(ZSTD, |tar| cut(zstd_frame(tar), 9_000)))
            .fails(Corrupt, inflate),
        Case::new("B044", "zstd cut in its checksum", packed(ZSTD, |tar| cut(zstd_frame(tar), 1)))
            .fails(Corrupt, inflate),
        Case::new("B044", "zstd cut in its header", packed(ZSTD, |_| vec![0x28, 0xb5, 0x2f, 0xfd, 0]))
            .fails(Corrupt, inflate),
        Case::new("B044", "zstd with a wrong checksum", packed(ZSTD, |tar| flipped(zstd_frame(tar), 2)))
            .fails(Corrupt, inflate),
        Case::new(
            "B044",
            "zstd cut in a skippable frame",
            packed(ZSTD, |tar| [zstd_frame(tar), cut(zstd_skippable(0, b"0123456789"), 4)].concat()),
        )
        .fails(Corrupt, inflate),
        Case::new(
            "B044",
            "zstd that wants a dictionary",
            packed(ZSTD, |_| vec![0x28, 0xb5, 0x2f, 0xfd, 0x21, 77, 4, 1, 0, 0]),
        )
        .fails(Corrupt, inflate),
        Case::new("B044", "three bytes", packed(GZIP, |_| vec![0x1f, 0, 0])).fails(Corrupt, archive),
        Case::new("B045", "gzip of gzip", packed(GZIP, |tar| gzip(&gzip(tar)))).fails(Corrupt, archive),
        Case::new("B045", "zstd of gzip", packed(ZSTD, |tar| zstd_frame(&gzip(tar)))).fails(Corrupt, archive),
        Case::new("B045", "gzip of zstd", packed(GZIP, |tar| gzip(&zstd_frame(tar)))).fails(Corrupt, archive),
        Case::new("B045", "zstd called gzip", packed(GZIP, zstd_frame)),
        Case::new("B045", "gzip called zstd", packed(ZSTD, gzip)),
        Case::new("B045", "gzip called plain", packed(TAR, gzip)),
        Case::new("B045", "plain called gzip", packed(GZIP, <[u8]>::to_vec)),
        Case::new("B045", "plain called zstd", packed(ZSTD, <[u8]>::to_vec)),
        Case::new("B045", "xz", packed(GZIP, |_| [&b"\xfd7zXZ\0\0\x04"[..], &[1; 600]].concat()))
            .fails(Corrupt, archive),
        Case::new("B045", "bzip2", packed(GZIP, |_| [&b"BZh91AY&SY"[..], &[1; 600]].concat())).fails(Corrupt, archive),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_unpacked_by_what_it_is_or_refused_as_damaged() {
    Bench::new().await.hold(cases()).await;
}
