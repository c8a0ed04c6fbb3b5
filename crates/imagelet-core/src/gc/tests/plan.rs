//! Tests of a plan: a table of images on a node that wants everything unused, or everything old, removed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::*;
use crate::{
    disks::DiskUse,
    gc::{
        GcMarks, GcOrder, GcPolicy, ReliefMarks,
        tests::{image, unused},
    },
    image::{Image, ImageId, Percent},
    inventory::{ImageUsage, PullCost, Snapshot},
    ports::{LayerFacts, LayerGraph},
    testing::in_order,
};

const MINUTE: Duration = Duration::from_mins(1);
const AGE_MIN: Duration = Duration::from_mins(2);
const AGE_MAX: Duration = Duration::from_hours(24);
const LONG: Duration = Duration::from_hours(1000);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(400_000)
}

/// An image without a keep reason: first seen and last used long ago.
fn idle() -> ImageEntry {
    let mut idle = unused(image("", "", 0), now() - LONG);
    (idle.image, idle.usage.times.last_used) = (named("sha256:a", "", 100), Some(now() - LONG));
    idle
}

/// An image with changed uses.
fn with(mut entry: ImageEntry, change: impl FnOnce(&mut ImageUsage)) -> ImageEntry {
    change(&mut entry.usage);
    entry
}

fn named(id: &str, handler: &str, bytes: u64) -> Arc<Image> {
    Arc::new(Image { tags: vec!["a:1".to_owned()], ..image(id, handler, bytes) })
}

/// A plan's input that owns its parts.
struct Case {
    policy: GcPolicy,
    goal: GcGoal,
    watched_since: SystemTime,
    disk: DiskUse,
    entries: Vec<ImageEntry>,
    layers: Option<LayerGraph>,
}

fn input(goal: GcGoal, entries: Vec<ImageEntry>) -> Case {
    Case {
        policy: GcPolicy::new(90, 80, AGE_MIN, Some(AGE_MAX)).unwrap(),
        goal,
        watched_since: now() - LONG,
        disk: DiskUse::of(ByteSize(1000), ByteSize(900)),
        entries,
        layers: None,
    }
}

/// The plan, and the images by index.
fn planned(case: &Case) -> (Plan, Vec<Arc<ImageEntry>>) {
    let mut entries: Vec<Arc<ImageEntry>> = case.entries.iter().cloned().map(Arc::new).collect();
    entries.sort_by_key(|entry| entry.key());
    let request = GcRequest { policy: case.policy, goal: case.goal, dry_run: false };
    let snapshot = Snapshot {
        taken_at: now(),
        entries: entries.clone(),
        watched_since: case.watched_since,
        containers: 0,
        containers_vanished: false,
    };
    let plan = plan(&PlanInput {
        request: &request,
        now: now(),
        snapshot: &snapshot,
        disk: Some(case.disk.clone()),
        done: Done::default(),
        ruled: &[],
        layers: case.layers.as_ref(),
        spared: &BTreeMap::new(),
    });
    (plan, entries)
}

/// Why the only image stays; `None` where it is removed.
fn kept(input: &Case) -> Option<Reason> {
    let (plan, _) = planned(input);
    let reason = plan.kept[0].clone();
    assert_eq!(plan.steps.is_empty(), reason.is_some(), "{plan:?}");
    reason
}

#[test]
fn no_image_goes_for_its_age_before_it_was_watched_for_that_long() {
    let by_age = |watched: Duration| {
        let input = Case { watched_since: now() - watched, ..input(GcGoal::Threshold, vec![idle()]) };
        kept(&input)
    };
    assert_eq!(by_age(MINUTE), Some(Reason::NotNeeded), "the daemon has just been started");
    assert_eq!(by_age(AGE_MAX), Some(Reason::NotNeeded));
    assert_eq!(by_age(AGE_MAX + MINUTE), None);
}

