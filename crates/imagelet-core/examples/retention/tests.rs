//! What weighing saves, as far as docs/retention.md promises it.

use std::sync::Arc;

use super::{
    histories,
    node::{Fetched, Way, live},
};

/// Long enough to learn days, short enough for a debug build.
const DAYS: u64 = 9;
const SEED: u64 = 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weighing_fetches_at_most_seven_tenths_again_and_on_no_history_a_tenth_more() {
    let lives = histories::all(SEED, DAYS).into_iter().map(|history| {
        let history = Arc::new(history);
        let lives = [Way::Kubelet, Way::Cost].map(|way| tokio::spawn(live(Arc::clone(&history), way, DAYS)));
        (history.name, lives)
    });
    let (mut kubelet, mut cost) = (0, 0);
    for (name, [by_kubelet, by_cost]) in lives.collect::<Vec<_>>() {
        let (by_kubelet, by_cost): (Fetched, Fetched) =
            (by_kubelet.await.unwrap().unwrap(), by_cost.await.unwrap().unwrap());
        assert!(by_kubelet.again > 0 && by_cost.removed > 0, "{name}: the disk is too large to choose on");
        assert!(
            by_cost.again * 100 <= by_kubelet.again * 110,
            "{name}: {} against {}",
            by_cost.again,
            by_kubelet.again
        );
        kubelet += by_kubelet.again;
        cost += by_cost.again;
    }
    assert!(cost * 100 <= kubelet * 70, "{cost} against {kubelet}");
}
