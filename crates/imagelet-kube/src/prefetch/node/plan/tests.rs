//! Tables of the decisions of a node.

use std::time::Duration;

use super::*;
use crate::prefetch::objects::{
    NodeLimit, PLACES, PodSelector, SetObject, SetScope, SetStatus, WaveStatus,
    testing::{set, set_of},
};
use imagelet_core::error::{ErrorClass, Stage};

/// The input of a plan that owns its parts.
struct Case {
    sets: Vec<ImageSet>,
    states: BTreeMap<TaskKey, TaskState>,
    presence: ImagePresence,
    wall: SystemTime,
    now: Instant,
}

fn wall() -> SystemTime {
    // The sets of the tests are from the first of January.
    SystemTime::UNIX_EPOCH + Duration::from_hours(490_896 + 1)
}

impl Case {
    fn of(sets: Vec<ImageSet>) -> Self {
        Self { sets, states: BTreeMap::new(), presence: ImagePresence::default(), wall: wall(), now: Instant::now() }
    }

    /// With the state of the image at this position of the first set.
    fn with(mut self, position: usize, state: TaskState) -> Self {
        let key = key_of(&self.sets[0], &self.sets[0].spec.images[position]);
        self.states.insert(key, state);
        self
    }

    /// With images that a pass a minute ago did not find.
    fn absent(mut self, references: &[&str]) -> Self {
        let absent = references.iter().map(|it| (*it).to_owned()).collect();
        self.presence = ImagePresence { taken_at: Some(self.wall - Duration::from_mins(1)), absent };
        self
    }

    fn plan(&self) -> Plan {
        let Self { sets, states, presence, wall, now } = self;
        plan(&PlanInput { sets, gated_beyond: &[], node: "node-1", states, presence, last: "", wall: *wall, now: *now })
    }

    /// What is pulled next, the phase of the first set, and those of its images.
    fn outcome(&self) -> (Option<String>, SetPhase, Vec<ImagePhase>) {
        let plan = self.plan();
        // Without a report a node counts as waiting.
        let report = plan.report.into_iter().next().unwrap_or_default();
        let phases = report.images.iter().map(|image| image.phase).collect();
        (plan.next.map(|task| task.key.image.reference), report.phase, phases)
    }
}

fn done() -> TaskState {
    TaskState::Done { at: wall() - Duration::from_mins(10) }
}

fn running() -> TaskState {
    TaskState::Running(Some((5, 10)))
}

fn failed(retry_at: Instant) -> TaskState {
    let failure = FetchFailure { class: ErrorClass::Forbidden, stage: Stage::Token, message: "denied".into() };
    TaskState::Failed { failure, retry_at }
}

#[tokio::test(start_paused = true)]
async fn images_are_pulled_in_order_one_at_a_time_and_failed_ones_after_the_rest() {
    use ImagePhase::{Failed, Pending, Present, Pulling};
    let now = Instant::now();
    let later = now + Duration::from_mins(1);
    let case = || Case::of(vec![set("web", &["a:1", "b:1"])]);
    for (case, expected) in [
        (case(), (Some("a:1"), SetPhase::Pulling, [Pending, Pending])),
        (case().with(0, running()), (None, SetPhase::Pulling, [Pulling, Pending])),
        (case().with(0, done()), (Some("b:1"), SetPhase::Pulling, [Present, Pending])),
        (case().with(0, failed(now)), (Some("b:1"), SetPhase::Pulling, [Failed, Pending])),
        (case().with(0, failed(now)).with(1, done()), (Some("a:1"), SetPhase::Failed, [Failed, Present])),
        (case().with(0, failed(later)).with(1, done()), (None, SetPhase::Failed, [Failed, Present])),
        (case().with(0, failed(now)).with(1, running()), (None, SetPhase::Pulling, [Failed, Pulling])),
        (case().with(0, done()).with(1, done()), (None, SetPhase::Ready, [Present, Present])),
    ] {
        let (next, phase, images) = case.outcome();
        assert_eq!(
            (next.as_deref(), phase, &images[..]),
            (expected.0, expected.1, &expected.2[..]),
            "{:?}",
            case.states
        );
    }
    assert_eq!(case().with(0, failed(later)).with(1, done()).plan().retry_at, Some(later));
}

