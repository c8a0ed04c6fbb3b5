//! Tests of images with shared layers on a disk of 1000 bytes, over the fake runtime.

use super::*;
use crate::{
    image::Percent,
    ports::{Certainty, Freed},
};

/// Three stacked images, oldest first, and one independent: 600 + 20 + 10 and 100 bytes.
async fn stacked(others: u64) -> (Node, [ImageId; 4]) {
    let node = Node::new(others);
    let ids = [
        node.idle("base:1", 600, 10).await,
        node.idle("middle:1", 620, 20).await,
        node.idle("top:1", 630, 30).await,
        node.idle("own:1", 100, 40).await,
    ];
    for (id, layers) in ids.iter().zip([
        &[("base", 600)][..],
        &[("base", 600), ("middle", 20)],
        &[("base", 600), ("middle", 20), ("top", 10)],
        &[("own", 100)],
    ]) {
        node.fake.set_layers(id, layers);
    }
    (node, ids)
}

fn policy(order: GcOrder) -> GcPolicy {
    GcPolicy { order, ..GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap() }
}

async fn collect(node: &Node, order: GcOrder, goal: GcGoal) -> GcReport {
    node.gc.run(&GcRequest { policy: policy(order), goal, dry_run: false }, at(10_000)).await.unwrap()
}

#[tokio::test]
async fn what_goes_frees_what_was_planned_where_images_stand_on_one_another() {
    for order in [GcOrder::Lru, GcOrder::Cost] {
        for (wanted, planned, gone) in [(5, 100, 1), (101, 110, 2), (131, 630, 3), (700, 730, 4)] {
            let (node, _) = stacked(0).await;
            let report = collect(&node, order, GcGoal::Free(ByteSize(wanted))).await;
            let freed = report.sizes.freed.bytes.0;
            assert_eq!(report.sizes.measured, Some(ByteSize(freed)), "{order:?} {wanted}");
            assert!(freed >= wanted, "{order:?} {wanted}: {freed}");
            assert_eq!(report.sizes.certainty, Certainty::Exact);
            if order == GcOrder::Cost && wanted > 5 {
                assert_eq!((freed, report.removed().count()), (planned, gone));
            }
        }
    }
}

#[tokio::test]
async fn the_base_of_an_image_in_use_does_not_go_although_it_is_listed_as_large() {
    let (node, [base, middle, top, own]) = stacked(0).await;
    node.fake.run("web", "app", "middle:1", &middle, ContainerState::Running);
    let report = collect(&node, GcOrder::Lru, GcGoal::Free(ByteSize(105))).await;
    assert_eq!(node.removals(), [format!("remove {top}"), format!("remove {own}")]);
    assert_eq!(reason(&report, &base), "not needed");
    assert_eq!((report.sizes.freed.bytes, report.sizes.measured), (ByteSize(110), Some(ByteSize(110))));

    let (node, [_, middle, ..]) = stacked(0).await;
    node.fake.run("web", "app", "middle:1", &middle, ContainerState::Running);
    let report = collect(&node, GcOrder::Cost, GcGoal::Free(ByteSize(111))).await;
    assert_eq!((node.removals(), report.sizes.could_free), (Vec::new(), ByteSize(110)));
}

#[tokio::test]
async fn what_could_go_is_known_although_no_room_is_wanted() {
    let (node, [_, middle, ..]) = stacked(0).await;
    let report = collect(&node, GcOrder::Cost, GcGoal::Threshold).await;
    assert_eq!((report.sizes.goal, report.sizes.could_free), (None, ByteSize(730)));
    node.fake.run("web", "app", "middle:1", &middle, ContainerState::Running);
    let report = collect(&node, GcOrder::Cost, GcGoal::Threshold).await;
    assert_eq!((node.removals(), report.sizes.could_free), (Vec::new(), ByteSize(110)));
}

