//! What weighing saves, as far as docs/performance.md promises it.

use std::sync::Arc;

use super::{
    IDLE_BYTES, histories,
    node::{Fetched, Way, live},
};

/// Long enough to learn days, short enough for a debug build.
const DAYS: u64 = 7;
/// Seeds, and the disks in percent of each history's own.
const SEEDS: [(u64, u64); 2] = [(1, 100), (2, 110)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weighing_fetches_at_most_seven_tenths_again_and_on_no_history_a_tenth_more() {
    let all = SEEDS.into_iter().flat_map(|(seed, percent)| {
        let histories = histories::all(seed, DAYS).into_iter();
        histories.map(move |history| (seed, percent, Arc::new(history.on_disk(percent))))
    });
    let lives = all.map(|(seed, percent, history)| {
        let lives = [Way::Kubelet, Way::Cost].map(|way| tokio::spawn(live(Arc::clone(&history), way, DAYS)));
        (format!("{} with seed {seed} on {percent} %", history.name), lives)
    });
    let (mut kubelet, mut cost, mut few) = (0, 0, (0, 0));
    let mut worse = Vec::new();
    for (name, [by_kubelet, by_cost]) in lives.collect::<Vec<_>>() {
        let (by_kubelet, by_cost): (Fetched, Fetched) =
            (by_kubelet.await.unwrap().unwrap(), by_cost.await.unwrap().unwrap());
        assert!(by_cost.removed > 0 || by_kubelet.again == 0, "{name}: nothing was chosen");
        if by_kubelet.again < DAYS * IDLE_BYTES {
            few = (few.0 + by_kubelet.again, few.1 + by_cost.again);
        } else if by_cost.again * 100 > by_kubelet.again * 110 {
            worse.push(format!("{name}: {} against {}", by_cost.again, by_kubelet.again));
        }
        kubelet += by_kubelet.again;
        cost += by_cost.again;
    }
    assert!(worse.is_empty(), "{worse:?}");
    assert!(few.1 * 100 <= few.0 * 110, "where little is fetched again: {few:?}");
    assert!(cost * 100 <= kubelet * 70, "{cost} against {kubelet}");
}