#[tokio::test(start_paused = true)]
async fn a_removed_image_is_pulled_again_where_it_is_kept_and_is_done_with_otherwise() {
    let case = |keep: bool| {
        let mut set = set("web", &["a:1"]);
        set.spec.keep = keep;
        Case::of(vec![set]).with(0, done())
    };
    assert_eq!(case(false).absent(&["a:1"]).outcome(), (None, SetPhase::Ready, vec![ImagePhase::Removed]));
    let kept = case(true).absent(&["a:1"]).outcome();
    assert_eq!(kept, (Some("a:1".to_owned()), SetPhase::Pulling, vec![ImagePhase::Removed]));
    assert_eq!(case(true).absent(&["b:1"]).outcome().0, None);
    // The pass is older than the pull.
    let mut fresh = case(true).absent(&["a:1"]);
    fresh = Case { presence: fresh.presence.clone(), ..fresh.with(0, TaskState::Done { at: wall() }) };
    assert_eq!(fresh.outcome(), (None, SetPhase::Ready, vec![ImagePhase::Present]));
}

#[tokio::test(start_paused = true)]
async fn a_set_begins_nothing_before_its_turn_while_it_is_paused_and_after_its_deadline() {
    let limited = |cut: Option<u64>, generation: i64| {
        let mut set = set("web", &["a:1"]);
        set.spec.max_concurrent_nodes = Some(NodeLimit::Count(1));
        let wave = cut.map(|cut| WaveStatus { cut });
        set.status = SetStatus { observed_generation: generation, wave, ..SetStatus::default() };
        set
    };
    let with = |change: fn(&mut ImageSet)| {
        let mut set = set("web", &["a:1"]);
        change(&mut set);
        set
    };
    for (set, next, phase) in [
        (limited(None, 0), None, SetPhase::Waiting),
        (limited(Some(0), 1), None, SetPhase::Waiting),
        (limited(Some(PLACES), 0), None, SetPhase::Waiting),
        (limited(Some(PLACES), 1), Some("a:1"), SetPhase::Pulling),
        (with(|set| set.spec.paused = true), None, SetPhase::Waiting),
        (with(|set| set.spec.deadline = "1h".to_owned().try_into().ok()), None, SetPhase::Expired),
        (with(|set| set.spec.deadline = "61m".to_owned().try_into().ok()), Some("a:1"), SetPhase::Pulling),
    ] {
        let case = Case::of(vec![set]);
        let (found, found_phase, _) = case.outcome();
        assert_eq!((found.as_deref(), found_phase), (next, phase), "{:?}", case.sets[0]);
        // What is there is there.
        let ready = Case::of(case.sets).with(0, done());
        assert_eq!(ready.outcome().1, SetPhase::Ready);
        // A pull that runs goes on, and what failed is not tried again.
        let failed = Case::of(ready.sets.clone()).with(0, failed(Instant::now()));
        assert_eq!(failed.outcome().0.is_some(), next.is_some());
        assert_eq!(Case::of(ready.sets).with(0, running()).outcome().1, SetPhase::Pulling);
    }
}

#[tokio::test(start_paused = true)]
async fn images_are_pinned_from_the_start_and_while_the_set_is_paused() {
    let mut kept = set("web", &["b:1", "a:1"]);
    kept.spec.keep = true;
    kept.spec.paused = true;
    let plan = Case::of(vec![kept, set("other", &["c:1"])]).plan();
    let pinned: Vec<&str> = plan.pins.iter().map(|pin| pin.reference.as_str()).collect();
    assert_eq!(pinned, ["a:1", "b:1"]);
}

