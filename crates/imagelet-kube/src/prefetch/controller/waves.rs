//! The nodes that may begin: a cut in the order of the nodes. The cut only increases for one spec.

use crate::prefetch::objects::{ImageReport, ImageSet, PLACES, SetPhase, WaveStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SelectedNode<'a> {
    pub(super) name: &'a str,
    pub(super) place: u64,
    pub(super) phase: Option<SetPhase>,
    pub(super) images: &'a [ImageReport],
    /// Whether the node may begin and its report has not changed for a long time. A stalled node delays no other node.
    pub(super) is_stalled: bool,
}

impl SelectedNode<'_> {
    fn is_busy(&self) -> bool {
        !self.is_stalled && !self.phase.is_some_and(SetPhase::is_finished)
    }
}

/// The next cut, below which nodes may begin. At most the set's limit of nodes is busy. `nodes` are sorted by place.
///
/// The cut depends only on the reports and the previous cut, so a restarted controller continues at the last cut.
pub(super) fn wave(set: &ImageSet, nodes: &[SelectedNode<'_>]) -> Option<WaveStatus> {
    let limit = set.spec.max_concurrent_nodes?.of(nodes.len());
    let before = set.status.wave.filter(|_| set.is_observed()).unwrap_or_default().cut;
    let (mut busy, mut last) = (0, None);
    for node in nodes {
        if busy >= limit && node.is_busy() && last != Some(node.place) {
            return Some(WaveStatus { cut: node.place.max(before) });
        }
        busy += usize::from(node.is_busy());
        last = Some(node.place);
    }
    // All known nodes may begin. Without a pod selector, nodes that join later may begin, too, because they are few.
    let all = if set.spec.pod_selector.is_none() { PLACES } else { last.map_or(0, |place| place + 1) };
    Some(WaveStatus { cut: all.max(before) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::objects::{NodeLimit, PodSelector, SetStatus, testing::set};

    fn limited(limit: NodeLimit, cut: Option<u64>) -> ImageSet {
        let mut set = set("web", &["app:v1"]);
        set.spec.max_concurrent_nodes = Some(limit);
        let wave = cut.map(|cut| WaveStatus { cut });
        set.status = SetStatus { observed_generation: set.generation, wave, ..SetStatus::default() };
        set
    }

    /// One letter a node, in the order of places 10, 20, …: `-` nothing reported, `p` pulling, `r` ready, `f` failed,
    /// `x` expired, `w` waiting, `s` stalled.
    fn nodes(letters: &str) -> Vec<SelectedNode<'static>> {
        let phase = |letter| match letter {
            'p' | 's' => Some(SetPhase::Pulling),
            'r' => Some(SetPhase::Ready),
            'f' => Some(SetPhase::Failed),
            'x' => Some(SetPhase::Expired),
            'w' => Some(SetPhase::Waiting),
            _ => None,
        };
        let node = |(at, letter)| SelectedNode {
            name: "node",
            place: 10 * (at as u64 + 1),
            phase: phase(letter),
            images: &[],
            is_stalled: letter == 's',
        };
        letters.chars().enumerate().map(node).collect()
    }

    #[test]
    fn as_many_nodes_as_the_limit_are_busy_below_the_cut() {
        for (limit, reports, cut) in [
            (NodeLimit::Count(1), "", PLACES),
            (NodeLimit::Count(1), "---", 20),
            (NodeLimit::Count(2), "---", 30),
            (NodeLimit::Count(3), "---", PLACES),
            (NodeLimit::Count(1), "p--", 20),
            (NodeLimit::Count(1), "r--", 30),
            (NodeLimit::Count(1), "rr-", PLACES),
            (NodeLimit::Count(1), "f--", 30),
            (NodeLimit::Count(1), "x--", 30),
            (NodeLimit::Count(1), "s--", 30),
            (NodeLimit::Count(2), "rp-w", 40),
            (NodeLimit::Count(1), "-r-", 30),
            (NodeLimit::Percent(50), "----", 30),
            (NodeLimit::Percent(10), "----", 20),
            (NodeLimit::Percent(100), "----", PLACES),
        ] {
            let found = wave(&limited(limit, None), &nodes(reports));
            assert_eq!(found, Some(WaveStatus { cut }), "{limit:?} {reports}");
        }
        assert_eq!(wave(&set("web", &["app:v1"]), &nodes("--")), None, "without a limit there are no waves");
    }

    #[test]
    fn a_node_that_gets_a_pod_of_the_selector_later_waits_for_its_turn() {
        for (reports, before, cut) in [
            ("", None, 0),
            ("", Some(35), 35),
            ("r", None, 11),
            ("rr", Some(35), 35),
            ("rrr", Some(11), 31),
            ("rrw", Some(21), 31),
            ("rrww", Some(21), 40),
            ("ww", Some(0), 20),
        ] {
            let mut set = limited(NodeLimit::Count(1), before);
            set.spec.pod_selector = Some(PodSelector::default());
            assert_eq!(wave(&set, &nodes(reports)), Some(WaveStatus { cut }), "{reports} {before:?}");
        }
    }

    #[test]
    fn the_cut_moves_back_for_another_spec_only() {
        let one = NodeLimit::Count(1);
        // A ready node failed since, or the limit was read differently: no node that may begin is stopped.
        assert_eq!(wave(&limited(one, Some(30)), &nodes("---")), Some(WaveStatus { cut: 30 }));
        let mut other = limited(one, Some(30));
        other.generation += 1;
        assert_eq!(wave(&other, &nodes("---")), Some(WaveStatus { cut: 20 }));
    }

    #[test]
    fn two_nodes_at_one_place_begin_together_instead_of_never() {
        let mut twins = nodes("--");
        twins[1].place = twins[0].place;
        assert_eq!(wave(&limited(NodeLimit::Count(1), None), &twins), Some(WaveStatus { cut: PLACES }));
    }
}
