//! Tables of what the controller does for one set.

use std::time::Duration;

use super::*;
use crate::prefetch::objects::{
    ImageReport, NodeLimit, PLACES, PodSelector, SetPhase, SetReport, WaveStatus, testing::set,
};

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_mins(29_453_760 + 1)
}

fn report(phase: SetPhase, failed: &[(&str, &str)]) -> SetReport {
    let image = |(reference, class): &(&str, &str)| ImageReport {
        reference: (*reference).into(),
        phase: ImagePhase::Failed,
        class: (*class).into(),
        hop: "token".into(),
        message: "denied\u{1b}".into(),
        ..ImageReport::default()
    };
    SetReport { generation: 1, phase, images: failed.iter().map(image).collect(), ..SetReport::default() }
}

fn nodes<'a>(reports: &'a [(&'a str, Option<SetReport>)]) -> Vec<SelectedNode<'a>> {
    let node = |(at, (name, report)): (usize, &'a (&'a str, Option<SetReport>))| SelectedNode {
        name,
        place: at as u64,
        phase: report.as_ref().map(|report| report.phase),
        images: report.as_ref().map_or(&[], |report| &report.images),
        is_stalled: false,
    };
    reports.iter().enumerate().map(node).collect()
}

fn time(time: Option<&Time>) -> Option<String> {
    time.map(|time| time.0.to_string())
}

type Reports<'a> = Vec<(&'a str, Option<SetReport>)>;

/// The status after the first decision.
fn written(set: &ImageSet, reports: &[(&str, Option<SetReport>)]) -> SetStatus {
    match decide(set, None, &nodes(reports), now()) {
        SetAction::Write(status) => *status,
        action => panic!("{action:?}"),
    }
}

