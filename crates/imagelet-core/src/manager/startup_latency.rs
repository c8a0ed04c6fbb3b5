//! Measures the image pulls of each pod: the time of each pull and of all pulls (`docs/spec/pull.md §9.4`).

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::{
    bounded_map::make_room,
    events::PodIdentity,
    lock::locked,
    metrics::{Family, MetricKind, Metrics},
};

const PODS_MAX: usize = 1024;
const SESSIONS_MAX: usize = 1024;
/// A pod without a pull for this time counts as complete: all its images are present.
const FINISHED_AFTER: Duration = Duration::from_mins(1);
/// If a failed pull of a pod is not retried for this time, the measurement is dropped. The longest back-off is shorter.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

pub(super) static POD_IMAGES: Family = Family {
    name: "imagelet_pod_images_duration_seconds",
    help: "From the begin of the first pull for a pod to the moment its last image was there.",
    kind: MetricKind::Histogram(&[
        0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
        600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
    ]),
    labels: &[],
};

/// Receives the pulls of pods. Pulls call the methods, so the methods must not block.
pub trait PullRecorder: Send + Sync + fmt::Debug {
    fn pull_started(&self, pod: &PodIdentity);

    fn image_finished(&self, pod: &PodIdentity, end: ImageEnd);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageEnd {
    Pulled,
    Present,
    Failed,
}

#[derive(Debug)]
pub struct PodStarts {
    metrics: Arc<Metrics>,
    /// The pods with a recent pull, by uid.
    pods: Mutex<HashMap<Arc<str>, Starting>>,
}

#[derive(Debug)]
struct Starting {
    began: (SystemTime, Instant),
    /// When the last image became present.
    ended: Option<Instant>,
    stirred: Instant,
    running: usize,
    is_failing: bool,
    is_counted: bool,
    pulls: Pulls,
}

impl PodStarts {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        metrics.declare(&POD_IMAGES);
        Self { metrics, pods: Mutex::default() }
    }

    /// The start and end of each pull for a pod. Empty if no pull ran for the pod, or the last pull was long ago.
    pub fn pulls_of(&self, uid: &str) -> Vec<(SystemTime, SystemTime)> {
        let pods = self.counted(Instant::now());
        let Some(Starting { began: (time, began), pulls, .. }) = pods.get(uid) else { return Vec::new() };
        let moment = |at: &Instant| *time + at.saturating_duration_since(*began);
        pulls.sessions.iter().map(|(from, to)| (moment(from), moment(to))).collect()
    }

    /// Updates the metric before it is read: counts the pods whose pulls have finished.
    pub fn count_finished(&self) {
        drop(self.counted(Instant::now()));
    }

    fn counted(&self, now: Instant) -> MutexGuard<'_, HashMap<Arc<str>, Starting>> {
        let mut pods = locked(&self.pods);
        pods.retain(|_, starting| {
            let silent = now.saturating_duration_since(starting.stirred);
            if starting.running == 0 && silent >= FINISHED_AFTER && !starting.is_failing && !starting.is_counted {
                starting.is_counted = true;
                if let Some(ended) = starting.ended {
                    let took = ended.saturating_duration_since(starting.began.1);
                    self.metrics.observe(&POD_IMAGES, &[], took.as_secs_f64());
                }
            }
            starting.running > 0 || silent < FORGOTTEN_AFTER
        });
        pods
    }
}

impl PullRecorder for PodStarts {
    fn pull_started(&self, pod: &PodIdentity) {
        if pod.uid.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut pods = self.counted(now);
        make_room(&mut pods, &pod.uid, PODS_MAX, |starting| starting.stirred);
        let starting = pods.entry(Arc::clone(&pod.uid)).or_insert_with(|| Starting::new(now));
        if starting.is_counted {
            *starting = Starting::new(now);
        }
        starting.pulls.start(now);
        starting.running += 1;
        starting.stirred = now;
    }

    fn image_finished(&self, pod: &PodIdentity, end: ImageEnd) {
        let now = Instant::now();
        let mut pods = self.counted(now);
        let Some(starting) = pods.get_mut(&pod.uid) else { return };
        starting.stirred = now;
        if end != ImageEnd::Present {
            starting.running = starting.running.saturating_sub(1);
            starting.is_failing = end == ImageEnd::Failed;
        }
        if end != ImageEnd::Failed {
            starting.pulls.finish(now);
            starting.ended = Some(now);
        }
    }
}

impl Starting {
    fn new(now: Instant) -> Self {
        Self {
            began: (SystemTime::now(), now),
            ended: None,
            stirred: now,
            running: 0,
            is_failing: false,
            is_counted: false,
            pulls: Pulls::default(),
        }
    }
}

/// The pulls of one pod. A success ends the oldest open pull, so the waits between failed attempts are included.
#[derive(Debug, Default)]
struct Pulls {
    open: VecDeque<Instant>,
    sessions: VecDeque<(Instant, Instant)>,
}

impl Pulls {
    fn start(&mut self, now: Instant) {
        if self.open.len() == SESSIONS_MAX {
            self.open.pop_front();
        }
        self.open.push_back(now);
    }

