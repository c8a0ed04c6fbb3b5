//! Shows what each way of collecting makes a node fetch again, over made-up histories of nodes.
//!
//! `cargo run --release -p imagelet-core --example retention -- [DAYS] [SEEDS]`. The inventory, the plan and its choice
//! are the real ones; store, disk and pods are made up. A history with more days teaches more.

mod histories;
mod node;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use node::{Fetched, Way, live};

const DAYS: u64 = 28;
const SEEDS: u64 = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let days = arguments.next().transpose()?.unwrap_or(DAYS);
    let seeds = arguments.next().transpose()?.unwrap_or(SEEDS);
    print_line(format_args!("fetched again, in GB, over {days} days"));
    print_line(format_args!(
        "{:>4}  {:<8} {:>7} {:>8} {:>8} {:>8}  {:>6} {:>6}",
        "seed", "history", "disk", "kubelet", "lru", "cost", "lru", "cost"
    ));
    let (mut sums, mut worst) = ([0; 3], 0.0_f64);
    for seed in 1..=seeds {
        for history in histories::all(seed, days) {
            let history = Arc::new(history);
            let lives =
                [Way::Kubelet, Way::Lru, Way::Cost].map(|way| tokio::spawn(live(Arc::clone(&history), way, days)));
            let mut again = [0; 3];
            for ((again, sum), life) in again.iter_mut().zip(&mut sums).zip(lives) {
                let fetched: Fetched = life.await??;
                *again = fetched.again;
                *sum += fetched.again;
            }
            worst = worst.max(again[2] as f64 / again[0].max(1) as f64);
            row(&seed.to_string(), history.name, Some(history.disk), again);
        }
    }
    row("all", "sum", None, sums);
    print_line(format_args!("the worst history for cost: {:.0} % of the kubelet's", worst * 100.0));
    Ok(())
}

fn row(seed: &str, name: &str, disk: Option<u64>, again: [u64; 3]) {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let share = |bytes: u64| bytes as f64 * 100.0 / again[0].max(1) as f64;
    let disk = disk.map_or_else(String::new, |disk| format!("{:.0}", gb(disk)));
    print_line(format_args!(
        "{seed:>4}  {name:<8} {disk:>7} {:>8.1} {:>8.1} {:>8.1}  {:>5.0}% {:>5.0}%",
        gb(again[0]),
        gb(again[1]),
        gb(again[2]),
        share(again[1]),
        share(again[2])
    ));
}

#[expect(clippy::print_stdout, reason = "an example tells what it found")]
fn print_line(text: std::fmt::Arguments<'_>) {
    println!("{text}");
}
