//! How long the images of pods take: for each pod from the begin of its first pull to the end of its last one, and how
//! much of that was pulling (`docs/spec/pull.md §9.4`).

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{remove_oldest, request::PodIdentity};
use crate::metrics::{Family, MetricKind, Metrics};

const PODS_MAX: usize = 1024;
const OVER_MAX: usize = 100;
const SESSIONS_MAX: usize = 1024;
const IMAGES_MAX: usize = 64;
/// A pod without a pull for this long has all its images.
const FINISHED_AFTER: Duration = Duration::from_mins(1);
/// A pod without a retry after a failed pull for this long is removed; the longest back-off is far shorter.
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

/// Receives the pulls of pods. Must not block, as pulls call it.
pub trait PullRecorder: Send + Sync + fmt::Debug {
    /// A pull for a pod begins.
    fn pull_started(&self, pod: &PodIdentity, image: &str);

    /// The result of a pod's image.
    fn image_finished(&self, pod: &PodIdentity, end: ImageEnd);
}

/// The result of a pod's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageEnd {
    /// Present after a pull.
    Pulled,
    /// Present before.
    Present,
    /// The pull failed or was cancelled.
    Failed,
}

/// How long the images of one pod took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodImages {
    /// The pod.
    pub pod: PodIdentity,
    /// The images pulled for it, as it spells them.
    pub images: Vec<String>,
    /// The start of its first pull.
    pub began: SystemTime,
    /// From there to its last present image; so far, while it is not over.
    pub took: Duration,
    /// The pull time in it: overlaps count once, and the time between failed attempts counts.
    pub pulling: Duration,
    /// From when to when each of them took, counted from the first.
    pub sessions: Vec<(Duration, Duration)>,
    /// Whether no pull for it runs or is expected.
    pub is_over: bool,
}

/// Measures pods by their pulls.
#[derive(Debug)]
pub struct PodStarts {
    metrics: Arc<Metrics>,
    pods: Mutex<Pods>,
}

#[derive(Debug, Default)]
struct Pods {
    pulling: HashMap<Arc<str>, Starting>,
    over: VecDeque<PodImages>,
}

#[derive(Debug)]
struct Starting {
    pod: PodIdentity,
    images: Vec<String>,
    began: (SystemTime, Instant),
    ended: Option<Instant>,
    stirred: Instant,
    running: usize,
    is_failing: bool,
    pulls: Pulls,
}

impl PodStarts {
    /// No pod yet.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        metrics.declare(&POD_IMAGES);
        Self { metrics, pods: Mutex::default() }
    }

    /// All known pods, the latest first.
    pub fn all(&self) -> Vec<PodImages> {
        let now = Instant::now();
        let pods = self.without_finished(now);
        let mut all: Vec<PodImages> = pods.pulling.values().map(|starting| starting.summary(now, false)).collect();
        all.extend(pods.over.iter().cloned());
        all.sort_by(|a, b| (b.began, &b.pod.uid).cmp(&(a.began, &a.pod.uid)));
        all
    }

    /// The images of the pod with this uid; `None`: nothing was pulled for it, or long ago.
    pub fn of_pod(&self, uid: &str) -> Option<PodImages> {
        let now = Instant::now();
        let pods = self.without_finished(now);
        let starting = pods.pulling.get(uid).map(|starting| starting.summary(now, false));
        starting.or_else(|| pods.over.iter().rev().find(|images| &*images.pod.uid == uid).cloned())
    }

    /// Counts finished pods; for readers of metrics.
    pub fn close_finished(&self) {
        drop(self.without_finished(Instant::now()));
    }

    fn without_finished(&self, now: Instant) -> MutexGuard<'_, Pods> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let Pods { pulling, over } = &mut *pods;
        pulling.retain(|_, starting| {
            if !starting.is_over(now) {
                return true;
            }
            if starting.ended.is_some() {
                let images = starting.summary(now, true);
                self.metrics.observe(&POD_IMAGES, &[], images.took.as_secs_f64());
                over.push_back(images);
            }
            false
        });
        let more = over.len().saturating_sub(OVER_MAX);
        over.drain(..more);
        pods
    }
}

impl PullRecorder for PodStarts {
    fn pull_started(&self, pod: &PodIdentity, image: &str) {
        if pod.uid.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut pods = self.without_finished(now);
        if pods.pulling.len() >= PODS_MAX && !pods.pulling.contains_key(&pod.uid) {
            remove_oldest(&mut pods.pulling, |starting| starting.stirred);
        }
        let starting = pods.pulling.entry(Arc::clone(&pod.uid)).or_insert_with(|| Starting::new(pod.clone(), now));
        starting.pulls.start(now);
        starting.running += 1;
        starting.stirred = now;
        if starting.images.len() < IMAGES_MAX && !starting.images.iter().any(|known| known == image) {
            starting.images.push(image.to_owned());
        }
    }

