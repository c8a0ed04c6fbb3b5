//! How long pods take to start, without what their images took (`spec/pull.md §9.4`).

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::metrics::{Family, MetricKind, Metrics};

/// Most pods kept track of. A node has some hundred; past this new ones are not measured.
const PODS_MAX: usize = 16_384;
/// Most pulls kept for one pod that has not started; past this the oldest are forgotten.
const SESSIONS_MAX: usize = 1024;

const SECONDS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

static START: Family = Family {
    name: "kubelet_pod_start_sli_duration_seconds",
    help: "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
    kind: MetricKind::Histogram(SECONDS),
    labels: &[],
};

static START_TOTAL: Family = Family {
    name: "kubelet_pod_start_total_duration_seconds",
    help: "Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
    kind: MetricKind::Histogram(SECONDS),
    labels: &[],
};

/// Hears of pulls by pod. Must not block: it is called on the way of a pull.
pub trait PullRecorder: Send + Sync + fmt::Debug {
    /// A pull for a pod is about to begin.
    fn pull_started(&self, pod_uid: &str);

    /// An image is there for a pod, pulled or found.
    fn pull_finished(&self, pod_uid: &str);
}

/// Measures pods from their creation until they run. Whoever watches pods tells it of each change it sees.
#[derive(Debug)]
pub struct StartupTracker {
    metrics: Arc<Metrics>,
    pods: Mutex<Pods>,
}

#[derive(Debug, Default)]
struct Pods {
    tracked: HashMap<String, Starting>,
    /// Seen as unschedulable: when they start says nothing about the node.
    excluded: HashSet<String>,
}

#[derive(Debug, Default)]
struct Starting {
    pulls: Pulls,
    /// It was measured; it stays until it ends, so that nobody takes it for a new one.
    measured: bool,
}

/// A pod as a watch shows it.
#[derive(Clone, Copy, Debug)]
pub struct PodSeen<'a> {
    /// Its uid.
    pub uid: &'a str,
    /// When it was created.
    pub created: SystemTime,
    /// Where it stands.
    pub stage: PodStage,
    /// How long its init containers ran.
    pub init_took: Duration,
    /// It has storage of its own; what that takes is not the node's to answer for.
    pub is_stateful: bool,
}

/// Where a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodStage {
    /// The scheduler finds no node for it.
    Unschedulable,
    /// No start time is on record yet.
    Fresh,
    /// It was taken up; not all its containers run.
    Starting,
    /// All its containers were reported as started.
    Running,
    /// It succeeded or failed.
    Ended,
}

