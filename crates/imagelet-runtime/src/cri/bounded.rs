//! Size limits of a runtime's answers. The limits of a list apply to all messages of a streamed list together.

use crate::{MESSAGE_BYTES_MAX, wire::MessageBounds};

/// Limits of a list. The lists of the largest nodes stay far below these limits.
pub const LIST: MessageBounds = MessageBounds { bytes: 64 << 20, entries: 200_000, parts: 2_000_000 };
pub const ONE: MessageBounds = MessageBounds { bytes: MESSAGE_BYTES_MAX, entries: 50_000, parts: 50_000 };

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::cri::v1;

    #[test]
    fn what_nodes_have_passes_and_what_would_fill_the_memory_does_not() {
        let image = v1::Image {
            id: "sha256:a".into(),
            repo_tags: vec!["reg.test/a:v1".into(); 5],
            repo_digests: vec!["reg.test/a@sha256:a".into(); 5],
            size: u64::MAX,
            uid: Some(-1),
            pinned: true,
            ..v1::Image::default()
        };
        let list = |images| v1::ListImagesResponse { images }.encode_to_vec();
        assert!(LIST.less(&list(vec![image.clone(); 100_000])).is_some());
        // Two bytes each.
        let hollow = list(vec![v1::Image::default(); 300_000]);
        assert_eq!(hollow.len(), 600_000);
        assert_eq!(LIST.less(&hollow), None);
        let names = v1::Image { repo_tags: vec![String::new(); 2_100_000], ..image.clone() };
        assert_eq!(LIST.less(&list(vec![names])), None);
        let mounts = |count| {
            let status = v1::ContainerStatus { mounts: vec![v1::Mount::default(); count], ..Default::default() };
            v1::ContainerStatusResponse { status: Some(status) }.encode_to_vec()
        };
        assert!(ONE.less(&mounts(1000)).is_some());
        assert_eq!(ONE.less(&mounts(60_000)), None);
        // Hidden in an unknown group: begun and ended with a tag each.
        assert_eq!(LIST.less(&[&[0x7b][..], &hollow, &[0x7c]].concat()), None);
    }

    #[test]
    fn a_stream_is_counted_over_all_of_its_messages() {
        let message = v1::ListImagesResponse { images: vec![v1::Image::default(); 1000] }.encode_to_vec();
        let taken = |message: &[u8]| {
            std::iter::successors(LIST.less(message), |left| left.less(message)).take(1_000_000).count()
        };
        assert_eq!(taken(&message), LIST.entries / 1001);
        assert_eq!(taken(&[]), LIST.entries, "empty ones have an end, too");
        assert_eq!(taken(&vec![0x08; 16 << 20]), 4);
    }
}
