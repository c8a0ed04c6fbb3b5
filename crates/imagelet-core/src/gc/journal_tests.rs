//! What goes on record leads to the same plan again, to the bit.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::*;
use crate::{
    decisions::{DecisionLog, HappeningKind, Told},
    gc::{DiskUse, GcGoal, GcPolicy, GcRules, ImageFacts},
    image::{ByteSize, ImageId},
    inventory::{Origin, PullCost, ReuseTable, UseHistory},
    runtime::{Certainty, Freed, LayerFacts, LayerGraph},
};

/// The same numbers in every run (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    fn chance(&mut self, of: u64) -> bool {
        self.next(of) == 0
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.chance(2) { Some(make(self)) } else { None }
    }
}

const NOW: u64 = 2_000_000_000;

fn time(dice: &mut Dice, now: SystemTime) -> SystemTime {
    now - Duration::new(dice.next(400_000), u32::try_from(dice.next(1_000_000_000)).unwrap())
}

fn facts(dice: &mut Dice, number: u64, now: SystemTime) -> ImageFacts {
    let id = ImageId::new(format!("sha256:{}", Digest::of(&number.to_le_bytes()).hex()));
    let handler = if dice.chance(5) { "kata".to_owned() } else { String::new() };
    let tags = (0..dice.next(3)).map(|tag| format!("registry.example/app-{number}:v{tag}")).collect();
    let digests = (0..dice.next(2)).map(|_| format!("registry.example/app-{number}@{id}")).collect();
    let users = ["default/web/app", "kube-system/dns/dns"];
    ImageFacts {
        key: ImageKey::new(id, handler),
        tags,
        digests,
        size: ByteSize(dice.next(1 << 30)),
        first_seen: Some(time(dice, now)),
        last_used: if dice.chance(4) { Some(now) } else { dice.maybe(|dice| time(dice, now)) },
        leased_at: dice.maybe(|dice| time(dice, now)),
        leased_until: if dice.chance(9) { Some(now + Duration::from_secs(9)) } else { None },
        released_at: if dice.chance(9) { Some(time(dice, now)) } else { None },
        in_use_by: if dice.chance(4) { vec![users[usize::from(dice.chance(2))].to_owned()] } else { Vec::new() },
        pinned_by: if dice.chance(6) { vec!["registry.example/*".to_owned()] } else { Vec::new() },
        use_count: dice.next(9),
        last_user: dice.maybe(|_| "default/web".to_owned()),
        pulled: dice.maybe(|dice| PullCost {
            bytes: ByteSize(dice.next(1 << 28)),
            duration: Duration::from_millis(dice.next(90_000)),
            at: time(dice, now),
        }),
        origin: [Origin::Pulled, Origin::Adopted, Origin::Found][usize::try_from(dice.next(3)).unwrap()],
        history: UseHistory { uses: dice.next(9), superseded: dice.chance(3), ..UseHistory::default() },
        labels: dice.maybe(|_| BTreeMap::from([("team".to_owned(), "shop".to_owned())])),
    }
}

fn layers(dice: &mut Dice, images: &[ImageFacts]) -> LayerGraph {
    let count = dice.next(12) + 1;
    let layer = |dice: &mut Dice, number: u64| LayerFacts {
        id: Arc::from(format!("layer-{number}")),
        bytes: ByteSize(dice.next(1 << 28)),
        inodes: dice.maybe(|dice| dice.next(1000)),
        held: dice.chance(20),
    };
    LayerGraph {
        layers: (0..count).map(|number| layer(dice, number)).collect(),
        images: images
            .iter()
            .map(|image| {
                let of: std::collections::BTreeSet<u32> =
                    (0..dice.next(4)).map(|_| u32::try_from(dice.next(count)).unwrap()).collect();
                (image.key.id().clone(), of.into_iter().collect())
            })
            .collect(),
        certainty: [Certainty::Exact, Certainty::Partial { measured: 1, layers: 9 }, Certainty::Claimed]
            [usize::try_from(dice.next(3)).unwrap()],
    }
}

fn input(dice: &mut Dice, images: Vec<ImageFacts>, now: SystemTime) -> PlanInput {
    let low = i64::try_from(dice.next(90)).unwrap();
    let age_max = dice.maybe(|dice| Duration::from_secs(dice.next(500_000) + 1));
    let age_min = Duration::from_secs(dice.next(50_000));
    let mut images = images;
    images.sort_by_key(|image| image.key.to_string());
    PlanInput {
        policy: GcPolicy::new(low + 10, low, age_min, age_max).unwrap(),
        goal: [GcGoal::Threshold, GcGoal::Free(ByteSize(dice.next(1 << 32))), GcGoal::AllUnused]
            [usize::try_from(dice.next(3)).unwrap()],
        now,
        watched_since: time(dice, now),
        disk: dice.maybe(|dice| DiskUse::of(ByteSize(1 << 34), ByteSize(dice.next(1 << 34)))),
        freed: Freed { bytes: ByteSize(dice.next(2) * dice.next(1 << 30)), inodes: dice.next(2) * 77 },
        aged: Freed::default(),
        reuse: ReuseTable::default(),
        layers: dice.maybe(|dice| layers(dice, &images)),
        images: images.into(),
        rules: GcRules { keep: Vec::new(), only_owned: dice.chance(4) },
        spared: BTreeMap::new(),
    }
}

