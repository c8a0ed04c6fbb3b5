//! Measures the start latency of pods without pulls and init containers, as the kubelet does, and the time of pulls
//! (`docs/spec/pull.md §9.4`).

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    manager::PodStarts,
    metrics::{MetricKind, Metrics, families},
};

use super::{
    PODS_MAX,
    object::{PodObject, VolumeSpec, state_of},
};

const BUCKETS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

families! {
    START = "kubelet_pod_start_sli_duration_seconds",
        "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
        MetricKind::Histogram(BUCKETS), &[];
    PULLING = "imagelet_pod_start_pull_duration_seconds",
        "Of each pod that kubelet_pod_start_sli_duration_seconds counts, the time in which its images were pulled.",
        MetricKind::Histogram(BUCKETS), &[];
}

type Interval = (SystemTime, SystemTime);

#[derive(Debug)]
pub(crate) struct StartTracker {
    metrics: Arc<Metrics>,
    pulls: Arc<PodStarts>,
    /// The uids of pods that do not run yet and were first seen before the kubelet started to process them.
    starting: HashSet<String>,
}

impl StartTracker {
    pub(crate) fn new(metrics: Arc<Metrics>, pulls: Arc<PodStarts>) -> Self {
        Self { metrics, pulls, starting: HashSet::new() }
    }

    pub(super) fn observe(&mut self, pod: &PodObject, now: SystemTime) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if pod.status.start_time.is_none() {
            if self.starting.len() < PODS_MAX && is_measured(pod) {
                self.starting.insert(uid);
            }
            return;
        }
        let created = pod.metadata.creation_timestamp.as_ref();
        let Some(created) = created.filter(|_| self.starting.contains(&uid) && runs(pod)) else {
            return;
        };
        self.starting.remove(&uid);
        let pulls = self.pulls.pulls_of(&uid);
        let (start, pulling) = split((created.0.into(), now), &pulls, &init_intervals(pod));
        self.metrics.observe(&START, &[], start.as_secs_f64());
        self.metrics.observe(&PULLING, &[], pulling.as_secs_f64());
    }

    pub(super) fn forget(&mut self, pod: &PodObject) {
        self.starting.remove(pod.metadata.uid.as_deref().unwrap_or_default());
    }

    pub(super) fn retain(&mut self, uids: &HashSet<&str>) {
        self.starting.retain(|uid| uids.contains(uid.as_str()));
    }
}

/// Whether a pod is measured: no mirror pod, which has another uid, and no external volume, which adds its own time.
fn is_measured(pod: &PodObject) -> bool {
    pod.metadata.annotations.is_none() && pod.spec.volumes.iter().flatten().all(VolumeSpec::is_of_the_node)
}

fn runs(pod: &PodObject) -> bool {
    let has_started =
        |name| state_of(pod.status.container_statuses.as_deref(), name)?.running.as_ref()?.started_at.as_ref();
    let mut containers = pod.spec.containers.iter().flatten().peekable();
    containers.peek().is_some() && containers.all(|container| has_started(&container.name).is_some())
}

/// Sidecars are excluded. They are init containers with the restart policy `Always`.
fn init_intervals(pod: &PodObject) -> Vec<Interval> {
    let inits = pod.spec.init_containers.iter().flatten();
    let ordinary = inits.filter(|container| container.restart_policy.as_deref() != Some("Always"));
    let ended = ordinary.filter_map(|container| {
        let ended = state_of(pod.status.init_container_statuses.as_deref(), &container.name)?.terminated.as_ref()?;
        Some((ended.started_at.as_ref()?.0.into(), ended.finished_at.as_ref()?.0.into()))
    });
    ended.collect()
}

/// The start latency without the times of pulls and init containers, and the time of pulls. Overlapping times count once.
fn split(whole: Interval, pulls: &[Interval], inits: &[Interval]) -> (Duration, Duration) {
    let both: Vec<Interval> = pulls.iter().chain(inits).copied().collect();
    let length = whole.1.duration_since(whole.0).unwrap_or_default();
    (length.saturating_sub(covered(whole, &both)), covered(whole, pulls))
}