#[test]
fn nodes_are_counted_by_phase_and_the_conditions_follow() {
    let ready = || Some(report(SetPhase::Ready, &[]));
    let pulling = || Some(report(SetPhase::Pulling, &[]));
    let failed = || Some(report(SetPhase::Failed, &[("app:v1", "forbidden")]));
    let cases: [(Reports<'_>, [usize; 5], [&str; 3], &str); 5] = [
        (vec![], [0; 5], ["False", "False", "False"], "NoNodes"),
        (vec![("a", None), ("b", pulling())], [2, 0, 1, 0, 1], ["False", "True", "False"], "Pulling"),
        (vec![("a", ready()), ("b", failed())], [2, 1, 0, 1, 0], ["False", "True", "True"], "Pulling"),
        (vec![("a", ready()), ("b", ready())], [2, 2, 0, 0, 0], ["True", "False", "False"], "Complete"),
        (vec![("a", Some(report(SetPhase::Paused, &[])))], [1, 0, 0, 0, 1], ["False", "True", "False"], "Pulling"),
    ];
    for (reports, counts, conditions, reason) in cases {
        let status = written(&set("web", &["app:v1"]), &reports);
        let NodeCounts { wanted, ready, pulling, failed, waiting } = status.nodes;
        assert_eq!([wanted, ready, pulling, failed, waiting], counts, "{reports:?}");
        let found: Vec<(&str, &str)> = status.conditions.iter().map(|it| (&*it.type_, &*it.status)).collect();
        let expected: Vec<(&str, &str)> = ["Complete", "Progressing", "Degraded"].into_iter().zip(conditions).collect();
        assert_eq!(found, expected, "{reports:?}");
        assert_eq!(status.conditions[0].reason, reason);
        assert_eq!(status.finished_at.is_some(), reason == "Complete");
        assert_eq!(time(status.started_at.as_ref()).as_deref(), Some("2026-01-01T00:01:00Z"));
        assert_eq!(status.wave, None);
    }
}

#[test]
fn a_status_that_is_written_is_not_written_again() {
    let mut set = set("web", &["app:v1"]);
    set.spec.max_concurrent_nodes = Some(NodeLimit::Count(1));
    let reports = [("a", Some(report(SetPhase::Ready, &[]))), ("b", Some(report(SetPhase::Failed, &[("x", "y")])))];
    set.status = written(&set, &reports);
    let later = now() + Duration::from_hours(1);
    assert_eq!(decide(&set, None, &nodes(&reports), later), SetAction::Idle { until: None });
    assert_eq!(set.status.wave, Some(WaveStatus { cut: PLACES }));
    // A condition keeps its time for as long as it keeps its status.
    let others = [("a", Some(report(SetPhase::Ready, &[]))), ("b", Some(report(SetPhase::Ready, &[])))];
    let SetAction::Write(status) = decide(&set, None, &nodes(&others), later) else { panic!("the counts differ") };
    let times: Vec<String> = status.conditions.iter().map(|it| it.last_transition_time.0.to_string()).collect();
    assert_eq!(times, ["2026-01-01T01:01:00Z"; 3], "all three changed");
    set.status = *status;
    let third = [("a", Some(report(SetPhase::Ready, &[]))), ("b", None)];
    let SetAction::Write(status) = decide(&set, None, &nodes(&third), later + Duration::from_mins(1)) else {
        panic!("counts")
    };
    assert_eq!(
        status.conditions[2].last_transition_time.0.to_string(),
        "2026-01-01T01:01:00Z",
        "not degraded before and after"
    );
    assert_eq!(status.finished_at, None);
}

#[test]
fn a_new_spec_starts_anew() {
    let mut set = set("web", &["app:v1"]);
    let reports = [("a", Some(report(SetPhase::Ready, &[])))];
    set.status = written(&set, &reports);
    set.generation = 2;
    let later = now() + Duration::from_hours(1);
    let SetAction::Write(status) = decide(&set, None, &nodes(&[("a", None)]), later) else {
        panic!("another generation")
    };
    assert_eq!(
        (status.observed_generation, time(status.started_at.as_ref()).as_deref()),
        (2, Some("2026-01-01T01:01:00Z"))
    );
    assert_eq!((status.nodes.ready, status.finished_at), (0, None));
}

#[test]
fn a_finished_set_is_deleted_after_its_time_and_not_before() {
    let mut set = set("web", &["app:v1"]);
    set.spec.ttl_after_finished = "1h".to_owned().try_into().ok();
    let ready = [("a", Some(report(SetPhase::Ready, &[])))];
    set.status = written(&set, &ready);
    let at = |minutes| decide(&set, None, &nodes(&ready), now() + Duration::from_mins(minutes));
    assert_eq!(at(59), SetAction::Idle { until: Some(now() + Duration::from_hours(1)) });
    assert_eq!(at(60), SetAction::Delete);
    // A node that joins is waited for.
    let joined = [ready[0].clone(), ("b", None)];
    assert!(matches!(decide(&set, None, &nodes(&joined), now() + Duration::from_hours(2)), SetAction::Write(_)));
}

#[test]
fn after_the_deadline_a_set_is_finished_without_being_complete() {
    let mut set = set("web", &["app:v1"]);
    set.spec.deadline = "30s".to_owned().try_into().ok();
    set.spec.ttl_after_finished = "1h".to_owned().try_into().ok();
    let reports = [("a", Some(report(SetPhase::Expired, &[])))];
    set.status = written(&set, &reports);
    assert_eq!(set.status.conditions[0].reason, "DeadlineExceeded");
    assert!(
        set.status.condition("Complete").is_some_and(|it| it.status == "False") && set.status.finished_at.is_some()
    );
    assert_eq!(decide(&set, None, &nodes(&reports), now() + Duration::from_hours(1)), SetAction::Delete);
}

#[test]
fn failures_are_counted_by_class_with_the_first_node_of_each() {
    let failed = |images: &[(&str, &str)]| Some(report(SetPhase::Failed, images));
    let reports = [
        ("z", failed(&[("app:v1", "forbidden"), ("web:v1", "forbidden")])),
        ("b", failed(&[("web:v1", "forbidden")])),
        ("c", failed(&[("app:v1", "disk-full")])),
        ("d", None),
    ];
    let failures = written(&set("web", &["app:v1", "web:v1"]), &reports).failures;
    let found: Vec<_> = failures.iter().map(|it| (&*it.class, it.nodes, &*it.node, &*it.image)).collect();
    assert_eq!(found, [("forbidden", 2, "b", "web:v1"), ("disk-full", 1, "c", "app:v1")]);
    assert_eq!(failures[0].message, "denied?");
    let many: Vec<(String, Option<SetReport>)> =
        (0..20).map(|at| (format!("n{at}"), failed(&[("app:v1", &format!("class-{at}"))]))).collect();
    let many: Vec<(&str, Option<SetReport>)> = many.iter().map(|(name, it)| (name.as_str(), it.clone())).collect();
    assert_eq!(written(&set("web", &["app:v1"]), &many).failures.len(), FAILURES_MAX);
}

#[test]
fn of_a_set_that_selects_by_pods_no_wave_begins_and_nothing_is_complete_before_the_nodes_have_reported() {
    let mut set = set("web", &["app:v1"]);
    set.spec.max_concurrent_nodes = Some(NodeLimit::Count(1));
    set.spec.pod_selector = Some(PodSelector::default());
    let ends = now() + SELECTION_LASTS;
    let first = [("a", Some(report(SetPhase::Ready, &[])))];
    let all = [first[0].clone(), ("b", Some(report(SetPhase::Waiting, &[])))];
    let reason = |status: &SetStatus| status.conditions[0].reason.clone();
    set.status = written(&set, &[]);
    assert_eq!((reason(&set.status).as_str(), set.status.wave), ("NoNodes", None));
    assert_eq!(decide(&set, None, &[], now()), SetAction::Idle { until: Some(ends) }, "a pass follows");
    set.status = written(&set, &first);
    assert_eq!((reason(&set.status).as_str(), set.status.wave, set.status.nodes.ready), ("Pulling", None, 1));
    assert_eq!(set.status.finished_at, None);
    for (reports, expected) in [(&first[..], ("Complete", Some(1))), (&all, ("Pulling", Some(2)))] {
        let SetAction::Write(status) = decide(&set, None, &nodes(reports), ends) else { panic!("{expected:?}") };
        assert_eq!((reason(&status).as_str(), status.wave.map(|wave| wave.cut)), expected);
    }
}

#[test]
fn a_set_beyond_a_limit_has_a_condition_that_names_it_for_as_long_as_it_is() {
    let mut set = set("web", &["app:v1"]);
    set.spec.max_concurrent_nodes = Some(NodeLimit::Count(1));
    let reports = [("a", None), ("b", None)];
    let condition = |status: &SetStatus, name: &str| {
        let found = status.conditions.iter().find(|it| it.type_ == name);
        found.map(|it| format!("{} {}: {}", it.status, it.reason, it.message))
    };
    let write = |set: &ImageSet, limit| match decide(set, limit, &nodes(&reports), now()) {
        SetAction::Write(status) => *status,
        action => panic!("{action:?}"),
    };
    for (limit, limited, complete, has_wave) in [
        (
            SetLimit::OfNamespace,
            "True NamespaceLimit: no node fetches the set: 100 older sets of its namespace are the limit",
            "False NamespaceLimit: no node fetches the set: 100 older sets of its namespace are the limit",
            false,
        ),
        (
            SetLimit::Total,
            "True TotalLimit: no node fetches the set: 1000 other sets are the limit",
            "False TotalLimit: no node fetches the set: 1000 other sets are the limit",
            false,
        ),
        (
            SetLimit::Report,
            "True ReportLimit: the report of a selected node has 128 other sets, which is the limit",
            "False Pulling: 0 of 2 nodes have fetched all images",
            true,
        ),
    ] {
        let status = write(&set, Some(limit));
        assert_eq!(condition(&status, "Limited").as_deref(), Some(limited));
        assert_eq!(condition(&status, "Complete").as_deref(), Some(complete));
        assert_eq!(status.wave.is_some(), has_wave, "{limit:?}");
        let mut seen = set.clone();
        seen.status = status;
        assert_eq!(decide(&seen, Some(limit), &nodes(&reports), now()), SetAction::Idle { until: None });
        assert_eq!(condition(&write(&seen, None), "Limited"), None, "it has a place again");
    }
}
