//! Tests of the audit record of a collection.

use std::{sync::Arc, time::Duration};

use super::{Node, at};
use crate::{
    audit_log::{ActCode, AuditLog},
    gc::{GcGoal, GcOrder, GcPolicy, GcRequest},
    image::ByteSize,
    runtime::RuntimeErrorKind,
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
    node.collect(GcGoal::Threshold).await;
    let acts = |text: &str| {
        let image = log.history(text).unwrap().images.remove(0);
        image.acts.into_iter().map(|act| (act.code, act.reason, act.why)).collect::<Vec<_>>()
    };
    assert_eq!(acts("a:1"), [(ActCode::Refused, "room".to_owned(), "busy".to_owned())]);
    let removed = acts(b.as_str());
    assert_eq!(
        removed.iter().map(|(code, reason, _)| (*code, reason.as_str())).collect::<Vec<_>>(),
        [(ActCode::Removed, "room")]
    );
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