#[tokio::test]
async fn a_goal_out_of_reach_is_told_once_until_something_changes_and_nothing_goes() {
    let (node, [_, _, top, own]) = stacked(260).await;
    node.fake.run("web", "app", "top:1", &top, ContainerState::Running);
    node.inventory.pin("own:1").unwrap();
    let mut messages = Vec::new();
    for _ in 0..3 {
        let report = collect(&node, GcOrder::Cost, GcGoal::Threshold).await;
        assert_eq!((report.removed().count(), report.failures.len(), report.failure()), (0, 1, None));
        messages.extend(report.events.into_iter().map(|event| (event.reason, event.message)));
    }
    assert_eq!(node.removals(), [""; 0]);
    let text = "Insufficient free disk space on the node's image filesystem (99% of 1kB used). 100B must go, unused \
                images can free nothing, and none was deleted. Used: 10B by images in use, 100B by pinned images, 620B by \
                layers that images share with unused ones, 260B by anything but images.";
    assert_eq!(messages, [("FreeDiskSpaceFailed", text.to_owned())]);

    // With the pin the shortfall ends, and a later one is reported again. A dry run reports no removal.
    node.inventory.unpin("own:1").unwrap();
    let asked = GcRequest { policy: policy(GcOrder::Cost), goal: GcGoal::Threshold, dry_run: true };
    let message = node.gc.run(&asked, at(10_000)).await.unwrap().failures[0].to_string();
    assert!(message.contains("and 100B would be freed by removing unused images. Used then: 10B"), "{message}");
    let report = collect(&node, GcOrder::Cost, GcGoal::Threshold).await;
    assert_eq!((node.removals(), report.events.len()), (vec![format!("remove {own}")], 1));
    // All candidates were removed, so they are not the missing space.
    let message = &report.events[0].message;
    let text = "The low threshold is out of reach, and 100B was freed by removing unused images. Used now: 10B";
    assert!(message.contains(text) && !message.contains("must go"), "{message}");
}

#[tokio::test]
async fn room_that_pulls_were_promised_is_not_taken_for_the_goal() {
    for (reserved, gone) in [(0, 1), (90, 2)] {
        let node = Node::new(500);
        for (number, name) in ["a:1", "b:1", "c:1"].into_iter().enumerate() {
            node.idle(name, 140, 10 + number as u64).await;
        }
        node.fake.set_reserved(Freed { bytes: ByteSize(reserved), inodes: 0 });
        let report = node.collect(GcGoal::Threshold).await;
        assert_eq!(report.sizes.goal, Some(ByteSize(120 + reserved)));
        assert_eq!(node.removals().len(), gone);
    }
}

#[tokio::test]
async fn what_comes_between_is_planned_around_and_nothing_goes_in_vain() {
    let (node, [base, middle, top, own]) = stacked(0).await;
    let used = base.clone();
    // Freeing 630 bytes takes all three; the base is taken into use before the first removal.
    node.before_listing(1, move |fake| {
        fake.run("web", "app", "base:1", &used, ContainerState::Created);
    });
    let report = collect(&node, GcOrder::Cost, GcGoal::Free(ByteSize(630))).await;
    let removals = node.removals();
    assert!(!removals.contains(&format!("remove {base}")) && !removals.contains(&format!("remove {own}")));
    assert_eq!(report.sizes.measured, Some(report.sizes.freed.bytes).filter(|freed| *freed > ByteSize::ZERO));
    assert!(removals.len() <= 2, "{removals:?} {middle} {top}");
}

#[tokio::test]
async fn inodes_are_a_second_watermark() {
    let percent = |value| Percent::new(value).unwrap();
    let policy = GcPolicy { inodes: Some(GcMarks::new(percent(95), percent(90))), ..policy(GcOrder::Cost) };
    let request = |dry_run| GcRequest { policy, goal: GcGoal::Threshold, dry_run };
    // Each layer of the fake is one inode: removing two of the four reduces 20 to 18.
    let node = stacked(0).await.0.with_inodes(20, 0);
    let report = node.gc.run(&request(true), at(10_000)).await.unwrap();
    assert_eq!((report.chosen().count(), report.sizes.freed.inodes, report.sizes.goal), (2, 2, Some(ByteSize::ZERO)));
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    let node = node.with_inodes(400, 0);
    let report = node.gc.run(&request(false), at(10_000)).await.unwrap();
    let GcError::OutOfReach { shortfall, .. } = &report.failures[0] else { panic!("{:?}", report.failures) };
    assert_eq!((report.removed().count(), shortfall.missing.inodes), (0, 24));
}
