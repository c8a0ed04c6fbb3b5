//! A small image for tests: one layer of noise, one of text, and a configuration.

use bytes::Bytes;
use imagelet_core::image::Digest;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const BLOCK: usize = 512;

/// An image of two layers, `team/app:v1`. Faults strike its first layer.
#[derive(Clone, Debug)]
pub struct TestImage {
    pub(super) manifest: Bytes,
    pub(super) config: Bytes,
    pub(super) layers: [Bytes; 2],
}

impl TestImage {
    /// Repository and tag.
    pub const NAME: &str = "team/app:v1";
    pub(super) const MEDIA_TYPE: &str = MANIFEST;

    /// An image whose first layer holds this many bytes.
    pub fn of_size(bytes: usize) -> Self {
        // Noise, so that a wrong offset is a wrong byte; the same for each host.
        let mut state = 0x2545_f491_u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[0]
        })
        .take(bytes)
        .collect();
        let layers = [archive("noise", &noise), archive("text", b"text")];
        let diff_ids = layers.iter().map(|layer| format!("\"{}\"", Digest::of(layer))).collect::<Vec<_>>().join(",");
        let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = format!(
            r#"{{"architecture":"{machine}","os":"linux","rootfs":{{"type":"layers","diff_ids":[{diff_ids}]}}}}"#
        );
        let config = Bytes::from(config);
        let described = layers.iter().map(|layer| descriptor(LAYER, layer)).collect::<Vec<_>>().join(",");
        let config_described = descriptor(CONFIG, &config);
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{config_described},"layers":[{described}]}}"#
        );
        Self { manifest: manifest.into(), config, layers }
    }

    pub(super) fn blob(&self, digest: &str) -> Option<Bytes> {
        let mut blobs = self.layers.iter().chain([&self.config]);
        blobs.find(|blob| Digest::of(blob).as_str() == digest).cloned()
    }
}

fn descriptor(media_type: &str, bytes: &[u8]) -> String {
    format!(r#"{{"mediaType":"{media_type}","digest":"{}","size":{}}}"#, Digest::of(bytes), bytes.len())
}

/// A tar archive of one file.
fn archive(name: &str, bytes: &[u8]) -> Bytes {
    let mut header = [0_u8; BLOCK];
    let size = format!("{:011o}", bytes.len());
    for (at, text) in [
        (0, name),
        (100, "0000644"),
        (108, "0000000"),
        (116, "0000000"),
        (124, size.as_str()),
        (136, "14000000000"),
        (148, "        0"),
        (257, "ustar"),
        (263, "00"),
    ] {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(bytes);
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive.into()
}