#[test]
fn hundreds_of_collections_on_record_are_decided_again_to_the_bit() {
    let (mut collections, mut steps) = (0, 0);
    for seed in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let log = DecisionLog::new(folder.path(), 1 << 22);
        let mut dice = Dice(seed);
        let mut images: BTreeMap<u64, ImageFacts> = BTreeMap::new();
        let mut all: Vec<Planned> = Vec::new();
        for pass in 0..8 {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW + pass * 300);
            for _ in 0..dice.next(6) {
                let number = dice.next(30);
                images.insert(number, facts(&mut dice, number, now));
            }
            images.remove(&dice.next(30));
            let input = input(&mut dice, images.values().cloned().collect(), now);
            let planned = Planned { plan: plan(&input), input };
            log.run(of_plan(&planned));
            all.push(planned);
        }
        let mut told = all.iter();
        let damage = log.read(|heard| {
            let Told::Run(run) = heard else { panic!("{heard:?}") };
            // Those that decided nothing new were counted; the last of them is told.
            let planned = told.by_ref().take(usize::try_from(run.count).unwrap()).last().unwrap();
            let read = joined(&run.input().unwrap()).unwrap();
            assert_eq!(read, planned.input, "seed {seed}");
            assert_eq!(plan(&read), planned.plan, "seed {seed}");
            assert_eq!(replay(&run.input().unwrap()), Some(run.head.digest.clone()), "seed {seed}");
            collections += 1;
            steps += planned.plan.steps.len();
        });
        assert!(damage.unwrap().is_none() && told.next().is_none());
    }
    assert!(collections > 300 && steps > 300, "{collections} collections with {steps} removals");
}

#[tokio::test]
async fn a_collection_tells_the_log_what_it_removed_spared_and_failed_to_remove() {
    use crate::gc::tests::Node;
    let node = Node::new(500);
    let (a, b) = (node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await);
    node.fake.fail(&format!("remove {a}"), crate::runtime::RuntimeErrorKind::Other, "busy");
    let report = node.collect(GcGoal::Threshold).await;
    let asked = Asked { by: "timer".into(), shadow: false };
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), 1 << 20);
    for run in report.on_record(&asked, SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)) {
        log.run(run);
    }
    let told = |text: &str| {
        let history = log.history(text).unwrap();
        let all = &history.images[0].happenings;
        all.iter().map(|it| (it.kind, it.code.clone(), it.text.clone())).collect::<Vec<_>>()
    };
    let failed = told("a:1");
    assert!(
        failed
            .iter()
            .any(|(kind, code, text)| (*kind, code.as_str(), text.as_str()) == (HappeningKind::Failed, "room", "busy")),
        "{failed:?}"
    );
    let removed = told(b.as_str());
    assert_eq!(removed.last().map(|(kind, code, _)| (*kind, code.as_str())), Some((HappeningKind::Removed, "room")));
    assert!(removed.iter().all(|(kind, _, _)| *kind != HappeningKind::Gone), "{removed:?}");
}

#[tokio::test]
async fn in_shadow_mode_every_port_is_only_read() {
    use crate::gc::{
        GcRequest,
        tests::{Node, at},
    };
    for goal in [GcGoal::Threshold, GcGoal::AllUnused, GcGoal::Free(ByteSize(300))] {
        for way in [crate::gc::GcWay::Imagelet, crate::gc::GcWay::Kubelet] {
            let node = Node::new(500);
            node.idle("a:1", 200, 10).await;
            node.idle("b:1", 250, 20).await;
            node.fake.take_calls();
            let policy =
                GcPolicy::new(90, 80, Duration::from_mins(2), Some(Duration::from_mins(1))).unwrap().in_way(way);
            let report = node.gc.collect(&GcRequest { policy, goal, dry_run: true }, at(10_000)).await.unwrap();
            let chosen = report.decisions.iter().filter(|it| matches!(it.verdict, GcVerdict::Remove { .. })).count();
            assert!(chosen > 0 && report.removed.is_empty(), "{goal:?} {way:?}");
            let calls = node.fake.take_calls();
            let reads = ["list", "status", "containers", "sandboxes", "mounts", "filesystem", "layers"];
            let is_read = |call: &String| reads.iter().any(|verb| call.split(' ').next() == Some(*verb));
            assert!(!calls.is_empty() && calls.iter().all(is_read), "{goal:?} {way:?}: {calls:?}");
        }
    }
}

#[tokio::test]
async fn a_removal_is_on_record_before_it_is_done_and_told_once() {
    use super::super::tests::{Node, at};
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(DecisionLog::new(folder.path(), 1 << 20));
    let mut node = Node::new(500);
    node.idle("a:1", 200, 10).await;
    node.idle("b:1", 250, 20).await;
    node.gc = node.gc.with_decisions(Arc::clone(&log));
    let report = node.collect(GcGoal::Free(ByteSize(100))).await;
    assert_eq!(report.removed.len(), 1);
    let id = report.removed[0].key.id().clone();
    let kinds = || {
        log.flush();
        let history = log.history(id.as_str()).unwrap();
        history.images.iter().flat_map(|image| image.happenings.iter().map(|it| it.kind)).collect::<Vec<_>>()
    };
    assert_eq!(
        kinds(),
        [HappeningKind::Found, HappeningKind::Act(ActCode::Removing)],
        "its collection has told nothing yet"
    );
    let asked = Asked { by: "timer".to_owned(), shadow: false };
    report.on_record(&asked, at(10_000)).into_iter().for_each(|run| log.run(run));
    assert_eq!(kinds(), [HappeningKind::Found, HappeningKind::Removed]);
}