#[test]
fn a_fresh_image_stays_whatever_its_age_except_in_the_kubelets_order() {
    let by_age = |order: GcOrder, image: ImageEntry| {
        let input = input(GcGoal::Threshold, vec![image]);
        kept(&Case { policy: in_order(order, input.policy), ..input })
    };
    let never_used =
        |seen: Duration| with(idle(), |it| (it.times.first_seen, it.times.last_used) = (Some(now() - seen), None));
    let requested = with(idle(), |it| it.times.requested_at = Some(now() - MINUTE));
    let since_yesterday = never_used(Duration::from_hours(23));
    for order in [GcOrder::Lru, GcOrder::Cost] {
        for image in [never_used(MINUTE), requested.clone(), since_yesterday.clone()] {
            assert_eq!(by_age(order, image), Some(Reason::NotNeeded), "{order:?}");
        }
        assert_eq!(by_age(order, never_used(LONG)), None, "{order:?}");
    }
    for image in [never_used(MINUTE), requested, since_yesterday] {
        assert_eq!(
            by_age(GcOrder::ListedSizes, image),
            None,
            "a never used image is infinitely old (docs/spec/gc.md §7)"
        );
    }
}

#[test]
fn a_prefetched_image_that_nothing_used_goes_first_except_in_the_kubelets_order() {
    let (older, prefetched) = ("sha256:older", "sha256:prefetched");
    for (order, first) in [(GcOrder::Lru, prefetched), (GcOrder::Cost, prefetched), (GcOrder::ListedSizes, older)] {
        let older = with(ImageEntry { image: named(older, "", 100), ..idle() }, |it| it.times.last_used = None);
        let young = with(ImageEntry { image: named(prefetched, "", 100), ..idle() }, |it| {
            (it.times.first_seen, it.times.last_used) = (Some(now() - Duration::from_hours(2)), None);
            it.prefetched = true;
        });
        // At 90 percent, where 100 bytes are wanted.
        let case = input(GcGoal::Threshold, vec![older, young]);
        let disk = DiskUse::of(ByteSize(1000), ByteSize(100));
        let case = Case { policy: in_order(order, GcPolicy { age_max: None, ..case.policy }), disk, ..case };
        let (plan, entries) = planned(&case);
        let gone: Vec<&str> = plan.steps.iter().map(|step| entries[step.place].image.id.as_str()).collect();
        assert_eq!(gone, [first], "{order:?}");
    }
}

/// The images that go for so many bytes in the order of cost.
fn gone_for(wanted: u64, images: Vec<ImageEntry>, layers: Option<LayerGraph>) -> Vec<String> {
    let input = input(GcGoal::Free(ByteSize(wanted)), images);
    let policy = GcPolicy { order: GcOrder::Cost, age_max: None, ..input.policy };
    let disk = DiskUse::of(ByteSize(1 << 40), ByteSize(1 << 39));
    let (plan, entries) = planned(&Case { policy, disk, layers, ..input });
    plan.steps.iter().map(|step| entries[step.place].image.id.as_str().to_owned()).collect()
}

#[test]
fn the_image_of_a_fast_registry_goes_before_one_of_a_slow_registry() {
    let pulled_in = |id: &str, seconds: u64| {
        let cost = PullCost { bytes: ByteSize(100 << 20), duration: Duration::from_secs(seconds), at: now() - LONG };
        with(ImageEntry { image: named(id, "", 100 << 20), ..idle() }, |it| it.pulled = Some(cost))
    };
    for [fast, slow] in [["sha256:a", "sha256:b"], ["sha256:b", "sha256:a"]] {
        assert_eq!(gone_for(1 << 20, vec![pulled_in(fast, 4), pulled_in(slow, 20)], None), [fast]);
    }
}

#[test]
fn a_large_image_of_layers_that_stay_goes_before_a_smaller_one_of_its_own_layers() {
    let layer = |mebibytes: u64| LayerFacts {
        id: Arc::from("layer"),
        bytes: ByteSize(mebibytes << 20),
        inodes: None,
        held: false,
        folder: None,
    };
    let [based, own, used] = [("sha256:based", 100), ("sha256:own", 50), ("sha256:used", 90)]
        .map(|(id, mebibytes)| ImageEntry { image: named(id, "", mebibytes << 20), ..idle() });
    let used = with(used, |it| it.used_by = vec!["web".to_owned()]);
    let layers = LayerGraph {
        layers: vec![layer(90), layer(10), layer(50)],
        images: [(&based, vec![0, 1]), (&own, vec![2]), (&used, vec![0])]
            .map(|(entry, layers)| (entry.image.id.clone(), layers))
            .into(),
        certainty: Certainty::Exact,
    };
    assert_eq!(gone_for(10 << 20, vec![based, own, used], Some(layers)), ["sha256:based"]);
}