/// The total time in which at least one of the intervals runs, limited to `from`–`to`.
fn covered((from, to): Interval, intervals: &[Interval]) -> Duration {
    let mut within: Vec<Interval> = intervals.iter().map(|(start, end)| ((*start).max(from), (*end).min(to))).collect();
    within.sort();
    let (mut total, mut reached) = (Duration::ZERO, from);
    for (start, end) in within {
        total += end.duration_since(start.max(reached)).unwrap_or_default();
        reached = reached.max(end);
    }
    total
}

#[cfg(test)]
mod tests {
    use imagelet_core::{
        events::PodIdentity,
        manager::{ImageEnd, PullRecorder as _},
    };
    use serde_json::{Value, json};

    use super::*;

    /// So many seconds after noon.
    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_780_000_000 + seconds)
    }

    fn text(seconds: u64) -> String {
        jiff::Timestamp::try_from(at(seconds)).unwrap().to_string()
    }

    #[test]
    fn a_start_is_the_whole_time_without_what_pulls_and_init_containers_cover() {
        let intervals = |list: &[(u64, u64)]| list.iter().map(|(from, to)| (at(*from), at(*to))).collect::<Vec<_>>();
        for (whole, pulls, inits, start, pulling) in [
            ((0, 10), &[][..], &[][..], 10, 0),
            ((0, 30), &[(2, 8)], &[], 24, 6),
            // As the kubelet counts where nothing overlaps.
            ((0, 60), &[(5, 15), (20, 30)], &[(15, 20), (31, 40)], 26, 20),
            // Parallel pulls, in any order.
            ((0, 30), &[(10, 16), (11, 18), (14, 20)], &[], 20, 10),
            ((0, 30), &[(14, 20), (10, 16), (11, 12)], &[], 20, 10),
            // An image is fetched ahead while an init container runs.
            ((0, 30), &[(5, 20)], &[(10, 25)], 10, 15),
            // Clocks differ, or a pull goes on after the start.
            ((10, 30), &[(5, 12), (28, 40)], &[(0, 11), (50, 60)], 16, 4),
            ((10, 30), &[(20, 15)], &[], 20, 0),
            ((30, 10), &[(5, 40)], &[], 0, 0),
        ] {
            let found = split((at(whole.0), at(whole.1)), &intervals(pulls), &intervals(inits));
            let expected = (Duration::from_secs(start), Duration::from_secs(pulling));
            assert_eq!(found, expected, "{whole:?} {pulls:?} {inits:?}");
        }
    }

    #[test]
    fn every_vector_of_a_total_of_pulls_holds() {
        let mut cases = 0;
        for case in imagelet_vectors::vectors("pull-startup-latency.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            let Some(sessions) = input["sessions_s"].as_array().filter(|_| input["op"] == "total") else { continue };
            let seconds = |value: &Value| at(value.as_u64().expect("seconds"));
            let ended = sessions.iter().filter(|one| !one[1].is_null());
            let pulls: Vec<Interval> = ended.map(|one| (seconds(&one[0]), seconds(&one[1]))).collect();
            let total = covered((at(0), at(1_000_000)), &pulls).as_secs();
            assert_eq!(Some(total), expected["pulling_time_s"].as_u64(), "{}", case["name"]);
            cases += 1;
        }
        assert!(cases > 0);
    }

    struct Pod(Value);

    impl Pod {
        fn new() -> Self {
            Self(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "creationTimestamp": text(0)},
                "spec": {
                    "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
                    "containers": [{"name": "a"}, {"name": "b"}],
                    "volumes": [{"name": "token", "projected": {"sources": []}}, {"name": "scratch", "emptyDir": {}}],
                },
                "status": {"phase": "Pending"},
            }))
        }

        fn with(mut self, part: &str, field: &str, value: Value) -> Self {
            self.0[part][field] = value;
            self
        }

        fn started(self) -> Self {
            let ended = json!({"exitCode": 0, "startedAt": text(5), "finishedAt": text(8)});
            let inits = json!([
                {"name": "setup", "state": {"terminated": ended}},
                {"name": "proxy", "state": {"terminated": {"exitCode": 0, "startedAt": text(0), "finishedAt": text(20)}}},
            ]);
            self.with("status", "startTime", text(1).into()).with("status", "initContainerStatuses", inits)
        }

        fn running(self) -> Self {
            let running = |name: &str| json!({"name": name, "state": {"running": {"startedAt": text(19)}}});
            self.started().with("status", "containerStatuses", json!([running("b"), running("a")]))
        }

        fn read(&self) -> PodObject {
            serde_json::from_value(self.0.clone()).unwrap()
        }
    }

    /// How many pods were measured, and the sums of both histograms; empty texts: none was.
    fn measured(metrics: &Metrics) -> [String; 3] {
        let text = metrics.render();
        [(&START, "_count "), (&START, "_sum "), (&PULLING, "_sum ")].map(|(family, end)| {
            let name = [family.name, end].concat();
            text.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_default().to_owned()
        })
    }

    fn tracker() -> (StartTracker, Arc<Metrics>, Arc<PodStarts>) {
        let metrics = Arc::new(Metrics::new());
        let pulls = Arc::new(PodStarts::new(Arc::clone(&metrics)));
        (StartTracker::new(Arc::clone(&metrics), Arc::clone(&pulls)), metrics, pulls)
    }

    #[test]
    fn a_pod_that_was_seen_before_its_start_is_measured_once_when_all_containers_run() {
        let (mut tracker, metrics, _) = tracker();
        tracker.observe(&Pod::new().read(), at(1));
        tracker.observe(&Pod::new().started().read(), at(9));
        let mut half = Pod::new().running();
        half.0["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "ContainerCreating"}});
        tracker.observe(&half.read(), at(15));
        assert_eq!(measured(&metrics), ["", "", ""]);
        tracker.observe(&Pod::new().running().read(), at(20));
        tracker.observe(&Pod::new().running().read(), at(90));
        assert_eq!(measured(&metrics), ["1", "17", "0"], "20 s, less the init container without the sidecar");
    }

    #[test]
    fn pods_that_a_kubelet_does_not_measure_are_not_measured() {
        let (mut tracker, metrics, _) = tracker();
        for pod in [
            || Pod::new().with("spec", "volumes", json!([{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}])),
            || Pod::new().with("metadata", "annotations", json!({"kubernetes.io/config.mirror": "hash"})),
            || Pod::new().with("metadata", "creationTimestamp", json!(null)),
        ] {
            tracker.observe(&pod().read(), at(1));
            tracker.observe(&pod().running().read(), at(20));
        }
        tracker.starting.clear();
        tracker.observe(&Pod::new().running().read(), at(20));
        assert_eq!(measured(&metrics), ["", "", ""], "the last one began before it was seen");
        tracker.observe(&Pod::new().read(), at(1));
        tracker.forget(&Pod::new().read());
        tracker.observe(&Pod::new().read(), at(1));
        tracker.retain(&HashSet::new());
        tracker.observe(&Pod::new().running().read(), at(20));
        assert_eq!(measured(&metrics), ["", "", ""]);
        assert!(tracker.starting.is_empty(), "pods that are gone leave nothing");
    }

    #[test]
    fn the_pods_that_start_are_bounded() {
        let (mut tracker, _, _) = tracker();
        for number in 0..PODS_MAX + 10 {
            tracker.observe(&Pod::new().with("metadata", "uid", number.to_string().into()).read(), at(1));
        }
        assert_eq!(tracker.starting.len(), PODS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pulls_of_a_pod_are_those_that_were_recorded_for_its_uid() {
        let (mut tracker, metrics, pulls) = tracker();
        let mut pod = PodIdentity { uid: "u1".into(), ..PodIdentity::default() };
        let now = SystemTime::now();
        let created = jiff::Timestamp::try_from(now - Duration::from_secs(5)).unwrap().to_string();
        let object = |pod: Pod| pod.with("metadata", "creationTimestamp", created.as_str().into()).read();
        tracker.observe(&object(Pod::new()), now);
        pulls.pull_started(&pod);
        tokio::time::advance(Duration::from_secs(3)).await;
        pulls.image_finished(&pod, ImageEnd::Pulled);
        pod.uid = "u2".into();
        pulls.pull_started(&pod);
        tokio::time::advance(Duration::from_mins(2)).await;
        pulls.image_finished(&pod, ImageEnd::Pulled);
        // Over, it is still known.
        pulls.count_finished();
        tracker.observe(&object(Pod::new().running()), now + Duration::from_secs(5));
        let [count, _, pulling] = measured(&metrics);
        assert_eq!([count, pulling], ["1", "3"]);
    }
}
