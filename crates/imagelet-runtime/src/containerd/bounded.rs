//! Size limits of containerd's answers.

use crate::wire::MessageBounds;

/// Limits of one answer. They apply to all its messages together. The largest nodes need far less.
pub(crate) const ANSWER: MessageBounds = MessageBounds { bytes: 256 << 20, entries: 500_000, parts: 8_000_000 };

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::containerd::{
        Many,
        v1::{content, snapshots},
    };

    #[test]
    fn what_nodes_have_passes_and_what_would_fill_the_memory_does_not() {
        let label = |at: usize| (format!("containerd.io/gc.ref.content.l.{at}"), format!("sha256:{at:064}"));
        let blob =
            content::Info { digest: format!("sha256:{:064}", 1), size: i64::MAX, labels: (0..30).map(label).collect() };
        let page = Many { items: vec![blob; 1000] }.encode_to_vec();
        let taken = std::iter::successors(ANSWER.less(&page), |left| left.less(&page)).take(1000).count();
        assert!(taken > 50, "{taken} thousand blobs with 30 labels each");
        let hollow = Many { items: vec![snapshots::Info::default(); 600_000] };
        assert_eq!(ANSWER.less(&hollow.encode_to_vec()), None, "two bytes each");
    }
}