#[test]
fn an_image_that_was_just_used_asked_for_or_released_stays_although_all_unused_shall_go() {
    let until = now() + MINUTE;
    for (image, reason) in [
        (with(idle(), |it| it.times.last_used = Some(now())), Some(Reason::JustUsed)),
        (with(idle(), |it| it.times.first_seen = Some(now() - MINUTE)), Some(Reason::Young(AGE_MIN))),
        (with(idle(), |it| it.times.requested_at = Some(now() - MINUTE)), Some(Reason::Leased(AGE_MIN))),
        (ImageEntry { leased_until: Some(until), ..idle() }, Some(Reason::awaited(until))),
        (with(idle(), |it| it.times.released_at = Some(now() - MINUTE)), Some(Reason::Released)),
        (with(idle(), |it| it.times.requested_at = Some(now() - LONG)), None),
        (idle(), None),
    ] {
        assert_eq!(kept(&input(GcGoal::AllUnused, vec![image.clone()])), reason, "{image:?}");
    }
}

#[test]
fn an_image_whose_handlers_disagree_stays_whole() {
    let (pinned, free) = (
        ImageEntry { pinned_by: vec!["a:1".to_owned()], ..idle() },
        ImageEntry { image: named("sha256:a", "kata", 100), ..idle() },
    );
    let layer = LayerFacts { id: Arc::from("layer"), bytes: ByteSize(100), inodes: None, held: false, folder: None };
    let graph = LayerGraph {
        layers: vec![layer],
        images: [(ImageId::new("sha256:a"), vec![0])].into_iter().collect(),
        certainty: Certainty::Exact,
    };
    let planned = |images: Vec<ImageEntry>| {
        let input = input(GcGoal::Free(ByteSize(50)), images);
        planned(&Case {
            policy: GcPolicy { order: GcOrder::Cost, ..input.policy },
            layers: Some(graph.clone()),
            ..input
        })
        .0
    };
    let kept = planned(vec![pinned, free.clone()]);
    assert_eq!((kept.steps.len(), kept.possible), (0, Freed::default()), "a removal of one takes what the other has");
    let gone = planned(vec![idle(), free]);
    assert_eq!((gone.steps.len(), sum(&gone.steps).bytes), (2, ByteSize(100)));
}

/// The shortfall of a full disk, with one layer of 100 bytes that all images share.
fn shortfall_of(images: Vec<ImageEntry>, held: bool) -> Shortfall {
    let layer = LayerFacts { id: Arc::from("layer"), bytes: ByteSize(100), inodes: None, held, folder: None };
    let layers = LayerGraph {
        layers: vec![layer],
        images: images.iter().map(|image| (image.image.id.clone(), vec![0])).collect(),
        certainty: Certainty::Exact,
    };
    let input = input(GcGoal::Threshold, images);
    let policy = GcPolicy { age_max: None, ..input.policy };
    let disk = DiskUse::of(ByteSize(1000), ByteSize(0));
    planned(&Case { policy, disk, layers: Some(layers), ..input }).0.shortfall.expect("the goal is out of reach")
}

#[test]
fn space_that_one_handler_uses_is_not_reported_as_free_for_the_other() {
    let used = with(idle(), |it| it.used_by = vec!["web".to_owned()]);
    let free = ImageEntry { image: named("sha256:a", "kata", 100), ..idle() };
    let first_used = shortfall_of(vec![used, free], false);
    let used =
        with(ImageEntry { image: named("sha256:a", "kata", 100), ..idle() }, |it| it.used_by = vec!["web".to_owned()]);
    let last_used = shortfall_of(vec![idle(), used], false);
    for shortfall in [first_used, last_used] {
        assert_eq!((shortfall.in_use, shortfall.free), (ByteSize(100), ByteSize(0)));
    }
}

#[test]
fn a_layer_that_a_running_pull_holds_is_not_reported_as_free() {
    let shortfall = shortfall_of(vec![idle()], true);
    assert_eq!((shortfall.shared, shortfall.free), (ByteSize(100), ByteSize(0)));
}

#[test]
fn with_a_low_threshold_of_zero_as_much_goes_as_can_although_the_high_one_is_out_of_reach() {
    let gone = |low: i64| {
        let policy = GcPolicy::new(20, low, AGE_MIN, None).unwrap();
        let disk = DiskUse::of(ByteSize(1000), ByteSize(0));
        planned(&Case { policy, disk, ..input(GcGoal::Threshold, vec![idle()]) }).0.steps.len()
    };
    assert_eq!((gone(0), gone(10)), (1, 0));
}

