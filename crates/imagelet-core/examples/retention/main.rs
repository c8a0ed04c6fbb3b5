//! Shows what each way of collecting makes a node fetch again, over made-up histories of nodes.
//!
//! `cargo run --profile dist -p imagelet-core --example retention -- [DAYS] [SEEDS] [PERCENT…]`: so many percent of the disk
//! that each history has are its disks. The inventory, the plan and its choice are the real ones; store, disk and pods
//! are made up. A history with more days teaches more.

mod foresight;
mod histories;
mod node;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use node::{Fetched, Way, live};

/// The columns.
const WAYS: [Way; 4] = [Way::Kubelet, Way::Lru, Way::Cost, Way::Ahead];
const DAYS: u64 = 28;
const SEEDS: u64 = 3;
/// Disks, in percent of a history's own.
const DISKS: [u64; 2] = [100, 110];
/// Where the kubelet fetches less than this again in a day there is little to choose: a few images decide.
const IDLE_BYTES: u64 = 100_000_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Result<Vec<u64>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let arguments = arguments?;
    let days = arguments.first().copied().unwrap_or(DAYS);
    let seeds = arguments.get(1).copied().unwrap_or(SEEDS);
    let disks = arguments.get(2..).filter(|disks| !disks.is_empty()).unwrap_or(&DISKS);
    print_line(format_args!("fetched again, in GB, over {days} days"));
    print_line(format_args!(
        "{:>4}  {:<8} {:>7} {:>8} {:>8} {:>8} {:>8}  {:>6} {:>6} {:>6}",
        "seed", "history", "disk", "kubelet", "lru", "cost", "ahead", "lru", "cost", "ahead"
    ));
    let (mut sums, mut few, mut worst) = ([0; WAYS.len()], [0; WAYS.len()], 0.0_f64);
    // Those against the kubelet's order with the thresholds kept.
    let mut worst_of_order = 0.0_f64;
    let mut left = [(0, 0); WAYS.len()];
    let mut kinds: BTreeMap<(&str, u64), ([u64; WAYS.len()], f64)> = BTreeMap::new();
    for seed in 1..=seeds {
        for history in histories::all(seed, days) {
            for percent in disks {
                let history = Arc::new(history.on_disk(*percent));
                let lives = WAYS.map(|way| tokio::spawn(live(Arc::clone(&history), way, days)));
                let mut again = [0; WAYS.len()];
                for (place, life) in lives.into_iter().enumerate() {
                    let fetched: Fetched = life.await??;
                    again[place] = fetched.again;
                    left[place] = (left[place].0 + fetched.left, left[place].1 + fetched.collections);
                }
                add(&mut sums, again);
                let kind = kinds.entry((history.name, history.disk)).or_default();
                add(&mut kind.0, again);
                if again[0] < days * IDLE_BYTES {
                    add(&mut few, again);
                } else {
                    let share = again[2] as f64 / again[0] as f64;
                    (worst, kind.1) = (worst.max(share), kind.1.max(share));
                }
                if again[1] >= days * IDLE_BYTES {
                    worst_of_order = worst_of_order.max(again[2] as f64 / again[1] as f64);
                }
                row(&seed.to_string(), history.name, Some(history.disk), again);
            }
        }
    }
    for ((name, disk), (again, worst)) in kinds {
        row("all", name, Some(disk), again);
        if worst > 0.0 {
            print_line(format_args!("{:>4}  at worst {:.0} %", "", worst * 100.0));
        }
    }
    row("few", "sum", None, few);
    row("all", "sum", None, sums);
    print_line(format_args!(
        "the worst history for cost: {:.0} % of the kubelet's, {:.0} % of its order with the thresholds kept (lru)",
        worst * 100.0,
        worst_of_order * 100.0
    ));
    print_line(format_args!("`few` and not among the worst: those with less than 0.1 GB a day"));
    let left =
        left.map(|(percent, collections)| format!("{:.1} %", percent as f64 / f64::max(collections as f64, 1.0)));
    print_line(format_args!("collections left the disk at {} full", left.join(", ")));
    Ok(())
}

fn add(sums: &mut [u64; WAYS.len()], again: [u64; WAYS.len()]) {
    sums.iter_mut().zip(again).for_each(|(sum, again)| *sum += again);
}

fn row(seed: &str, name: &str, disk: Option<u64>, again: [u64; WAYS.len()]) {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let share = |bytes: u64| bytes as f64 * 100.0 / again[0].max(1) as f64;
    let disk = disk.map_or_else(String::new, |disk| format!("{:.0}", gb(disk)));
    print_line(format_args!(
        "{seed:>4}  {name:<8} {disk:>7} {:>8.1} {:>8.1} {:>8.1} {:>8.1}  {:>5.0}% {:>5.0}% {:>5.0}%",
        gb(again[0]),
        gb(again[1]),
        gb(again[2]),
        gb(again[3]),
        share(again[1]),
        share(again[2]),
        share(again[3])
    ));
}

#[expect(clippy::print_stdout, reason = "an example tells what it found")]
fn print_line(text: std::fmt::Arguments<'_>) {
    println!("{text}");
}
