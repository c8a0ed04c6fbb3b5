//! What a plan takes and what it keeps: a table of images on a node that wants everything unused, or everything old, gone.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    gc::{DiskUse, GcPolicy, GcRules, ImageFacts, Images},
    image::ImageId,
    inventory::{Origin, ReuseTable, UseHistory},
    runtime::{LayerFacts, LayerGraph},
};

const MINUTE: Duration = Duration::from_mins(1);
const AGE_MIN: Duration = Duration::from_mins(2);
const AGE_MAX: Duration = Duration::from_hours(24);
const LONG: Duration = Duration::from_hours(1000);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(400_000)
}

/// An image that nothing keeps: first seen and last used long ago.
fn idle() -> ImageFacts {
    ImageFacts {
        key: ImageKey::new(ImageId::new("sha256:a"), String::new()),
        tags: vec!["a:1".to_owned()].into(),
        digests: Vec::new().into(),
        size: ByteSize(100),
        first_seen: Some(now() - LONG),
        last_used: Some(now() - LONG),
        leased_at: None,
        leased_until: None,
        released_at: None,
        in_use_by: Vec::new(),
        pinned_by: Vec::new(),
        use_count: 1,
        last_user: None,
        pulled: None,
        origin: Origin::Pulled,
        labels: None,
        history: UseHistory::default(),
    }
}

fn input(goal: GcGoal, images: Vec<ImageFacts>) -> PlanInput {
    PlanInput {
        policy: GcPolicy::new(90, 80, AGE_MIN, Some(AGE_MAX)).unwrap(),
        goal,
        now: now(),
        watched_since: now() - LONG,
        disk: Some(DiskUse::of(ByteSize(1000), ByteSize(900))),
        freed: Freed::default(),
        aged: Freed::default(),
        reuse: ReuseTable::default(),
        images: Images::from(images),
        rules: GcRules::default(),
        layers: None,
        spared: std::collections::BTreeMap::new(),
    }
}

/// Why the only image stays; `None` where it goes.
fn kept(input: &PlanInput) -> Option<Reason> {
    let plan = plan(input);
    let reason = plan.kept.iter().next().map(|(_, reason)| reason.clone());
    assert_eq!(plan.steps.is_empty(), reason.is_some(), "{plan:?}");
    reason
}

#[test]
fn no_image_goes_for_its_age_before_it_was_watched_for_that_long() {
    let by_age = |watched: Duration| {
        let input = PlanInput { watched_since: now() - watched, ..input(GcGoal::Threshold, vec![idle()]) };
        kept(&input)
    };
    assert_eq!(by_age(MINUTE), Some(Reason::NotNeeded), "the daemon has just been started");
    assert_eq!(by_age(AGE_MAX), Some(Reason::NotNeeded));
    assert_eq!(by_age(AGE_MAX + MINUTE), None);
}

#[test]
fn a_fresh_image_does_not_go_for_its_age_whichever_way_ages_count() {
    let by_age = |counts: AgeCounts, image: ImageFacts| {
        let input = input(GcGoal::Threshold, vec![image]);
        kept(&PlanInput { policy: input.policy.counting(counts), ..input })
    };
    let never_used = |seen: Duration| ImageFacts { first_seen: Some(now() - seen), last_used: None, ..idle() };
    for counts in [AgeCounts::FromUse, AgeCounts::FromUseOrSight] {
        assert_eq!(by_age(counts, never_used(MINUTE)), Some(Reason::NotNeeded), "{counts:?}: just pulled");
        let asked = ImageFacts { leased_at: Some(now() - MINUTE), ..idle() };
        assert_eq!(by_age(counts, asked), Some(Reason::NotNeeded), "{counts:?}: just asked for");
        assert_eq!(by_age(counts, never_used(LONG)), None, "{counts:?}");
    }
    let since_yesterday = never_used(Duration::from_hours(23));
    assert_eq!(by_age(AgeCounts::FromUseOrSight, since_yesterday.clone()), Some(Reason::NotNeeded));
    assert_eq!(by_age(AgeCounts::FromUse, since_yesterday), None, "the kubelet's way, where it counts as never used");
}

#[test]
fn an_image_that_was_just_used_asked_for_or_released_stays_although_all_unused_shall_go() {
    let until = now() + MINUTE;
    for (image, reason) in [
        (ImageFacts { last_used: Some(now()), ..idle() }, Some(Reason::JustUsed)),
        (ImageFacts { first_seen: Some(now() - MINUTE), ..idle() }, Some(Reason::Young { age_min: AGE_MIN })),
        (ImageFacts { leased_at: Some(now() - MINUTE), ..idle() }, Some(Reason::Leased { lease: AGE_MIN })),
        (ImageFacts { leased_until: Some(until), ..idle() }, Some(Reason::awaited(until))),
        (ImageFacts { released_at: Some(now() - MINUTE), ..idle() }, Some(Reason::Released)),
        (ImageFacts { leased_at: Some(now() - LONG), ..idle() }, None),
        (idle(), None),
    ] {
        assert_eq!(kept(&input(GcGoal::AllUnused, vec![image.clone()])), reason, "{image:?}");
    }
}

#[test]
fn an_image_whose_handlers_disagree_stays_whole() {
    let (pinned, free) = (
        ImageFacts { pinned_by: vec!["a:1".to_owned()], ..idle() },
        ImageFacts { key: ImageKey::new(ImageId::new("sha256:a"), "kata".to_owned()), ..idle() },
    );
    let layer = LayerFacts { id: Arc::from("layer"), bytes: ByteSize(100), inodes: None, held: false };
    let graph = LayerGraph {
        layers: vec![layer],
        images: [(ImageId::new("sha256:a"), vec![0])].into_iter().collect(),
        certainty: Certainty::Exact,
    };
    let planned = |images: Vec<ImageFacts>| {
        let input = input(GcGoal::Free(ByteSize(50)), images);
        plan(&PlanInput { policy: input.policy.in_order(GcOrder::Cost), layers: Some(graph.clone()), ..input })
    };
    let kept = planned(vec![pinned, free.clone()]);
    assert_eq!((kept.steps.len(), kept.could_free), (0, ByteSize::ZERO), "a removal of one takes what the other has");
    let gone = planned(vec![idle(), free]);
    assert_eq!((gone.steps.len(), gone.frees), (2, ByteSize(100)));
}

#[test]
fn a_disk_of_unknown_size_makes_no_image_go() {
    let reserved = Freed { bytes: ByteSize(500), inodes: 0 };
    for capacity in [0, 1000] {
        let disk = DiskUse { reserved, ..DiskUse::of(ByteSize(capacity), ByteSize(0)) };
        let mut input = PlanInput { disk: Some(disk), ..input(GcGoal::Threshold, vec![idle()]) };
        input.policy = GcPolicy::new(90, 80, AGE_MIN, None).unwrap();
        assert_eq!(plan(&input).wanted.is_some(), capacity > 0, "{capacity}");
    }
}