#[test]
fn a_disk_of_unknown_size_makes_no_image_go() {
    let reserved = Freed { bytes: ByteSize(500), inodes: 0 };
    for capacity in [0, 1000] {
        let disk = DiskUse { reserved, ..DiskUse::of(ByteSize(capacity), ByteSize(0)) };
        let mut input = Case { disk, ..input(GcGoal::Threshold, vec![idle()]) };
        input.policy = GcPolicy::new(90, 80, AGE_MIN, None).unwrap();
        assert_eq!(planned(&input).0.wanted.is_some(), capacity > 0, "{capacity}");
    }
}

/// An image with a layer of this size, idle for this many minutes.
fn idle_for(name: &str, minutes: u64, bytes: u64) -> ImageEntry {
    let since = now() - Duration::from_mins(minutes);
    with(ImageEntry { image: named(name, "", bytes), ..idle() }, |it| {
        (it.times.first_seen, it.times.last_used) = (Some(since), Some(since));
    })
}

/// The removals among images idle for 10, 59, 61 and 600 minutes, each of 50 bytes, on a disk of 1000 bytes, and why
/// the others stay.
fn relief(available: u64, change: impl Fn(&mut Case)) -> (Vec<String>, Vec<&'static str>, Option<Shortfall>) {
    let ages = [("10", 10), ("59", 59), ("61", 61), ("600", 600)];
    let images: Vec<ImageEntry> = ages.iter().map(|(name, minutes)| idle_for(name, *minutes, 50)).collect();
    let mut input = input(GcGoal::Threshold, images);
    let marks = ReliefMarks { idle_min: Duration::from_hours(1), critical: Percent::new(95).unwrap() };
    // At least 410 bytes must be free; the images have 200.
    input.policy = GcPolicy { pressure_relief: Some(marks), ..GcPolicy::new(60, 50, AGE_MIN, None).unwrap() };
    input.disk = DiskUse::of(ByteSize(1000), ByteSize(available));
    change(&mut input);
    let (plan, entries) = planned(&input);
    let gone = plan.steps.iter().map(|step| entries[step.place].image.id.to_string()).collect();
    let kept = plan.kept.iter().flatten().map(Reason::code).collect();
    (gone, kept, plan.shortfall)
}

fn by_layers(input: &mut Case) {
    let layer =
        |name: &str| LayerFacts { id: name.into(), bytes: ByteSize(50), inodes: Some(1), held: false, folder: None };
    let ids: Vec<ImageId> = input.entries.iter().map(|entry| entry.image.id.clone()).collect();
    input.layers = Some(LayerGraph {
        layers: ids.iter().map(|id| layer(id.as_str())).collect(),
        images: ids.into_iter().zip(0..).map(|(id, place)| (id, vec![place])).collect(),
        certainty: Certainty::Exact,
    });
}

