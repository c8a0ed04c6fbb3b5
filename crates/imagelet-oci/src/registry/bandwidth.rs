//! Limits the rate at which all pulls of the process together receive blobs.
//!
//! A token bucket: received bytes get a ticket, and a stream is not read again before its ticket is due. Meanwhile the
//! receive buffers of the kernel fill, and the sender slows down.

use std::{
    num::NonZeroU64,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::locked;

/// The bucket saves at most the unused bytes of this time.
const BURST: Duration = Duration::from_millis(100);

/// A limit in bytes per second, shared by clones. It can change while pulls run. Limits with equal rates are equal.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    bucket: Arc<Mutex<Bucket>>,
    changed: watch::Sender<()>,
}

/// The number of all received bytes up to the last byte of the ticket. `None` if no limit applies to them.
pub(super) type ByteTicket = Option<u64>;

impl Bandwidth {
    /// The rate is in bytes per second. `None` means no limit.
    #[must_use]
    pub fn new(rate: Option<NonZeroU64>) -> Self {
        let bucket = Bucket { rate, issued: 0, due: 0.0, at: Instant::now() };
        Self { bucket: Arc::new(Mutex::new(bucket)), changed: watch::Sender::default() }
    }

    #[must_use]
    pub fn rate(&self) -> Option<NonZeroU64> {
        locked(&self.bucket).rate
    }

    /// Changes the limit for all clones and their running pulls.
    pub fn set(&self, rate: Option<NonZeroU64>) {
        let mut bucket = locked(&self.bucket);
        bucket.pass(Instant::now());
        bucket.rate = rate;
        drop(bucket);
        self.changed.send_replace(());
    }

    /// The ticket of received bytes. For 0 bytes, it is the ticket of all earlier bytes.
    pub(super) fn ticket(&self, bytes: u64) -> ByteTicket {
        locked(&self.bucket).ticket(bytes, Instant::now())
    }

    pub(super) async fn due(&self, ticket: ByteTicket) {
        let Some(ticket) = ticket else { return };
        let mut changed = self.changed.subscribe();
        loop {
            let wait = locked(&self.bucket).wait(ticket, Instant::now());
            if wait.is_zero() {
                return;
            }
            tokio::select! {
                () = sleep(wait) => {}
                _ = changed.changed() => {}
            }
        }
    }
}

impl Default for Bandwidth {
    fn default() -> Self {
        Self::new(None)
    }
}

impl PartialEq for Bandwidth {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bucket, &other.bucket) || self.rate() == other.rate()
    }
}

impl Eq for Bandwidth {}

#[derive(Debug)]
struct Bucket {
    rate: Option<NonZeroU64>,
    issued: u64,
    /// The number of bytes that the limit allowed up to the time `at`.
    due: f64,
    at: Instant,
}

impl Bucket {
    fn pass(&mut self, now: Instant) {
        let issued = self.issued as f64;
        self.due = match self.rate {
            None => issued,
            Some(rate) => {
                let rate = rate.get() as f64;
                let passed = now.saturating_duration_since(self.at).as_secs_f64();
                (self.due + passed * rate).min(issued + rate * BURST.as_secs_f64())
            }
        };
        self.at = now;
    }

    fn ticket(&mut self, bytes: u64, now: Instant) -> ByteTicket {
        self.pass(now);
        self.issued += bytes;
        self.rate.map(|_| self.issued)
    }

    fn wait(&mut self, ticket: u64, now: Instant) -> Duration {
        self.pass(now);
        let Some(rate) = self.rate else { return Duration::ZERO };
        Duration::from_secs_f64((ticket as f64 - self.due).max(0.0) / rate.get() as f64)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn rate(bytes: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(bytes)
    }

    /// Takes pieces of 10 kB as a stream does; returns the milliseconds it took.
    async fn receive(bandwidth: Bandwidth, pieces: u32) -> u128 {
        let began = Instant::now();
        for _ in 0..pieces {
            let ticket = bandwidth.ticket(10_000);
            bandwidth.due(ticket).await;
        }
        began.elapsed().as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn streams_share_the_rate_in_turns() {
        let bandwidth = Bandwidth::new(rate(100_000));
        let (both, first, second) = (bandwidth.clone(), bandwidth.clone(), bandwidth.clone());
        let (first, second) = tokio::join!(receive(first, 50), receive(second, 50));
        assert!((9_890..=10_110).contains(&first) && (9_890..=10_110).contains(&second), "{first} {second}");
        advance(Duration::from_mins(1)).await;
        // An idle minute leaves a tenth of a second.
        let third = receive(both, 50).await;
        assert!((4_890..=4_910).contains(&third), "{third}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_stream_waits_for_what_others_have_received() {
        let bandwidth = Bandwidth::new(rate(1_000));
        bandwidth.ticket(60_000);
        let began = Instant::now();
        bandwidth.due(bandwidth.ticket(0)).await;
        assert_eq!(began.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_holds_at_once_for_what_waits() {
        for (new, total) in [(rate(10_000), 11), (rate(500), 210), (None, 10)] {
            let bandwidth = Bandwidth::new(rate(1_000));
            let waiting = tokio::spawn({
                let bandwidth = bandwidth.clone();
                async move {
                    let began = Instant::now();
                    bandwidth.due(bandwidth.ticket(20_000)).await;
                    bandwidth.due(bandwidth.ticket(if new == rate(500) { 90_000 } else { 0 })).await;
                    began.elapsed().as_secs()
                }
            });
            sleep(Duration::from_secs(10)).await;
            bandwidth.set(new);
            assert_eq!(waiting.await.unwrap(), total, "{new:?}");
            assert_eq!(bandwidth, Bandwidth::new(new));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_waits_and_a_later_one_counts_from_its_beginning() {
        let bandwidth = Bandwidth::default();
        assert_eq!(receive(bandwidth.clone(), 1_000).await, 0);
        bandwidth.set(rate(10_000));
        assert_eq!(receive(bandwidth, 5).await, 5_000);
    }

    #[test]
    fn a_wait_is_what_is_missing_over_the_rate() {
        let at = Instant::now();
        for (what, rate_now, issued, due, passed, ticket, wait) in [
            ("due already", rate(10), 100, 100.0, 0, 100, 0),
            ("one second missing", rate(10), 100, 90.0, 0, 100, 1_000),
            ("of which half has passed", rate(10), 100, 90.0, 500, 100, 500),
            ("all has passed", rate(10), 100, 90.0, 5_000, 100, 0),
            ("an earlier ticket", rate(10), 100, 90.0, 0, 95, 500),
            ("no limit", None, 100, 0.0, 0, 100, 0),
        ] {
            let mut bucket = Bucket { rate: rate_now, issued, due, at };
            let found = bucket.wait(ticket, at + Duration::from_millis(passed));
            assert_eq!(found.as_millis(), wait, "{what}");
        }
    }
}