    fn image_finished(&self, pod: &PodIdentity, end: ImageEnd) {
        let now = Instant::now();
        let mut pods = self.without_finished(now);
        let Some(starting) = pods.pulling.get_mut(&pod.uid) else { return };
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
    fn new(pod: PodIdentity, now: Instant) -> Self {
        Self {
            pod,
            images: Vec::new(),
            began: (SystemTime::now(), now),
            ended: None,
            stirred: now,
            running: 0,
            is_failing: false,
            pulls: Pulls::default(),
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let silent = now.saturating_duration_since(self.stirred);
        self.running == 0 && silent >= if self.is_failing { FORGOTTEN_AFTER } else { FINISHED_AFTER }
    }

    fn summary(&self, now: Instant, is_over: bool) -> PodImages {
        let is_there = self.running == 0 && !self.is_failing;
        let end = self.ended.filter(|_| is_over || is_there).unwrap_or(now);
        let since = |at: &Instant| at.saturating_duration_since(self.began.1);
        PodImages {
            pod: self.pod.clone(),
            images: self.images.clone(),
            began: self.began.0,
            took: end.saturating_duration_since(self.began.1),
            pulling: total(&self.pulls.sessions),
            sessions: self.pulls.sessions.iter().map(|(from, to)| (since(from), since(to))).collect(),
            is_over,
        }
    }
}

/// The pulls of one pod. An end closes the oldest open pull, so that waits between failed attempts count.
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

fn total<'a>(sessions: impl IntoIterator<Item = &'a (Instant, Instant)>) -> Duration {
    let mut total = Duration::ZERO;
    let mut end: Option<Instant> = None;
    for (from, to) in sessions {
        match end {
            Some(end) if *from <= end && *to <= end => continue,
            Some(end) if *from <= end => total += *to - end,
            _ => total += to.saturating_duration_since(*from),
        }
        end = Some(*to);
    }
    total
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
                "total" => {
                    let wanted = Duration::from_secs(expected["pulling_time_s"].as_u64().expect("seconds"));
                    assert_eq!(total(&pairs(&input["sessions_s"])), wanted, "{}", case["name"]);
                }
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
        assert_eq!(cases, 12);
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
        starts.pull_started(&pod(1), "a");
        pass(2).await;
        starts.pull_started(&pod(1), "b");
        pass(2).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        assert_eq!(starts.all()[0].took, Duration::from_secs(4), "it goes on");
        pass(2).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        // The kubelet pulls the next image once a container is started.
        pass(10).await;
        assert!(!starts.all()[0].is_over);
        starts.pull_started(&pod(1), "c");
        pass(4).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        pass(60).await;
        starts.close_finished();
        starts.close_finished();
        assert_eq!(sum(&metrics), (1.0, Some("20".to_owned())));
        let all = starts.all();
        assert_eq!(all.len(), 1);
        assert_eq!(
            (all[0].took, all[0].pulling, all[0].is_over),
            (Duration::from_secs(20), Duration::from_secs(10), true)
        );
        assert_eq!(all[0].images, ["a", "b", "c"]);
        let sessions =
            [(0, 4), (2, 6), (16, 20)].map(|(from, to)| (Duration::from_secs(from), Duration::from_secs(to)));
        assert_eq!(starts.of_pod("uid-1").map(|images| images.sessions).as_deref(), Some(&sessions[..]));
        assert_eq!(starts.of_pod("uid-2"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_waits_for_an_image_that_fails_and_is_forgotten_when_it_never_comes() {
        let metrics = Arc::new(Metrics::new());
        let starts = PodStarts::new(Arc::clone(&metrics));
        for number in [1, 2] {
            starts.pull_started(&pod(number), "a");
            starts.image_finished(&pod(number), ImageEnd::Failed);
        }
        pass(300).await;
        starts.pull_started(&pod(1), "a");
        pass(5).await;
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        pass(3600).await;
        assert_eq!(starts.all().len(), 1, "the one that never came is gone");
        assert_eq!(sum(&metrics), (1.0, Some("305".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_that_was_there_does_not_end_the_pull_of_another() {
        let starts = PodStarts::new(Arc::new(Metrics::new()));
        starts.pull_started(&pod(1), "a");
        starts.image_finished(&pod(1), ImageEnd::Present);
        pass(600).await;
        assert!(!starts.all()[0].is_over);
        starts.image_finished(&pod(1), ImageEnd::Pulled);
        assert_eq!(starts.all()[0].took, Duration::from_mins(10));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_bounded_and_pulls_for_no_pod_are_not_measured() {
        let starts = PodStarts::new(Arc::new(Metrics::new()));
        starts.pull_started(&PodIdentity::default(), "a");
        starts.image_finished(&PodIdentity::default(), ImageEnd::Pulled);
        for number in 0..=PODS_MAX as u64 {
            starts.pull_started(&pod(number), "a");
            pass(1).await;
        }
        assert_eq!(starts.all().len(), PODS_MAX);
        assert!(starts.all().iter().all(|it| it.pod != pod(0)), "the one that was silent for longest goes");
        for number in 0..=PODS_MAX as u64 {
            starts.image_finished(&pod(number), ImageEnd::Pulled);
        }
        pass(60).await;
        assert_eq!(starts.all().len(), OVER_MAX);
    }
}