impl StartupTracker {
    /// None tracked yet.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        metrics.declare(&START);
        metrics.declare(&START_TOTAL);
        Self { metrics, pods: Mutex::default() }
    }

    /// Takes in what a watch showed at `now`. A pod that already had started when it was first seen is not measured.
    pub fn observe(&self, pod: &PodSeen<'_>, now: SystemTime) {
        let mut pods = self.lock();
        if pod.stage == PodStage::Ended {
            pods.forget(pod.uid);
            return;
        }
        let Some(starting) = pods.tracked.get_mut(pod.uid) else {
            pods.meet(pod);
            return;
        };
        if pod.stage != PodStage::Running || starting.measured {
            return;
        }
        starting.measured = true;
        let pulling = total(&starting.pulls.sessions);
        let took = now.duration_since(pod.created).unwrap_or_default();
        drop(pods);
        self.metrics.observe(&START_TOTAL, &[], took.as_secs_f64());
        if !pod.is_stateful {
            let own = took.as_secs_f64() - pulling.as_secs_f64() - pod.init_took.as_secs_f64();
            self.metrics.observe(&START, &[], own);
        }
    }

    /// Forgets a pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().forget(uid);
    }

    fn lock(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PullRecorder for StartupTracker {
    fn pull_started(&self, pod_uid: &str) {
        if let Some(starting) = self.lock().tracked.get_mut(pod_uid) {
            starting.pulls.start(Instant::now());
        }
    }

    fn pull_finished(&self, pod_uid: &str) {
        if let Some(starting) = self.lock().tracked.get_mut(pod_uid) {
            starting.pulls.finish(Instant::now());
        }
    }
}

impl Pods {
    fn meet(&mut self, pod: &PodSeen<'_>) {
        if self.tracked.len() + self.excluded.len() >= PODS_MAX || self.excluded.contains(pod.uid) {
            return;
        }
        match pod.stage {
            PodStage::Unschedulable => drop(self.excluded.insert(pod.uid.to_owned())),
            PodStage::Fresh => drop(self.tracked.insert(pod.uid.to_owned(), Starting::default())),
            _ => {}
        }
    }

    fn forget(&mut self, uid: &str) {
        self.tracked.remove(uid);
        self.excluded.remove(uid);
    }
}

/// The pulls of one pod. A finish ends the oldest that is open, so that the waits between failed tries count too.
#[derive(Debug, Default)]
struct Pulls {
    open: VecDeque<Instant>,
    /// From and to, in the order in which they ended.
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

/// How long pulls took together, counting what overlaps once. Touches nothing.
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
    use serde_json::Value;

    use super::*;
    use crate::testing::vectors;

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

    fn pod(stage: PodStage) -> PodSeen<'static> {
        let created = SystemTime::UNIX_EPOCH;
        PodSeen { uid: "u", created, stage, init_took: Duration::from_secs(3), is_stateful: false }
    }

    fn seconds(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn sum(metrics: &Metrics, family: &Family) -> Option<String> {
        let name = format!("{}_sum ", family.name);
        metrics.render().lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned))
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_measured_once_and_its_pulls_and_init_containers_are_not_its_own_time() {
        let metrics = Arc::new(Metrics::new());
        let tracker = StartupTracker::new(Arc::clone(&metrics));
        tracker.pull_started("u");
        tracker.observe(&pod(PodStage::Fresh), seconds(1));
        tracker.pull_started("u");
        tokio::time::advance(Duration::from_secs(4)).await;
        tracker.pull_finished("u");
        tracker.observe(&pod(PodStage::Starting), seconds(9));
        tracker.observe(&pod(PodStage::Running), seconds(10));
        tracker.observe(&pod(PodStage::Running), seconds(20));
        assert_eq!(sum(&metrics, &START_TOTAL).as_deref(), Some("10"));
        assert_eq!(sum(&metrics, &START).as_deref(), Some("3"));
        tracker.observe(&pod(PodStage::Ended), seconds(30));
        assert!(tracker.lock().tracked.is_empty());
    }

    #[test]
    fn pods_that_started_before_or_waited_for_a_node_are_not_measured() {
        for first in [PodStage::Starting, PodStage::Running, PodStage::Unschedulable] {
            let metrics = Arc::new(Metrics::new());
            let tracker = StartupTracker::new(Arc::clone(&metrics));
            for stage in [first, PodStage::Fresh, PodStage::Running] {
                if first == PodStage::Unschedulable || stage != PodStage::Fresh {
                    tracker.observe(&pod(stage), seconds(10));
                }
            }
            assert_eq!(sum(&metrics, &START_TOTAL).as_deref(), Some("0"), "{first:?}");
        }
    }

    #[test]
    fn of_a_stateful_pod_only_the_whole_is_told() {
        let metrics = Arc::new(Metrics::new());
        let tracker = StartupTracker::new(Arc::clone(&metrics));
        for stage in [PodStage::Fresh, PodStage::Running] {
            tracker.observe(&PodSeen { is_stateful: true, ..pod(stage) }, seconds(10));
        }
        assert_eq!((metrics.value(&START, &[]), metrics.value(&START_TOTAL, &[])), (0.0, 1.0));
    }
}
