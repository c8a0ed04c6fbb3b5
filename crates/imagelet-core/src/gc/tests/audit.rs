//! Tests of the audit record of a collection.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{Node, at};
use crate::{
    audit_log::{ActCode, AuditLog},
    error::RuntimeErrorKind,
    gc::{GcGoal, GcOrder, GcPolicy, GcRequest},
    image::{ByteSize, ImageSpec},
    ports::ImageService as _,
    testing::in_order,
};

#[tokio::test]
async fn the_log_has_what_a_collection_removed_and_failed_to_remove() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(AuditLog::new(folder.path(), 1 << 20));
    let mut node = Node::new(500);
    node.gc = node.gc.with_decisions(Arc::clone(&log));
    let (a, b) = (node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await);
    node.fake.fail(&format!("remove {a}"), RuntimeErrorKind::Other, "busy");
    let policy = GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap();
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: false };
    node.gc.run_by("timer", &request, at(10_000)).await.unwrap();
    let acts = |text: &str| {
        let image = log.history(text).unwrap().images.remove(0);
        image.acts.into_iter().map(|act| (act.code, act.by, act.details.reason, act.details.why)).collect::<Vec<_>>()
    };
    assert_eq!(acts("a:1"), [(ActCode::Refused, "timer".to_owned(), "room".to_owned(), "busy".to_owned())]);
    let removed = acts(b.as_str());
    assert_eq!(
        removed.iter().map(|(code, by, reason, _)| (*code, by.as_str(), reason.as_str())).collect::<Vec<_>>(),
        [(ActCode::Removed, "timer", "room")]
    );
}

#[tokio::test]
async fn the_end_of_a_collection_is_no_refusal_of_the_rest_and_no_image_that_is_gone_is_refused() {
    for is_cut_off in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let log = Arc::new(AuditLog::new(folder.path(), 1 << 20));
        let mut node = Node::new(0);
        node.gc = node.gc.with_decisions(Arc::clone(&log));
        let ids = [node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await];
        node.before_listing(1, move |fake| {
            if is_cut_off {
                fake.fail("containers", RuntimeErrorKind::Unavailable, "down");
            } else {
                for id in &ids {
                    let spec = ImageSpec { image: id.to_string(), ..ImageSpec::default() };
                    fake.remove(&spec).now_or_never().unwrap().unwrap();
                }
            }
        });
        let report = node.collect(GcGoal::AllUnused).await;
        let codes: Vec<_> = report.decisions.iter().map(|it| it.reason.code()).collect();
        assert_eq!(codes, [if is_cut_off { "aborted" } else { "gone" }; 2]);
        assert_eq!(log.recent(10).unwrap(), [], "{codes:?}");
    }
}

#[tokio::test]
async fn in_shadow_mode_every_port_is_only_read() {
    for goal in [GcGoal::Threshold, GcGoal::AllUnused, GcGoal::Free(ByteSize(300))] {
        for order in [GcOrder::Lru, GcOrder::ListedSizes] {
            let node = Node::new(500);
            node.idle("a:1", 200, 10).await;
            node.idle("b:1", 250, 20).await;
            node.fake.take_calls();
            let policy = GcPolicy::new(90, 80, Duration::from_mins(2), Some(Duration::from_mins(1))).unwrap();
            let policy = in_order(order, policy);
            let report = node.gc.run(&GcRequest { policy, goal, dry_run: true }, at(10_000)).await.unwrap();
            assert!(report.chosen().count() > 0 && report.removed().next().is_none(), "{goal:?} {order:?}");
            let calls = node.fake.take_calls();
            let reads = ["list", "status", "containers", "sandboxes", "mounts", "filesystem", "layers"];
            let is_read = |call: &String| reads.iter().any(|verb| call.split(' ').next() == Some(*verb));
            assert!(!calls.is_empty() && calls.iter().all(is_read), "{goal:?} {order:?}: {calls:?}");
        }
    }
}