#[tokio::test(start_paused = true)]
async fn each_generation_pulls_again_under_always_only() {
    let mut first = set("web", &["a:1"]);
    for (policy, pulls_again) in [(SetPullPolicy::Always, true), (SetPullPolicy::IfNotPresent, false)] {
        first.spec.pull_policy = policy;
        let case = Case::of(vec![first.clone()]).with(0, done());
        assert_eq!(case.outcome().0, None);
        let mut second = first.clone();
        second.generation = 2;
        let case = Case { sets: vec![second], ..case };
        assert_eq!(case.outcome().0.is_some(), pulls_again, "{policy:?}");
        let reports = Case::of(vec![first.clone()]).with(0, done()).plan().report;
        assert_eq!(restored(&case.sets, &reports).is_empty(), pulls_again, "{policy:?}");
        assert_eq!(restored(&[first.clone()], &reports).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_takes_over_what_was_fetched_and_nothing_else() {
    let set = set("web", &["a:1", "b:1", "c:1", "d:1"]);
    let case = Case::of(vec![set.clone()]).with(0, done()).with(1, failed(Instant::now())).with(2, done());
    let report = case.absent(&["c:1"]).plan().report;
    let states = restored(std::slice::from_ref(&set), &report);
    let found: Vec<&str> = states.keys().map(|key| key.image.reference.as_str()).collect();
    assert_eq!(found, ["a:1", "c:1"]);
    let mut other = set;
    other.uid = "another".into();
    assert!(restored(&[other], &report).is_empty(), "a set that was created again is another one");
}

#[tokio::test(start_paused = true)]
async fn a_report_is_bounded_in_sets_and_in_messages() {
    let now = Instant::now();
    let names: Vec<String> = (0..64).map(|at| format!("app:{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sets: Vec<ImageSet> = (0..140).map(|at| set(&format!("set-{at:03}"), &names)).collect();
    let mut case = Case::of(sets);
    for set in &case.sets {
        for image in &set.spec.images {
            let message = "denied ".repeat(100);
            let failure = FetchFailure { class: ErrorClass::Forbidden, stage: Stage::Token, message };
            let state = TaskState::Failed { failure, retry_at: now };
            case.states.insert(key_of(set, image), state);
        }
    }
    let report = case.plan().report;
    assert_eq!(report.len(), REPORTED_SETS_MAX);
    let messages = report.iter().flat_map(|set| &set.images).map(|image| image.message.len());
    assert!(messages.clone().sum::<usize>() <= MESSAGES_LENGTH_MAX);
    assert_eq!(messages.max(), Some(MESSAGE_LENGTH_MAX));
    assert!(serde_json::to_vec(&report).unwrap().len() < 1_400_000, "an object of the API has 1.5 MB at most");
}

#[tokio::test(start_paused = true)]
async fn for_a_running_pull_wait_images_of_other_sets_and_a_set_that_gave_way_is_slow() {
    let now = Instant::now();
    let gave_way = || TaskState::GaveWay { at: now };
    let waiting = |image: &str, are_all_slow| Some(Waiting { image: image.to_owned(), are_all_slow });
    for (states, expected) in [
        // Of the first set an image runs; the other one of it does not count.
        ([running(), done(), done(), done()], None),
        ([running(), failed(now), gave_way(), done()], waiting("c:1", true)),
        ([running(), done(), gave_way(), gave_way()], waiting("c:1", true)),
        ([running(), done(), done(), gave_way()], waiting("d:1", true)),
        ([running(), done(), gave_way(), failed(now)], waiting("c:1", false)),
        ([running(), done(), failed(now + Duration::from_mins(1)), done()], None),
    ] {
        let of_other = |namespace, image| set_of(SetScope::Namespace, namespace, namespace, &[image]);
        let mut case = Case::of(vec![set("web", &["a:1", "b:1"]), of_other("x", "c:1"), of_other("a", "d:1")]);
        for (image, state) in ["a:1", "b:1", "c:1", "d:1"].iter().zip(states) {
            let of_image = |set: &&ImageSet| set.spec.images.iter().any(|it| it.reference == *image);
            let set = case.sets.iter().find(of_image).unwrap();
            let image = set.spec.images.iter().find(|it| it.reference == *image).unwrap();
            case.states.insert(key_of(set, image), state);
        }
        // The last turn was that of `shop`.
        let Case { sets, states, presence, wall, now } = &case;
        let input = PlanInput {
            sets,
            gated_beyond: &[],
            node: "node-1",
            states,
            presence,
            last: "shop",
            wall: *wall,
            now: *now,
        };
        let plan = plan(&input);
        assert_eq!((plan.waiting, plan.next), (expected, None), "{states:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_whose_set_is_gone_holds_up_no_other_one() {
    let case = Case::of(vec![set("web", &["a:1"])]).with(0, running());
    let case = Case { sets: vec![set("other", &["b:1"])], ..case };
    assert_eq!(case.outcome().0.as_deref(), Some("b:1"));
}

#[tokio::test(start_paused = true)]
async fn a_full_report_has_the_first_sets_by_their_places_in_an_order_that_does_not_change() {
    let mut sets: Vec<ImageSet> = (0..140).map(|at| set(&format!("set-{at:03}"), &["a:1"])).collect();
    sets.reverse();
    let names = |sets: &[ImageSet]| -> Vec<String> {
        Case::of(sets.to_vec()).plan().report.into_iter().map(|report| report.name).collect()
    };
    let report = names(&sets);
    assert_eq!((report.len(), report[0].as_str(), report[127].as_str()), (128, "set-012", "set-139"));
    sets[..100].reverse();
    assert_eq!(names(&sets), report);
    // An agent that starts knows no image of a gated set that its report left out.
    sets[139].spec.gate = true;
    let report = names(&sets);
    assert_eq!((report.len(), report[0].as_str(), report[1].as_str()), (128, "set-000", "set-013"));
}

#[tokio::test(start_paused = true)]
async fn a_gated_set_holds_the_node_until_its_images_are_present_and_keeps_them() {
    let gated = || {
        let object = serde_json::json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "uid-web", "generation": 1},
            "spec": {"images": [{"reference": "a:1"}, {"reference": "b:1"}], "gate": true},
        });
        let object: SetObject = serde_json::from_value(object).unwrap();
        object.read(SetScope::Namespace).unwrap().unwrap()
    };
    let ready = |case: &Case| case.plan().images_ready.map(|it| it.is_ready);
    assert_eq!(ready(&Case::of(vec![set("web", &["a:1"])])), None, "no set is gated");
    let case = || Case::of(vec![gated(), set("other", &["c:1"])]);
    assert_eq!(ready(&case()), Some(false));
    assert_eq!(ready(&case().with(0, done())), Some(false));
    assert_eq!(ready(&case().with(0, done()).with(1, failed(Instant::now()))), Some(false));
    let all = || case().with(0, done()).with(1, done());
    assert_eq!(ready(&all()), Some(true), "the other set does not count");
    assert_eq!(all().plan().pins.len(), 2, "a collection takes none of its images");
    // A kubelet removed it.
    assert_eq!(ready(&all().absent(&["b:1"])), Some(false));
    assert_eq!(all().absent(&["b:1"]).outcome().0.as_deref(), Some("b:1"));
    // A report that is full leaves out no gated set.
    let many = (0..REPORTED_SETS_MAX).map(|at| set(&format!("set-{at:03}"), &["a:1"]));
    let mut full = Case::of(many.chain([gated()]).collect());
    for set in &full.sets {
        if set.name.name != "web" {
            full.states.insert(key_of(set, &set.spec.images[0]), done());
        }
    }
    assert_eq!(full.plan().report.len(), REPORTED_SETS_MAX);
    assert_eq!(ready(&full), Some(false));
}

#[tokio::test(start_paused = true)]
async fn a_set_that_selects_by_pods_is_reported_before_its_turn_because_the_controller_knows_no_pods() {
    let mut set = set("web", &["a:1"]);
    set.spec.max_concurrent_nodes = Some(NodeLimit::Count(1));
    assert_eq!(Case::of(vec![set.clone()]).plan().report, []);
    set.spec.pod_selector = Some(PodSelector::default());
    let report = Case::of(vec![set]).plan().report;
    assert_eq!(report.iter().map(|report| report.phase).collect::<Vec<_>>(), [SetPhase::Waiting]);
}