#[test]
fn where_the_goal_is_out_of_reach_what_is_long_idle_goes_and_on_a_nearly_full_disk_more() {
    let ways = [GcOrder::Lru, GcOrder::Cost].into_iter().flat_map(|order| [(order, false), (order, true)]);
    for (order, has_layers) in ways {
        let planned = |available: u64, change: &dyn Fn(&mut Case)| {
            relief(available, |input| {
                input.policy.order = order;
                if has_layers {
                    by_layers(input);
                }
                change(input);
            })
        };
        let asis = |_: &mut Case| {};
        let case = format!("{order:?}, layers: {has_layers}");
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };

        // 90 percent: far from the goal of 41 percent free, and not critical.
        let (gone, kept, shortfall) = planned(100, &asis);
        assert_eq!((sorted(gone), kept), (vec!["600".to_owned(), "61".into()], vec!["recent", "recent"]), "{case}");
        let shortfall = shortfall.expect("the goal is out of reach");
        assert_eq!(
            (shortfall.free, shortfall.others, shortfall.missing.bytes),
            (ByteSize(100), ByteSize(700), ByteSize(210))
        );

        // 95 percent in use: the idle ones bring it below that.
        assert_eq!(sorted(planned(50, &asis).0), ["600", "61"], "{case}");
        // 100 percent in use: the idle ones are enough, as 60 bytes must be freed.
        assert_eq!(sorted(planned(0, &asis).0), ["600", "61"], "{case}");
        // 140 bytes must be freed to get below 85 percent: one more is removed.
        let lower = |input: &mut Case| {
            let relief = input.policy.pressure_relief;
            input.policy.pressure_relief = relief.map(|it| ReliefMarks { critical: Percent::new(85).unwrap(), ..it });
        };
        let (gone, kept, _) = planned(20, &lower);
        assert_eq!((gone.len(), kept), (3, vec!["recent"]), "{case}");
        // More than all of them: all are removed.
        let (gone, kept, shortfall) = planned(0, &|input: &mut Case| {
            lower(input);
            let relief = input.policy.pressure_relief;
            input.policy.pressure_relief = relief.map(|it| ReliefMarks { critical: Percent::new(0).unwrap(), ..it });
        });
        assert_eq!((gone.len(), kept.len()), (4, 0), "{case}");
        assert_eq!(shortfall.map(|it| (it.free, it.others)), Some((ByteSize(0), ByteSize(800))), "{case}");
        // The kubelet's algorithm has no such marks; a goal in bytes is all or nothing.
        let without = |input: &mut Case| input.policy.pressure_relief = None;
        assert_eq!(planned(0, &without).1, ["not_enough"; 4], "{case}");
        let asked = |input: &mut Case| input.goal = GcGoal::Free(ByteSize(201));
        assert_eq!(planned(0, &asked).1, ["not_enough"; 4], "{case}");
        // With a reachable goal the marks have no effect.
        assert_eq!(planned(250, &asis).0.len(), 4, "{case}: the low threshold alone is out of reach");
    }
}

#[test]
fn what_nobody_may_take_stays_however_full_the_disk_is() {
    let until = now() + MINUTE;
    let young = with(idle_for("young", 600, 50), |it| it.times.first_seen = Some(now() - MINUTE));
    let asked = with(idle_for("asked", 600, 50), |it| it.times.requested_at = Some(now() - Duration::from_mins(30)));
    let images = vec![
        with(idle_for("used", 600, 50), |it| it.used_by = vec!["web".to_owned()]),
        ImageEntry { pinned_by: vec!["x".to_owned()], ..idle_for("pinned", 600, 50) },
        ImageEntry { leased_until: Some(until), ..idle_for("leased", 600, 50) },
        young,
        asked,
    ];
    let (gone, kept, _) = relief(100, |input| input.entries.clone_from(&images));
    assert_eq!((gone, kept), (vec![], vec!["recent", "awaited", "pinned", "in_use", "young"]));
    let (gone, ..) = relief(10, |input| input.entries.clone_from(&images));
    assert_eq!(gone, ["asked"], "nearly full: asked for is not in use");
}

#[test]
fn inodes_are_a_reason_for_relief_where_they_are_watched() {
    let percent = |value| Percent::new(value).unwrap();
    let short_of_inodes = |input: &mut Case| {
        by_layers(input);
        let disk = DiskUse { inodes: Some(100), inodes_free: Some(3), ..DiskUse::of(ByteSize(1000), ByteSize(900)) };
        input.disk = disk;
        input.policy.inodes = Some(GcMarks::new(percent(90), percent(80)));
    };
    // At 97 of 100; three removals get below 95, two of which are idle.
    let (gone, kept, shortfall) = relief(900, short_of_inodes);
    assert_eq!((gone.len(), kept), (3, vec!["recent"]));
    assert_eq!(shortfall.map(|it| it.missing), Some(Freed { bytes: ByteSize::ZERO, inodes: 5 }));
    let (gone, ..) = relief(900, |input| {
        short_of_inodes(input);
        input.policy.inodes = None;
    });
    assert_eq!(gone, [""; 0], "not watched");
}

#[test]
fn an_image_of_two_handlers_is_as_idle_as_the_one_that_used_it_last() {
    let twin = with(ImageEntry { image: named("600", "kata", 50), ..idle_for("600", 600, 50) }, |it| {
        it.times.last_used = Some(now() - MINUTE);
    });
    let (gone, kept, _) = relief(100, |input| {
        input.entries.push(twin.clone());
    });
    assert_eq!((gone, kept), (vec!["61".to_owned()], vec!["recent", "recent", "not_enough", "recent"]));
}