    fn finish(&mut self, now: Instant) {
        let Some(started) = self.open.pop_front() else { return };
        if self.sessions.len() == SESSIONS_MAX {
            self.sessions.pop_front();
        }
        self.sessions.push_back((started, now));
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;
    use serde_json::Value;

    use super::*;

    fn at(start: Instant, seconds: &Value) -> Instant {
        start + Duration::from_secs(seconds.as_u64().expect("seconds"))
    }

    #[test]
    fn every_startup_latency_vector_holds() {
        let start = Instant::now();
        let mut cases = 0;
        for case in vectors("pull-startup-latency.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            let pairs = |value: &Value| -> Vec<(Instant, Instant)> {
                let all = value.as_array().expect("sessions").iter();
                all.filter(|one| !one[1].is_null()).map(|one| (at(start, &one[0]), at(start, &one[1]))).collect()
            };
            match input["op"].as_str().expect("an operation") {
                // Run by the readers of the pulls.
                "total" => continue,
                "pair" => {
                    let mut pulls = Pulls::default();
                    for event in input["events"].as_array().expect("events") {
                        match event[0].as_str().expect("an event") {
                            "start" => pulls.start(at(start, &event[1])),
                            _ => pulls.finish(at(start, &event[1])),
                        }
                    }
                    assert_eq!(pulls.sessions, pairs(&expected["sessions_s"]), "{}", case["name"]);
                    assert_eq!(Some(pulls.open.len() as u64), expected["open_starts"].as_u64(), "{}", case["name"]);
                }
                other => panic!("unknown operation {other}"),
            }
            cases += 1;
        }
        assert!(cases > 0);
    }

    fn pod(number: u64) -> PodIdentity {
        let text = |word: &str| Arc::from(format!("{word}-{number}"));
        PodIdentity { namespace: Arc::from("shop"), name: text("web"), uid: text("uid") }
    }

    fn sum(metrics: &Metrics) -> (f64, Option<String>) {
        let name = format!("{}_sum ", POD_IMAGES.name);
        let sum = metrics.render().lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned));
        (metrics.value(&POD_IMAGES, &[]), sum)
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_measured_once_from_its_first_pull_to_its_last_image() {
        let metrics = Arc::new(Metrics::new());
        let starts = PodStarts::new(Arc::clone(&metrics));
        starts.pull_started(&pod(1));
        pass(2).await;
        starts.pull_started(&pod(1));
        pass(2).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        pass(2).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        // The kubelet pulls the next image once a container is started.
        pass(10).await;
        starts.pull_started(&pod(1));
        pass(4).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        pass(60).await;
        starts.count_finished();
        starts.count_finished();
        assert_eq!(sum(&metrics), (1.0, Some("20".to_owned())));
        let sessions =
            [(0, 4), (2, 6), (16, 20)].map(|(from, to)| (Duration::from_secs(from), Duration::from_secs(to)));
        let pulls = starts.pulls_of("uid-1");
        let since = |at: SystemTime| at.duration_since(pulls[0].0).unwrap();
        assert_eq!(pulls.iter().map(|(from, to)| (since(*from), since(*to))).collect::<Vec<_>>(), sessions);
        assert_eq!(starts.pulls_of("uid-2"), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_waits_for_an_image_that_fails_and_is_forgotten_when_it_never_comes() {
        let metrics = Arc::new(Metrics::new());
        let starts = PodStarts::new(Arc::clone(&metrics));
        for number in [1, 2] {
            starts.pull_started(&pod(number));
            starts.image_finished(&pod(number), ImageEnd::Failed);
        }
        pass(300).await;
        starts.pull_started(&pod(1));
        pass(5).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        pass(3600).await;
        starts.count_finished();
        assert_eq!(sum(&metrics), (1.0, Some("305".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_that_was_there_does_not_end_the_pull_of_another() {
        let metrics = Arc::new(Metrics::new());
        let starts = PodStarts::new(Arc::clone(&metrics));
        starts.pull_started(&pod(1));
        starts.image_finished(&pod(1), ImageEnd::Present);
        pass(600).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        pass(60).await;
        starts.count_finished();
        assert_eq!(sum(&metrics), (1.0, Some("600".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_bounded_and_pulls_for_no_pod_are_not_measured() {
        let starts = PodStarts::new(Arc::new(Metrics::new()));
        starts.pull_started(&PodIdentity::default());
        starts.image_finished(&PodIdentity::default(), ImageEnd::Pulled);
        for number in 0..=PODS_MAX as u64 {
            starts.pull_started(&pod(number));
            pass(1).await;
        }
        assert_eq!(starts.counted(Instant::now()).len(), PODS_MAX);
        assert!(!starts.counted(Instant::now()).contains_key("uid-0"), "the one that was silent for longest goes");
        for number in 0..=PODS_MAX as u64 {
            starts.image_finished(&pod(number), ImageEnd::Pulled);
        }
        pass(3600).await;
        assert!(starts.counted(Instant::now()).is_empty());
    }
}
